"""What a ladder leaves: a table for the terminal, a page, a picture, and ladder.json itself. Reads nothing but the
ladder's content, so whoever has a ladder.json can make the others from it."""

import io
import json
import math
import textwrap
from pathlib import Path
from typing import Any

from tenfold.errors import ConfigError
from tenfold.files import write_atomically
from tenfold.ladder import figures
from tenfold.ladder.figures import Ladder
from tenfold.ladder.page import html

__all__ = ["html", "png", "table", "write"]

WIDE = 100  # columns that the table keeps to, if its figures let it
INK, SOFT, LINE = "#1b1f24", "#59636e", "#d8dee4"
FACES = {  # how a bar is drawn, and in the colour of its edge the curve
    "first": {"facecolor": "#57606a", "edgecolor": "#57606a"},
    "best": {"facecolor": "#1f5fbf", "edgecolor": "#1f5fbf"},
    "ok": {"facecolor": "#9db8dc", "edgecolor": "#9db8dc"},
    "rejected": {"facecolor": "#f5f7f9", "edgecolor": "#8b949e", "linestyle": "--"},
    "failed": {"facecolor": "#ffffff", "edgecolor": "#b93a32", "linestyle": "--"},
}
FEWEST = 2  # bars that there is room for in any case
DPI, INCHES = 150, 10.0  # a picture is 1,500 pixels wide
ROW, CURVES, LABEL, MARGIN = 0.3, 4.0, 0.16, 1.5  # inches: a bar, the curves, a curve's name, what is around both


