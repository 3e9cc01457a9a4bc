"""Token files of other programs: written here from what is publicly known of each format, they are read as they are."""

import hashlib
import io
import json
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import TINY_OPTIONS, Tenfold
from tenfold.data import idfile
from tenfold.data.foreign import open_file, split_of
from tenfold.data.idfile import STAMP
from tenfold.data.shards import MANIFEST, ShardWriter, open_corpus
from tenfold.data.tokenizer import Chars, Gpt2
from tenfold.errors import DataError

HELLO = [15496, 11, 314, 1101, 257, 3303, 2746, 11]  # "Hello, I'm a language model,"
EOT = 50256


def llmc(
    ids: Sequence[int], magic: int = 20240520, version: int = 1, count: int | None = None, width: str = "H"
) -> bytes:
    """llm.c: 256 int32, of which three say something, and the tokens."""
    header = struct.pack("<256i", magic, version, len(ids) if count is None else count, *[0] * 253)
    return header + struct.pack(f"<{len(ids)}{width}", *ids)


def raw(ids: Sequence[int]) -> bytes:
    """nanoGPT: the tokens."""
    return struct.pack(f"<{len(ids)}H", *ids)


def npy(ids: Sequence[int], kind: str = "<u2") -> bytes:
    """build-nanogpt: np.save."""
    file = io.BytesIO()
    np.save(file, np.array(ids, kind))
    return file.getvalue()


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, body in files.items():
        (folder / name).write_bytes(body)
    return folder


FOLDERS: dict[str, tuple[str, list[str], list[str], Callable[[Sequence[int]], bytes]]] = {
    "modded-nanogpt": (
        "llm.c",
        ["fineweb_train_000001.bin", "fineweb_train_000002.bin", "fineweb_train_000010.bin"],
        ["fineweb_val_000000.bin"],
        llmc,
    ),
    "llm.c": ("llm.c", ["tiny_shakespeare_train.bin"], ["tiny_shakespeare_val.bin"], llmc),
    "llm.c stories": ("llm.c", ["TinyStories_train.bin"], ["TinyStories_val.bin"], llmc),
    "llm.c edu": ("llm.c", ["edu_fineweb_train_000001.bin"], ["edu_fineweb_val_000000.bin"], llmc),
    "build-nanogpt": (
        "npy",
        ["edufineweb_train_000001.npy", "edufineweb_train_000002.npy"],
        ["edufineweb_val_000000.npy"],
        npy,
    ),
    "nanoGPT": ("nanoGPT", ["train.bin"], ["val.bin"], raw),
}


def made(folder: Path, which: str) -> Path:
    """A folder whose train files say `HELLO` with their number between two ends of text, and whose val file says it
    backwards."""
    _, train, val, write = FOLDERS[which]
    files = {name: write([EOT, *HELLO, i, EOT]) for i, name in enumerate(train)}
    return fill(folder, {**files, **{name: write([EOT, *HELLO[::-1]]) for name in val}})


