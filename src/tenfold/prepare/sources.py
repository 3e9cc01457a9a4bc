"""Where text comes from: text files, JSON lines and parquet, on this machine or elsewhere, as rows in their order.

A source is read in order and never changed: no newline is translated, no character dropped. A row is a document of a
.jsonl or .parquet file, or a piece of a text file, whose rows make up one document. Which place in a source comes next
is three numbers (part, unit, row), so reading can go on from there: it skips row groups of parquet, and reads over
lines and text.
"""

import codecs
import functools
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from tenfold.errors import DataError

BLOCK = 1 << 20  # bytes of a text file read in one go, and of rows that are encoded in one go
ROWS = 256  # rows of parquet decoded in one go
LONGEST_LINE = 1 << 30  # bytes; JSON lines have no longer ones, and one without end would take all memory
FOREIGN = {  # what other files begin with -> what they are
    b"<!doctype": "a web page",
    b"<html": "a web page",
    b"version https://git-lfs": "a Git LFS pointer without its data",
}
TEXTS = (".txt", ".md")
HALF = (".partial", ".incomplete", ".part", ".crdownload", ".tmp")  # names of downloads that never ended

Pieces = Callable[[Iterable[str]], Iterator[str]]
Position = tuple[int, int, int]  # part; row group of parquet, otherwise 0; row, line or piece in it


