"""Preparing text: what goes where, the same bytes whatever happens on the way, and what is refused."""

import functools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preparing import contents, documents, jsonl, story
from tenfold.data.shards import MANIFEST, open_corpus
from tenfold.errors import ConfigError, DataError
from tenfold.prepare import prepare_text
from tenfold.prepare.corpus import JOURNAL, STATE
from tenfold.prepare.sources import brings_closer

SHARED = Path(os.environ.get("TENFOLD_SHARED") or Path(__file__).parents[2] / "shared")


# What goes where


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "gpt2"])
def test_one_document_is_cut_once(tmp_path: Path, tokenizer: str) -> None:
    text = story(1000)
    (tmp_path / "story.txt").write_bytes(text.encode())
    manifest = prepare_text(tmp_path / "story.txt", tmp_path / "out", tokenizer, shard_tokens=700)
    corpus = open_corpus(tmp_path / "out")
    cut = int(len(text) * 0.9)
    assert documents(corpus, "train") == [text[:cut]]  # \r\n is still there, and no end-of-text was added
    assert documents(corpus, "val") == [text[cut:]]
    assert manifest == corpus.manifest
    assert manifest["source"]["characters"] == len(text)
    assert manifest["source"]["bytes"] == len(text.encode())
    if tokenizer == "chars":
        assert manifest["tokenizer"]["symbols"] == "".join(sorted(set(text)))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab é\n🙂<|>"), max_size=30), min_size=2, max_size=12),
    st.sampled_from(["bytes", "chars", "gpt2"]),
    st.sampled_from([0.01, 0.1, 0.3, 0.5]),
    st.integers(1, 40),
)
def test_whole_documents_go_to_one_side(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], tokenizer: str, fraction: float, size: int
) -> None:
    folder = tmp_path_factory.mktemp("prepare")
    source, full = jsonl(folder / "source.jsonl", texts), [text for text in texts if text]
    if len(full) < 2:
        return
    manifest = prepare_text(source, folder / "out", tokenizer, fraction, shard_tokens=size)
    corpus = open_corpus(folder / "out")
    train, val = documents(corpus, "train"), documents(corpus, "val")
    assert sorted(train + val) == sorted(full)
    if len(set(full)) == len(full):
        assert [train, val] == [[text for text in full if text in side] for side in (train, val)]  # in their order
    for split, found in (("train", train), ("val", val)):
        assert found
        tokens = getattr(corpus, split)
        ids = tokens.read(0, len(tokens))
        assert int((ids == corpus.tokenizer.eot).sum()) == len(found) - 1
        assert corpus.tokenizer.eot not in (ids[0], ids[-1])
        encoded = [corpus.tokenizer.encode(text).tolist() for text in found]
        assert ids.tolist() == functools.reduce(lambda a, b: [*a, corpus.tokenizer.eot, *b], encoded)
        assert manifest["splits"][split]["documents"] == len(found)
        assert manifest["splits"][split]["tokens"] == len(tokens)
        tokens.check(corpus.tokenizer.vocab)
    assert manifest["source"]["documents"] == len(full)
    assert manifest["source"]["empty_documents"] == len(texts) - len(full)
    shutil.rmtree(folder)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.floats(0.01, 0.5))
def test_the_choice_stays_close_to_the_fraction(sizes: list[int], fraction: float) -> None:
    val = 0
    for i, size in enumerate(sizes):
        total = sum(sizes[: i + 1])
        val += size * brings_closer(size, val, total, fraction)
        assert abs(val - fraction * total) <= max(sizes[: i + 1])


def test_the_choice_is_spread_through_the_source() -> None:
    chosen = list[int]()
    for i in range(40):
        if brings_closer(1000, 1000 * len(chosen), 1000 * (i + 1), 0.1):
            chosen.append(i)
    assert chosen == [5, 15, 25, 35]


