"""Tasks scored while training: by all processes together, at their cadence, and told once if their data is missing."""

import json
import os
from pathlib import Path

import pytest

from conftest import TINY_OPTIONS, Tenfold, words
from tenfold.data.fetch import cache_folder
from tenfold.data.shards import Corpus
from tenfold.rundir import read_metrics

OPTIONS = [*TINY_OPTIONS, "--speed.precision", "fp32", "--cadence.score", 8, "--cadence.tasks"]


def figures(run: Path) -> list[dict]:
    """What was scored, in order."""
    return [record for record in read_metrics(run) if "arc_easy_acc" in record]


@pytest.mark.timeout(280)
def test_all_processes_score_what_one_does(corpus: Corpus, tmp_path: Path, tenfold: Tenfold) -> None:
    """Also where the model is sharded, and where items are fewer than would be even."""
    path = cache_folder() / "eval/arc_easy/arc_easy_test.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    questions = [{"question": words(8, i), "choices": words(9, -i).split()[:4], "gold": i % 4} for i in range(11)]
    path.write_text("".join(json.dumps(question) + "\n" for question in questions))
    try:
        for name, parallel, processes in (("one", "none", 0), ("two", "fsdp", 2)):
            arguments = ["--data", corpus.path, *OPTIONS, "arc_easy", "--speed.parallel", parallel]
            done = tenfold("train", "demo", "--name", name, *arguments, processes=processes)
            assert done.returncode == 0, done.stderr[-3000:]
    finally:
        path.unlink()
    one, two = (figures(tmp_path / "runs" / name) for name in ("one", "two"))
    assert [record["step"] for record in one] == [8, 16, 20], "at its cadence and the end, not before the first step"
    assert one[0].keys() > {"arc_easy_acc", "arc_easy_acc_error", "arc_easy_acc_norm", "arc_easy_acc_norm_error"}
    for a, b in zip(one, two, strict=True):
        assert [a[key] for key in a if key.startswith("arc")] == [b[key] for key in a if key.startswith("arc")]


@pytest.mark.timeout(200)
def test_text_that_cannot_be_encoded_is_told_once_and_training_goes_on(tmp_path: Path, tenfold: Tenfold) -> None:
    """A character tokenizer knows the characters of its own text only."""
    (tmp_path / "my.txt").write_text(words(4000))
    path = cache_folder() / "eval/arc_easy/arc_easy_test.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"question": "Q?", "choices": ["A", "B"], "gold": 0}) + "\n")
    try:
        arguments = ["--data", "my.txt", "--tokenizer", "chars", "--cadence.prompt", "ba", *OPTIONS, "arc_easy"]
        done = tenfold("train", "demo", "--name", "mine", *arguments)
    finally:
        path.unlink()
    assert done.returncode == 0, done.stderr[-3000:]
    records = read_metrics(tmp_path / "runs" / "mine")
    (told,) = (record for record in records if record.get("event") == "not scored")
    assert "arc_easy will not be scored: arc_easy: the character 'Q'" in told["message"]
    assert "done" in [r.get("event") for r in records[-2:]]


@pytest.mark.timeout(200)
def test_missing_data_is_told_once_and_training_goes_on(
    corpus: Corpus, tmp_path: Path, tenfold: Tenfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    done = tenfold("train", "demo", "--name", "mine", "--data", corpus.path, *OPTIONS, "piqa", processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    records = read_metrics(tmp_path / "runs" / "mine")
    told = [record for record in records if record.get("event") == "not scored"]
    assert len(told) == 1
    assert told[0]["step"] == 8
    assert "piqa will not be scored: cannot download the set piqa: http://127.0.0.1:9/" in told[0]["message"]
    assert "done" in [r.get("event") for r in records[-2:]]


def test_a_task_that_does_not_exist_is_refused_before_training(corpus: Corpus, tenfold: Tenfold) -> None:
    done = tenfold("train", "demo", "--data", corpus.path, *OPTIONS, "hellaswog")
    assert done.returncode == 2
    assert "no task 'hellaswog', did you mean 'hellaswag'?" in done.stderr
