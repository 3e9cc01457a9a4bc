"""What `tenfold watch` takes: to open a run of 100,000 logged steps, in Chromium (where that and playwright are) until
its curves are drawn, to show twenty of them side by side, to list 1,000 runs, until a new line is told, and how much
memory. Servers of its own, on loopback.

    python benchmarks/watch.py"""

import importlib.util
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from tenfold import rundir
from tenfold.run import preset, to_dict

STEPS, SIDE_BY_SIDE, LISTED, LINES, TIMES = 100_000, 20, 1000, 10, 5
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRAWN = """(function look() {
  const drawn = document.querySelectorAll(".chart path.line").length > 6;
  requestAnimationFrame(drawn ? () => setTimeout(() => { window.drawn = performance.now(); }) : look);
})()"""


def run(path: Path, steps: int) -> Path:
    """A run folder whose every step was logged, with the figures that a training logs."""
    rundir.write_run(path, to_dict(preset("gpt2-124m")))
    draw = random.Random(0)
    with (path / "metrics.jsonl").open("w") as file:
        for step in range(steps):
            small = {key: draw.random() * 1e-3 for key in ("lr", "data_wait")}
            large = {key: draw.randrange(10**10) for key in ("memory_bytes", "peak_memory_bytes")}
            figures = {"loss": draw.uniform(3, 4), "grad_norm": draw.random(), "tokens_per_second": draw.random() * 1e5}
            file.write(json.dumps({"step": step, **figures, **small, **large, "time": 1e9 + step}) + "\n")
            if step % 250 == 0:
                file.write(json.dumps({"step": step, "val_loss": draw.uniform(3, 4), "time": 1e9 + step}) + "\n")
    return path


def seconds(*addresses: str) -> float:
    """How long these take, one after the other."""
    begun = time.perf_counter()
    for address in addresses:
        with urlopen(address, timeout=120) as answer:
            answer.read()
    return time.perf_counter() - begun


def worked(process: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> str:
    """Most memory that a process held."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return f"{int(found[1]) / 1000:.0f} MB" if found else "unknown"


def delays(server: str, path: Path) -> list[float]:
    """Seconds from when a line is written until a listener has it."""
    found = []
    offset = (path / "metrics.jsonl").stat().st_size
    with urlopen(f"{server}api/stream?runs={path.name}&offsets={offset}", timeout=60) as events:
        draw = random.Random(0)
        for i in range(LINES):
            time.sleep(draw.random())  # at any time between two looks
            begun = time.perf_counter()
            rundir.append(path, {"step": STEPS + i, "loss": 1.0})
            next(line for line in events if line.startswith(b"data: ") and b'"records"' in line)
            found.append(time.perf_counter() - begun)
    return found


def watch(folder: Path) -> "subprocess.Popen[str]":
    """A server for the runs of a folder."""
    command = [sys.executable, "-m", "tenfold", "watch", str(folder), "--port", "0"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def drawn(folder: Path) -> list[float]:
    """Seconds in a new tab until the curves of run-00 are on the screen, by a server that has read nothing yet."""
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for _ in range(TIMES):
            with watch(folder) as process:
                assert process.stdout is not None
                server = process.stdout.readline().split()[-1]
                page = browser.new_page()
                page.add_init_script(DRAWN)
                page.goto(f"{server}#/run/run-00", wait_until="commit")
                while not (milliseconds := page.evaluate("window.drawn")):
                    time.sleep(0.02)
                found.append(milliseconds / 1000)
                page.close()
                process.terminate()
        browser.close()
    return found


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory(prefix="tenfold-bench-") as temporary:
        root = Path(temporary)
        one = run(root / "long" / "run-00", STEPS)
        for i in range(1, SIDE_BY_SIDE):
            shutil.copytree(one, root / "long" / f"run-{i:02d}")
        short = run(root / "many" / "run-000", 100)
        for i in range(1, LISTED):
            shutil.copytree(short, root / "many" / f"run-{i:03d}")
        if BROWSER and importlib.util.find_spec("playwright"):
            times = drawn(root / "long")
            print(
                f"its curves are drawn in Chromium after {statistics.median(times):.2f} s, at most {max(times):.2f} s"
            )
        for folder in ("long", "many"):
            with watch(root / folder) as process:
                assert process.stdout is not None
                server = process.stdout.readline().split()[-1]
                print(f"{folder}: at the start {memory(process.pid)}")
                if folder == "long":
                    size = (one / "metrics.jsonl").stat().st_size / 1e6
                    before = worked(process.pid)
                    opened = seconds(f"{server}api/runs/run-00", f"{server}api/runs/run-00/series")
                    print(f"a run of {STEPS:,} steps ({size:.0f} MB) opens in {opened:.2f} s, {memory(process.pid)}")
                    print(f"of that its processor was busy for {worked(process.pid) - before:.2f} s")
                    again = seconds(f"{server}api/runs/run-00", f"{server}api/runs/run-00/series")
                    print(f"again in {again:.2f} s")
                    every = [f"{server}api/runs/run-{i:02d}/series" for i in range(SIDE_BY_SIDE)]
                    print(f"{SIDE_BY_SIDE} of them in {seconds(*every):.1f} s, {memory(process.pid)}")
                    print(f"their list in {seconds(f'{server}api/runs'):.2f} s, {memory(process.pid)}")
                    late = delays(server, one)
                    print(f"a new line is told after {statistics.median(late):.2f} s, at most {max(late):.2f} s")
                else:
                    first, then = seconds(f"{server}api/runs"), seconds(f"{server}api/runs")
                    print(f"{LISTED:,} runs listed in {first:.2f} s, again in {then:.2f} s, {memory(process.pid)}")
                process.terminate()


if __name__ == "__main__":
    main()
