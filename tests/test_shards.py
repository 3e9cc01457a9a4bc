"""Shards: what goes in comes out, whatever the sizes; what is not a whole shard of ours is refused with the reason."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.data import idfile
from tenfold.data.idfile import STAMP
from tenfold.data.shards import HEADER, MANIFEST, ShardWriter, Tokens, open_corpus, open_shard
from tenfold.data.tokenizer import Bytes, Tokenizer
from tenfold.errors import DataError


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for one example; in memory where that can be had, since writing shards waits for the disk."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def write(
    folder: Path, ids: Sequence[Any], vocab: int = 257, size: int = 100, split: str = "train"
) -> list[dict[str, Any]]:
    """Shards of some arrays of ids, appended one after the other."""
    with ShardWriter(folder, split, vocab, size) as writer:
        for part in ids:
            writer.append(part)
        return writer.finish()


def corpus(folder: Path, tokenizer: Tokenizer | None = None, train: int = 250, val: int = 50, size: int = 100) -> Path:
    """A small corpus with ids 0, 1, 2 ... 255, 0 ..."""
    tokenizer = tokenizer or Bytes()
    folder.mkdir(exist_ok=True)
    splits = {
        split: {"shards": write(folder, [np.arange(count) % 256], tokenizer.vocab, size, split)}
        for split, count in (("train", train), ("val", val))
    }
    head = {"format": "tenfold corpus", "version": 1, "tokenizer": tokenizer.spec()}
    (folder / MANIFEST).write_text(json.dumps({**head, "splits": splits}))
    return folder


def change(folder: Path, **values: Any) -> None:
    """Sets keys of a manifest; None removes one."""
    manifest = {**json.loads((folder / MANIFEST).read_text()), **values}
    (folder / MANIFEST).write_text(json.dumps({key: value for key, value in manifest.items() if value is not None}))


def patch(path: Path, offset: int, data: bytes) -> None:
    """Overwrites some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


# Writing


@pytest.mark.parametrize(
    ("bad", "vocab"), [(65536, 50257), (70000, 50257), (50257, 50257), (65536, 65536), (-1, 50257)]
)
def test_ids_outside_the_vocabulary_are_refused_before_anything_is_written(
    tmp_path: Path, bad: int, vocab: int
) -> None:
    writer = ShardWriter(tmp_path, "train", vocab, 10)  # T19
    with (
        writer,
        pytest.raises(DataError, match=rf"token id {bad} .* vocabulary of {vocab}; ids go from 0 to {vocab - 1}"),
    ):
        writer.append(np.array([50256, bad]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("vocab", "ids", "width"),
    [(50257, [50256], 2), (65536, [65535], 2), (65537, [65536, 50256], 4), (70001, [70000, 4464, 0], 4)],
)
def test_16_bits_only_where_the_vocabulary_allows(tmp_path: Path, vocab: int, ids: list[int], width: int) -> None:
    (entry,) = write(tmp_path, [ids], vocab)  # T19
    assert entry["bytes"] == HEADER.size + width * len(ids) == (tmp_path / entry["name"]).stat().st_size
    assert Tokens([open_shard(tmp_path / entry["name"])]).read(0, len(ids)).tolist() == ids


def test_the_format_is_frozen(tmp_path: Path) -> None:
    (entry,) = write(tmp_path, [[1, 2, 256]])
    assert (tmp_path / "train_000000.bin").read_bytes().hex() == (
        b"TENFOLD1".hex()
        + "01000000"  # version
        + "02000000"  # bytes an id
        + "0101000000000000"  # vocabulary
        + "0300000000000000"  # ids
        + entry["sha256"]
        + "010002000001"
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 30), st.data())
def test_what_goes_in_comes_out(lengths: list[int], size: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(len(lengths))
    documents = [rng.integers(0, 257, length) for length in lengths]  # T22: also longer than a shard, also the first
    whole = np.concatenate([*documents, np.empty(0, np.int64)])
    with scratch() as name:
        entries = write(Path(name), documents, size=size)
        assert [entry["tokens"] for entry in entries[:-1]] == [size] * (len(entries) - 1)
        assert sorted(path.name for path in Path(name).iterdir()) == [entry["name"] for entry in entries]
        tokens = Tokens([open_shard(Path(name) / entry["name"]) for entry in entries])
        assert len(tokens) == len(whole)
        start = data.draw(st.integers(0, len(whole)))
        count = data.draw(st.integers(0, len(whole) - start))
        part = tokens.read(start, count)
        assert part.dtype == np.int64
        assert part.tolist() == whole[start : start + count].tolist()
        assert tokens.read(0, len(whole)).tolist() == whole.tolist()
        for start, count in ((-1, 1), (0, len(whole) + 1), (len(whole), 1), (0, -1)):
            with pytest.raises(IndexError):
                tokens.read(start, count)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 20), st.booleans(), st.data())
