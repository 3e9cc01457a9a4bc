"""The step: the same mathematics however its rows are laid out, at any precision, compiled or not."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from conftest import ROOT, TINY, TINY_RECIPE, environment
from tenfold.data.shards import Corpus
from tenfold.errors import HardwareError
from tenfold.model.attention import KERNELS
from tenfold.model.gpt import GPT
from tenfold.model.head import LOSSES
from tenfold.recipe import Recipe, lr_at
from tenfold.training.fit import largest
from tenfold.training.optimizers import groups
from tenfold.training.precision import DynamicLossScale, autocast
from tenfold.training.prepare import own_gradients, probe_compile, replays_graphs
from tenfold.training.speed import Speed
from tenfold.training.start import check_head
from tenfold.training.trainer import rescale, trainer_for
from training import EXACT, losses, trainer


@pytest.mark.parametrize(("rows", "micro", "accum"), [(24, 12, 2), (24, 6, 4), (24, 1, 24), (23, 4, 6)])
def test_micro_batches_do_not_matter(corpus: Corpus, rows: int, micro: int, accum: int) -> None:
    """The same 24 rows as 2 x 12, 4 x 6 and 24 x 1, or 23 as 6 x 4 with a filler: loss, norm and weights of one
    batch."""
    recipe = replace(TINY_RECIPE, rows=rows)
    big = trainer(corpus.train, recipe=recipe, speed=replace(EXACT, rows=rows))
    small = trainer(corpus.train, recipe=recipe, speed=replace(EXACT, rows=micro))
    assert (big.split.accum, small.split.accum) == (1, accum)
    for _ in range(3):
        a, b = big.step(), small.step()
        assert b.loss.item() == pytest.approx(a.loss.item(), rel=1e-5)
        assert b.norm.item() == pytest.approx(a.norm.item(), rel=1e-5)
    for p, q in zip(big.module.parameters(), small.module.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=5e-5)  # AdamW divides by small gradients


def test_the_step_is_plain_pytorch(corpus: Corpus) -> None:
    """Three steps equal a loop written out with torch's own clipping and AdamW."""
    one = trainer(corpus.train)
    model = GPT(TINY).initialise(TINY_RECIPE.seed)
    optimizer = torch.optim.AdamW(groups(model, TINY_RECIPE), lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    for position in range(3):
        x, y = one.batches.read(position, 0)
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (position + 1) / 4
        optimizer.step()
        optimizer.zero_grad()
        step = one.step()
        assert step.loss.item() == pytest.approx(loss.item(), rel=1e-6)
        assert step.norm.item() == pytest.approx(norm.item(), rel=1e-5)
    for p, q in zip(one.module.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


HERE = [name for name in LOSSES if name != "torch" or hasattr(torch.nn.functional, "linear_cross_entropy")]  # 2.13
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3, "fp16": 5e-3, "fp8": 2e-2}
SPEEDS = [  # of this CPU: kernels for GPUs are in test_kernels.py
    (precision, attention, loss, recompute)
    for precision in ("fp32", "bf16", "fp16")
    for attention in ("naive", "sdpa", "flash", "rows")
    for loss in HERE
    for recompute in ("none", "blocks")
    if loss == "plain" or recompute == "none"
]
SPEEDS.append(("fp8", "sdpa", "plain", "none"))  # seconds: torch's 8-bit products on CPUs are only for tests


@pytest.fixture(scope="module")
def exact(corpus: Corpus) -> list[float]:
    """The losses of ten steps."""
    return losses(trainer(corpus.train), 10)


@pytest.mark.parametrize(("precision", "attention", "loss", "recompute"), SPEEDS)
def test_speed_never_changes_the_training(
    corpus: Corpus, exact: list[float], precision: str, attention: str, loss: str, recompute: str
) -> None:
    speed = replace(EXACT, precision=precision, attention=attention, loss=loss, recompute=recompute, fused="no")
    got = losses(trainer(corpus.train, speed=speed), 10)
    assert got == pytest.approx(exact, rel=TOLERANCE[precision])
    assert got != exact or precision == "fp32"


def test_speed_options_are_the_tables_rows() -> None:
    """The options that are spelled out in Speed, where torch is not imported, name exactly the rows of the tables."""
    import typing

    hints = typing.get_type_hints(Speed)
    assert set(typing.get_args(hints["attention"])) - {"auto"} == set(KERNELS)
    assert set(typing.get_args(hints["loss"])) - {"auto"} == set(LOSSES)


def test_fp8_is_in_the_blocks_and_not_in_evaluation(corpus: Corpus) -> None:
    from tenfold.model.linear import LINEARS, Linear

    one = trainer(corpus.train, speed=replace(EXACT, precision="fp8"))
    products = [m.product for m in one.module.modules() if isinstance(m, Linear)]
    assert products == [LINEARS["fp8"]] * 4 * TINY.layers
    bf16 = trainer(corpus.train, speed=replace(EXACT, precision="bf16"))
    x = torch.arange(13).unsqueeze(0)
    with torch.no_grad(), one.autocast():
        assert torch.equal(one.module(x), bf16.module(x))
    with pytest.raises(HardwareError, match=r"multiples of 16, and model.width is 24"):
        trainer(corpus.train, model=replace(TINY, width=24), speed=replace(EXACT, precision="fp8"))


# --- the compiler


def test_a_compiler_that_is_not_here_is_refused(corpus: Corpus) -> None:
    with pytest.raises(HardwareError, match=r"speed\.backend nonesuch: this torch has only .*inductor"):
        trainer(corpus.train, speed=replace(EXACT, compile="blocks", backend="nonesuch"))
    with pytest.raises(HardwareError, match=r"only the backend inductor has modes, not aot_eager"):
        trainer(corpus.train, speed=replace(EXACT, compile="blocks", backend="aot_eager", mode="max-autotune"))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo's, tracing a Function
@pytest.mark.parametrize("scope", ["blocks", "model"])
@pytest.mark.parametrize(
    "choices",
    [
        {"attention": "rows", "loss": "chunked"},
        {"attention": "flash", "loss": HERE[-1]},
        {"attention": "naive", "recompute": "blocks"},
    ],
    ids=str,
)
def test_another_backend_trains_alike(corpus: Corpus, exact: list[float], scope: str, choices: dict[str, str]) -> None:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    speed = replace(EXACT, compile=scope, backend="aot_eager", **choices)
    assert losses(trainer(corpus.train, speed=speed), 3) == pytest.approx(exact[:3], rel=1e-5)
    broken = scope == "model" and choices.get("loss") == "torch"  # which is left out of the graph
    assert bool(counters["graph_break"]) == broken, counters["graph_break"]


def test_the_probe_finds_a_working_compiler_and_a_broken_one(monkeypatch) -> None:
    device = torch.device("cpu")
    assert probe_compile(device, replace(EXACT, backend="aot_eager")) is None

    def broken(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> None:
        raise ValueError("no such chip\nand a long story")

    torch._dynamo.register_backend(broken)
    try:
        assert probe_compile(device, replace(EXACT, backend="broken")) == "ValueError: no such chip"
    finally:
        del torch._dynamo.backends.registry._BACKENDS["broken"]
    said = probe_compile(device, replace(EXACT, backend="nonesuch"))
    assert said is not None
    assert said.startswith("HardwareError: speed.backend nonesuch")


@pytest.mark.timeout(120)
def test_the_probe_names_a_missing_compiler_and_training_goes_on(corpus: Corpus) -> None:
    """In a process that has no C++ compiler: one line, nothing printed, and the same losses as ever."""
    script = f"""
import json, sys, torch
sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
from tenfold.data.shards import open_corpus
from tenfold.training.prepare import probe_compile
from training import EXACT, losses, trainer
said = [probe_compile(torch.device("cpu"), EXACT) for _ in range(2)]
print(json.dumps([said, losses(trainer(open_corpus(Path({str(corpus.path)!r})).train), 3)]))
"""
    hidden = {**environment(), "CXX": "/nonexistent", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, env=hidden)
    assert done.returncode == 0, done.stderr[-3000:]
    said, got = json.loads(done.stdout)
    assert said == ["no working C++ compiler (g++ or clang++) was found"] * 2
    assert done.stderr == ""
    assert got == losses(trainer(corpus.train), 3)


# --- CUDA graphs, as far as a CPU can tell


def graph_like(buffer: torch.Tensor) -> type[torch.autograd.Function]:
    """x * weight, whose gradient lies in the same memory at every call, as a CUDA graph's outputs do."""

    class Replayed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight, x):
            ctx.save_for_backward(x)
            return (weight * x).sum()

        @staticmethod
        def backward(ctx, dy):
            return buffer.copy_(ctx.saved_tensors[0] * dy).view_as(buffer), None

    return Replayed


@pytest.mark.parametrize("own", [False, True])
def test_gradients_survive_the_next_replay(own: bool) -> None:
    """Three micro-steps whose gradients overwrite each other's memory: 1 + 10 + 100, if the first one is copied."""
    layer = torch.nn.Linear(4, 1, bias=False)
    replayed = graph_like(torch.empty(1, 4))
    if own:
        own_gradients(layer)
    for _ in range(2):
        for value in (1.0, 10.0, 100.0):
            replayed.apply(layer.weight, torch.full((1, 4), value)).backward()
        assert layer.weight.grad is not None
        assert (layer.weight.grad.tolist() == [[111.0] * 4]) == own
        layer.weight.grad = None


def test_graphs_are_replayed_only_where_they_are() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    graphs = replace(EXACT, compile="blocks", mode="reduce-overhead")
    assert replays_graphs(graphs, cuda)
    assert replays_graphs(replace(EXACT, compile="model", backend="cudagraphs"), cuda)
    assert not replays_graphs(graphs, cpu)
    assert not replays_graphs(replace(graphs, compile="none"), cuda)
    assert not replays_graphs(replace(graphs, mode="default"), cuda)


def test_with_graphs_each_micro_step_is_marked(corpus: Corpus, monkeypatch) -> None:
    want, marks = losses(trainer(corpus.train), 3), []
    monkeypatch.setattr("tenfold.training.prepare.replays_graphs", lambda speed, device: True)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    one = trainer(corpus.train, speed=replace(EXACT, rows=2))
    assert losses(one, 3) == pytest.approx(want, rel=1e-5)
    assert len(marks) == 3 * one.split.accum == 12
    with pytest.raises(HardwareError, match=r"fsdp: speed.mode reduce-overhead replays CUDA graphs"):
        trainer(corpus.train, speed=replace(EXACT, parallel="fsdp", mode="reduce-overhead"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("scope", ["blocks", "model"])
def test_cuda_graphs_train_alike(corpus: Corpus, scope: str) -> None:
    """Four micro-steps a step, each a replay."""
    from tenfold import world as worlds

    def on_gpu(speed: Speed) -> list[float]:
        world = worlds.join("cuda")
        return losses(trainer_for(GPT(TINY).initialise(1), TINY_RECIPE, speed, corpus.train, world), 6)

    plain = replace(EXACT, device="cuda", rows=2)
    graphs = replace(plain, compile=scope, mode="reduce-overhead")
    assert on_gpu(graphs) == pytest.approx(on_gpu(plain), rel=1e-4)


def test_fp16_skips_an_update_that_overflowed(corpus: Corpus) -> None:
    """Weights unchanged, scale halved, skip counted; the position, and with it data and learning rate, moves on."""
    one = trainer(corpus.train, speed=replace(EXACT, precision="fp16"))
    one.scale = DynamicLossScale(value=2.0**60)
    before = [p.clone() for p in one.module.parameters()]
    step = one.step()
    assert not step.applied
    assert (one.scale.value, one.scale.skipped, one.position) == (2.0**59, 1, 1)
    assert all(torch.equal(p, q) for p, q in zip(one.module.parameters(), before, strict=True))
    assert not one.optimizer.state  # no moment has seen the infinite gradient
    one.scale.value = 2.0**10
    step = one.step()
    assert step.applied
    assert one.optimizer.param_groups[0]["lr"] == lr_at(TINY_RECIPE, 1)
    assert all(p.isfinite().all() for p in one.module.parameters())


def test_the_loss_scale_grows_after_good_steps() -> None:
    scale = DynamicLossScale(value=8.0, patience=3)
    for _ in range(3):
        assert scale.accepts(torch.tensor(1.0))
    assert scale.value == 16
    again = DynamicLossScale()
    again.restore(scale.state())
    assert again.state() == scale.state()


@pytest.mark.parametrize("used", [1.0, 1024.0])
def test_rescale_clips_the_true_norm(used: float) -> None:
    gradients = [torch.full((3,), 2.0 * used), torch.full((1,), -2.0 * used)]  # true norm 4
    rescale(gradients, 1.0, torch.tensor(4.0 * used), used)
    assert torch.cat(gradients).norm().item() == pytest.approx(1.0, rel=1e-5)
    gradients = [torch.full((4,), 0.25 * used)]
    rescale(gradients, 1.0, torch.tensor(0.5 * used), used)
    assert gradients[0].tolist() == [0.25] * 4
    rescale(gradients, 0.0, torch.tensor(0.5), 1.0)
    assert gradients[0].tolist() == [0.25] * 4


def test_every_parameter_is_in_one_group_and_only_matrices_decay() -> None:
    model = GPT(TINY)
    decayed, free = groups(model, TINY_RECIPE)
    named = {id(p): name for name, p in model.named_parameters()}
    assert sorted(named[id(p)] for g in (decayed, free) for p in g["params"]) == sorted(named.values())
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert {named[id(p)] for p in free["params"]} == {n for n in named.values() if "ln_" in n or n.endswith("bias")}


def test_the_published_schedule() -> None:
    """6e-4 after 715 steps of warm-up, 6e-5 at step 19,073, by cosine between."""
    recipe = Recipe()
    assert lr_at(recipe, 0) == pytest.approx(6e-4 / 715)
    assert lr_at(recipe, 714) == pytest.approx(6e-4)
    assert lr_at(recipe, 715) == pytest.approx(6e-4)
    middle = 715 + (19073 - 715) // 2
    assert lr_at(recipe, middle) == pytest.approx((6e-4 + 6e-5) / 2)
    assert lr_at(recipe, 19072) == pytest.approx(6e-5, rel=1e-4)
    assert lr_at(replace(recipe, schedule="constant"), 15_000) == 6e-4
    assert lr_at(replace(recipe, warmup=0), 0) == 6e-4
    assert recipe.targets == 524_288


def test_initial_loss_is_that_of_chance(corpus: Corpus) -> None:
    step = trainer(corpus.train).step()
    assert step.loss.item() == pytest.approx(math.log(257), abs=0.15)


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo's own look at its inputs
@pytest.mark.parametrize("scope", ["blocks", "model"])
def test_compiled_equals_eager_and_lengths_compile_nothing(corpus: Corpus, scope: str) -> None:
    """Train compiled, evaluate and sample at lengths 1 to 32, train on: nothing is compiled again."""
    from torch._dynamo.utils import counters

    from tenfold.evaluate.validation import validation_loss
    from tenfold.generate import generate

    torch._dynamo.reset()
    want = losses(trainer(corpus.train), 6)
    one = trainer(corpus.train, speed=replace(EXACT, compile=scope))
    got = losses(one, 3)
    counters.clear()
    with one.eager():
        for length in range(1, 33):
            validation_loss(one.module, corpus.val, length, one.world, rows=2)
        list(generate(one.module, [1], 40))
    got += losses(one, 3)
    assert got == pytest.approx(want, rel=1e-5)
    assert counters["stats"]["unique_graphs"] == 0, dict(counters["stats"])
    assert set(one.module.state_dict()) == set(GPT(TINY).state_dict())


def test_the_head_is_checked_against_the_cpu() -> None:
    """Some builds of torch multiply the 50,304 rows of the head wrongly from 9 rows of input on."""
    weight = torch.randn(50304, 64, generator=torch.Generator().manual_seed(1))

    def wrong_from_nine(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.linear(x, w)
        return y if len(x) < 9 else y.roll(1, 1)

    check_head(weight, torch.device("cpu"))
    with pytest.raises(HardwareError, match=r"the head's product of 9 rows is .* from the CPU's; use another version"):
        check_head(weight, torch.device("cpu"), wrong_from_nine)


@pytest.mark.parametrize(("precision", "state"), [("tf32", "high"), ("fp32", "highest"), ("bf16", "highest")])
def test_tf32_is_set_by_one_call_without_warnings(precision: str, state: str) -> None:
    """T51: the old and the new way of torch may not be mixed, and say so; warnings are errors here."""
    try:
        autocast(precision, torch.device("cpu"))
        assert torch.get_float32_matmul_precision() == state
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks whether it is there
def test_fewer_rows_are_compiled_as_they_are(corpus: Corpus) -> None:
    """After a try with too many; graphs for any number of rows are slower."""
    seen = []

    @torch._dynamo.register_backend(name="noting")
    def noting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append([tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor) and x.dim() == 3])
        assert not any(isinstance(x, torch.SymInt) for x in inputs)
        return graph.forward

    one = trainer(corpus.train, speed=replace(EXACT, compile="blocks", backend="noting"))
    one.batches.close()

    def trial(rows: int) -> None:
        x = torch.zeros(rows, 32, dtype=torch.int64)
        one.model(x, x)
        if rows > 2:
            raise torch.OutOfMemoryError("out of memory")

    assert largest(trial, 1024, one.world) == 2  # ten shapes, more than torch compiles by itself
    assert [shapes[0] for shapes in seen] == [(2**power, 32, 32) for power in range(10, 0, -1)]
