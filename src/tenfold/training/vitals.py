"""What is looked at while a model trains: every step's figures, every log's and every validation's. What is found wrong
is told as a sign."""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import cached_property
from statistics import fmean
from typing import Any

from tenfold.data.statistics import Statistics
from tenfold.errors import TenfoldError
from tenfold.recipe import lr_at
from tenfold.training.initial import FEW, NORM_FACTOR, first_loss, first_norm
from tenfold.training.signs import SIGNS, Signs
from tenfold.training.start import check_weights
from tenfold.training.trainer import Trainer

SMALLEST_SCALE = 2.0**-14
SKIPS = 10  # updates left out one after the other until skipping is given up
ENOUGH = 30  # values before one can be far from the others
MEMORY = 0.98  # of a running mean, kept at each value
FALLS = 0.01  # of the training loss; less is noise
ON_END = 30  # seconds of slow steps before they are told
LOGS = 5  # whose least memory counts
FEWEST_ROWS = 256
SHORT = 16  # tokens of a row; with fewer, rows of any text come again by chance
PER_PARAMETER, MOST_TOKENS = 2, 250_000_000  # tokens after which a model should beat its data's bigram model


class Diverged(TenfoldError):
    """The loss or the gradient norm of a step is no longer finite."""

    code = 1
    step, what = -1, ""


class Finite:
    """Whether each update went right, and how many were left out one after the other."""

    def __init__(self, trainer: Trainer) -> None:
        self.scale, self.row = trainer.scale, 0

    def __call__(self, step: int, loss: float, norm: float, accepted: bool) -> bool:
        """Whether the update was applied; Diverged if it is not finite and was, or if leaving it out does not help: too
        often in a row, or fp16's scale has shrunk beyond use."""
        finite = math.isfinite(loss) and math.isfinite(norm)
        applied = accepted and (math.isfinite(norm) or not self.scale.skips)
        self.row = 0 if applied else self.row + 1
        tolerated = (
            self.row <= SKIPS if self.scale.skips else math.isfinite(loss) and self.scale.value >= SMALLEST_SCALE
        )
        if not (finite if applied else tolerated):
            wrong = Diverged(
                f"step {step}: loss {loss}, gradient norm {norm}: not finite, training stopped and nothing of it was "
                f"saved; begin again with a lower recipe.lr, a longer warm-up or another precision"
            )
            wrong.step, wrong.what = step, f"step {step}: loss {loss}, gradient norm {norm}"
            raise wrong
        return applied


class Running:
    """Mean and standard deviation of a series of which newer values count more."""

    def __init__(self) -> None:
        self.count, self.mean, self.variance = 0, 0.0, 0.0

    def score(self, value: float) -> float:
        """How many standard deviations a value lies above the mean of those before; 0 while there are few. A value far
        away counts little in what follows."""
        self.count += 1
        keep = max(1 / self.count, 1 - MEMORY)
        deviation = math.sqrt(self.variance)
        score = (value - self.mean) / max(deviation, 1e-3 * abs(self.mean), 1e-12) if self.count > ENOUGH else 0.0
        if score > SIGNS["spike"].threshold:
            value = self.mean + 3 * deviation
        apart = value - self.mean
        self.mean += keep * apart
        self.variance = (1 - keep) * (self.variance + keep * apart * apart)
        return score


class Repeats:
    """Which of the rows came before. Of very many, an even share is remembered."""

    MOST = 1 << 18

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.share, self.rows, self.again = 1, 0, 0

    def add(self, row: int) -> None:
        """Take in a row's hash."""
        if row % self.share:
            return
        self.rows += 1
        self.again += row in self.known
        self.known.add(row)
        if len(self.known) > self.MOST:
            self.share *= 2
            self.known = {one for one in self.known if one % self.share == 0}


