"""The model against transformers' GPT-2, and every attention kernel and loss against its definition."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tenfold.model import head
from tenfold.model.attention import KERNELS, naive
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.model.head import IGNORE, LOSSES

HERE = [name for name in LOSSES if name != "torch" or hasattr(torch.nn.functional, "linear_cross_entropy")]  # 2.13
SMALL = ModelConfig(layers=2, heads=4, width=64, context=48, vocab=211, padded_vocab=0)


def draw(config: ModelConfig, rows: int = 3, length: int = 40, seed: int = 1) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(config.vocab, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


def transformers_twin(model: GPT):
    """GPT2LMHeadModel with the same weights. Its Conv1D keeps matrices transposed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    c = model.config
    twin = GPT2LMHeadModel(
        GPT2Config(vocab_size=c.embedding_rows, n_positions=c.context, n_embd=c.width, n_layer=c.layers, n_head=c.heads)
    )
    theirs = twin.transformer.state_dict()
    for name, parameter in model.named_parameters():
        matrix = name.startswith("h.") and parameter.dim() == 2
        theirs[name].copy_(parameter.detach().t() if matrix else parameter.detach())
    assert set(theirs) == {name for name, _ in model.named_parameters()}
    return twin.eval()


def test_logits_and_loss_equal_those_of_transformers() -> None:
    model = GPT(SMALL).initialise(3)
    with torch.no_grad():  # norms and biases that matter, which the initial weights do not have
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    x, y = draw(SMALL)
    with torch.no_grad():
        twin = transformers_twin(model)
        expected = twin(x).logits
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
        loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), y.flatten())
        torch.testing.assert_close(model(x, y) / y.numel(), loss, rtol=1e-5, atol=0)


def test_smallest_gpt2_has_its_published_number_of_parameters() -> None:
    config = ModelConfig(padded_vocab=0)
    with torch.device("meta"):
        model = GPT(config)
    assert sum(p.numel() for p in model.parameters()) == config.parameters == 124_439_808


# shapes (Tq, Tk): square, one token after a cache, several after a cache, and more queries than one block holds
SHAPES = [(1, 1), (5, 5), (1, 9), (4, 9), (150, 150), (140, 300)]
NOT_HERE = {"cudnn", "fa3", "flex"}  # on a CPU; they train on as many queries as keys, else they are sdpa


