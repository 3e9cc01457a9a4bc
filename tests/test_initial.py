"""The first step of an untrained model, predicted: right models lie inside, wrong ones outside."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import training
from conftest import TINY, TINY_RECIPE
from tenfold.data.batches import load, row_starts, windows
from tenfold.data.shards import Corpus
from tenfold.data.statistics import Statistics, statistics
from tenfold.model import head
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.run import PRESETS
from tenfold.training.initial import NORM_FACTOR, first_loss, first_norm, forward, gelu_products

# English in GPT-2's tokens: collision is 0.0070 in web pages, 0.0082 in Wikipedia, 0.0089 in novels.
WEB = Statistics(unigram=7.0, bigram=5.4, bytes_per_token=4.5, collision=0.008, repeats=0.0003)
SHAKESPEARE = replace(WEB, collision=0.0207, repeats=0.0209)  # tiny Shakespeare in GPT-2's tokens
SMALLEST = PRESETS["gpt2-124m"]().model
SHAPES = {  # model; rows and length of its batch
    "tiny": (TINY, 8, 32),
    "one layer": (replace(TINY, layers=1), 8, 32),
    "deep": (replace(TINY, layers=24), 4, 32),
    "without biases": (replace(TINY, width=128, context=128, layers=4, bias=False), 8, 128),
    "wide": (replace(TINY, width=384, layers=4), 8, 32),
    "wide and deep": (replace(TINY, width=256, heads=4, layers=12), 4, 32),
}


def even(vocab: int) -> Statistics:
    """Of ids drawn from all of a vocabulary alike."""
    return Statistics(math.log(vocab), math.log(vocab), 1.0, collision=1 / vocab, repeats=1 / vocab)


def batch(corpus: Corpus, rows: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The rows that a first step of this seed trains on."""
    starts = row_starts(np.arange(rows), windows(corpus.train, length), length, seed)
    return load(corpus.train, starts, length, rows)


