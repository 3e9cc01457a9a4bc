"""The loop around the step: it decides what is due, reads the figures of a step while the next one runs, and ends at
one position that all processes agree on. What is done at a cadence is handed in, as a table."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from tenfold.recipe import Recipe
from tenfold.run import Cadence, film_steps
from tenfold.training.precision import PRECISIONS
from tenfold.training.signs import Signs
from tenfold.training.trainer import Step, Trainer
from tenfold.training.vitals import Finite, Patience, Vitals

Record = dict[str, Any]
Report = Callable[[Record], None]
Table = dict[str, Callable[[Trainer], Record]]  # cadence name -> what is done then; its record is reported

DONE, STOPPED, EARLY = 1, 2, 3  # why a loop ended; exit codes of signals (75, 130) are greater


def loop(
    trainer: Trainer,
    cadence: Cadence,
    table: Table,
    report: Report,
    stop: int | None = None,
    signal: Callable[[], int] = lambda: 0,
    vitals: Vitals | None = None,
    earlier: Iterable[Record] = (),
) -> int:
    """Train until the recipe's last step, `stop`, or `signal()` is not 0 on any process; returns DONE, STOPPED, EARLY
    or the signal's value. Diverged is raised at most one step after a loss or norm that is not finite, Unsound when a
    sign that stops speaks; `vitals` looks for those. `earlier`: the records of a run that goes on."""
    meter = Meter(trainer, cadence, report, vitals)
    patience = Patience(cadence.patience, vitals.signs if vitals else Signs(report), earlier)
    last = trainer.recipe.steps if stop is None else min(stop, trainer.recipe.steps)
    early = 0
    while True:
        at = trainer.position
        asked = trainer.world.most(signal())  # every process ends at the same position
        ending = DONE if at >= trainer.recipe.steps else asked or (STOPPED if at >= last else early)
        due = [name for name in table if is_due(cadence, trainer.recipe, name, at, ending)]
        if due or ending:
            meter.settle()
        for name in due:
            record = table[name](trainer)
            report({"step": at, **record})
            if "val_loss" in record:
                over = patience(at, record["val_loss"], meter.mean_loss())
                if cadence.stop_early and trainer.world.most(int(over and trainer.world.lead)):
                    early = EARLY  # takes effect, and is saved, at the next position
                if vitals:
                    vitals.validated(at, record["val_loss"])
        if ending:
            return ending
        if due:
            meter.restart()
        meter.took(at, trainer.step())
        if at == 0 and vitals:
            vitals.compare_weights(1)


def is_due(cadence: Cadence, recipe: Recipe, name: str, at: int, ending: int) -> bool:
    """Whether something is done at a position: at multiples of its cadence, at the end, and saving at any ending. A
    film's cadence is how many snapshots there are, over the whole recipe."""
    every = getattr(cadence, name)
    if name == "save":
        return bool(ending) or (every > 0 and at > 0 and at % every == 0)
    if ending > EARLY or not every:
        return False  # a signal: save and go
    if name == "score" and at == 0:
        return False  # an untrained model is known to guess
    regular = at in film_steps(recipe, every) if name == "film" else at % every == 0
    return regular or ending == DONE


class Meter:
    """Reads each step's figures one step late, so that the device is never waited for, checks them and logs those
    due."""

    def __init__(self, trainer: Trainer, cadence: Cadence, report: Report, vitals: Vitals | None = None) -> None:
        self.trainer, self.cadence, self.report, self.vitals = trainer, cadence, report, vitals
        self.late = trainer.world.device.type != "cpu"
        self.finite = Finite(trainer)
        self.losses: list[float] = []
        self.pending: tuple[int, Step, list[float], torch.Event | None] | None = None
        self.seconds = self.idle = 0.0
        self.steps = 0
        self.restart()

    def restart(self) -> None:
        """Start the clock again after something that is not training."""
        self.clock, self.waited = time.perf_counter(), self.trainer.batches.wait

    def mean_loss(self) -> float:
        """Mean training loss since it was last asked for; infinite if nothing was trained."""
        losses, self.losses = self.losses, []
        return fmean(losses) if losses else math.inf

    def took(self, at: int, step: Step) -> None:
        """Note the step that was just started at a position, and the learning rates that it has; read the one
        before."""
        before = self.pending
        rates = [group["lr"] for group in self.trainer.optimizer.param_groups]
        copied, event = begin_copy(step, self.late)
        self.pending = (at, copied, rates, event)
        if before is not None:
            self.read(*before)
        if not self.late:
            self.settle()

    def settle(self) -> None:
        """Read the last step, whatever it takes."""
        if self.pending is not None:
            self.read(*self.pending)
            self.pending = None

    def read(self, at: int, step: Step, rates: list[float], copied: "torch.Event | None") -> None:
        """Wait for a step's figures, check them, and report them if a log is due."""
        if copied is not None:
            copied.synchronize()
        loss, norm = step.loss.item(), step.norm.item()
        trainer = self.trainer
        self.seconds += time.perf_counter() - self.clock
        self.idle += trainer.batches.wait - self.waited
        self.steps += 1
        self.restart()
        applied = self.finite(at, loss, norm, step.applied)
        if applied:
            self.losses.append(loss)
            if self.vitals:
                self.vitals.step(at, loss, norm, rates)
        if applied and not (self.cadence.log and at % self.cadence.log == 0):
            return
        device = trainer.world.device
        record: Record = {
            "step": at,
            "loss": loss,
            "lr": rates[0],
            "grad_norm": norm,
            "tokens_per_second": trainer.split.targets * self.steps / self.seconds,
            "data_wait": self.idle / self.seconds,
            "memory_bytes": held_memory(device),
            "peak_memory_bytes": peak_memory(device),
        }
        if PRECISIONS[trainer.speed.precision].scaled:
            record["scale"] = trainer.scale.value
        if not applied:
            record |= {"event": "skipped", "message": self.skipped(at, loss, norm)}
        elif self.vitals:
            self.vitals.logged(at, record, self.seconds)
        self.seconds, self.idle, self.steps = 0.0, 0.0, 0
        self.report(record)

    def skipped(self, at: int, loss: float, norm: float) -> str:
        """What is said of an update that was left out."""
        trainer = self.trainer
        what = f"update left out: loss {loss:.4g}, gradient norm {norm}, rows of step {trainer.batches.numbered(at):,}"
        return what if trainer.scale.value == 1 else f"{what}; loss scale now {trainer.scale.value:g}"


def begin_copy(step: Step, late: bool) -> "tuple[Step, torch.Event | None]":
    """Start copying a step's figures off the device without waiting; the event tells when they are there."""
    if not late:
        return step, None
    loss, norm = (value.detach().to("cpu", non_blocking=True) for value in (step.loss, step.norm))
    event = torch.Event(step.loss.device)
    event.record()
    return Step(loss, norm, step.applied), event


def peak_memory(device: torch.device) -> int:
    """Most memory held so far, in bytes: of the device, or of this process where the device is the CPU."""
    if device.type in ("cuda", "xpu"):
        return torch.get_device_module(device).max_memory_allocated(device)
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def held_memory(device: torch.device) -> int:
    """Memory held now, in bytes, as `peak_memory` counts it; where the system does not tell, the most so far."""
    if device.type in ("cuda", "xpu"):
        return torch.get_device_module(device).memory_allocated(device)
    with contextlib.suppress(OSError, ValueError):
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")  # shared: pages of files, the shards' among them
    return peak_memory(device)
