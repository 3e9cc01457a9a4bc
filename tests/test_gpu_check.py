"""The check for a GPU machine, tried on a CPU with a tiny model: every part runs, without the packages that such a
machine may lack, and what is wrong, late or missing is told."""

import importlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT, environment

MISSING = ("gigatoken", "matplotlib", "pyarrow", "pytest", "rich", "safetensors", "tiktoken", "transformers", "tyro")
NAMES = ["facts", "sync", "kernels", "parity", "processes", "ladder", "plain"]


def check(folder: Path, *options: str, patch: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the check on the CPU, results to folder/out; `patch` is executed at the start of every Python process."""
    (folder / "sitecustomize.py").write_text(patch)
    return subprocess.run(
        [str(ROOT / "scripts" / "gpu_check.sh"), str(folder / "out"), *options],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**environment(), "PYTHON": sys.executable, "PYTHONPATH": str(folder)},
    )


def parts(folder: Path) -> dict[str, dict[str, Any]]:
    """What the check left, by part."""
    content = json.loads((folder / "out" / "gpu_check.json").read_text())
    return {part["name"]: part for part in content["parts"]}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_everything_runs_on_a_cpu_without_what_may_be_missing(tmp_path: Path) -> None:
    patch = f"import sys\nsys.modules.update(dict.fromkeys({MISSING}))\n"
    done = check(tmp_path, "--device", "cpu", "--tiny", patch=patch, timeout=380)
    for name in MISSING:
        command = [sys.executable, "-c", f"import {name}"]
        assert subprocess.run(
            command, env={**environment(), "PYTHONPATH": str(tmp_path)}, capture_output=True
        ).returncode
    assert done.returncode == 0, done.stdout + done.stderr
    found = parts(tmp_path)
    assert list(found) == NAMES
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    for name, part in found.items():
        assert [name, "passed"] in lines, part
        assert part["status"] == "passed"
        assert part["seconds"] > 0
    assert found["facts"]["figures"]["hardware"]["kind"] == "cpu"
    assert "only CUDA can tell" in found["sync"]["message"]
    assert found["sync"]["figures"]["eager"]["micro_steps"] == 2
    assert found["kernels"]["figures"]["rows"]["apart"] < 2e-2
    assert found["kernels"]["figures"]["cudnn"].startswith("not here: ")
    parity = found["parity"]["figures"]
    assert parity["fp32, device to CPU"]["apart"] == 0
    for name in ("sdpa", "fused", "accumulated", "chunked", "recomputed", "model compiled"):
        assert parity[name]["tolerance"] == 1e-5
        assert parity[name]["apart"] <= 1e-5
    assert parity["CUDA graphs"].startswith("not here: ")
    assert found["processes"]["figures"]["2 on cpu"]["apart"] <= 1e-6
    rungs = json.loads((tmp_path / "out" / "ladder" / "ladder.json").read_text())["rungs"]
    assert [rung["name"] for rung in rungs] == ["naive", "bf16", "sdpa", "fused"]
    assert rungs[0]["status"] == "ok"
    assert found["ladder"]["figures"]["rung naive"]["seconds_per_step"] == rungs[0]["seconds_per_step"]
    assert found["plain"]["figures"]["ratio"] > 0
    assert (tmp_path / "out" / "gpu_check.log").read_text().count("=== ") == len(NAMES)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_kernel_that_looks_at_the_future_fails_the_check(tmp_path: Path) -> None:
    patch = (
        "import sys\n"
        "if 'gpu_parts.py' in ' '.join(sys.orig_argv):\n"
        "    import tenfold.model.attention as a\n"
        "    a.KERNELS['sdpa'] = lambda q, k, v: a.F.scaled_dot_product_attention(q, k, v)\n"
    )
    done = check(tmp_path, "--device", "cpu", "--tiny", "--parts", "facts,kernels", patch=patch)
    assert done.returncode == 1, done.stdout + done.stderr
    found = parts(tmp_path)
    assert {name: part["status"] for name, part in found.items()} == {
        **dict.fromkeys(NAMES, "not run"),
        "facts": "passed",
        "kernels": "failed",
    }
    assert "sdpa: " in found["kernels"]["message"]
    assert "apart, at most 2e-02 is right" in found["kernels"]["message"]
    assert found["kernels"]["figures"]["sdpa"]["apart"] > 0.1
    assert found["kernels"]["figures"]["rows"]["apart"] < 2e-2
    assert found["plain"]["message"] == "it was not asked for"


@pytest.mark.timeout(60)
def test_a_part_that_takes_too_long_is_ended_and_the_rest_is_not_run(tmp_path: Path) -> None:
    patch = "import sys, time\nif 'parity' in sys.orig_argv:\n    time.sleep(50)\n"
    options = ["--device", "cpu", "--tiny", "--seconds", "2", "--parts", "parity,ladder"]
    done = check(tmp_path, *options, patch=patch)
    assert done.returncode == 1, done.stdout + done.stderr
    found = parts(tmp_path)
    assert found["parity"]["status"] == "failed"
    assert found["parity"]["message"] == "it was stopped after 2 s, its time limit"
    assert found["ladder"]["status"] == "not run"
    assert found["ladder"]["message"] == "the time was used up"


@pytest.mark.timeout(60)
def test_a_part_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    patch = "import os, sys\nif 'facts' in sys.orig_argv:\n    os.write(2, b'no such driver\\n')\n    os._exit(7)\n"
    done = check(tmp_path, "--device", "cpu", patch=patch)
    assert done.returncode == 1
    found = parts(tmp_path)
    assert found["facts"]["message"] == "it ended with code 7: no such driver"
    assert {part["status"] for part in found.values()} == {"failed", "not run"}
    assert found["plain"]["message"] == "this machine has not what the check needs"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.timeout(60)
def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.returncode == 1
    assert "speed.device 'cuda' is not here" in done.stdout.splitlines()[0]
    assert parts(tmp_path)["ladder"]["status"] == "not run"


@pytest.mark.parametrize(
    ("options", "patch", "told"),
    [
        (
            (),
            "import sys\nsys.modules['numpy'] = None\n",
            "lacks numpy: name another Python in PYTHON, or in TENFOLD_WHEELS",
        ),
        (("--parts", "facts,ladders"), "", "no part ladders; possible are facts, sync,"),
        (
            (),
            "import os\nos.environ['TENFOLD_WHEELS'] = '/nowhere'\n",
            "TENFOLD_WHEELS is /nowhere, which is no folder",
        ),
    ],
)
def test_what_is_missing_is_one_line(tmp_path: Path, options: tuple[str, ...], patch: str, told: str) -> None:
    done = check(tmp_path, *options, patch=patch)
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Gives a file of scripts/ as a module."""
    for folder in ("scripts", "benchmarks"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module


def test_wheels_of_what_is_missing_go_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Callable[[str], Any]
) -> None:
    """A pure one as it lies there, a compiled one unpacked; what is installed stays as it is."""
    for name, content in {
        "only_pure-1.0-py3-none-any.whl": "only_pure.py",
        "only_compiled-1.0-cp312-cp312-manylinux_2_28_x86_64.whl": "only_compiled/__init__.py",
        "numpy-9.9-cp312-cp312-manylinux_2_28_x86_64.whl": "numpy/__init__.py",
    }.items():
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            wheel.writestr(content, "value = 7\n")
    entries = module("gpu_check").unpacked(tmp_path, tmp_path / "into")
    assert len(entries) == 2
    for entry in entries:
        monkeypatch.syspath_prepend(entry)
    import only_compiled  # type: ignore[import-not-found]
    import only_pure  # type: ignore[import-not-found]

    assert only_pure.value == only_compiled.value == 7
    assert "only_pure-1.0-py3-none-any.whl" in only_pure.__file__
    assert Path(only_compiled.__file__).is_relative_to(tmp_path / "into")


def rung(name: str, seconds: float, memory: float, mfu: float, status: str = "ok") -> dict[str, Any]:
    """A rung's figures, as a ladder has them."""
    figures = {"seconds_per_step": seconds, "tokens_per_second": 1000 / seconds, "speedup": 2.0 / seconds}
    return {"name": name, "status": status, "reason": None, "peak_memory_bytes": memory, "mfu": mfu, **figures}


@pytest.mark.parametrize(
    ("capability", "best", "wrong"),
    [
        ((9, 0), rung("graphs", 0.15, 50, 0.43), []),
        ((9, 0), rung("graphs", 0.25, 50, 0.43), ["speedup: 8, at least 10 is asked"]),
        ((9, 0), rung("graphs", 0.15, 50, 0.41), ["mfu: 0.41, at least 0.42 is asked"]),
        ((8, 0), rung("graphs", 0.15, 50, 0.43), ["mfu: 0.43, at least 0.5 is asked"]),
        ((9, 0), rung("graphs", 0.15, 70, 0.43), ["memory: 70% of naive, 60% is asked"]),
        ((7, 5), rung("graphs", 0.25, 70, 0.1), []),
        (None, rung("graphs", 0.25, 70, 0.1), []),
    ],
)
def test_what_is_asked_of_a_card(
    tmp_path: Path, module: Callable[[str], Any], capability: Any, best: dict[str, Any], wrong: list[str]
) -> None:
    """Memory is compared at the same batch, and FP8, whose peak is another, is not the best."""
    parts = module("gpu_parts")
    before = [rung("naive", 2.0, 10, 0.1), rung("batch", 1.0, 100, 0.1), rung("bf16", 9.0, 1, 0.1, "rejected")]
    note = parts.Note(tmp_path / "facts.result")
    said = parts.concluded({"rungs": [*before, best, rung("fp8", 0.1, 1, 0.1)]}, capability, note)
    assert note.wrong == wrong
    assert note.figures["best"]["name"] == "graphs"
    assert said.startswith(f"2.000 to {best['seconds_per_step']:.3f} s a step")
    note.close(said)
    kept = json.loads((tmp_path / "facts.result").read_text())
    assert kept["status"] == ("failed" if wrong else "passed")
    assert kept["message"] == ("; ".join(wrong) or said)


def test_a_ladder_without_figures_is_not_run(tmp_path: Path, module: Callable[[str], Any]) -> None:
    parts = module("gpu_parts")
    row = {**rung("naive", 1.0, 1, 0.1, "skipped"), "reason": "the time was used up"}
    with pytest.raises(parts.NotRun, match="no rung could be measured: the time was used up"):
        parts.concluded({"rungs": [row]}, (9, 0), parts.Note(tmp_path / "facts.result"))


def test_a_mode_that_catches_nothing_proves_nothing(module: Callable[[str], Any]) -> None:
    """On a CPU reading a value is never an error."""
    assert module("gpu_parts").caught(torch.device("cpu")) == (
        False,
        "reading a value was no error, so nothing is proven",
    )


def test_losses_apart_or_not_finite_are_wrong(module: Callable[[str], Any]) -> None:
    parts = module("gpu_parts")
    assert parts.judged(1e-6, 1e-5) == ({"apart": 1e-6, "tolerance": 1e-5}, None)
    assert parts.judged(2e-5, 1e-5)[1] == "2.0e-05 apart, at most 1e-05 is right"
    assert parts.judged(float("nan"), 1e-5) == ({"apart": None, "tolerance": 1e-5}, "nan apart, at most 1e-05 is right")
