"""What the tuner remembers, when that counts, and what becomes of a compiler that does not work."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY_OPTIONS, environment
from tenfold.hardware import Hardware, detect
from tenfold.ladder import tune
from tenfold.ladder.rungs import apply, bottom
from tenfold.ladder.tune import ALTERNATIVES, Tuned
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe
from tenfold.run import preset
from tenfold.training.speed import Speed, resolve

CPU = Hardware("cpu", "A processor", 2, 24 << 30, native_bf16=True, torch="2.13.0", compiler="g++", libc="glibc")
H100 = Hardware("cuda", "NVIDIA H100 80GB HBM3", 8, 80 << 30, (9, 0), native_bf16=True, torch="2.13.0", triton=True)
FOUND = Tuned(Speed(attention="sdpa", loss="plain", memory="kept", rows=3), 500.0, 400.0, "2026-01-02")
MODEL = ModelConfig()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_tuned_is_remembered_for_this_model_length_and_machine() -> None:
    tune.remember(FOUND, MODEL, 512, CPU, Speed())
    assert tune.recall(MODEL, 512, CPU, Speed()) == (FOUND, "")
    for other in (
        (MODEL, 1024, CPU),
        (replace(MODEL, layers=24), 512, CPU),
        (replace(MODEL, vocab=257, padded_vocab=0), 512, CPU),
        (MODEL, 512, replace(CPU, name="Another")),
        (MODEL, 512, replace(CPU, count=4)),
    ):
        assert tune.recall(*other, Speed()) == (None, "")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: "{", "cannot be read"),
        (lambda text: "[]", "cannot be read"),
        (lambda text: text.replace('"sdpa"', '"warp"'), "cannot be read"),
        (lambda text: text.replace('"rows": 3', '"rows": -3'), "cannot be read"),
        (lambda text: text.replace('"rows": 3', '"lanes": 3'), "cannot be read"),
        (lambda text: text.replace('"torch": "2.13.0"', '"torch": "2.12.0"'), "torch was 2.12.0"),
        (lambda text: text.replace('"compiler": "g++"', '"compiler": null'), "compiler was None"),
        (lambda text: text.replace('"layers": 12', '"layers": 13'), "of another model"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "of another"),
    ],
)
def test_a_stale_or_foreign_file_is_ignored_with_a_line(spoil: Callable[[str], str], told: str) -> None:
    path = tune.remember(FOUND, MODEL, 512, CPU, Speed())
    before = path.read_text()
    assert spoil(before) != before
    path.write_text(spoil(before))
    found, line = tune.recall(MODEL, 512, CPU, Speed())
    assert found is None
    assert f"{path} is ignored: " in line
    assert told in line
    assert "`tenfold tune` makes it anew" in line
    assert "\n" not in line


def test_what_was_tuned_for_given_options_counts_where_they_are_given() -> None:
    asked = Speed(precision="fp32", device="cpu", parallel="none")
    tune.remember(FOUND, MODEL, 512, CPU, asked)
    found, line = tune.recall(MODEL, 512, CPU, Speed())
    assert found is None
    assert "is ignored: it was tuned for speed.precision fp32; `tenfold tune`" in line
    assert tune.recall(MODEL, 512, CPU, Speed(precision="fp32", loss="plain")) == (FOUND, "")
    assert tune.recall(MODEL, 512, CPU, Speed(precision="bf16"))[0] is None


def test_auto_takes_what_was_tuned_and_given_values_stay() -> None:
    speed, said = resolve(Speed(loss="chunked"), MODEL, Recipe(length=512), CPU, tuned=FOUND.speed)
    assert (speed.attention, speed.loss, speed.memory, speed.rows) == ("sdpa", "chunked", "kept", 3)
    assert speed.precision == "bf16"  # not tuned: from the hardware table
    assert "attention sdpa (tuned)" in said
    assert "auto" not in vars(speed).values()
    few, _ = resolve(Speed(), MODEL, Recipe(length=512, rows=2), CPU, tuned=FOUND.speed)
    assert few.rows == 2
    assert resolve(Speed(rows=1), MODEL, Recipe(), CPU, tuned=FOUND.speed)[0].rows == 1


def test_what_was_tuned_gives_way_where_it_does_not_go_with_what_is_given() -> None:
    tuned = Speed(precision="bf16", attention="flash", compile="blocks", mode="reduce-overhead", rows=8)
    speed, said = resolve(Speed(precision="fp32"), MODEL, Recipe(), H100, tuned=tuned)
    assert (speed.attention, speed.mode) == ("sdpa", "default")
    assert "not as it was tuned, which does not go with what is given (speed.attention flash: " in said
    assert resolve(Speed(), MODEL, Recipe(), H100, tuned=tuned)[0].attention == "flash"
    several, _ = resolve(Speed(), MODEL, Recipe(), H100, 8, tuned=replace(tuned, parallel="auto"))
    assert several.parallel == "ddp"
    assert several.rows == 8


def test_alternatives_are_options_and_never_coarser_arithmetic() -> None:
    base = bottom(preset("gpt2-124m"), "cuda", 4)
    for one in ALTERNATIVES:
        assert one.field.startswith("speed.")
        assert one.field != "speed.precision"
        assert one.slack < 0
        apply(one, base)


@pytest.mark.timeout(240)
def test_tune_then_train(tmp_path: Path, text_file: Path) -> None:
    """The command measures, says what it chose and why, and the next training takes it, on the same rows a step."""
    model = ["--model.layers", "1", "--model.heads", "2", "--model.width", "32", "--model.context", "32"]

    def call(*arguments: str, limit: int = 200) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tenfold", *arguments]
        where: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "timeout": limit, "text": True}
        return subprocess.run(command, capture_output=True, **where)

    done = call("tune", "demo", *model, "--rows", "4", "--length", "32", "--minutes", "0.2")
    assert done.returncode == 0, done.stderr
    assert "chosen: " in done.stdout
    assert "the time was used up" in done.stdout
    path = next((tmp_path / "cache" / "tenfold" / "tuned").iterdir())
    assert str(path) in done.stdout
    kept = json.loads(path.read_text())["tuned"]
    assert kept["tokens_per_second"] > 0
    assert kept["speed"]["precision"] == "auto"  # demo gives one
    assert kept["speed"]["rows"] in (1, 2, "auto")  # auto: as many as were tried, or more
    short = ["--recipe.rows", "8", "--recipe.length", "32", "--stop-at", "2", "--cadence.sample", "0"]
    trained = call("train", "demo", *model, *short, "--data", str(text_file), "--tokenizer", "bytes")
    assert trained.returncode == 0, trained.stderr
    assert "(tuned)" in trained.stderr
    rows = 8 if kept["speed"]["rows"] == "auto" else kept["speed"]["rows"]
    assert f"({8 // rows} x 1 x {rows} rows)" in trained.stderr
    planned = call("plan", "demo", *model, "--recipe.length", "32")
    assert planned.returncode == 0, planned.stderr
    assert "measured on this machine on " in planned.stdout
    assert f"{kept['tokens_per_second']:,.0f} tokens/s" in planned.stdout
    other = call("plan", "demo", *model, "--recipe.length", "16")
    assert other.returncode == 2
    assert "nothing was measured here" in other.stderr


@pytest.mark.timeout(240)
def test_a_compiler_that_fails_is_found_by_trying(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler is there but does not work. What was tuned says compile: one warning, then training goes on
    uncompiled; asked for, it is refused."""
    fake = tmp_path / "bin" / "g++"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.delenv("CXX", raising=False)
    model = ModelConfig(layers=2, heads=2, width=32, context=32, vocab=257, padded_vocab=0, bias=False)
    tuned = replace(FOUND, speed=Speed(compile="blocks", rows=8))
    tune.remember(tuned, model, 32, detect("cpu"), Speed())
    common = ["--data", str(text_file), "--tokenizer", "bytes", *TINY_OPTIONS, "--stop-at", "3"]

    def call(*given: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tenfold", "train", "shakespeare-char", *common, *given]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100)

    auto = call("--speed.compile", "auto")
    assert auto.returncode == 0, auto.stderr
    warnings = [line for line in auto.stderr.splitlines() if "warning" in line]
    assert len(warnings) == 1, auto.stderr
    assert "torch.compile does not work here" in warnings[0]
    assert "training goes on uncompiled" in warnings[0]
    assert "Traceback" not in auto.stderr
    asked = call("--speed.compile", "blocks", "--name", "asked")
    assert asked.returncode == 2
    assert "speed.compile blocks does not work here" in asked.stderr
    assert "Traceback" not in asked.stderr
