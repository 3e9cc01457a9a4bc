"""The shard format, both ways, and the corpus that shards make up.

A corpus is a folder: `manifest.json` and, for each of the splits "train" and "val", shards `train_000000.bin` and so
on. A shard is a header of 64 bytes and then token ids, little-endian, 16 bits wide where the vocabulary allows and
32 otherwise:

    bytes 0-7    magic, b"TENFOLD1"
    bytes 8-11   version of the format
    bytes 12-15  bytes an id: 2 or 4
    bytes 16-23  size of the vocabulary; every id is below it
    bytes 24-31  number of ids
    bytes 32-63  SHA-256 of the ids' bytes

A shard under work is called `.partial`; only a whole one has its header and its name. What text becomes which shards
is not decided here.
"""

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tenfold.data import foreign
from tenfold.data.idfile import MAGIC, SPLITS, Shard, blocks, highest
from tenfold.data.idfile import STAMP as STAMP
from tenfold.data.tokenizer import Tokenizer, from_spec
from tenfold.errors import DataError
from tenfold.files import content_of, from_json, open_itself, open_whole, sync

VERSION = 1
HEADER = struct.Struct("<8sIIQQ32s")
FORMAT = "tenfold corpus"
MANIFEST = "manifest.json"


def dtype_for(vocab: int) -> np.dtype[Any]:
    """The type of the ids of a vocabulary: 16 bits where every id fits, else 32, little-endian."""
    return np.dtype("<u2" if vocab <= 1 << 16 else "<u4")


def shard_name(split: str, index: int) -> str:
    """The file name of a split's shard."""
    return f"{split}_{index:06d}.bin"


# Writing


