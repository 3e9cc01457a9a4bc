"""Where text comes from: a file, a folder of files, or JSON lines, as a stream of documents in bounded memory.

A source is read in order and never changed: no newline is translated, no character dropped. Text must be UTF-8. Bytes
that are not are refused with their place, or, where the caller asks for errors="replace", become U+FFFD.
"""

import codecs
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tenfold.errors import DataError

BLOCK = 1 << 20  # bytes of a file read in one go


class Digest(Protocol):
    """What takes the bytes as they are read, such as hashlib's hashes."""

    def update(self, data: bytes, /) -> None: ...


@dataclass(frozen=True)
class Source:
    """What to read: a text file or JSON lines (then `path` is the only one of `files`), or a folder and its files."""

    path: Path
    files: tuple[Path, ...]
    text_field: str = "text"
    errors: str = "strict"

    @property
    def name(self) -> str:
        """The last part of the path, under which the manifest knows it."""
        return self.path.resolve().name

    def state(self) -> list[tuple[str, int, int]]:
        """Name, size and time of change of every file; another state means that the source has changed."""
        return [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in self.files]


@dataclass(frozen=True)
class Document:
    """One document: its size in bytes (of the file, or of the text in UTF-8) and its text in order, to read once."""

    size: int
    chunks: Iterator[str]


def find_source(
    path: Path, suffixes: tuple[str, ...], exclude: tuple[str, ...], text_field: str, errors: str
) -> Source:
    """Looks at what `path` is; a folder is every file below it that ends in one of `suffixes`, in the order of their
    paths, without what lies in folders called as in `exclude`.

    Raises:
        DataError: it does not exist, or there is nothing in it.
    """
    if path.is_file():
        return Source(path, (path,), text_field, errors)
    if not path.is_dir():
        raise DataError(
            f"{path} is no file or folder; give a text file, a folder of {' or '.join(suffixes)}, or a .jsonl file"
        )
    found: list[Path] = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in exclude]
        found += [file for name in names if name.endswith(suffixes) and (file := Path(folder, name)).is_file()]
    if not found:
        raise DataError(f"{path} has no {' or '.join(suffixes)} file in it or below; give a folder that has some")
    return Source(path, tuple(sorted(found, key=lambda file: file.relative_to(path).as_posix())), text_field, errors)


def documents(source: Source, digest: Digest | None = None) -> Iterator[Document]:
    """The documents of a source, to be read one after the other; `digest` is given all bytes that are read.

    Raises:
        DataError: text that is not UTF-8, or a line that is not JSON with a text, each with its place.
    """
    if source.path.suffix == ".jsonl" and not source.path.is_dir():
        yield from _lines(source, digest)
        return
    for path in source.files:
        size = path.stat().st_size
        if digest and source.path.is_dir():  # where a file ends, and what it is called, are part of the source
            digest.update(os.fsencode(path.relative_to(source.path).as_posix()) + b"\0%d\0" % size)
        yield Document(size, _text(path, source.errors, digest))


def _text(path: Path, errors: str, digest: Digest | None) -> Iterator[str]:
    decoder, done = codecs.getincrementaldecoder("utf-8")(errors), 0
    with path.open("rb") as file:
        while True:
            block = file.read(BLOCK)
            start = done - len(decoder.getstate()[0])  # where the bytes begin that the decoder kept from the last block
            try:
                yield decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path} is not UTF-8: byte {start + error.start} is 0x{error.object[error.start]:02x}; convert "
                    "it, leave it out, or ask for such bytes to be replaced"
                ) from None
            if not block:
                return
            done += len(block)
            if digest:
                digest.update(block)


def _lines(source: Source, digest: Digest | None) -> Iterator[Document]:
    with source.path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if digest:
                digest.update(line)
            if line.isspace():
                continue
            where = f"{source.path}, line {number}"
            try:
                row = json.loads(line.decode("utf-8", source.errors))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{where} is not UTF-8: its byte {error.start} is 0x{line[error.start]:02x}; convert the file, or "
                    "ask for such bytes to be replaced"
                ) from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where} is not JSON ({error}); every line must be one JSON object") from None
            text = row.get(source.text_field) if isinstance(row, dict) else None
            if not isinstance(text, str):
                has = f"its fields are {', '.join(row) or 'none'}" if isinstance(row, dict) else "it is no JSON object"
                raise DataError(f"{where} has no text in a field {source.text_field!r}; {has}: name the field to read")
            try:
                size = len(text.encode())
            except UnicodeEncodeError as error:  # JSON can write half a character: "\ud83d" alone
                if source.errors == "strict":
                    raise DataError(
                        f"{where} has half a character ({text[error.start]!r}) at character {error.start} of its text; "
                        "mend it, or ask for such characters to be replaced"
                    ) from None
                text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                size = len(text.encode())
            yield Document(size, iter((text,)))


@dataclass(frozen=True)
class Survey:
    """What a source holds. Empty documents are counted apart; `symbols` is empty unless it was asked for.

    `val_documents` are the documents that `val_chosen` sends to validation, before `val_last` mends an empty choice.
    """

    documents: int
    empty_documents: int
    characters: int
    bytes: int
    sha256: str
    symbols: str
    val_documents: int


def survey(source: Source, val_fraction: float, symbols: bool, report: Callable[[int], None]) -> Survey:
    """Reads a source once; `report` is told the number of bytes seen every now and then.

    Raises:
        DataError: as `documents`.
    """
    digest, seen = hashlib.sha256(), set[str]()
    count = empty = characters = size = told = val = 0
    chosen = val_chosen(val_fraction)
    for document in documents(source, digest):
        for chunk in document.chunks:
            characters += len(chunk)
            if symbols:
                seen.update(chunk)
        size += document.size
        if document.size:
            count, val = count + 1, val + chosen(document.size)
        else:
            empty += 1
        if size - told > 1 << 26:
            told = size
            report(size)
    return Survey(count, empty, characters, size, digest.hexdigest(), "".join(sorted(seen)), val)


def val_chosen(val_fraction: float) -> Callable[[int], bool]:
    """A function that is told the size of one document after the other and answers whether it is for validation:

    when that brings the bytes of validation closer to `val_fraction` of all bytes so far. The choice is spread through
    the source, and depends on nothing but the documents up to there.
    """
    val = total = 0

    def chosen(size: int) -> bool:
        nonlocal val, total
        total += size
        take = abs(val + size - val_fraction * total) < abs(val - val_fraction * total)
        val += size * take
        return take

    return chosen
