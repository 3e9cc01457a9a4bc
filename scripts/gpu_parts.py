"""The parts of the GPU check, each a function (job, note) -> summary that runs in a process of its own; gpu_check.py
says what they are for, starts them and ends them in time. `note` keeps a figure, and what is wrong with it.

Needs torch, numpy and tenfold's source; nothing here may need more.
"""

import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plain as baseline
from alternate import seconds
from tenfold import world as worlds
from tenfold.hardware import FEATURES, detect
from tenfold.ladder import record
from tenfold.ladder.climb import Terms, apart
from tenfold.ladder.rungs import RUNGS, TOLERANCE, bottom, why_not
from tenfold.ladder.worker import build
from tenfold.model.attention import KERNELS, Attention, naive
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe
from tenfold.run import Run, preset
from tenfold.training.fit import out_of_memory
from tenfold.training.start import check_head
from tenfold.world import World

Job = dict[str, Any]  # device, tiny, out: the folder for results, ends: when the time is up, by time.monotonic()

SMALL = ModelConfig(layers=2, heads=2, width=64, context=64, vocab=1000, padded_vocab=0)
STEPS = 10
ACROSS = 1e-4  # largest relative difference of fp32 losses between a device and the CPU, which sum in other orders
KERNEL = 2e-2  # of a kernel's bf16 result and gradients to naive ones in fp32, by norm; bf16 keeps 8 bits, 4e-3
GLOO = 1e-6  # between processes on a CPU; elsewhere fp32's tolerance
ELSEWHERE = "not here: "  # what a figure begins with where there is none
WARM, WATCHED = 4, 4  # steps before, and steps of which none may wait

# What is changed about the naive step in fp32; the tolerance is that of the precision.
CASES: dict[str, dict[str, Any]] = {
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16", "attention": "sdpa"},
    "fp16": {"precision": "fp16", "attention": "sdpa"},
    "fp8": {"precision": "fp8", "attention": "sdpa"},
    "sdpa": {"attention": "sdpa"},
    "fused": {"fused": "yes"},
    "accumulated": {"rows": 3},  # with a filler row
    "chunked": {"loss": "chunked"},
    "torch's loss": {"loss": "torch"},
    "recomputed": {"recompute": "blocks"},
    "model compiled": {"compile": "model", "rows": 4},
    "CUDA graphs": {"compile": "model", "rows": 4, "mode": "reduce-overhead"},
    "bf16, blocks compiled": {"precision": "bf16", "attention": "sdpa", "compile": "blocks", "rows": 4},
}
# The same about the usual step in bf16.
SYNCED: dict[str, dict[str, Any]] = {
    "eager": {},
    "eager, chunked": {"loss": "chunked"},
    "blocks compiled": {"compile": "blocks"},
}
SHARED = ((8, 8, "ddp"), (7, 2, "ddp"), (7, 2, "fsdp"))  # rows a step, rows a process holds, how they share the work

# The rungs that most is expected of come first, and the compiler, which takes longest, once the rest of them is chosen.
# Left out are those that compile for minutes, and the second search for the batch, after which memory could not be
# compared at the same batch. FP8 comes last: whatever stood on it would have another peak rate.
ORDER: tuple[str, ...] = (
    *("naive", "batch", "tf32", "bf16", "fp16", "sdpa", "cudnn", "padded", "fused", "compile-blocks", "graphs"),
    *("flash", "chunked", "torch-loss", "fa3", "flex", "rows", "kept", "recompute", "ddp", "fp8"),
)
TINY_ORDER = ("naive", "bf16", "sdpa", "fused")
DATA_CENTRE = ((8, 0), (9, 0), (10, 0))  # compute capabilities of cards of which something is asked:
TIMES, MEMORY = 10, 0.6  # from naive to best, and the best one's memory to the naive one's
MFU = {(8, 0): 0.5, (9, 0): 0.42}
FASTER = 1.1  # asked of any GPU: the best rung to the plain loop


class NotRun(Exception):
    """A part that has nothing to work on."""


