"""Finds the best Speed for a model on this machine by measuring, within a time budget, and remembers it: every `auto`
then takes its value from there."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tenfold.data.fetch import cache_folder
from tenfold.errors import CheckpointError, HardwareError
from tenfold.files import content_of, from_json, write_atomically
from tenfold.hardware import Hardware
from tenfold.ladder.climb import Climber, Terms, Told, as_json, check_fits, measurable
from tenfold.ladder.measure import Row
from tenfold.ladder.rungs import DOUBLE, FIT, HALF, Rung
from tenfold.model.config import ModelConfig
from tenfold.run import Run, typed
from tenfold.training.speed import WIDE, Speed, resolve

FORMAT = 1
MARGIN = 0.9  # of a GPU's memory may be used, so that evaluation and a longer life find room
GAIN = 0.02  # an alternative that is faster by less is not worth a change
MODEL = ("layers", "heads", "width", "bias")
PLACE = {"device", "parallel"}  # fields of a speed that a tuned one leaves open: they say where, not how
MACHINE = ("kind", "name", "count", "torch", "compiler", "triton")


def alternative(field: str, value: Any, slow: bool = False) -> Rung:
    """A rung that is taken only if it brings something."""
    return Rung(f"{field} {value}", f"{field} {value}", f"speed.{field}", value, slow=slow, slack=-GAIN)


# What is tried on top of the choice from the hardware table, the most promising first. FP8 and coarser arithmetic than
# that choice are never taken without being asked for.
ALTERNATIVES = (
    alternative("rows", FIT, slow=True),
    alternative("compile", "blocks"),
    alternative("attention", "rows"),
    alternative("attention", "flash"),
    alternative("attention", "cudnn"),
    alternative("attention", "fa3"),
    alternative("attention", "sdpa"),
    alternative("loss", "chunked"),
    alternative("loss", "torch", slow=True),
    alternative("loss", "plain"),
    alternative("memory", "kept"),
    alternative("rows", FIT, slow=True),
    alternative("rows", DOUBLE),
    alternative("rows", HALF),
    alternative("compile", "model"),
    alternative("mode", "reduce-overhead"),
    alternative("compile", "none"),
    alternative("mode", "max-autotune", slow=True),
    alternative("attention", "flex"),
)


@dataclass(frozen=True)
class Tuned:
    """What was found for a model, rows of `length` tokens and this machine."""

    speed: Speed
    tokens_per_second: float
    before: float
    """Tokens a second of the choice from the hardware table, measured in the same run."""
    date: str


def key(model: ModelConfig, length: int, hardware: Hardware) -> dict[str, Any]:
    """What a tuned speed belongs to."""
    facts = asdict(hardware)
    return {
        "format": FORMAT,
        "model": {name: getattr(model, name) for name in MODEL} | {"wide": model.embedding_rows >= WIDE},
        "length": length,
        "machine": {name: facts[name] for name in MACHINE},
    }


def path_of(model: ModelConfig, length: int, hardware: Hardware) -> Path:
    """Where a tuned speed lies. A new torch, or another compiler, keeps the place and makes it stale."""
    facts = key(model, length, hardware)
    same = {**facts, "machine": {name: facts["machine"][name] for name in ("kind", "name", "count")}}
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / "tuned" / f"{digest}.json"


def given(speed: Speed) -> dict[str, Any]:
    """What a speed does not leave open, of what decides how fast a step is."""
    return {name: value for name, value in asdict(speed).items() if value != "auto" and name not in PLACE}


def remember(tuned: Tuned, model: ModelConfig, length: int, hardware: Hardware, speed: Speed) -> Path:
    """Store what was found where `speed` was asked for; the path."""
    path = path_of(model, length, hardware)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**key(model, length, hardware), "given": given(speed), "tuned": asdict(tuned)}
    write_atomically(path, json.dumps(content, indent=2) + "\n")
    return path


def recall(model: ModelConfig, length: int, hardware: Hardware, speed: Speed) -> tuple[Tuned | None, str]:
    """What was found before and counts where `speed` is asked for, and a line if something lies there that does not."""
    path = path_of(model, length, hardware)
    try:
        content = from_json(content_of(path))
        tuned, asked = content.pop("tuned"), dict(content.pop("given"))
        best = typed(Speed, tuned["speed"], str(path), "speed.")
        found = Tuned(best, float(tuned["tokens_per_second"]), float(tuned["before"]), str(tuned["date"]))
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, CheckpointError) as error:
        return None, f"{path} is ignored: it cannot be read ({type(error).__name__}); `tenfold tune` makes it anew"
    if content != (now := key(model, length, hardware)):
        was = content.get("machine", {}) if isinstance(content.get("machine"), dict) else {}
        other = [f"{name} was {was.get(name)}" for name in MACHINE if was.get(name) != now["machine"][name]]
        return None, f"{path} is ignored: {', '.join(other) or 'it is of another model'}; `tenfold tune` makes it anew"
    if other := [f"speed.{name} {value}" for name, value in asked.items() if given(speed).get(name) != value]:
        return None, f"{path} is ignored: it was tuned for {', '.join(other)}; `tenfold tune` makes it anew"
    return found, ""


@dataclass(frozen=True)
class Found:
    """What tuning came to: the choice, the figures it rests on (as a ladder's content), and what to tell of it."""

    tuned: Tuned
    ladder: dict[str, Any]
    said: str


def tune(run: Run, hardware: Hardware, rows: int, minutes: float, told: Told, everything: bool = False) -> Found:
    """Measure alternatives to the hardware table's choice for about so many minutes, in steps of `rows` rows, and
    remember the best. Fields of run.speed that are given stay; HardwareError if nothing could be measured."""
    length = run.recipe.length
    run = measurable(run, rows, length)
    speed, _ = resolve(run.speed, run.model, run.recipe, hardware)
    check_fits(replace(run, speed=speed), hardware)
    first = Rung("auto", "The hardware table's choice")
    open_fields = {name for name, value in asdict(run.speed).items() if value == "auto"}
    rungs = [rung for rung in ALTERNATIVES if rung.field.removeprefix("speed.") in open_fields]
    deadline = time.monotonic() + 60 * minutes
    terms = Terms(timed=5, parity=7, everything=everything, memory_share=MARGIN, deadline=deadline)

    def note(rows: list[Row], current: str) -> None:
        told(as_json(run, hardware, rows, terms), current)

    with Climber(replace(run, speed=speed), hardware, terms, note) as climber:
        try:
            climber.climb([first, *rungs])
        except KeyboardInterrupt:  # what was found until then is kept, unless it is nothing
            found = conclude(climber, open_fields - PLACE)
            if found and climber.below is not climber.rows[0]:
                remember(found, run.model, length, hardware, run.speed)
            raise
    found = conclude(climber, open_fields - PLACE)
    if not found:
        reason = climber.rows[0].reason
        raise HardwareError(f"the step could not be measured: {reason}; give fewer --rows or a smaller model")
    path = remember(found, run.model, length, hardware, run.speed)
    taken = [f"{row.name} ({row.speedup_before:.2f} times)" for row in climber.rows[1:] if row.taken]
    said = (
        f"chosen: {', '.join(taken) or 'what the hardware table says; nothing tried was faster by 2 %'}: "
        f"{found.tokens_per_second:,.0f} tokens/s, {found.tokens_per_second / found.before:.2f} times the table's "
        f"choice; kept in {path} for --speed options that are auto, with rows of {length}"
    )
    return Found(found, as_json(run, hardware, climber.rows, terms), said)


def conclude(climber: Climber, fields: set[str]) -> Tuned | None:
    """What a climb found for the fields that were open; None if it measured nothing."""
    base, below = climber.rows[0] if climber.rows else None, climber.below
    if base is None or below is None or not base.tokens_per_second or not below.speedup:
        return None
    speed = Speed(**{name: value for name, value in asdict(climber.best.speed).items() if name in fields})
    if speed.rows == climber.best.recipe.rows:
        speed = replace(speed, rows="auto")  # no fewer were better, and more were not tried
    return Tuned(speed, base.tokens_per_second * below.speedup, base.tokens_per_second, time.strftime("%Y-%m-%d"))
