"""How a run stands against its curve: at one validation, and all in all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenfold.recipe import Recipe, lr_at
from tenfold.reference.curves import OUTSIDE, Curve, Place, hellaswag_due, place
from tenfold.rundir import BACK
from tenfold.track.causes import CAUSES, ORDER, Cause
from tenfold.track.logs import Log
from tenfold.training.signs import SIGNS

BELOW = {"below": "a little below", "far below": "far below"}
STILL = 1 / 3  # of what a right run's loss falls in the second half of the steps so far; less is hardly learning


@dataclass(frozen=True)
class Row:
    """A validation that can be compared."""

    step: int
    loss: float
    place: Place


@dataclass(frozen=True)
class Verdict:
    """What a run came to: every validation that could be compared, what is said of them, what was seen, as in ORDER,
    and its likely causes. `off` is a run that is outside tolerance at its end."""

    rows: tuple[Row, ...]
    lines: tuple[str, ...]
    off: bool
    seen: str
    causes: tuple[Cause, ...]


def phrase(found: Place) -> str:
    """A place in a few words, for a line of a log."""
    words = f"{found.where} the band {found.low:.2f} to {found.high:.2f} of a right run"
    return words if found.where == "inside" else f"{words}, {stands(found)}"


def limits(found: Place) -> str:
    """The band in figures."""
    return f"{found.low:.4f} to {found.high:.4f}"


def stands(found: Place) -> str:
    """Where a right run has the loss of a place, in words."""
    if found.step is None:
        return "lower than a right run ever comes"
    return f"where a right run stands at step {found.step:,}" if found.step else "where a right run stands at its start"


def compared(curve: Curve, step: int, tokens: int, loss: float, widened: bool = False) -> dict[str, Any]:
    """What a validation's record gets for metrics.jsonl: "expected", "band" and "place", and a "message" if it is
    outside tolerance; nothing where no loss is known."""
    found = place(curve, tokens, loss, widened)
    if found is None:
        return {}
    told = {"expected": round(found.expected, 4), "band": [round(found.low, 4), round(found.high, 4)]}
    warning = f"warning: validation loss {loss:.4f} at step {step:,} is {phrase(found)}"
    return {**told, "place": found.where, **({"message": warning} if found.outside else {})}


def judge(curve: Curve, log: Log, tokens_per_step: int, widened: bool = False) -> Verdict | None:
    """The verdict on a log; None if it has no validation that can be compared."""
    places = {s: (loss, place(curve, s * tokens_per_step, loss, widened)) for s, loss in log.losses.items()}
    rows = tuple(Row(s, loss, at) for s, (loss, at) in places.items() if at is not None and math.isfinite(loss))
    broken = next((step for step, loss in log.losses.items() if not math.isfinite(loss)), None)
    if not rows and broken is None:
        return None
    told = [] if broken is None else [f"diverged: the validation loss of step {broken:,} is no finite number"]
    told += [verdict_line(row) for row in rows[-1:]]
    astray = [row for row in rows if row.place.outside]
    if astray and len(rows) > 1:
        told.append(
            f"outside tolerance at {len(astray)} of {len(rows)} validations, first at step {astray[0].step:,}: "
            f"{astray[0].loss:.4f}, expected {limits(astray[0].place)}"
        )
    if low := hellaswag_line(curve, log, tokens_per_step):
        told.append(low)
    where = rows[-1].place.where if rows else "inside"
    off = broken is not None or where in OUTSIDE or bool(low)
    seen = what_is_seen(rows, broken is not None) if off or where != "inside" else ""
    return Verdict(rows, tuple(told), off, seen, causes(curve, seen))


def verdict_line(row: Row) -> str:
    """The verdict by one validation."""
    found, loss = row.place, f"validation loss {row.loss:.4f} at step {row.step:,}"
    if found.where == "inside":
        return f"inside the band: {loss}, expected {limits(found)}"
    tolerance = ": outside tolerance" if found.outside else ""
    return f"{found.where}: {stands(found)}; {loss}, expected {limits(found)}{tolerance}"


def hellaswag_line(curve: Curve, log: Log, tokens_per_step: int) -> str:
    """What is wrong with the last HellaSwag score, or nothing."""
    step, score = next(reversed(log.hellaswag.items()), (0, math.nan))
    due = hellaswag_due(curve, step * tokens_per_step)
    if due is None or score >= due - 2 * curve.standard_error:
        return ""
    return (
        f"HellaSwag {score:.4f} at step {step:,} is more than two standard errors ({curve.standard_error}) below the "
        f"{due} that a right run has by then; chance is 0.25"
    )


def what_is_seen(rows: tuple[Row, ...], broken: bool = False) -> str:
    """How a run that is off looks: a key of ORDER."""
    if broken:
        return "no longer a number"
    last, trained = rows[-1], [row for row in rows if row.step]
    if last.step and last.place.where in BELOW:
        return BELOW[last.place.where]
    if not rows[0].step and rows[0].place.where != "inside":
        return "wrong from the start"
    if last.place.where == "inside":
        return "right loss, low HellaSwag"
    half = next((row for row in reversed(trained) if 2 * row.step <= last.step), None)
    if half and half.loss - last.loss < STILL * (half.place.expected - last.place.expected):
        return "hardly learning any more"
    if len(trained) == 1:
        return "above where it is known"
    return "right at first, then too slow" if trained[0].place.where == "inside" else "too slow from early on"


def causes(curve: Curve, seen: str) -> tuple[Cause, ...]:
    """The likely causes of what is seen, the likeliest first, with the curve's own figures in their tests."""
    recipe = Recipe(**curve.recipe)
    steps = (0, recipe.warmup, recipe.steps // 2, recipe.steps - 1)
    figures = {
        "steps": ", ".join(f"{step:,}" for step in steps),
        "rates": ", ".join(f"{lr_at(recipe, step):.2e}" for step in steps),
        "tokens_per_step": curve.tokens_per_step,
    }
    found = (CAUSES[name] for name in ORDER.get(seen, ()))
    return tuple(Cause(cause.name, cause.effect, cause.test.format(**figures)) for cause in found)


def thinned(rows: tuple[Row, ...], most: int = 12) -> list[Row]:
    """At most so many rows for a table: the first and the last, the first that is outside, and some between."""
    kept = {round(i * (len(rows) - 1) / (most - 2)) for i in range(most - 1)}
    kept |= set([i for i, row in enumerate(rows) if row.place.outside][:1])
    return [row for i, row in enumerate(rows) if i in kept]


def by_signs(records: Sequence[dict[str, Any]], looked: bool = True) -> tuple[list[str], bool]:
    """What the vital signs came to in a run's records, as `rundir.read_metrics` gives them, and whether that is wrong:
    one that means a wrong training spoke, or it was stopped for one or for a loss that is not finite. `looked`: whether
    the run looks at them."""
    first: dict[str, int] = {}
    for record in records:
        if record.get("event") == "sign":
            first.setdefault(str(record.get("sign")), record["step"])
    told = ", ".join(f"{name} (step {step:,})" for name, step in first.items())
    ending: dict[str, Any] = next(
        (r for r in reversed(records) if r.get("event") in ("done", "stopped", *BACK, "start")), {}
    )
    stopped = ending.get("message") if ending.get("event") == "stopped" else None
    silent = "no vital sign spoke" if looked else "vital signs were not looked at (--signs off)"
    lines = [f"vital signs that spoke: {told}"] if told else [] if stopped else [silent]
    lines += [f"stopped: {stopped}"] if stopped else []  # a sign that stops says there what it found
    return lines, bool(stopped) or any(SIGNS[name].stops for name in first if name in SIGNS)
