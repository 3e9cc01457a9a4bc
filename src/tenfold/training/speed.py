"""Speed: how a training is executed. Changing it never changes the training beyond rounding. Here are its fields,
what a machine supports of them and why not, and what `auto` becomes; `prepare` carries it out. No torch here."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tenfold.errors import ConfigError, HardwareError
from tenfold.hardware import Hardware
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe

CPU_TOKENS = 4096  # tokens of a micro-step on a CPU, beyond which larger ones only take memory
LONG = 256  # tokens a row from which attention in row blocks is faster than sdpa on a CPU
WIDE = 8192  # rows of an embedding from which the loss in chunks is faster on a CPU
GPU_TOKENS = 65536  # where the search for the rows that fit begins on a GPU

# What a value needs of the hardware, a row of hardware.FEATURES, and what to use where that is lacking.
NEEDS: dict[tuple[str, str], tuple[str, str]] = {
    ("precision", "tf32"): ("tf32", "fp32 or auto"),
    ("precision", "bf16"): ("bf16", "fp32 or auto"),
    ("precision", "fp8"): ("fp8", "bf16, fp32 or auto"),
    ("attention", "flash"): ("flash", "sdpa or auto"),
    ("attention", "cudnn"): ("cudnn", "sdpa or auto"),
    ("attention", "fa3"): ("fa3", "sdpa or auto"),
    ("attention", "flex"): ("flex", "sdpa or auto"),
    ("loss", "torch"): ("linear_cross_entropy", "plain, chunked or auto"),
    ("compile", "blocks"): ("compile", "none or auto"),
    ("compile", "model"): ("compile", "none or auto"),
    ("mode", "reduce-overhead"): ("graphs", "default or auto"),
    ("mode", "max-autotune"): ("autotune", "default or auto"),
    ("memory", "kept"): ("kept", "returned or auto"),
}
HALF = ("flash", "cudnn", "fa3")  # kernels that compute bf16 and fp16 only


@dataclass(frozen=True)
class Speed:
    """How a training is executed. `auto` chooses and says why; a value that cannot run here is refused."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N, mps or xpu (ROCm is cuda; mps, xpu and ROCm are untested)."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8"] = "auto"
    """Arithmetic of the matrix products; weights and optimizer moments stay fp32."""
    attention: Literal["auto", "naive", "sdpa", "flash", "cudnn", "fa3", "flex", "rows"] = "auto"
    """Attention kernel, by its row in model.attention.KERNELS."""
    loss: Literal["auto", "plain", "chunked", "torch"] = "auto"
    """Head and loss, by its row in model.head.LOSSES."""
    compile: Literal["auto", "none", "blocks", "model"] = "auto"
    """What torch.compile compiles."""
    mode: Literal["auto", "default", "reduce-overhead", "max-autotune"] = "auto"
    """How torch.compile compiles: reduce-overhead replays CUDA graphs, max-autotune tries many kernels first."""
    backend: str = "auto"
    """Which compiler torch.compile hands the graphs to, by torch's name for it."""
    fused: Literal["auto", "yes", "no"] = "auto"
    """Whether the optimizer updates all weights in one kernel."""
    memory: Literal["auto", "returned", "kept"] = "auto"
    """Whether memory that a step frees stays with the process, for the next step, or goes back to the system."""
    recompute: Literal["auto", "none", "blocks"] = "auto"
    """Whether the backward pass recomputes blocks instead of keeping their activations."""
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    """How several processes share the work."""
    rows: int | Literal["auto"] = "auto"
    """Rows that a device holds at a time; the rest of its share is accumulated."""

    def __post_init__(self) -> None:
        if self.rows != "auto" and self.rows < 1:
            raise ConfigError(f"speed.rows is {self.rows}; give a number of at least 1, or auto")


