"""Sources of every format: the same documents are the same shards, a stopped run goes on, bad input is one line."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from preparing import PACKED, as_jsonl, contents, documents, in_format, jsonl, parquet_file, shards, story
from tenfold.data.shards import open_corpus
from tenfold.data.tokenizer import Gpt2
from tenfold.errors import ConfigError, DataError
from tenfold.prepare import prepare_text
from tenfold.prepare.corpus import JOURNAL, WINDOW
from tenfold.prepare.options import count_of

KINDS = [*PACKED, ".parquet"]
TEXTS: list[str | None] = [story(30, i) for i in range(40)]
TEXTS[5:8] = [None, "", "<|endoftext|>"]  # T24


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_shards(tmp_path: Path, kind: str) -> None:
    prepare_text(jsonl(tmp_path / "plain.jsonl", TEXTS), tmp_path / "plain", "gpt2", shard_tokens=500)
    manifest = prepare_text(in_format(tmp_path / "rows", kind, TEXTS), tmp_path / "out", "gpt2", shard_tokens=500)
    assert shards(tmp_path / "out") == shards(tmp_path / "plain")
    about = manifest["source"]
    assert about["sha256"] == open_corpus(tmp_path / "plain").manifest["source"]["sha256"]
    assert [about[key] for key in ("rows", "documents", "null_documents", "empty_documents")] == [40, 38, 1, 1]
    corpus = open_corpus(tmp_path / "out")
    assert sorted(documents(corpus, "train") + documents(corpus, "val")) == sorted(text for text in TEXTS if text)


@pytest.mark.parametrize("kind", [*KINDS, "folder"])
@pytest.mark.parametrize("options", [{}, {"dedup": True, "shuffle": 3}], ids=["plain", "dedup and shuffle"])
def test_a_stopped_run_goes_on_in_every_format(
    tmp_path: Path, kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenfold.prepare.sources.BLOCK", 500)  # so that a few rows are encoded and written in one go
    monkeypatch.setattr("tenfold.prepare.corpus.WINDOW", 900)  # so that there is often something held back
    texts = [*TEXTS, *TEXTS[:10], "the end"]
    source = tmp_path / "folder"
    source.mkdir()
    if kind == "folder":  # of two formats, and the second file begins in the middle
        in_format(source / "b", ".parquet", texts[20:])
        in_format(source / "a", ".jsonl.gz", texts[:20])
    else:
        source = in_format(tmp_path / "rows", kind, texts)
    how = {"tokenizer": "bytes", "shard_tokens": 700, "commit_tokens": 300, **options}
    whole = prepare_text(source, tmp_path / "whole", **how)
    assert whole["source"]["duplicate_documents"] == (8 if options else 0)

    def stop(message: Any) -> None:
        if isinstance(message, dict) and message["phase"] == "write":
            raise KeyboardInterrupt

    stops = 0
    while True:
        journal, told = tmp_path / "out" / JOURNAL, list[Any]()
        kept = sum(json.loads(journal.read_text())["tokens"].values()) if journal.exists() else 0
        try:
            prepare_text(source, tmp_path / "out", **how, report=stop if stops < 4 else told.append)
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops == 4
    done = next(message for message in told if isinstance(message, dict) and message["phase"] == "done")
    assert done["encoded"] == done["tokens"] - kept > 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_folder_of_rows_leaves_texts_out_and_says_so(tmp_path: Path) -> None:
    source, said = tmp_path / "source", list[Any]()
    (source / "data").mkdir(parents=True)
    (source / "README.md").write_text("what this is")
    parquet_file(source / "data" / "one.parquet", ["a", "b", "c"])
    manifest = prepare_text(source, tmp_path / "out", "bytes", report=said.append)
    assert said[0] == f"reading 1 data files of {source}; 1 text files beside them are left out"
    assert manifest["source"]["documents"] == 3


@pytest.mark.parametrize("kind", [pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())])
def test_every_kind_of_text_column_is_read(tmp_path: Path, kind: pyarrow.DataType) -> None:
    parquet_file(tmp_path / "other.parquet", ["one", None, "two"], kind=kind)
    assert prepare_text(tmp_path / "other.parquet", tmp_path / "out", "bytes")["source"]["documents"] == 2


# Bad input


def broken(folder: Path, how: str) -> Path:
    """A file that something is wrong with."""
    good = {kind: PACKED[kind](as_jsonl(["some text"] * 5000)) for kind in PACKED}
    table = parquet_file(folder / "good.parquet", ["a", "b"]).read_bytes()
    page = b"\n<!DOCTYPE html><html><body>Sign in</body></html>"
    files = {
        "page.jsonl": page,
        "page.jsonl.gz": page,
        "page.parquet": b"<HTML></HTML>",
        "pointer.parquet": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "half.jsonl.gz": good[".jsonl.gz"][:-20],
        "half.jsonl.xz": good[".jsonl.xz"][:-20],
        "half.jsonl.zst": good[".jsonl.zst"][:-5],
        "garbage.jsonl.xz": b"no xz at all",
        "garbage.jsonl.gz": b"no gzip at all",
        "garbage.jsonl.zst": b"no zstd at all",
        "bits.jsonl.gz": good[".jsonl.gz"][:50] + b"\xff" * 20 + good[".jsonl.gz"][70:],
        "half.parquet": table[: len(table) // 2],
        "empty.parquet": b"",
        "half.jsonl": b'{"text": "one"}\n{"text": "tw',
        "rows.parquet.incomplete": table,
    }
    (folder / how).write_bytes(files[how])
    return folder / how


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("page.jsonl", "is a web page, not .jsonl data; fetch it again"),
        ("page.jsonl.gz", "is a web page, not .jsonl.gz data"),
        ("page.parquet", "is a web page, not .parquet data"),
        ("pointer.parquet", "is a Git LFS pointer without its data, not .parquet data"),
        ("half.jsonl.gz", r"is damaged or cut short after line \d+ \(Compressed file ended .*\); fetch it again"),
        ("half.jsonl.xz", r"is damaged or cut short after line \d+ \(Compressed file ended .*\); fetch it again"),
        ("half.jsonl.zst", r"is damaged or cut short after line \d+ \(Truncated .*\); fetch it again"),
        ("garbage.jsonl.xz", r"is damaged or cut short after line 0"),
        ("garbage.jsonl.gz", r"is damaged or cut short after line 0"),
        ("garbage.jsonl.zst", r"is damaged or cut short after line 0"),
        ("bits.jsonl.gz", r"is damaged or cut short after line \d+"),
        ("half.parquet", r"is damaged or no whole parquet file \(.*\); fetch it again"),
        ("empty.parquet", r"is damaged or no whole parquet file \(.*\); fetch it again"),
        ("half.jsonl", "line 2 is not JSON"),
        ("rows.parquet.incomplete", "is a download that was not finished; finish it, or remove it"),
    ],
)
def test_damaged_files_are_one_line(tmp_path: Path, how: str, says: str) -> None:
    path = broken(tmp_path, how)
    with pytest.raises(DataError, match=says) as caught:
        prepare_text(path, tmp_path / "out", "bytes")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_parquet_without_a_text_column_is_told_with_its_columns(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "rows.parquet", ["one", "two"])
    with pytest.raises(DataError, match="has no column 'body'; its columns are id, text: name the one to read"):
        prepare_text(path, tmp_path / "out", "bytes", text_field="body")
    with pytest.raises(DataError, match="has int64 in its column 'id', not text; name another column"):
        prepare_text(path, tmp_path / "out", "bytes", text_field="id")


def test_text_that_is_not_unicode_is_refused_or_counted(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "caf\xe9"}\n{"text": "a\\ud83d"}\n')
    half = pyarrow.array([b"fine", b"a\xed\xa0\xbd"], pyarrow.binary()).cast(pyarrow.string(), safe=False)
    pyarrow.parquet.write_table(pyarrow.table({"text": half}), tmp_path / "rows.parquet")
    for name, says, cleaned in (
        ("rows.jsonl", r"rows.jsonl, line 2 is not UTF-8: its byte 13 is 0xe9", 2),
        ("rows.parquet", r"rows.parquet, row 2 of row group 1 is not UTF-8: its byte 1 is 0xed", 1),
    ):
        with pytest.raises(DataError, match=says):
            prepare_text(tmp_path / name, tmp_path / "out", "bytes")
        manifest = prepare_text(tmp_path / name, tmp_path / f"{name}-out", "bytes", errors="replace")
        assert manifest["source"]["cleaned_documents"] == cleaned


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_extreme_documents_are_ordinary(tmp_path: Path, kind: str) -> None:
    texts = ["a" * 1_000_000, " " * 1_000_000, story(200_000), "short"]  # T22, and what slow tokenizers never finish
    source = in_format(tmp_path / "rows", kind, texts)
    prepare_text(source, tmp_path / "out", "gpt2", shard_tokens=20_000, val_fraction=0.3)
    corpus = open_corpus(tmp_path / "out")
    assert sorted(documents(corpus, "train") + documents(corpus, "val")) == sorted(texts)


def test_a_document_that_the_tokenizer_was_not_made_for_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tenfold.data.tokenizer.LONGEST_UNBROKEN", 1000)
    monkeypatch.setattr("tenfold.prepare.encode.CHUNK", 600)
    source = jsonl(tmp_path / "rows.jsonl", ["fine", "x" * 1000, "y" * 2000])
    with pytest.raises(DataError, match=r"rows.jsonl, line 3 .*1,200 characters without a word break"):
        prepare_text(source, tmp_path / "out", "gpt2")


# What may be asked


def test_whole_documents_until_there_are_so_many_tokens(tmp_path: Path) -> None:
    source, said = jsonl(tmp_path / "rows.jsonl", ["0123456789"] * 100), list[Any]()
    for wanted, documents_needed in ((1, 1), (10, 1), (11, 2), (500, 46), (10_000, 100)):
        out = tmp_path / str(wanted)
        if documents_needed < 2:
            with pytest.raises(DataError, match="too few for training and validation"):
                prepare_text(source, out, "bytes", tokens=wanted)
            continue
        manifest = prepare_text(source, out, "bytes", tokens=wanted, report=said.append)
        assert manifest["source"]["documents"] == documents_needed
        tokens = sum(part["tokens"] for part in manifest["splits"].values())
        assert tokens == 11 * documents_needed - 2
        assert tokens >= wanted or documents_needed == 100
    assert f"{source} has 1,098 tokens, fewer than the 10,000 asked for; all were taken" in said


def test_the_documents_within_the_first_tokens_validate(tmp_path: Path) -> None:
    texts = [f"{'x' * (7 + i % 5)}{i:03}" for i in range(60)]
    source = jsonl(tmp_path / "rows.jsonl", texts)
    manifest = prepare_text(source, tmp_path / "out", "bytes", val_tokens=200)
    corpus = open_corpus(tmp_path / "out")
    val = documents(corpus, "val")
    assert val == texts[: len(val)]
    assert documents(corpus, "train") == texts[len(val) :]
    assert len(corpus.val) + 1 <= 200 < len(corpus.val) + 2 + len(texts[len(val)])
    assert "first 200 tokens" in manifest["split_rule"]
    with pytest.raises(DataError, match=r"has 60 documents and none of them is for train .*first 5,000 tokens"):
        prepare_text(source, tmp_path / "all", "bytes", val_tokens=5000)
    with pytest.raises(ConfigError, match="tokens is 100, but the documents within the first 200 tokens validate"):
        prepare_text(source, tmp_path / "none", "bytes", val_tokens=200, tokens=100)


def test_the_same_documents_are_taken_once(tmp_path: Path) -> None:
    texts = ["one", "two", "one", "three", "two", "two", "One"]
    manifest = prepare_text(jsonl(tmp_path / "rows.jsonl", texts), tmp_path / "out", "bytes", dedup=True)
    corpus = open_corpus(tmp_path / "out")
    assert [*documents(corpus, "train"), *documents(corpus, "val")] == ["one", "two", "three", "One"]
    assert manifest["source"]["duplicate_documents"] == 3


def test_documents_change_places_within_windows_by_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"document {i:03}" for i in range(60)]
    source, order = jsonl(tmp_path / "rows.jsonl", texts), {}
    for seed in (-1, 1, 2):
        manifest = prepare_text(source, tmp_path / str(seed), "bytes", shuffle=seed)
        order[seed] = documents(open_corpus(tmp_path / str(seed)), "train")
        assert manifest.get("shuffled_within_tokens") == (WINDOW if seed >= 0 else None)
    assert order[-1] != order[1] != order[2]
    assert sorted(order[1]) == sorted(order[2]) == order[-1]  # the split does not depend on it
    monkeypatch.setattr("tenfold.prepare.sources.BLOCK", 200)
    monkeypatch.setattr("tenfold.prepare.corpus.WINDOW", 150)
    prepare_text(source, tmp_path / "windows", "bytes", shuffle=1)
    far = [
        abs(i - order[-1].index(text)) for i, text in enumerate(documents(open_corpus(tmp_path / "windows"), "train"))
    ]
    assert 0 < max(far) < 20


def test_the_reference_tokenizer_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, said = [story(20, i) for i in range(30)], list[Any]()
    source = jsonl(tmp_path / "rows.jsonl", texts)
    manifest = prepare_text(source, tmp_path / "same", "gpt2", check=True)
    assert manifest["compared"] == {"one_row_in": 1, "rows": 30, "differing": 0}
    right = Gpt2.encode
    monkeypatch.setattr(
        Gpt2, "encode", lambda self, text: right(self, text)[:-1] if "42" in text else right(self, text)
    )
    wrong = sum("42" in text for text in texts)
    manifest = prepare_text(source, tmp_path / "out", "gpt2", check=True, report=said.append)
    assert manifest["compared"] == {"one_row_in": 1, "rows": 30, "differing": wrong}
    assert f"{wrong} of 30 compared rows took the reference tokenizer's ids" in said
    assert shards(tmp_path / "out") == shards(tmp_path / "same")


def test_about_one_row_in_a_thousand_is_compared_whatever_its_place(tmp_path: Path) -> None:
    texts = [f"row {i}" for i in range(5000)]
    compared = []
    for name, rows in (("forth", texts), ("back", texts[::-1])):
        manifest = prepare_text(jsonl(tmp_path / f"{name}.jsonl", rows), tmp_path / name, "gpt2")
        compared.append(manifest["compared"]["rows"])
    assert compared[0] == compared[1]
    assert 1 <= compared[0] <= 15


def test_what_is_coming_is_said_before_it_starts(tmp_path: Path) -> None:
    said: list[Any] = []
    prepare_text(jsonl(tmp_path / "rows.jsonl", ["0123456789"] * 1000), tmp_path / "out", "bytes", report=said.append)
    assert said[0].startswith("about 10,000 tokens, 20 kB of shards (")
    assert said[0].endswith("are free), and 1 s with 1 worker; of the source nothing is kept on the disk")


@pytest.mark.parametrize(
    ("text", "count"),
    [("5", 5), ("1_000_000", 10**6), ("1,000", 1000), ("10B", 10**10), ("1.5m", 1_500_000), ("100 M", 10**8), ("0", 0)],
)
def test_counts_are_read_as_people_write_them(text: str, count: int) -> None:
    assert count_of(text) == count


@pytest.mark.parametrize("text", ["", "ten", "10X", "-5", "1e9", "1.2.3M", "B"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no number of tokens; give one such as 1000000, 100M or 10B"):
        count_of(text)
