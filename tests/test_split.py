"""How rows are laid over micro-steps and processes: exact for any number of both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold.data.split import split


@given(rows=st.integers(1, 600), world=st.integers(1, 16), most=st.integers(1, 64))
def test_every_row_has_one_slot_and_every_process_the_same_shape(rows: int, world: int, most: int) -> None:
    layout = split(rows, 1024, world, most)
    slots = [i for k in range(layout.accum) for rank in range(world) for i in layout.slot(k, rank)]
    assert sorted(slots) == list(range(layout.slots))
    assert 1 <= layout.micro <= most
    assert layout.slots >= rows > layout.slots - layout.micro * world
    assert layout.targets == rows * 1024


@given(rows=st.integers(1, 600), world=st.integers(1, 16), most=st.integers(1, 64))
def test_fillers_cost_less_than_the_micro_steps_they_save(rows: int, world: int, most: int) -> None:
    """No shape with fewer slots exists, unless it needs over sixteen more micro-steps for each slot that it saves."""
    layout = split(rows, 1024, world, most)
    for micro in range(1, most + 1):
        accum = -(-rows // (world * micro))
        if micro <= -(-rows // world) and accum * world * micro < layout.slots:
            assert accum - layout.accum >= 16 * (layout.slots - accum * world * micro)


@pytest.mark.parametrize(
    ("rows", "world", "most", "accum", "micro"),
    [
        (512, 3, 16, 19, 9),  # three cards that hold 16 rows: one filler row, not 16
        (512, 8, 64, 1, 64),
        (512, 1, 16, 32, 16),
        (480, 7, 12, 23, 3),  # three fillers, where 6 micro-steps of 12 would have 24
        (509, 1, 16, 34, 15),  # a prime number of rows: one filler, not 509 micro-steps of one row
        (2, 3, 4, 1, 1),
        (7, 2, 4, 1, 4),
    ],
)
def test_known_shapes(rows: int, world: int, most: int, accum: int, micro: int) -> None:
    layout = split(rows, 1024, world, most)
    assert (layout.accum, layout.micro) == (accum, micro)


def test_the_published_batch_is_exact_on_three_workers() -> None:
    """524,288 tokens on 3 workers with micro-batches of 16 rows of 1,024 tokens: never rounded."""
    layout = split(524_288 // 1024, 1024, 3, 16)
    assert layout.targets == 524_288
