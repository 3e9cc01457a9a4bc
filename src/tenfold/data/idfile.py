"""A file of token ids, whatever its format: what everything that reads ids needs of it, and what was found in it once,
remembered beside it."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tenfold.files import content_of, from_json

SPLITS = ("train", "val")
MAGIC = b"TENFOLD1"  # what tenfold's own shards begin with
STAMP = ".checked.json"
BLOCK = 1 << 22  # ids looked at in one go

Ids = npt.NDArray[Any]  # 16 or 32 bits wide, without sign, little-endian


@dataclass(frozen=True)
class Shard:
    """A whole file of ids. `ids` (one dimension) is a read-only memory map; they should all be below `vocab`. `sha256`
    is the hash of their bytes, as the file's header says or as it was computed once."""

    path: Path
    vocab: int
    sha256: str
    ids: Ids


def blocks(ids: Ids) -> Iterator[tuple[int, Ids]]:
    """All ids in order, a few million at a time, each time with the position of the first."""
    whole = np.asarray(ids)
    return ((start, whole[start : start + BLOCK]) for start in range(0, len(whole), BLOCK))


def highest(shard: Shard) -> int:
    """The highest id in a shard: remembered, or looked up and then remembered."""
    known = _remembered(shard.path)
    if known and known[0] == shard.sha256:
        return known[1]
    found = max(int(block.max()) for _, block in blocks(shard.ids))
    _remember(shard.path, shard.sha256, found)
    return found


def content(path: Path, ids: Ids) -> str:
    """The SHA-256 of the ids' bytes, for a format that does not keep it: remembered, or computed at the speed of the
    disk and then remembered, together with the highest id."""
    known = _remembered(path)
    if known:
        return known[0]
    digest, found = hashlib.sha256(), 0
    for _, block in blocks(ids):
        digest.update(block.data)
        found = max(found, int(block.max()))
    _remember(path, digest.hexdigest(), found)
    return digest.hexdigest()


def _remembered(path: Path) -> tuple[str, int] | None:
    """The SHA-256 and the highest id that were found in a file, unless it has another size or time of change now."""
    try:
        sha256, size, changed, found = from_json(content_of(path.with_name(STAMP)))[path.name]
        stat = path.stat()
        if isinstance(sha256, str) and [size, changed] == [stat.st_size, stat.st_mtime_ns] and isinstance(found, int):
            return sha256, found
    except (OSError, KeyError, TypeError, ValueError):
        pass  # nothing is remembered about this file
    return None


def _remember(path: Path, sha256: str, found: int) -> None:
    """Writes it down beside the file; where that cannot be, everything is looked at each time."""
    stamp, stat, stamps = path.with_name(STAMP), path.stat(), dict[str, Any]()
    with contextlib.suppress(OSError, TypeError, ValueError):
        stamps = dict(from_json(content_of(stamp)))
    stamps[path.name] = [sha256, stat.st_size, stat.st_mtime_ns, found]
    # Several processes may do this at once: each puts a whole file in place, and the last one wins.
    mine = stamp.with_name(f"{STAMP}.{os.getpid()}.partial")
    with contextlib.suppress(OSError):
        try:
            mine.write_text(json.dumps(stamps))
            mine.replace(stamp)
        finally:
            mine.unlink(missing_ok=True)
