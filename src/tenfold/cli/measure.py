"""`tenfold ladder`, `tune` and `plan`."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tenfold.cli.common import parse, preset_first, refuse_launcher, with_vocabulary
from tenfold.errors import ConfigError
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe
from tenfold.training.speed import Speed, combined


@dataclass(frozen=True)
class LadderOptions:
    """Measure every optimisation on this machine, one at a time, from the naive configuration to the best; goes on
    where it was stopped."""

    rows: int = 0
    """Rows of a measured step; 0 chooses by the machine."""
    length: int = 0
    """Tokens of a row; 0 chooses by the machine."""
    steps: int = 0
    """Timed steps of a rung; 0 is 3 on a CPU and 10 elsewhere."""
    all: bool = False
    """Also what takes minutes on a CPU: the batch searches, torch's own fused loss and max-autotune."""
    again: bool = False
    """Measure anew what --out holds."""
    peak: float | None = None
    """The device's peak rate in TFLOP/s that every rung's MFU is taken against, for one that the table lacks."""
    out: str = ""
    """Folder for ladder.json, ladder.html and ladder.png; empty for ladders/ and the preset's name."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N, mps or xpu."""
    model: ModelConfig = field(default_factory=ModelConfig)


def ladder(arguments: Sequence[str]) -> int:
    """measure every optimisation on this machine, one at a time"""
    refuse_launcher("ladder")
    base, others, verb = preset_first("ladder", arguments)
    default = LadderOptions(model=base.model)
    options: LadderOptions = parse(LadderOptions, others, verb, default=default)
    if options.steps < 0 or (options.peak is not None and not 0 < options.peak < math.inf):
        raise ConfigError(f"--steps {options.steps} --peak {options.peak}: give positive numbers")
    from pathlib import Path

    from tenfold.console import Climbing
    from tenfold.hardware import busy, detect
    from tenfold.ladder import record, report
    from tenfold.ladder.climb import Terms

    run, hardware = with_vocabulary(replace(base, model=options.model)), detect(options.device)
    shape = record.shape(run, hardware, options.rows, options.length, options.all)
    terms = Terms(
        timed=options.steps or (3 if hardware.kind == "cpu" else 10),
        everything=options.all,
        peak=options.peak and options.peak * 1e12,
    )
    folder = Path(options.out) if options.out else record.LADDERS / base.preset
    device = options.device if options.device != "auto" else hardware.kind
    with Climbing(f"ladder {base.preset} on {hardware.described}: {shape.rows} rows of {shape.length} a step") as shown:
        if told := busy():
            shown.say(told)
        try:
            done, written = record.ladder(run, hardware, device, shape, terms, folder, shown.told, options.again)
        except KeyboardInterrupt:
            shown.say(f"interrupted: what is measured is in {folder / record.FILE}; the same command goes on")
            raise
    print(report.table(done))
    print("\n".join(written))
    return 0


@dataclass(frozen=True)
class TuneOptions:
    """Find the fastest way to train a preset on this machine by measuring, and remember it: every --speed option that
    is auto then takes its value from there."""

    minutes: float = 10.0
    """About how long to measure."""
    rows: int = 0
    """Rows of a measured step; 0 chooses by the machine."""
    length: int = 0
    """Tokens of a row, as in the training that is meant; 0 is the preset's."""
    all: bool = False
    """Also what takes many minutes."""
    model: ModelConfig = field(default_factory=ModelConfig)
    speed: Speed = field(default_factory=Speed)


def tune(arguments: Sequence[str]) -> int:
    """find the fastest way to train a preset on this machine, and remember it"""
    refuse_launcher("tune")
    base, others, verb = preset_first("tune", arguments)
    default = TuneOptions(model=base.model, speed=base.speed)
    options: TuneOptions = parse(TuneOptions, others, verb, default=default)
    if not 0 < options.minutes < math.inf:
        raise ConfigError(f"--minutes {options.minutes}: give a number above 0")
    from tenfold.console import Climbing
    from tenfold.hardware import busy, detect
    from tenfold.ladder import record, report
    from tenfold.ladder.tune import tune as find

    run = with_vocabulary(replace(base, model=options.model, speed=options.speed))
    run = replace(run, recipe=replace(run.recipe, length=options.length or run.recipe.length))
    hardware = detect(options.speed.device)
    shape = record.shape(run, hardware, options.rows, run.recipe.length)
    heading = f"tune {base.preset} on {hardware.described}: {shape.rows} rows of {shape.length} a step"
    with Climbing(f"{heading}, about {options.minutes:g} minutes") as shown:
        if told := busy():
            shown.say(told)
        try:
            found = find(run, hardware, shape.rows, options.minutes, shown.told, options.all)
        except KeyboardInterrupt:
            shown.say("interrupted: what was faster until now is remembered")
            raise
    print(report.table(found.ladder))
    print(found.said)
    return 0


@dataclass(frozen=True)
class PlanOptions:
    """Tell what a whole training takes before it is started: time, cost, memory and rows a device, and which published
    or measured figures that rests on."""

    gpu: str = ""
    """Card to plan for, such as "A100 40GB"; empty for this machine."""
    count: int | None = None
    """Number of cards; by default 1, or all of this machine."""
    efficiency: float | None = None
    """Share of the card's peak rate that is reached, instead of published speeds."""
    model: ModelConfig = field(default_factory=ModelConfig)
    recipe: Recipe = field(default_factory=Recipe)
    speed: Speed = field(default_factory=Speed)


def plan(arguments: Sequence[str]) -> int:
    """tell time, cost and memory of a training before it is started"""
    base, others, verb = preset_first("plan", arguments)
    default = PlanOptions(model=base.model, recipe=base.recipe, speed=base.speed)
    options: PlanOptions = parse(PlanOptions, others, verb, default=default)
    from tenfold.ladder.plan import as_text, plan_card, plan_here
    from tenfold.reference.cards import card

    run = with_vocabulary(replace(base, model=options.model, recipe=options.recipe, speed=options.speed))
    count = 1 if options.count is None else options.count
    if options.gpu:
        print(as_text(plan_card(run, card(options.gpu), count, options.efficiency)))
        return 0
    if options.efficiency is not None:
        raise ConfigError("--efficiency is of a card's peak rate; name the card with --gpu")
    from tenfold.hardware import detect
    from tenfold.ladder.tune import recall

    hardware = detect(options.speed.device)
    if options.count is None and hardware.kind != "cpu":
        count = hardware.count
    found, stale = recall(run.model, run.recipe.length, hardware, run.speed)
    if stale:
        print(stale, file=sys.stderr)
    if found is None:
        print(as_text(plan_here(run, hardware, count)))
        return 0
    run = replace(run, speed=combined(replace(found.speed, rows="auto"), run.speed))
    source = f"measured on this machine on {found.date}, by `tenfold tune`, on one device"
    print(as_text(plan_here(run, hardware, count, found.tokens_per_second, source)))
    return 0
