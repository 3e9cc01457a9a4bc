"""The README's commands work, in its order, in one folder."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, TINY_OPTIONS, environment, words

README = (ROOT / "README.md").read_text()


def commands() -> list[str]:
    """Every line of the README's sh blocks, without its comment."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.S)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_there_are_commands() -> None:
    assert [c.split()[0] for c in commands()].count("tenfold") == 3


def test_make_has_the_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M))
    assert {"demo", "test", "setup", "test-all"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.timeout(240)
def test_the_commands_work(tmp_path: Path) -> None:
    """Trainings are cut short and made tiny; nothing else is changed."""
    (tmp_path / "my.txt").write_text("The " + words(4000))
    for line in commands():
        if line.startswith("make"):
            continue  # test_make_has_the_targets
        command = shlex.split(line)
        if command[0] == "torchrun":
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                *command[1:],
                "--data",
                "data/mine",
            ]
        else:
            command = [sys.executable, "-m", *command]
        if "train" in command:
            command += [*TINY_OPTIONS, "--speed.precision", "fp32"]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (line, done.stderr[-2000:])
    assert (tmp_path / "runs/mine/checkpoints/step-000020/model.safetensors").is_file()
    assert (tmp_path / "runs/two/checkpoints/step-000020/model.safetensors").is_file()


@pytest.mark.timeout(240)
def test_the_python_works(tmp_path: Path) -> None:
    """The Python block, with a shorter training on little data."""
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    (tmp_path / "my.txt").write_text(words(4000))
    code = block.replace("steps=100", "steps=3").replace('name="short"', 'name="short", data="my.txt"')
    assert code != block
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout) > 3
