"""The wheel, built from the sdist, works in an empty environment."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from conftest import ROOT, TINY_OPTIONS, words


def call(*command: object, cwd: Path, timeout: float = 600) -> str:
    """Output of a command that must succeed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_installs_and_trains(tmp_path: Path) -> None:
    call(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    assert sdist.stat().st_size < 2_000_000
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    call(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    tenfold = tmp_path / "venv/bin/tenfold"
    assert "usage: tenfold" in call(tenfold, "--help", cwd=tmp_path)
    (tmp_path / "mine.txt").write_text(words(3000))
    options = [*TINY_OPTIONS, "--speed.precision", "fp32", "--stop-at", 3]
    assert "3 of 20 steps" in call(tenfold, "train", "demo", "--data", "mine.txt", *options, cwd=tmp_path)
    assert call(tenfold, "sample", "demo", "--tokens", 5, "--prompt", "ba", cwd=tmp_path).startswith("ba")
    assert "stopped" in call(python, "-m", "tenfold", "runs", cwd=tmp_path)