class Note:
    """Keeps the figures of a part by name, and what is wrong; in a file, so that a part that is ended loses nothing."""

    def __init__(self, path: Path) -> None:
        self.path, self.figures, self.wrong = path, dict[str, Any](), list[str]()

    def __call__(self, name: str, figure: Any, wrong: str | None = None) -> None:
        self.figures[name] = figure
        if wrong:
            self.wrong.append(f"{name}: {wrong}")
        self.write({"wrong": self.wrong})

    def attempt(self, name: str, case: Callable[[], tuple[Any, str | None]]) -> None:
        """Note a case's figure and what is wrong with it; an error ends the case, not the part."""
        began = time.monotonic()
        try:
            figure, wrong = case()
        except Exception as error:
            traceback.print_exc()
            figure, wrong = None, first_line(error)
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        self(name, figure, wrong)

    def close(self, said: str) -> None:
        """The part's end."""
        self.write({"status": "failed" if self.wrong else "passed", "message": "; ".join(self.wrong) or said})

    def write(self, content: dict[str, Any]) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({**content, "figures": self.figures}))
        partial.replace(self.path)


def first_line(error: BaseException) -> str:
    """An error as one line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"[:300]


def judged(value: float, tolerance: float) -> tuple[dict[str, float | None], str | None]:
    """A difference beside its tolerance, and a word if it is larger, or no number."""
    wrong = None if value <= tolerance else f"{value:.1e} apart, at most {tolerance:.0e} is right"
    return {"apart": value if math.isfinite(value) else None, "tolerance": tolerance}, wrong


def small(device: str, rows: int = 8) -> Run:
    """The naive step of a small model, all of its rows at a time."""
    recipe = Recipe(rows=rows, length=SMALL.context, steps=100, lr=1e-3, lr_end=1e-4, warmup=4)
    return bottom(Run(preset="small", model=SMALL, recipe=recipe), device, rows)


def trained(run: Run, world: World) -> list[float]:
    """The losses of a few steps; ArithmeticError if one is not finite."""
    trainer = build(run, world, STEPS, fitted=False)[0]
    losses = [trainer.step().loss for _ in range(STEPS)]
    trainer.batches.close()
    values = [loss.item() for loss in losses]
    if not all(map(math.isfinite, values)):
        raise ArithmeticError("a loss is not finite")
    return values


def facts(job: Job, note: Note) -> str:
    """What this machine is."""
    hardware = detect(job["device"])
    note("hardware", asdict(hardware))
    note("python", platform.python_version())
    note("torch", torch.__version__)
    note("cuda", torch.version.cuda)
    note("cudnn", torch.backends.cudnn.version())
    note("driver", driver() if hardware.kind == "cuda" else None)
    note("lacks", {name: reason for name in FEATURES if (reason := hardware.lacks(name))})
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, driver {note.figures['driver']}"
    return f"{hardware.described}, {versions}, Python {platform.python_version()}"


def driver() -> str | None:
    """Version of NVIDIA's driver, where its tool tells."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)


@contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    """Within, whatever waits for a CUDA device is an error."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def sync(job: Job, note: Note) -> str:
    """Warm steps, under a mode of CUDA's in which waiting for the device is an error."""
    hardware, world = detect(job["device"]), worlds.join(job["device"])
    base, model = small(job["device"]), SMALL if job["tiny"] else ModelConfig(layers=2)
    precision = "fp32" if hardware.lacks("bf16") else "bf16"
    usual = {"precision": precision, "attention": "sdpa", "fused": "yes", "rows": 4}
    for name, changes in SYNCED.items():
        run = replace(base, model=model, recipe=replace(base.recipe, length=model.context))
        run = replace(run, speed=replace(base.speed, **usual, **changes))
        if reason := why_not(run.speed, hardware):
            note(name, f"{ELSEWHERE}{reason}")
            continue
        note.attempt(name, lambda run=run: watched(run, world))
    if world.device.type != "cuda":
        return f"steps in {precision} were made, but only CUDA can tell whether they wait"
    note.attempt("the mode itself", lambda: caught(world.device))
    return f"no step in {precision} waits for the device"


