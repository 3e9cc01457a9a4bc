"""What `auto` becomes and what is refused, decided from plain facts of machines that are not here."""

import os
import typing
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tenfold.errors import ConfigError, HardwareError
from tenfold.hardware import FEATURES, Hardware, busy, choose, cores, detect, look, runs_on
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe
from tenfold.training.speed import NEEDS, Speed, resolve, supported
from tenfold.world import own_index

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
        (T4, "fp16"),
        (P100, "fp32"),
    ],
)
def test_bf16_only_where_it_is_native(hardware: Hardware, precision: str) -> None:
    """Emulation does not count: a T4 reports bf16 as supported and is slower with it."""
    assert auto(hardware).precision == precision
    if precision != "bf16":
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
        (P100, {"compile": "model"}, "needs an NVIDIA GPU of compute capability 7.0 or later; this is P100"),
    ],
)
def test_explicit_values_that_cannot_run_are_refused(hardware: Hardware, given: dict, reason: str) -> None:
    with pytest.raises(HardwareError, match=reason):
        auto(hardware, **given)


def gpu(*capability: int) -> Hardware:
    """An NVIDIA GPU of this compute capability, with everything installed that could be."""
    major, minor = capability
    facts = {"native_bf16": capability >= (8, 0), "torch": "2.13.0", "triton": True, "cudnn": True, "fa3": True}
    return Hardware("cuda", "A card", 1, 80 << 30, (major, minor), **facts)


PASCAL = {"tf32", "bf16", "fp16", "fp8", "compile", "graphs", "autotune", "flash", "cudnn", "fa3", "flex", "kept"}
VOLTA = {"tf32", "bf16", "fp8", "flash", "cudnn", "fa3", "kept"}


@pytest.mark.parametrize(
    ("hardware", "precision", "compiled", "lacking"),
    [
        (gpu(6, 1), "fp32", "none", PASCAL),
        (gpu(7, 0), "fp16", "blocks", VOLTA),
        (gpu(7, 5), "fp16", "blocks", VOLTA),
        (gpu(8, 0), "bf16", "blocks", {"fp8", "fa3", "kept"}),
        (gpu(8, 6), "bf16", "blocks", {"fp8", "fa3", "kept"}),
        (gpu(8, 9), "bf16", "blocks", {"fa3", "kept"}),
        (gpu(9, 0), "bf16", "blocks", {"kept"}),
        (gpu(10, 0), "bf16", "blocks", {"fa3", "kept"}),
        (gpu(12, 0), "bf16", "blocks", {"fa3", "kept"}),
        (
            replace(CPU, torch="2.13.0"),
            "bf16",
            "none",
            {"tf32", "fp16", "fp8", "graphs", "flash", "cudnn", "fa3", "flex"},
        ),
    ],
    ids=lambda value: str(value.capability) if isinstance(value, Hardware) else "",
)
def test_what_each_generation_gets_and_is_refused(
    hardware: Hardware, precision: str, compiled: str, lacking: set[str]
) -> None:
    assert {feature for feature in FEATURES if hardware.lacks(feature)} == lacking
    assert (auto(hardware).precision, auto(hardware).compile) == (precision, compiled)
    for (name, value), (feature, instead) in NEEDS.items():
        if feature in lacking:
            with pytest.raises(HardwareError, match=rf"^speed\.{name} {value}: .*; use {instead}$"):
                auto(hardware, **{name: value})
        else:
            assert getattr(auto(hardware, **{name: value}), name) == value


def test_every_value_of_a_speed_is_either_checked_or_runs_everywhere() -> None:
    anywhere = {
        "precision": {"fp32", "fp16"},
        "attention": {"naive", "sdpa", "rows"},
        "loss": {"plain", "chunked"},
        "compile": {"none"},
        "mode": {"default"},
        "fused": {"yes", "no"},
        "memory": {"returned"},
        "recompute": {"none", "blocks"},
        "parallel": {"none", "ddp", "fsdp"},  # by the number of processes
    }
    for name, hint in typing.get_type_hints(Speed).items():
        if typing.get_origin(hint) is typing.Literal:
            checked = {value for field, value in NEEDS if field == name}
            assert checked | anywhere[name] | {"auto"} == set(typing.get_args(hint)), name
            assert not checked & anywhere[name]


