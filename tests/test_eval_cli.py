"""`tenfold eval` as a real process."""

import json
from pathlib import Path

import pytest

from conftest import TINY_OPTIONS, Tenfold
from tenfold.cli import call
from tenfold.data.shards import Corpus
from tenfold.errors import TenfoldError
from test_tasks import stories, write


@pytest.fixture
def trained(tenfold: Tenfold, corpus: Corpus, tmp_path: Path) -> Path:
    """A run of a few steps in the folder where `tenfold` is called."""
    done = tenfold("train", "demo", "--name", "mine", "--data", corpus.path, *TINY_OPTIONS, "--recipe.steps", 4)
    assert done.returncode == 0, done.stderr
    return tmp_path / "runs" / "mine"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of small sets."""
    write(tmp_path / "hellaswag_val.jsonl", stories(6))
    write(tmp_path / "lambada_test.jsonl", [{"text": f"ba ke lo {word}"} for word in ("mi", "nu", "ra", "se")])
    (tmp_path / "wikitext2.test.raw").write_text(" \n = Ba = \n \n" + " ke lo mi nu ra \n" * 20)
    return tmp_path


@pytest.mark.timeout(200)
def test_results_are_printed_and_written_and_the_same_on_two_processes(
    tenfold: Tenfold, trained: Path, data: Path, tmp_path: Path
) -> None:
    arguments = ["eval", "mine", "--data", data, "--device", "cpu"]
    done = tenfold(*arguments, "--out", "one.json")
    assert done.returncode == 0, done.stderr
    rows = {tuple(line.split()[:2]): line for line in done.stdout.splitlines()}
    for metric in ("acc", "acc_norm"):
        assert ("hellaswag", metric) in rows
    assert {("lambada", "acc"), ("lambada", "ppl"), ("wikitext2", "word_ppl"), ("wikitext2", "bits_per_byte")} <= {
        *rows
    }
    assert "hellaswag: HellaSwag (Zellers et al. 2019)" in done.stdout
    assert "these are 6 records, where the published set has 10,042" in done.stdout
    assert "gpt2-124m" not in done.stdout, "what is published is of another set"
    found = json.loads((tmp_path / "one.json").read_text())
    assert found["step"] == 4
    hellaswag = found["tasks"]["hellaswag"]
    assert hellaswag["figures"].keys() == {"acc", "acc_norm"}
    assert hellaswag["figures"]["acc"]["error"] >= 0
    assert found["tasks"]["lambada"]["figures"]["ppl"]["error"] > 0
    assert hellaswag["published"]["gpt2-124m"] == {"acc": 0.2859, "acc_norm": 0.2955}
    two = tenfold(*arguments, "--out", "two.json", processes=2)
    assert two.returncode == 0, two.stderr
    assert json.loads((tmp_path / "two.json").read_text()) == found
    assert two.stdout == done.stdout


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_options_change_what_they_say(tenfold: Tenfold, trained: Path, data: Path, tmp_path: Path) -> None:
    path = trained / "checkpoints" / "step-000004"
    options = ["--limit", 5, "--stride", 32, "--tokens", 64, "--precision", "bf16", "--out", "some.json"]
    done = tenfold("eval", path, "--data", data, "--tasks", "hellaswag, wikitext2", "--device", "cpu", *options)
    if "--precision bf16" in done.stderr:  # this CPU has none: told, not done otherwise
        assert done.returncode == 2
        return
    assert done.returncode == 0, done.stderr
    assert "5 of 6" in done.stdout
    assert "5 of 23" in done.stdout
    assert json.loads((tmp_path / "some.json").read_text())["precision"] == "bf16"


@pytest.mark.timeout(200)
def test_mistakes_are_one_line(
    tenfold: Tenfold, trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, told in (
        (["--tasks", ","], "no task is given; possible are hellaswag, "),
        (["--limit", 0], "--limit 0: give at least 1 item"),
        (["--stride", -1], "--stride -1: give a number above 0"),
        (["--tasks", "piqa", "--data", data], "piqa_validation.jsonl does not exist"),
        (["--tasks", "piqa,lambada", "--data", data / "lambada_test.jsonl"], "set of one task only"),
        (["--out", "no/where.json"], "there is no folder no"),
        (["--tasks", "wikitext2", "--data", data, "--stride", 99], "--stride 99: give 1 to 32"),
    ):
        with pytest.raises(TenfoldError) as error:
            call(["eval", "mine", "--device", "cpu", *map(str, arguments)])
        assert told in str(error.value)
        assert "\n" not in str(error.value)
    done = tenfold("eval", "mine", "--tasks", "helaswag")
    assert done.returncode == 2
    assert done.stderr.startswith("tenfold: no task 'helaswag', did you mean 'hellaswag'?; possible are hellaswag, ")
    assert done.stderr.count("\n") == 1
