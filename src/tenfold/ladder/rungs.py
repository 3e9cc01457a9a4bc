"""The rungs, as data: each changes exactly one option of the run below it. What they mean is told in `lessons`."""

from dataclasses import dataclass, replace
from typing import Any

from tenfold.hardware import Hardware
from tenfold.model.config import ModelConfig
from tenfold.run import Run
from tenfold.training.speed import Speed, supported

NICE = 128  # a padded vocabulary is a multiple of it: 50,304 for GPT-2's 50,257
# Largest relative difference of the loss over ten steps to fp32's; the published bounds, tightened after measuring.
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 2e-3, "fp16": 2e-3, "fp8": 2e-2}
FIT, HALF, DOUBLE = "as many as fit", "half", "double"  # values of speed.rows that depend on the rung below


@dataclass(frozen=True)
class Rung:
    """One change. `field` is a dotted name (speed.precision); the first rung changes nothing."""

    name: str
    title: str
    field: str = ""
    value: Any = None
    kinds: tuple[str, ...] = ()
    """Kinds of device that it is for; empty is all."""
    slow: bool = False
    """Left out on a CPU unless everything is asked for: it takes minutes."""
    slack: float = 0.0
    """Share by which it may be slower and is still taken; below 0, by which it must be faster."""
    for_first_step: bool = False
    """Whether slack only counts on a CPU, over the whole model compiled, for a first step that is shorter."""

    @property
    def change(self) -> str:
        """What it changes, in words."""
        return f"{self.field} {self.value}".replace(" None", "") if self.field else ""


RUNGS = (
    Rung("naive", "Naive: fp32, masked attention"),
    Rung("batch", "The largest batch that fits", "speed.rows", FIT, slow=True),
    Rung("tf32", "TF32", "speed.precision", "tf32"),
    Rung("bf16", "BF16", "speed.precision", "bf16"),
    Rung("fp16", "FP16 with loss scaling", "speed.precision", "fp16"),
    Rung("compile-model", "torch.compile, the whole model", "speed.compile", "model"),
    # what it leaves to the rungs above is the loss; what it saves is most of the first step, in theirs too
    Rung("compile-blocks", "torch.compile, by blocks", "speed.compile", "blocks", slack=0.2, for_first_step=True),
    Rung("sdpa", "Fused attention (SDPA)", "speed.attention", "sdpa"),
    Rung("flash", "FlashAttention through SDPA", "speed.attention", "flash"),
    Rung("cudnn", "cuDNN's attention", "speed.attention", "cudnn"),
    Rung("fa3", "FlashAttention-3", "speed.attention", "fa3"),
    Rung("flex", "FlexAttention", "speed.attention", "flex"),
    Rung("rows", "Attention in row blocks", "speed.attention", "rows", kinds=("cpu",)),
    Rung("padded", "Padded vocabulary", "model.padded_vocab"),
    Rung("fused", "Fused AdamW", "speed.fused", "yes"),
    Rung("chunked", "Loss without the logits in memory", "speed.loss", "chunked"),
    Rung("torch-loss", "torch's linear_cross_entropy", "speed.loss", "torch", slow=True),
    Rung("kept", "Freed memory kept", "speed.memory", "kept", kinds=("cpu",)),
    Rung("recompute", "Recomputed blocks", "speed.recompute", "blocks"),
    Rung("refit", "The largest batch again", "speed.rows", FIT, slow=True),
    Rung("fp8", "FP8 matrix products", "speed.precision", "fp8"),
    Rung("graphs", "CUDA graphs (reduce-overhead)", "speed.mode", "reduce-overhead"),
    Rung("autotune", "max-autotune", "speed.mode", "max-autotune", slow=True),
    Rung("ddp", "DDP over all devices", "speed.parallel", "ddp"),
)


def bottom(run: Run, device: str, rows: int) -> Run:
    """The naive configuration that the ladder starts from, with nothing left open; `rows` a device."""
    speed = Speed(
        device=device,
        precision="fp32",
        attention="naive",
        loss="plain",
        compile="none",
        mode="default",
        backend="inductor",
        fused="no",
        memory="returned",
        recompute="none",
        parallel="none",
        rows=rows,
    )
    return replace(run, model=replace(run.model, padded_vocab=0), speed=speed)


def changed(run: Run, field: str, value: Any) -> Run:
    """The run with one option changed, by its dotted name."""
    if not field:
        return run
    part, name = field.split(".")
    return replace(run, **{part: replace(getattr(run, part), **{name: value})})


def padded(model: ModelConfig) -> int:
    """The vocabulary, up to the next multiple that suits matrix products."""
    return -(-model.vocab // NICE) * NICE


def apply(rung: Rung, run: Run) -> Run:
    """The run one rung up. Of a search for rows it has the upper bound, every row of the step at a time."""
    value = rung.value
    if rung.field == "model.padded_vocab":
        value = padded(run.model)
    if rung.field == "speed.rows":
        most, rows = run.recipe.rows, run.speed.rows
        assert isinstance(rows, int)
        value = {FIT: most, HALF: max(1, rows // 2), DOUBLE: min(most, 2 * rows)}[value]
    return changed(run, rung.field, value)


def skipped(rung: Rung, below: Run, hardware: Hardware, everything: bool) -> str | None:
    """Why this machine cannot run a rung, or why there is nothing to do, in words; None if it can be measured."""
    above, speed = apply(rung, below), below.speed
    reasons = (
        (rung.kinds and hardware.kind not in rung.kinds, f"for {' and '.join(rung.kinds)} only"),
        (
            rung.slow and hardware.kind == "cpu" and not everything,
            "takes minutes on a CPU and seldom helps there; --all measures it",
        ),
        (rung.field and above == below, f"{rung.field} is already so"),
        (rung.name == "ddp" and ":" in speed.device, f"one device was asked for, {speed.device}"),
        (rung.name == "ddp" and (hardware.kind == "cpu" or hardware.count < 2), "there is one device"),
        (rung.name == "fp16" and speed.precision == "bf16", "bf16 is native here and needs no loss scale"),
        (rung.field == "speed.mode" and speed.compile == "none", "nothing is compiled here"),
    )
    for applies, reason in reasons:
        if applies:
            return reason
    useless = hardware.lacks("fp16") if rung.name == "fp16" else None  # it could be run, to no avail
    return useless or why_not(above.speed, hardware, processes_of(above, hardware))


def processes_of(run: Run, hardware: Hardware) -> int:
    """How many processes a run of the ladder takes: one for every device once it is parallel."""
    return 1 if run.speed.parallel == "none" else hardware.count


def why_not(speed: Speed, hardware: Hardware, processes: int = 1) -> str | None:
    """Why a speed cannot run here, without the advice what to give instead."""
    reason = supported(speed, hardware, processes)
    return reason and reason.partition(": ")[2].partition("; use ")[0]
