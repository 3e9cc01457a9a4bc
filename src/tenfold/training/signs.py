"""Vital signs: what is looked at before the first step and while training, from which value on it speaks, and what it
says. A sign that `stops` ends the training; the others are told, recorded, and training goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenfold.errors import TenfoldError
from tenfold.training.initial import NORM_FACTOR


class Unsound(TenfoldError):
    """A vital sign says that this training cannot come out right."""

    code = 1


@dataclass(frozen=True)
class Sign:
    """`looks`: what is looked at, and when. `threshold`, in `unit`: from where on the sign speaks. `message`: what it
    says, with the figures found in braces, `threshold` among them."""

    looks: str
    threshold: float
    unit: str
    message: str
    stops: bool = False


AT_START = {
    "weights": Sign(
        "a checksum of the weights on every process, at the start, after the first step and at each validation",
        0,
        "processes that differ",
        "the processes do not have the same weights: {why}",
        stops=True,
    ),
    "rows": Sign(
        "which rows the processes take in one step, at the start",
        0,
        "rows taken twice",
        "{value} of the {rows} rows of step {step:,} are taken twice: processes or micro-steps read the same data",
        stops=True,
    ),
    "targets": Sign(
        "whether the targets of the first rows are their inputs moved by one, at the start",
        0,
        "targets that are not the next input",
        "{value:,} targets of the first rows are not the token after their input{same}: the model would learn "
        "something else than to go on with a text",
        stops=True,
    ),
    "causality": Sign(
        "the logits of random tokens, and again with the second half of the tokens changed, at the start; the kernel "
        "that trains likewise on random vectors, where a tenth counts",
        1e-6,
        "largest change of a logit before the changed tokens, as a share of the largest logit",
        "attention sees the future, its causal mask is missing or off by one: {what} change by {value:.1e} of their "
        "size when only later tokens change",
        stops=True,
    ),
    "groups": Sign(
        "the optimizer's groups against the recipe's rule, at the start",
        0,
        "parameters that are in no group, in two, or in one with other options than the recipe's",
        "{value} parameters are not optimised as the recipe says, {parameter} first: {what}",
        stops=True,
    ),
    "initial loss": Sign(
        "the loss of an untrained model on random tokens, at the start, against what its shape predicts",
        0,
        "nats outside the band, 10.8 to 11.1 for GPT-2's smallest",
        "an untrained model has a loss of {loss:.2f} on random tokens, where {low:.2f} to {high:.2f} is right (chance: "
        "{chance:.2f}): the initialisation is wrong, or the tying of the head (an embedding of unit variance, for "
        "instance)",
        stops=True,
    ),
    "learning rate": Sign(
        "the recipe's peak learning rate against Kaplan et al. 2020, equation D.1, for the model's size, at the start",
        5,
        "times that rate",
        "recipe.lr {lr:g} is {value:.1f} times what models of this size were found to bear ({usual:.1e}): expect "
        "spikes, or a loss that stays high; a tenth is the usual slip",
    ),
    "warm-up": Sign(
        "the recipe's warm-up against 2 / (1 - beta2) steps (Ma & Yarats 2021), and whether it ends before the recipe "
        "does, at the start",
        0.1,
        "of those steps",
        "recipe.warmup is {warmup:,}{what}",
    ),
}

WHILE_TRAINING = {
    "first loss": Sign(
        "the loss of the first step of an untrained model, on the run's data",
        0,
        "nats outside the band that the model's shape predicts",
        "the first loss is {loss:.2f}, where {low:.2f} to {high:.2f} is right (chance: {chance:.2f}; by the tokens' "
        "frequency alone: {unigram:.2f}): the initialisation or the tying of the head is wrong, the loss is not "
        "divided by the right number, or targets are not moved by one",
        stops=True,
    ),
    "first norm": Sign(
        "the gradient norm of the first step of an untrained model, of 1,000 targets or more, against what its shape "
        "and the data predict",
        NORM_FACTOR,
        "times more or less",
        "the first gradient norm is {norm:.3g}, where about {expected:.3g} is right: gradients are not divided by the "
        "number of micro-steps, processes or targets, or the initialisation is wrong",
    ),
    "schedule": Sign(
        "the learning rate that every group of the optimizer really had, at each step",
        1e-6,
        "of the recipe's rate",
        "the learning rate of step {step:,} was {value:.3e}, the recipe says {lr:.3e}: the schedule is not followed",
        stops=True,
    ),
    "spike": Sign(
        "the loss, and the logarithm of the gradient norm, against their running mean and standard deviation, at each "
        "step; the step's rows are saved in spikes/",
        7,
        "standard deviations above the mean",
        "{what} {value:.4g} is {score:.1f} standard deviations above its running mean of {mean:.4g}{rows}",
    ),
    "repeated rows": Sign(
        "the rows of the first process, of 16 tokens or more, once there are 256 of them, against those before in the "
        "same epoch",
        0.02,
        "of the rows",
        "{value:.0%} of the rows were already trained on in this epoch: the data holds the same text again and again, "
        "or the same rows are read",
    ),
    "floor": Sign(
        "each validation loss, in bits a byte of text",
        0.3,
        "bits a byte",
        "validation loss {loss:.4f} is {value:.2f} bits a byte of text, less than any model of text reaches "
        "({threshold}): attention sees its targets, targets are not moved by one, or the text repeats itself",
    ),
    "bigram": Sign(
        "each validation loss after 2 tokens a parameter, or 250 million, against a model of the data that sees one "
        "token only",
        0,
        "nats above it",
        "validation loss {loss:.4f} after {tokens:,} tokens is no better than a bigram model's of this data, "
        "{bigram:.4f}: the model does not use its context; `tenfold check` lists the likely causes",
    ),
    "overfitting": Sign(
        "validation losses without a better one for cadence.patience evaluations, while the training loss falls",
        0,
        "nats above the best",
        "validation loss has not improved for {since} evaluations: {loss:.4f} now, {best:.4f} at step {at:,}, while "
        "the training loss fell to {train:.4f}: the model is learning its training data by heart; the best of the "
        "saved checkpoints is kept",
    ),
    "plateau": Sign(
        "the same, while the training loss does not fall",
        0,
        "nats above the best",
        "validation loss has not improved for {since} evaluations: {loss:.4f} now, {best:.4f} at step {at:,}; the "
        "training loss, {train:.4f}, does not fall either; the best of the saved checkpoints is kept",
    ),
    "data wait": Sign(
        "the share of the time that steps waited for data, for 30 seconds on end",
        0.05,
        "of the time",
        "steps wait for their data {value:.0%} of the time: put the shards on a faster disk, or give the process more "
        "cores",
    ),
    "throughput": Sign(
        "tokens a second against what `tenfold tune` found here, for 30 seconds on end",
        0.6,
        "of the tuned figure",
        "{value:,.0f} tokens/s are {share:.0%} of the {tuned:,.0f} that were tuned here: something else uses the "
        "machine, or it is too hot",
    ),
    "memory": Sign(
        "memory held by this process or its device, the least of every 5 logs, rising 4 times in a row or more",
        0.2,
        "more than before",
        "memory grew by {value:.0%}, from {before:,.0f} to {now:,.0f} MB, and goes on: something is kept from step to "
        "step; the run will end for want of memory",
    ),
}

SIGNS = AT_START | WHILE_TRAINING


class Signs:
    """Tells what was found: a record for metrics.jsonl and the console and, if it `acts`, Unsound for a sign that
    stops. Every sign speaks once, a spike up to `MOST` times."""

    MOST = 20

    def __init__(self, report: Callable[[dict[str, Any]], None], acts: bool = True) -> None:
        self.report, self.acts = report, acts
        self.told: dict[str, list[int]] = {}

    def silent(self, name: str) -> bool:
        """Whether a sign has nothing more to say in this training."""
        return len(self.told.get(name, ())) >= (self.MOST if name == "spike" else 1)

    def went_back(self, step: int) -> None:
        """Training is at an earlier step again: what was told of later ones may be told again."""
        self.told = {name: [at for at in steps if at < step] for name, steps in self.told.items()}

    def __call__(self, name: str, step: int, **figures: Any) -> None:
        """A sign speaks at a step."""
        if self.silent(name):
            return
        self.told.setdefault(name, []).append(step)
        sign = SIGNS[name]
        message = sign.message.format(threshold=sign.threshold, step=step, **figures)
        if sign.stops and self.acts:
            raise Unsound(f"step {step}: {message}; --signs warn goes on all the same")
        self.report({"step": step, "event": "sign", "sign": name, "message": f"warning: {message}"})