def watched(run: Run, world: World) -> tuple[dict[str, Any], str | None]:
    """Make some steps, of which the later ones may not wait."""
    trainer = build(run, world, WARM + WATCHED, fitted=False)[0]
    for _ in range(WARM):
        trainer.step()
    with no_waiting(world.device):
        steps = [trainer.step() for _ in range(WATCHED)]
    trainer.batches.close()
    return {"steps": WATCHED, "micro_steps": trainer.split.accum, "loss": steps[-1].loss.item()}, None


def caught(device: torch.device) -> tuple[bool, str | None]:
    """Whether reading a value off the device is an error under that mode, without which it would prove nothing."""
    value = torch.ones((), device=device)
    try:
        with no_waiting(device):
            value.item()
    except RuntimeError:
        return True, None
    return False, "reading a value was no error, so nothing is proven"


def kernels(job: Job, note: Note) -> str:
    """Every attention kernel against the naive one, and the head's product against the CPU's."""
    hardware, world = detect(job["device"]), worlds.join(job["device"])
    weight = 0.02 * torch.randn(50304, 768, generator=torch.Generator().manual_seed(0))
    note.attempt("wide head", lambda: (check_head(weight, world.device) is None, None))
    for name, kernel in KERNELS.items():
        if name in FEATURES and (reason := hardware.lacks(name)):
            note(name, f"{ELSEWHERE}{reason}")
        elif kernel is not naive:
            note.attempt(name, lambda k=kernel: judged(kernel_apart(k, world.device), KERNEL))
    return counted(note)


def kernel_apart(kernel: Attention, device: torch.device) -> float:
    """How far a kernel in bf16 is from naive attention in fp32 on the same values: the largest distance of the result
    and the three gradients, each relative to its norm."""
    draw = torch.Generator().manual_seed(0)
    q, k, v, dy = (torch.randn(2, 4, 256, 64, generator=draw).to(device, torch.bfloat16) for _ in range(4))

    def computed(kernel: Attention, dtype: torch.dtype) -> list[Tensor]:
        inputs = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        y = kernel(*inputs)
        return [y, *torch.autograd.grad(y, inputs, dy.to(dtype))]

    pairs = zip(computed(kernel, torch.bfloat16), computed(naive, torch.float32), strict=True)
    return torch.stack([(got.float() - want).norm() / want.norm() for got, want in pairs]).max().item()


def parity(job: Job, note: Note) -> str:
    """The losses of a small model on the device, however it is executed, against fp32's."""
    hardware, world = detect(job["device"]), worlds.join(job["device"])
    base = small(job["device"])
    on_cpu = trained(small("cpu"), replace(world, device=torch.device("cpu")))
    here = trained(base, world)
    note.attempt("fp32, device to CPU", lambda: judged(apart(here, on_cpu), ACROSS))
    for name, changes in CASES.items():
        run = replace(base, speed=replace(base.speed, **changes))
        if reason := why_not(run.speed, hardware):
            note(name, f"{ELSEWHERE}{reason}")
            continue
        torch._dynamo.reset()  # or what was compiled before counts towards its limit of versions
        tolerance = TOLERANCE[run.speed.precision]
        note.attempt(name, lambda r=run, t=tolerance: judged(apart(trained(r, world), here), t))
    return counted(note)


def counted(note: Note) -> str:
    """How many figures there are."""
    elsewhere = sum(str(figure).startswith(ELSEWHERE) for figure in note.figures.values())
    return f"{len(note.figures) - elsewhere} agree; {elsewhere} are not for this machine"


