"""`tenfold check`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from tenfold.cli.common import parse
from tenfold.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from tenfold.reference.curves import Curve
    from tenfold.track.logs import Log
    from tenfold.track.verdict import Verdict


@dataclass(frozen=True)
class CheckOptions:
    """Tell whether a run is right: by its vital signs, and by its validation losses against the published curve that it
    should follow. Ends with exit code 0 if it is inside the band or a little below, 1 if it is off or a sign says that
    it is wrong, 2 if a log cannot be compared."""

    run: tyro.conf.Positional[str]
    """Run by its name in runs/ or its path, or the log of another program: build-nanogpt's log.txt, what nanoGPT
    prints, or llm.c's main.log."""
    curve: str = ""
    """fineweb-edu-124m or fineweb-124m; a run of tenfold's finds its own, a log does not say."""
    tokens_per_step: int = 0
    """Tokens a step of a log; 0 is the curve's, 524,288."""


def check(arguments: Sequence[str]) -> int:
    """tell whether a run is right: its vital signs, and the published curve of its recipe"""
    options: CheckOptions = parse(CheckOptions, arguments, "check")
    from tenfold import rundir
    from tenfold.track.verdict import judge

    path = Path(options.run)
    try:
        folder = None if path.is_file() else rundir.find(options.run)
    except CheckpointError as error:
        raise CheckpointError(f"{error}, or the log of another program") from None
    signs, wrong = _signs(folder) if folder else ([], False)
    try:
        what, log, curve, tokens, notes, widened = _of_run(folder, options) if folder else _of_log(path, options)
        verdict = judge(curve, log, tokens, widened)
        if verdict is None:
            seen = ", ".join(f"{step:,}" for step in list(log.losses)[:6]) or "none"
            raise NotCompared(
                f"{what} has no validation that {curve.name} knows a loss for (steps {seen}); it knows step 0 and "
                f"steps {curve.points[1][0] // tokens:,} to {curve.points[-1][0] // tokens:,}"
            )
    except NotCompared as why:
        if not folder:
            raise
        print("\n".join((f"{why}", *signs)))  # a run was looked at in another way besides
        return int(wrong)
    print("\n".join([*_shown(what, curve, notes, verdict), *signs]))
    return int(wrong or verdict.off)


class NotCompared(ConfigError):
    """No curve was found for a run, and none was named, or there is no validation to compare with one."""


def _signs(folder: Path) -> tuple[list[str], bool]:
    """What is said of the vital signs of a run folder, and whether it is wrong by them."""
    from tenfold import rundir
    from tenfold.track.verdict import by_signs

    return by_signs(rundir.read_metrics(folder), looked=rundir.read_run(folder).get("signs") != "off")


def _of_run(folder: Path, options: CheckOptions) -> "tuple[str, Log, Curve, int, list[str], bool]":
    """What is compared, its log, the curve, tokens a step, what is to be said, and whether the band is doubled, of a
    run folder; NotCompared if it follows none and none was named."""
    from tenfold import rundir
    from tenfold.reference.curves import curve
    from tenfold.run import from_dict
    from tenfold.track.logs import from_records
    from tenfold.track.match import compare, matching

    if options.tokens_per_step:
        raise ConfigError(f"--tokens-per-step is for logs of other programs; {folder} says its own: leave it out")
    saved = rundir.read_run(folder)
    run, dataset = from_dict(saved, f"{folder}/run.json"), saved.get("dataset", {})
    if bad := [
        n for n in ("train_tokens", "val_tokens") if type(dataset.get(n, 1)) is not int or dataset.get(n, 1) < 1
    ]:
        raise CheckpointError(
            f"{folder}/run.json has {bad[0]} {dataset[bad[0]]!r}, which it cannot be; restore the file"
        )
    match = compare(run, dataset, curve(options.curve)) if options.curve else matching(run, dataset)
    if match is None:
        raise NotCompared(
            f"{folder} follows no published curve that is known; --curve NAME compares it with one anyway"
        )
    if match.differences and not options.curve:
        raise NotCompared(
            f"{folder} only resembles {match.curve.name}: {match.told()}; name it by --curve to compare anyway"
        )
    notes = [f"not the same recipe: {match.told()}"] if match.differences else []
    notes += [f"the band is doubled: {match.validation}"] if match.validation else []
    log = from_records(rundir.read_metrics(folder))
    return str(folder), log, match.curve, run.recipe.targets, notes, bool(match.validation)


def _of_log(path: Path, options: CheckOptions) -> "tuple[str, Log, Curve, int, list[str], bool]":
    """The same of another program's log; ConfigError if no curve was named."""
    from tenfold.reference.curves import curve, curves
    from tenfold.track.logs import read_log

    log = read_log(path)
    what = f"{path}, a log of {log.program},"
    if not options.curve:
        possible = "; ".join(f"--curve {name} ({known.about})" for name, known in curves().items())
        raise ConfigError(f"{what} does not say its model, recipe and data; give what it should follow: {possible}")
    if options.tokens_per_step < 0:
        raise ConfigError(f"--tokens-per-step {options.tokens_per_step}: give a number above 0, or 0 for the curve's")
    found = curve(options.curve)
    tokens = options.tokens_per_step or found.tokens_per_step
    taken = "the log does not say its model, recipe and data: they are taken to be the curve's"
    notes = [f"{taken}, {tokens:,} tokens a step"]
    if log.back:
        notes.append(
            f"the log goes back at step {log.back[0]:,}"
            + (f" and {len(log.back) - 1} times more" if log.back[1:] else "")
            + ": of steps that come again, and of those after them, only what it says last is taken"
        )
    return what.rstrip(","), log, found, tokens, notes, False


def _shown(what: str, curve: "Curve", notes: list[str], verdict: "Verdict") -> list[str]:
    """The verdict as lines: what was compared, a table of validations, what is said of them, and likely causes."""
    from rich.table import Table

    from tenfold.listing import render
    from tenfold.track.verdict import thinned

    runs = f"the median of {len(curve.sources)} published runs" if len(curve.sources) > 1 else "a published run"
    table = Table("step", "loss", "expected", "band", "", box=None, pad_edge=False)
    for row in thinned(verdict.rows):
        at = row.place
        table.add_row(
            f"{row.step:,}", f"{row.loss:.4f}", f"{at.expected:.4f}", f"{at.low:.3f} to {at.high:.3f}", at.where
        )
    causes = Table.grid(padding=(0, 1))
    for number, cause in enumerate(verdict.causes, 1):
        causes.add_row(f"{number}.", cause.name)
        causes.add_row("", f"what it does: {cause.effect}")
        causes.add_row("", f"how to test:  {cause.test}")
    listed = [f"\n{verdict.seen}; likely causes, in order:", render(causes)] if verdict.causes else []
    return [
        f"{what} against {curve.name}: {curve.about}",
        f"{runs}: {'; '.join(curve.sources)}",
        *notes,
        "",
        render(table),
        "",
        *verdict.lines,
        *listed,
    ]
