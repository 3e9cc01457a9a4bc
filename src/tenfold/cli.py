"""The command line: each verb parses, calls and prints. torch is imported by the verbs that need it, not by --help."""

import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import tyro

from tenfold.errors import CheckpointError, ConfigError, TenfoldError, did_you_mean
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe
from tenfold.run import PRESETS, Cadence, Run, preset
from tenfold.training.speed import Speed, combined


def parse(kind: Callable[..., Any], arguments: Sequence[str], verb: str, **options: Any) -> Any:
    """The verb's options from the command line; prints help, or a box that names the nearest option, and exits."""
    return tyro.cli(kind, args=list(arguments), prog=f"tenfold {verb}", **options)


@dataclass(frozen=True)
class TrainOptions:
    """Train a preset, or go on with its run: when runs/NAME exists, options that are left out keep their saved
    values."""

    data: str = ""
    """Folder of token shards, or a text or .jsonl file to prepare first."""
    name: str = ""
    """Name of the run's folder in runs/; empty for the preset's."""
    tokenizer: Literal["bytes", "chars", "gpt2"] = "gpt2"
    """How a text file given as --data is prepared."""
    stop_at: int | None = None
    """End early at this step, without touching the schedule."""
    allow: tuple[str, ...] = ()
    """Fields of the recipe that may differ from the saved run's, such as recipe.lr."""
    model: ModelConfig = field(default_factory=ModelConfig)
    recipe: Recipe = field(default_factory=Recipe)
    speed: Speed = field(default_factory=Speed)
    cadence: Cadence = field(default_factory=Cadence)


def train(arguments: Sequence[str]) -> int:
    """train a preset on text, or go on with its run"""
    base, others, verb = preset_first("train", arguments)
    name = value_of("--name", arguments) or base.preset
    saved = saved_run(name) if base.preset else None
    base = saved if saved and saved.preset == base.preset else base
    default = TrainOptions(
        data=base.data,
        name=name,
        tokenizer=base.tokenizer,  # type: ignore[arg-type]
        model=base.model,
        recipe=base.recipe,
        speed=base.speed,
        cadence=base.cadence,
    )
    options: TrainOptions = parse(TrainOptions, others, verb, default=default)
    from tenfold import api

    run = Run(
        model=options.model,
        recipe=options.recipe,
        speed=options.speed,
        cadence=options.cadence,
        preset=base.preset,
        name=options.name,
        data=options.data,
        tokenizer=options.tokenizer,
    )
    done = api.train(run, stop_at=options.stop_at, allow=options.allow)
    if os.environ.get("RANK", "0") == "0":
        loss = f", validation loss {done.val_loss:.4f}" if done.val_loss is not None else ""
        print(f"{run.name}: {done.step:,} of {run.recipe.steps:,} steps{loss}; everything is in {done.path}")
        print("next:")
        for line, what in following(run, done.step):
            print(f"  {command()} {line:<{len(run.name) + 34}}  # {what}")
    return done.code


def following(run: Run, step: int) -> list[tuple[str, str]]:
    """Three commands worth trying after a training, with what they do."""
    return [
        (f"sample {run.name} --prompt TEXT", "continues a beginning of yours"),
        (f"train {run.preset} --name {run.name}", f"goes on from step {step:,}")
        if step < run.recipe.steps
        else (f"train {run.preset} --name mine --data FILE", "trains on text of your own"),
        ("runs", "lists the runs with their state"),
    ]


def command() -> str:
    """How the user can call this program again from the current folder."""
    import shutil
    from pathlib import Path

    if shutil.which("tenfold"):
        return "tenfold"
    script = sys.argv[0] if Path(sys.argv[0]).name == "tenfold" else sys.executable
    shortest = min(str(Path(script).absolute()), os.path.relpath(script), key=len)
    return shortest if script == sys.argv[0] else f"{shortest} -m tenfold"


def value_of(option: str, arguments: Sequence[str]) -> str:
    """What an option is given on the command line, before it is parsed properly."""
    value = ""  # the last one counts, as for the parser
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            value = arguments[i + 1]
        if argument.startswith(option + "="):
            value = argument.partition("=")[2]
    return value