class Growth:
    """A quantity of which the least of every LOGS values rises again and again; the first steps, which allocate what is
    needed, do not count."""

    RISES, LEAST = 4, 0.005  # in a row, and the least share that counts as one

    def __init__(self) -> None:
        self.values: list[float] = []
        self.first, self.last, self.rises = 0.0, math.inf, 0
        self.early = True

    def add(self, value: float) -> float:
        """Take in a value; by which share the quantity grew since it began to rise, 0 before RISES in a row."""
        self.values.append(value)
        if len(self.values) == LOGS:
            low = math.inf if self.early else min(self.values)
            self.values.clear()
            self.early = False
            if low > (1 + self.LEAST) * self.last:
                self.rises += 1
            else:
                self.first, self.rises = low, 0
            self.last = low
        return self.last / self.first - 1 if self.rises >= self.RISES else 0.0


class Patience:
    """The validation losses seen so far, those in the `earlier` records of a run that goes on among them; speaks when
    there was no better one for `patience` evaluations."""

    def __init__(self, patience: int, signs: Signs, earlier: Iterable[dict[str, Any]] = ()) -> None:
        self.patience, self.signs = patience, signs
        self.best, self.at, self.since, self.train_then = math.inf, 0, 0, math.inf
        losses: list[float] = []
        for record in earlier:
            losses += [record["loss"]] if record.get("loss") is not None else []
            if record.get("val_loss") is not None:
                self.see(record["step"], record["val_loss"], fmean(losses) if losses else math.inf)
                losses.clear()

    def see(self, step: int, loss: float, train: float) -> None:
        """Take in a validation loss; `train`: mean training loss since the one before, infinite if none is known."""
        if loss < self.best:
            self.best, self.at, self.since, self.train_then = loss, step, 0, train
            return
        self.since += 1
        if math.isinf(self.train_then):  # the best was before the first step
            self.train_then = train

    def __call__(self, step: int, loss: float, train: float) -> bool:
        """The same, and whether no better loss was seen for `patience` evaluations in a row."""
        self.see(step, loss, train)
        if not self.since or not self.patience or self.since % self.patience:
            return False
        name = "overfitting" if train < (1 - FALLS) * self.train_then else "plateau"
        self.signs(name, step, since=self.since, loss=loss, best=self.best, at=self.at, train=train)
        return True


