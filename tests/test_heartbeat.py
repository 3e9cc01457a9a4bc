"""A process that is stopped is named by the others within the stated time, and nobody else is. The processes are real,
and find each other by the variables that a launcher sets."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from conftest import TINY_OPTIONS, environment, torchrun
from tenfold.data.shards import Corpus
from tenfold.rundir import read_metrics
from test_deploy import children, end

LOST = 3  # seconds
PROCESS = f"""
import os, signal, sys, time
from pathlib import Path
from tenfold.heartbeat import watched
from tenfold.world import join, leave

def stop():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGSTOP)

def spin():
    end = time.monotonic() + {2.5 * LOST}
    while time.monotonic() < end:
        pass
    return {LOST + 1.5} * (1 + world.rank / 2)  # how long it stays when the others have left the block

def wait():
    print("waits", flush=True)
    time.sleep({LOST + 5})

def hang():
    time.sleep({10 * LOST})  # while the others wait for it

def fail():
    sys.exit(3)

def go():
    pass

world = join("cpu")
with watched(world, {LOST}, Path()):
    pass  # the same processes may train twice
with watched(world, {LOST}, Path()) as pulse:
    pulse.step = lambda: 7
    longer = globals()[sys.argv[1 + world.rank]]()
    world.most(0)
    time.sleep(longer or 0)
leave()
print("ended well", flush=True)
sys.stderr.flush()
os._exit(0)
"""
Start = Callable[..., list["subprocess.Popen[str]"]]


def free_port() -> int:
    """A free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process for each of the deeds given; whatever still lives at the end is killed. The store is in the
    first process or, with `apart`, in this one, as with torchrun it is in either its own or the first."""
    started: list[subprocess.Popen[str]] = []
    stores: list[dist.TCPStore] = []
    (tmp_path / "process.py").write_text(PROCESS)
    (tmp_path / "metrics.jsonl").touch()

    def call(*deeds: str, apart: bool = False) -> list["subprocess.Popen[str]"]:
        if apart:
            stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        port = stores[0].port if apart else free_port()
        group = {"WORLD_SIZE": str(len(deeds)), "LOCAL_WORLD_SIZE": str(len(deeds)), "MASTER_ADDR": "127.0.0.1"}
        for rank in range(len(deeds)):
            mine = {"RANK": str(rank), "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": str(apart)}
            process = subprocess.Popen(
                [sys.executable, "process.py", *deeds],
                cwd=tmp_path,
                env={**environment(), **group, **mine},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
        return started

    yield call
    for process in started:
        process.kill()
        process.communicate(timeout=20)


def stopped(process: "subprocess.Popen[str]") -> bool:
    """Whether a process was stopped by a signal."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def until(what: Callable[[], Any], seconds: float) -> float:
    """Waits until `what` is true; how long that took, in seconds."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < seconds, f"not within {seconds} s"
        time.sleep(0.05)
    return time.monotonic() - begun


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to see who is stopped")


@needs_proc
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("who", "apart"),
    [(1, False), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(0, False), (0, True), (1, True)])],
)
def test_who_is_stopped_is_named_within_the_limit(start: Start, tmp_path: Path, who: int, apart: bool) -> None:
    deeds = ["wait", "wait", "wait"]
    deeds[who] = "stop"
    processes = start(*deeds, apart=apart)
    lost, others = processes[who], [process for process in processes if process is not processes[who]]
    until(lambda: stopped(lost), 30)
    assert until(lambda: all(process.poll() is not None for process in others), LOST + 4) > LOST / 2
    named = f"process {who} on {socket.gethostname()} (pid {lost.pid}) not heard of for {LOST} s, last at step 7: "
    for process in others:
        assert process.returncode == 1
        (line,) = [line for line in process.communicate(timeout=20)[1].splitlines() if "not heard of" in line]
        assert named in line
        assert line.startswith("tenfold: ")
        assert line.endswith("so that the launcher can start all again")
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(r["event"], r["step"]) for r in records] == [("lost", 7)] * (who != 0)  # the lead's to write
    assert all(named in f"{record['message']}" for record in records)
    assert lost.poll() is None


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_who_is_slow_or_done_is_not_named_on_a_busy_machine(start: Start) -> None:
    burn = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        processes = start("spin", "wait", "spin")
        for process in processes:
            out, errors = process.communicate(timeout=80)
            assert (process.returncode, out.splitlines()[-1]) == (0, "ended well"), errors
            assert "not heard of" not in errors
    finally:
        for process in burn:
            process.kill()
            process.wait(timeout=20)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_who_wakes_with_all_others_names_nobody(start: Start) -> None:
    """As after a laptop's sleep, or a terminal's Ctrl-Z."""
    processes = start("wait", "wait", apart=True)
    assert [process.stdout.readline() for process in processes] == ["waits\n"] * 2  # type: ignore[union-attr]
    time.sleep(1)
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(1.5 * LOST)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    for process in processes:
        errors = process.communicate(timeout=40)[1]
        assert process.returncode == 0, errors
        assert "not heard of" not in errors


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_where_all_stand_is_told_when_nothing_moves(start: Start, tmp_path: Path) -> None:
    """A process that is stuck still beats; who waits for it stands in the exchange."""
    processes = start("go", "hang", "go", apart=True)
    told = [process.communicate(timeout=80)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    (line,) = [line for line in told[0].splitlines() if line.startswith("tenfold: ")]
    assert line.startswith(f"tenfold: nothing was seen to move for {5 * LOST} s: process 0 on ")
    first, second, third = line.removesuffix(line.partition("; ")[2]).split(", process ")
    assert "stands at torch.distributed." in first
    assert "called by tenfold.world.World.most" in first
    assert f"(pid {processes[1].pid}) stands at __main__.hang, line" in second
    assert "tenfold.world.World.most" in third
    assert "tenfold: " not in told[1] + told[2]
    (record,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (record["event"], record["step"], f"tenfold: {record['message']}") == ("stuck", 7, line)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_process_that_fails_is_no_lost_one(start: Start) -> None:
    """Its error ends the others' exchange at once; that is told as ever."""
    processes = start("go", "fail", apart=True)
    told = [process.communicate(timeout=40)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 3]
    assert "not heard of" not in "".join(told)