def driver(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], built_for: list[str]) -> None:
    """Make torch report a GPU that is not here."""
    card = SimpleNamespace(name=name, major=capability[0], minor=capability[1], total_memory=15 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built_for)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)


def test_a_t4_that_says_it_supports_bf16_trains_in_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, "Tesla T4", (7, 5), ["sm_75", "sm_80"])
    here = detect()
    assert (here.kind, here.capability, here.native_bf16) == ("cuda", (7, 5), False)
    assert here.peak("fp16") == 65e12
    speed, said = resolve(Speed(), ModelConfig(), Recipe(), here)
    assert speed.precision == "fp16"
    assert "fp16 (with loss scaling, because bf16 is not native on Tesla T4" in said
    driver(monkeypatch, "NVIDIA A100-SXM4-40GB", (8, 0), ["sm_80"])
    assert detect().native_bf16


def test_a_card_that_torch_was_not_built_for_is_refused_with_the_torch_that_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver(monkeypatch, "Tesla P100-SXM2-16GB", (6, 0), ["sm_75", "sm_80", "sm_90", "compute_120"])
    for call in (detect, choose):
        with pytest.raises(HardwareError, match=r"has no kernels for Tesla P100.*built for CUDA 12\.6.*/cu126"):
            call("cuda")
    assert detect("cpu").kind == "cpu"
    assert look("cuda").name == "Tesla P100-SXM2-16GB"  # for the table, which tells the same line
    reason = supported(Speed(), look("cuda"))
    assert reason is not None
    assert reason.startswith("speed.device auto: torch ")


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((8, 9), ("sm_80", "sm_86"), True),
        ((8, 0), ("sm_86",), False),
        ((9, 0), ("sm_80", "sm_86"), False),
        ((9, 0), ("sm_90a",), True),
        ((10, 3), ("sm_100",), True),
        ((10, 3), ("sm_100a",), False),
        ((12, 0), ("sm_90", "sm_100"), False),
        ((12, 0), ("sm_80", "compute_90"), True),
        ((7, 0), ("sm_75", "compute_120"), False),
        ((12, 1), ("sm_120",), True),
        ((6, 1), ("sm_60",), True),
    ],
)
def test_which_code_runs_on_which_card(capability: tuple[int, int], built_for: tuple[str, ...], runs: bool) -> None:
    assert runs_on(built_for, capability) is runs
    line = replace(gpu(*capability), built_for=built_for).unsupported_by_torch
    assert (line is None) is runs


@pytest.mark.parametrize(
    ("capability", "torch_to_install"),
    [
        ((3, 7), "no torch that tenfold runs with"),
        ((6, 1), "CUDA 12.6"),
        ((7, 0), "CUDA 12.6"),
        ((7, 5), "built for CUDA 13.0"),
        ((10, 0), "torch 2.7 or later built for CUDA 12.8"),
        ((12, 0), "torch 2.7 or later built for CUDA 12.8"),
        ((13, 0), "a newer torch"),
    ],
)
def test_the_torch_to_install_is_named(capability: tuple[int, int], torch_to_install: str) -> None:
    line = replace(gpu(*capability), built_for=("sm_53",), torch="2.13.0+cu130").unsupported_by_torch
    assert line is not None
    assert "torch 2.13.0+cu130 has no kernels for A card" in line
    assert torch_to_install in line
    assert gpu(*capability).unsupported_by_torch is None  # a torch that does not say is not doubted


@pytest.mark.parametrize("kernel", ["flash", "cudnn", "fa3"])
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_kernels_of_half_precision_are_refused_in_full(kernel: str, precision: str) -> None:
    with pytest.raises(
        HardwareError, match=rf"^speed\.attention {kernel}: it computes .* precision is {precision}; use sdpa"
    ):
        auto(gpu(9, 0), attention=kernel, precision=precision)
    assert auto(gpu(9, 0), attention=kernel, precision="fp16").attention == kernel


