"""`tenfold eval`."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from tenfold.cli.common import parse
from tenfold.errors import ConfigError, HardwareError

if TYPE_CHECKING:
    from tenfold.evaluate.evaluation import Result


@dataclass(frozen=True)
class EvalOptions:
    """Score a model on tasks. What each task asks, and what is published for GPT-2, is told with the results."""

    run: tyro.conf.Positional[str]
    """Run by its name in runs/ or its path, a checkpoint folder, or a Hugging Face folder."""
    tasks: str = "hellaswag,lambada,wikitext2"
    """Some of hellaswag, hellaswag-harness, lambada, wikitext2, wikitext103, arc_easy, arc_challenge, piqa, winogrande,
    openbookqa, sciq and boolq, with commas between; arc is both of its kind, wikitext the first."""
    limit: int | None = None
    """Score only so many items of each set: a sample, always the same; of running text the first so many lines."""
    data: Path | None = None
    """Folder of sets, or the file of one; without, they are downloaded once and kept in the cache."""
    out: Path | None = None
    """File for the results as JSON."""
    step: int | None = None
    """Step of the checkpoint; by default the newest."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N, mps or xpu."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """What the model computes in; log-likelihoods are fp32, and their sums wider, in any case."""
    stride: int = 0
    """Tokens from window to window of running text; 0 is half of the model's context."""
    tokens: int = 0
    """Positions computed at once; fewer need less memory; 0 is what suits the device."""


def evaluate(arguments: Sequence[str]) -> int:
    """score a model on HellaSwag, LAMBADA, WikiText and other tasks"""
    options: EvalOptions = parse(EvalOptions, arguments, "eval")
    from tenfold import api, world
    from tenfold.console import Terminal
    from tenfold.evaluate import evaluation
    from tenfold.files import write_atomically
    from tenfold.hardware import detect
    from tenfold.training.precision import autocast

    tasks = evaluation.tasks_of(options.tasks)
    evaluation.check_options(tasks, options.limit, options.data, options.stride, options.tokens)
    if options.out and not options.out.absolute().parent.is_dir():
        raise ConfigError(
            f"--out {options.out}: there is no folder {options.out.parent}; make it, or give another place"
        )
    hardware = detect(options.device)
    if options.precision != "fp32" and (reason := hardware.lacks(options.precision)):
        raise HardwareError(f"--precision {options.precision}: {reason}; give fp32")
    here = world.join(hardware.kind if options.device == "auto" else options.device)
    model = api.load(options.run, options.step, str(here.device))
    with Terminal() as shown:

        def report(task: str, done: int, of: int) -> None:
            if here.lead:
                shown.tell(f"{task}: {done} of {of} batches")

        results = evaluation.evaluate(
            model.model,
            model.tokenizer,
            tasks,
            here,
            options.limit,
            options.data,
            autocast(options.precision, here.device),
            options.stride,
            options.tokens,
            report,
        )
    if here.lead:
        print(told(results))
        if options.out:
            facts = {"model": options.run, "step": model.step, "precision": options.precision}
            write_atomically(options.out, json.dumps({**facts, "tasks": as_json(results)}, indent=1) + "\n")
    return 0


def told(results: "dict[str, Result]") -> str:
    """The results as a table, and below it what must be known of each task to compare them with others."""
    from rich.table import Table

    from tenfold.evaluate.tasks import TASKS
    from tenfold.listing import render
    from tenfold.reference.evals import known

    table = Table("task", "metric", "value", "standard error", "items", "published", box=None, pad_edge=False)
    notes = []
    for name, result in results.items():
        task = TASKS[name]
        whole = result.records == result.of and not result.verdict
        items = f"{result.records:,}" if result.records == result.of else f"{result.records:,} of {result.of:,}"
        published = known(task.known).get("gpt2-124m", {}) if whole else {}
        for metric, figure in result.figures.items():
            there = f"{published[metric]} (gpt2-124m)" if metric in published else ""
            error = "unknown" if math.isnan(figure.error) else f"{figure.error:.4f}"
            table.add_row(name, metric, f"{figure.value:.4f}", error, items, there)
        notes.append(f"{name}: {' '.join((task.read.__doc__ or '').split())}")
        if result.verdict:
            notes.append(f"{name}: these are {result.verdict}; compare with published figures accordingly")
        if result.cut:
            notes.append(f"{name}: {result.cut:,} pairs are longer than the model's context; it saw their ends only")
    return "\n".join((render(table), "", *notes))


def as_json(results: "dict[str, Result]") -> dict[str, Any]:
    """The results for a file; a standard error that is not known is null."""
    from tenfold.evaluate.tasks import TASKS
    from tenfold.reference.evals import known

    return {
        name: {
            "figures": {
                metric: {"value": figure.value, "error": None if math.isnan(figure.error) else figure.error}
                for metric, figure in result.figures.items()
            },
            "records": result.records,
            "of": result.of,
            "cut": result.cut,
            "verdict": result.verdict,
            "protocol": " ".join((TASKS[name].read.__doc__ or "").split()),
            "published": known(TASKS[name].known),
        }
        for name, result in results.items()
    }
