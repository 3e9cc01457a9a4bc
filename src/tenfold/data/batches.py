"""Which tokens a step trains on: row i of step s is a pure function of (seed, s, i), so there is no loader state to
lose."""

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch
from torch import Tensor

from tenfold.data.shards import Tokens
from tenfold.data.split import Split
from tenfold.errors import DataError
from tenfold.model.head import IGNORE

ROUNDS = 8


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea & Flood 2014) on uint64: every input bit reaches every output bit."""
    x = x.copy()
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def permute(index: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """Where a pseudo-random permutation of range(size), one for each (seed, epoch), sends each index; no table is kept.

    A Feistel network over the next power of four, walked until the value lies below size (Black & Rogaway 2002).
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = mix(
        mix(np.full(ROUNDS, seed, np.uint64))
        + np.uint64(epoch) * np.uint64(ROUNDS)
        + np.arange(ROUNDS, dtype=np.uint64)
    )
    out = index.astype(np.uint64)
    walking = np.ones(len(out), bool)
    while walking.any():
        left, right = out[walking] >> half, out[walking] & mask
        for key in keys:
            left, right = right, left ^ (mix(right + key) & mask)
        out[walking] = left << half | right
        walking &= out >= size
    return out.astype(np.int64)


def windows(tokens: Tokens, length: int) -> int:
    """Rows of `length` tokens that a split holds: each needs one token more, its last target, which the next row
    shares."""
    return (len(tokens) - 1) // length


def row_starts(numbers: np.ndarray, available: int, length: int, seed: int) -> np.ndarray:
    """First tokens of the rows with these running numbers (step * rows + i); each of the available rows once an
    epoch."""
    epochs, index = np.divmod(numbers, available)
    starts = np.empty_like(index)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        starts[here] = permute(index[here], available, seed, int(epoch))
    return starts * length


def load(tokens: Tokens, starts: np.ndarray, length: int, micro: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each (micro, length) int64. Where tokens end, and in rows beyond `starts`, targets are
    IGNORE."""
    x = torch.zeros(micro, length, dtype=torch.int64)
    y = torch.full((micro, length), IGNORE, dtype=torch.int64)
    for row, start in enumerate(starts):
        window = torch.from_numpy(tokens.read(int(start), min(length + 1, len(tokens) - int(start))))
        x[row, : len(window) - 1], y[row, : len(window) - 1] = window[:-1], window[1:]
    return x, y


class Batches:
    """The micro-batches of one process, read ahead by a thread. `wait` counts the seconds that `take` blocked."""

    def __init__(self, tokens: Tokens, split: Split, seed: int, rank: int, device: torch.device) -> None:
        self.tokens, self.split, self.seed, self.rank, self.device = tokens, split, seed, rank, device
        self.available = windows(tokens, split.length)
        if self.available < 1:
            raise DataError(
                f"{tokens} has {len(tokens):,} tokens, too few for one row of {split.length}; "
                f"give more text or a recipe.length of at most {len(tokens) - 1}"
            )
        self.wait = 0.0
        self.skipped: tuple[int, ...] = ()
        self.read_rows: deque[tuple[int, int]] = deque(maxlen=1 << 16)
        """Epoch and hash of this process's rows as they were read, until somebody takes them out."""
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self.ahead: tuple[tuple[int, int], Future] | None = None

    def skip(self, steps: Iterable[int]) -> None:
        """From now on leave out the rows of these steps of the data, and no others."""
        self.skipped = tuple(sorted(steps))
        if self.ahead is not None:
            wait([self.ahead[1]])  # what it reads must not come in between later
        self.ahead = None

    def numbered(self, position: int) -> int:
        """Which step of the data, those left out counted, the update after `position` updates trains on."""
        for step in self.skipped:
            position += step <= position
        return position

    def numbers(self, position: int, k: int) -> np.ndarray:
        """Running numbers of the real rows of micro-step k of a step, on this process."""
        slots = np.array([i for i in self.split.slot(k, self.rank) if i < self.split.rows], np.int64)
        return self.numbered(position) * self.split.rows + slots

    def starts(self, numbers: np.ndarray) -> np.ndarray:
        """First tokens of the rows with these running numbers."""
        return row_starts(numbers, self.available, self.split.length, self.seed)

    def read(self, position: int, k: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a micro-step, in host memory that the device copies from without waiting."""
        numbers = self.numbers(position, k)
        x, y = load(self.tokens, self.starts(numbers), self.split.length, self.split.micro)
        hashes = (hash(row.tobytes()) for row in x[: len(numbers)].numpy())
        self.read_rows.extend(zip((numbers // self.available).tolist(), hashes, strict=True))
        return (x.pin_memory(), y.pin_memory()) if self.device.type == "cuda" else (x, y)

    def take(self, position: int, k: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each (micro, length) on the device; the micro-step after it is read meanwhile."""
        before = time.perf_counter()
        if self.ahead is None or self.ahead[0] != (position, k):
            self.ahead = ((position, k), self.reader.submit(self.read, position, k))
        x, y = self.ahead[1].result()
        following = (position, k + 1) if k + 1 < self.split.accum else (position + 1, 0)
        self.ahead = (following, self.reader.submit(self.read, *following))
        self.wait += time.perf_counter() - before
        return x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def close(self) -> None:
        """End the reading thread."""
        self.reader.shutdown(cancel_futures=True)