def test_a_mode_without_compilation_is_refused_and_with_auto_compiles() -> None:
    with pytest.raises(HardwareError, match=r"speed.mode max-autotune: speed.compile none compiles nothing"):
        auto(CPU, mode="max-autotune", compile="none")
    with pytest.raises(HardwareError, match=r"speed.backend aot_eager: speed.compile none compiles nothing"):
        auto(CPU, backend="aot_eager", compile="none")
    assert auto(CPU, mode="max-autotune").compile == "blocks"
    assert auto(CPU, backend="aot_eager").compile == "blocks"
    assert auto(CPU, mode="default").compile == "none"
    assert auto(gpu(8, 0), mode="reduce-overhead").compile == "blocks"


def test_what_is_missing_is_told() -> None:
    for change, feature, reason in (
        ({"cudnn": False}, "cudnn", "this torch has no cuDNN"),
        ({"fa3": False}, "fa3", "flash_attn_interface, is not installed"),
        ({"torch": "2.12.1+cu130"}, "linear_cross_entropy", "needs torch 2.13; this is torch 2.12.1"),
        ({"triton": False}, "flex", "needs Triton"),
        ({"triton": False}, "graphs", "needs Triton"),
        ({"triton": False}, "autotune", "needs Triton"),
    ):
        assert gpu(9, 0).lacks(feature) is None
        assert reason in str(replace(gpu(9, 0), **change).lacks(feature))
    assert replace(CPU, torch="2.14.0.dev20260801").lacks("linear_cross_entropy") is None
    assert replace(CPU, torch="3.0.0").lacks("linear_cross_entropy") is None
    without = auto(replace(gpu(8, 0), triton=False))
    assert (without.precision, without.compile) == ("bf16", "none")


def test_a_peak_rate_is_the_tables_or_the_users_and_never_a_guess() -> None:
    unknown = replace(gpu(9, 0), name="NVIDIA H555 80GB")
    h100 = replace(gpu(9, 0), name="NVIDIA H100 80GB HBM3")
    assert unknown.peak("bf16") is None
    assert h100.peak("bf16") == 989e12
    assert h100.peak("bf16", given=500e12) == 500e12
    assert unknown.peak("bf16", given=500e12) == 500e12
    assert CPU.peak("bf16") is None


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


def test_cuda_graphs_and_fsdp_do_not_go_together() -> None:
    with pytest.raises(HardwareError, match=r"speed\.mode reduce-overhead: it replays CUDA graphs"):
        auto(gpu(9, 0), processes=2, compile="blocks", mode="reduce-overhead", parallel="fsdp")
    tuned = Speed(compile="blocks", mode="reduce-overhead")
    speed, _ = resolve(Speed(parallel="fsdp"), ModelConfig(), Recipe(), gpu(9, 0), 2, tuned)
    assert speed.mode == "default"


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 9.0, 9.0))
    assert busy() is None
    monkeypatch.setattr(os, "getloadavg", lambda: (float(cores()), 0.0, 0.0))
    assert busy() == (
        f"warning: this machine is busy (load {cores():.1f} on {cores()} cores); what is measured now will be too slow"
    )


def test_what_was_tuned_is_left_out_aloud() -> None:
    """It does not go with what is given."""
    tuned = Speed(compile="blocks", mode="max-autotune", attention="naive")
    speed, why = resolve(Speed(compile="none"), ModelConfig(), Recipe(), gpu(8, 0), tuned=tuned)
    assert (speed.compile, speed.mode, speed.attention) == ("none", "default", "sdpa")
    assert "not as it was tuned" in why
    assert "speed.mode max-autotune" in why


@pytest.mark.parametrize(
    ("local", "devices", "launcher", "index"),
    [(0, 1, "torchrun", 0), (3, 4, "torchrun", 3), (2, 1, "srun", 0), (1, 1, "torchrun", None), (4, 4, "srun", None)],
)
def test_a_process_takes_a_device_of_its_own(
    local: int, devices: int, launcher: str, index: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler may show each process one device only; a launcher shows all of them to all processes."""
    monkeypatch.setenv("LOCAL_RANK", str(local))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if launcher == "torchrun":
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    if index is None:
        with pytest.raises(ConfigError, match=f"process {local + 1} of this machine has no device: {devices} can be"):
            own_index(devices)
    else:
        assert own_index(devices) == index
