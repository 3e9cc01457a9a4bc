"""Which tokens a step trains on: a pure function of seed, step and row, the same on any number of processes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.data.batches import Batches, permute, row_starts, windows
from tenfold.data.shards import Corpus, Tokens
from tenfold.data.split import split
from tenfold.errors import DataError
from tenfold.model.head import IGNORE

CPU = torch.device("cpu")


class Numbers:
    """Tokens whose ids are their own positions, so that a row says where it came from."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, count: int) -> np.ndarray:
        assert start >= 0
        assert start + count <= self.count
        return np.arange(start, start + count)


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**32), epoch=st.integers(0, 5))
def test_permute_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    assert sorted(permute(np.arange(size), size, seed, epoch)) == list(range(size))


def test_permute_reaches_sizes_beyond_32_bits() -> None:
    size = 2**40 + 7
    out = permute(np.arange(1000, dtype=np.int64) * 10**9, size, 1, 0)
    assert len(set(out.tolist())) == 1000
    assert out.min() >= 0
    assert out.max() < size


def test_same_seed_same_order_other_seed_other_order() -> None:
    """T32, and other epochs differ, too."""
    a, b, c = (permute(np.arange(10_000), 10_000, seed, 0) for seed in (1, 1, 2))
    assert (a == b).all()
    assert (a == c).mean() < 0.01
    assert (a == permute(np.arange(10_000), 10_000, 1, 1)).mean() < 0.01


def test_the_order_is_frozen() -> None:
    """T32: a run that was begun goes on elsewhere, and with a later version, only if the order stays."""
    assert permute(np.arange(8), 1000, 1337, 0).tolist() == [835, 344, 460, 167, 923, 762, 768, 6]
    assert row_starts(np.arange(1000, 1004), 1000, 32, 1337).tolist() == [4896, 1824, 3744, 20128]  # in the next epoch


@pytest.mark.parametrize("size", [4096, 10_000, 65_537])
def test_the_order_has_no_periodic_structure(size: int) -> None:
    """T32: neighbours differ as those of random permutations do: no common step, no correlation at any lag."""
    order = permute(np.arange(size), size, 7, 0).astype(np.float64)
    centred = (order - order.mean()) / order.std()
    spectrum = np.abs(np.fft.rfft(centred))[1:] ** 2 / size  # exponential with mean 1 for random order
    assert spectrum.max() < np.log(size) + 10
    steps = np.diff(order)
    _, counts = np.unique(steps, return_counts=True)
    assert counts.max() < 15


@settings(max_examples=40, deadline=None)
@given(
    world=st.integers(1, 8),
    rows=st.integers(1, 30),
    length=st.integers(1, 17),
    micro=st.integers(1, 9),
    tokens=st.integers(60, 600),
)
def test_each_row_once_an_epoch_and_ranks_are_disjoint(
    world: int, rows: int, length: int, micro: int, tokens: int
) -> None:
    layout = split(rows, length, world, micro)
    readers = [Batches(Numbers(tokens), layout, 3, rank, CPU) for rank in range(world)]  # type: ignore[arg-type]
    available = windows(Numbers(tokens), length)  # type: ignore[arg-type]
    order = row_starts(np.arange(2 * available + rows), available, length, 3)
    for epoch in range(2):  # every row once, whatever does not divide
        assert sorted(order[epoch * available :][:available]) == [i * length for i in range(available)]
    assert available < 9 or (order[:available] != order[available:][:available]).any()  # another order each epoch
    for position in {0, available // rows, 2 * available // rows}:  # at an epoch's start, over its end, in the next one
        step = [s for r in readers for k in range(layout.accum) for s in r.starts(r.numbers(position, k)).tolist()]
        assert sorted(step) == sorted(order[position * rows :][:rows])


def test_any_world_trains_the_same_rows_in_a_step() -> None:
    """T32: of one seed, on 1, 2, 3, 5 and 7 processes."""
    want = set(row_starts(5 * 12 + np.arange(12), windows(Numbers(1000), 8), 8, 1))  # type: ignore[arg-type]
    for world in (1, 2, 3, 5, 7):
        layout = split(12, 8, world, 4)
        readers = [Batches(Numbers(1000), layout, 1, rank, CPU) for rank in range(world)]  # type: ignore[arg-type]
        got = [s for r in readers for k in range(layout.accum) for s in r.starts(r.numbers(5, k)).tolist()]
        assert set(got) == want
        assert len(got) == 12


def test_targets_are_the_next_tokens_and_fillers_are_ignored() -> None:
    layout = split(7, 8, 2, 4)
    batches = Batches(Numbers(1000), layout, 1, 1, CPU)  # type: ignore[arg-type]
    x, y = batches.take(0, 0)
    assert x.shape == y.shape == (4, 8)
    assert (y[:3] == x[:3] + 1).all()
    assert (y[3] == IGNORE).all()


def test_take_reads_ahead_and_gives_what_was_asked_for(corpus: Corpus) -> None:
    layout = split(8, 16, 1, 2)
    batches = Batches(corpus.train, layout, 1, 0, CPU)
    for position, k in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (7, 2), (7, 3), (8, 0), (0, 0)]:
        x, y = batches.take(position, k)
        want = batches.read(position, k)
        assert torch.equal(x, want[0])
        assert torch.equal(y, want[1])


def test_a_corpus_shorter_than_a_row_is_refused() -> None:
    with pytest.raises(DataError, match=r"8 tokens, too few for one row of 8.*at most 7"):
        Batches(Numbers(8), split(1, 8, 1, 1), 1, 0, CPU)  # type: ignore[arg-type]


def test_windows_count_the_target_after_the_last_token() -> None:
    assert [windows(Tokens([]) if n == 0 else Numbers(n), 4) for n in (4, 5, 8, 9)] == [0, 1, 1, 2]  # type: ignore[arg-type]