class ShardWriter:
    """Appends ids to the shards of one split, each `shard_tokens` long but the last.

    Shard k holds the ids from k * shard_tokens on, so the number of ids written so far says where everything stands:
    a writer that is given `tokens` keeps that many, drops whatever came after them and goes on.

    Raises:
        DataError: from `append`, an id that is not below `vocab` (nothing of that call is written then); on going
            on, shards that hold less than `tokens`.
    """

    def __init__(self, folder: Path, split: str, vocab: int, shard_tokens: int, tokens: int = 0) -> None:
        self.folder, self.split, self.vocab, self.shard_tokens = folder, split, vocab, shard_tokens
        self.tokens = tokens
        self.dtype = dtype_for(vocab)
        self._file: BinaryIO | None = None
        whole, begun = divmod(tokens, shard_tokens)
        self._done = [_entry(open_shard(folder / shard_name(split, index))) for index in range(whole)]
        for path in folder.glob(f"{split}_*.bin*"):
            index = path.name.removeprefix(f"{split}_").split(".")[0]
            if index.isdecimal() and (int(index) > whole or (int(index) == whole and not begun)):
                path.unlink()
        if begun:
            self._resume(begun)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file under work, as it is."""
        if self._file:
            # What a full disk kept from being written cannot be written on closing either.
            with contextlib.suppress(OSError):
                self._file.close()

    def append(self, ids: npt.ArrayLike) -> None:
        """Writes some ids, any number of them."""
        array = np.asarray(ids)
        if len(array) and (int(array.max()) >= self.vocab or int(array.min()) < 0):
            bad = array[(array < 0) | (array >= self.vocab)][0]
            raise DataError(
                f"token id {bad} does not belong to a vocabulary of {self.vocab}; ids go from 0 to {self.vocab - 1}"
            )
        while len(array):
            if self._file is None:
                self._file = open_itself(self._path(".partial"), "wb")
                self._file.write(bytes(HEADER.size))  # the header comes last: without it this is no shard
                self._digest = hashlib.sha256()
            part = array[: self.shard_tokens - self.tokens % self.shard_tokens].astype(self.dtype)
            body = part.tobytes()
            self._file.write(body)
            self._digest.update(body)
            self.tokens += len(part)
            array = array[len(part) :]
            if self.tokens % self.shard_tokens == 0:
                self._complete(self.shard_tokens)

    def sync(self) -> None:
        """Returns once everything appended so far is safe on the disk."""
        if self._file:
            _sync(self._file)

    def finish(self) -> list[dict[str, Any]]:
        """Completes the last shard; returns name, tokens, bytes and sha256 (of the ids) of all, for the manifest."""
        if self._file:
            self._complete(self.tokens % self.shard_tokens)
        return self._done

    def _path(self, suffix: str = "") -> Path:
        return self.folder / (shard_name(self.split, len(self._done)) + suffix)

    def _resume(self, tokens: int) -> None:
        """Opens the shard under work with its first `tokens` ids, also when it was already completed."""
        partial, size = self._path(".partial"), HEADER.size + tokens * self.dtype.itemsize
        if self._path().exists():
            self._path().replace(partial)
        if not partial.exists() or partial.stat().st_size < size:
            raise DataError(f"{partial} has lost ids that were written; delete {self.folder} and prepare again")
        self._file = open_itself(partial, "r+b")
        self._file.truncate(size)
        self._file.write(bytes(HEADER.size))
        self._digest = hashlib.sha256()
        while block := self._file.read(1 << 20):
            self._digest.update(block)

    def _complete(self, tokens: int) -> None:
        assert self._file
        header = HEADER.pack(MAGIC, VERSION, self.dtype.itemsize, self.vocab, tokens, self._digest.digest())
        # The header only after the ids: a power cut between the two leaves a file that is refused.
        _sync(self._file)
        self._file.seek(0)
        self._file.write(header)
        _sync(self._file)
        self._file.close()
        self._file = None
        self._path(".partial").replace(self._path())
        sync(self.folder)
        self._done.append(_entry(open_shard(self._path())))


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _entry(shard: Shard) -> dict[str, Any]:
    size = HEADER.size + shard.ids.nbytes
    return {"name": shard.path.name, "tokens": len(shard.ids), "bytes": size, "sha256": shard.sha256}


# Reading


def open_shard(path: Path) -> Shard:
    """Opens a shard after checking its header and size; its ids are not read.

    Raises:
        DataError: it is missing, foreign, of a newer version, truncated or damaged.
    """
    again = "prepare the data again, or copy the file again from where it came"
    try:
        with open_whole(path) as file:
            head, size = file.read(HEADER.size), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DataError(f"cannot read the shard {path} ({error.strerror}); {again}") from None
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise DataError(f"{path} is not a tenfold shard (it starts with {head[:8]!r}, not {MAGIC!r}); {again}")
    _, version, width, vocab, count, digest = HEADER.unpack(head)
    if version != VERSION:
        raise DataError(f"{path} has version {version} of the shard format; this tenfold reads {VERSION}: update it")
    if width != dtype_for(vocab).itemsize or not vocab:
        raise DataError(f"{path} says {width} bytes an id for a vocabulary of {vocab}, which no shard has; {again}")
    if size != HEADER.size + count * width or not count:
        raise DataError(
            f"{path} has {size} bytes, but {count} ids of {width} bytes need {HEADER.size + count * width}; {again}"
        )
    return Shard(path, vocab, digest.hex(), np.memmap(path, dtype_for(vocab), "r", HEADER.size, (count,)))


class Tokens:
    """The ids of a split, one after the other, whatever the shards: `len(tokens)` and `tokens.read(start, count)`."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shards)
        self._ends = np.cumsum([len(shard.ids) for shard in self.shards], dtype=np.int64)

    def __str__(self) -> str:
        """Where they lie, for messages: the folder and the split."""
        return (
            ", ".join(sorted({f"{s.path.parent} ({foreign.split_of(s.path.name)})" for s in self.shards})) or "no shard"
        )

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.shards else 0

    def read(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """The `count` ids from position `start` on (int64, one dimension).

        Raises:
            IndexError: they are not all there.
        """
        if start < 0 or count < 0 or start + count > len(self):
            raise IndexError(f"ids {start} to {start + count} of {len(self)}")
        out, done = np.empty(count, np.int64), 0
        index = int(np.searchsorted(self._ends, start, side="right"))
        while done < count:
            ids = self.shards[index].ids
            begin = start + done - (int(self._ends[index]) - len(ids))
            part = ids[begin : begin + count - done]
            out[done : done + len(part)] = part
            done, index = done + len(part), index + 1
        return out

    def check(self, vocab: int) -> None:
        """Returns if every id is below `vocab`, after looking at all of them, at the speed of the disk or memory.

        A file beside the shards remembers what was found, so that the next time takes no time; a shard that has
        changed since is looked at again. Where that file cannot be written everything is looked at each time.

        Raises:
            DataError: names the file and the position of the first id that is not.
        """
        for shard in self.shards:
            if (found := highest(shard)) < vocab:
                continue
            for start, block in blocks(shard.ids):  # with none beyond if the file that remembers is damaged
                if block.max() >= vocab:
                    first = int(np.argmax(block >= vocab))
                    raise DataError(
                        f"{shard.path} has the id {block[first]} at position {start + first}, but the vocabulary has "
                        f"{vocab} ids; prepare the data again, or train a model with a vocabulary of at least "
                        f"{found + 1}"
                    )


@dataclass(frozen=True)
class Corpus:
    """A folder of shards with what its manifest says, or the shards of another program's dataset, whose `manifest` has
    the format's name alone.

    `fingerprint` is a short hash of the tokenizer and of all ids in their order; it does not depend on the path.
    """

    path: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]
    fingerprint: str
    train: Tokens
    val: Tokens


