"""The step: the same mathematics however its rows are laid out, at any precision, compiled or not."""

import math
from dataclasses import replace

import pytest
import torch

from conftest import TINY, TINY_RECIPE
from tenfold.data.shards import Corpus
from tenfold.model.attention import KERNELS
from tenfold.model.gpt import GPT
from tenfold.model.head import LOSSES
from tenfold.recipe import Recipe, lr_at
from tenfold.training.optimizers import groups
from tenfold.training.precision import DynamicLossScale
from tenfold.training.speed import Speed
from tenfold.training.trainer import rescale
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


TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3, "fp16": 5e-3}


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("attention", KERNELS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("recompute", ["none", "blocks"])
def test_speed_never_changes_the_training(
    corpus: Corpus, precision: str, attention: str, loss: str, recompute: str
) -> None:
    speed = replace(EXACT, precision=precision, attention=attention, loss=loss, recompute=recompute, fused="no")
    want, got = losses(trainer(corpus.train), 10), losses(trainer(corpus.train, speed=speed), 10)
    assert got == pytest.approx(want, rel=TOLERANCE[precision])


def test_speed_options_are_the_tables_rows() -> None:
    """The options that are spelled out in Speed, where torch is not imported, name exactly the rows of the tables."""
    import typing

    hints = typing.get_type_hints(Speed)
    assert set(typing.get_args(hints["attention"])) - {"auto"} == set(KERNELS)
    assert set(typing.get_args(hints["loss"])) - {"auto"} == set(LOSSES)


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
