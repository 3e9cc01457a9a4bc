"""What many kills leave of a training: nothing lost, nothing done twice, nothing unreadable.

python benchmarks/chaos.py [--kills 100] [--processes 1 2] [--seed 0]

A tiny training on the CPU is killed (SIGKILL) so many times, and each time the same command goes on with it until it is
done. Two kills in five fall at a moment drawn uniformly over the life of a process, from its start to two seconds
into its training; the others wait for a save, two in five, or for the removal of an old checkpoint, one in five. Of
several processes one is killed, any of them, and torchrun starts all again; one time in eight torchrun is killed with
them and started again. The outcome is compared with the same training undisturbed. Exit code 1 if a claim fails. Linux
only: the processes below torchrun are found in /proc.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from common import random_corpus
from tenfold import rundir
from tenfold.data.tokenizer import Bytes
from tenfold.training import checkpoint

SAVE = 10  # steps between checkpoints
OPTIONS = (
    "--model.layers 2 --model.heads 2 --model.width 64 --model.context 64 --model.padded-vocab 320 --recipe.rows 8 "
    "--recipe.length 64 --recipe.warmup 10 --speed.precision fp32 --speed.device cpu --cadence.log 1 --cadence.eval 50 "
    f"--cadence.eval-rows 8 --cadence.sample 0 --cadence.score 0 --cadence.save {SAVE} --cadence.keep 2"
).split()
WAYS = {"life": 2, "partial": 2, "removed": 1}  # how a moment is chosen, with weights
TRAINS = 2.0  # seconds of training that count as the life of a process
WRITES = 0.01  # seconds within which a checkpoint of this model is not yet written
PATIENCE = 120.0  # seconds until a process must have started, or ended after a kill
PLACES = ("starting", "training", "saving", "removing")


@dataclass
class Training:
    """A training as a process, or as several below torchrun, in a folder that has its shards."""

    folder: Path
    name: str
    processes: int
    steps: int
    process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> "Training":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:  # something failed here: leave nothing running
            for number in {self.process.pid, *self.workers()}:
                os.kill(number, signal.SIGKILL)
            self.process.wait(PATIENCE)

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "runs" / self.name

    @property
    def checkpoints(self) -> Path:
        """Its checkpoints."""
        return self.run / "checkpoints"

    def start(self) -> None:
        """Start the command, always the same."""
        several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        launcher = [*several, "--max-restarts=1000"] if self.processes > 1 else []
        options = ["--name", self.name, "--data", "data", "--recipe.steps", str(self.steps), *OPTIONS]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, "-m", "tenfold", "train", "demo", *options],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self.folder / "cache")},
            )

    def workers(self) -> list[int]:
        """The processes that train, by rank."""
        number = self.process.pid
        if self.processes == 1:
            return [number]
        return [int(pid) for pid in Path(f"/proc/{number}/task/{number}/children").read_text().split()]

    def born(self, before: list[int]) -> list[int]:
        """The processes that train, once all are there and none of those `before`."""
        wait(lambda: len(now := self.workers()) == self.processes and not set(now) & set(before))
        return self.workers()

    def log(self) -> bytes:
        """metrics.jsonl as it lies there."""
        path = self.run / "metrics.jsonl"
        return path.read_bytes() if path.exists() else b""

    def begun(self) -> int:
        """How often a training has begun or gone on, by the log."""
        return self.log().count(b'"event": "start"') + self.log().count(b'"event": "resume"')

    def finish(self) -> None:
        """Wait for the end; it must be a success."""
        code = self.process.wait(600)
        assert code == 0, (self.folder / f"{self.name}.log").read_text()[-3000:]


@dataclass(frozen=True)
class Storm:
    """What came of the kills of one training: where they fell, and the claims with their figures, each held or not."""

    places: Counter[str]
    victims: Counter[str]
    claims: dict[str, tuple[bool, str]]

    @property
    def held(self) -> bool:
        """Whether every claim holds."""
        return all(good for good, _ in self.claims.values())


def wait(done: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0.01) -> bool:
    """Wait until something is so, and say so, or for so many seconds."""
    end = time.monotonic() + seconds
    while not (so := done()) and time.monotonic() < end:
        time.sleep(pause)
    return so


def gone(numbers: list[int]) -> bool:
    """Whether none of these processes runs, which one that nobody has waited for yet does not."""
    for number in numbers:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return False
    return True


def entries(root: Path, ending: str) -> list[str]:
    """What a half-written (partial) or half-removed (removed) checkpoint left in a folder."""
    try:
        return [path.name for path in root.iterdir() if path.name.endswith(ending)]
    except FileNotFoundError:
        return []


def await_moment(training: Training, way: str, draw: random.Random, life: float, begun: int) -> float:
    """Return at the moment of a kill: after a part of a life, or as one of the next saves or removals goes on. The
    value is the seconds of a life as last seen, from the start of a process to some seconds into its training."""
    if way == "life":
        time.sleep(draw.random() * life)
        return life
    after, later, born = draw.randint(1, 4), draw.random() * WRITES, time.monotonic()
    wait(lambda: training.begun() > begun or training.process.poll() is not None)
    now = time.monotonic()
    seen: set[str] = set()
    while len(seen) < after and time.monotonic() < now + 2 * TRAINS:  # no pause: a removal takes a few milliseconds
        seen.update(entries(training.checkpoints, way))
    if way == "partial":
        time.sleep(later)
    return now - born + TRAINS


def place(training: Training, begun: int) -> str:
    """Where a kill fell, by what it left."""
    if training.begun() == begun:
        return "starting"
    if entries(training.checkpoints, "removed"):
        return "removing"
    return "saving" if entries(training.checkpoints, "partial") else "training"


def damaged(training: Training) -> list[str]:
    """What is wrong with folders that have a checkpoint's name."""
    folders = checkpoint.saved_steps(training.checkpoints).values()
    return [f"{folder.name}: {wrong}" for folder in folders if (wrong := checkpoint.damage(folder))]


