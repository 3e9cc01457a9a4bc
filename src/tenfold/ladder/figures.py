"""The figures of a ladder in words: how each is written, and which rungs have any. Nothing of ladder.json is trusted to
be there: a ladder may be half climbed."""

import math
from collections.abc import Callable
from typing import Any

Rung = dict[str, Any]
Ladder = dict[str, Any]

NONE = "-"
WORDS = {"ok": "taken", "rejected": "rejected", "failed": "failed", "skipped": "skipped"}  # of each status
REACH = 1.2  # how far bars may reach beyond the longest of the rungs that were taken
DRIFT = 0.03  # by how much a speed-up may differ from the ratio of medians before it needs a word


def number(value: Any) -> float | None:
    """The value if it is a finite number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def line(text: Any) -> str:
    """Text as one line, without the control characters by which an error message could command a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(str(text).split()))


def digits(value: float) -> str:
    """Three significant digits, and no exponent."""
    places = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, places)}f}"


def scaled(value: float) -> tuple[float, str]:
    """The factor and the unit in which so many seconds are written."""
    return (1.0, "s") if value >= 1 else (1e3, "ms")


def written(form: Callable[[float], str]) -> Callable[[Any], str]:
    """A form for numbers that writes a dash for whatever is none."""
    return lambda value: NONE if (finite := number(value)) is None else form(finite)


seconds = written(lambda s: f"{digits(s * scaled(s)[0])} {scaled(s)[1]}")
rate = written(lambda r: f"{r:,.0f}" if r >= 100 else digits(r))
whole = written(lambda n: f"{n:,.0f}")
times = written(lambda x: f"{x:.2f}")
share = written(lambda x: f"{x:.1%}")
memory = written(lambda b: f"{digits(b / 2**30)} GiB" if b >= 2**30 else f"{digits(b / 2**20)} MiB")
relative = written(lambda x: f"{x:.0e}".replace("e-0", "e-") if x else "0")
flops = written(lambda f: f"{digits(f / 1e12)} TFLOP/s" if f >= 1e12 else f"{digits(f / 1e9)} GFLOP/s")


def tick(value: float) -> str:
    """So many seconds, a round number."""
    return f"{value * scaled(value)[0]:,.10g} {scaled(value)[1]}"


def spread(rung: Rung, between: str = "-") -> str:
    """The fastest and the slowest step, in the unit of the median."""
    ends = [number(end) for end in rung.get("spread") or []]
    middle = number(rung.get("seconds_per_step"))
    if middle is None or len(ends) != 2 or None in ends:
        return ""
    return between.join(digits(end * scaled(middle)[0]) for end in ends if end is not None)


def step_time(rung: Rung) -> str:
    """Median and spread."""
    return seconds(rung.get("seconds_per_step")) + (f" ({ends})" if (ends := spread(rung)) else "")


def first_step(rung: Rung) -> str:
    """The first step's time, and whether the compiler found its cache warm."""
    return f"{seconds(rung.get('first_step_seconds'))} {rung.get('cache') or ''}".strip()


def status(rung: Rung) -> str:
    """The status, if it is one of the known ones; any other has no figures worth showing."""
    return rung["status"] if rung.get("status") in WORDS else "skipped"


def is_measured(rung: Rung) -> bool:
    """Whether a rung has a step time: taken, rejected, or failed after it was measured."""
    return status(rung) != "skipped" and (number(rung.get("seconds_per_step")) or 0) > 0


def measured(ladder: Ladder) -> list[Rung]:
    """The rungs that have a step time."""
    return [rung for rung in ladder.get("rungs") or [] if is_measured(rung)]


def taken(ladder: Ladder) -> list[Rung]:
    """The rungs that were measured and kept; the first is the naive one, the last has the best configuration."""
    return [rung for rung in measured(ladder) if status(rung) == "ok"]


def kind(ladder: Ladder, rung: Rung) -> str:
    """How a rung is drawn: as its status says, or as the first or the best of those that were taken."""
    kept = taken(ladder)
    if kept and rung is kept[0]:
        return "first"
    return "best" if kept and rung is kept[-1] else status(rung)


def of_peak(ladder: Ladder) -> tuple[str, str]:
    """Which share of a peak is shown and its name: of the card's, or of the matrix rate where that is unknown."""
    known = any(number(rung.get("mfu")) is not None for rung in measured(ladder))
    return ("mfu", "MFU") if known else ("of_matrix_rate", "matrix")


def longest(ladder: Ladder) -> float:
    """Seconds that the chart reaches to: a little beyond the longest of the rungs that were taken. A rejected one that
    is much longer would make all others short, so its bar is cut."""
    rungs = measured(ladder)
    top = max(rung["seconds_per_step"] for rung in taken(ladder) or rungs)
    ends = [number(end) or 0 for rung in rungs for end in (rung["seconds_per_step"], *(rung.get("spread") or []))]
    return min(max(ends), REACH * top)


def drifted(ladder: Ladder) -> bool:
    """Whether a speed-up differs noticeably from the ratio of medians."""
    rungs = measured(ladder)
    return any(
        abs(speedup * rung["seconds_per_step"] / rungs[0]["seconds_per_step"] - 1) > DRIFT
        for rung in rungs
        if (speedup := number(rung.get("speedup")))
    )


def step_lines(ladder: Ladder) -> list[tuple[Rung, list[float]]]:
    """The measured rungs with the times of all their steps, slowest first by the last one."""
    lines = []
    for rung in measured(ladder):
        steps = [s for step in rung.get("step_seconds") or [] if (s := number(step)) and s > 0]
        if steps:
            lines.append((rung, steps))
    return sorted(lines, key=lambda line: -line[1][-1])


def extent(lines: list[tuple[Rung, list[float]]]) -> tuple[float, float]:
    """The ends of a logarithmic axis for all steps, with at least two marks between them."""
    low, high = min(min(steps) for _, steps in lines) * 0.9, max(max(steps) for _, steps in lines) * 1.1
    while len(ticks(low, high)) < 2:
        low, high = low * 0.9, high * 1.1
    return low, high


def apart(wanted: list[float], gap: float, end: float) -> list[float]:
    """Positions near those wanted, in order, at least `gap` apart and none beyond `end`, as far as there is room."""
    placed: list[float] = []
    for position in wanted:
        placed.append(max(position, placed[-1] + gap) if placed else position)
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = min(placed[i], end - gap * (len(placed) - 1 - i))
    return placed


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two, for a logarithmic axis: 1, 2, 5, 10, or powers of ten alone where those are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1,)):
        found = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(found) <= 8:
            break
    return found


def columns(ladder: Ladder) -> dict[str, Callable[[Rung], str]]:
    """The columns of a ladder's table after rung and status: heading, and what stands there."""
    key, name = of_peak(ladder)
    return {
        "a step": step_time,
        "tokens/s": lambda rung: rate(rung.get("tokens_per_second")),
        "×prev": lambda rung: times(rung.get("speedup_before")),
        "×first": lambda rung: times(rung.get("speedup")),
        name: lambda rung: share(rung.get(key)),
        "memory": lambda rung: memory(rung.get("peak_memory_bytes")),
        "first step": first_step,
        "parity": lambda rung: relative(rung.get("parity")),
    }
