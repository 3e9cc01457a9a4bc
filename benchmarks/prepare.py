"""How fast rows become token shards: tenfold beside tiktoken in one process a core, on the same rows, in turns.

python benchmarks/prepare.py ROWS [--times 3]

ROWS is a .parquet or .jsonl file, also packed. Both read it, encode every row, put an end of text between rows and
write 16-bit ids; tenfold also decides the split, hashes, compares one row in a thousand with tiktoken, and syncs. Whole
processes are timed, with the start of Python. Each time the ids of both are compared.
"""

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tenfold.data.shards import open_corpus
from tenfold.data.tokenizer import Bytes, Gpt2
from tenfold.prepare.encode import Coder
from tenfold.prepare.sources import Reading, batches, find_source, read
from tenfold.prepare.workers import cores

CODER = Coder({"name": "gpt2"}, "text", "strict")


def reference(batch: tuple[bool, list[bytes]]) -> bytes:
    """The ids of some rows by tiktoken, each with an end of text after it."""
    tokenizer = Gpt2()
    ids = ([*tokenizer.reference(CODER.text(batch[0], row)[0] or ""), tokenizer.eot] for row in batch[1])
    return np.concatenate([np.array(part, np.uint16) for part in ids]).tobytes()


def rows(path: Path) -> Iterator[tuple[bool, list[bytes]]]:
    """The rows of a file in lists of a megabyte, as tenfold reads them."""
    source = find_source(path)
    for batch in batches(source, read(source, Reading("text", "strict", Bytes().pieces))):
        yield source.lines(batch[0]), [row.data or b"" for row in batch]


def tiktoken(path: Path, out: Path) -> None:
    """Everything with tiktoken, one process a core."""
    with multiprocessing.get_context("spawn").Pool(cores()) as pool, (out / "ids.bin").open("wb") as file:
        for ids in pool.imap(reference, rows(path)):
            file.write(ids)


def tenfold(path: Path, out: Path) -> None:
    """Everything with tenfold."""
    from tenfold.prepare import prepare_text

    prepare_text(path, out, val_fraction=0.01)


def timed(name: str, path: Path, out: Path) -> float:
    """Seconds of a program of its own."""
    start = time.perf_counter()
    subprocess.run([sys.executable, __file__, str(path), "--only", name, "--out", str(out)], check=True)
    return time.perf_counter() - start


def same(ours: Path, theirs: Path) -> bool:
    """Whether both have the same ids, but for the order that the split brings and the ends of text between rows."""
    corpus, ids = open_corpus(ours), np.fromfile(theirs / "ids.bin", np.uint16)
    mine = np.concatenate([corpus.train.read(0, len(corpus.train)), corpus.val.read(0, len(corpus.val))])
    return np.array_equal(np.bincount(mine, minlength=50256)[:50256], np.bincount(ids, minlength=50256)[:50256])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", choices=("tenfold", "tiktoken"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.only:
        {"tenfold": tenfold, "tiktoken": tiktoken}[given.only](given.rows, given.out)
        return
    seconds: dict[str, list[float]] = {"tenfold": [], "tiktoken": []}
    for _ in range(given.times):
        with tempfile.TemporaryDirectory() as name:
            for who, times in seconds.items():
                out = Path(name) / who
                out.mkdir()
                times.append(timed(who, given.rows, out))
            corpus = open_corpus(Path(name) / "tenfold")
            tokens = len(corpus.train) + len(corpus.val)
            assert same(Path(name) / "tenfold", Path(name) / "tiktoken")
    for who, times in seconds.items():
        middle = statistics.median(times)
        print(f"{who:9} {middle:6.2f} s ({min(times):.2f} to {max(times):.2f}), {tokens / middle / 1e6:.2f}M tokens/s")
    ratios = [theirs / ours for ours, theirs in zip(*seconds.values(), strict=True)]
    print(f"tiktoken takes {statistics.median(ratios):.1f} times as long ({cores()} cores, {tokens:,} tokens)")


if __name__ == "__main__":
    main()
