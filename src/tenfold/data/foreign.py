"""Token files that other programs made, read as they are: those of llm.c and modded-nanogpt, build-nanogpt and nanoGPT.

A file's format is known by its first bytes, or by its name where it has no header; its split, and the dataset that it
belongs to, by its name: fineweb_train_000001.bin, edufineweb_val_000000.npy, tiny_shakespeare_train.bin, train.bin.

Where end-of-text stands differs: before each document in llm.c and build-nanogpt, after each in nanoGPT, between two in
tenfold. The ids are given as they are: it is one id more or less at the ends of a split.
"""

import os
import pickle
import re
import string
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tenfold.data.idfile import MAGIC, SPLITS, Ids, Shard, content
from tenfold.data.tokenizer import Chars, Gpt2, Tokenizer
from tenfold.errors import DataError
from tenfold.files import open_whole

SUFFIXES = (".bin", ".npy")
NAMED = re.compile(r"(?:(?P<dataset>.+)[_.-])?(?P<split>train|val)(?:[_.-].*)?\.(?P<suffix>bin|npy)")
HEADER_BYTES = 1024  # llm.c's header: 256 int32, of which the first three are magic, version and number of tokens
TOKENS = 20240520
REFUSED = {  # llm.c's other magic numbers
    20240801: "llm.c's tokens of Llama 3, 32 bits each, whose tokenizer tenfold does not have",
    20240522: "llm.c's multiple-choice questions, which are no text to train on",
    20240328: "llm.c's tokenizer",
    20240326: "an llm.c model",
    20240327: "llm.c's debug state",
}
META = "meta.pkl"
META_BYTES = 1 << 24  # more than any character table needs
TEXT = frozenset(string.printable.encode())
AGAIN = "copy or make the file again"


@dataclass(frozen=True)
class Format:
    """What a kind of file is, how it is told from others (path, first bytes), how its ids are mapped (path, first
    bytes, size in bytes; DataError if it is damaged), and the tokenizer of its ids (path)."""

    about: str
    matches: Callable[[Path, bytes], bool]
    ids: Callable[[Path, bytes, int], Ids]
    tokenizer: Callable[[Path], Tokenizer]


def split_of(name: str) -> str:
    """The split that a file's name says it belongs to, or else the name without its ending."""
    named = NAMED.fullmatch(name)
    return named["split"] if named else Path(name).stem


def found(path: Path) -> bool:
    """Whether a path is a token file, or a folder that holds token files of other programs and none of tenfold's."""
    if path.is_file():
        return path.suffix in SUFFIXES
    files = _named(path) if path.is_dir() else []
    return bool(files) and not any(_head(file)[0].startswith(MAGIC) for file in files)


def open_file(path: Path) -> tuple[str, Tokenizer, Shard]:
    """The format's name, the tokenizer and the ids of one file; its ids are read only the first time, to hash them.

    Raises:
        DataError: it cannot be read, is of another format, truncated or damaged.
    """
    head, size = _head(path)
    magic = int.from_bytes(head[:4], "little")
    kind = next((name for name, row in FORMATS.items() if row.matches(path, head)), None)
    if head.startswith(MAGIC):
        raise DataError(f"{path} is one of the shards that `tenfold prepare` made; name its folder, {path.parent}")
    if magic in REFUSED or kind is None:
        what = REFUSED.get(magic, f"no token file that tenfold knows (it starts with {head[:8]!r})")
        raise DataError(f"{path} is {what}; known are {'; '.join(row.about for row in FORMATS.values())}")
    ids = FORMATS[kind].ids(path, head, size)
    tokenizer = FORMATS[kind].tokenizer(path)
    return kind, tokenizer, Shard(path, tokenizer.vocab, content(path, ids), ids)


def open_splits(path: Path) -> tuple[str, Tokenizer, dict[str, list[Shard]]]:
    """The format's name, the tokenizer and the shards of both splits, in the order of their names, of the dataset in a
    folder, or of the one that a file belongs to.

    Raises:
        DataError: a file cannot be used, a split is missing, or it is not clear which files are meant.
    """
    opened = {split: [open_file(file) for file in files] for split, files in _dataset(path).items()}
    kinds = {(kind, tokenizer) for files in opened.values() for kind, tokenizer, _ in files}
    if len(kinds) > 1:
        both = " and ".join(sorted(f"{kind} ({tokenizer.name})" for kind, tokenizer in kinds))
        raise DataError(f"{path} mixes {both} files in one dataset; put each kind into a folder of its own")
    ((kind, tokenizer),) = kinds
    return kind, tokenizer, {split: [shard for *_, shard in files] for split, files in opened.items()}