@pytest.mark.parametrize(
    ("name", "shape"), [(n, (q, k)) for n in KERNELS for q, k in SHAPES if n not in NOT_HERE or q != k], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_kernel_equals_naive_attention(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    queries, keys = shape
    generator = torch.Generator().manual_seed(0)

    def normal(tokens: int) -> Tensor:  # strided as the model's, (B, T, H, D) seen as (B, H, T, D)
        return torch.randn(2, tokens, 3, 8, generator=generator, dtype=dtype).transpose(1, 2)

    inputs, dy = (normal(queries), normal(keys), normal(keys)), normal(queries)

    def run(kernel) -> Iterator[Tensor]:
        own = [t.clone().requires_grad_() for t in inputs]
        y = kernel(*own)
        yield y
        yield from torch.autograd.grad(y, own, dy)

    # naive itself takes its softmax in fp32, so fp64 inputs cannot agree further than that
    for actual, expected in zip(run(KERNELS[name]), run(naive), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_a_query_sees_its_past_and_nothing_else(name: str) -> None:
    """Bottom-right alignment: with 4 queries and 9 keys the first query sees 6 keys."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, t, 8, generator=generator) for t in (4, 9))
    v = torch.eye(9)[:, :8].expand(1, 1, 9, 8)  # the output is the probabilities of the first 8 keys
    seen = KERNELS[name](q, k, v)[0, 0] > 0
    assert seen.sum(-1).tolist() == [6, 7, 8, 8]


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize(("autocast", "tolerance"), [(False, 1e-6), (True, 2e-2)], ids=["fp32", "bf16"])
def test_every_loss_equals_the_plain_one(
    name: str, padding: int, autocast: bool, tolerance: float, monkeypatch
) -> None:
    monkeypatch.setattr(head, "CHUNK", 32)  # several chunks, the last of them short
    monkeypatch.setattr(head, "SLICE", 12)
    vocab, generator = 101, torch.Generator().manual_seed(0)
    x = torch.randn(3, 29, 16, generator=generator)
    weight = torch.randn(vocab + padding, 16, generator=generator)
    targets = torch.randint(vocab, (3, 29), generator=generator)
    targets[0, 5:9], targets[2] = IGNORE, IGNORE

    def run(loss, autocast: bool = autocast) -> Iterator[Tensor]:
        own = x.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss(own[0], own[1], targets, vocab)
        yield value
        yield from torch.autograd.grad(value * 0.37, own)  # the step scales the sum

    actual, expected = list(run(LOSSES[name])), list(run(head.plain))
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype == torch.float32
        assert (a - e).norm() <= tolerance * e.norm()
    assert not actual[2][vocab:].any()  # padding learns nothing
    exact = list(run(head.plain, autocast=False))[1]
    assert ((actual[1] - exact).norm() > 1e-3 * exact.norm()) == autocast  # products are in autocast's dtype
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        value = LOSSES[name](x, weight, targets, vocab)
    assert (value - expected[0]).abs() <= tolerance * expected[0].abs()
    with torch.inference_mode():
        LOSSES[name](x, weight, targets, vocab)


@pytest.mark.parametrize("name", HERE)
def test_a_loss_of_nothing_but_ignored_targets_is_zero(name: str) -> None:
    x, weight = torch.randn(1, 4, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    value = LOSSES[name](x, weight, torch.full((1, 4), IGNORE), 11)
    dx, dweight = torch.autograd.grad(value, (x, weight))
    assert value == 0
    assert not dx.any()
    assert not dweight.any()


@pytest.mark.parametrize("name", HERE)
def test_a_loss_stays_finite_where_the_right_token_is_hopeless(name: str) -> None:
    x, weight = torch.tensor([[[1000.0]]], requires_grad=True), torch.tensor([[1.0], [0.0]])
    value = LOSSES[name](x, weight, torch.tensor([[1]]), 2)
    assert value == 1000


def test_an_untrained_model_knows_nothing() -> None:
    """ln 50257 = 10.82, plus a little for unequal logits. A wider initialisation or a leak shows here."""
    config = ModelConfig(layers=2, heads=4, width=256, context=64)
    x, y = draw(config, rows=2, length=64)
    with torch.no_grad():
        loss = GPT(config).initialise(0)(x, y) / y.numel()
    assert 10.8 <= loss <= 11.1


@pytest.mark.parametrize("name", HERE)
def test_padding_changes_neither_weights_nor_training(name: str) -> None:
    x, y = draw(SMALL)
    losses, weights = [], []
    for padded_vocab in (0, 256):
        model = GPT(ModelConfig(4, 2, 32, 48, vocab=SMALL.vocab, padded_vocab=padded_vocab)).initialise(5)
        weights.append({key: value[: SMALL.vocab].clone() for key, value in model.state_dict().items()})
        model.loss = LOSSES[name]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        losses.append([])
        for _ in range(5):
            loss = model(x, y) / y.numel()
            loss.backward()
            losses[-1].append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        assert not model.wte.weight[SMALL.vocab :].any()  # padding starts at zero and gets no gradient, so it stays
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0] - 0.1


def test_initial_weights_have_gpt2s_spread() -> None:
    """0.02 for all matrices but the two projections into the residual stream, which 2 layers halve."""
    for name, parameter in GPT(ModelConfig(2, 4, 128, 64, vocab=512, padded_vocab=0)).initialise(0).named_parameters():
        if parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.01 if "c_proj" in name else 0.02, rel=0.05)


def test_initial_weights_depend_on_the_seed_and_not_on_threads() -> None:
    before = torch.get_num_threads()
    one = GPT(SMALL).initialise(1).state_dict()
    torch.set_num_threads(1 if before > 1 else 2)
    try:
        again, other = GPT(SMALL).initialise(1).state_dict(), GPT(SMALL).initialise(2).state_dict()
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert not torch.equal(one["wte.weight"], other["wte.weight"])


def test_fast_rows_train_in_bf16_as_the_plain_ones_do_in_fp32() -> None:
    x, y = draw(SMALL)
    losses = []
    for kernel, loss_name, mixed in (("naive", "plain", False), ("rows", "chunked", True)):
        model = GPT(SMALL).initialise(0)
        model.loss = LOSSES[loss_name]
        for block in model.h:
            block.attn.kernel = KERNELS[kernel]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses.append([])
        for _ in range(10):
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                loss = model(x, y) / y.numel()
            loss.backward()
            losses[-1].append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    assert losses[1] == pytest.approx(losses[0], abs=5e-3)


def test_recomputation_gives_the_same_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    model = GPT(SMALL).initialise(0)
    for block in model.h:
        block.attn.kernel = KERNELS["rows"]
    x = torch.randn(2, 40, SMALL.width)
    parameters = list(model.h[0].parameters())
    plain = torch.autograd.grad(model.h[0](x).square().sum(), parameters)
    again = torch.autograd.grad(checkpoint(model.h[0], x, use_reentrant=False).square().sum(), parameters)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
