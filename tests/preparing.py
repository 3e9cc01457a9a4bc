"""What the tests of preparation share: made text, sources of it in every format, and what lies in the shards."""

import gzip
import json
import lzma
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from tenfold.data.shards import STAMP, Corpus


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but what readers leave there."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != STAMP}


def shards(folder: Path) -> dict[str, bytes]:
    """The shards of a folder."""
    return {name: data for name, data in contents(folder).items() if name.endswith(".bin")}


def story(words: int, seed: int = 0) -> str:
    """Made-up text with words, lines and a few characters beyond ASCII."""
    rng = random.Random(seed)
    alphabet = ["the", "cat", "naïve", "run", "42", "'s", "Ωmega", "end.", "🙂", "said", "to", "\n", "\r\n", "  "]
    return " ".join(rng.choice(alphabet) for _ in range(words))


def documents(corpus: Corpus, split: str) -> list[str]:
    """The texts between the ends of text of a split."""
    tokens = getattr(corpus, split)
    ids = tokens.read(0, len(tokens))
    borders = np.flatnonzero(ids == corpus.tokenizer.eot)
    return [corpus.tokenizer.decode(part[part != corpus.tokenizer.eot]) for part in np.split(ids, borders)]


def as_jsonl(texts: Sequence[str | None], field: str = "text") -> bytes:
    """A line for each text."""
    return "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)).encode()


def jsonl(path: Path, texts: Sequence[str | None], field: str = "text") -> Path:
    """A file with a line for each text."""
    path.write_bytes(as_jsonl(texts, field))
    return path


def parquet_file(path: Path, texts: Sequence[str | None], group: int = 3, kind: pyarrow.DataType | None = None) -> Path:
    """A file with a row for each text, so many in a row group, and another column."""
    column = pyarrow.array(texts, kind or pyarrow.string())
    table = pyarrow.table({"id": list(range(len(texts))), "text": column})
    parquet.write_table(table, path, row_group_size=group)
    return path


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": lambda data: data,
    ".jsonl.gz": gzip.compress,
    ".jsonl.xz": lzma.compress,
    ".jsonl.zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
}


def in_format(path: Path, kind: str, texts: Sequence[str | None]) -> Path:
    """The same documents in one of the formats, at `path` with that ending."""
    path = path.with_name(path.name + kind)
    if kind == ".parquet":
        return parquet_file(path, texts)
    path.write_bytes(PACKED[kind](as_jsonl(texts)))
    return path
