"""Why a run can be off its curve: the usual mistakes, what each does to the loss, and how to test for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A mistake, what it does, and one line that finds it."""

    name: str
    effect: str
    test: str


CAUSES = {
    "gradients": Cause(
        "gradients are not averaged over processes and micro-steps, or the loss is not divided by their number",
        "the loss falls too slowly from early on; gradients were seen 64 % off where sharing them was switched on "
        "between forward and backward",
        "train 10 steps from the same weights on the same rows, on one process in one micro-step and as now: losses "
        "and gradient norms agree to four digits (`tenfold train ... --stop-at 10`, alone and under torchrun)",
    ),
    "rate": Cause(
        "the learning rate is not the recipe's: ten times too high or low, without warm-up, or decayed too early",
        "without warm-up a published run is 0.65 above at step 750 and still 0.10 at the end",
        "print the rate of steps {steps}: it is {rates}",
    ),
    "rows": Cause(
        "every process reads the same rows, or the same rows come again and again",
        "as a smaller batch; where few rows come again and again, only the training loss goes on falling",
        "print the first 8 tokens of every process's rows of two steps: none come twice",
    ),
    "fewer": Cause(
        "a step has fewer tokens than the log's reader thinks: its rows were rounded down, or micro-steps are counted",
        "the curve has the right shape and is late by a constant factor",
        "multiply processes, micro-steps, rows and length of a step: {tokens_per_step:,}",
    ),
    "precision": Cause(
        "weights or optimizer moments are kept in bf16 or fp16, where small updates are lost",
        "right at first, then a plateau, the sooner the lower the learning rate gets",
        "print the dtype of every parameter and moment: fp32; or train 500 steps in fp32 and compare",
    ),
    "decay": Cause(
        "weight decay reaches everything, or nothing",
        "small beside the others",
        "count what decays: all but the 98 tensors with 121,344 numbers of biases and LayerNorms",
    ),
    "init": Cause(
        "the initialisation or the tying of the head is wrong, such as an embedding of unit variance",
        "the first loss is far above chance, which is 10.82: 513 was seen for unit variance",
        "print the first loss on random tokens (10.8 to 11.1) and the standard deviation of wte (0.02)",
    ),
    "data": Cause(
        "another dataset or tokenizer, or rows that begin at wrong places",
        "a constant distance; with a smaller vocabulary a first loss below 10.8",
        "decode a row of each split (`tenfold data show FOLDER`) and read it",
    ),
    "mask": Cause(
        "attention sees the token that it should predict: the causal mask is missing or off by one",
        "lower than any right run, while samples are nonsense",
        "change the last token of a row: the logits before it stay as they are",
    ),
    "targets": Cause(
        "targets are not moved by one: the model copies its input",
        "soon near zero, while samples repeat one token",
        "compare a row's targets with its inputs: y[:-1] equals x[1:]",
    ),
    "leak": Cause(
        "text that validates is trained on as well",
        "a little below, the more the longer it trains",
        "search the training shards for the first 50 tokens of the validation split",
    ),
    "scorer": Cause(
        "HellaSwag is scored otherwise: by the sum of an ending's losses instead of their mean, or on other text",
        "chance, or a few hundredths less, at any loss",
        "score the released GPT-2 124M by the same code: 0.2955 over 10,042 items",
    ),
    "model": Cause(
        "the model is another one: larger, or of a newer design",
        "from step 2,000 on published runs of twice the size are 0.12 to 0.15 below, of a quarter 0.42 to 0.50 above",
        "count the parameters: 124,439,808 without padding of the vocabulary",
    ),
}

SLOW = ("gradients", "rate", "rows", "fewer", "data")
ORDER = {  # what is seen -> its likely causes, the likeliest first
    "wrong from the start": ("init", "data", "targets"),
    "too slow from early on": SLOW,
    "above where it is known": SLOW,
    "hardly learning any more": ("gradients", "rate", "rows", "precision", "fewer"),
    "right at first, then too slow": ("rate", "precision", "rows", "decay"),
    "no longer a number": ("rate", "precision", "init"),
    "right loss, low HellaSwag": ("scorer", "data"),
    "a little below": ("leak", "model", "data"),
    "far below": ("mask", "targets", "leak", "model"),
}