class Vitals:
    """The signs of a training in progress.

    statistics: of its data, perhaps still being computed. tuned: tokens a second that were found here for its speed on
    one process, if they were. keep_rows: saves the rows of a step and tells where, for spikes.
    """

    def __init__(
        self,
        trainer: Trainer,
        signs: Signs,
        statistics: "Future[Statistics]",
        untrained: bool,
        tuned: float | None = None,
        keep_rows: Callable[[int, dict[str, Any]], str] = lambda step, facts: "",
    ) -> None:
        self.trainer, self.signs, self.untrained, self.keep_rows = trainer, signs, untrained, keep_rows
        self.computed, self.tuned = statistics, tuned * trainer.world.size if tuned else None
        self.logs = 0
        self.loss, self.norm = Running(), Running()
        self.repeats, self.epoch = Repeats(), -1
        self.waiting, self.slow, self.growth = 0.0, 0.0, Growth()

    @cached_property
    def statistics(self) -> Statistics | None:
        """Of the data; None, which is told, if a process cannot compute them. All processes ask at the same place."""
        try:
            found, why = self.computed.result(), ""
        except TenfoldError as error:
            found, why = None, str(error)
        if self.trainer.world.least(int(found is not None)):
            return found
        message = f"not looked at: first loss, first norm, floor and bigram ({why or 'another process cannot'})"
        self.signs.report({"step": self.trainer.position, "event": "not looked at", "message": message})
        return None

    def step(self, at: int, loss: float, norm: float, rates: list[float]) -> None:
        """Look at an update that was applied: its figures and the rates that it had."""
        trainer, sign = self.trainer, self.signs
        wanted = lr_at(trainer.recipe, at)
        for rate in rates:
            if abs(rate - wanted) > SIGNS["schedule"].threshold * wanted:
                sign("schedule", at, value=rate, lr=wanted)
        if at == 0 and self.untrained:
            self.first(loss, norm)
        for what, value, running in (("loss", loss, self.loss), ("gradient norm", norm, self.norm)):
            score = running.score(value if what == "loss" else math.log(max(norm, 1e-30)))
            if score > SIGNS["spike"].threshold and not sign.silent("spike"):
                mean = running.mean if what == "loss" else math.exp(running.mean)
                facts = {"what": what, "value": value, "score": score, "mean": mean}
                sign("spike", at, **facts, rows=self.keep_rows(at, facts))
        self.look_at_rows(at)

    def first(self, loss: float, norm: float) -> None:
        """The signs `first loss` and `first norm`."""
        config, statistics = self.trainer.module.config, self.statistics
        if statistics is None:
            return
        targets = self.trainer.split.targets
        low, high = first_loss(config, statistics, targets)
        if not low <= loss <= high:
            chance = math.log(config.vocab)
            self.signs("first loss", 0, loss=loss, low=low, high=high, chance=chance, unigram=statistics.unigram)
        expected = first_norm(config, statistics, targets)
        if targets >= FEW and not expected / NORM_FACTOR <= norm <= expected * NORM_FACTOR:
            self.signs("first norm", 0, norm=norm, expected=expected)

    def look_at_rows(self, at: int) -> None:
        """The sign `repeated rows`; what the reading thread has read ahead counts as well."""
        rows = self.trainer.batches.read_rows
        while rows:
            epoch, row = rows.popleft()
            if epoch > self.epoch:
                self.repeats, self.epoch = Repeats(), epoch
            if epoch == self.epoch and self.trainer.split.length >= SHORT:
                self.repeats.add(row)
        seen = self.repeats
        if seen.rows >= FEWEST_ROWS and seen.again > SIGNS["repeated rows"].threshold * seen.rows:
            self.signs("repeated rows", at, value=seen.again / seen.rows)

    def went_back(self) -> None:
        """Training is at an earlier step again. Rows that come now again were trained on in vain before."""
        self.signs.went_back(self.trainer.position)
        self.trainer.batches.read_rows.clear()
        self.repeats, self.epoch = Repeats(), -1

    def logged(self, at: int, record: dict[str, Any], seconds: float) -> None:
        """Look at the figures of a log, those of the machine, over so many seconds."""
        wait, speed, memory = record["data_wait"], record["tokens_per_second"], record["memory_bytes"]
        self.logs += 1
        if self.logs == 1:
            return  # it has the compilation, and whatever else comes once
        self.waiting = self.waiting + seconds if wait > SIGNS["data wait"].threshold else 0.0
        if self.waiting >= ON_END:
            self.signs("data wait", at, value=wait)
        if self.tuned:
            self.slow = self.slow + seconds if speed < SIGNS["throughput"].threshold * self.tuned else 0.0
            if self.slow >= ON_END:
                self.signs("throughput", at, value=speed, share=speed / self.tuned, tuned=self.tuned)
        grown = self.growth.add(memory)
        if grown > SIGNS["memory"].threshold:
            before, now = self.growth.first / 1e6, self.growth.last / 1e6
            self.signs("memory", at, value=grown, before=before, now=now)

    def validated(self, at: int, loss: float) -> None:
        """Look at a validation loss, and at the weights of all processes; every process takes part."""
        self.compare_weights(at)
        config, statistics = self.trainer.module.config, self.statistics
        if statistics is None:
            return
        bits = loss / math.log(2) / statistics.bytes_per_token
        if bits < SIGNS["floor"].threshold:
            self.signs("floor", at, loss=loss, value=bits)
        tokens = at * self.trainer.split.targets
        if tokens >= min(PER_PARAMETER * config.parameters, MOST_TOKENS) and loss >= statistics.bigram:
            self.signs("bigram", at, loss=loss, tokens=tokens, bigram=statistics.bigram)

    def compare_weights(self, at: int) -> None:
        """The sign `weights`, where every process has all of them."""
        if self.trainer.speed.parallel != "fsdp":
            check_weights(self.trainer.module, self.trainer.world, at, self.signs)
