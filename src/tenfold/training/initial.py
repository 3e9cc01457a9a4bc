"""What an untrained GPT-2 does in its first step, predicted: the band of its loss and the norm of its gradient. A model
that is initialised or averaged otherwise lies outside. Nothing of the mathematics is fitted; how near it comes to real
models is in benchmarks/NOTES.md.

A wide network with random weights is described by averages over its weights (Poole et al. 2016, Exponential
expressivity in deep neural networks through transient chaos; Schoenholz et al. 2017, Deep information propagation). Of
the residual stream they are two: the variance of an element, and how much two tokens' streams point the same way. Both
grow from half to half of the blocks, because attention that knows nothing yet averages the tokens before it, and GELU
has a mean. Backward it is one: the squared length of the sum over targets of the gradient by the stream. Each half adds
to it what goes through its two matrices, divided by the variance of the stream, as its LayerNorm does.

The logits of a GPT-2 of width C have variance s = C STD^2, since the head is tied and what it multiplies has length
sqrt(C). So the loss is near ln V + s / 2, 10.98 for GPT-2's smallest, and the gradient of a target y at the head is the
row W_y, of squared length s, less the mean row. Rows are independent, so the sum of the gradients over the targets of a
text has the squared length s K, where K is the probability that two targets are the same beyond chance: this is why
the norm of a first step goes with the frequencies of the tokens, and falls with the number of targets only at first.
"""

import math
from typing import NamedTuple

from tenfold.data.statistics import Statistics
from tenfold.model.config import STD, ModelConfig

BELOW, ABOVE = 0.18, 0.12  # nats: about 10.98 they make the band that is known for GPT-2's smallest, 10.8 to 11.1
DEVIATIONS = 3.0  # of the loss over initial weights and batches, where that is more
FEW, RARE = 1000, 5.0  # so many deviations with fewer targets, whose repeats come in lumps
RUN = 32  # targets in a row that repeat or do not: about 20 in source code, where whole lines do
NORM_FACTOR = 1.8  # by which the gradient norm of a right run may differ from `first_norm`, either way

Pair = tuple[float, float]  # of a token with itself, and of two tokens


class Half(NamedTuple):
    """Half of a block, attention or MLP, before training: two matrices with something between."""

    stream: float
    """Variance of an element of the residual stream before it."""
    alike: float
    """Correlation of two tokens' streams there."""
    features: Pair
    """Products of what its second matrix reads: their sum over the elements."""
    slope: Pair
    """The same of the factors that a gradient takes between its matrices."""


def attention(width: int, length: int, alike: float) -> tuple[Pair, Pair]:
    """Features and slope of attention that weighs all tokens so far the same: of t tokens the mean keeps 1 / t of what
    is each one's own, on average over a row ln(length) / length."""
    kept = (math.log(length) + 0.577) / length
    s = width * STD**2
    return (width * s * (alike + (1 - alike) * kept), width * s * alike), (width, width)


def mlp(width: int, length: int, alike: float) -> tuple[Pair, Pair]:
    """Features and slope of the MLP, by `gelu_products`."""
    (own, own_slope), (other, other_slope) = (gelu_products(width * STD**2, c) for c in (1.0, alike))
    return (4 * width * own, 4 * width * other), (4 * width * own_slope, 4 * width * other_slope)


def gelu_products(variance: float, correlation: float) -> tuple[float, float]:
    """Means of g(a) g(b) and of g'(a) g'(b), where g is GELU and a, b are normal of such variance and correlation: the
    first three terms of their Hermite series, whose coefficients are the means of g, of g' (which is 1/2) and of g''.
    """
    mean = variance / math.sqrt(2 * math.pi * (1 + variance))
    bend = (2 + variance) / math.sqrt(2 * math.pi * (1 + variance) ** 3)
    shared = variance * correlation
    return mean**2 + shared / 4 + (bend * shared) ** 2 / 2, 1 / 4 + bend**2 * shared


