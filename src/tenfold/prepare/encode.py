"""Rows into token ids: what a worker does with a list of them. It needs nothing but the rows, so the ids are the same
whoever does it, wherever and in whatever order."""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tenfold.data.idfile import Ids
from tenfold.data.shards import dtype_for
from tenfold.data.tokenizer import Tokenizer, from_spec
from tenfold.errors import DataError

CHUNK = 1 << 20  # characters of a document encoded in one go
SELDOM = 1000  # one row in so many is compared with the reference tokenizer


class Document(NamedTuple):
    """What became of a row: ids, bytes in UTF-8 and characters of its text, SHA-256 of these bytes.

    `state` is "null" or "empty" for a row without text, "cleaned" if bytes or halves of characters were replaced;
    `compared` says that the reference tokenizer was asked, `differs` that it gave other ids, which are taken then.
    """

    tokens: int
    size: int
    characters: int
    digest: bytes
    state: str = ""
    compared: bool = False
    differs: bool = False


@dataclass(frozen=True)
class Encoded:
    """The ids of all rows, one after the other, and what became of each row. With a `problem`, the number of a row and
    what is wrong with it, they end before that row."""

    ids: Ids
    documents: list[Document]
    problem: tuple[int, str] | None = None


class Unfit(Exception):
    """What is wrong with a row, to be said after its place."""


@dataclass(frozen=True)
class Coder:
    """All that a worker must know: the tokenizer's spec, the field of JSON lines, what happens to text that is not
    Unicode ("strict" or "replace"), and that one row in `every` is compared with the reference tokenizer."""

    spec: dict[str, Any]
    text_field: str
    errors: str
    every: int = SELDOM

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return from_spec(self.spec)

    def encode(
        self, lines: bool, rows: Sequence[bytes | None], begin: Callable[[int], object] = lambda row: None
    ) -> Encoded:
        """Encodes rows, which are JSON `lines` or texts; `begin` is told the number of each before it is looked at."""
        parts: list[Ids] = []
        documents: list[Document] = []
        problem = None
        for number, data in enumerate(rows):
            begin(number)
            try:
                text, cleaned = self.text(lines, data)
                ids, document = self._document(text, cleaned)
            except (Unfit, DataError) as error:
                problem = number, str(error)
                break
            parts += ids
            documents.append(document)
        dtype = dtype_for(self.tokenizer.vocab)
        return Encoded(np.concatenate([np.empty(0, dtype), *parts], dtype=dtype), documents, problem)

    def text(self, lines: bool, data: bytes | None) -> tuple[str | None, bool]:
        """The text of a row (None for null), and whether something in it was replaced.

        Raises:
            Unfit: it is not Unicode, or not JSON with a text.
        """
        if data is None:
            return None, False
        decoded, cleaned = self._decoded(data)
        if not lines:
            return decoded, cleaned
        try:
            row = json.loads(decoded)
        except (ValueError, RecursionError) as error:
            raise Unfit(f"is not JSON ({error}); every line must be one JSON object") from None
        if not isinstance(row, dict) or self.text_field not in row:
            has = f"its fields are {', '.join(row) or 'none'}" if isinstance(row, dict) else "it is no JSON object"
            raise Unfit(f"has no text in a field {self.text_field!r}; {has}: name the field to read (--text-field)")
        text = row[self.text_field]
        if text is None:
            return None, False
        if not isinstance(text, str):
            raise Unfit(
                f"has {json.dumps(text)[:30]} in its field {self.text_field!r}, not text; mend it or leave it out"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can write half a character: "\ud83d" alone
            if self.errors == "strict":
                raise Unfit(
                    f"has half a character ({text[error.start]!r}) at character {error.start} of its text; mend it, or "
                    "ask for such characters to be replaced (--errors replace)"
                ) from None
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), True
        return text, cleaned

    def _decoded(self, data: bytes) -> tuple[str, bool]:
        try:
            return data.decode(), False
        except UnicodeDecodeError as error:
            if self.errors == "strict":
                raise Unfit(
                    f"is not UTF-8: its byte {error.start} is 0x{data[error.start]:02x}; convert the file, or ask for "
                    "such bytes to be replaced (--errors replace)"
                ) from None
            return data.decode(errors="replace"), True

    def _document(self, text: str | None, cleaned: bool) -> tuple[list[Ids], Document]:
        if not text:
            return [], Document(0, 0, 0, b"", "null" if text is None else "empty")
        data = text.encode()
        digest = hashlib.sha256(data).digest()
        ids = [self.tokenizer.encode(piece) for piece in self._pieces(text)]
        compared, differs = int.from_bytes(digest[:8], "big") % self.every == 0, False
        if compared:
            reference = [self.tokenizer.reference(piece) for piece in self._pieces(text)]
            differs = not np.array_equal(np.concatenate(ids), np.concatenate(reference))
            ids = reference if differs else ids
        tokens = sum(map(len, ids))
        return ids, Document(tokens, len(data), len(text), digest, "cleaned" if cleaned else "", compared, differs)

    def _pieces(self, text: str) -> Iterator[str]:
        return self.tokenizer.pieces(text[start : start + CHUNK] for start in range(0, len(text), CHUNK))
