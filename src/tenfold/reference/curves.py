"""Known validation curves and the band around each: rows of curves.json, each with its sources.

A curve is the median of published runs of one recipe at the points that at least half of them share, between which it
is a monotone cubic in the logarithm of the tokens. Runs of kind "variant" are such a recipe with one thing changed,
those of kind "context" are of other recipes: no curve is made of them.
"""

import json
import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from statistics import median
from typing import Any

from tenfold.errors import ConfigError, did_you_mean

FAR = 0.3  # nats from the expected loss; a model of twice the size is never so far below
OUTSIDE = ("above", "far above", "far below")  # a little below is told, but may simply be better
Points = tuple[tuple[int, float], ...]  # (tokens, loss), by tokens


@dataclass(frozen=True)
class Curve:
    """What a right run's validation loss does, in nats a token."""

    name: str
    about: str
    sources: tuple[str, ...]
    dataset: str
    """Repository of the dataset on the Hub."""
    epochs: float
    """Passes over the training tokens up to which a run was seen to follow the curve."""
    model: dict[str, Any]
    recipe: dict[str, Any]
    validation: dict[str, Any]
    """What it was computed on: documents, subset of the dataset, and how many tokens, any of those listed."""
    points: Points
    start: tuple[float, float]
    """Lowest and highest loss before the first update."""
    band: tuple[tuple[int, float], ...]
    """From which step on the loss may be how far from the expected one."""
    end: tuple[float, float]
    """Lowest and highest loss at the end."""
    levels: tuple[tuple[int, float], ...]
    """HellaSwag (acc_norm) that is passed by a step."""
    standard_error: float
    """Of HellaSwag."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens a step of the curve's recipe."""
        return int(self.recipe["rows"] * self.recipe["length"])


@dataclass(frozen=True)
class Place:
    """Where a loss stands against a curve."""

    expected: float
    low: float
    high: float
    where: str
    """inside, above, far above, below or far below the band from low to high."""
    step: int | None
    """About where a right run has this loss: a step of the curve's recipe to two figures, 0 for one before the first
    validation, None if it never has it."""

    @property
    def outside(self) -> bool:
        """Whether this is outside tolerance."""
        return self.where in OUTSIDE


@cache
def table() -> dict[str, Any]:
    """curves.json."""
    loaded: dict[str, Any] = json.loads((resources.files(__package__) / "curves.json").read_text(encoding="utf-8"))
    return loaded


@cache
def curves() -> dict[str, Curve]:
    """Every curve by its name."""
    return {
        name: Curve(
            name=name,
            sources=tuple(table()["runs"][run]["source"] for run in row["runs"]),
            points=middle([points_of(run) for run in row["runs"]]),
            start=tuple(row["start"]),
            band=tuple((step, half) for step, half in row["band"]),
            end=tuple(row["end"]),
            levels=tuple((step, level) for step, level in row["hellaswag"]["levels"]),
            standard_error=row["hellaswag"]["standard_error"],
            **{key: row[key] for key in ("about", "dataset", "epochs", "model", "recipe", "validation")},
        )
        for name, row in table()["curves"].items()
    }


def curve(name: str) -> Curve:
    """The curve of this name; ConfigError if there is none."""
    if name not in curves():
        raise ConfigError(f"no curve {name!r}{did_you_mean(name, curves())}; possible are {', '.join(curves())}")
    return curves()[name]


def points_of(run: str) -> Points:
    """The published validation losses of a run of the table."""
    return tuple((tokens, loss) for tokens, loss in table()["runs"][run]["points"])


def middle(runs: list[Points]) -> Points:
    """The median of several runs at the points that at least half of them have."""
    losses: dict[int, list[float]] = {}
    for run in runs:
        for tokens, loss in run:
            losses.setdefault(tokens, []).append(loss)
    return tuple((tokens, median(known)) for tokens, known in sorted(losses.items()) if 2 * len(known) >= len(runs))


def expected(curve: Curve, tokens: int) -> float | None:
    """The loss of a right run after so many tokens; None between the start and the first validation after it, where
    nobody published one, and after the end."""
    (_, first), *points = curve.points
    if tokens == 0:
        return first
    if not points[0][0] <= tokens <= curve.tokens_per_step * curve.recipe["steps"]:
        return None
    return cubic(tuple(points), min(tokens, points[-1][0]))


def cubic(points: Points, tokens: float) -> float:
    """The monotone cubic in log tokens through points of a falling curve (Fritsch & Butland 1984: the slope at a point
    is the weighted harmonic mean of those beside it), tokens lying within them."""
    x, y = [math.log(tokens) for tokens, _ in points], [loss for _, loss in points]
    width = [right - left for left, right in pairwise(x)]
    rise = [(right - left) / w for (left, right), w in zip(pairwise(y), width, strict=True)]
    i = min(bisect_right(x, math.log(tokens)), len(x) - 1) - 1

    def slope(k: int) -> float:
        if k in (0, len(x) - 1):
            return rise[min(k, len(rise) - 1)]
        before, after = rise[k - 1 : k + 1]
        left, right = 2 * width[k] + width[k - 1], width[k] + 2 * width[k - 1]
        return (left + right) / (left / before + right / after) if before * after > 0 else 0.0

    t = (math.log(tokens) - x[i]) / width[i]
    bend = (1 - t) * slope(i) * width[i] - t * slope(i + 1) * width[i] + (1 - 2 * t) * (y[i] - y[i + 1])
    return y[i] + t * (y[i + 1] - y[i]) + t * (1 - t) * bend


def band(curve: Curve, tokens: int, widened: bool = False) -> tuple[float, float] | None:
    """Lowest and highest loss of a right run after so many tokens, twice as far apart if `widened`; None where no loss
    is expected."""
    loss = expected(curve, tokens)
    if loss is None:
        return None
    half = [h for step, h in curve.band if tokens >= step * curve.tokens_per_step][-1]
    at_end = tokens >= curve.points[-1][0]
    low, high = curve.start if tokens == 0 else curve.end if at_end else (loss - half, loss + half)
    more = (high - low) / 2 * widened
    return low - more, high + more


def place(curve: Curve, tokens: int, loss: float, widened: bool = False) -> Place | None:
    """Where a validation loss after so many tokens stands; None where nothing is known to compare it with."""
    limits, wanted = band(curve, tokens, widened), expected(curve, tokens)
    if limits is None or wanted is None:
        return None
    low, high = limits
    side = "inside" if low <= loss <= high else "above" if loss > high else "below"
    far = "far " if side != "inside" and abs(loss - wanted) >= FAR else ""
    return Place(wanted, low, high, far + side, step_of(curve, loss))


def step_of(curve: Curve, loss: float) -> int | None:
    """The step, to two figures, at which a right run has this loss; 0 for one before its first validation, None if it
    never has it."""
    points = curve.points[1:]
    if loss > points[0][1]:
        return 0
    if loss < points[-1][1]:
        return None
    low, high = points[0][0], points[-1][0]
    while high - low > 1:
        half = (low + high) // 2
        low, high = (half, high) if cubic(points, half) > loss else (low, half)
    return int(float(f"{high / curve.tokens_per_step:.2g}"))


def hellaswag_due(curve: Curve, tokens: int) -> float | None:
    """The HellaSwag (acc_norm) that a right run has passed after so many tokens; None before it passes any."""
    passed = [level for step, level in curve.levels if tokens >= step * curve.tokens_per_step]
    return passed[-1] if passed else None