def kill(training: Training, workers: list[int], draw: random.Random) -> str:
    """Kill one process of a training, or all and their launcher, and say which."""
    rank = draw.randrange(training.processes)
    if training.processes == 1 or draw.random() < 1 / 8:
        for number in {training.process.pid, *workers}:
            os.kill(number, signal.SIGKILL)
        training.process.wait(PATIENCE)
        return "all with torchrun" if training.processes > 1 else "the one"
    os.kill(workers[rank], signal.SIGKILL)
    return "the lead" if rank == 0 else "another"


def storm(folder: Path, processes: int, kills: int, seed: int = 0) -> Storm:
    """Train undisturbed, then with so many kills, in an empty folder, and compare."""
    (folder / "data").mkdir()
    random_corpus(100_000, folder / "data", Bytes())
    steps = 30 * kills + 400  # enough for every kill to find the training at work
    with Training(folder, "calm", processes, steps) as calm:
        calm.born([])
        start = time.monotonic()
        wait(lambda: calm.begun() > 0)
        life = time.monotonic() - start + TRAINS
        calm.finish()
    draw = random.Random(f"{seed} {processes}")
    places, victims, wrong = Counter[str](), Counter[str](), list[str]()
    with Training(folder, "hit", processes, steps) as hit:
        workers = hit.born([])
        for way in draw.choices(list(WAYS), list(WAYS.values()), k=kills):
            begun = hit.begun()
            life = await_moment(hit, way, draw, life, begun)
            if hit.process.poll() is not None:
                break  # done before the last kill; a claim says so
            victims[kill(hit, workers, draw)] += 1
            places[place(hit, begun)] += 1
            # The other processes of a group end by themselves; only then is it still.
            wrong += damaged(hit) if wait(partial(gone, workers)) else ["a process did not end"]
            if hit.process.poll() is not None:
                hit.start()
                workers = []
            workers = hit.born(workers)
        hit.finish()
    return Storm(places, victims, claims(calm, hit, kills, victims.total(), wrong))


