"""The same training on any number of processes."""

import itertools
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import ROOT, TINY_OPTIONS, Tenfold, environment, torchrun
from tenfold.data.batches import row_starts, windows
from tenfold.data.shards import Corpus
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.rundir import read_metrics
from training import case, gradient

STEPS = 20
CASES = [
    (rows, micro, parallel, STEPS)
    for rows, micro, parallel in itertools.product((8, 7, 2), (8, 1), ("ddp", "fsdp"))  # micro 1 accumulates
]


def run(processes: int, corpus: Corpus) -> dict:
    """Everything of CASES on so many processes."""
    command = [*torchrun(processes), str(ROOT / "tests" / "training.py"), json.dumps(CASES), str(corpus.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(280)
@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_give_the_losses_of_one(processes: int, corpus: Corpus) -> None:
    several = run(processes, corpus)
    for (rows, micro, parallel, steps), got in zip(CASES, several["cases"], strict=True):
        want = case(corpus.train, rows, 8, "none", steps)
        assert got["losses"] == pytest.approx(want["losses"], rel=1e-6), (rows, micro, parallel)
        assert got["norm"] == pytest.approx(want["norm"], rel=1e-5)
    # The gradient of accumulated micro-steps on several processes is that of one big batch, the same on each of them.
    big = gradient(corpus.train, 8, "none").double()
    mine = torch.tensor(several["gradient"], dtype=torch.float64)
    assert (mine - big).norm() / big.norm() < 1e-6
    assert several["apart"] == 0


def test_one_process_may_use_ddp_and_fsdp(corpus: Corpus) -> None:
    want = case(corpus.train, 7, 8, "none", 5)
    for parallel in ("ddp", "fsdp"):
        assert case(corpus.train, 7, 2, parallel, 5)["losses"] == pytest.approx(want["losses"], rel=1e-6)


NOTED = """
import json, os
from tenfold.cli import main
from tenfold.data.batches import Batches
take = Batches.take
def noted(self, position, k):
    with open(f"rows.{os.environ.get('RANK', 0)}", "a") as file:
        file.write(json.dumps([position, self.starts(self.numbers(position, k)).tolist()]) + "\\n")
    return take(self, position, k)
Batches.take = noted
main()
"""  # what `tenfold` does, and beside it each process notes the rows of every step that it takes


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_two_processes_saved_one_and_three_go_on_with(corpus: Corpus, tmp_path: Path) -> None:
    """T14: saved by 2 processes at step 7, gone on with by 1 and by 3: all ranks together take exactly the rows that
    come next, none twice and none left out, and the losses are those of a training that never stopped."""
    (tmp_path / "noted.py").write_text(NOTED)

    def train(name: str, processes: int, *more: str) -> dict[int, list[int]]:
        """Train in a process each, and give the rows taken by step."""
        for path in tmp_path.glob("rows.*"):
            path.unlink()
        options = ["--name", name, "--data", str(corpus.path), *TINY_OPTIONS, "--speed.precision", "fp32", *more]
        start = torchrun(processes) if processes > 1 else [sys.executable]
        command = [*start, str(tmp_path / "noted.py"), "train", "demo", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment())
        assert done.returncode == 0, done.stderr[-3000:]
        taken: dict[int, list[int]] = {}
        for path in tmp_path.glob("rows.*"):
            for step, rows in map(json.loads, path.read_text().splitlines()):
                taken.setdefault(step, []).extend(rows)
        return {step: sorted(rows) for step, rows in taken.items()}

    length, available = 32, windows(corpus.train, 32)
    want = {s: sorted(row_starts(8 * s + np.arange(8), available, length, 1337).tolist()) for s in range(STEPS)}
    assert train("whole", 1) == want
    assert train("one", 2, "--stop-at", "7") == {step: rows for step, rows in want.items() if step < 7}
    runs = tmp_path / "runs"
    shutil.copytree(runs / "one", runs / "three")
    for name, processes in (("one", 1), ("three", 3)):
        assert train(name, processes) == {step: rows for step, rows in want.items() if step >= 7}
        losses = [[r["loss"] for r in read_metrics(runs / run) if "loss" in r] for run in (name, "whole")]
        assert len(losses[0]) == STEPS
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.timeout(200)
def test_seven_processes_train_exactly_the_rows(corpus: Corpus, tmp_path: Path, tenfold: Tenfold) -> None:
    """7 processes and 8 rows: two processes would have a second row, six of those slots are fillers."""
    options = ["--data", corpus.path, *TINY_OPTIONS, "--speed.precision", "fp32", "--recipe.steps", 4]
    seven = tenfold("train", "demo", "--name", "seven", *options, processes=7, timeout=180)
    assert seven.returncode == 0, seven.stderr[-3000:]
    one = tenfold("train", "demo", "--name", "one", *options)
    assert one.returncode == 0, one.stderr[-3000:]
    a, b = ([r["loss"] for r in read_metrics(tmp_path / "runs" / name) if "loss" in r] for name in ("seven", "one"))
    assert len(a) == 4
    assert a == pytest.approx(b, rel=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_compiled_on_two_processes_samples_and_saves_plain_names(
    corpus: Corpus, tmp_path: Path, tenfold: Tenfold, parallel: str
) -> None:
    """Compiled, wrapped, validated and sampled on two processes: the losses of one, and weights by their own names."""
    options = ["--data", corpus.path, *TINY_OPTIONS, "--speed.precision", "fp32", "--cadence.sample", 10]
    wrapped = [
        "--speed.compile",
        "blocks",
        "--speed.parallel",
        parallel,
        "--speed.rows",
        2,
        "--speed.attention",
        "rows",
    ]
    two = tenfold(
        "train", "demo", "--name", "two", *options, *wrapped, "--speed.loss", "chunked", processes=2, timeout=360
    )
    assert two.returncode == 0, two.stderr[-3000:]
    assert tenfold("train", "demo", "--name", "one", *options).returncode == 0
    runs = [tmp_path / "runs" / name for name in ("two", "one")]
    for key in ("loss", "val_loss"):
        a, b = ([r[key] for r in read_metrics(path) if key in r] for path in runs)
        assert a == pytest.approx(b, rel=1e-5)
    a, b = (load_file(path / "checkpoints/step-000020/model.safetensors") for path in runs)
    assert a.keys() == b.keys() == GPT(ModelConfig(2, 2, 32, 32, 257, 0, False)).state_dict().keys()
    assert (runs[0] / "samples/step-000020.txt").read_text() == (runs[1] / "samples/step-000020.txt").read_text()
    done = tenfold("sample", "two", "--tokens", 5)
    assert done.returncode == 0


@pytest.mark.timeout(120)
def test_a_mistake_of_one_process_is_told(tenfold: Tenfold, corpus: Corpus, tmp_path: Path) -> None:
    """Whichever it is: before the processes meet, and after."""
    options = [*TINY_OPTIONS, "--data", str(corpus.path), "--stop-at", "1"]
    assert tenfold("train", "demo", *options).returncode == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tenfold", "train", "demo", *options]
    started = [
        subprocess.Popen(
            [*command, *more],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(), **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, more in enumerate(([], ["--recipe.lr", "0.5"]))
    ]
    first, second = (process.communicate(timeout=100)[1] for process in started)
    assert [process.returncode for process in started] == [2, 2]
    assert second.startswith("tenfold: process 1: run 'demo' exists and recipe.lr was 0.002, given 0.5: ")
    assert "tenfold:" not in first
    alone = tenfold("train", "no-such-preset", env={"RANK": "1", "WORLD_SIZE": "2"})
    assert alone.returncode == 2
    assert alone.stderr.startswith("tenfold: process 1: ")