def saved_run(name: str) -> Run | None:
    """The run saved under a name in runs/, if there is one."""
    from tenfold import rundir
    from tenfold.run import from_dict

    folder = rundir.folder_of(name)
    return from_dict(rundir.read_run(folder), f"{folder}/run.json") if (folder / "run.json").exists() else None


@dataclass(frozen=True)
class PrepareOptions:
    """Turn a text file, a folder of .txt and .md files, or a .jsonl file into token shards; goes on where it was
    stopped."""

    source: tyro.conf.Positional[str]
    """Text file, folder of .txt and .md files, or .jsonl file with a text field."""
    out: str = ""
    """Folder for the shards; empty for data/ and the source's name."""
    tokenizer: Literal["bytes", "chars", "gpt2"] = "gpt2"
    """bytes, chars (one id a character of the text) or gpt2 (GPT-2's BPE)."""
    val_fraction: float = 0.1
    """Share of the text kept for validation, in whole documents."""
    shard_tokens: int = 100_000_000
    """Tokens a shard."""
    text_field: str = "text"
    """Field of a .jsonl line that has the text."""
    errors: Literal["strict", "replace"] = "strict"
    """Whether bytes that are not UTF-8 are refused, or replaced by U+FFFD."""
    overwrite: bool = False
    """Replace shards in --out that were made from something else."""


def prepare(arguments: Sequence[str]) -> int:
    """turn text into token shards to train on"""
    from pathlib import Path

    from tenfold.console import Terminal
    from tenfold.prepare import prepare_text

    options: PrepareOptions = parse(PrepareOptions, arguments, "prepare")
    source = Path(options.source)
    whole = source.resolve()
    out = Path(options.out) if options.out else Path("data") / (whole.name if whole.is_dir() else whole.stem)
    with Terminal() as shown:
        prepare_text(
            source,
            out,
            options.tokenizer,
            val_fraction=options.val_fraction,
            shard_tokens=options.shard_tokens,
            text_field=options.text_field,
            errors=options.errors,
            overwrite=options.overwrite,
            report=shown.preparing,
        )
    print(f"train on it: {command()} train demo --name mine --data {shlex.quote(str(out))}")
    return 0


@dataclass(frozen=True)
class SampleOptions:
    """Write what a trained model makes of a beginning."""

    run: tyro.conf.Positional[str]
    """Run by its name in runs/ or its path, or a checkpoint folder."""
    prompt: str | None = None
    """Text that the samples begin with; by default the run's own."""
    samples: int = 1
    """Number of samples."""
    tokens: int = 200
    """Most tokens of a sample; it ends earlier at an end-of-text."""
    temperature: float = 0.8
    """0 always takes the most likely token; 1 samples as the model says."""
    top_k: int = 200
    """Only the k most likely tokens; 0 is all."""
    top_p: float = 1.0
    """Only the most likely tokens that have this probability together."""
    seed: int = 1337
    """Seed of the first sample; each further one counts up."""
    step: int | None = None
    """Step of the checkpoint; by default the newest."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N, mps or xpu."""


def sample(arguments: Sequence[str]) -> int:
    """write text with a trained model"""
    options: SampleOptions = parse(SampleOptions, arguments, "sample")
    from tenfold import api
    from tenfold.generate import check_options

    check_options(options.tokens, options.temperature, options.top_k, options.top_p, options.seed)
    if options.samples < 1:
        raise ConfigError(f"--samples {options.samples}: give at least 1")
    from tenfold.console import printable

    model = api.load(options.run, options.step, options.device)
    prompt = model.prompt if options.prompt is None else options.prompt
    model.tokenizer.encode(prompt)  # before it is printed, if it cannot be
    shown = printable if sys.stdout.isatty() else str  # a file gets exactly what the model wrote
    for i in range(options.samples):
        if i:
            print("---")
        print(prompt, end="", flush=True)
        picking = (options.temperature, options.top_k, options.top_p, options.seed + i)
        for text in model.stream(prompt, options.tokens, *picking):
            print(shown(text), end="", flush=True)
        print()
    return 0


