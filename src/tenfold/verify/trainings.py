"""The claims about training: however a step is executed, it is the same training."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tenfold.data.split import split
from tenfold.ladder.rungs import TOLERANCE, why_not
from tenfold.model.gpt import GPT
from tenfold.training import checkpoint
from tenfold.training.prepare import probe_compile
from tenfold.training.trainer import trainer_for
from tenfold.verify.case import ACROSS, CPU_SUM, EXACT, GPU_RESUME, SUM, Case, by_norm, each, flat, worst
from tenfold.verify.lab import MODEL, SPEED, STEPS, Evidence, Lab, evidence, losses_of, trainer
from tenfold.verify.together import LAYOUTS, together

HEARD = "losses, norms and first gradient"  # what `of_training` compares
SPLITS = ((24, 12), (24, 6), (24, 1), (23, 4))  # rows a step and rows held at a time; the last has a filler row
PRECISIONS = ("tf32", "bf16", "fp16", "fp8")  # each against fp32
COMPILED: dict[str, dict[str, Any]] = {
    "blocks compiled": {"compile": "blocks"},
    "the whole model compiled": {"compile": "model"},
    "CUDA graphs": {"compile": "model", "mode": "reduce-overhead"},
}


def of_training(got: Evidence, want: Evidence) -> float:
    """The largest relative difference of losses, gradient norms and first gradient, this one by norm."""
    return worst([each(got.losses, want.losses), each(got.norms, want.norms), by_norm(got.gradient, want.gradient)])


def sum_bound(device: str) -> float:
    """How far the same training may be apart on a kind of device if its sums are in another order."""
    return CPU_SUM if device == "cpu" else SUM


def accumulation(lab: Lab) -> Iterator[Case]:
    """A step of accumulated micro-batches is the step of one big batch."""
    for rows, held in SPLITS:
        layout = split(rows, MODEL.context, 1, held)
        filled = " with a filler" if layout.slots > rows else ""
        what = f"{rows} rows as {layout.accum} x {layout.micro}{filled}, and as 1 x {rows}: {HEARD}"
        yield Case(what, sum_bound(lab.hardware.kind), partial(accumulated, lab, rows, held))


def accumulated(lab: Lab, rows: int, held: int) -> float:
    """How far accumulation is from the big batch."""
    small, big = (evidence(trainer(lab.corpus.train, lab.world, rows, most)) for most in (held, rows))
    return of_training(small, big)


def processes(lab: Lab) -> Iterator[Case]:
    """Several processes train as one alone, by DDP and by FSDP2: on the CPU, and on as many GPUs where they are."""
    for kind in dict.fromkeys(("cpu", lab.hardware.kind)):
        for count in (2, 3):
            reasons = (
                (kind != "cpu" and ":" in lab.device, f"one device was asked for, {lab.device}"),
                (kind != "cpu" and count > lab.hardware.count, f"{kind} devices here: {lab.hardware.count}"),
            )
            not_here = next((reason for applies, reason in reasons if applies), None)
            for parallel in ("ddp", "fsdp"):
                what = f"{count} on {kind} by {parallel}, and one alone: {HEARD}"
                yield Case(what, sum_bound(kind), partial(shared, lab, count, kind, parallel), not_here=not_here)


def shared(lab: Lab, count: int, kind: str, parallel: str) -> float:
    """How far processes are from one."""
    alone = lab.cpu if kind == "cpu" else lab.world
    found = together(count, kind, parallel, lab.corpus.path)
    wanted = [evidence(trainer(lab.corpus.train, alone, rows)) for rows, _ in LAYOUTS]
    return worst(of_training(got, want) for got, want in zip(found, wanted, strict=True))


def precision(lab: Lab) -> Iterator[Case]:
    """In any precision a training stays as near to fp32's as the ladder demands, and fp32's on a GPU to a CPU's."""
    if lab.hardware.kind != "cpu":
        yield Case(f"fp32 on {lab.device}, and on the CPU: losses", ACROSS, partial(across, lab))
    for name in PRECISIONS:
        speed = {"precision": name}
        yield Case(f"{name}, and fp32: losses", TOLERANCE[name], partial(moved, lab, speed), not_here=why(lab, speed))


def across(lab: Lab) -> float:
    """How far the device is from the CPU."""
    here, there = (losses_of(trainer(lab.corpus.train, world)) for world in (lab.world, lab.cpu))
    return each(here, there)


def moved(lab: Lab, speed: dict[str, Any]) -> float:
    """How far a change of speed moves the losses."""
    got, want = (losses_of(trainer(lab.corpus.train, lab.world, **change)) for change in (speed, {}))
    return each(got, want)


def why(lab: Lab, speed: dict[str, Any]) -> str | None:
    """Why a change of speed cannot run here, if it cannot."""
    return why_not(replace(SPEED, device=lab.device, **speed), lab.hardware)


def compilation(lab: Lab) -> Iterator[Case]:
    """What is compiled trains as what is not, also in steps of several micro-steps."""
    broken = None if lab.hardware.lacks("compile") else probe_compile(lab.world.device, SPEED)
    for name, speed in COMPILED.items():
        not_here = why(lab, speed) or broken
        yield Case(f"{name}, and eager: {HEARD}", SUM, partial(compiled, lab, speed), not_here=not_here)


def compiled(lab: Lab, speed: dict[str, Any]) -> float:
    """How far a compiled training in two micro-steps is from an eager one in one."""
    torch.compiler.reset()  # or what was compiled before counts towards its limit of versions
    got, want = (evidence(trainer(lab.corpus.train, lab.world, **change)) for change in ({"held": 4, **speed}, {}))
    return of_training(got, want)


def resume(lab: Lab) -> Iterator[Case]:
    """A training that goes on from a checkpoint is the uninterrupted one, to the bit on a CPU."""
    bound = EXACT if lab.hardware.kind == "cpu" else GPU_RESUME
    for name in ("fp32", "fp16"):  # the second has a loss scale to remember
        what = f"{name}, {STEPS // 2} + {STEPS - STEPS // 2} steps, and {STEPS}: losses, weights and moments, by norm"
        yield Case(what, bound, partial(resumed, lab, name), not_here=why(lab, {"precision": name}))


def resumed(lab: Lab, name: str) -> float:
    """How far a resumed training is from the uninterrupted one; 1 if its position or loss scale is another."""
    tokens, world = lab.corpus.train, lab.world
    straight, first = (trainer(tokens, world, precision=name) for _ in range(2))
    want, before = losses_of(straight), losses_of(first, STEPS // 2)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "saved"
        checkpoint.write(saved, checkpoint.snapshot(first))
        model = GPT(checkpoint.model_config(saved))
        checkpoint.load_weights(model, saved)
        again = trainer_for(model, first.recipe, first.speed, tokens, world)
        checkpoint.restore(again, saved)
    got = torch.cat((before, losses_of(again, STEPS - STEPS // 2)))
    mine, theirs = checkpoint.snapshot(again), checkpoint.snapshot(straight)
    state = ((mine.weights, theirs.weights), (mine.moments, theirs.moments))
    other = float(mine.state != theirs.state)
    return worst([other, by_norm(got, want), *(by_norm(flat(a), flat(b)) for a, b in state)])
