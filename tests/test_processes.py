"""The same training on any number of processes."""

import itertools
import json
import subprocess
from pathlib import Path

import pytest
import torch

from conftest import ROOT, environment, torchrun
from tenfold.data.shards import Corpus
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


@pytest.mark.timeout(200)
def test_seven_processes_train_exactly_the_rows(corpus: Corpus, tmp_path: Path, tenfold) -> None:
    """7 processes and 8 rows: two processes would have a second row, six of those slots are fillers."""
    from conftest import TINY_OPTIONS

    options = ["--data", corpus.path, *TINY_OPTIONS, "--speed.precision", "fp32", "--recipe.steps", 4]
    seven = tenfold("train", "demo", "--name", "seven", *options, processes=7, timeout=180)
    assert seven.returncode == 0, seven.stderr[-3000:]
    one = tenfold("train", "demo", "--name", "one", *options)
    assert one.returncode == 0, one.stderr[-3000:]
    from tenfold.rundir import read_metrics

    a, b = ([r["loss"] for r in read_metrics(tmp_path / "runs" / name) if "loss" in r] for name in ("seven", "one"))
    assert len(a) == 4
    assert a == pytest.approx(b, rel=1e-6)
