"""One command that checks on a GPU what tests on a CPU cannot, within a time budget; gpu_check.sh calls it. The parts
are in gpu_parts.py; here is what starts each in a process of its own, ends it in time and keeps what it found. Standard
library only.

    facts      what this machine is
    sync       a step never waits for the device
    kernels    every attention kernel, and the widest product, computes what the plain one does
    parity     every precision, loss and compilation trains as fp32 does
    processes  several processes train as one does
    ladder     how fast the ladder's rungs are, and that they keep what is asked of them
    plain      the same against the loop of benchmarks/plain.py

OUT gets gpu_check.json, written anew after each part, gpu_check.log with whatever the parts print, and ladder/. The
exit code is 1 if a part failed.
"""

import argparse
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FORMAT = 1
STAGES = (
    ("facts",),
    ("sync", "kernels", "parity", "processes"),
    ("ladder",),
    ("plain",),
)  # a stage's parts run beside each other
NAMES = [name for stage in STAGES for name in stage]
LIMITS = {  # seconds
    "facts": 60,
    "sync": 110,
    "kernels": 110,
    "parity": 150,
    "processes": 120,
    "ladder": 240,
    "plain": 110,
}
KEPT = 75  # seconds that the ladder leaves for what comes after it, and for the rung that it is at
GRACE = 8  # seconds from asking a part to end until it is killed
NEEDED = ("torch", "numpy")
PARTS = Path(__file__).with_name("gpu_parts.py")


def installed(distribution: str) -> bool:
    """Whether this Python has a package, by the name of its wheel."""
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def unpacked(wheels: Path, into: Path) -> list[str]:
    """Entries of the path for the wheels of what is not installed: a pure-Python wheel as it lies there, any other
    unpacked below `into`."""
    entries = []
    for wheel in sorted(wheels.glob("*.whl")):
        if installed(wheel.name.partition("-")[0]):
            continue
        if wheel.stem.endswith("-none-any"):
            entries.append(str(wheel))
            continue
        with zipfile.ZipFile(wheel) as content:
            content.extractall(into / wheel.stem)
        entries.append(str(into / wheel.stem))
    return entries


def lacking() -> str | None:
    """What this Python lacks for the check and what to do, in one line; None if it has everything."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing:
        return None
    return (
        f"{sys.executable} lacks {' and '.join(missing)}: name another Python in PYTHON, or in TENFOLD_WHEELS a folder "
        f"with wheels for Python {sys.version_info.major}.{sys.version_info.minor}"
    )


@dataclass
class Started:
    """A part that runs: its process, the file of its result, when it began and when it must end."""

    process: subprocess.Popen[bytes]
    result: Path
    began: float
    ends: float


def start(name: str, job: dict[str, Any], folder: Path, limit: float) -> Started:
    """Start a part. Its files are made in `folder`."""
    (folder / f"{name}.job").write_text(json.dumps(job))
    result, now = folder / f"{name}.result", time.monotonic()
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, str(PARTS), name, str(folder / f"{name}.job"), str(result)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    return Started(process, result, now, now + limit)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a part to end, which ends what it started, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(part: Started, log: Path) -> dict[str, Any]:
    """What a part that ended, or whose time is up, came to: status, seconds, message and figures."""
    late = part.process.poll() is None
    if late:
        stop(part.process)
    seconds = time.monotonic() - part.began
    told = json.loads(part.result.read_text()) if part.result.exists() else {"figures": {}}
    if late or "status" not in told:
        lines = log.read_text(errors="replace").strip().splitlines()
        last = f"it ended with code {part.process.returncode}: {lines[-1] if lines else 'it printed nothing'}"
        message = f"it was stopped after {seconds:.0f} s, its time limit" if late else last
        told |= {"status": "failed", "message": "; ".join([*told.pop("wrong", []), message])}
    return {key: told[key] for key in ("status", "message", "figures")} | {"seconds": round(seconds, 1)}


def check(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Run the parts that are asked for, stage by stage; what each came to, by name. `folder` is for temporary files."""
    end = time.monotonic() + options.seconds
    results: dict[str, dict[str, Any]] = {}
    running: dict[str, Started] = {}
    log = options.out / "gpu_check.log"
    log.write_bytes(b"")

    def note(name: str, result: dict[str, Any]) -> None:
        results[name] = result
        print(line(name, result), flush=True)
        write(options, results, options.seconds - (end - time.monotonic()))

    try:
        for stage in STAGES:
            for name in stage:
                kept = KEPT if name == "ladder" and "plain" in options.parts else 0
                left = end - time.monotonic() - kept
                if reason := why_not(name, options.parts, results, left):
                    note(name, {"status": "not run", "message": reason, "figures": {}, "seconds": 0.0})
                    continue
                ends = time.monotonic() + left
                job = {"device": options.device, "tiny": options.tiny, "out": str(options.out), "ends": ends}
                running[name] = start(name, job, folder, min(LIMITS[name], left + kept / 2))
            while running:
                time.sleep(0.1)
                for name, part in list(running.items()):
                    if part.process.poll() is None and time.monotonic() < part.ends:
                        continue
                    note(name, finish(running.pop(name), folder / f"{name}.log"))
                    with log.open("ab") as whole:
                        whole.write(f"=== {name}\n".encode() + (folder / f"{name}.log").read_bytes())
    finally:
        for part in running.values():
            stop(part.process)
    return results


