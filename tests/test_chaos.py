"""A training that is killed again and again ends as one that was left alone: the benchmark's storm, a short one."""

import importlib
import sys
from pathlib import Path

import pytest

from conftest import ROOT


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes below torchrun in /proc")
@pytest.mark.parametrize(("processes", "kills"), [(1, 8), (2, 3)])
def test_kills_lose_nothing_and_do_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, kills: int
) -> None:
    """T16: SIGKILL at random moments, also while saving and while removing, then the same command again."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    found = importlib.import_module("chaos").storm(tmp_path, processes, kills)
    assert found.held, found.claims
    assert found.victims.total() == kills
