"""What token ids hold: range, documents, repeated text and frequent tokens, in one pass, and in memory that does not
grow with them."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenfold.data.idfile import Ids, Shard, blocks

PIECE = 1024  # ids that are compared as one
HASHES = 1 << 21  # of pieces, that are kept at most
LENGTHS = 1 << 20  # documents are counted by length up to here; longer ones are all taken for as long as this
COUNTED = 1 << 27  # ids up to which every one is counted; of more, an even part


@dataclass(frozen=True)
class Census:
    """Figures of some shards, one after the other.

    `beyond` counts ids that the vocabulary does not have. A document is what lies between two end-of-texts, or an
    end-of-text and an end; empty ones do not count. `median` is of their lengths in ids, and is at most LENGTHS.
    `frequent` lists the most frequent ids with their shares, from every `stride`-th id. Each document is cut into
    pieces of PIECE ids from where it begins in its shard: `looked` ids lie in the pieces that were compared, which are
    about one in `share`, and `repeated` of them in pieces that occur more than once.
    """

    tokens: int
    highest: int
    beyond: int
    documents: int
    median: int
    longest: int
    frequent: tuple[tuple[int, float], ...]
    stride: int
    repeated: int
    looked: int
    share: int


def census(shards: Sequence[Shard], vocab: int, eot: int, frequent: int = 10) -> Census:
    """Counts what shards hold, whose ids should be below `vocab` and have `eot` between documents."""
    tokens = sum(len(shard.ids) for shard in shards)
    stride = -(-tokens // COUNTED) or 1
    counts, highest, beyond = np.zeros(vocab, np.int64), 0, 0
    documents, pieces = _Documents(), _Pieces()
    for shard in shards:
        for _, block in blocks(shard.ids):
            borders = np.flatnonzero(block == eot)
            documents.add(borders, len(block))
            pieces.add(block, borders)
            top = int(block.max())
            highest = max(highest, top)
            counted = block[::stride]
            if top >= vocab:
                beyond += int((block >= vocab).sum())
                counted = counted[counted < vocab]
            counts += np.bincount(counted, minlength=vocab)
        pieces.cut()
    documents.add(np.zeros(1, np.int64), 0)
    order = np.argsort(-counts, kind="stable")[:frequent]
    looked, repeated = pieces.repeated()
    return Census(
        tokens=tokens,
        highest=highest,
        beyond=beyond,
        documents=documents.count,
        median=documents.median,
        longest=documents.longest,
        frequent=tuple((int(i), float(counts[i] / counts.sum())) for i in order if counts[i]),
        stride=stride,
        repeated=repeated,
        looked=looked,
        share=pieces.share,
    )


class _Documents:
    """Lengths of documents, of which one may go on from one block of ids to the next."""

    def __init__(self) -> None:
        self.begun = self.longest = 0
        self.lengths = np.zeros(LENGTHS + 1, np.int64)

    def add(self, borders: np.ndarray, count: int) -> None:
        """Takes in a block of `count` ids with end-of-text at these positions."""
        if not len(borders):
            self.begun += count
            return
        lengths = np.diff(borders, prepend=-1) - 1
        lengths[0] += self.begun
        self.begun = count - int(borders[-1]) - 1
        self.longest = max(self.longest, int(lengths.max()))
        self.lengths += np.bincount(np.minimum(lengths, LENGTHS), minlength=len(self.lengths))
        self.lengths[0] = 0

    @property
    def count(self) -> int:
        return int(self.lengths.sum())

    @property
    def median(self) -> int:
        return int(np.searchsorted(self.lengths.cumsum(), (self.count + 1) // 2)) if self.count else 0


class _Pieces:
    """Hashes and sizes of the pieces that documents are cut into. When there are too many, only those are kept, and
    from then on looked at, whose hash is divisible by a higher `share`: of a piece that occurs twice, both are or none.
    """

    def __init__(self) -> None:
        self.hashes, self.sizes, self.share = array("Q"), array("H"), 1
        self.rest: Ids = np.empty(0, np.uint16)  # the last document's ids that make no whole piece yet

    def add(self, block: Ids, borders: np.ndarray) -> None:
        """Takes in a block of ids with end-of-text at these positions."""
        before = len(self.rest)
        ids = np.concatenate([self.rest, block]) if before else block
        start = 0
        for border in borders.tolist():
            self._hash(ids[start : before + border])
            start = before + border + 1
        whole = (len(ids) - start) // PIECE * PIECE
        self._hash(ids[start : start + whole])
        self.rest = ids[start + whole :].copy()

    def cut(self) -> None:
        """Ends the document that is under work."""
        self._hash(self.rest)
        self.rest = self.rest[:0]

    def repeated(self) -> tuple[int, int]:
        """The ids that were looked at, and those of them in pieces that occur more than once."""
        _, which, times = np.unique(np.asarray(self.hashes), return_inverse=True, return_counts=True)
        sizes = np.asarray(self.sizes, np.int64)
        return int(sizes.sum()), int(sizes[times[which] > 1].sum())

    def _hash(self, ids: Ids) -> None:
        data, width = ids.data.cast("B"), ids.itemsize
        for start in range(0, len(data), PIECE * width):
            piece = data[start : start + PIECE * width]
            number = int.from_bytes(hashlib.sha256(piece).digest()[:8], "little")
            if number % self.share == 0:
                self.hashes.append(number)
                self.sizes.append(len(piece) // width)
        while len(self.hashes) > HASHES:
            self.share *= 2
            hashes, sizes = np.asarray(self.hashes), np.asarray(self.sizes)
            kept = hashes % np.uint64(self.share) == 0
            self.hashes, self.sizes = array("Q", hashes[kept].tobytes()), array("H", sizes[kept].tobytes())