def test_an_end_of_text_marker_in_a_text_is_no_border(tmp_path: Path) -> None:
    texts = ["one<|endoftext|>still one", "<|endoftext|>", "three", "four"]  # T24
    for tokenizer in ("gpt2", "bytes", "chars"):
        out = tmp_path / tokenizer
        prepare_text(jsonl(tmp_path / "source.jsonl", texts), out, tokenizer, 0.3)
        corpus = open_corpus(out)
        assert sorted(documents(corpus, "train") + documents(corpus, "val")) == sorted(texts)


def test_a_corpus_far_smaller_than_a_shard_has_both_splits(tmp_path: Path) -> None:
    said: list[Any] = []  # T21
    (tmp_path / "tiny.txt").write_text("ab")
    prepare_text(tmp_path / "tiny.txt", tmp_path / "out", "bytes", report=said.append)
    assert said[-1] == f"{tmp_path / 'out'} is complete: train 1 tokens in 1 shard, val 1 tokens in 1 shard"
    assert [len(open_corpus(tmp_path / "out").train), len(open_corpus(tmp_path / "out").val)] == [1, 1]


@pytest.mark.parametrize("texts", [[""], ["a"], ["", "", "a"]])
def test_a_corpus_too_small_for_both_splits_is_refused(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(DataError, match=r"characters in \d documents, too few for training and validation"):
        prepare_text(jsonl(tmp_path / "source.jsonl", texts), tmp_path / "out", "bytes")  # T21
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("first", [True, False])
def test_a_document_longer_than_a_shard_loses_nothing(tmp_path: Path, first: bool) -> None:
    long, short = story(800), ["short one", "short two"]  # T22
    texts = [long, *short] if first else [*short, long]
    manifest = prepare_text(jsonl(tmp_path / "source.jsonl", texts), tmp_path / "out", "gpt2", shard_tokens=100)
    corpus = open_corpus(tmp_path / "out")
    assert sorted(documents(corpus, "train") + documents(corpus, "val")) == sorted(texts)
    assert max(len(part["shards"]) for part in manifest["splits"].values()) > 10


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("b.txt", "a/z.md", "a/deep/er.txt", "a.txt", "a/skip.py", "cache/no.txt", "empty.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("" if name == "empty.txt" else f"this is {name}")
    (source / "folder.txt").mkdir()
    manifest = prepare_text(source, tmp_path / "out", "bytes", 0.01, exclude=("cache",))
    corpus = open_corpus(tmp_path / "out")
    order = ["a.txt", "a/deep/er.txt", "a/z.md", "b.txt"]
    assert documents(corpus, "train") == [f"this is {name}" for name in order[:-1]]
    assert documents(corpus, "val") == ["this is b.txt"]  # the last one, since no other would bring 1 % closer
    assert manifest["source"] | {"sha256": "", "listing_sha256": ""} == {
        "name": "source",
        "files": 5,
        "listing_sha256": "",
        "rows": 5,
        "documents": 4,
        "empty_documents": 1,
        "null_documents": 0,
        "cleaned_documents": 0,
        "duplicate_documents": 0,
        "characters": 61,
        "bytes": 61,
        "sha256": "",
    }
    prepare_text(source, tmp_path / "code", "bytes", suffixes=(".py", ".md"))
    assert documents(open_corpus(tmp_path / "code"), "train") == ["this is a/skip.py"]
    (source / "a.txt").rename(source / "c.txt")
    other = prepare_text(source, tmp_path / "renamed", "bytes", 0.01, exclude=("cache",))
    assert other["source"]["sha256"] != manifest["source"]["sha256"]


@pytest.mark.parametrize("tokenizer", ["gpt2", "bytes", "chars"])
def test_long_files_are_read_in_pieces_that_leave_no_trace(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenfold.prepare.sources.BLOCK", 37)  # characters of several bytes are cut as well
    text = story(600) + "   \n\n\t  " + "🙂" * 40 + story(100, 1)
    (tmp_path / "story.txt").write_bytes(text.encode())
    (tmp_path / "other.txt").write_text("another")
    prepare_text(tmp_path, tmp_path / "out", tokenizer, 0.1)
    corpus = open_corpus(tmp_path / "out")
    both = [corpus.train.read(0, len(corpus.train)).tolist(), corpus.val.read(0, len(corpus.val)).tolist()]
    assert corpus.tokenizer.encode(text).tolist() in both


@pytest.mark.parametrize(
    ("tokenizer", "train", "val"),
    [("gpt2", 301_966, 36_059), ("chars", 1_003_854, 111_540), ("bytes", 1_003_854, 111_540)],
)
def test_tiny_shakespeare_gives_the_published_counts(tmp_path: Path, tokenizer: str, train: int, val: int) -> None:
    path = SHARED / "data" / "tinyshakespeare.txt"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    manifest = prepare_text(path, tmp_path / "out", tokenizer)
    assert [part["tokens"] for part in manifest["splits"].values()] == [train, val]
    assert manifest["source"]["sha256"] == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    if tokenizer == "chars":
        assert open_corpus(tmp_path / "out").tokenizer.vocab == 66


# Bad text


@pytest.mark.parametrize("block", [1 << 20, 3])
def test_bytes_that_are_not_utf8_are_refused_with_their_place(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenfold.prepare.sources.BLOCK", block)
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    (source / "good.txt").write_text("fine")
    for data, place in ((b"caf\xc3\xa9 caf\xe9!", r"byte 9 is 0xe9"), (b"cut \xf0\x9f\x99", r"byte 4 is 0xf0")):
        (source / "story.txt").write_bytes(data)
        for path in (source, source / "story.txt"):
            with pytest.raises(DataError, match=rf"story.txt is not UTF-8: {place}; convert it"):
                prepare_text(path, out, "bytes")
    assert not out.exists()
    (source / "story.txt").write_bytes(b"caf\xe9!")
    prepare_text(source, out, "bytes", errors="replace")
    assert documents(open_corpus(out), "val") == ["caf�!"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{broken", r"line 3 is not JSON .*; every line must be one JSON object"),
        (b"[" * 100_000, r"line 3 is not JSON"),
        (b'{"body": "a", "id": 1}', r"line 3 has no text in a field 'text'; its fields are body, id: name the field"),
        (b'{"text": 5}', r"line 3 has 5 in its field 'text', not text; mend it"),
        (b'["text"]', r"line 3 has no text in a field 'text'; it is no JSON object"),
        (b'{"text": "caf\xe9"}', r"line 3 is not UTF-8: its byte 13 is 0xe9"),
        (b'{"text": "a\\ud83d"}', r"line 3 has half a character \('\\ud83d'\) at character 1 of its text"),
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "source.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(DataError, match=says) as caught:
        prepare_text(path, tmp_path / "out", "bytes")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_bad_characters_in_lines_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "source.jsonl"
    path.write_bytes(b'{"body": "caf\xe9"}\n   \n{"body": "a\\ud83d"}\n{"body": "\\ud83d\\ude42"}')
    prepare_text(path, tmp_path / "out", "gpt2", text_field="body", errors="replace")
    corpus = open_corpus(tmp_path / "out")
    assert sorted(documents(corpus, "train") + documents(corpus, "val")) == ["a�", "caf�", "🙂"]


def test_sources_and_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("some text")
    (tmp_path / "empty").mkdir()
    prepare = functools.partial(prepare_text, out=tmp_path / "out")
    with pytest.raises(DataError, match="is no file or folder; give a text file"):
        prepare(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no \.txt or \.md or .* file in it"):
        prepare(tmp_path / "empty")
    for options, says in (
        ({"tokenizer": "words"}, "tokenizer is 'words'; give one of gpt2, bytes, chars"),
        ({"val_fraction": 0.0}, "val_fraction is 0.0; give"),
        ({"val_fraction": 0.6}, "val_fraction is 0.6; give"),
        ({"shard_tokens": 0}, "shard_tokens is 0; give"),
        ({"errors": "ignore"}, "errors is 'ignore'; give strict or replace"),
        ({"engine": "rays"}, "no engine 'rays', did you mean 'ray'"),
        ({"workers": -1}, "workers is -1; give a number of processes"),
        ({"dedup": True}, "are for the rows of .jsonl and .parquet files"),
        ({"tokens": 5}, "are for the rows of .jsonl and .parquet files"),
    ):
        with pytest.raises(ConfigError, match=says):
            prepare(tmp_path / "story.txt", **options)
    assert not (tmp_path / "out").exists()


# The folder


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    source, out = jsonl(tmp_path / "source.jsonl", ["one", "two"]), tmp_path / "out"
    out.mkdir()
    for name, text in (("thesis.tex", "mine"), (MANIFEST, "{}"), (MANIFEST, '{"format": "another program"}')):
        (out / name).write_text(text)
        with pytest.raises(DataError, match=r"holds something else \(thesis.tex\)|is not tenfold's"):
            prepare_text(source, out, "bytes")
        assert contents(out)[name] == text.encode()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match="is a file; nothing was changed"):
        prepare_text(source, tmp_path / "file", "bytes")


def test_a_complete_folder_is_left_as_it_is(tmp_path: Path) -> None:
    source, out, said = jsonl(tmp_path / "source.jsonl", ["one", "two"]), tmp_path / "out", []
    manifest = prepare_text(source, out, "bytes")
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert prepare_text(source, out, "bytes", report=said.append) == manifest
    assert said == [f"{out} is complete already: train 3 tokens in 1 shard, val 3 tokens in 1 shard"]
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    with pytest.raises(
        DataError, match="is complete, but its tokenizer differs from what was given; nothing was changed"
    ):
        prepare_text(source, out, "chars")
    jsonl(source, ["one", "three"])
    with pytest.raises(DataError, match="is complete, but its source differs"):
        prepare_text(source, out, "bytes")
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    prepare_text(source, out, "bytes", overwrite=True)
    assert documents(open_corpus(out), "val") == ["three"]
    assert sorted(contents(out)) == [STATE, MANIFEST, "train_000000.bin", "val_000000.bin"]


def test_an_unfinished_folder_of_something_else_starts_over(tmp_path: Path) -> None:
    source, out, said = jsonl(tmp_path / "source.jsonl", [story(100, i) for i in range(9)]), tmp_path / "out", []

    def stop(message: Any) -> None:
        if isinstance(message, dict):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_text(source, out, "bytes", shard_tokens=100, commit_tokens=1000, report=stop)
    assert JOURNAL in contents(out)
    with pytest.raises(DataError, match="again if it was stopped"):
        open_corpus(out)
    prepare_text(source, out, "gpt2", report=said.append)
    assert said[0] == f"{out} holds the beginning of a run with another source or other options; starting over"
    prepare_text(source, tmp_path / "fresh", "gpt2")
    assert contents(out) == contents(tmp_path / "fresh")


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    source, out = jsonl(tmp_path / "source.jsonl", [story(50, i) for i in range(9)]), tmp_path / "out"

    def edit(message: Any) -> None:
        if isinstance(message, dict):
            jsonl(source, [story(50, i) for i in range(10)])

    with pytest.raises(DataError, match="was changed while it was read; run the same command again"):
        prepare_text(source, out, "bytes", commit_tokens=1000, report=edit)
    assert not (out / MANIFEST).exists()
    prepare_text(source, out, "bytes")
    assert open_corpus(out).manifest["source"]["documents"] == 10


def test_two_at_once_are_kept_apart(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    source, out, said = jsonl(tmp_path / "source.jsonl", ["one", "two"]), tmp_path / "out", []

    def again(message: Any) -> None:
        if not said:
            said.append(message)
            prepare_text(source, out, "bytes")

    with pytest.raises(DataError, match="another process is writing to"):
        prepare_text(source, out, "bytes", report=again)


# Stopped and started again


def sources(folder: Path) -> dict[str, Path]:
    """A long file, a file of lines, and one with the same lines again, of about 20,000 bytes each."""
    (folder / "long.txt").write_bytes(story(5000).encode())
    texts = [story(40, i) for i in range(120)]
    return {
        "long": folder / "long.txt",
        "lines": jsonl(folder / "lines.jsonl", texts),
        "again": jsonl(folder / "again.jsonl", [*texts[:60], *texts]),
    }


# Kills itself, really, just before the n-th time that it opens, renames, truncates or removes something in the folder.
KILL = """
import json, os, signal, sys
from pathlib import Path
from tenfold.data.shards import open_corpus
from tenfold.prepare import corpus, prepare_text, sources

sources.BLOCK = 1000  # so that a long file is many pieces, and lines are many batches
corpus.WINDOW = 1500
folder, tokenizer, *files = Path(sys.argv[1]), *sys.argv[2:]
options = {"tokenizer": tokenizer, "shard_tokens": 4000, "commit_tokens": 2000}
more = {"again": {"dedup": True, "shuffle": 1}}
prepare_text(Path(files[0]), folder / "warm", **options)  # what is loaded now need not be loaded by every child


def run(source, out, kill_at):
    seen = 0

    def watch(event, args):
        nonlocal seen
        paths = [str(arg) for arg in args if isinstance(arg, (str, os.PathLike))]
        if event in ("open", "os.rename", "os.truncate", "os.remove") and any(str(out) in path for path in paths):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    told, journal = [], out / "progress.json"
    kept = sum(json.loads(journal.read_text())["tokens"].values()) if journal.exists() else 0
    prepare_text(Path(source), out, report=told.append, **options, **more.get(Path(source).stem, {}))
    for message in told:
        if isinstance(message, dict) and message["phase"] == "done":  # what was safe is not made again
            assert message["encoded"] == message["tokens"] - kept, (message, kept)


def child(*args):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            run(*args)
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def contents(out):
    return {path.name: path.read_bytes() for path in out.iterdir()}


for source in files:
    whole = folder / (Path(source).stem + "-whole")
    assert child(source, whole, 0) == 0
    kills = 0
    while True:
        out = folder / f"{Path(source).stem}-{kills + 1}"
        code = child(source, out, kills + 1)
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        kills += 1
        # Killed again a little later, and then left alone.
        assert child(source, out, 4 + kills % 5) in (0, -signal.SIGKILL)
        assert child(source, out, 0) == 0
        assert contents(out) == contents(whole), (source, kills)
    print(Path(source).stem, len(contents(whole)), kills)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_before_any_file_operation_it_goes_on(tmp_path: Path) -> None:
    # T26. Every place is tried at which something in the folder changes its name, its length or its existence.
    home = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    folder = home / f"tenfold-kill-{os.getpid()}"
    folder.mkdir()
    try:
        done = subprocess.run(
            [sys.executable, "-c", KILL, str(folder), "bytes", *map(str, sources(tmp_path).values())],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no threads, so that forking is safe
            capture_output=True,
            text=True,
            timeout=280,
        )
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in done.stdout.splitlines():
        _, files, kills = line.split()
        assert int(files) >= 7, line  # at least six shards and the manifest
        assert int(kills) >= 50, line
    assert len(done.stdout.splitlines()) == 3


RUN = """
import sys
from pathlib import Path
from tenfold.prepare import prepare_text
tokenizer, source, out = sys.argv[1:]
print("ready", flush=True)
prepare_text(Path(source), Path(out), tokenizer, shard_tokens=200_000, commit_tokens=50_000)
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("tokenizer", ["gpt2", "chars"])
def test_killed_at_any_time_it_goes_on(tmp_path: Path, tokenizer: str) -> None:
    source = tmp_path / "long.txt"  # T26
    source.write_bytes(story(500_000).encode())
    out, kills = tmp_path / "out", 0
    prepare_text(source, tmp_path / "whole", tokenizer, shard_tokens=200_000, commit_tokens=50_000)
    for _ in range(100):
        child = subprocess.Popen([sys.executable, "-c", RUN, tokenizer, str(source), str(out)], stdout=subprocess.PIPE)
        with child:
            assert child.stdout
            child.stdout.readline()
            try:
                code = child.wait(0.02 + 0.04 * kills if kills < 10 else 60)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                code = child.wait(10)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    assert kills >= 1
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_it_works_in_any_kind_of_process(tmp_path: Path, method: str) -> None:
    # T25. The reference comes from a process of its own.
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method} here")
    source = jsonl(tmp_path / "source.jsonl", [story(40, i) for i in range(50)])
    command = [sys.executable, "-c", RUN, "gpt2", str(source), str(tmp_path / "whole")]
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    code = (
        "import multiprocessing, sys\nfrom pathlib import Path\nfrom tenfold.prepare import prepare_text\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.set_start_method(sys.argv[1])\n"
        "    options = {'shard_tokens': 200_000, 'commit_tokens': 50_000}\n"
        "    args = (*map(Path, sys.argv[2:]), 'gpt2')\n"
        "    child = multiprocessing.Process(target=prepare_text, args=args, kwargs=options)\n"
        "    child.start()\n"
        "    child.join(60)\n"
        "    sys.exit(child.exitcode)\n"
    )
    (tmp_path / "program.py").write_text(code)
    subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), method, str(source), str(tmp_path / "out")],
        check=True,
        timeout=90,
    )
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


# Room


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, timeout=20).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=20)


@pytest.mark.timeout(60)
def test_a_full_disk_is_one_line_and_nothing_is_lost(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenfold.prepare.sources.BLOCK", 1000)
    source, out, ballast = tmp_path / "long.txt", small_disk / "out", small_disk / "ballast"
    source.write_bytes(story(5000).encode())  # about 20 kB, so about 40 kB of shards
    prepare = functools.partial(prepare_text, source, out, "bytes", shard_tokens=5000, commit_tokens=2000)
    prepare_text(source, tmp_path / "whole", "bytes", shard_tokens=5000, commit_tokens=2000)

    def fill(room: int) -> None:
        """Leaves so many bytes of the disk."""
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - room))

    fill(20_000)
    with pytest.raises(DataError, match=r"the shards need about [\d,]+ more bytes, but the disk of .* free; make room"):
        prepare()
    for room in (0, 4096, 8192, 16384, 24576):
        ballast.unlink(missing_ok=True)
        said: list[Any] = []

        def fill_late(message: Any, room: int = room, said: list[Any] = said) -> None:
            if isinstance(message, dict) and not said:  # when the first ids are safe
                fill(room)
                said.append(message)

        shutil.rmtree(out, ignore_errors=True)
        with pytest.raises(DataError, match=r"disk .* full; make room and run the same command again") as caught:
            prepare(report=fill_late)
        assert "\n" not in str(caught.value)
        with pytest.raises(DataError, match="no prepared data"):
            open_corpus(out)
        ballast.unlink()
        prepare(report=said.append)
        assert contents(out) == contents(tmp_path / "whole")


