"""Attention kernels and the chunked loss where they meet hardware and compiler: each kernel is the one it is named
after or fails, and our own operators are one node of a compiled graph. Run as a script under torchrun, trains
compiled."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.nn.attention import SDPBackend, register_flash_attention_impl, restore_flash_attention_impl, sdpa_kernel

from conftest import ROOT, TINY, environment, torchrun
from tenfold import world as worlds
from tenfold.data.shards import Corpus, open_corpus
from tenfold.model import attention, head
from tenfold.model.attention import KERNELS, naive
from tenfold.model.gpt import GPT
from tenfold.model.head import IGNORE, LOSSES
from training import EXACT, losses, trainer

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
on_hopper = pytest.mark.skipif(
    find_spec("flash_attn_interface") is None
    or not torch.cuda.is_available()
    or torch.cuda.get_device_capability()[0] != 9,
    reason="needs a Hopper GPU and the package flash_attn_interface",
)
# dynamo looks at the .grad of what it traces
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


def normal(*shape: int, seed: int = 0, **kind) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(**kind).requires_grad_()


def qkv(tokens: int, **kind) -> tuple[Tensor, Tensor, Tensor]:
    a, b, c = (normal(2, 3, tokens, 16, seed=seed, **kind) for seed in range(3))
    return a, b, c


def with_gradients(f: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The output of a function and the gradients of its inputs."""
    y = f(*inputs)
    return [y, *torch.autograd.grad(y.float().square().sum(), inputs)]


def captured(f: Callable, *inputs: Tensor, **how) -> tuple[list[Tensor], list[str]]:
    """What `with_gradients` gives for a function compiled as one graph, and the operators in it, forward and
    backward."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    operators: list[str] = []

    def capture(graph: torch.fx.GraphModule, _):
        operators.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    compiled = torch.compile(f, fullgraph=True, backend=aot_autograd(fw_compiler=capture, bw_compiler=capture), **how)
    return with_gradients(compiled, *inputs), operators


def ours(operators: list[str]) -> list[str]:
    return [name for name in operators if name.startswith("tenfold.")]


# --- kernels that are what they are named after, or raise


def test_flash_is_the_flash_kernel_compiled_too() -> None:
    """Where torch is told to use another one, the compiled graph still has the flash kernel, forward and backward."""
    with sdpa_kernel(SDPBackend.MATH):
        results, operators = captured(KERNELS["flash"], *qkv(40))
    assert sum("_flash_attention" in name for name in operators) == 2
    for actual, expected in zip(results, with_gradients(naive, *qkv(40)), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a GPU")
@pytest.mark.parametrize("keys", [40, 300])
@pytest.mark.parametrize("name", ["sdpa", "rows", "flash"])
def test_the_map_is_what_the_kernels_compute(name: str, keys: int) -> None:
    """T39: its rows sum to 1, nothing lies above the diagonal, and by it the values become what any kernel gives."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, keys, 16, generator=draw) for _ in range(3))
    seen = attention.attention_map(q, k)
    torch.testing.assert_close(seen.sum(-1), torch.ones(2, 3, keys))
    assert seen.triu(1).abs().max() == 0
    assert seen.min() >= 0
    torch.testing.assert_close(seen @ v, KERNELS[name](q, k, v), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["cudnn", "fa3", "flex"])
def test_a_kernel_that_cannot_train_here_raises(name: str) -> None:
    with pytest.raises((RuntimeError, ModuleNotFoundError, NotImplementedError)):
        KERNELS[name](*qkv(40))


@pytest.mark.parametrize("name", KERNELS)
def test_without_gradients_every_kernel_runs_anywhere(name: str) -> None:
    """Evaluation and sampling: any length, any precision, any device."""
    q, k, v = qkv(40)
    with torch.no_grad():
        torch.testing.assert_close(KERNELS[name](q, k, v), naive(q, k, v), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_fa3_puts_its_kernels_in_place_first(compiled: bool, monkeypatch) -> None:
    from torch.nn.attention import _registry

    calls = []

    class Handle:
        def remove(self) -> None: ...

    monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA3", None)
    register_flash_attention_impl("FA3", register_fn=lambda: calls.append("FA3") or Handle())
    try:
        kernel = torch.compile(KERNELS["fa3"], fullgraph=True, backend="eager") if compiled else KERNELS["fa3"]
        for _ in range(2):
            y = kernel(*qkv(40))
    finally:
        restore_flash_attention_impl(_raise_warn=False)
    assert calls == ["FA3"]
    torch.testing.assert_close(y, naive(*qkv(40)), rtol=1e-5, atol=1e-5)


def test_flex_masks_as_the_others_and_makes_each_mask_once(monkeypatch) -> None:
    """Its forward, by the compiler's own definition; the lengths need not be multiples of the mask's blocks."""
    made = []
    monkeypatch.setattr(attention, "MASKS", {})
    original = attention.create_block_mask
    monkeypatch.setattr(attention, "create_block_mask", lambda *a, **k: made.append(a[3]) or original(*a, **k))
    kernel = torch.compile(KERNELS["flex"], fullgraph=True, backend="aot_eager")
    for length in (150, 40, 150):
        torch.compiler.reset()
        q, k, v = (t.detach() for t in qkv(length))
        torch.testing.assert_close(kernel(q, k, v), naive(q, k, v), rtol=1e-5, atol=1e-5)
    assert made == [150, 40]


@on_gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["flash", "cudnn", "flex", pytest.param("fa3", marks=on_hopper)])
def test_kernels_of_gpus_equal_naive_attention(name: str, compiled: bool) -> None:
    inputs = [normal(2, 4, 300, 64, seed=seed, device="cuda", dtype=torch.bfloat16) for seed in range(3)]
    kernel = torch.compile(KERNELS[name], fullgraph=True) if compiled else KERNELS[name]
    wide = [t.detach().float().requires_grad_() for t in inputs]
    for actual, expected in zip(with_gradients(kernel, *inputs), with_gradients(naive, *wide), strict=True):
        assert (actual.float() - expected).norm() <= 2e-2 * expected.norm()