def supported(speed: Speed, hardware: Hardware, processes: int = 1) -> str | None:
    """None if every explicit value of `speed` can run on this hardware, else the reason why not, in words."""
    if reason := hardware.unsupported_by_torch:
        return f"speed.device {speed.device}: {reason}"
    for (name, value), (feature, instead) in NEEDS.items():
        if getattr(speed, name) == value and (reason := hardware.lacks(feature)):
            return f"speed.{name} {value}: {reason}; use {instead}"
    precision = speed.precision if speed.precision != "auto" else precision_for(hardware)[0]
    if speed.attention in HALF and precision in ("fp32", "tf32"):
        return (
            f"speed.attention {speed.attention}: it computes bf16 and fp16 only, and the precision is {precision}; "
            "use sdpa or auto"
        )
    if speed.mode not in ("auto", "default") and speed.compile == "none":
        return f"speed.mode {speed.mode}: speed.compile none compiles nothing; use compile blocks, or mode default"
    if speed.backend not in ("auto", "inductor") and speed.compile == "none":
        return (
            f"speed.backend {speed.backend}: speed.compile none compiles nothing; use compile blocks, or backend auto"
        )
    if speed.parallel == "fsdp" and speed.mode in ("reduce-overhead", "max-autotune"):
        return (
            f"speed.mode {speed.mode}: it replays CUDA graphs, which FSDP's weights do not go with; use default or auto"
        )
    if speed.parallel == "none" and processes > 1:
        return f"speed.parallel none: {processes} processes were started; use ddp, fsdp or auto, or start one process"
    if speed.parallel == "fsdp" and hardware.kind == "mps":
        return "speed.parallel fsdp: FSDP2 does not run on mps; use none or auto"
    return None


def precision_for(hardware: Hardware) -> tuple[str, str]:
    """The precision to train in on this hardware, and why."""
    if not (bf16 := hardware.lacks("bf16")):
        return "bf16", "native here"
    fp16 = hardware.lacks("fp16")
    if hardware.kind == "cuda" and not fp16:
        return "fp16", f"with loss scaling, because {bf16}"
    return "fp32", f"{bf16} and {fp16}" if fp16 else bf16


def resolve(
    speed: Speed,
    model: ModelConfig,
    recipe: Recipe,
    hardware: Hardware,
    processes: int = 1,
    tuned: Speed | None = None,
) -> tuple[Speed, str]:
    """`speed` with every `auto` replaced, and one line saying what was chosen and why; HardwareError for what cannot
    run. What was `tuned` on this machine goes before the choice from the hardware table, unless the two do not go
    together with what is given.

    Rows a device are only an upper bound here where a GPU's memory decides; `training.fit` finds what really fits.
    """
    if reason := supported(speed, hardware, processes):
        raise HardwareError(reason)
    share = -(-recipe.rows // processes)
    room = max(1, (CPU_TOKENS if hardware.kind == "cpu" else GPU_TOKENS) // recipe.length)
    kept = hardware.lacks("kept")
    long = hardware.kind == "cpu" and recipe.length >= LONG
    wide = hardware.kind == "cpu" and model.embedding_rows >= WIDE
    uncompiled = hardware.lacks("compile")
    # a mode or a compiler that was asked for would do nothing where nothing is compiled
    asked = speed.mode not in ("auto", "default") or speed.backend not in ("auto", "inductor")
    compiled = asked or (hardware.kind == "cuda" and not uncompiled)
    choices: dict[str, tuple[Any, str]] = {
        "device": (hardware.kind, hardware.name),
        "precision": precision_for(hardware),
        "attention": ("rows", "faster than sdpa on CPUs") if long else ("sdpa", "torch picks a fused kernel"),
        "loss": ("chunked", "a wide vocabulary on a CPU") if wide else ("plain", ""),
        "compile": ("blocks", "repays its first step")
        if compiled
        else ("none", uncompiled or "costs a long first step"),
        "mode": ("default", ""),
        "backend": ("inductor", ""),
        "fused": ("yes", "torch has it on every kind of device here"),
        "memory": ("returned", kept) if kept else ("kept", "for the next step"),
        "recompute": ("none", ""),
        "parallel": ("ddp", f"{processes} processes") if processes > 1 else ("none", "one process"),
        "rows": (min(share, room), f"{min(share, room) * recipe.length:,} tokens at a time"),
    }
    clash = supported(combined(tuned, speed), hardware, processes) if tuned else None
    if tuned and not clash:
        choices |= {name: (value, "tuned") for name, value in vars(tuned).items() if value != "auto"}
        if isinstance(tuned.rows, int):
            choices["rows"] = (min(share, tuned.rows), "tuned")
    chosen = {f.name: choices[f.name] for f in fields(Speed) if getattr(speed, f.name) == "auto"}
    said = ", ".join(f"{name} {value}" + (f" ({why})" if why else "") for name, (value, why) in chosen.items())
    said += f"; not as it was tuned, which does not go with what is given ({clash})" if clash else ""
    return replace(speed, **{name: value for name, (value, _) in chosen.items()}), said


def combined(below: Speed, above: Speed) -> Speed:
    """`above` with what it leaves open taken from `below`."""
    return replace(below, **{name: value for name, value in vars(above).items() if value != "auto"})
