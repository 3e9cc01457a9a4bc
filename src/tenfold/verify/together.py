"""Starts several processes on this machine that train together, ends them in time, and reads what they found."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from tenfold.verify.lab import Evidence

LAYOUTS = ((8, 8), (7, 2))  # rows a step, rows a process holds: one micro-step, or more with a filler row
LIMIT = 120  # seconds; some 10 are needed, most of them to start
GRACE = 40  # seconds that torchrun has to end its processes; it gives them 30


class Failed(Exception):
    """Processes that did not come to their end."""


def together(count: int, device: str, parallel: str, shards: Path) -> list[Evidence]:
    """What `count` processes find when they train each of LAYOUTS, on a device each where `device` is no CPU. Failed,
    in one line, if they fail or do not end within LIMIT seconds; none is left then."""
    with tempfile.TemporaryDirectory(prefix="tenfold-verify-") as folder:
        out, told = Path(folder) / "found.safetensors", Path(folder) / "stderr"
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        command = [*launcher, "-m", "tenfold.verify.worker", device, parallel, str(shards), str(out)]
        with told.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"{count} processes did not end within {LIMIT} s and were stopped: one of them hangs"
            ) from None
        finally:
            end(process)
        if code:
            lines = told.read_text(errors="replace").splitlines()
            reasons = [line.strip() for line in lines if "Error: " in line] or [f"torchrun ended with code {code}"]
            raise Failed(reasons[0][:300])
        tensors = load_file(out)
        return [Evidence(*(tensors[f"{i}.{name}"] for name in Evidence._fields)) for i in range(len(LAYOUTS))]


def end(process: subprocess.Popen[bytes]) -> None:
    """End torchrun, if it runs, and what it started: those are in groups of their own, so it is asked first."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
