"""`tenfold data show`: what shards are, what they say, and whether they are sound."""

import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Tenfold
from tenfold.cli.inspect import data
from tenfold.data import census as censuses
from tenfold.data import idfile
from tenfold.data.census import PIECE, Census, census
from tenfold.data.idfile import Shard
from tenfold.data.shards import Corpus
from tenfold.errors import ConfigError, DataError

HELLO = [15496, 11, 314, 1101, 257, 3303, 2746, 11]  # "Hello, I'm a language model,"
EOT = 50256


def counted(*parts: Sequence[int], vocab: int = 50257, eot: int = EOT) -> Census:
    """The census of some lists of ids, each as a shard."""
    return census([Shard(Path("drawn"), vocab, "", np.array(part, "<u2")) for part in parts], vocab, eot)


def raw(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}H", *ids)


# Counting


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), min_size=1, max_size=4), st.integers(1, 7))
def test_documents_are_what_lies_between_ends_of_text(parts: list[list[int]], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idfile, "BLOCK", block)
        found = counted(*parts, vocab=6, eot=5)
    whole = "".join(str(i) for part in parts for i in part)
    lengths = sorted(len(text) for text in whole.split("5") if text)
    assert found.tokens == len(whole)
    assert found.highest == max(map(int, whole))
    assert found.documents == len(lengths)
    assert found.longest == max(lengths, default=0)
    assert found.median == (lengths[(len(lengths) - 1) // 2] if lengths else 0)
    assert dict(found.frequent) == {int(i): whole.count(i) / len(whole) for i in set(whole)}
    assert [part * len(whole) for _, part in found.frequent] == pytest.approx(
        sorted(map(whole.count, set(whole)), reverse=True)
    )
    pieces = [piece for part in parts for piece in "".join(map(str, part)).split("5") if piece]
    assert found.looked == len("".join(pieces))
    assert found.repeated == len("".join(piece for piece in pieces if pieces.count(piece) > 1))


@pytest.mark.parametrize(
    "ids", [[EOT, 1, 2, EOT, 3], [1, 2, EOT, 3], [1, 2, EOT, 3, EOT], [EOT, 1, 2, EOT, EOT, 3, EOT]]
)
def test_it_does_not_matter_where_end_of_text_stands(ids: list[int]) -> None:
    found = counted(ids)
    assert (found.documents, found.median, found.longest) == (2, 1, 2)


def text(pieces: int, seed: int) -> list[int]:
    """Ids that make so many pieces, and half a piece more."""
    return np.random.default_rng(seed).integers(0, 50256, pieces * PIECE + PIECE // 2).tolist()


@pytest.mark.parametrize("block", [700, 1 << 22])
def test_repeated_text_is_found_wherever_its_document_stands(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(idfile, "BLOCK", block)
    a, b, c = (text(3, seed) for seed in range(3))
    found = counted([*a, EOT, *b, EOT, EOT, 7], [*c, EOT, *a])
    assert (found.looked, found.repeated) == (4 * len(a) + 1, 2 * len(a))
    assert counted([*a, EOT, 5, *a]).repeated == 0  # each piece of the second one is another
    assert counted([*a, EOT, *a[: 2 * PIECE], 9]).repeated == 4 * PIECE
    assert counted(a, a, a).repeated == 3 * len(a)  # a whole shard, without any end of text


def test_of_very_many_pieces_a_share_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(censuses, "HASHES", 100)
    many = text(500, 0)
    found = counted(many, many)
    assert found.share in (8, 16, 32)
    assert 20 * PIECE < found.looked <= 100 * PIECE
    assert found.repeated == found.looked
    assert counted(many, text(500, 1)).repeated == 0


def test_of_very_many_ids_a_share_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(censuses, "COUNTED", 100)
    found = counted([1, 2, 3] * 100)
    assert (found.stride, found.frequent) == (3, ((1, 1.0),))


def test_ids_beyond_the_vocabulary_are_counted() -> None:
    found = counted([1, 50257, 60000, 50256], [65535])
    assert (found.beyond, found.highest) == (3, 65535)
    wide = census([Shard(Path("drawn"), 70001, "", np.array([70000, 70001, 3], "<u4"))], 70001, 70000)
    assert (wide.beyond, wide.highest, wide.documents) == (1, 70001, 1)


# Showing


def show(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert data(["show", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_tenfolds_own_folder(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    said = show(capsys, corpus.path)
    lines = {line.split("  ")[0]: line for line in said.splitlines()}
    assert "tenfold's shards" in lines["format"]
    assert lines["tokenizer"].endswith("bytes, 257 ids")
    assert lines["fingerprint"].endswith(corpus.fingerprint)
    assert f"{len(corpus.train):,} tokens in {len(corpus.train.shards)} files of" in lines["train"]
    assert f"{len(corpus.val):,} tokens in" in lines["val"]
    assert f"train, tokens 0 to 100:\n{corpus.tokenizer.decode(corpus.train.read(0, 100))}" in said
    assert lines["ids in range"].split()[3:] == ["yes", "yes"]
    assert f"{len(corpus.train):,} tokens" in lines["longest"]
    start = len(corpus.val) - 30
    said = show(capsys, corpus.path, "--split", "val", "--start", start, "--tokens", 50)
    assert (
        f"val, tokens {start:,} to {len(corpus.val):,}:\n{corpus.tokenizer.decode(corpus.val.read(start, 30))}" in said
    )


def test_a_foreign_folder_and_one_file_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.bin").write_bytes(raw([EOT, *HELLO, EOT, *HELLO[:2]]))
    (tmp_path / "val.bin").write_bytes(raw([EOT, *HELLO[::-1]]))
    said = show(capsys, tmp_path)
    assert "<|endoftext|>Hello, I'm a language model,<|endoftext|>Hello,\n" in said
    assert "nanoGPT's train.bin and val.bin (uint16 without a header)" in said
    assert "gpt2, 50,257 ids" in said
    assert "12 tokens in 1 file of 24 bytes" in said
    rows = {line.split("  ")[0]: line.split("  ")[1:] for line in said.splitlines()}
    assert [part.strip() for part in rows["documents"] if part.strip()] == ["2", "1"]
    assert "',' 25.00%" in said
    said = show(capsys, tmp_path / "val.bin", "--tokens", 2)
    assert "val, tokens 0 to 2:\n<|endoftext|>,\n" in said
    assert "train  " not in said


def test_a_bad_id_is_shown_and_then_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.bin").write_bytes(raw([*HELLO, 60000, 11]))
    with pytest.raises(DataError, match=r"train\.bin has the id 60000 at position 8, but the vocabulary has 50257 ids"):
        data(["show", str(tmp_path / "train.bin")])
    said = capsys.readouterr().out
    assert "Hello, I'm a language model,<no token: 60000>," in said
    assert "NO: 1 above 50256" in said


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ([], ConfigError, r"data: nothing is asked; possible is `tenfold data show PATH`"),
        (["shwo"], ConfigError, r"data: no 'shwo', did you mean 'show'\?; possible"),
        (["show", "nowhere"], DataError, r"nowhere is no prepared data: the folder does not exist"),
        (["show", "."], DataError, r"no manifest\.json"),
        (
            ["show", "text.txt"],
            DataError,
            r"is no token file; if it is text, `tenfold prepare text\.txt` makes",
        ),
        (["show", "empty_train.bin"], DataError, r"empty_train\.bin is no token file that tenfold knows"),
        (["show", "val.bin", "--split", "train"], ConfigError, r"--split train: val\.bin belongs to val; leave"),
        (["show", "val.bin", "--start", "8"], ConfigError, r"--start 8: val has 8 tokens; give at most 7"),
        (["show", "val.bin", "--start", "-1"], ConfigError, r"give numbers of at least 0"),
    ],
)
def test_mistakes_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: type[Exception], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments != ["show", "."]:
        for name, body in {"text.txt": b"text", "empty_train.bin": b"", "val.bin": raw(HELLO)}.items():
            (tmp_path / name).write_bytes(body)
    with pytest.raises(error, match=says) as caught:
        data(arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(60)
def test_the_command_itself(tmp_path: Path, tenfold: Tenfold) -> None:
    (tmp_path / "val.bin").write_bytes(raw(HELLO))
    done = tenfold("data", "show", "val.bin", "--tokens", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nHello,\n" in done.stdout
    (tmp_path / "val.bin").write_bytes(raw(HELLO)[:-1])
    done = tenfold("data", "show", "val.bin")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("tenfold: val.bin has 15 bytes, which is no whole number of ids")


SHOW = """
import sys
from pathlib import Path
from tenfold.cli.inspect import data
data(["show", *sys.argv[1:]])
status = Path("/proc/self/status").read_text().splitlines()
print(next(line for line in status if line.startswith("RssAnon")).split()[1])
"""


@pytest.mark.timeout(120)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    used = []
    for count in (5_000_000, 20_000_000):
        path = tmp_path / f"{count}_train.npy"
        np.save(path, np.random.default_rng(0).integers(0, 50257, count).astype("<u2"))
        done = subprocess.run(
            [sys.executable, "-c", SHOW, str(path)], capture_output=True, text=True, timeout=100, check=True
        )
        used.append(int(done.stdout.splitlines()[-1]))  # kB
    assert used[1] - used[0] < 20_000, used