def _dataset(path: Path) -> dict[str, list[Path]]:
    """The files of each split, of the only dataset in a folder, or of the one that a file belongs to."""
    groups: dict[tuple[str, str], dict[str, list[Path]]] = {}
    for file in _named(path if path.is_dir() else path.parent):
        named = NAMED.fullmatch(file.name)
        assert named
        splits = groups.setdefault((named["dataset"] or "", named["suffix"]), {split: [] for split in SPLITS})
        splits[named["split"]].append(file)
    if path.is_dir() and len(groups) > 1:
        some = sorted(min(files[0].name for files in splits.values() if files) for splits in groups.values())
        raise DataError(f"{path} holds several datasets ({_listed(some)}); name one of the files of the one you mean")
    mine = [splits for splits in groups.values() if path.is_dir() or path in splits["train"] + splits["val"]]
    if not mine:
        raise DataError(
            f"{path} does not say in its name whether it is for training or validation; call it, say, "
            f"{path.stem}_train{path.suffix} or {path.stem}_val{path.suffix}"
        )
    (splits,) = mine
    for missing, other in (SPLITS, SPLITS[::-1]):
        if not splits[missing]:
            names = [file.name for file in splits[other]]
            before, _, after = names[0].rpartition(other)
            raise DataError(
                f"{path} has {len(names)} {other} files ({_listed(names)}) but no {missing} file; put one beside them "
                f"that is called like {before}{missing}{after}"
            )
    return splits


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + ", ..." * (len(names) > 4)


def _named(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if NAMED.fullmatch(file.name) and file.is_file())


def _head(path: Path) -> tuple[bytes, int]:
    """A file's first bytes, and its size."""
    try:
        with open_whole(path) as file:
            return file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}); {AGAIN}") from None


def _llmc(path: Path, head: bytes, size: int) -> Ids:
    if len(head) < HEADER_BYTES:
        raise DataError(f"{path} has {size} bytes, but the header of llm.c's files alone has {HEADER_BYTES}; {AGAIN}")
    _, version, count = struct.unpack("<3i", head[:12])
    if version != 1:
        raise DataError(
            f"{path} has version {version} of llm.c's token files; tenfold reads version 1: {AGAIN} by that"
        )
    if count < 1 or size != HEADER_BYTES + 2 * count:
        raise DataError(
            f"{path} has {size} bytes, but {count} tokens of 2 bytes, as its header says, need "
            f"{HEADER_BYTES + 2 * count}; {AGAIN}"
        )
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (count,))


def _npy(path: Path, head: bytes, size: int) -> Ids:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header, which is Python in text, raises almost anything
        raise DataError(
            f"{path} is a damaged or truncated .npy file ({' '.join(str(error).split())}); {AGAIN}"
        ) from None
    if array.dtype != np.dtype("<u2") or array.ndim != 1 or not len(array):
        raise DataError(
            f"{path} has numbers of type {array.dtype} in the shape {array.shape}; token files have uint16 in one "
            "dimension: save it again as such"
        )
    if array.offset + array.nbytes != size:
        raise DataError(f"{path} has {size} bytes, but its ids end at {array.offset + array.nbytes}; {AGAIN}")
    return array


def _raw(path: Path, head: bytes, size: int) -> Ids:
    if not size or size % 2:
        raise DataError(f"{path} has {size} bytes, which is no whole number of ids of 2 bytes; {AGAIN}")
    if TEXT.issuperset(head):
        raise DataError(f"{path} is text ({head[:20]!r}), not token ids; name a text .txt and `tenfold prepare` it")
    return np.memmap(path, "<u2", "r")


class _Plain(pickle.Unpickler):
    """Reads dicts, lists, strings and numbers: whatever would need a class or a function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it wants {module}.{name}")


def _nanogpt_tokenizer(path: Path) -> Tokenizer:
    """The characters that meta.pkl beside a file lists, or GPT-2's tokenizer if there is none. nanoGPT's characters
    have no end-of-text: tenfold adds one after them, which stands nowhere in the ids."""
    meta = path.with_name(META)
    if not meta.exists():
        return Gpt2()
    try:
        if meta.stat().st_size > META_BYTES:
            raise ValueError("it is too large")
        with open_whole(meta) as file:
            itos = _Plain(file).load()["itos"]
        symbols = "".join(itos[i] for i in range(len(itos)))
        if len(symbols) != len(itos):
            raise ValueError("its symbols are not single characters")
        return Chars(symbols)
    except Exception as error:  # a damaged pickle raises almost anything
        raise DataError(
            f"{meta} is no table of characters in the order of their code points, as nanoGPT's prepare.py writes it "
            f"({error or type(error).__name__}); make it again, or move it away if the ids are GPT-2's"
        ) from None


def _gpt2(path: Path) -> Tokenizer:
    return Gpt2()


FORMATS = {
    "llm.c": Format(
        f"llm.c's and modded-nanogpt's .bin (magic {TOKENS}, GPT-2's tokens)",
        lambda path, head: head[:4] == struct.pack("<i", TOKENS),
        _llmc,
        _gpt2,
    ),
    "npy": Format(
        "build-nanogpt's .npy (uint16, GPT-2's tokens)", lambda path, head: head.startswith(b"\x93NUMPY"), _npy, _gpt2
    ),
    "nanoGPT": Format(
        "nanoGPT's train.bin and val.bin (uint16 without a header)",
        lambda path, head: path.name in ("train.bin", "val.bin"),
        _raw,
        _nanogpt_tokenizer,
    ),
}
