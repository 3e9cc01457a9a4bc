"""What this machine is and what it supports, with the reason where it does not. torch is imported by `reach` and `look`
alone, when they are called."""

import os
import platform
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tenfold.errors import ConfigError, HardwareError
from tenfold.reference import cards

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h
BUSY = 0.4  # load average a core from which measurements suffer: a single busy process halves the speed of two cores
KINDS = ("cpu", "cuda", "mps", "xpu")
UNTRIED = {
    "mps": "untested: no Apple GPU was at hand",
    "xpu": "untested: no Intel GPU was at hand",
    "hip": "untested: no AMD GPU was at hand (ROCm builds of torch call the device cuda)",
}
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)(a?)f?")
WHEELS = "pip install torch --index-url https://download.pytorch.org/whl"
# What to do about a compute capability from this one on that torch has no kernels for, highest first. By the matrix of
# torch's RELEASE.md for 2.11 to 2.14 (github.com/pytorch/pytorch, pulls 175253 and 182849): builds for CUDA 12.6 have
# Maxwell (5.0) to Hopper (9.0), those for 13.0 Turing (7.5) to Blackwell (10.0 and 12.0); 12.6 is to go with 2.15
# (number 190385 there). Blackwell came with 2.7 and CUDA 12.8 (pytorch/pytorch.github.io, pull 1989).
BUILDS: dict[tuple[int, int], str] = {
    (13, 0): "install a newer torch",
    (10, 0): f"install torch 2.7 or later built for CUDA 12.8 or later ({WHEELS}/cu130)",
    (7, 5): f"install torch built for CUDA 13.0 ({WHEELS}/cu130)",
    (5, 0): f"install torch 2.11 to 2.14 built for CUDA 12.6 ({WHEELS}/cu126)",
    (0, 0): "no torch that tenfold runs with has them",
}


@dataclass(frozen=True)
class Hardware:
    """One device and the tools around it. A dataclass of plain facts, so that decisions are tested without the
    device."""

    kind: str
    """cpu, cuda (ROCm too), mps or xpu."""
    name: str
    count: int = 1
    """Devices of this kind; for the CPU, cores this process may use."""
    memory_bytes: int = 0
    """Of one device; 0 where it cannot be read."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability."""
    native_bf16: bool = False
    """Whether bf16 products run in hardware; emulation does not count."""
    torch: str = ""
    hip: bool = False
    compiler: str | None = None
    """Path of a C++ compiler, which torch.compile needs on the CPU."""
    libc: str = ""
    """Name of the C library, which gives the CPU's memory."""
    triton: bool = False
    """Whether Triton is installed, which torch.compile needs on GPUs."""
    cuda: str = ""
    """CUDA version that this torch was built for."""
    built_for: tuple[str, ...] = ()
    """Architectures that this torch has kernels for (sm_80, compute_120); empty where it does not say."""
    cudnn: bool = False
    """Whether torch has cuDNN."""
    fa3: bool = False
    """Whether FlashAttention-3's package, flash_attn_interface, is installed; torch's own registration needs it too."""

    def lacks(self, feature: str) -> str | None:
        """None if this device has the feature, a row of FEATURES, and gains by it; else the reason in words."""
        return FEATURES[feature](self)

    def peak(self, precision: str, given: float | None = None) -> float | None:
        """Dense peak rate in FLOP/s of products in a precision: `given`, if the user names one, else the table's; None
        for a card that the table lacks, never a guess."""
        known = self.card
        return given or (cards.peak(known, precision) if known else None)

    @property
    def card(self) -> cards.Card | None:
        """The device's row in the table of cards."""
        return cards.card_of(self.name, self.memory_bytes)

    @property
    def unsupported_by_torch(self) -> str | None:
        """None if this torch has kernels for the card, or does not say; else a line that names the torch that has."""
        if self.hip or not self.capability or not self.built_for or runs_on(self.built_for, self.capability):
            return None
        way = next(way for least, way in BUILDS.items() if self.capability >= least)
        torch = f"torch {self.torch}" + (f" for CUDA {self.cuda}" if self.cuda else "")
        return f"{torch} has no kernels for {self.described}; {way}, or use the device cpu"

    @property
    def described(self) -> str:
        """The device in a few words."""
        capability = f", compute capability {self.capability[0]}.{self.capability[1]}" if self.capability else ""
        return f"{self.name} ({self.kind}{capability})"