def why_not(name: str, asked: list[str], results: dict[str, dict[str, Any]], left: float) -> str | None:
    """Why a part is not started, or None."""
    if name not in asked:
        return "it was not asked for"
    if results.get("facts", {}).get("status") == "failed":
        return "this machine has not what the check needs"
    return "the time was used up" if left <= 0 else None


def line(name: str, result: dict[str, Any]) -> str:
    """A part in one line."""
    return f"{name:<10} {result['status']:<8} {result['seconds']:6.1f} s  {result['message']}"


def write(options: argparse.Namespace, results: dict[str, dict[str, Any]], seconds: float) -> None:
    """gpu_check.json, with every part; those to come are not run."""
    to_come = {"status": "not run", "message": "the check was ended before", "figures": {}, "seconds": 0.0}
    content = {
        "format": FORMAT,
        "date": time.strftime("%Y-%m-%d"),
        "device": options.device,
        "tiny": options.tiny,
        "seconds": round(seconds, 1),
        "parts": [{"name": name, **results.get(name, to_come)} for name in NAMES],
    }
    (options.out / "gpu_check.json").write_text(json.dumps(content, indent=2) + "\n")


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description="Check Tenfold on this machine's GPU.")
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, and no speed is asked for: tries the check")
    parser.add_argument("--seconds", type=float, default=280, help="time budget")
    parser.add_argument("--parts", default=",".join(NAMES), help=f"which of {', '.join(NAMES)}")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := [name for name in options.parts if name not in NAMES]:
        parser.error(f"no part {', '.join(unknown)}; possible are {', '.join(NAMES)}")
    return options


def main() -> int:
    options = parsed()
    with tempfile.TemporaryDirectory(prefix="tenfold-gpu-check-") as folder:
        if given := os.environ.get("TENFOLD_WHEELS"):
            if not Path(given).is_dir():
                print(f"gpu_check: TENFOLD_WHEELS is {given}, which is no folder", file=sys.stderr)
                return 2
            entries = unpacked(Path(given), Path(folder))
            sys.path.extend(entries)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *entries]))
        if reason := lacking():
            print(f"gpu_check: {reason}", file=sys.stderr)
            return 2
        options.out.mkdir(parents=True, exist_ok=True)
        results = check(options, Path(folder))
    print(f"{options.out / 'gpu_check.json'} has the figures")
    return int(any(result["status"] == "failed" for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
