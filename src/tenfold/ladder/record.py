"""A ladder's folder: ladder.json is written after every rung, so that one that was interrupted goes on where it was."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tenfold.errors import ConfigError
from tenfold.files import content_of, from_json, write_atomically
from tenfold.hardware import Hardware
from tenfold.ladder import report
from tenfold.ladder.climb import Climber, Terms, Told, as_json, check_fits, measurable
from tenfold.ladder.measure import Row
from tenfold.ladder.rungs import RUNGS, Rung, bottom
from tenfold.run import Run

LADDERS = Path("ladders")
FILE = "ladder.json"
SAME = ("format", "preset", "model", "rows", "length", "at_a_time", "timed_steps", "peak")  # as before, to go on
CPU_LENGTH, CPU_TOKENS = 512, 1024  # of a row and of a step on a CPU, which takes seconds for it
GPU_ROWS = ((60e9, 64), (20e9, 16), (0, 8))  # memory of a GPU in bytes -> rows of a step
FEW = 4  # rows that any GPU holds at a time
KEEP = ("ok", "rejected")  # what failed or was skipped is tried again


@dataclass(frozen=True)
class Shape:
    """What a measured step works on: `rows` rows of `length` tokens, `at_a_time` of them at the bottom of the
    ladder."""

    rows: int
    length: int
    at_a_time: int


def shape(run: Run, hardware: Hardware, rows: int = 0, length: int = 0, search: bool = False) -> Shape:
    """The given shape, or, where it is 0, one of which this machine makes some steps a minute; ConfigError if it cannot
    be. `search`: whether the batch is searched for on a CPU too, from one row on."""
    cpu = hardware.kind == "cpu"
    if rows < 0 or length < 0:
        raise ConfigError(f"--rows {rows} --length {length}: give numbers of at least 1, or 0 for a choice by machine")
    if length > run.model.context:
        raise ConfigError(f"--length {length} is more than model.context {run.model.context}; give at most that")
    length = length or min(run.recipe.length, CPU_LENGTH if cpu else run.recipe.length)
    memory = hardware.memory_bytes
    room = CPU_TOKENS // length if cpu else next(rows for bytes, rows in GPU_ROWS if memory >= bytes)
    rows = rows or max(1, min(run.recipe.rows, room))
    few = 1 if search else rows
    return Shape(rows, length, few if cpu else min(rows, FEW))


def saved_rows(folder: Path, content: dict[str, Any]) -> dict[str, Row]:
    """The rows of a ladder that was measured before; ConfigError if another one lies there."""
    path = folder / FILE
    if not path.exists():
        return {}
    anew = f"give another --out, or --again, which measures anew and replaces {path}"
    try:
        before = from_json(content_of(path))
        differ = [name for name in SAME if before[name] != content[name]]
        differ += [
            f"machine.{name}"
            for name in ("described", "count", "torch")
            if before["machine"][name] != content["machine"][name]
        ]
        names = {item.name for item in fields(Row)}
        rows = {r["name"]: Row(**{k: v for k, v in r.items() if k in names}) for r in before["rungs"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no ladder that can be read ({type(error).__name__}: {error}); {anew}") from None
    if differ:
        raise ConfigError(f"{path} is a ladder of other terms ({', '.join(differ)} differ); {anew}")
    return {name: row for name, row in rows.items() if row.status in KEEP}


def ladder(
    run: Run,
    hardware: Hardware,
    device: str,
    shape: Shape,
    terms: Terms,
    folder: Path,
    told: Told,
    again: bool = False,
    rungs: Sequence[Rung] = RUNGS,
) -> tuple[dict[str, Any], list[str]]:
    """Climb the rungs with steps of this shape. Goes on with what lies in `folder`, where ladder.json, ladder.html and
    ladder.png are left. The ladder's content, and what was written or could not be.

    Raises:
        HardwareError: the model does not fit this machine.
        ConfigError: another ladder lies in the folder.
    """
    base = bottom(measurable(run, shape.rows, shape.length), device, shape.at_a_time)
    check_fits(base, hardware)
    saved = {} if again else saved_rows(folder, as_json(base, hardware, [], terms))
    folder.mkdir(parents=True, exist_ok=True)

    def note(measured: list[Row], current: str) -> None:
        # what was measured before and is still to come stays in the file until it is measured anew
        later = [saved[r.name] for r in rungs[len(measured) :] if r.name in saved and r.name != current]
        write_atomically(
            folder / FILE, json.dumps(as_json(base, hardware, [*measured, *later], terms), indent=2) + "\n"
        )
        told(as_json(base, hardware, measured, terms), current)

    with Climber(base, hardware, terms, note, saved) as climber:
        try:
            climber.climb(rungs)
        except KeyboardInterrupt:  # what there is can be looked at
            if climber.rows:
                report.write(as_json(base, hardware, [*climber.rows, *saved.values()], terms), folder)
            raise
        done = as_json(base, hardware, climber.rows, terms)
    return done, report.write(done, folder)