# --- our own operators


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_keeps_the_rules_of_an_operator(dtype: torch.dtype, monkeypatch) -> None:
    """torch's own checks: the schema, shapes without data, gradients, and all of that under the compiler."""
    monkeypatch.setattr(attention, "BLOCK", 12)
    q, k, v = qkv(40, dtype=dtype)
    opcheck(attention.rows_forward, (q, k, v))
    with torch.no_grad():
        y, kept = attention.rows_forward(q, k, v)
        opcheck(attention.rows_backward, (y, q, k, v, y, kept))


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_chunked_sum_keeps_the_rules_of_an_operator(dtype: torch.dtype, wanted: bool, monkeypatch) -> None:
    monkeypatch.setattr(head, "CHUNK", 12)
    x, weight = normal(30, 8), normal(25, 8, seed=1)
    targets = torch.randint(21, (30,), generator=torch.Generator().manual_seed(0))
    inputs = (x.requires_grad_(wanted), weight.requires_grad_(wanted), targets, 21, dtype, wanted)
    opcheck(head.chunked_sum, inputs)


@pytest.mark.parametrize(("mixed", "tolerance"), [(False, 1e-6), (True, 1e-2)], ids=["fp32", "bf16"])
def test_a_block_with_rows_is_one_graph_with_one_node_of_it(mixed: bool, tolerance: float, monkeypatch) -> None:
    monkeypatch.setattr(attention, "BLOCK", 12)
    block = GPT(TINY).initialise(0).h[0]
    block.attn.kernel = KERNELS["rows"]
    x, weight = normal(2, 32, TINY.width), block.attn.c_attn.weight

    def run(x: Tensor, _: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return block(x)

    results, operators = captured(run, x, weight)
    assert ours(operators) == ["tenfold.rows_forward.default", "tenfold.rows_backward.default"]
    for actual, expected in zip(results, with_gradients(run, x, weight), strict=True):
        assert (actual - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize(("mixed", "tolerance"), [(False, 1e-6), (True, 1e-2)], ids=["fp32", "bf16"])
def test_the_whole_model_is_one_graph_with_the_loss_as_one_node(mixed: bool, tolerance: float, monkeypatch) -> None:
    monkeypatch.setattr(attention, "BLOCK", 12)
    monkeypatch.setattr(head, "CHUNK", 20)
    model = GPT(TINY).initialise(0)
    model.loss = LOSSES["chunked"]
    for block in model.h:
        block.attn.kernel = KERNELS["rows"]
    x = torch.randint(TINY.vocab, (2, 33), generator=torch.Generator().manual_seed(0))
    y = x[:, 1:].clone()
    y[0, 3:7] = IGNORE

    def run(weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return model(x[:, :-1], y)

    results, operators = captured(run, model.wte.weight)
    assert sorted(ours(operators)) == [
        "tenfold.chunked_sum.default",
        *["tenfold.rows_backward.default"] * TINY.layers,
        *["tenfold.rows_forward.default"] * TINY.layers,
    ]
    for actual, expected in zip(results, with_gradients(run, model.wte.weight), strict=True):
        assert (actual - expected).norm() <= tolerance * expected.norm()


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    x, weight, targets = normal(4, 8), normal(11, 8), torch.tensor([1, 2, 3, IGNORE])
    with torch.no_grad():
        sizes = [t.numel() for t in head.chunked_sum(x, weight, targets, 11, torch.float32, False)]
    assert sizes == [1, 0, 0]


# --- compiled, on several processes

CASES = [("ddp", "blocks"), ("fsdp", "blocks"), ("ddp", "model"), ("fsdp", "model")]
STEPS = 4


def small_pieces() -> None:
    """Several blocks of attention and several chunks of the loss, even in the tiny model."""
    attention.BLOCK, head.CHUNK, head.SLICE = 12, 20, 8


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_compiled_on_two_processes_equals_one_eager_process(corpus: Corpus) -> None:
    want = losses(trainer(corpus.train), STEPS)
    command = [*torchrun(2), str(ROOT / "tests" / "test_kernels.py"), str(corpus.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=260, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    got = json.loads(done.stdout.splitlines()[-1])
    assert len(got) == len(CASES)
    for case, values in zip(CASES, got, strict=True):
        assert values == pytest.approx(want, rel=1e-5), case


def main() -> None:
    """Argument: the folder of the corpus. Prints the losses of each of CASES."""
    small_pieces()
    tokens, world, out = open_corpus(Path(sys.argv[1])).train, worlds.join("cpu"), []
    for parallel, scope in CASES:
        one = trainer(
            tokens,
            speed=replace(EXACT, attention="rows", loss="chunked", compile=scope, parallel=parallel, rows=2),
        )
        out.append(losses(one, STEPS))
        one.batches.close()
    if world.lead:
        print(json.dumps(out), flush=True)
    from tenfold.cli import finish

    finish(0)


if __name__ == "__main__":
    main()