def open_corpus(path: Path | str) -> Corpus:
    """Opens a prepared folder after checking its manifest and the header and size of every shard; reads no ids.

    A folder without a manifest may hold files of ids that another program made, and `path` may be one of those files,
    which stands for all of its dataset. They are read as they are; their ids are hashed the first time.

    Raises:
        DataError: the folder or a file in it is missing, unfinished, foreign, of a newer version, or damaged.
    """
    folder = Path(path)
    if not (folder / MANIFEST).exists() and foreign.found(folder):
        kind, tokenizer, splits = foreign.open_splits(folder)
        manifest: dict[str, Any] = {"format": kind, "tokenizer": tokenizer.spec()}
    else:
        manifest = read_manifest(folder)
        tokenizer = from_spec(manifest["tokenizer"])
        splits = {
            name: [_listed(folder, tokenizer, entry) for entry in manifest["splits"][name]["shards"]] for name in SPLITS
        }
    content = [tokenizer.spec(), *([shard.sha256 for shard in splits[name]] for name in SPLITS)]
    fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return Corpus(folder, tokenizer, manifest, fingerprint, *(Tokens(splits[name]) for name in SPLITS))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared folder, checked for its form.

    Raises:
        DataError: as `open_corpus`.
    """
    path = folder / MANIFEST
    try:
        manifest = from_json(content_of(path))
    except ValueError:
        raise DataError(f"{path} is damaged (no JSON); prepare the data again into another folder") from None
    except OSError as error:
        what = "the folder does not exist" if not folder.exists() else f"no {MANIFEST} ({error.strerror})"
        raise DataError(
            f"{folder} is no prepared data: {what}; run `tenfold prepare`, again if it was stopped"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path} is not tenfold's; name a folder that `tenfold prepare` made")
    if manifest.get("version") != VERSION:
        raise DataError(f"{path} has version {manifest.get('version')!r}; this tenfold reads {VERSION}: update it")
    try:
        entries = [entry for name in SPLITS for entry in manifest["splits"][name]["shards"]]
        sound = all(isinstance(manifest.get(key, {}), dict) for key in ("tokenizer", "options", "source")) and all(
            isinstance(entry[key], kind)
            for entry in entries
            for key, kind in (("name", str), ("tokens", int), ("bytes", int), ("sha256", str))
        )
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise DataError(f"{path} is damaged (parts are missing); prepare the data again into another folder")
    return manifest


def _listed(folder: Path, tokenizer: Tokenizer, entry: dict[str, Any]) -> Shard:
    """Opens a shard that the manifest lists, if it is the one that was listed."""
    name = entry["name"]
    if name in ("", ".", "..") or Path(name).name != name or {"\\", "\0"} & set(name):
        raise DataError(f"{folder / MANIFEST} names {name!r}, which is not a file in its folder; do not use it")
    shard = open_shard(folder / name)
    if shard.vocab != tokenizer.vocab:
        raise DataError(
            f"{shard.path} has a vocabulary of {shard.vocab}, but {MANIFEST} says {tokenizer.name} with "
            f"{tokenizer.vocab}; the two do not belong together: prepare the data again"
        )
    if _entry(shard) != {key: entry[key] for key in ("name", "tokens", "bytes", "sha256")}:
        raise DataError(
            f"{shard.path} is not the shard that {MANIFEST} lists; prepare the data again, or copy it again"
        )
    return shard
