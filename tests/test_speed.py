"""What `auto` becomes and what is refused, decided from plain facts of machines that are not here."""

import typing
from dataclasses import replace

import pytest

from tenfold.errors import ConfigError, HardwareError
from tenfold.hardware import Hardware, choose, detect
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe
from tenfold.training.speed import Speed, resolve, supported

CPU = Hardware("cpu", "A processor", native_bf16=True, compiler="/usr/bin/g++", libc="glibc")
H100 = Hardware("cuda", "H100", 8, 80 << 30, (9, 0), native_bf16=True, triton=True)
A100 = replace(H100, name="A100", capability=(8, 0))
T4 = replace(H100, name="T4", capability=(7, 5), native_bf16=False)
P100 = replace(H100, name="P100", capability=(6, 0), native_bf16=False)
MI300 = replace(H100, name="MI300X", capability=None, hip=True)


def auto(hardware: Hardware, processes: int = 1, **given: typing.Any) -> Speed:
    """What a Speed becomes."""
    return resolve(Speed(**given), ModelConfig(), Recipe(), hardware, processes)[0]


def test_auto_leaves_nothing_open_and_says_why() -> None:
    for hardware in (CPU, H100, A100, T4, P100, MI300):
        speed, said = resolve(Speed(), ModelConfig(), Recipe(), hardware, 2)
        assert "auto" not in vars(speed).values()
        for name, value in vars(speed).items():
            assert f"{name} {value}" in said


@pytest.mark.parametrize(
    ("hardware", "precision"),
    [
        (CPU, "bf16"),
        (replace(CPU, native_bf16=False), "fp32"),
        (A100, "bf16"),
        (H100, "bf16"),
        (T4, "fp32"),
        (P100, "fp32"),
    ],
)
def test_bf16_only_where_it_is_native(hardware: Hardware, precision: str) -> None:
    """Emulation does not count: a T4 reports bf16 as supported and is slower with it."""
    assert auto(hardware).precision == precision
    if precision == "fp32":
        with pytest.raises(HardwareError, match="bf16 is not native on"):
            auto(hardware, precision="bf16")


@pytest.mark.parametrize(
    ("hardware", "given", "reason"),
    [
        (
            CPU,
            {"precision": "tf32"},
            "tf32 needs an NVIDIA GPU of compute capability 8.0 or later; this is A processor",
        ),
        (T4, {"precision": "tf32"}, "tf32 needs.*compute capability 7.5"),
        (MI300, {"precision": "tf32"}, "tf32 needs an NVIDIA GPU"),
        (replace(CPU, compiler=None), {"compile": "blocks"}, r"needs a C\+\+ compiler.*use none or auto"),
        (replace(H100, triton=False), {"compile": "model"}, "needs Triton"),
        (H100, {"memory": "kept"}, "torch keeps a GPU's memory by itself; use returned or auto"),
        (replace(CPU, libc=""), {"memory": "kept"}, "only glibc can be told so"),
        (P100, {"compile": "model"}, "needs compute capability 7.0 or later; this is P100"),
    ],
)
def test_explicit_values_that_cannot_run_are_refused(hardware: Hardware, given: dict, reason: str) -> None:
    with pytest.raises(HardwareError, match=reason):
        auto(hardware, **given)


def test_a_cpu_takes_attention_in_row_blocks_where_rows_are_long() -> None:
    assert auto(CPU).attention == "rows"
    assert auto(H100).attention == "sdpa"
    assert resolve(Speed(), ModelConfig(), Recipe(length=128), CPU)[0].attention == "sdpa"


def test_a_cpu_takes_the_loss_in_chunks_where_the_vocabulary_is_wide() -> None:
    assert auto(CPU).loss == "chunked"
    assert auto(H100).loss == "plain"
    assert resolve(Speed(), ModelConfig(vocab=257, padded_vocab=0), Recipe(), CPU)[0].loss == "plain"


def test_explicit_values_stay() -> None:
    given = Speed(precision="fp16", attention="naive", compile="blocks", fused="no", recompute="blocks", rows=3)
    speed, _ = resolve(given, ModelConfig(), Recipe(), A100)
    for name, value in vars(given).items():
        assert value in ("auto", getattr(speed, name))


def test_a_fused_optimizer_on_a_numbered_card_is_reported() -> None:
    speed, said = resolve(Speed(device="cuda:1"), ModelConfig(), Recipe(), H100)
    assert (speed.device, speed.fused) == ("cuda:1", "yes")
    assert "fused yes" in said
    assert supported(Speed(device="cuda:1", fused="yes"), H100) is None


def test_several_processes_share_by_ddp_and_refuse_none() -> None:
    assert auto(H100, processes=8).parallel == "ddp"
    assert auto(H100, processes=8, parallel="fsdp").parallel == "fsdp"
    assert auto(H100).parallel == "none"
    with pytest.raises(HardwareError, match="8 processes were started"):
        auto(H100, processes=8, parallel="none")


def test_rows_are_bounded_by_share_and_device() -> None:
    assert auto(CPU).rows == 4  # 4,096 tokens
    assert auto(H100).rows == 64
    assert resolve(Speed(), ModelConfig(), Recipe(rows=20), H100, 8)[0].rows == 3


def test_this_machine_is_detected() -> None:
    here = detect("cpu")
    assert here.kind == "cpu"
    assert here.count >= 1
    assert here.lacks("fp32") is None
    with pytest.raises(ConfigError, match=r"possible are auto, cpu"):
        choose("tpu")
    with pytest.raises((HardwareError, ConfigError)):
        choose("cuda:99")