def test_going_on_gives_the_same_bytes(length: int, more: int, size: int, finished: bool, data: st.DataObject) -> None:
    kept, ids = data.draw(st.integers(0, length)), np.arange(length + more) % 257
    with scratch() as one, scratch() as other:
        write(Path(one), [ids[: kept + more]], size=size)
        with ShardWriter(Path(other), "train", 257, size) as writer:
            writer.append(ids[:length])
            if finished:
                writer.finish()
        with ShardWriter(Path(other), "train", 257, size, tokens=kept) as writer:
            writer.append(ids[kept : kept + more])
            writer.finish()
        assert contents(Path(other)) == contents(Path(one))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != STAMP}


def test_going_on_after_less_than_was_written_is_refused(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, "train", 257, 100) as writer:
        writer.append(np.zeros(5, int))
    with pytest.raises(DataError, match="has lost ids"):
        ShardWriter(tmp_path, "train", 257, 100, tokens=6)
    with pytest.raises(DataError, match="cannot read the shard"):
        ShardWriter(tmp_path, "train", 257, 100, tokens=106)


# Reading


def test_a_corpus_opens(tmp_path: Path) -> None:
    found = open_corpus(corpus(tmp_path / "data"))
    assert (len(found.train), len(found.val), found.tokenizer) == (250, 50, Bytes())
    assert found.train.read(95, 10).tolist() == list(range(95, 105))
    assert str(found.val) == f"{tmp_path / 'data'} (val)"
    with pytest.raises(ValueError, match="read-only"):
        found.train.shards[0].ids[0] = 1


def test_the_fingerprint_follows_the_content_and_not_the_path(tmp_path: Path) -> None:
    one, same = open_corpus(corpus(tmp_path / "one")), open_corpus(corpus(tmp_path / "two"))
    assert one.fingerprint == same.fingerprint
    others = [corpus(tmp_path / "longer", train=251), corpus(tmp_path / "swapped", train=50, val=250)]
    assert len({one.fingerprint, *(open_corpus(path).fingerprint for path in others)}) == 3


def shard_changes() -> dict[str, tuple[Any, str]]:
    """What happens to the second shard, and what is said about it."""
    return {
        "missing": (lambda path: path.unlink(), r"cannot read the shard .*No such file"),
        "truncated": (lambda path: os.truncate(path, 263), r"has 263 bytes, but 100 ids of 2 bytes need 264"),
        "longer": (lambda path: patch(path, 264, b"\0\0"), r"has 266 bytes, but 100 ids"),
        "header only": (lambda path: os.truncate(path, 30), r"is not a tenfold shard"),
        "empty": (lambda path: os.truncate(path, 0), r"is not a tenfold shard"),
        "foreign": (lambda path: patch(path, 0, b"\x93NUMPY"), r"is not a tenfold shard \(it starts with b'\\x93NUMPY"),
        "unfinished": (lambda path: patch(path, 0, bytes(64)), r"is not a tenfold shard"),
        "newer": (lambda path: patch(path, 8, b"\2"), r"has version 2 .* update"),
        "wider": (lambda path: patch(path, 12, b"\4"), r"says 4 bytes an id for a vocabulary of 257"),
        "nonsense width": (lambda path: patch(path, 12, b"\3"), r"says 3 bytes an id"),
        "wide as narrow": (lambda path: patch(path, 16, b"\0\0\2"), r"says 2 bytes an id for a vocabulary of 131072"),
        "other vocabulary": (lambda path: patch(path, 16, b"\2"), r"vocabulary of 258, but manifest.json says bytes"),
        "other hash": (lambda path: patch(path, 32, b"nonsense"), r"is not the shard that manifest.json lists"),
        "other shard": (
            lambda path: path.write_bytes(path.with_name("train_000000.bin").read_bytes()),
            r"is not the shard that manifest.json lists",
        ),
    }