def runs(arguments: Sequence[str]) -> int:
    """list the runs with their state"""
    from pathlib import Path

    from tenfold import rundir
    from tenfold.listing import run_table

    def options(folder: tyro.conf.Positional[Path] = rundir.RUNS) -> Path:
        """List the runs of a folder with their state.

        Args:
            folder: Folder of runs.
        """
        return folder

    folder = parse(options, arguments, "runs")
    if folder != rundir.RUNS and not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give one that holds run folders, or none for {rundir.RUNS}/")
    print(run_table(folder))
    return 0


def info(arguments: Sequence[str]) -> int:
    """tell what this machine is and what it supports"""

    def options(device: str = "auto") -> str:
        """Tell what this machine is and what it supports.

        Args:
            device: auto, cpu, cuda, cuda:N, mps or xpu.
        """
        return device

    device = parse(options, arguments, "info")
    from tenfold.hardware import look, reach
    from tenfold.listing import machine_table

    print(machine_table(look(reach(device))))
    return 0


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


def preset_first(verb: str, arguments: Sequence[str]) -> tuple[Run, Sequence[str], str]:
    """The preset that a verb's arguments begin with, the other arguments, and what help calls the verb."""
    given = next((a for a in arguments[:1] if not a.startswith("-")), None)
    if given is None and not {"-h", "--help"} & set(arguments):
        raise ConfigError(f"{verb} needs a preset first: tenfold {verb} PRESET; possible are {', '.join(PRESETS)}")
    base = preset(given) if given else Run()
    return base, arguments[1:] if given else arguments, f"{verb} {given or 'PRESET'}"


def refuse_launcher(verb: str) -> None:
    """ConfigError under torchrun: the verb starts the processes that it measures by itself."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ConfigError(f"{verb} starts its own processes; run it without torchrun, and without RANK and WORLD_SIZE")


def with_vocabulary(run: Run) -> Run:
    """A run whose model has a vocabulary, where a preset takes it from the data: that of bytes."""
    return run if run.model.vocab else replace(run, model=replace(run.model, vocab=257))


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


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "prepare": prepare,
    "sample": sample,
    "runs": runs,
    "ladder": ladder,
    "tune": tune,
    "plan": plan,
    "info": info,
}


def usage() -> str:
    """What `tenfold --help` prints."""
    lines = [f"  {name:<9} {verb.__doc__}" for name, verb in VERBS.items()]
    return "\n".join(
        (
            "usage: tenfold VERB [OPTIONS]",
            "",
            "Trains GPT-2 from scratch on whatever hardware you have.",
            "",
            *lines,
            "",
            f"presets: {', '.join(PRESETS)}",
            "`tenfold VERB --help` tells a verb's options; `tenfold train PRESET --help` a preset's, with its values.",
        )
    )


def call(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"tenfold {version('tenfold')}")
        return 0
    verb = VERBS.get(arguments[0])
    if verb is None:
        raise ConfigError(
            f"no verb {arguments[0]!r}{did_you_mean(arguments[0], VERBS)}; possible are {', '.join(VERBS)}"
        )
    return verb(arguments[1:])


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    try:
        code = call(sys.argv[1:])
    except TenfoldError as error:
        code = error.code
        complain(str(error), shared=isinstance(error, ConfigError | CheckpointError))
    except BrokenPipeError:
        code = 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left
    except OSError as error:
        code = 2
        complain(f"{error.filename or 'output'}: {error.strerror}; mend that and run the same command again")
    except SystemExit as ending:  # of the argument parser, or because another process failed
        code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 2
    except KeyboardInterrupt:
        code = 130
    finish(code)


def complain(message: str, shared: bool = False) -> None:
    """Print an error in one line: from every process of a group, or from the lead only if all have the same."""
    rank = os.environ.get("RANK", "0")
    if rank == "0" or not shared:
        print(f"tenfold: {'' if rank == '0' else f'process {rank}: '}{message}", file=sys.stderr)


def finish(code: int) -> None:
    """Leave the process group, if there is one, and end. Among several processes without the interpreter's own
    shutdown, in which gloo's threads sometimes crash or hang after all work is done."""
    if "torch.distributed" in sys.modules:
        from tenfold import world

        if code == 0 or code > 2:
            world.leave()
        if world.launched():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)