def table(ladder: Ladder) -> str:
    """A ladder as text of at most 120 columns: a row of figures a measured rung, the reason for any other."""
    columns, rungs = figures.columns(ladder), ladder.get("rungs") or []
    rows = [["rung", "status", *columns]]
    for rung in rungs:
        cells = [cell(rung) if figures.is_measured(rung) else "" for cell in columns.values()]
        rows.append([figures.line(rung.get("name")), figures.status(rung), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) <= WIDE else " "

    def laid(row: list[str]) -> str:
        aligned = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return gap.join(aligned).rstrip()

    def across(before: str, reason: Any) -> str:
        left = widths[0] + widths[1] + 2 * len(gap)
        told = figures.line(reason or "no reason given")
        return textwrap.fill(told, WIDE, initial_indent=before.ljust(left), subsequent_indent=" " * left)

    lines = [laid(rows[0])]
    for rung, row in zip(rungs, rows[1:], strict=True):
        if not figures.is_measured(rung):
            lines.append(across(laid(row), rung.get("reason")))
            continue
        lines.append(laid(row))
        if figures.status(rung) == "failed" or (figures.status(rung) == "ok" and rung.get("reason")):
            lines.append(across("", rung.get("reason")))
    return "\n".join(lines)


def png(ladder: Ladder, path: Path) -> None:
    """The bars of step time, and below them every step's time, as a picture; ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            f'{path.name} needs matplotlib, which is not installed: pip install "tenfold[plots]"; '
            "ladder.html shows the same without it"
        ) from None
    rungs = figures.measured(ladder)
    bars = ROW * max(FEWEST, len(rungs))
    height = bars + CURVES + MARGIN
    figure = Figure(figsize=(INCHES, height), dpi=DPI, layout="constrained")
    stairs, curves = figure.subplots(2, 1, height_ratios=(bars, CURVES))
    draw_bars(stairs, ladder)
    draw_curves(curves, ladder)
    for axes in (stairs, curves):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(LINE)
        axes.tick_params(length=0, labelsize=9, colors=SOFT)
    stairs.tick_params(axis="y", labelsize=9.5, colors=INK)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomically(path, picture.getvalue())


def draw_bars(axes: Any, ladder: Ladder) -> None:
    """One bar a measured rung, from the first at the top."""
    rungs = figures.measured(ladder)
    machine = ladder.get("machine") or {}
    about = (ladder.get("preset"), machine.get("described") or machine.get("name"), ladder.get("date"))
    axes.set_title(plain(", ".join(figures.line(word) for word in about if word)), loc="left", fontsize=11, color=INK)
    end = figures.longest(ladder) if rungs else 1.0
    for i, rung in enumerate(rungs):
        middle = rung["seconds_per_step"]
        axes.barh(i, min(middle, end), height=0.66, **FACES[figures.kind(ladder, rung)])
        if middle > end:  # cut: its value tells how long it is
            axes.plot(0.96 * end, i, marker=(2, 0, -20), markersize=22, color="white", markeredgewidth=3)
        ends = [min(e, end) for e in (rung["spread"] if figures.spread(rung) else (middle, middle))]
        axes.plot(ends, (i, i), color=INK, alpha=0.55, linewidth=1.2)
        told = f"×{figures.times(rung.get('speedup'))}" if rung.get("status") == "ok" else str(rung.get("status"))
        axes.annotate(
            f"{figures.seconds(middle)}  {plain(told)}",
            (max(min(middle, end), ends[1]), i),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # the grid does not cross it
        )
    axes.set_yticks(range(len(rungs)), [plain(figures.line(rung.get("title") or rung.get("name"))) for rung in rungs])
    axes.set_ylim(max(FEWEST, len(rungs)) - 0.5, -0.6)
    axes.set_xlim(0, 1.16 * end)
    axes.set_xlabel("seconds a step", fontsize=9, color=SOFT)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)


def plain(text: str) -> str:
    """Text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


def draw_curves(axes: Any, ladder: Ladder) -> None:
    """The time of every step, a line a measured rung, named at its end."""
    axes.set_yscale("log")
    axes.set_xlabel("step; the first includes compilation", fontsize=9, color=SOFT)
    axes.set_ylabel("seconds, logarithmic", fontsize=9, color=SOFT)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    lines = figures.step_lines(ladder)
    if not lines:
        return
    low, high = figures.extent(lines)
    longest = max(len(steps) for _, steps in lines)
    down = [math.log(high / steps[-1]) / math.log(high / low) for _, steps in lines]
    for (rung, steps), place in zip(lines, figures.apart(down, LABEL / CURVES, 1.0), strict=True):
        kind = figures.kind(ladder, rung)
        colour, style = FACES[kind]["edgecolor"], FACES[kind].get("linestyle", "-")
        marked = kind in ("first", "best")
        axes.plot(
            range(1, len(steps) + 1),
            steps,
            style,
            color=colour,
            linewidth=2.4 if marked else 1.3,
            marker="o",
            markersize=3,
            clip_on=False,
        )
        axes.annotate(
            plain(figures.line(rung.get("name"))),
            (len(steps), steps[-1]),
            xytext=(1.06, 1 - place),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            color=INK if marked else SOFT,
            arrowprops={"arrowstyle": "-", "color": "#b0b8c0", "relpos": (0, 0.5), "shrinkA": 2, "shrinkB": 4},
        )
    axes.set_ylim(low, high)
    axes.set_xlim(0.9, max(longest, 2))
    axes.set_xticks(range(1, longest + 1, max(1, math.ceil(longest / 10))))
    axes.set_yticks(marks := figures.ticks(low, high), [figures.tick(mark) for mark in marks])
    axes.minorticks_off()


def strict(value: Any) -> Any:
    """A value that every reader of JSON takes: what is not finite becomes null."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(ladder: Ladder, folder: Path) -> list[str]:
    """Write ladder.json, ladder.html and ladder.png into a folder. Lines for the user: the path of each, or why there
    is no picture."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "ladder.json", json.dumps(strict(ladder), indent=2) + "\n")
    write_atomically(folder / "ladder.html", html(ladder))
    lines = [str(folder / "ladder.json"), str(folder / "ladder.html")]
    try:
        png(ladder, folder / "ladder.png")
    except ConfigError as error:
        return [*lines, str(error)]
    return [*lines, str(folder / "ladder.png")]