def measure(model: GPT, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean loss, and the norm of its gradient."""
    model.zero_grad()
    loss = model(x, y) / y.numel()
    loss.backward()
    return loss.item(), torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()


def fits(measured: tuple[float, float], config: ModelConfig, known: Statistics, targets: int) -> tuple[bool, bool]:
    """Whether a loss and a norm are those of a right first step."""
    low, high = first_loss(config, known, targets)
    norm = first_norm(config, known, targets)
    return low <= measured[0] <= high, norm / NORM_FACTOR <= measured[1] <= norm * NORM_FACTOR


@pytest.mark.parametrize("variance", [0.0128, 0.0512, 0.307, 0.64])
@pytest.mark.parametrize("correlation", [0.0, 0.4, 1.0])
def test_products_of_gelu_are_their_integrals(variance: float, correlation: float) -> None:
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(40))
    weights = torch.outer(weights, weights) / (2 * math.pi)
    a = math.sqrt(variance) * nodes[:, None].expand(40, 40)
    b = math.sqrt(variance) * (correlation * nodes[:, None] + math.sqrt(1 - correlation**2) * nodes[None, :])
    slopes = [
        torch.autograd.grad(F.gelu(v, approximate="tanh").sum(), v)[0]
        for v in (t.clone().requires_grad_() for t in (a, b))
    ]
    want = (
        (weights * F.gelu(a, approximate="tanh") * F.gelu(b, approximate="tanh")).sum(),
        (weights * slopes[0] * slopes[1]).sum(),
    )
    assert gelu_products(variance, correlation) == pytest.approx([w.item() for w in want], rel=0.04)


@pytest.mark.parametrize(("width", "layers"), [(64, 2), (256, 4), (512, 8)])
def test_the_stream_of_a_real_model_is_as_predicted(width: int, layers: int) -> None:
    config = ModelConfig(layers, 4, width, context=64, vocab=1000, padded_vocab=0)
    model, streams = GPT(config).initialise(0), []
    model.ln_f.register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0].detach().flatten(0, 1)))
    model(torch.randint(1000, (8, 64), generator=torch.Generator().manual_seed(0)))
    products = streams[0] @ streams[0].t() / width
    _, stream, alike = forward(config, 1 / 1000)
    assert products.diagonal().mean().item() == pytest.approx(stream, rel=0.1)
    assert (products.mean() / products.diagonal().mean()).item() == pytest.approx(alike, abs=0.05)


def test_the_band_of_the_smallest_preset_is_the_known_one() -> None:
    for known in (WEB, even(50257)):
        assert first_loss(SMALLEST, known, 524_288) == pytest.approx((10.8, 11.1), abs=0.005)


def test_the_band_moves_with_width_and_vocabulary() -> None:
    for name, preset in PRESETS.items():
        config = replace(preset().model, vocab=preset().model.vocab or 257)
        low, high = first_loss(config, WEB, 16_384)
        expected = math.log(config.vocab) + config.width * 0.0004 / 2
        assert low < expected < high < low + 0.4, name
    assert first_loss(PRESETS["gpt2-1558m"]().model, WEB, 16_384)[1] > 11.145  # what is expected there


def test_published_first_norms_are_predicted() -> None:
    # Logs of build-nanogpt's GPT-2 124M that others published: two on FineWeb-Edu, two on tiny Shakespeare.
    for known, targets, norms in (
        (WEB, 524_288, (15.34, 15.97)),
        (SHAKESPEARE, 16_384, (28.57,)),
        (SHAKESPEARE, 524_288, (26.99,)),
    ):
        assert [first_norm(SMALLEST, known, targets)] * len(norms) == pytest.approx(norms, rel=0.1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_real_models_lie_inside(corpus: Corpus, shape: str, seed: int) -> None:
    config, rows, length = SHAPES[shape]
    model = GPT(config).initialise(seed)
    x, y = batch(corpus, rows, length, seed)
    assert fits(measure(model, x, y), config, statistics(corpus), y.numel()) == (True, True)
    x, y = torch.randint(config.vocab, (2, *x.shape), generator=torch.Generator().manual_seed(seed))
    assert fits(measure(model, x, y), config, even(config.vocab), y.numel()) == (True, True)


def zipf(vocab: int) -> np.ndarray:
    """Frequencies by Zipf's law."""
    share = 1 / np.arange(1, vocab + 1)
    return share / share.sum()


def drawn(share: np.ndarray, rows: int, length: int) -> tuple[Statistics, Tensor, Tensor]:
    """Inputs and targets drawn one by one with these frequencies, and their statistics."""
    x, y = torch.from_numpy(np.random.default_rng(0).choice(len(share), (2, rows, length), p=share))
    same = float(share @ share)
    return replace(WEB, collision=same, repeats=same), x, y


@pytest.mark.parametrize("share", [zipf(65), zipf(50257), np.full(65, 1 / 65)], ids=["65", "50257", "65, all alike"])
def test_any_vocabulary_has_its_prediction(share: np.ndarray) -> None:
    known, x, y = drawn(share, 16, 32)
    config = ModelConfig(2, 2, 64, context=32, vocab=len(share), padded_vocab=50304 if len(share) == 50257 else 0)
    assert fits(measure(GPT(config).initialise(0), x, y), config, known, y.numel()) == (True, True)


def test_a_vocabulary_of_one_has_nothing_to_learn() -> None:
    config = ModelConfig(1, 1, 1600, context=8, vocab=1, padded_vocab=0)
    known, x = even(1), torch.zeros(1, 8, dtype=torch.int64)
    measured = measure(GPT(config).initialise(0), x, x)
    assert measured == (0, 0)
    assert fits(measured, config, known, 8) == (True, True)


def test_text_that_repeats_its_tokens_begins_lower() -> None:
    draw, ids = np.random.default_rng(0), [0]
    while len(ids) < 16 * 64 + 1:
        ids.append(ids[-1] if draw.random() < 0.6 else int(draw.integers(257)))
    x, y = torch.tensor(ids[:-1]).view(16, 64), torch.tensor(ids[1:]).view(16, 64)
    known = replace(even(257), repeats=(x == y).float().mean().item())
    config = ModelConfig(2, 2, 128, context=64, vocab=257, padded_vocab=0)
    measured = measure(GPT(config).initialise(0), x, y)
    assert measured[0] < math.log(257) - 0.3
    assert fits(measured, config, known, y.numel()) == (True, True)
    assert not fits(measured, config, even(257), y.numel())[0]


@pytest.mark.slow
def test_the_smallest_preset_lies_inside() -> None:
    known, x, y = drawn(zipf(50257), 2, 256)
    model = GPT(SMALLEST).initialise(0)
    model.loss = head.chunked
    assert fits(measure(model, x, y), SMALLEST, known, y.numel()) == (True, True)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_first_step_of_a_training_lies_inside(corpus: Corpus, precision: str) -> None:
    one = training.trainer(corpus.train, speed=replace(training.EXACT, precision=precision, rows=3))
    step = one.step()
    one.batches.close()
    measured = step.loss.item(), step.norm.item()
    assert fits(measured, TINY, statistics(corpus), TINY_RECIPE.targets) == (True, True)


def scaled(factor: float, name: str = "") -> Callable[[GPT], None]:
    """Multiplies the matrices whose names contain `name`."""

    def change(model: GPT) -> None:
        for key, parameter in model.named_parameters():
            if name in key and parameter.dim() > 1:
                parameter.data *= factor

    return change


def untied(factor: float) -> Callable[[GPT], None]:
    """Gives the model a head of its own, of `factor` times the right size."""

    def change(model: GPT) -> None:
        own = torch.randn(model.wte.weight.shape, generator=torch.Generator().manual_seed(1)) * 0.02 * factor
        model.register_parameter("own", torch.nn.Parameter(own))
        model.loss = lambda h, _, y, vocab: head.plain(h, own_of(model), y, vocab)

    return change


def own_of(model: GPT) -> Tensor:
    return model.get_parameter("own")


WRONG: dict[str, tuple[Callable[[GPT], None], int]] = {  # what was done; which of loss (0) and norm (1) tells
    "embedding of unit variance": (scaled(50, "wte"), 0),
    "embeddings of unit variance": (scaled(50, "w"), 0),
    "standard deviation 0.2": (scaled(10), 0),
    "standard deviation 0.1": (scaled(5), 0),
    "head alone 0.2": (untied(10), 0),
    "head alone 0.1": (untied(5), 0),
    "head alone 0.1, by its norm": (untied(5), 1),
    "head alone 0.002": (untied(0.1), 1),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("shape", ["tiny", "without biases", "wide"])
def test_wrong_weights_lie_outside(corpus: Corpus, name: str, shape: str) -> None:
    config, rows, length = SHAPES[shape]
    change, told = WRONG[name]
    model = GPT(config).initialise(0)
    change(model)
    x, y = batch(corpus, rows, length)
    assert not fits(measure(model, x, y), config, statistics(corpus), y.numel())[told]


def test_weights_too_small_by_ten_have_too_small_a_gradient_in_wide_models() -> None:
    config = replace(TINY, width=384, heads=4, layers=2, vocab=5000, padded_vocab=0)
    known = replace(WEB, collision=0.05, repeats=0.05)
    share = np.sqrt(0.05 - 1 / 5000)  # one token in five is the same, the others are all alike
    draw = np.random.default_rng(0)
    x, y = torch.from_numpy(np.where(draw.random((2, 16, 32)) < share, 0, draw.integers(0, 5000, (2, 16, 32))))
    model = GPT(config).initialise(0)
    assert fits(measure(model, x, y), config, known, y.numel()) == (True, True)
    scaled(0.1)(model)
    assert fits(measure(model, x, y), config, known, y.numel()) == (True, False)


@pytest.mark.parametrize("shape", SHAPES)
def test_wrong_sums_and_targets_lie_outside(corpus: Corpus, shape: str) -> None:
    config, rows, length = SHAPES[shape]
    model, known = GPT(config).initialise(0), statistics(corpus)
    x, y = batch(corpus, rows, length)
    loss, norm = measure(model, x, y)
    for factor in (0, 1 / 40, 1 / 4, 4, 8, 40):  # not divided by micro-steps, summed over processes; or divided twice
        assert not fits((loss, norm * factor), config, known, y.numel())[1], factor
    for factor in (0.5, 2):
        assert not fits((loss * factor, norm), config, known, y.numel())[0], factor
    assert not fits(measure(model, x, x), config, known, y.numel())[0]  # each token is asked for itself


def test_a_loss_that_is_not_divided_by_its_micro_steps_lies_outside(corpus: Corpus) -> None:
    model, known = GPT(TINY).initialise(0), statistics(corpus)
    x, y = batch(corpus, 8, 32)
    for part, targets in zip(x.split(2), y.split(2), strict=True):
        (model(part, targets) / targets.numel()).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()
    assert norm > NORM_FACTOR * first_norm(TINY, known, y.numel())