def claims(calm: Training, hit: Training, asked: int, kills: int, wrong: list[str]) -> dict[str, tuple[bool, str]]:
    """The claims about a training that was hit, beside the calm one: each with whether it holds, and its figure."""
    most = 0.0 if hit.processes == 1 else 1e-6  # what rounding may do; alone there is none
    apart = [difference(calm, hit, file) for file in (checkpoint.WEIGHTS, checkpoint.MOMENTS)]
    ours, theirs = (by_step(training) for training in (hit, calm))
    pairs = zip(ours, theirs, strict=False)  # that none is missing is a claim of its own
    losses = max((abs(a[key] - b[key]) for a, b in pairs for key in ("loss", "lr")), default=1.0)
    raw = [json.loads(line) for line in hit.log().splitlines() if line.endswith(b"}") and line.startswith(b"{")]
    quiet, writing = repeated(raw)
    every = quiet + writing
    left = [path.name for ending in ("partial", "removed", "damaged") for path in hit.run.rglob(f"*.{ending}")]
    return {
        "kills that fell before the training was done": (kills == asked, f"{kills} of {asked}"),
        "final weights as undisturbed": (apart[0] <= most, f"largest difference {apart[0]:.1e}"),
        "final moments as undisturbed": (apart[1] <= most, f"largest difference {apart[1]:.1e}"),
        "each step once, in order": ([r["step"] for r in ours] == list(range(hit.steps)), f"{len(ours)} steps"),
        "losses and learning rates as undisturbed": (losses <= most, f"largest difference {losses:.1e}"),
        "repeated, no save under way: one cadence at most": (
            max(quiet, default=0) <= SAVE,
            f"{max(quiet, default=0)} steps at most, {len(quiet)} times",
        ),
        "repeated, a save under way: what was trained beside it comes on top": (
            max(writing, default=0) < 2 * SAVE,
            f"{max(writing, default=0)} steps at most, {len(writing)} times; {sum(every) / max(1, kills):.1f} a kill",
        ),
        "every checkpoint whole after every kill": (not wrong, "; ".join(wrong) or "none damaged"),
        "nothing left over": (not left, ", ".join(left) or "nothing"),
    }


def difference(calm: Training, hit: Training, file: str) -> float:
    """The largest difference between two trainings' tensors at their end; 0 is equality bit for bit."""
    a, b = (load_file(checkpoint.folder_at(one.checkpoints, one.steps) / file) for one in (calm, hit))
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def by_step(training: Training) -> list[dict[str, Any]]:
    """The logged steps of a training, without those that a resume took back."""
    return [record for record in rundir.read_metrics(training.run) if "loss" in record]


def repeated(raw: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Steps that were done again after each resume: where no save was under way, and where one was, which was lost."""
    quiet, writing = list[int](), list[int]()
    done = begun = 0
    for record in raw:
        if record.get("event") == "resume":
            (writing if begun > record["step"] else quiet).append(done - record["step"])
            done = begun = record["step"]
        elif record.get("event") == "save":
            begun = record["step"]
        elif "loss" in record:
            done = record["step"] + 1
    return quiet, writing


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    given, held = parser.parse_args(), True
    for processes in given.processes:
        before = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tenfold-chaos-") as folder:
            found = storm(Path(folder), processes, given.kills, given.seed)
        fell = ", ".join(f"{found.places[name]} while {name}" for name in PLACES)
        print(f"{processes} process{'es' if processes > 1 else ''}, {(time.monotonic() - before) / 60:.1f} min: {fell}")
        print("  killed: " + ", ".join(f"{who} {count} times" for who, count in sorted(found.victims.items())))
        for claim, (good, figure) in found.claims.items():
            print(f"  {'held  ' if good else 'BROKEN'}  {claim}: {figure}")
        held &= found.held
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
