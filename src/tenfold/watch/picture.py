"""A run's losses and learning rate as a picture for a README, in the page's colours on white."""

import io
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from tenfold.errors import CheckpointError, ConfigError
from tenfold.watch.report import MARK, PAGE
from tenfold.watch.runs import Record

SIZE, PAD, DPI = (8.0, 4.6), 0.12, 200  # inches, inches, pixels an inch
WINDOW = 0.05  # share of a step on either side over which the loss is smoothed, as the page does
EARLY = 0.1  # share of the steps whose high losses are left out

Numbers = npt.NDArray[np.float64]


def png(detail: Record, series: Record) -> bytes:
    """The picture, of a run in full and its figures as the server gives them; ConfigError without matplotlib,
    CheckpointError for a run without a loss."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise ConfigError(
            "--png needs matplotlib, which is not installed: pip install 'tenfold[plots]'; the page shows the same "
            "without it"
        ) from None
    figures = {key: columns(points) for key, points in series["series"].items()}
    losses = [figures[key] for key in ("loss", "val_loss") if key in figures]
    if not losses:
        raise CheckpointError(f"{detail['name']} has no loss to draw; leave out --png")
    paint = colors()
    figure = Figure(figsize=SIZE, dpi=DPI, layout=ConstrainedLayoutEngine(h_pad=PAD, w_pad=PAD))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    draw_losses(above, figures, detail["curve"], paint)
    last = max(steps[-1] for steps, _ in losses)
    above.set_xlim(0, 1.01 * max(1, last))
    above.set_ylim(*close(losses, last * EARLY))
    if "lr" in figures:
        below.plot(*figures["lr"], color=paint["c0"], linewidth=1.5)
    below.set_ylim(bottom=0)
    below.yaxis.set_major_formatter("{x:g}")
    below.xaxis.set_major_formatter("{x:,.0f}")
    below.set_xlabel("step", color=paint["soft"], fontsize=9)
    for axes, title in ((above, "Loss, nats a token"), (below, "Learning rate")):
        axes.set_title(title, loc="left", color=paint["ink"], fontsize=10, fontweight="bold")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(paint["line"])
        axes.tick_params(length=0, labelsize=9, colors=paint["soft"])
        axes.grid(axis="y", color=paint["line"], linewidth=0.8)
        axes.set_axisbelow(True)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": MARK})
    return picture.getvalue()


def colors() -> dict[str, str]:
    """The page's colours on light paper, by their names in style.css."""
    light = (PAGE / "style.css").read_text(encoding="utf-8").partition("@media")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", light))


def columns(points: list[list[Any]]) -> tuple[Numbers, Numbers]:
    """The steps of [step, time, value], and the values, NaN for None."""
    return np.array([point[0] for point in points], np.float64), np.array([point[2] for point in points], np.float64)


def draw_losses(axes: Any, figures: dict[str, tuple[Numbers, Numbers]], curve: Any, paint: dict[str, str]) -> None:
    """The training loss and its mean, the validation loss, and the band of right runs if the run follows a curve."""
    if curve:
        steps, expected, low, high = np.array(curve["points"]).T
        axes.fill_between(steps, low, high, color=paint["band"], linewidth=0, label="right runs")
        axes.plot(steps, expected, color=paint["c2"], linewidth=0.8, linestyle=(0, (4, 4)))
    if "loss" in figures:
        steps, losses = figures["loss"]
        mean = smoothed(steps, losses)
        axes.plot(steps, losses, color=paint["c0"], linewidth=0.6, alpha=0.35)
        axes.plot(steps, mean, color=paint["c0"], linewidth=1.5, label=named("training, smoothed", mean))
    if "val_loss" in figures:
        steps, losses = figures["val_loss"]
        style = {"color": paint["c1"], "linewidth": 1.5, "marker": "o", "markersize": 3 if len(steps) < 60 else 0}
        axes.plot(steps, losses, **style, label=named("validation", losses))
    axes.legend(loc="upper right", frameon=False, fontsize=9, labelcolor=paint["ink"])


def named(name: str, values: Numbers) -> str:
    """A line's name with the value at its end."""
    return f"{name} {values[-1]:.4f}" if np.isfinite(values[-1]) else f"{name}, in the end not finite"


def smoothed(steps: Numbers, values: Numbers) -> Numbers:
    """The mean of what is finite near each value, farther the later it is and its neighbours at least; NaN for a value
    that is not."""
    reach, index = np.maximum(WINDOW * steps, 0.5), np.arange(len(steps))
    low = np.clip(np.minimum(np.searchsorted(steps, steps - reach), index - 1), 0, None)
    high = np.clip(np.maximum(np.searchsorted(steps, steps + reach, "right"), index + 2), None, len(steps))
    finite = np.isfinite(values)
    sums = np.concatenate(([0.0], np.cumsum(np.where(finite, values, 0))))
    counts = np.concatenate(([0], np.cumsum(finite)))
    return np.where(finite, (sums[high] - sums[low]) / np.maximum(1, counts[high] - counts[low]), np.nan)


def close(lines: list[tuple[Numbers, Numbers]], start: float) -> tuple[float, float]:
    """Ends of an axis for what lies after the first steps, or for all if little does."""
    late = [values[steps >= start] if (steps >= start).sum() > 2 else values for steps, values in lines]
    found = np.concatenate(late)
    found = found[np.isfinite(found)]
    if not len(found):
        return 0.0, 1.0
    margin = 0.04 * (found.max() - found.min()) or 0.5
    return float(found.min() - margin), float(found.max() + margin)