class File(Protocol):
    """A file here or elsewhere. `identity` changes when its content does; `size` is in bytes."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def identity(self) -> str: ...
    def open(self) -> BinaryIO: ...


@dataclass(frozen=True)
class LocalFile:
    """A file of this machine; `name` is its path below the folder that was given, or its last part."""

    path: Path
    name: str

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def identity(self) -> str:
        stat = self.path.stat()
        return f"{stat.st_size} {stat.st_mtime_ns}"

    def open(self) -> BinaryIO:
        return self.path.open("rb")


@dataclass(frozen=True)
class Part:
    """A file to read, or with `characters` those from the first to before the second of a text.

    `place` is what messages call it, `split` where all of it goes if that is known, `kind` a key of READERS.
    """

    file: File
    place: str
    kind: str
    split: str = ""
    characters: tuple[int, int] | None = None


class Row(NamedTuple):
    """A document, or a piece of a text: where it stands, about how much of its part was read up to here (0 to 1), its
    bytes (None where parquet has null), and whether a document begins with it."""

    part: int
    unit: int
    row: int
    share: float
    data: bytes | None
    starts: bool = True


@dataclass(frozen=True)
class Source:
    """What to read, in this order. `place` is what messages call it, `origin` what the manifest says about where it
    came from, `notes` what the user is told."""

    name: str
    place: str
    parts: tuple[Part, ...]
    origin: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def texts(self) -> bool:
        """Whether these are text files, each one document."""
        return self.parts[0].kind == "text"

    def lines(self, row: Row) -> bool:
        """Whether a row is a line of JSON, not text."""
        return self.parts[row.part].kind in LINES

    def sizes(self) -> list[int]:
        """Bytes of each part; of one that is some characters of a text, about."""
        end = (self.parts[-1].characters or (0, 1))[1]
        shares = ((p.characters[1] - p.characters[0]) / end if p.characters else 1 for p in self.parts)
        return [round(part.file.size * share) for part, share in zip(self.parts, shares, strict=True)]

    def bytes_to(self, row: Row) -> int:
        """About how many bytes of the files were read up to and with a row."""
        sizes = self.sizes()
        return sum(sizes[: row.part]) + round(sizes[row.part] * row.share)

    def state(self) -> dict[str, str]:
        """What every file must still be when this is read again."""
        return {part.place: part.file.identity for part in self.parts}


def kind_of(name: str) -> str:
    """The kind of a file by its name: an ending that READERS knows, or "text"."""
    return next((kind for kind in DATA if name.endswith(kind)), "text")


def find_source(path: Path, suffixes: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Source:
    """Looks at what `path` is: a file, or a folder with everything below it, in the order of the paths, without what
    lies in folders called as in `exclude`. A folder is its files that end in one of `suffixes`; without these its
    .parquet and .jsonl files if it has any, otherwise its .txt and .md files.

    Raises:
        DataError: it does not exist, there is nothing in it, or it is half a download.
    """
    name = Path(os.path.realpath(path)).name  # also of a link that leads to itself, which is told below
    if path.is_file():
        if path.suffix in HALF:
            raise DataError(f"{path} is a download that was not finished; finish it, or remove it and fetch it again")
        return Source(name, str(path), (Part(LocalFile(path, name), str(path), kind_of(name)),))
    suffixes = suffixes or (*TEXTS, *DATA)
    if not path.is_dir():
        raise DataError(
            f"{path} is no file or folder; give a text file, one that ends in {', '.join(DATA)}, or a folder of such "
            "files"
        )
    found: list[str] = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in exclude]
        below = Path(folder).relative_to(path)
        found += [(below / name).as_posix() for name in names if name.endswith(suffixes)]
    found = sorted(name for name in found if (path / name).is_file())
    rows = [name for name in found if name.endswith(DATA)]
    texts, chosen = len(found) - len(rows), rows or found
    if not chosen:
        raise DataError(f"{path} has no {' or '.join(suffixes)} file in it or below; give a folder with some")
    parts = tuple(Part(LocalFile(path / name, name), str(path / name), kind_of(name)) for name in chosen)
    told = f"reading {len(rows)} data files of {path}; {texts} text files beside them are left out"
    return Source(name, str(path), parts, notes=(told,) if rows and texts else ())


def cut_in_two(source: Source, characters: int, val_fraction: float) -> Source:
    """One text as two parts: the first floor((1 - val_fraction) * characters) characters train, the rest validates."""
    (text,) = (part for part in source.parts if part.file.size)
    cut = int((1 - val_fraction) * characters)
    train, val = replace(text, split="train", characters=(0, cut)), replace(text, characters=(cut, characters))
    return replace(source, parts=(train, replace(val, split="val")))


def divided(source: Source, val_fraction: float) -> Source:
    """Text files with the split of each, by `brings_closer`; the last one validates if none would."""
    total = val = 0
    parts: list[Part] = []
    for part in source.parts:
        size = part.file.size
        total += size
        take = size > 0 and brings_closer(size, val, total, val_fraction)
        val += size * take
        parts.append(replace(part, split="val" if take else "train"))
    if not val:
        last = max(i for i, part in enumerate(parts) if part.file.size)
        parts[last] = replace(parts[last], split="val")
    return replace(source, parts=tuple(parts))


def brings_closer(size: int, val: int, total: int, val_fraction: float) -> bool:
    """Whether a document of `size` bytes, added to `val` bytes of validation, brings these closer to `val_fraction` of
    the `total` bytes up to and with it. By this rule the choice is spread through a source, and depends on nothing but
    the documents up to there."""
    return abs(val + size - val_fraction * total) < abs(val - val_fraction * total)


def place(source: Source, row: Row) -> str:
    """A row in words."""
    part = source.parts[row.part]
    words = {"text": "piece {row}", ".parquet": "row {row} of row group {unit}"}.get(part.kind, "line {row}")
    return f"{part.place}, {words.format(row=row.row + 1, unit=row.unit + 1)}"


@dataclass(frozen=True)
class Reading:
    """How to read: the field or column with the text, what happens to bytes that are not UTF-8 ("strict" refuses them,
    "replace" makes them U+FFFD), and how a text is cut so that its pieces can be encoded one by one."""

    text_field: str
    errors: str
    pieces: Pieces


def read(source: Source, how: Reading, start: Position = (0, 0, 0)) -> Iterator[Row]:
    """The rows of a source from a position on. Lines come whole, and bytes as they are, to be decoded elsewhere.

    Raises:
        DataError: a file that is damaged, foreign, cut short or without the text column, or a text that is not UTF-8.
    """
    for index in range(start[0], len(source.parts)):
        part, (unit, row) = source.parts[index], start[1:] if index == start[0] else (0, 0)
        with part.file.open() as file:
            head = file.read(512).lstrip().lower()
            what = next((what for begin, what in FOREIGN.items() if head.startswith(begin)), "")
            if what and part.kind != "text":
                raise DataError(f"{part.place} is {what}, not {part.kind} data; fetch it again, or leave it out")
            file.seek(0)
            yield from READERS[part.kind](index, part, file, how, unit, row)


def batches(source: Source, rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in lists of about BLOCK bytes; those of one list are all of one kind."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        if batch and (size >= BLOCK or source.parts[row.part].kind != source.parts[batch[0].part].kind):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += len(row.data or b"") + 100  # what a row costs beside its text
    if batch:
        yield batch


def _text(index: int, part: Part, file: BinaryIO, how: Reading, unit: int, skip: int) -> Iterator[Row]:
    chunks, size, done, number = _decoded(part, file, how.errors), part.file.size, 0, 0
    if part.characters:
        first, stop = part.characters
        chunks, size = _characters(chunks, first, stop), stop - first
    for number, piece in enumerate(how.pieces(chunks), 1):
        data = piece.encode("utf-8", "surrogateescape")
        done += len(piece) if part.characters else len(data)
        if number > skip:
            yield Row(index, 0, number - 1, done / size, data, starts=number == 1)
    if not number:
        yield Row(index, 0, 0, 1.0, b"")


def _decoded(part: Part, file: BinaryIO, errors: str) -> Iterator[str]:
    """The text of a file by blocks. Bytes that are not UTF-8 are refused, or kept as half characters, from which the
    very bytes can be had again."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict" if errors == "strict" else "surrogateescape")
    done = 0
    while True:
        block = file.read(BLOCK)
        start = done - len(decoder.getstate()[0])  # where the bytes begin that the decoder kept from the last block
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{part.place} is not UTF-8: byte {start + error.start} is 0x{error.object[error.start]:02x}; convert "
                "it, leave it out, or ask for such bytes to be replaced (--errors replace)"
            ) from None
        if not block:
            return
        done += len(block)


