"""metrics.jsonl of a run, followed by byte offset while it grows: its figures in columns, and its marks, the events and
validations among them. Every reader here bears half-written lines, files that shrink or become others, and none."""

import importlib.util
import json
import math
import zlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tenfold.files import open_whole
from tenfold.rundir import BACK

Record = dict[str, Any]

BLOCK = 1 << 18  # bytes that are read and parsed at a time
HEAD = 256  # bytes of the first line, by which a file is known again: it has the time of the start
LARGEST = 2**53  # of steps; a file that says more is damaged
DECODER = json.JSONDecoder(parse_constant=lambda name: None)  # NaN and Infinity, which other programs write
NUMBERS = {int, float, type(None)}


def blocks(path: Path, offset: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines of a file from an offset on, about BLOCK bytes at a time, each block with the offset after it. A line
    without its line feed waits. None of a file that cannot be read."""
    try:
        with open_whole(path) as file:
            file.seek(offset)
            begun: list[bytes] = []
            while part := file.read(BLOCK):
                if cut := part.rfind(b"\n") + 1:
                    block = b"".join([*begun, part[:cut]])
                    offset, begun = offset + len(block), []
                    yield offset, block
                begun.append(part[cut:])
    except OSError:
        return


def decoded(content: bytes) -> Any:
    """The value of JSON; ValueError if it is none. By orjson, which comes with the page's extra and is four times as
    fast; a report is made without it, too."""
    if importlib.util.find_spec("orjson"):
        import orjson

        return orjson.loads(content)
    return DECODER.decode(content.decode())


def parsed(line: bytes) -> Any:
    """The value of a line, None if it is no JSON."""
    try:
        return DECODER.decode(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def records(block: bytes) -> list[Record]:
    """The records of whole lines. What is none is passed over; a number that is no number is None."""
    lines = block.rstrip(b"\n")
    try:  # all at once
        found = decoded(b"[" + lines.replace(b"\n", b",") + b"]")
    except (ValueError, RecursionError):
        found = [parsed(line) for line in lines.split(b"\n")]
    return [r for r in found if isinstance(r, dict) and type(r.get("step")) is int and abs(r["step"]) < LARGEST]


def head(path: Path) -> bytes:
    """The beginning of a file's first line, once it is whole; nothing before."""
    try:
        with open_whole(path) as file:
            first = file.read(HEAD)
    except OSError:
        return b""
    line, feed, _ = first.partition(b"\n")
    return line if feed or len(first) == HEAD else b""


def identity(path: Path) -> int:
    """A number that is another one for another file of that name; 0 where nothing was written yet."""
    return zlib.crc32(head(path))


def is_another(path: Path, offset: int, known: int) -> bool:
    """Whether a file that was read up to an offset, when it had this identity (0: not known), is not that file any
    more: it shrank, begins otherwise, or has no line end there."""
    if known and identity(path) != known:
        return True
    try:
        with open_whole(path) as file:
            file.seek(max(0, offset - 1))
            return offset > 0 and file.read(1) != b"\n"
    except OSError:
        return offset > 0


class Followed:
    """A file that is read up to `offset`: `follow` takes what came since, or all of it if it became another file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self.offset = self.identity = 0

    def follow(self) -> None:
        """Read on."""
        if is_another(self.path, self.offset, self.identity):
            self.begin()
        self.identity = self.identity or identity(self.path)
        for end, block in blocks(self.path, self.offset):
            self.take(block)
            self.offset = end

    def take(self, block: bytes) -> None:
        """Take whole lines, which begin at `offset`."""
        raise NotImplementedError


class Table:
    """Records with the same figures: 16 bytes and 4 a figure for each, which is float32, to 7 digits."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.steps, self.times, self.figures = array("q"), array("d"), array("f")

    def cut(self, step: int) -> None:
        """Take back everything from a step on."""
        kept = np.frombuffer(self.steps, np.int64) < step
        if kept.all():
            return
        for name, width in (("steps", 1), ("times", 1), ("figures", self.width)):
            column = getattr(self, name)
            rows = np.frombuffer(column, column.typecode).reshape(-1, width)[kept]
            setattr(self, name, array(column.typecode, rows.tobytes()))


def figures(column: Sequence[Any]) -> npt.NDArray[np.float64] | None:
    """A column of numbers, NaN for None; None if anything else is in it."""
    if not set(map(type, column)) <= NUMBERS:
        return None
    try:
        return np.array(column, np.float64)
    except OverflowError:  # a whole number of hundreds of digits
        return None


class Columns(Followed):
    """Every figure of every record, compactly."""

    def begin(self) -> None:
        super().begin()
        self.tables: dict[tuple[str, ...], Table] = {}

    def take(self, block: bytes) -> None:
        for keys, group in groupby(records(block), key=tuple):
            rows = list(group)
            if "event" in keys:
                for row in rows:  # each may take back the ones before it
                    if row["event"] in BACK:
                        for table in self.tables.values():
                            table.cut(row["step"])
                    self.add(keys, [row])
            else:
                self.add(keys, rows)

    def add(self, keys: tuple[str, ...], rows: list[Record]) -> None:
        """Add records that all have these keys, in this order."""
        named = dict(zip(keys, zip(*(row.values() for row in rows), strict=True), strict=True))
        steps, times = named.pop("step"), named.pop("time", None)
        kept = {key: one for key, column in named.items() if (one := figures(column)) is not None}
        if kept:
            table = self.tables.setdefault(tuple(kept), Table(len(kept)))
            table.steps.extend(steps)
            clock = figures(times or ())
            if clock is None or not len(clock):
                clock = np.full(len(rows), np.nan)
            table.times.frombytes(clock.tobytes())
            with np.errstate(over="ignore"):
                table.figures.frombytes(np.stack(list(kept.values()), 1).astype(np.float32).tobytes())

    def series(self, points: int) -> dict[str, list[list[float | None]]]:
        """Each figure's [step, time, value] by step, at most about so many, the lowest and the highest of each stretch
        among them; None for what was not finite."""
        parts: dict[str, list[tuple[Table, int]]] = {}
        for keys, table in self.tables.items():
            for at, key in enumerate(keys if table.steps else ()):
                parts.setdefault(key, []).append((table, at))
        return {key: shown(found, points) for key, found in parts.items()}


def shown(parts: list[tuple[Table, int]], points: int) -> list[list[float | None]]:
    """One figure, which the given columns of some tables have, as `Columns.series` gives it."""
    steps = np.concatenate([np.frombuffer(table.steps, np.int64) for table, _ in parts])
    times = np.concatenate([np.frombuffer(table.times, np.float64) for table, _ in parts])
    rows = [np.frombuffer(table.figures, np.float32).reshape(-1, table.width)[:, at] for table, at in parts]
    order = np.argsort(steps, kind="stable")
    values = np.concatenate(rows)[order]
    chosen = thinned(values, points)
    taken = zip(steps[order][chosen].tolist(), times[order][chosen].tolist(), values[chosen].tolist(), strict=True)
    return [
        [step, round(time, 3) if math.isfinite(time) else None, float(f"{v:.7g}") if math.isfinite(v) else None]
        for step, time, v in taken
    ]


def thinned(values: npt.NDArray[np.float32], points: int) -> npt.NDArray[np.int64]:
    """Indices of about so many values, in order: of each of points / 2 stretches the lowest and the highest, and the
    first that is not finite; always the first and the last."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    width = -(-count // max(1, points // 2))
    stretches = -(-count // width)
    room = np.full(stretches * width, np.nan, np.float32)
    room[:count] = np.where(np.isfinite(values), values, np.nan)
    padded = room.reshape(stretches, width)
    missing = np.isnan(padded)
    starts = np.arange(stretches) * width
    lowest = starts + np.where(missing, np.inf, padded).argmin(1)
    highest = starts + np.where(missing, -np.inf, padded).argmax(1)
    gaps = (starts + missing.argmax(1))[missing.any(1)]  # in the last stretch perhaps beyond the end
    chosen = np.zeros(stretches * width, bool)
    chosen[np.concatenate(([0, count - 1], lowest, highest, gaps))] = True
    return np.flatnonzero(chosen[:count])


def marked(block: bytes) -> list[tuple[int, bytes]]:
    """The lines of a block that hold an event or a validation, each with where it begins, found without parsing the
    others."""
    found: dict[int, bytes] = {}
    for mark in (b'"event"', b'"val_loss"'):
        at = block.find(mark)
        while at >= 0:
            start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            found[start] = block[start:end]
            at = block.find(mark, end)
    return sorted(found.items())


class Marks(Followed):
    """The records that hold an event or a validation, and where in the file something was taken back. A hundredth of
    what reading everything costs, so that many runs can be listed."""

    def begin(self) -> None:
        super().begin()
        self.records: list[Record] = []
        self.backs: list[tuple[int, int]] = []

    def take(self, block: bytes) -> None:
        for at, line in marked(block):
            for record in records(line):
                if record.get("event") in BACK:
                    self.backs.append((self.offset + at, record["step"]))
                    self.records = [r for r in self.records if r["step"] < record["step"]]
                self.records.append(record)

    def stands(self, at: int, step: int) -> bool:
        """Whether a record of this step that begins at this offset was not taken back."""
        return not any(at < where and step >= back for where, back in self.backs)

    def near(self, offset: int, reach: int) -> Iterator[Record]:
        """The records that still stand among the whole lines of a stretch of the file, parsed as they are asked for."""
        begin = max(0, offset)
        try:
            with open_whole(self.path) as file:
                file.seek(begin)
                stretch = file.read(reach)
        except OSError:
            return
        at = stretch.find(b"\n") + 1 if begin else 0
        while (end := stretch.find(b"\n", at) + 1) > 0:
            yield from (r for r in records(stretch[at:end]) if self.stands(begin + at, r["step"]))
            at = end