def runs_on(built_for: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code for one of these architectures runs on a card: machine code (sm_86) within its major version from
    its own on, PTX (compute_90) on everything later, code with the suffix a only on its own (CUDA C++ Programming
    Guide, sections on binary and PTX compatibility)."""
    for kind, major, minor, exact in (m.groups() for m in map(ARCHITECTURE.fullmatch, built_for) if m):
        built = (int(major), int(minor))
        if built == capability:
            return True
        if not exact and built < capability and (kind == "compute" or built[0] == capability[0]):
            return True
    return False


def nvidia(here: Hardware, what: str, least: tuple[int, int]) -> str | None:
    """A reason unless this is an NVIDIA GPU of at least this compute capability."""
    if here.kind == "cuda" and not here.hip and (here.capability or (0, 0)) >= least:
        return None
    return f"{what} needs an NVIDIA GPU of compute capability {least[0]}.{least[1]} or later; this is {here.described}"


def bf16(here: Hardware) -> str | None:
    return None if here.native_bf16 else f"bf16 is not native on {here.described}, only emulated"


def fp16(here: Hardware) -> str | None:
    if here.kind == "cpu":
        return "fp16 products are far slower than fp32 on CPUs"
    if here.kind == "cuda" and not here.hip:
        # Pascal has no tensor cores; 6.1 computes fp16 at a 64th of fp32's rate (CUDA C++ Programming Guide, table of
        # arithmetic throughput)
        return nvidia(here, "fp16 that is faster than fp32", (7, 0))
    return None


def fp8(here: Hardware) -> str | None:
    if here.kind == "cpu":
        return "fp8 products are only emulated on CPUs"
    return nvidia(here, "fp8", (8, 9))


def compilation(here: Hardware) -> str | None:
    if here.kind == "cpu" and here.compiler is None:
        return "torch.compile on the CPU needs a C++ compiler (g++ or clang++) and found none"
    if here.kind in ("cuda", "xpu") and not here.triton:
        return "torch.compile on GPUs needs Triton, which is not installed"
    if here.kind == "cuda" and not here.hip:
        return nvidia(here, "torch.compile", (7, 0))
    return None


def graphs(here: Hardware) -> str | None:
    return compilation(here) if here.kind == "cuda" else f"CUDA graphs are for CUDA devices; this is {here.described}"


def kept(here: Hardware) -> str | None:
    if here.kind != "cpu":
        return "torch keeps a GPU's memory by itself"
    return None if here.libc == "glibc" else "only glibc can be told so"


def flash(here: Hardware) -> str | None:
    if here.kind != "cuda":
        return f"sdpa already takes torch's own fused kernel on {here.kind}"
    # aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_flash_attention_hardware_support: 8.0 to 12.1
    return None if here.hip else nvidia(here, "FlashAttention", (8, 0))


def cudnn(here: Hardware) -> str | None:
    reason = nvidia(here, "cuDNN's attention", (8, 0))
    return reason or (None if here.cudnn else "this torch has no cuDNN")


def fa3(here: Hardware) -> str | None:
    if here.kind != "cuda" or here.hip or not here.capability or here.capability[0] != 9:
        return f"FlashAttention-3 is for compute capability 9 (Hopper); this is {here.described}"
    return None if here.fa3 else "FlashAttention-3's package, flash_attn_interface, is not installed"


def flex(here: Hardware) -> str | None:
    if here.kind == "cpu":
        return "torch's FlexAttention has no backward on CPUs"  # tried with 2.13: NotImplementedError, compiled or not
    return "torch has no FlexAttention for mps" if here.kind == "mps" else compilation(here)


def linear_cross_entropy(here: Hardware) -> str | None:
    version = re.match(r"(\d+)\.(\d+)", here.torch)
    if version and (int(version[1]), int(version[2])) >= (2, 13):
        return None
    return f"linear_cross_entropy needs torch 2.13; this is torch {here.torch}"


FEATURES: dict[str, Callable[[Hardware], str | None]] = {
    "fp32": lambda here: None,
    "tf32": partial(nvidia, what="tf32", least=(8, 0)),
    "bf16": bf16,
    "fp16": fp16,
    "fp8": fp8,
    "compile": compilation,
    "graphs": graphs,
    "autotune": compilation,
    "kept": kept,
    "flash": flash,
    "cudnn": cudnn,
    "fa3": fa3,
    "flex": flex,
    "linear_cross_entropy": linear_cross_entropy,
}


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy() -> str | None:
    """A line if other processes keep this machine's processor busy, so that what is measured now would be too slow."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
    if load < BUSY * cores():
        return None
    return f"warning: this machine is busy (load {load:.1f} on {cores()} cores); what is measured now will be too slow"


def host_memory() -> int:
    """Bytes of memory of the host, 0 where it cannot be read."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def choose(device: str) -> str:
    """The device to use for `auto`, or the given one if this torch can use it; HardwareError otherwise."""
    device = reach(device)
    if reason := look(device).unsupported_by_torch:
        raise HardwareError(reason)
    return device


def detect(device: str = "auto") -> Hardware:
    """The hardware of a device name: auto, cpu, cuda, cuda:N, mps or xpu; HardwareError if this torch cannot use it."""
    return look(choose(device))


def reach(device: str) -> str:
    """The device to use for `auto`, or the given one if it is here; HardwareError otherwise. Whether this torch has
    kernels for it is another matter."""
    import torch

    kind, _, index = device.partition(":")
    if kind != "auto" and (kind not in KINDS or (index and not index.isdigit())):
        raise ConfigError(f"speed.device is {device!r}; possible are auto, cpu, cuda, cuda:N, mps and xpu")
    present = {"cpu": 1}
    present["cuda"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    present["mps"] = int(torch.backends.mps.is_available())
    present["xpu"] = torch.xpu.device_count() if torch.xpu.is_available() else 0
    if kind == "auto":
        return next(k for k in ("cuda", "xpu", "mps", "cpu") if present[k])
    if not present[kind] or (index and int(index) >= present[kind]):
        have = ", ".join(f"{k} ({n})" if k != "cpu" else k for k, n in present.items() if n)
        raise HardwareError(f"speed.device {device!r} is not here; this torch ({torch.__version__}) sees {have}")
    return device


def look(device: str) -> Hardware:
    """The hardware of a device that `reach` gave, usable or not."""
    import torch

    kind = device.partition(":")[0]
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("g++", "clang++"))), None)
    here = Hardware(
        kind,
        cpu_name(),
        torch=str(torch.__version__),
        compiler=compiler,
        libc=platform.libc_ver()[0],
        triton=find_spec("triton") is not None,
        fa3=find_spec("flash_attn_interface") is not None,
    )
    if kind == "cuda":
        with warnings.catch_warnings():  # torch's own about cards that it lacks kernels for; ours says what to do
            warnings.simplefilter("ignore")
            card = torch.cuda.get_device_properties(torch.device(device))
        hip = torch.version.hip is not None
        capability = (card.major, card.minor)
        return replace(
            here,
            name=card.name,
            count=torch.cuda.device_count(),
            memory_bytes=card.total_memory,
            capability=None if hip else capability,
            native_bf16=capability >= ((9, 0) if hip else (8, 0)),
            hip=hip,
            cuda=torch.version.cuda or "",
            built_for=tuple(torch.cuda.get_arch_list()),
            cudnn=torch.backends.cudnn.is_available(),
        )
    if kind == "xpu":
        intel = torch.xpu.get_device_properties(torch.device(device))
        count = torch.xpu.device_count()
        return replace(here, name=intel.name, count=count, memory_bytes=intel.total_memory, native_bf16=True)
    if kind == "mps":
        return replace(here, memory_bytes=host_memory())
    asked = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    bf16 = any(has() for has in asked if has is not None)
    return replace(here, count=cores(), memory_bytes=host_memory(), native_bf16=bf16)


def keep_memory() -> None:
    """Tell glibc to keep what this process frees, for what it asks for next. Otherwise every step's large tensors, some
    3 GB for GPT-2 124M, go back to the system, which clears and maps them anew. Holds for the process's whole life."""
    import ctypes

    libc = ctypes.CDLL(None)
    for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 64 << 20)):
        libc.mallopt(option, value)