# Memory

# The highest mark of this program alone: what getrusage says begins with that of the program that started it.
MEASURE = """
import sys
from pathlib import Path
from tenfold.prepare import prepare_text
prepare_text(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[1], engine="inline")
status = Path("/proc/self/status").read_text().splitlines()
print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.timeout(200)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts kilobytes as Linux does")
@pytest.mark.parametrize("tokenizer", ["gpt2", "bytes", "chars"])
def test_memory_does_not_grow_with_a_document(tmp_path: Path, tokenizer: str) -> None:
    used, block = [], story(200_000).encode()  # about 1 MB
    for name, blocks in (("small", 8), ("large", 40)):
        with (tmp_path / name).open("wb") as file:
            for _ in range(blocks):
                file.write(block)
        command = [sys.executable, "-c", MEASURE, tokenizer, str(tmp_path / name), str(tmp_path / f"{name}-out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
        used.append(int(done.stdout) // 1024)
    assert used[1] - used[0] < 12, used  # MB


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_novels_have_the_published_count(tmp_path: Path) -> None:
    packed = SHARED / "data" / "novels.jsonl.xz"
    if not packed.exists():
        pytest.skip(f"{packed} is not here")
    start = time.perf_counter()
    manifest = prepare_text(packed, tmp_path / "out")
    print(f"{time.perf_counter() - start:.1f} s")
    assert manifest["source"]["documents"] == 11_912
    tokens = sum(part["tokens"] for part in manifest["splits"].values())
    assert tokens - (11_912 - 2) == 31_012_549
    assert 0.0999 < manifest["splits"]["val"]["tokens"] / tokens < 0.1002