def forward(config: ModelConfig, collision: float) -> tuple[list[Half], float, float]:
    """The halves in their order, and the variance of the stream behind them and the correlation of two tokens there."""
    stream, shared, halves = 2 * STD**2, STD**2 * (collision + 1 / config.context), list[Half]()
    for half in (attention, mlp) * config.layers:
        alike = shared / stream
        features, slope = half(config.width, config.context, alike)
        halves.append(Half(stream, alike, features, slope))
        stream += into_stream(config) * features[0]
        shared += into_stream(config) * features[1]
    return halves, stream, shared / stream


def into_stream(config: ModelConfig) -> float:
    """Variance of the weights of a half's second matrix."""
    return STD**2 / (2 * config.layers)


def first_loss(config: ModelConfig, statistics: Statistics, targets: int) -> tuple[float, float]:
    """Lowest and highest loss, in nats a target, that a right model of this shape may have on its first step's
    `targets`: 10.8 and 11.1 for GPT-2's smallest on ordinary text. `config.vocab` is known.

    The tied head finds its token again in the stream: the logit of the token just read is higher by
    g = s / sqrt(variance of the stream), which makes targets that repeat it cheaper by g and all others dearer by the
    share that it takes of the probability, log(1 + (e^g - 1) / V). About that, BELOW and ABOVE, or three standard
    deviations, five with few targets: those of the targets' mean logit, whose variance is s K times the correlation of
    two tokens' streams, and of the share of repeats, when they come in runs.

    It sees an embedding of unit variance, weights that are too large by five or more, in the head alone too, a loss
    that is twice or half of what it should be, and targets that are the inputs themselves. It does not see weights that
    are too small, by which the loss falls to ln V, and a head of the right size that is not tied only in text that
    repeats its tokens.
    """
    s = config.width * STD**2
    _, stream, alike = forward(config, statistics.collision)
    gain, repeats = s / math.sqrt(stream), statistics.repeats
    same, mix = shared_targets(config, statistics, targets)
    spread = s / 2 * (1 - 1 / config.vocab)
    expected = math.log(config.vocab) + spread + math.log1p(math.expm1(gain) / config.vocab) - repeats * gain
    variance = s * same * (mix + (1 - mix) * alike) + gain**2 * repeats * (1 - repeats) * RUN / targets
    deviation = (DEVIATIONS if targets >= FEW else RARE) * math.sqrt(variance)
    return expected - max(BELOW, deviation), expected + max(ABOVE, deviation)


def first_norm(config: ModelConfig, statistics: Statistics, targets: int) -> float:
    """Norm of the gradient of the mean loss over the first step's `targets`, before clipping. A right run's lies within
    NORM_FACTOR of it, either way. `config.vocab` is known.

    It sees a loss that was not divided by 4 or more micro-steps, gradients summed over 4 or more processes, a head that
    is too large by five or too small by ten, and a norm of zero. A factor of 2 it sees in most runs, not in all, and 3
    in almost all: what moves the norm is how often the batch at hand repeats its tokens, which in a few rows is not
    what it is in the whole text. With fewer than 1,000 targets of uneven text, such as source code, a right run may lie
    outside. All weights too small by ten it sees from a width of some 256 on; of an embedding of unit variance
    `first_loss` tells more.
    """
    s, bias = config.width * STD**2, int(config.bias)
    halves, stream, alike = forward(config, statistics.collision)
    same, mix = shared_targets(config, statistics, targets)

    def mean(pair: Pair) -> float:
        """Over pairs of positions that have the same target."""
        return mix * pair[0] + (1 - mix) * pair[1]

    square = config.width * same * mean((1, alike))  # of the tied embedding, as the head
    gradient = s * same / stream
    for half in reversed(halves):
        inner = into_stream(config) * mean(half.slope) * gradient
        square += (mean(half.features) + bias) * gradient + (config.width * mean((1, half.alike)) + bias) * inner
        gradient += inner * s / half.stream
    return math.sqrt(square + gradient * mean((1, statistics.collision)))  # and as the embedding


def shared_targets(config: ModelConfig, statistics: Statistics, targets: int) -> Pair:
    """Probability that two of the targets are the same, beyond that of a uniform vocabulary, and which share of it are
    targets paired with themselves."""
    beyond, itself = statistics.collision - 1 / config.vocab, (1 - statistics.collision) / targets
    together = beyond + itself  # 0 for a vocabulary of one
    return together, itself / together if together else 1.0
