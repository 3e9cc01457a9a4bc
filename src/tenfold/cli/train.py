"""`tenfold train`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tenfold.cli.common import command, parse, preset_first, value_of
from tenfold.errors import ConfigError
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe
from tenfold.run import Cadence, Run
from tenfold.training.speed import Speed


@dataclass(frozen=True)
class TrainOptions:
    """Train a preset, or go on with its run: when runs/NAME exists, options that are left out keep their saved
    values."""

    data: str = ""
    """Folder of token shards, or a text, .jsonl or .parquet file to prepare first."""
    name: str = ""
    """Name of the run's folder in runs/; empty for the preset's."""
    init: str = ""
    """Weights to begin from: a run, a checkpoint, a Hugging Face folder, a file of llm.c or nanoGPT, or a name on the
    Hub; the model's shape is theirs. Empty for random ones."""
    tokenizer: Literal["bytes", "chars", "gpt2"] = "gpt2"
    """How a text file given as --data is prepared."""
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """What is done about a loss or gradient that is not finite: stop; leave that update out, which a fused optimizer
    decides by itself and any other waits for at each step; or go back to the last checkpoint and leave the rows out."""
    signs: Literal["act", "warn", "off"] = "act"
    """Vital signs: those that mean a wrong training stop it, are only told, or are not looked at."""
    log: tuple[str, ...] = ()
    """Where each record goes too, beside metrics.jsonl: tensorboard, wandb, trackio, or several; without a name,
    nowhere."""
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
        init=base.init,
        on_nonfinite=base.on_nonfinite,
        signs=base.signs,
        log=base.log,
        tokenizer=base.tokenizer,  # type: ignore[arg-type]
        model=base.model,
        recipe=base.recipe,
        speed=base.speed,
        cadence=base.cadence,
    )
    options: TrainOptions = parse(TrainOptions, others, verb, default=default)
    if options.init and not saved and (shape := [given for given in others if given.startswith("--model.")]):
        raise ConfigError(f"{shape[0]}: the model's shape is that of --init {options.init}; leave it out")
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
        init=options.init,
        on_nonfinite=options.on_nonfinite,
        signs=options.signs,
        log=options.log,
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
        else (f"train {run.preset} --name another --data FILE", "trains on text of your own"),
        ("runs", "lists the runs with their state"),
    ]


def saved_run(name: str) -> Run | None:
    """The run saved under a name in runs/, if there is one."""
    from tenfold import rundir
    from tenfold.run import from_dict

    folder = rundir.folder_of(name)
    return from_dict(rundir.read_run(folder), f"{folder}/run.json") if (folder / "run.json").exists() else None