@pytest.mark.parametrize("which", FOLDERS)
def test_a_folder_is_read_as_it_is(tmp_path: Path, which: str) -> None:
    kind, train, *_ = FOLDERS[which]
    folder = made(tmp_path / "data", which)
    found = open_corpus(folder)
    assert found.manifest["format"] == kind
    assert found.tokenizer == Gpt2()
    assert [shard.path.name for shard in found.train.shards] == train
    ids = [n for i in range(len(train)) for n in [EOT, *HELLO, i, EOT]]
    assert found.train.read(0, len(ids)).tolist() == ids
    assert len(found.train) == len(ids)
    assert found.val.read(0, 9).tolist() == [EOT, *HELLO[::-1]]
    assert found.tokenizer.decode(found.train.read(1, 8)) == "Hello, I'm a language model,"
    assert str(found.val) == f"{folder} (val)"
    found.train.check(50257)
    for shard in found.train.shards:
        assert isinstance(shard.ids, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            shard.ids[0] = 1


@pytest.mark.parametrize("which", FOLDERS)
def test_a_file_stands_for_its_dataset(tmp_path: Path, which: str) -> None:
    folder = made(tmp_path / "data", which)
    _, (train, *_), (val,), _ = FOLDERS[which]
    whole = open_corpus(folder)
    for name in (train, val):
        assert open_corpus(folder / name).fingerprint == whole.fingerprint
        assert open_corpus(folder / name).path == folder / name


def test_the_ids_decide_the_fingerprint_and_not_the_format(tmp_path: Path) -> None:
    train, val = [EOT, *HELLO], [*HELLO, EOT]
    folders = [
        fill(tmp_path / "a", {"x_train_0.bin": llmc(train), "x_val_0.bin": llmc(val)}),
        fill(tmp_path / "b", {"y_train.npy": npy(train), "y_val.npy": npy(val)}),
        fill(tmp_path / "c", {"train.bin": raw(train), "val.bin": raw(val)}),
    ]
    own = tmp_path / "d"
    own.mkdir()
    splits = {}
    for split, ids in (("train", train), ("val", val)):
        with ShardWriter(own, split, 50257, 100) as writer:
            writer.append(ids)
            splits[split] = {"shards": writer.finish()}
    head = {"format": "tenfold corpus", "version": 1, "tokenizer": {"name": "gpt2"}, "splits": splits}
    (own / MANIFEST).write_text(json.dumps(head))
    assert len({open_corpus(folder).fingerprint for folder in [*folders, own]}) == 1
    other = fill(tmp_path / "e", {"train.bin": raw(val), "val.bin": raw(train)})
    assert open_corpus(other).fingerprint != open_corpus(own).fingerprint


def test_ids_are_hashed_once_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "data", "modded-nanogpt")
    looked: list[int] = []
    blocks = idfile.blocks
    monkeypatch.setattr(idfile, "blocks", lambda ids: (looked.append(len(ids)), blocks(ids))[1])

    def opened() -> str:
        looked.clear()
        found = open_corpus(folder)
        found.train.check(50257)
        found.val.check(50257)
        return found.fingerprint

    before = opened()
    assert looked == [11, 11, 11, 9]  # each file once, for its hash and its highest id together
    assert opened() == before
    assert looked == []
    shard = open_corpus(folder).val.shards[0]
    assert shard.sha256 == hashlib.sha256(raw([EOT, *HELLO[::-1]])).hexdigest()
    (folder / "fineweb_val_000000.bin").write_bytes(llmc([EOT, *HELLO[:3], 7, *HELLO[4:]]))
    os.utime(folder / "fineweb_val_000000.bin", ns=(0, 1))
    assert opened() != before
    assert looked == [9]
    (folder / STAMP).unlink()
    (folder / STAMP).mkdir()  # nothing can be remembered
    assert opened() == open_corpus(folder).fingerprint


def test_an_id_beyond_the_vocabulary_is_found(tmp_path: Path) -> None:
    folder = fill(tmp_path / "data", {"train.bin": raw([1, 60000]), "val.bin": raw([1, 2])})  # T19
    with pytest.raises(DataError, match=r"train\.bin has the id 60000 at position 1, but the vocabulary has 50257"):
        open_corpus(folder).train.check(50257)


# Characters


def characters(folder: Path, itos: Any, **more: Any) -> Path:
    meta = pickle.dumps({"vocab_size": 3, "itos": itos, **more})
    return fill(folder, {"train.bin": raw([0, 1, 2]), "val.bin": raw([2, 1]), "meta.pkl": meta})


def test_nanogpts_characters(tmp_path: Path) -> None:
    folder = characters(tmp_path / "data", {0: "\n", 1: "a", 2: "é"}, stoi={"\n": 0, "a": 1, "é": 2})
    found = open_corpus(folder)
    assert found.tokenizer == Chars("\naé")
    assert found.tokenizer.decode(found.train.read(0, 3)) == "\naé"
    assert (found.tokenizer.vocab, found.tokenizer.eot) == (4, 3)