def processes(job: Job, note: Note) -> str:
    """The losses of processes under torchrun against those of one alone. Two processes cannot share a GPU under
    NCCL."""
    kind = job["device"].partition(":")[0]
    world = worlds.join("cpu")
    alone = {"cpu": [trained(small("cpu", rows), world) for rows, _, _ in SHARED]}
    teams = [(2, "cpu")]
    if kind == "cuda":
        device = torch.device(job["device"])
        alone[kind] = [trained(small(kind, rows), replace(world, device=device)) for rows, _, _ in SHARED]
        teams += [(count, kind) for count in (1, 2) if count <= torch.cuda.device_count()]
    for count, where in teams:
        name = f"{count} on {where}"
        tolerance = GLOO if where == "cpu" else TOLERANCE["fp32"]
        note.attempt(name, lambda c=count, w=where, t=tolerance: judged(furthest(together(c, w), alone[w]), t))
    return f"{', '.join(f'{count} on {where}' for count, where in teams)} train as one process alone, by DDP and FSDP"


def furthest(losses: list[list[float]], alone: list[list[float]]) -> float:
    """The largest relative difference of several trainings' losses."""
    return max(apart(mine, theirs) for mine, theirs in zip(losses, alone, strict=True))


def together(count: int, kind: str) -> list[list[float]]:
    """The losses of SHARED on so many processes, each on a device of its own where they are GPUs."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command = [*launcher, __file__, "team", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            out, _ = process.communicate(timeout=60)
        except BaseException:
            process.terminate()  # then torchrun ends the others
            raise
    if process.returncode:
        raise RuntimeError(f"torchrun ended with code {process.returncode}; gpu_check.log says more")
    losses: list[list[float]] = json.loads(out.splitlines()[-1])
    return losses


def team(kind: str) -> None:
    """One of several processes: train SHARED and, as the lead, print the losses."""
    world = worlds.join(kind)
    losses = []
    for rows, held, parallel in SHARED:
        run = small(kind, rows)
        losses.append(trained(replace(run, speed=replace(run.speed, rows=held, parallel=parallel)), world))
    if world.lead:
        print(json.dumps(losses), flush=True)
    worlds.leave()
    os._exit(0)  # gloo's threads sometimes crash at a usual exit, after all work is done


def ladder(job: Job, note: Note) -> str:
    """The ladder on gpt2-124m for the time that is left, and what is asked of it."""
    hardware, run = detect(job["device"]), preset("gpt2-124m")
    shape, order = record.shape(run, hardware), ORDER
    terms = Terms(timed=3, parity=5, deadline=job["ends"])
    if job["tiny"]:
        run, order = replace(run, model=SMALL), TINY_ORDER
        shape, terms = record.Shape(4, SMALL.context, 4), replace(terms, timed=1, products=False)
    rungs = sorted((r for r in RUNGS if r.name in order), key=lambda rung: order.index(rung.name))
    done, _ = record.ladder(
        run, hardware, job["device"], shape, terms, Path(job["out"]) / "ladder", told(note), again=True, rungs=rungs
    )
    return concluded(done, None if job["tiny"] else hardware.capability, note)


def concluded(done: dict[str, Any], capability: tuple[int, int] | None, note: Note) -> str:
    """The figures that count of a ladder. Of data-centre cards, by compute capability, something is asked."""
    taken = taken_of(done)
    if not taken:
        raise NotRun(f"no rung could be measured: {done['rungs'][0]['reason']}")
    naive, best = taken[0], taken[-1]
    same = next((row for row in taken if row["name"] == "batch"), naive)  # the naive step at the best one's batch
    speedup, memory = best["speedup"], best["peak_memory_bytes"] / same["peak_memory_bytes"]
    asked = capability in DATA_CENTRE
    note("best", {key: best[key] for key in ("name", "seconds_per_step", "tokens_per_second", "mfu")})
    note("speedup", speedup, below(speedup, TIMES if asked else 0))
    note("mfu", best["mfu"], below(best["mfu"] or 0.0, MFU.get(capability or (0, 0), 0)))
    note("memory", memory, f"{memory:.0%} of naive, {MEMORY:.0%} is asked" if asked and memory > MEMORY else None)
    mfu = "unknown" if best["mfu"] is None else f"{best['mfu']:.1%}"
    return (
        f"{naive['seconds_per_step']:.3f} to {best['seconds_per_step']:.3f} s a step, {speedup:.1f} times; MFU {mfu}; "
        f"memory {memory:.0%}"
    )


def told(note: Note) -> Callable[[dict[str, Any], str], None]:
    """Notes each rung as it is measured; a failed one makes the part fail."""

    def each(done: dict[str, Any], current: str) -> None:
        if current or not done["rungs"]:
            return
        row = done["rungs"][-1]
        figure = {key: row[key] for key in ("status", "reason", "seconds_per_step", "mfu", "parity")}
        note(f"rung {row['name']}", figure, row["reason"] if row["status"] == "failed" else None)
        print(row["name"], row["status"], row["seconds_per_step"], row["reason"] or "", flush=True)

    return each


def taken_of(done: dict[str, Any]) -> list[dict[str, Any]]:
    """The rungs of a ladder that were taken; FP8, whose peak is another, does not count."""
    return [row for row in done["rungs"] if row["status"] == "ok" and row["name"] != "fp8"]


def below(value: float, least: float) -> str | None:
    """A word if a figure is less than what is asked."""
    return f"{value:.3g}, at least {least} is asked" if value < least else None


def plain(job: Job, note: Note) -> str:
    """The loop of benchmarks/plain.py, compiled, on the ladder's rows, against the ladder's best rung."""
    path = Path(job["out"]) / "ladder" / record.FILE
    done = json.loads(path.read_text()) if path.exists() else {"rungs": []}
    if not (taken := taken_of(done)):
        raise NotRun("there is no rung to compare with")
    hardware, length = detect(job["device"]), done["length"]
    if reason := hardware.lacks("compile"):
        raise NotRun(reason)
    if job["tiny"]:
        sizes = {"HEADS": SMALL.heads, "WIDTH": SMALL.width, "CONTEXT": SMALL.context, "VOCAB": SMALL.vocab}
        vars(baseline).update(sizes, LAYERS=1, ROWS=SMALL.vocab)
    if hardware.kind == "cuda":
        torch.cuda.set_device(job["device"] if ":" in job["device"] else 0)
    step, first, rows = fitting(done["rows"], length, job["device"])
    step()
    times = [seconds(step) for _ in range(3 if job["tiny"] else 10)]
    rate = rows * length / statistics.median(times)
    note("plain", {"rows": rows, "first_step_seconds": first, "step_seconds": times, "tokens_per_second": rate})
    ratio = taken[-1]["tokens_per_second"] / rate
    asked = hardware.kind == "cuda" and not job["tiny"]
    note("ratio", ratio, below(ratio, FASTER if asked else 0))
    return f"{taken[-1]['name']} makes {ratio:.2f} times the tokens/s of the plain loop, compiled"


def fitting(rows: int, length: int, device: str) -> tuple[Callable[[], object], float, int]:
    """The plain step on as many rows, a half, a quarter ... as fit the memory, its first step's seconds, and the
    rows."""
    while True:
        try:
            step = baseline.plain_step(rows, length, compiled=True, device=device)
            return step, seconds(step), rows
        except RuntimeError as error:
            if not out_of_memory(error) or rows == 1:
                raise
        rows //= 2
        torch.cuda.empty_cache()


PARTS: dict[str, Callable[[Job, Note], str]] = {
    "facts": facts,
    "sync": sync,
    "kernels": kernels,
    "parity": parity,
    "processes": processes,
    "ladder": ladder,
    "plain": plain,
}


def main() -> None:
    """Arguments: a part, the file of its job and the file for its result; or `team` and a kind of device."""
    if sys.argv[1] == "team":
        team(sys.argv[2])
    name, job, result = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    note = Note(result)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the ladder ends its processes
    try:
        note.close(PARTS[name](job, note))
    except NotRun as reason:
        note.write({"status": "not run", "message": str(reason)})
    except Exception as error:
        traceback.print_exc()
        note("error", None, first_line(error))
        note.close("")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
