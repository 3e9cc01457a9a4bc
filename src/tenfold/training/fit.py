"""How many rows a device holds at a time, found by trying before the first step and agreed by all processes."""

import re
from collections.abc import Callable

import torch

from tenfold.data.batches import Batches
from tenfold.data.split import split
from tenfold.errors import HardwareError
from tenfold.training.trainer import Trainer
from tenfold.world import World

NO_MEMORY = ("not enough memory", "can't allocate memory")  # how torch says so of a host's, on Windows and elsewhere


class Shortage(HardwareError):
    """A device has too little memory."""


def out_of_memory(error: RuntimeError) -> bool:
    """Whether torch ran out of memory, on any kind of device."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY)


def shortage(message: str) -> str:
    """How much memory was missing, by torch's own words: ' (2.00 GiB more were asked for, 1.50 GiB were free)'."""
    asked = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", message)
    free = re.search(r"of which ([\d.]+ \w+) is free", message)
    return f" ({asked[1]} more were asked for{f', {free[1]} were free' if free else ''})" if asked else ""


def largest(trial: Callable[[int], None], rows: int, world: World, fixed: bool = False) -> int:
    """The first of rows, rows / 2, rows / 4 ... for which `trial` has enough memory on every process.

    HardwareError if not even one row fits, or `rows` do not and they are `fixed`, that is, asked for.
    """
    told = ""
    while True:
        try:
            trial(rows)
            fits = 1
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            fits, told = 0, shortage(str(error))
        if world.least(fits):  # one process that halves alone would leave the others waiting
            return rows
        if rows == 1:
            raise Shortage(
                f"not even one row fits the device's memory{told}; use a shorter recipe.length, speed.recompute "
                "blocks, speed.parallel fsdp on several devices, or a smaller model"
            )
        if fixed:
            raise Shortage(f"speed.rows {rows} does not fit the device's memory{told}; give fewer, such as {rows // 2}")
        rows //= 2
        torch.compiler.reset()  # torch compiles eight shapes at most, and then runs others uncompiled
        if world.device.type == "cuda":
            torch.cuda.empty_cache()  # here, since the error held what the trial had made


def fit(trainer: Trainer, fixed: bool) -> int:
    """Lay the trainer's rows so that a micro-step fits its device; returns the rows a device. Weights stay as they are.

    A micro-step, gradients and optimizer moments included, is tried with every id 0. On a CPU nothing is tried: memory
    is not refused there but taken from others.
    """
    recipe, world, module = trainer.recipe, trainer.world, trainer.module

    def trial(rows: int) -> None:
        layout = split(recipe.rows, recipe.length, world.size, rows)
        x = torch.zeros(layout.micro, recipe.length, dtype=torch.int64, device=world.device)
        try:
            moments = [torch.empty_like(p) for p in module.parameters() for _ in range(2)]
            tries = min(2, layout.accum)  # from the second micro-step on the gradients are there too
            for k in range(tries):
                # One process alone that runs out would leave DDP's others waiting; FSDP's exchange anyway, and one that
                # does not reduce its gradients keeps them whole.
                trainer.sync(sharded and k == tries - 1)
                with trainer.autocast():
                    loss = trainer.model(x, x)
                (loss * 0).backward()
            del moments
        finally:
            trainer.optimizer.zero_grad(set_to_none=True)

    assert isinstance(trainer.speed.rows, int)
    rows = trainer.speed.rows
    sharded = trainer.speed.parallel == "fsdp" and world.size > 1
    if world.device.type != "cpu":
        # a process that runs out of memory within FSDP's exchanges cannot try again: the others are still in them
        rows = largest(trial, rows, world, fixed or sharded)
    layout = split(recipe.rows, recipe.length, world.size, rows)
    if layout != trainer.split:
        trainer.batches.close()
        trainer.split = layout
        trainer.batches = Batches(trainer.batches.tokens, layout, recipe.seed, world.rank, world.device)
    return rows