def _characters(chunks: Iterator[str], start: int, stop: int) -> Iterator[str]:
    """The characters from `start` to before `stop` of a text."""
    for chunk in chunks:
        if stop <= 0:
            return
        yield chunk[max(0, start) : stop]
        start, stop = start - len(chunk), stop - len(chunk)


def _lines(
    unpack: Callable[[Any], Any], index: int, part: Part, file: BinaryIO, how: Reading, unit: int, skip: int
) -> Iterator[Row]:
    number = 0
    try:
        with io.BufferedReader(unpack(file), BLOCK) as stream:
            while line := stream.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise DataError(f"{part.place}, line {number} is longer than {LONGEST_LINE:,} bytes; no JSON lines")
                if number > skip and not line.isspace():
                    yield Row(index, 0, number - 1, min(1.0, file.tell() / max(1, part.file.size)), line)
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise DataError(f"{part.place} is damaged or cut short after line {number} ({error}); fetch it again") from None


def _zstd(file: BinaryIO) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")


def _parquet(index: int, part: Part, file: BinaryIO, how: Reading, unit: int, skip: int) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file, buffer_size=BLOCK, pre_buffer=False)  # a row group may be gigabytes
        names, rows = table.schema_arrow.names, table.metadata.num_rows
        if how.text_field not in names:
            raise DataError(
                f"{part.place} has no column {how.text_field!r}; its columns are {', '.join(names)}: name the one to "
                "read with --text-field"
            )
        kind = table.schema_arrow.field(how.text_field).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise DataError(f"{part.place} has {kind} in its column {how.text_field!r}, not text; name another column")
        before = sum(table.metadata.row_group(group).num_rows for group in range(unit))
        for group in range(unit, table.num_row_groups):
            number = 0
            for batch in table.iter_batches(ROWS, [group], [how.text_field]):
                # As bytes, which costs nothing: whoever encodes them decodes them first.
                for data in batch.column(0).cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist():
                    number += 1
                    if group > unit or number > skip:
                        yield Row(index, group, number - 1, (before + number) / rows, data)
            before += number
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        said = str(error).splitlines()[0]
        raise DataError(f"{part.place} is damaged or no whole parquet file ({said}); fetch it again") from None


LINES: dict[str, Callable[[Any], Any]] = {  # kind of JSON lines -> what unpacks them
    ".jsonl": lambda file: file,
    ".jsonl.gz": gzip.open,
    ".jsonl.xz": lzma.open,
    ".jsonl.zst": _zstd,
}
READERS: dict[str, Callable[..., Iterator[Row]]] = {
    "text": _text,
    ".parquet": _parquet,
    **{kind: functools.partial(_lines, unpack) for kind, unpack in LINES.items()},
}
DATA = tuple(kind for kind in READERS if kind != "text")
