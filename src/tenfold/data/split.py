"""How the rows of a step are laid over micro-steps and processes, exactly, for any number of both."""

from dataclasses import dataclass

STEP_COST = 1 / 16  # of one more micro-step, in rows; it keeps 509 rows from becoming 509 micro-steps of one


@dataclass(frozen=True)
class Split:
    """`accum` micro-steps on `world` processes, each of `micro` rows: a slot for every row and a few fillers."""

    rows: int
    length: int
    world: int
    accum: int
    micro: int

    @property
    def slots(self) -> int:
        """Row slots of a step; slots - rows of them hold fillers, whose targets are ignored."""
        return self.accum * self.world * self.micro

    @property
    def targets(self) -> int:
        """Real targets of a step over all processes: the divisor of the loss."""
        return self.rows * self.length

    def slot(self, k: int, rank: int) -> range:
        """Numbers of the row slots of micro-step k on a process; those from `rows` on are fillers."""
        first = (k * self.world + rank) * self.micro
        return range(first, first + self.micro)


def split(rows: int, length: int, world: int, most: int) -> Split:
    """Lay `rows` rows over `world` processes that hold at most `most` rows at a time.

    The shape with the fewest row slots, then the fewest micro-steps: 512 rows on 3 processes that hold 16 are 19
    micro-steps of 9 with one filler, not 11 of 16 with 16. A micro-step counts as a sixteenth of a row beside that.
    """
    if min(rows, length, world, most) < 1:
        raise ValueError(f"rows {rows}, length {length}, world {world} and most {most} must be at least 1")
    shapes = ((-(-rows // (world * micro)), micro) for micro in range(1, min(most, -(-rows // world)) + 1))
    accum, micro = min(shapes, key=lambda shape: (shape[0] * (shape[1] * world + STEP_COST), shape[0]))
    return Split(rows, length, world, accum, micro)
