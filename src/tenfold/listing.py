"""Tables for the terminal: runs with their state, and what this machine supports."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tenfold import rundir
from tenfold.errors import CheckpointError
from tenfold.hardware import FEATURES, UNTRIED, Hardware
from tenfold.run import from_dict

NAMES = {
    "compile": "torch.compile",
    "graphs": "CUDA graphs",
    "autotune": "max-autotune",
    "kept": "memory kept",
    "flash": "FlashAttention",
    "cudnn": "cuDNN attention",
    "fa3": "FlashAttention-3",
    "flex": "FlexAttention",
}
RATES = ("fp32", "tf32", "bf16", "fp16", "fp8")


def render(table: Table, width: int = 160) -> str:
    """A table as text, as wide as the terminal, or at most `width` where there is none."""
    console = Console() if Console().is_terminal else Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def last(records: list[dict[str, Any]], key: str, form: str) -> str:
    """The last value of a key in a run's records, formatted, or a dash."""
    return next((f"{r[key]:{form}}" for r in reversed(records) if isinstance(r.get(key), int | float)), "-")


def run_table(root: Path) -> str:
    """The runs below a folder: state, progress, last losses, speed and when they last moved."""
    table = Table(
        "run", "preset", "state", "step", "loss", "val loss", "tokens/s", "last line", box=None, pad_edge=False
    )
    for path in rundir.runs(root):
        records = rundir.read_metrics(path)
        try:
            run = from_dict(rundir.read_run(path), f"{path}/run.json")
        except CheckpointError as error:
            table.add_row(path.name, "-", f"unreadable: {error}", "-", "-", "-", "-", "-")
            continue
        when = next(
            (time.strftime("%Y-%m-%d %H:%M", time.localtime(r["time"])) for r in records[::-1] if "time" in r), "-"
        )
        figures = (
            last(records, key, form)
            for key, form in (("loss", ".4f"), ("val_loss", ".4f"), ("tokens_per_second", ",.0f"))
        )
        at = f"{last(records, 'step', ',d')} / {run.recipe.steps:,}"
        table.add_row(path.name, run.preset, rundir.state(path), at, *figures, when)
    return render(table) if table.row_count else f"no runs in {root}; `tenfold train demo` makes one"


def machine_table(hardware: Hardware) -> str:
    """What the machine is and what it supports, with the reason where it does not."""
    table = Table.grid(padding=(0, 2))
    table.add_row("device", hardware.described)
    unit = "core" if hardware.kind == "cpu" else "device"
    table.add_row("count", f"{hardware.count} {unit}{'s' * (hardware.count > 1)}")
    table.add_row("memory", f"{hardware.memory_bytes / 2**30:.1f} GiB" if hardware.memory_bytes else "unknown")
    table.add_row("peak rate", peak_rates(hardware))
    table.add_row("torch", hardware.torch + (f", built for CUDA {hardware.cuda}" if hardware.cuda else ""))
    table.add_row("C++ compiler", hardware.compiler or "none found")
    table.add_row("Triton", "installed" if hardware.triton else "not installed")
    if hardware.unsupported_by_torch:
        table.add_row("unusable", hardware.unsupported_by_torch)
    for feature in FEATURES:
        reason = hardware.lacks(feature)
        table.add_row(NAMES.get(feature, feature), f"no: {reason.partition('; this is ')[0]}" if reason else "yes")
    for kind in (hardware.kind, "hip" if hardware.hip else ""):
        if kind in UNTRIED:
            table.add_row("note", UNTRIED[kind])
    return render(table, width=100)


def peak_rates(hardware: Hardware) -> str:
    """Dense peak rates by precision, as the table of cards has them."""
    if hardware.card is None:
        return "unknown: the table of cards has no such device"
    rates = ((name, hardware.peak(name)) for name in RATES)
    known = ", ".join(f"{name} {f'{rate / 1e12:g}' if rate else 'unknown'}" for name, rate in rates)
    return f"{known} TFLOP/s dense ({hardware.card.name})"
