"""Measures one rung: a fresh process makes the trainer and steps on command, in turn with the rung below where two fit,
so that a machine whose speed drifts slows both alike."""

import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tenfold.run import Run, to_dict

GRACE = 40  # seconds that torchrun has to end its processes; it gives them 30
PATIENCE = 1800  # seconds for one answer; max-autotune takes many minutes


class RungFailed(Exception):
    """A worker could not go on; `kind` is memory, hardware or error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """A process, or several under torchrun, that steps through a run when told to. Ends with the `with` block, or with
    this process, however that ends."""

    def __init__(
        self, run: Run, steps: int, processes: int = 1, fitted: bool = False, memory_share: float = 1.0
    ) -> None:
        """`run` has nothing left open in its speed and takes part for `steps` steps. `fitted`: of speed.rows take what
        fits. memory_share: of a GPU's memory, the share it may use."""
        self.steps: list[dict[str, Any]] = []
        self.processes = processes
        self.folder = tempfile.TemporaryDirectory(prefix="tenfold-ladder-")
        job = Path(self.folder.name) / "job.json"
        content = {"run": to_dict(run), "steps": steps, "fitted": fitted, "memory_share": memory_share}
        job.write_text(json.dumps(content))
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        self.told = (Path(self.folder.name) / "stderr").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, *(launcher if processes > 1 else []), "-m", "tenfold.ladder.worker", str(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.told,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        try:
            ready = self.answer()
            self.rows: int = ready["rows"]
            self.trial: float = ready["seconds"]
            """Seconds of a trial step before the first one, which compiles where there is one."""
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and wait for it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if self.processes > 1 and self.process.poll() is None:
            self.process.terminate()  # torchrun ends the processes that it started, in groups of their own
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.told.close()
        self.folder.cleanup()

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to a command."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{command}\n".encode())
            self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer; RungFailed if it is an error, or does not come."""
        out = self.process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], PATIENCE)
        if not ready:
            raise RungFailed("error", f"no answer within {PATIENCE // 60} minutes")
        line = out.readline()
        if not line:
            code = self.process.wait()
            if code == -signal.SIGKILL:
                raise RungFailed("memory", "the system killed it, as it does when memory runs out")
            lines = (Path(self.folder.name) / "stderr").read_text(errors="replace").strip().splitlines()
            told = [line for line in lines if "Error: " in line] or [f"ended with code {code}"]
            raise RungFailed("error", told[-1].strip()[:300])
        content: dict[str, Any] = json.loads(line)
        if "error" in content:
            raise RungFailed(content["error"], content["message"])
        return content

    def step(self) -> float:
        """Make one step; its seconds."""
        self.steps.append(self.ask("step"))
        return self.steps[-1]["seconds"]


@dataclass
class Row:
    """A rung's figures; None where there are none. Times in seconds, memory in bytes, rates in FLOP/s."""

    name: str
    title: str
    change: str
    status: str
    """ok, rejected (slower than the rung below), failed or skipped."""
    reason: str | None = None
    value: Any = None
    """What the rung's option became, where that had to be found."""
    seconds_per_step: float | None = None
    spread: list[float] | None = None
    """Fastest and slowest timed step."""
    step_seconds: list[float] = field(default_factory=list)
    """Every step in order, the first one with its compilation included."""
    tokens_per_second: float | None = None
    speedup: float | None = None
    """Over the first rung: the product of the accepted rungs' steps."""
    speedup_before: float | None = None
    """Over the accepted rung below."""
    mfu: float | None = None
    """Share of the device's peak at this precision, where that is known."""
    matrix_rate: float | None = None
    of_matrix_rate: float | None = None
    peak_memory_bytes: int | None = None
    first_step_seconds: float | None = None
    cache: str | None = None
    """Whether the compiler's cache was warm or cold at the first step."""
    parity: float | None = None
    """Largest relative difference of the loss to parity_with's on the same rows and weights."""
    parity_with: str | None = None
    tolerance: float | None = None
    losses: list[float] = field(default_factory=list)
    skipped_updates: int = 0
    """Updates that fp16's loss scale skipped."""

    @property
    def taken(self) -> bool:
        """Whether the rungs above stand on it."""
        return self.status == "ok"


def timed(new: Worker, old: Worker | None, count: int) -> tuple[list[float], float | None]:
    """So many steps of a worker after its first two, in turn with an old one's; their seconds, and the median over
    neighbouring steps of how many times faster it is."""
    new.step()
    new.step()
    times, ratios = [], []
    for n in range(count):
        before = old.step() if old and n % 2 == 0 else 0.0
        times.append(new.step())
        if old:  # nobody always goes first
            ratios.append((before or old.step()) / times[-1])
    return times, statistics.median(ratios) if ratios else None
