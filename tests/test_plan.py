"""Plans: time, cost and memory of a training on machines that are not here, computed again by hand."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from conftest import Tenfold
from tenfold import api
from tenfold.errors import ConfigError, HardwareError
from tenfold.hardware import Hardware
from tenfold.ladder import plan as planning
from tenfold.ladder.plan import Plan, as_text, hardware_of, memory_of, plan_card, plan_here, published, settled
from tenfold.model import attention, head
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.recipe import Recipe
from tenfold.reference.cards import card, figures
from tenfold.run import Run, preset
from tenfold.training.speed import Speed
from tenfold.world import World

CPU = Hardware("cpu", "A processor", 2, 25 * 10**9, native_bf16=True, compiler="g++", libc="glibc", torch="2.13.0")


def planned(name: str, gpu: str, count: int = 1, **speed: object) -> Plan:
    """The plan of a preset."""
    run = preset(name)
    return plan_card(replace(run, speed=replace(run.speed, **speed)), card(gpu), count)


def test_three_a100_for_gpt2_124m() -> None:
    plan = planned("gpt2-124m", "A100 40GB", 3)
    tokens = 19_073 * 512 * 1_024
    assert tokens == 9_999_745_024
    # PyTorch with compilation and FlashAttention on this card: 115,000 (PCIe), 157,538 and 163,840 tokens/s
    assert plan.rates == (115_000, 163_840)
    assert plan.hours == pytest.approx((tokens / (3 * 163_840) / 3600, tokens / (3 * 115_000) / 3600))
    assert plan.hours == pytest.approx((5.65, 8.05), abs=0.01)
    assert plan.cost == pytest.approx((5.651 * 3 * 1.29, 8.051 * 3 * 1.29), rel=1e-3)
    assert plan.mfu == pytest.approx((115_000 * 855_166_464 / 312e12, 163_840 * 855_166_464 / 312e12))
    assert (plan.split.micro, plan.split.accum, plan.split.slots) == (19, 9, 513)
    assert plan.run.speed.precision == "bf16"
    assert len(plan.basis) == 3
    assert "karpathy/llm.c PR #323" in plan.basis[0]
    # 47 rows of padding; 4 + 4 + 8 bytes in fp32 and 2 in bf16; 36 a token, layer and unit of width; 3 x 4 a logit
    assert plan.memory.state == 18 * (124_439_808 + 47 * 768)
    assert plan.memory.blocks == 1_024 * 12 * 768 * 36
    assert plan.memory.logits == 12 * 1_024 * 50_304
    assert plan.memory.rows == (36_000_000_000 - 2_240_566_272) // 958_070_784 == 35


def test_a_t4_takes_fp16_and_rests_on_its_peak_for_lack_of_a_published_speed() -> None:
    plan = planned("gpt2-124m", "T4")
    assert plan.run.speed.precision == "fp16"
    assert plan.rates == (pytest.approx(0.4 * 65e12 / 855_166_464),) * 2
    assert plan.hours[0] == plan.hours[1] == pytest.approx(9_999_745_024 * 855_166_464 / 26e12 / 3600)
    assert plan.basis[0].startswith("0.4 of the fp16 peak of 65 TFLOP/s (an estimate: ")
    assert "pytorch-lightning" in plan.basis[0]
    assert "70 W" in plan.basis[1]
    given = plan_card(preset("gpt2-124m"), card("T4"), 1, efficiency=0.2)
    assert given.hours[0] == pytest.approx(2 * plan.hours[0])
    assert "0.2 of the fp16 peak of 65 TFLOP/s (as given)" in given.basis[0]
    full = planned("gpt2-124m", "T4", precision="fp32")  # this was published: 3,724 plain, 4,047 compiled
    assert full.rates == (4047, 4047)


def test_the_default_efficiency_rests_on_the_table() -> None:
    full = [
        f
        for f in figures()
        if f.program == "pytorch" and f.dtype == "bf16" and (f.compile, f.flash) == ("yes", "yes") and f.mfu_pct
    ]
    a100 = [f.mfu_pct / 100 for f in full if f.gpu.startswith("A100") and f.mfu_pct]
    h100 = [f.mfu_pct / 100 for f in full if f.gpu.startswith("H100") and f.mfu_pct]
    stated = (math.floor(100 * min(a100)) / 100, f"{max(a100):.2f}", *(f"{share:.2f}" for share in h100))
    assert "published PyTorch runs reach {} to {} on A100s and {} on H100s".format(*stated) == planning.REACHED
    assert min(a100) < planning.EFFICIENCY < max(a100)


def test_published_speeds_are_chosen_from_the_nearest_on() -> None:
    assert [f.tokens_per_second for f in published(card("H100 SXM"), "bf16")] == [447_500]  # not llm.c, not Muon
    assert {f.gpu for f in published(card("A100 80GB SXM"), "bf16")} == {"A100", "A100 (Karpathy video)"}
    assert min(f.tokens_per_second for f in published(card("A100 80GB SXM"), "bf16")) == 170_000  # compiled, flash
    assert [f.dtype for f in published(card("V100 SXM2 32GB"), "bf16")] == ["fp16"]
    assert published(card("H200 SXM"), "bf16") == ()
    assert published(card("T4"), "fp16") == ()


def test_other_models_scale_by_flops_a_token() -> None:
    small, large = planned("gpt2-124m", "A100 40GB"), planned("gpt2-350m", "A100 40GB")
    shape = ModelConfig(layers=24, heads=16, width=1024)
    ratio = 855_166_464 / (6 * (shape.parameters - 1024 * 1024) + 12 * 24 * 1024 * 1024)
    assert large.rates == pytest.approx([rate * ratio for rate in small.rates])
    assert f"times {ratio:.3f} for 2.42 GFLOP a token" in large.basis[0]
    again = planned("gpt2-350m", "A100 40GB", recompute="blocks")
    assert again.rates == pytest.approx([0.75 * rate for rate in large.rates])
    assert again.memory.blocks < large.memory.blocks / 5


@pytest.mark.parametrize(
    ("gpu", "rows"),
    # what people ran with PyTorch: build-nanogpt and allenporter, llm.c PR #323, PersonalRec, the Karpathy video
    [("A100 80GB SXM", 64), ("H100 SXM", 64), ("A100 40GB", 32), ("RTX 3090", 16)],
)
def test_rows_that_are_known_to_fit_do(gpu: str, rows: int) -> None:
    plan = planned("gpt2-124m", gpu, rows=rows)
    assert rows <= plan.memory.rows <= 2 * rows
    assert plan.split.micro == rows


@pytest.mark.parametrize("kernel", ["sdpa", "rows"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_what_a_backward_pass_keeps(precision: str, kernel: str) -> None:
    """Bytes of the distinct tensors that autograd saves in the blocks, weights apart, against the formula."""
    shape = ModelConfig(layers=2, heads=4, width=128, context=1024, vocab=64, padded_vocab=0)
    model = GPT(shape).initialise(1)
    for block in model.blocks:
        block.attn.kernel = attention.KERNELS[kernel]
    weights = {p.shape for p in model.parameters()} | {p.t().shape for p in model.parameters() if p.dim() == 2}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    rows, length = 2, 1024
    h = torch.randn(rows, length, shape.width, requires_grad=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"),
    ):
        for block in model.blocks:
            h = block(h)
    run = Run(shape, Recipe(rows=rows, length=length), Speed(precision=precision, attention=kernel))
    counted = memory_of(settled(run, CPU, 1), 10**9, 1)
    assert sum(storage.nbytes() for storage in saved.values()) / rows == pytest.approx(counted.blocks, rel=0.08)


def test_constants_that_stand_elsewhere_too() -> None:
    assert planning.CHUNK == head.CHUNK
    assert preset("gpt2-124m").model == planning.GPT2
    assert preset("gpt2-124m").recipe.length == planning.LENGTH


def test_what_does_not_fit_is_told_with_its_bytes_and_what_would_help() -> None:
    needed = 18 * (1_557_611_200 + 47 * 1600) + 1024 * 48 * 1600 * 36 + 12 * 1024 * 50_304
    with pytest.raises(ConfigError) as told:
        planned("gpt2-1558m", "T4")
    short = needed - 14_400_000_000
    assert f"31.5 GB a device at 1 row of 1024, {short:,} bytes more than the 14.4 GB" in str(told.value)
    assert "fsdp on 8 of them, or a card with 35 GB" in str(told.value)
    assert "recompute" not in str(told.value)  # would not suffice
    assert planned("gpt2-1558m", "T4", 8, parallel="fsdp").memory.rows >= 1
    with pytest.raises(
        ConfigError, match=r"at 6 rows of 1024.*use fewer --speed.rows, or --speed.recompute blocks, or"
    ):
        planned("gpt2-350m", "T4", rows=6)
    assert planned("gpt2-350m", "T4", rows=6, recompute="blocks").memory.rows >= 6


@pytest.mark.parametrize(
    ("count", "efficiency", "message"),
    [
        (0, None, "--count 0: give at least 1"),
        (-1, None, "--count -1"),
        (1, 0.0, "--efficiency 0.0: give a share"),
        (1, 1.01, "--efficiency 1.01"),
        (1, -0.1, "--efficiency -0.1"),
        (1, float("nan"), "--efficiency nan"),
    ],
)
def test_numbers_that_cannot_be_are_refused(count: int, efficiency: float | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_card(preset("gpt2-124m"), card("A100 40GB"), count, efficiency)
    if efficiency is None:
        with pytest.raises(ConfigError, match=message):
            plan_here(preset("gpt2-124m"), CPU, count, measured=300.0)


def test_what_the_table_lacks_is_told() -> None:
    with pytest.raises(HardwareError, match="bf16 is not native on T4"):
        planned("gpt2-124m", "T4", precision="bf16")
    with pytest.raises(ConfigError, match="no bf16 peak rate of RTX 6000 Ada"):
        plan_card(preset("gpt2-124m"), card("RTX 6000 Ada"), 1, efficiency=0.3)
    with pytest.raises(ConfigError, match="no fp32 peak rate and no published speed of Apple M4 Max"):
        planned("gpt2-124m", "Apple M4 Max")
    unpriced = planned("gpt2-124m", "RTX 6000 Ada")
    assert (unpriced.cost, unpriced.mfu) == (None, None)
    assert "unknown: no price in the table" in as_text(unpriced)


def test_this_machine_is_planned_from_what_was_measured() -> None:
    plan = plan_here(preset("gpt2-124m"), CPU, 1, measured=300.0, source="tuned on a Monday")
    assert plan.hours == pytest.approx((9_999_745_024 / 300 / 3600,) * 2)
    assert plan.basis == ("tuned on a Monday",)
    assert plan.cost is None
    with pytest.raises(ConfigError, match=r"nothing was measured here \(`tenfold tune gpt2-124m`"):
        plan_here(preset("gpt2-124m"), CPU)


def test_a_machine_whose_card_is_known_is_planned_from_the_table_and_says_so() -> None:
    here = replace(hardware_of(card("A100 40GB")), name="NVIDIA A100-SXM4-40GB", memory_bytes=42_300_000_000)
    plan = plan_here(preset("gpt2-124m"), here, 3)
    assert plan.rates == planned("gpt2-124m", "A100 40GB", 3).rates
    assert "nothing was measured here" in plan.basis[0]
    assert "so the table's figures of A100 40GB" in as_text(plan).replace("\n            ", " ")


def test_the_command_line_plans_without_torch(tenfold: Tenfold) -> None:
    done = tenfold("plan", "gpt2-124m", "--gpu", "a100-40gb", "--count", 3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gpt2-124m on 3 x A100 40GB\n")
    assert "9,999,745,024 tokens" in done.stdout
    assert "5.7 to 8.1 hours" in done.stdout
    assert "21.87 to 31.16 US dollars" in done.stdout
    assert "edworking.com" in done.stdout
    assert "19 a device at a time, 9 times a step" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    shorter = tenfold("plan", "gpt2-124m", "--gpu", "T4", "--recipe.steps", 100, "--efficiency", 0.5)
    assert "52,428,800 tokens" in shorter.stdout
    code = (
        "import sys; from tenfold.cli import call; code = call(['plan', 'gpt2-124m', '--gpu', 'T4']); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "plan needs a preset first: tenfold plan PRESET"),
        (["plan", "gpt2-124"], "no preset 'gpt2-124', did you mean 'gpt2-124m'?"),
        (["plan", "gpt2-124m", "--gpu", "A200"], "no card 'A200' in the table; nearest are"),
        (["plan", "gpt2-124m", "--gpu", "a100"], "can be A100 40GB, A100 80GB SXM"),
        (["plan", "gpt2-124m", "--gpu", "T4", "--count", "0"], "--count 0: give at least 1"),
        (["plan", "gpt2-124m", "--gpu", "T4", "--count", "-1"], "--count -1: give at least 1"),
        (["plan", "gpt2-124m", "--gpu", "T4", "--efficiency", "2"], "--efficiency 2.0"),
        (["plan", "gpt2-1558m", "--gpu", "T4"], "bytes more than the 14.4 GB"),
        (["plan", "gpt2-124m", "--efficiency", "0.3"], "name the card with --gpu"),
    ],
)
def test_mistakes_are_told_in_one_line(tenfold: Tenfold, arguments: list[str], message: str) -> None:
    done = tenfold(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_sharded_training_begins_with_the_rows_that_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot try with fewer after it ran out."""
    monkeypatch.setattr(World, "least", lambda world, value: value)  # the others are not there
    hardware = hardware_of(card("A100 80GB SXM"))
    run = preset("gpt2-1558m")
    run = replace(run, speed=Speed(device="cuda", compile="none", parallel="fsdp"))
    speed, said = api.executed(run, hardware, World(0, 8, torch.device("cpu")), api.Silent())
    assert speed.rows == plan_here(run, hardware, 8, measured=1.0).memory.rows
    assert 1 <= int(speed.rows) < 64
    assert f"rows {speed.rows} at most" in said
