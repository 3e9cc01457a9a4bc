"""What this machine is and what it supports, with the reason where it does not. torch is imported by `detect` alone."""

import os
import platform
import shutil
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from tenfold.errors import ConfigError, HardwareError

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h
KINDS = ("cpu", "cuda", "mps", "xpu")
UNTRIED = {
    "mps": "untested: no Apple GPU was at hand",
    "xpu": "untested: no Intel GPU was at hand",
    "hip": "untested: no AMD GPU was at hand (ROCm builds of torch call the device cuda)",
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

    def lacks(self, feature: str) -> str | None:
        """None if this device has the feature (a precision, compile, kept), else the reason in words."""
        if feature == "tf32" and not (self.kind == "cuda" and not self.hip and (self.capability or (0, 0)) >= (8, 0)):
            return f"tf32 needs an NVIDIA GPU of compute capability 8.0 or later; this is {self.described}"
        if feature == "bf16" and not self.native_bf16:
            return f"bf16 is not native on {self.described}, only emulated"
        if feature == "kept":
            if self.kind != "cpu":
                return "torch keeps a GPU's memory by itself"
            if self.libc != "glibc":
                return "only glibc can be told so"
        if feature == "compile":
            if self.kind == "cpu" and self.compiler is None:
                return "torch.compile on the CPU needs a C++ compiler (g++ or clang++) and found none"
            if self.kind in ("cuda", "xpu") and not self.triton:
                return "torch.compile on GPUs needs Triton, which is not installed"
            if self.kind == "cuda" and not self.hip and (self.capability or (0, 0)) < (7, 0):
                return f"torch.compile needs compute capability 7.0 or later; this is {self.described}"
        return None

    @property
    def described(self) -> str:
        """The device in a few words."""
        capability = f", compute capability {self.capability[0]}.{self.capability[1]}" if self.capability else ""
        return f"{self.name} ({self.kind}{capability})"


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


def host_memory() -> int:
    """Bytes of memory of the host, 0 where it cannot be read."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def choose(device: str) -> str:
    """The device to use for `auto`, or the given one if this torch can reach it; HardwareError otherwise."""
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


def detect(device: str = "auto") -> Hardware:
    """The hardware of a device name: auto, cpu, cuda, cuda:N, mps or xpu."""
    import torch

    device = choose(device)
    kind = device.partition(":")[0]
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("g++", "clang++"))), None)
    here = Hardware(
        kind,
        cpu_name(),
        torch=str(torch.__version__),
        compiler=compiler,
        libc=platform.libc_ver()[0],
        triton=find_spec("triton") is not None,
    )
    if kind == "cuda":
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
    for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 << 20)):
        libc.mallopt(option, value)
