"""Climbs rungs: measures each on the best configuration so far, takes it if it is faster and trains alike, and tells
every figure as soon as there is one."""

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any

from tenfold.errors import HardwareError
from tenfold.hardware import Hardware
from tenfold.ladder.measure import Row, RungFailed, Worker, timed
from tenfold.ladder.plan import memory_of
from tenfold.ladder.rungs import FIT, TOLERANCE, Rung, apply, changed, processes_of, skipped
from tenfold.run import Run

FORMAT = 1
WARMUP = 5  # steps of learning rate warm-up: ten steps should learn something, or parity would prove little
TWO = 0.8  # share of the host's memory that two processes may take together


@dataclass(frozen=True)
class Terms:
    """How rungs are measured."""

    timed: int = 3
    """Timed steps, after a first one and one to warm up."""
    parity: int = 10
    """Steps whose losses are compared."""
    everything: bool = False
    """Also what takes minutes on a CPU."""
    peak: float | None = None
    """Peak rate of a device in FLOP/s, for one that the table lacks."""
    products: bool = True
    """Whether the rate of matrix products is measured beside each rung."""
    memory_share: float = 1.0
    """Of a GPU's memory, the share that a rung may use."""
    deadline: float = math.inf
    """When no further rung is begun, in seconds of time.monotonic()."""


Note = Callable[[list[Row], str], None]  # the rows so far, and the name of the rung that is being measured, or ""
Told = Callable[[dict[str, Any], str], None]  # the same, with the rows as a ladder's content


def measurable(run: Run, rows: int, length: int) -> Run:
    """The run with a step of so many rows of so many tokens, and a warm-up short enough to learn in ten steps."""
    recipe = replace(run.recipe, rows=rows, length=length, warmup=min(run.recipe.warmup, WARMUP))
    return replace(run, recipe=recipe)


def check_fits(run: Run, hardware: Hardware) -> None:
    """HardwareError if a run, with nothing left open in its speed, needs more memory for a single row than there is."""
    memory = memory_of(run, hardware.memory_bytes, 1)
    needed, there = memory.state + memory.row, hardware.memory_bytes
    if there and needed > there:
        raise HardwareError(
            f"{run.preset or 'this model'} needs {needed / 1e9:.1f} GB for one row of {run.recipe.length} in "
            f"{run.speed.precision}, {(needed - there) / 1e9:.1f} GB more than {hardware.described} has; take a "
            f"smaller model, or more devices and train with --speed.parallel fsdp"
        )