OPTIONS = [*TINY_OPTIONS, "--recipe.steps", "800", "--cadence.eval", "0", "--cadence.save", "100"]
OPTIONS += ["--speed.precision", "fp32", "--cadence.lost", "5"]


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("who", [0, 1])
def test_a_training_goes_on_after_a_process_was_stopped(corpus: Corpus, tmp_path: Path, who: int) -> None:
    """torchrun kills the stopped one after the 30 seconds that it gives everybody to end, and starts all again: the
    losses are those of an undisturbed run."""
    command = ["-m", "tenfold", "train", "demo", "--data", str(corpus.path), *OPTIONS, "--name"]
    plain = subprocess.run(
        [*torchrun(2), *command, "plain"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=150
    )
    assert plain.returncode == 0
    assert "not heard of" not in plain.stderr
    with (tmp_path / "log").open("w") as log:
        launcher = subprocess.Popen(
            [*torchrun(2), "--max-restarts", "1", *command, "other"],
            cwd=tmp_path,
            env=environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        until(lambda: read_metrics(tmp_path / "runs/other")[-1:] and steps(tmp_path) > 250, 60)
        lost = children(launcher.pid)[who]
        os.kill(lost, signal.SIGSTOP)
        until(lambda: "not heard of" in (tmp_path / "log").read_text(), 5 + 7)
        assert launcher.wait(timeout=150) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        end(launcher)
    log_text = (tmp_path / "log").read_text()
    assert f"process {who} on {socket.gethostname()} (pid {lost}) not heard of for 5 s" in log_text
    assert losses(tmp_path / "runs/other") == losses(tmp_path / "runs/plain")
    assert any(r.get("event") == "resume" for r in read_metrics(tmp_path / "runs/other"))


def steps(folder: Path) -> int:
    """The newest step in the metrics of the run `other`."""
    return max(r["step"] for r in read_metrics(folder / "runs/other"))


def losses(run: Path) -> dict[int, float]:
    """Loss by step, without what a resume took back."""
    return {r["step"]: r["loss"] for r in read_metrics(run) if "loss" in r}
