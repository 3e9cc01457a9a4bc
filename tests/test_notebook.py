"""The notebook for the free T4 runs from top to bottom, tiny and on a CPU, and keeps no outputs."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from conftest import ROOT

T4 = ROOT / "notebooks" / "t4.ipynb"


def outputs(notebook: Any, kind: str) -> list[str]:
    """What the cells of a notebook left of a kind, such as image/png or text."""
    left = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    if kind == "text":
        return [output["text"] for output in left if output.output_type == "stream" and output["name"] == "stdout"]
    return [output["data"][kind] for output in left if kind in output.get("data", {})]


def test_it_is_valid_and_keeps_no_outputs() -> None:
    notebook = nbformat.read(T4, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # Jupyter's own
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell fails; the ladder's chart, the curve of the loss and a sample are there."""
    from nbclient import NotebookClient

    monkeypatch.setenv("TENFOLD_NOTEBOOK", "tiny")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(T4, as_version=4)
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    assert len(outputs(notebook, "image/png")) == 2
    text = outputs(notebook, "text")
    assert any("fp16  65 TFLOP/s" in told for told in text)
    assert any("20 steps, validation loss " in told for told in text)
    sample = text[-1]
    assert sample.startswith("def ")
    assert len(sample) > len("def ")
    rungs = {rung["name"]: rung for rung in json.loads((tmp_path / "ladder" / "ladder.json").read_text())["rungs"]}
    assert list(rungs) == ["naive", "bf16", "fp16", "sdpa", "padded", "fused"]
    assert rungs["naive"]["status"] == "ok"
    assert rungs["sdpa"]["status"] in ("ok", "rejected")
    assert all(rung["reason"] for rung in rungs.values() if rung["status"] == "skipped")