class Evil:
    """Runs something when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize(
    ("itos", "says"),
    [
        (Evil(), r"it wants \w+\.system"),
        ({0: "b", 1: "a"}, "in the order of their code points"),
        ({0: "ab", 1: "c"}, "its symbols are not single characters"),
        ({1: "a", 2: "b"}, "0"),
        ({}, "once each"),
        ({0: 5}, "expected str instance"),
        ("ab", None),
        (5, "has no len"),
    ],
)
def test_a_meta_that_is_no_table_of_characters_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, itos: Any, says: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = characters(tmp_path / "data", itos)
    if says is None:
        assert open_corpus(folder).tokenizer == Chars("ab")
        return
    with pytest.raises(DataError, match=says) as caught:
        open_corpus(folder)
    assert str(folder / "meta.pkl") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("body", [b"", b"nonsense", b"\x80\x04}", b"\x80\x04]\x94.", b"\x80\x04\x8e" + b"\xff" * 8])
def test_a_damaged_meta_is_refused(tmp_path: Path, body: bytes) -> None:
    folder = fill(tmp_path / "data", {"train.bin": raw([0]), "val.bin": raw([0]), "meta.pkl": body})
    with pytest.raises(DataError, match=r"meta\.pkl is no table of characters"):
        open_corpus(folder)


# What is refused


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("a_train.bin", llmc(HELLO)[:-2], r"has 1038 bytes, but 8 tokens of 2 bytes, as its header says, need 1040"),
        ("a_train.bin", llmc(HELLO)[:-1], r"has 1039 bytes, but 8 tokens"),
        ("a_train.bin", llmc(HELLO) + b"\0\0", r"has 1042 bytes, but 8 tokens"),
        ("a_train.bin", llmc(HELLO, count=7), r"has 1040 bytes, but 7 tokens"),
        ("a_train.bin", llmc(HELLO, count=-1), r"but -1 tokens"),
        ("a_train.bin", llmc([]), r"has 1024 bytes, but 0 tokens"),
        ("a_train.bin", llmc(HELLO)[:500], r"has 500 bytes, but the header of llm.c's files alone has 1024"),
        ("a_train.bin", llmc(HELLO, version=2), r"has version 2 of llm.c's token files; tenfold reads version 1"),
        (
            "a_train.bin",
            llmc(HELLO, 20240801, 7, width="I"),
            r"is llm.c's tokens of Llama 3, .*; known are",
        ),
        (
            "train.bin",
            llmc(HELLO, 20240801, 7, width="I"),
            r"is llm.c's tokens of Llama 3, .*; known are",
        ),
        ("a_val.bin", llmc(HELLO, 20240522), r"is llm.c's multiple-choice questions"),
        ("a_train.bin", raw(HELLO * 200), r"is no token file that tenfold knows \(it starts with b'\\x88<"),
        ("a_train.bin", b"", r"is no token file that tenfold knows \(it starts with b''"),
        ("a_train.npy", llmc(HELLO)[4:], r"is no token file that tenfold knows"),
        ("train.bin", raw(HELLO)[:-1], r"has 15 bytes, which is no whole number of ids of 2 bytes"),
        ("train.bin", b"", r"has 0 bytes, which is no whole number"),
        ("train.bin", b"<!DOCTYPE html>\n<html>", r"is text \(b'<!DOCTYPE html>\\n<htm'\), not token ids"),
        ("a_train.npy", npy(HELLO)[:-2], r"is a damaged or truncated \.npy file"),
        ("a_train.npy", npy(HELLO)[:40], r"is a damaged or truncated \.npy file"),
        ("a_train.npy", npy(HELLO) + b"\0\0", r"has 146 bytes, but its ids end at 144"),
        ("a_train.npy", npy(HELLO, "<i4"), r"has numbers of type int32 in the shape \(8,\); token files have uint16"),
        ("a_train.npy", npy(HELLO, ">u2"), r"has numbers of type >u2"),
        ("a_train.npy", npy([HELLO]), r"in the shape \(1, 8\)"),  # type: ignore[list-item]
        ("a_train.npy", npy([]), r"shape \(0,\)|damaged"),
        ("a_train.npy", npy([{}], "O"), r"is a damaged or truncated"),  # type: ignore[list-item]
    ],
)
def test_what_is_not_whole_or_not_known_is_refused(tmp_path: Path, name: str, body: bytes, says: str) -> None:
    folder = fill(tmp_path / "data", {name: body})  # T20
    with pytest.raises(DataError, match=says) as caught:
        open_file(folder / name)
    assert str(folder / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["fineweb_train_000001.bin"], r"has 1 train files .* no val file; .* called like fineweb_val_000001\.bin"),
        (["fineweb_val_000000.bin"], r"has 1 val files .* no train file; .* called like fineweb_train_000000\.bin"),
        (["a_train.bin", "a_val.bin", "b_train.bin", "b_val.bin"], r"holds several datasets \(a_train\.bin, b_train"),
        (["a_train.bin", "b_val.bin"], r"holds several datasets"),
        (["training.bin", "model.bin"], r"is no prepared data"),
    ],
)
def test_folders_that_leave_a_doubt_are_refused(tmp_path: Path, files: list[str], says: str) -> None:
    folder = fill(tmp_path / "data", dict.fromkeys(files, llmc(HELLO)))
    with pytest.raises(DataError, match=says) as caught:
        open_corpus(folder)
    assert "\n" not in str(caught.value)


def test_one_of_several_datasets_may_be_named(tmp_path: Path) -> None:
    files = {f"{name}_{split}.bin": llmc([i]) for i, name in enumerate("ab") for split in ("train", "val")}
    folder = fill(tmp_path / "data", files)
    assert open_corpus(folder / "b_val.bin").train.read(0, 1).tolist() == [1]
    with pytest.raises(DataError, match=r"does not say in its name .* call it, say, c_train\.bin or c_val\.bin"):
        open_corpus(fill(folder, {"c.bin": llmc(HELLO)}) / "c.bin")


def test_kinds_do_not_mix(tmp_path: Path) -> None:
    folder = fill(tmp_path / "data", {"train.bin": llmc(HELLO), "val.bin": raw(HELLO)})
    with pytest.raises(DataError, match=r"mixes llm\.c \(gpt2\) and nanoGPT \(gpt2\) files"):
        open_corpus(folder)


def test_tenfolds_own_shards_are_not_foreign(tmp_path: Path) -> None:
    for split in ("train", "val"):
        with ShardWriter(tmp_path, split, 257, 100) as writer:
            writer.append([1, 2])
            writer.finish()
    with pytest.raises(DataError, match=r"no manifest\.json .*; run `tenfold prepare`, again if it was stopped"):
        open_corpus(tmp_path)
    with pytest.raises(DataError, match=r"is one of the shards that `tenfold prepare` made; name its folder"):
        open_corpus(tmp_path / "train_000000.bin")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.bin", "train"),
        ("medieval_train_000001.bin", "train"),
        ("train_set_val-3.npy", "val"),
        ("drawn", "drawn"),
        ("interval.bin", "interval"),
    ],
)
def test_names_tell_the_split(name: str, split: str) -> None:
    assert split_of(name) == split


# Training


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_run_trains_on_it_goes_on_and_refuses_other_ids(tmp_path: Path, tenfold: Tenfold) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    fill(folder, {f"fineweb_{split}_000001.bin": llmc(rng.integers(0, 50257, 3000)) for split in ("train", "val")})
    given = ["train", "demo", "--name", "x", "--data", folder, *TINY_OPTIONS, "--model.padded-vocab", "0"]
    first = tenfold(*given, "--stop-at", "2")
    assert first.returncode == 0, first.stderr
    assert (folder / STAMP).exists()
    second = tenfold(*given, "--stop-at", "4")
    assert second.returncode == 0, second.stderr
    fill(folder, {"fineweb_train_000001.bin": llmc(rng.integers(0, 50257, 3001))})
    third = tenfold(*given, "--stop-at", "6")
    assert third.returncode == 2
    assert "recipe.data" in third.stderr