def apart(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Largest relative difference of two runs' losses, step by step."""
    return max(abs(mine - theirs) / abs(theirs) for mine, theirs in zip(losses, reference, strict=False))


@dataclass
class Climber:
    """A climb in progress: the best configuration so far, its rows of figures, and its process, which steps in turn
    with the next rung's. Ends its process with the `with` block."""

    best: Run
    """Begins as the configuration below the first rung, with nothing left open in its speed."""
    hardware: Hardware
    terms: Terms
    note: Note
    saved: dict[str, Row] = field(default_factory=dict)
    """Rows that were measured before, by name; they count as long as they stand on the same rungs."""
    rows: list[Row] = field(default_factory=list)
    below: Row | None = None
    """The last row that was taken."""
    old: Worker | None = None
    alone: bool = False
    """Whether rungs are measured without the one below, because that one did not live."""

    def __enter__(self) -> "Climber":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()

    def let_go(self) -> None:
        """End the process of the best configuration."""
        if self.old:
            self.old.close()
            self.old = None

    def climb(self, rungs: Sequence[Rung]) -> list[Row]:
        """Measure rung after rung; the rows."""
        for rung in rungs:
            above, known = apply(rung, self.best), self.saved.pop(rung.name, None)
            row = known or Row(rung.name, rung.title, rung.change, "skipped", self.obstacle(rung))
            if known and known.value is not None:
                above = changed(above, rung.field or "speed.rows", known.value)
            elif not known and not row.reason:
                self.note(self.rows, rung.name)
                above = self.measure(rung, above, row)
            if row.taken:
                self.best, self.below = above, row
                if row is not known:
                    self.saved.clear()  # what was measured before stood on other rungs
            self.rows.append(row)
            self.note(self.rows, "")
        return self.rows

    def obstacle(self, rung: Rung) -> str | None:
        """Why a rung is not measured, or None."""
        if time.monotonic() > self.terms.deadline:
            return "the time was used up"
        return skipped(rung, self.best, self.hardware, self.terms.everything)

    def measure(self, rung: Rung, above: Run, row: Row) -> Run:
        """Fill in the row; the run that was measured."""
        count = processes_of(above, self.hardware)
        steps = max(self.terms.parity, self.terms.timed + 2)
        fitted = rung.value == FIT or not self.rows
        row.status = "failed"
        try:
            with ExitStack() as stack:
                new = stack.enter_context(Worker(above, steps, count, fitted, self.terms.memory_share))
                if fitted:
                    row.value = new.rows
                    above = changed(above, "speed.rows", new.rows)
                    if above == self.best and self.below:
                        row.status, row.reason = "skipped", f"{new.rows} rows a device are what fits, as below"
                        return above
                times, ratio = timed(new, self.alternate(), self.terms.timed)
                while len(new.steps) < steps:
                    new.step()
                self.figure(row, above, new, times, ratio, count)
                self.judge(row, rung, above)
                if row.taken:
                    self.let_go()
                    if self.hardware.kind == "cpu" and count == 1:
                        self.old = new
                        stack.pop_all()
        except RungFailed as failed:
            if self.old and self.old.process.poll() is not None:  # it was the old one that ended
                self.let_go()
                self.alone = True
                return self.measure(rung, above, row)
            row.status = "skipped" if failed.kind == "hardware" else "failed"
            row.reason = str(failed)
        return above

    def alternate(self) -> Worker | None:
        """The process of the best configuration, if this machine's speed drifts and two fit its memory. A GPU's does
        not, and a second process would take memory from the first."""
        if self.hardware.kind != "cpu" or self.below is None or self.alone:
            return None
        if 2 * (self.below.peak_memory_bytes or 0) > TWO * self.hardware.memory_bytes:
            self.let_go()
            return None
        if self.old is None:  # after a climb that was interrupted
            try:
                self.old = Worker(self.best, self.terms.timed + 2)
                self.old.step()
                self.old.step()
            except RungFailed:
                self.let_go()
                self.alone = True
        return self.old

    def figure(self, row: Row, run: Run, new: Worker, times: list[float], ratio: float | None, processes: int) -> None:
        """Enter what was measured."""
        middle, precision = statistics.median(times), run.speed.precision
        flops = run.recipe.targets * run.model.flops(run.recipe.length)
        row.seconds_per_step, row.spread = middle, [min(times), max(times)]
        row.step_seconds = [step["seconds"] for step in new.steps]
        row.step_seconds[0] += new.trial
        row.skipped_updates = sum(not step["applied"] for step in new.steps)
        row.tokens_per_second = run.recipe.targets / middle
        row.speedup = row.speedup_before = 1.0
        if self.below:
            assert self.below.seconds_per_step
            assert self.below.speedup
            row.speedup_before = ratio or self.below.seconds_per_step / middle
            row.speedup = self.below.speedup * row.speedup_before
        peak = self.hardware.peak(precision, self.terms.peak)
        row.mfu = flops / middle / (peak * processes) if peak else None
        row.matrix_rate = new.ask("matrix")["matrix_rate"] if self.terms.products else None
        row.of_matrix_rate = flops / middle / (row.matrix_rate * processes) if row.matrix_rate else None
        row.peak_memory_bytes = new.steps[-1]["peak_memory_bytes"]
        row.first_step_seconds, row.cache = row.step_seconds[0], new.steps[0]["cache"]
        row.losses = [step["loss"] for step in new.steps]

    def slack(self, rung: Rung, row: Row) -> float:
        """Share by which a measured rung may be slower than the one below."""
        if not rung.for_first_step:
            return rung.slack
        before, now = self.below.first_step_seconds if self.below else None, row.first_step_seconds
        shorter = before is not None and now is not None and now < before
        counts = shorter and self.hardware.kind == "cpu" and self.best.speed.compile == "model"
        return rung.slack if counts else 0.0

    def judge(self, row: Row, rung: Rung, run: Run) -> None:
        """Whether a measured rung is taken: it trains as the first one does, and is not slower than the one below."""
        row.status, row.tolerance = "ok", TOLERANCE[run.speed.precision]
        first = next((r for r in self.rows if r.losses), None)
        if first:
            row.parity, row.parity_with = apart(row.losses, first.losses), first.name
        if not all(map(math.isfinite, row.losses)):
            row.status, row.parity, row.losses = "failed", None, []
            row.reason = "a loss is not finite"
        elif row.parity is not None and row.parity > row.tolerance:
            row.status = "failed"
            row.reason = (
                f"its losses are {row.parity:.1e} from {row.parity_with}'s; at most {row.tolerance:.0e} is right"
            )
            if row.skipped_updates:
                row.reason += f"; the loss scale skipped {row.skipped_updates} updates"
        elif self.below and row.speedup_before is not None and row.speedup_before < 1 - self.slack(rung, row):
            few = f"not faster by {-rung.slack:.0%}"
            row.status, row.reason = "rejected", few if row.speedup_before >= 1 else "slower than the rung below"
        elif rung.for_first_step and row.speedup_before is not None and row.speedup_before < 1:
            longer = 1 / row.speedup_before - 1
            row.reason = f"its first step is shorter, for which a step may take {longer:.0%} longer"


def as_json(run: Run, hardware: Hardware, rows: Sequence[Row], terms: Terms) -> dict[str, Any]:
    """A ladder as ladder.json has it."""
    content = {
        "format": FORMAT,
        "machine": {**asdict(hardware), "described": hardware.described},
        "preset": run.preset,
        "date": time.strftime("%Y-%m-%d"),
        "model": asdict(run.model),
        "rows": run.recipe.rows,
        "length": run.recipe.length,
        "at_a_time": run.speed.rows,
        "timed_steps": terms.timed,
        "peak": terms.peak,
        "tokens_per_step": run.recipe.targets,
        "flops_per_token": run.model.flops(run.recipe.length),
        "rungs": [asdict(row) for row in rows],
    }
    plain: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
    return plain