@pytest.mark.parametrize("how", shard_changes())
def test_damaged_shards_are_refused_with_the_reason(tmp_path: Path, how: str) -> None:
    folder, (harm, says) = corpus(tmp_path / "data"), shard_changes()[how]  # T20
    harm(folder / "train_000001.bin")
    with pytest.raises(DataError, match=says) as caught:
        open_corpus(folder)
    assert str(folder / "train_000001.bin") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"format": "other"}, "is not tenfold's"),
        ({"version": 2}, "has version 2; this tenfold reads 1: update it"),
        ({"version": None}, "has version None"),
        ({"splits": None}, "is damaged"),
        ({"splits": {"train": {"shards": []}}}, "is damaged"),
        ({"splits": {"train": {"shards": [{"name": 5}]}, "val": {"shards": []}}}, "is damaged"),
        ({"splits": []}, "is damaged"),
        ({"tokenizer": "bytes"}, "is damaged"),
        ({"tokenizer": {"name": "words"}}, "no tokenizer is described"),
    ],
)
def test_damaged_manifests_are_refused(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    folder = corpus(tmp_path / "data")
    change(folder, **values)
    with pytest.raises(DataError, match=says):
        open_corpus(folder)


@pytest.mark.parametrize("name", ["../other.bin", "/etc/passwd", "..", "", "a/../train_000000.bin", "..\\other.bin"])
def test_a_manifest_names_no_files_elsewhere(tmp_path: Path, name: str) -> None:
    folder = corpus(tmp_path / "data")
    splits = json.loads((folder / MANIFEST).read_text())["splits"]
    splits["val"]["shards"][0]["name"] = name
    change(folder, splits=splits)
    with pytest.raises(DataError, match="which is not a file in its folder"):
        open_corpus(folder)


def test_no_manifest_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the folder does not exist; run `tenfold prepare`"):
        open_corpus(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no manifest.json .*; run `tenfold prepare`, again if it was stopped"):
        open_corpus(tmp_path)
    (tmp_path / MANIFEST).write_bytes(b"{\xff")
    with pytest.raises(DataError, match=r"is damaged \(no JSON\)"):
        open_corpus(tmp_path)
    (tmp_path / MANIFEST).write_text("[1]")
    with pytest.raises(DataError, match="is not tenfold's"):
        open_corpus(tmp_path)


# Looking at every id


def test_an_id_at_or_above_the_vocabulary_is_found_with_file_and_position(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "data")
    patch(folder / "train_000002.bin", HEADER.size + 2 * 7, (300).to_bytes(2, "little"))
    found = open_corpus(folder)
    found.val.check(257)
    for _ in range(2):  # looked up, and then remembered
        with pytest.raises(DataError, match=rf"{folder}/train_000002.bin has the id 300 at position 7, .* least 301"):
            found.train.check(257)
    found.train.check(301)
    with pytest.raises(DataError, match=r"train_000000.bin has the id 50 at position 50"):
        found.train.check(50)


def test_blocks_leave_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idfile, "BLOCK", 7)
    for position in range(20):
        ids = np.zeros(20, int)
        ids[position] = 256
        folder = tmp_path / str(position)
        folder.mkdir()
        (entry,) = write(folder, [ids])
        with pytest.raises(DataError, match=f"the id 256 at position {position},"):
            Tokens([open_shard(folder / entry["name"])]).check(256)


def test_checks_are_remembered_until_a_shard_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = corpus(tmp_path / "data")
    looked: list[str] = []
    blocks = idfile.blocks
    monkeypatch.setattr(idfile, "blocks", lambda ids: (looked.append(Path(ids.filename).name), blocks(ids))[1])

    def check() -> list[str]:
        looked.clear()
        found = open_corpus(folder)
        found.train.check(257)
        found.val.check(257)
        return looked

    everything = ["train_000000.bin", "train_000001.bin", "train_000002.bin", "val_000000.bin"]
    assert check() == everything
    assert check() == []
    os.utime(folder / "train_000001.bin", ns=(0, 1))
    assert check() == ["train_000001.bin"]
    for damaged in ("", "[]", "{]", '{"train_000000.bin": 5}', '{"train_000000.bin": []}', "[1]"):
        (folder / STAMP).write_text(damaged)
        assert check() == everything
    assert check() == []
    assert not list(folder.glob("*.partial"))


def test_checks_work_where_nothing_can_be_remembered(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "data")
    (folder / STAMP).mkdir()  # a folder in its place cannot be replaced by a file, whoever runs this
    for _ in range(2):
        open_corpus(folder).train.check(257)
    assert not list(folder.glob("*.partial"))


READ = """
import sys, numpy as np
from pathlib import Path
from tenfold.data.shards import open_corpus
corpus = open_corpus(sys.argv[1])
corpus.train.check(257)
for start in range(0, len(corpus.train) - 1000, 1000):
    corpus.train.read(start, 1000)
status = Path("/proc/self/status").read_text().splitlines()
print(next(line for line in status if line.startswith("RssAnon")).split()[1])
"""


@pytest.mark.timeout(120)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    used = []
    for name, count in (("small", 10_000), ("large", 30_000_000)):
        folder = corpus(tmp_path / name, train=count, size=20_000_000)
        done = subprocess.run(
            [sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, timeout=60, check=True
        )
        used.append(int(done.stdout))  # kB
    assert used[1] - used[0] < 6_000, used
