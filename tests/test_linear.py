"""The blocks' linear layers: 8-bit products against fp32 ones, and where they are not used."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tenfold.model.linear import LINEARS, Linear, fp8, quantised

# Half a unit in the last place, relative to the value: 2^-4 for e4m3's three bits of mantissa, 2^-3 for e5m2's two. An
# error that is uniform within it has at most 1 / sqrt(3) of it as its root mean square, and those of a product's two
# factors are independent.
E4M3, E5M2 = 2**-4 / math.sqrt(3), 2**-3 / math.sqrt(3)
FORWARD, BACKWARD = math.hypot(E4M3, E4M3), math.hypot(E4M3, E5M2)
BF16 = 2**-8

# dynamo's own, while it traces a Function and looks at the .grad of its inputs
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


def drawn(*shape: int, seed: int, size: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * size).requires_grad_()


def run(product, x: Tensor, weight: Tensor, bias: Tensor | None, dy: Tensor, mixed: bool = True) -> list[Tensor]:
    """Output and gradients."""
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        y = product(x, weight, bias)
    inputs = [t for t in (x, weight, bias) if t is not None]
    return [y, *torch.autograd.grad(y, inputs, dy.to(y.dtype))]


def apart(actual: Tensor, expected: Tensor) -> float:
    return ((actual.float() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("shape", [(2, 16), (3, 13)], ids=["32 tokens", "39 tokens"])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_an_fp8_product_is_as_near_as_its_bits_allow(shape: tuple[int, int], size: float) -> None:
    """At any magnitude of weights and gradients: each tensor has a scale. And it is fp8, not bf16."""
    x, weight = drawn(*shape, 64, seed=0), drawn(96, 64, seed=1, size=size)
    dy = drawn(*shape, 96, seed=2, size=1 / size)
    exact = run(F.linear, x, weight, None, dy, mixed=False)
    got = run(fp8, x, weight, None, dy)
    for actual, expected, bound in zip(got, exact, (FORWARD, BACKWARD, BACKWARD), strict=True):
        assert 4 * BF16 < apart(actual, expected) <= bound
    assert [t.dtype for t in got] == [torch.bfloat16, torch.float32, torch.float32]
    assert got[0].shape == exact[0].shape


def test_its_bias_is_added_after_the_product() -> None:
    x, weight, bias, dy = drawn(32, 64, seed=0), drawn(96, 64, seed=1), drawn(96, seed=2), drawn(32, 96, seed=3)
    with_bias, without = run(fp8, x, weight, bias, dy), run(fp8, x, weight, None, dy)
    assert apart(with_bias[0] - without[0], bias.expand(32, 96)) < 2 * BF16 * with_bias[0].norm() / bias.norm()
    assert with_bias[0].dtype == without[0].dtype == torch.bfloat16
    assert apart(with_bias[3], dy.sum(0)) < 2 * BF16 * math.sqrt(32)


def test_zeros_and_what_is_not_finite() -> None:
    x, weight, dy = drawn(16, 32, seed=0), drawn(16, 32, seed=1), drawn(16, 16, seed=2)
    for value in run(fp8, x * 0, weight, None, dy * 0):
        assert not value.any()
    with torch.no_grad():
        x[3, 4] = math.inf  # an overflow shows in the loss, it is not clipped away
    assert run(fp8, x, weight, None, dy)[0].isnan().any()


def test_the_largest_value_becomes_the_formats_largest() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        q, scale = quantised(torch.tensor([0.0, -3.7, 1.0]), dtype)
        assert q[1].item() == torch.finfo(dtype).min
        assert (q.float() * scale)[1].item() == pytest.approx(-3.7, rel=1e-6)


@pytest.mark.parametrize("tokens", [32, 39])
def test_the_products_are_as_tensor_cores_want_them(tokens: int, monkeypatch) -> None:
    """Three of them, sizes in multiples of 16, rows times columns; sums are short-cut in the forward only."""
    fast, original = [], torch._scaled_mm

    def checked(a: Tensor, b: Tensor, **how) -> Tensor:
        assert not any(size % 16 for size in (*a.shape, *b.shape))
        assert a.is_contiguous()
        assert b.t().is_contiguous()
        fast.append(how["use_fast_accum"])
        return original(a, b, **how)

    monkeypatch.setattr(torch, "_scaled_mm", checked)
    run(fp8, drawn(tokens, 64, seed=0), drawn(96, 64, seed=1), None, drawn(tokens, 96, seed=2))
    assert fast == [True, False, False]


def test_without_gradients_the_product_is_plain() -> None:
    """A row does not depend on the others, whatever their number."""
    x, weight = drawn(39, 64, seed=0), drawn(96, 64, seed=1)
    with torch.no_grad():
        assert torch.equal(fp8(x, weight, None), F.linear(x, weight))


def test_it_is_compiled_as_one_graph() -> None:
    torch.compiler.reset()
    inputs = drawn(3, 13, 64, seed=0), drawn(96, 64, seed=1), drawn(96, seed=2), drawn(3, 13, 96, seed=3)
    compiled = torch.compile(fp8, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(run(compiled, *inputs), run(fp8, *inputs), strict=True):
        assert apart(actual, expected.float()) <= BF16


@pytest.mark.slow
def test_inductor_compiles_it() -> None:
    torch.compiler.reset()
    inputs = drawn(3, 13, 64, seed=0), drawn(96, 64, seed=1), drawn(96, seed=2), drawn(3, 13, 96, seed=3)
    for actual, expected in zip(run(torch.compile(fp8, fullgraph=True), *inputs), run(fp8, *inputs), strict=True):
        assert apart(actual, expected.float()) <= 2 * BF16


@pytest.mark.parametrize("bias", [True, False])
def test_the_layer_is_nn_linear_by_its_weights(bias: bool) -> None:
    ours, theirs = Linear(8, 24, bias=bias), nn.Linear(8, 24, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = drawn(3, 8, seed=0)
    assert torch.equal(ours(x), theirs(x))
    assert set(LINEARS) == {"plain", "fp8"}
