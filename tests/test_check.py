"""`tenfold check`: logs of several programs, which curve a run follows, the verdict and its causes."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT, Tenfold
from tenfold import rundir
from tenfold.cli.entry import call
from tenfold.data.shards import Corpus, open_corpus
from tenfold.errors import CheckpointError, ConfigError, DataError
from tenfold.recipe import Recipe
from tenfold.reference.curves import curve, expected, points_of, table
from tenfold.run import Run, preset, to_dict
from tenfold.track.causes import CAUSES, ORDER
from tenfold.track.logs import FORMS, Log, from_records, read_log
from tenfold.track.match import compare, dataset_facts, matching
from tenfold.track.verdict import Row, compared, judge, phrase, thinned

EDU, FINEWEB = curve("fineweb-edu-124m"), curve("fineweb-124m")
STEP = EDU.tokens_per_step
RUN = replace(preset("gpt2-124m"), name="big", recipe=replace(preset("gpt2-124m").recipe, data="0123456789abcdef"))
DATASET = {
    "name": "HuggingFaceFW/fineweb-edu",
    "subset": "sample-10BT",
    "revision": "0" * 40,
    "documents": "whole documents within the first 100,000,000 tokens",
    "train_tokens": 9_853_989_344,
    "val_tokens": 99_999_000,
}


def log_of(run: str, factor: float = 1.0, scores: dict[int, float] | None = None) -> Log:
    """A published run as a log, its losses after the start times a factor."""
    losses = {tokens // STEP: loss * (factor if tokens else 1) for tokens, loss in points_of(run)}
    return Log("build-nanogpt", losses, scores or {})


def right(steps: range, off: Callable[[int], float] = lambda step: 0.0) -> dict[int, float]:
    """The expected losses at some steps, each changed by so many nats."""
    return {step: (expected(EDU, step * STEP) or math.nan) + off(step) for step in steps}


# Logs


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("build-nanogpt", "0 val 10.9366\n0 hella 0.2463\n0 train 10.955029\n250 val 6.1668\n250 hella 0.2531\n"),
        ("nanoGPT", "tokens per iteration\nstep 0: train loss 10.9, val loss 10.9366\niter 0: loss 10.9, time 9ms\n"
         "step 250: train loss 6.2, val loss 6.1668\nsaving checkpoint to out\n"),
        ("llm.c", "s:0 tel:10.9366\ns:0 eval:0.2463\ns:1 trl:10.9550 lr:0.000001 norm:15.3\ns:250 tel:6.1668\n"
         "s:250 eval:0.2531\n"),
    ],
)  # fmt: skip
def test_logs_of_other_programs(program: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(text)
    log = read_log(tmp_path / "log.txt")
    assert log.program == program
    assert log.losses == {0: 10.9366, 250: 6.1668}
    assert log.hellaswag == ({} if program == "nanoGPT" else {0: 0.2463, 250: 0.2531})


def test_the_example_of_each_program_is_read(tmp_path: Path) -> None:
    for name, form in FORMS.items():
        (tmp_path / "log").write_text(form.example)
        assert read_log(tmp_path / "log") == Log(name, {250: 6.1668}, {})


def test_a_run_that_went_back_counts_as_it_went_on(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("0 val 11.0\n250 val 9.0\n500 val 8.0\n750 val 7.0\n500 val 5.3\n")
    log = read_log(tmp_path / "log")
    assert (log.losses, log.back) == ({0: 11.0, 250: 9.0, 500: 5.3}, (500,))


def test_a_log_that_goes_back_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(
        "".join(f"{s} val {loss}\n" for s, loss in reversed(right(range(250, 1_001, 250)).items()))
    )
    code, out = told([tmp_path / "log", "--curve", "fineweb-edu-124m"], capsys)
    assert (code, "the log goes back at step 750 and 2 times more: of steps that" in out) == (0, True)


@pytest.mark.parametrize("end", ["", "\x1b[0m", ", lr 6.0e-04", "  "])
def test_what_stands_around_a_line_of_nanogpt_makes_no_difference(end: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"[rank0]: step 250: train loss 6.1612, val loss 6.1668{end}\n")
    assert read_log(tmp_path / "log").losses == {250: 6.1668}


@pytest.mark.parametrize(
    ("end", "losses"),
    [
        ("500 val 5.31", {0: 10.9366, 250: 6.1668}),  # half a number
        ("500 va", {0: 10.9366, 250: 6.1668}),
        ("500 val", {0: 10.9366, 250: 6.1668}),
        ("500 val 5.3138", {0: 10.9366, 250: 6.1668, 500: 5.3138}),  # whole, though without a line feed
        ("500 val 5.31\n", {0: 10.9366, 250: 6.1668, 500: 5.31}),
        ("\x00\xff\x1b[2J garbage\n\n500 val 5.3138\r\n", {0: 10.9366, 250: 6.1668, 500: 5.3138}),
    ],
)
def test_half_a_line_is_passed_over(end: str, losses: dict[int, float], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"0 val 10.9366\n250 val 6.1668\n{end}", encoding="latin-1")
    assert read_log(tmp_path / "log").losses == losses


def test_a_large_file_that_is_no_log_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(1 << 40)  # a terabyte, of which the disk holds nothing
    with pytest.raises(DataError, match="weights is no log that tenfold reads"):
        read_log(tmp_path / "weights")


def test_a_mark_of_the_encoding_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("0 val 10.9366\n250 val 6.1668\n", encoding="utf-8-sig")
    assert list(read_log(tmp_path / "log").losses) == [0, 250]


def test_a_loss_that_is_no_number_is_kept(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("0 val 10.9366\n250 val nan\n500 val inf")
    losses = read_log(tmp_path / "log").losses
    assert list(losses) == [0, 250, 500]
    assert math.isnan(losses[250])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"log is empty; it reads, line by line, those of build-nanogpt \(250 val 6.1668\); nanoGPT"),
        ("\n\n", "is empty"),
        ("To be, or not to be: that is the question.\n", "is no log that tenfold reads"),
        ("0 train 10.9\n1 train 10.8\n", "is a log of build-nanogpt without a validation loss; give one that has"),
        ("iter 10: loss 9.1234, time 100.00ms, mfu 3.00%\n", "is a log of nanoGPT without a validation loss"),
        (f"{'9' * 5000} val 3.0\n", "is a log of build-nanogpt without a validation loss"),
    ],
)
def test_what_is_no_log_is_told_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(DataError, match=message) as error:
        read_log(tmp_path / "log")
    assert "\n" not in str(error.value)


def test_records_of_a_run_folder(tmp_path: Path) -> None:
    for record in (
        {"step": 0, "event": "start"},
        {"step": 0, "val_loss": 10.9},
        {"step": 0, "loss": 10.9},
        {"step": 250, "val_loss": 6.2, "hellaswag_acc_norm": 0.26, "hellaswag_acc_norm_error": 0.0044},
        {"step": 400, "hellaswag_acc_norm": 0.33, "hellaswag_acc_norm_error": 0.011},  # of a part of the items
        {"step": 500, "val_loss": math.nan},
    ):
        rundir.append(tmp_path, record)
    log = from_records(rundir.read_metrics(tmp_path))
    assert list(log.losses) == [0, 250, 500]
    assert math.isnan(log.losses[500])
    assert log.hellaswag == {250: 0.26}
    rundir.append(tmp_path, {"step": 250, "event": "resume"})
    assert from_records(rundir.read_metrics(tmp_path)).losses == {0: 10.9}


# Which curve


def test_the_preset_on_its_data_follows_the_curve() -> None:
    match = matching(RUN, DATASET)
    assert match
    assert (match.curve, match.differences, match.validation) == (EDU, {}, "")


def test_what_makes_no_difference() -> None:
    run = replace(RUN, model=replace(RUN.model, padded_vocab=0), recipe=replace(RUN.recipe, seed=7))
    match = matching(run, DATASET)
    assert match
    assert not match.differences


@pytest.mark.parametrize(
    ("part", "field", "value", "told"),
    [
        ("recipe", "lr", 6e-3, "recipe.lr is 0.006, there 0.0006"),
        ("recipe", "rows", 480, "recipe.rows is 480, there 512"),
        ("recipe", "warmup", 0, "recipe.warmup is 0, there 715"),
        ("recipe", "schedule", "constant", "recipe.schedule is constant, there cosine"),
        ("model", "layers", 11, "model.layers is 11, there 12"),
        ("model", "bias", False, "model.bias is False, there True"),
    ],
)
def test_a_run_that_only_resembles_one_is_told_what_differs(part: str, field: str, value: Any, told: str) -> None:
    run = replace(RUN, **{part: replace(getattr(RUN, part), **{field: value})})
    match = matching(run, DATASET)
    assert match
    assert match.told() == told


def test_weights_tokenizer_and_epochs_differ_too() -> None:
    match = matching(replace(RUN, init="gpt2", tokenizer="bytes"), {**DATASET, "train_tokens": 10**9})
    assert match
    assert match.differences == {
        "tokenizer": ("gpt2", "bytes"),
        "init": ("random weights", "gpt2"),
        "epochs": ("at most 2", "10.0"),
    }


def test_the_curve_of_the_same_dataset_is_meant() -> None:
    fineweb = {**DATASET, "name": "HuggingFaceFW/fineweb"}
    match = matching(RUN, fineweb)
    assert match
    assert match.curve is FINEWEB
    assert set(match.differences) == {"recipe.steps", "recipe.lr_end", "recipe.warmup"}
    same = replace(RUN, recipe=replace(RUN.recipe, steps=19_560, lr_end=0.0, warmup=700))
    assert not compare(same, fineweb, FINEWEB).differences


@pytest.mark.parametrize("name", ["demo", "shakespeare-char", "gpt2-350m", "finetune"])
def test_other_trainings_resemble_none(name: str) -> None:
    assert matching(preset(name), {}) is None


@pytest.mark.parametrize(
    ("rows", "facts", "why"),
    [
        (10_240, {}, ""),
        (5_120, {}, ""),
        (0, {}, r"another number of tokens validates \(99,999,000, there the first 5,242,880 or 10,485,760"),
        (1_024, {}, r"another number of tokens validates \(1,048,576, there"),
        (
            10_240,
            {"subset": "sample-100BT"},
            r"another part of the dataset validates \(sample-100BT, there sample-10BT",
        ),
        (10_240, {"documents": ""}, r"other documents validate \(not known; there whole documents within the first"),
    ],
)
def test_another_validation_is_told(rows: int, facts: dict[str, Any], why: str) -> None:
    run = replace(RUN, cadence=replace(RUN.cadence, eval_rows=rows))
    match = matching(run, {**DATASET, **facts})
    assert match
    assert not match.differences
    assert bool(match.validation) == bool(why)
    if why:
        import re

        assert re.search(why, match.validation)


def test_facts_of_what_tenfold_prepared(corpus: Corpus) -> None:
    facts = dataset_facts(corpus)
    assert facts["name"] == "words.txt"
    assert facts["subset"] == facts["revision"] == ""
    assert (facts["train_tokens"], facts["val_tokens"]) == (len(corpus.train), len(corpus.val))
    about = {"name": "HuggingFaceFW/fineweb-edu", "repository": "HuggingFaceFW/fineweb-edu", "subset": "sample-10BT"}
    manifest = {"source": {**about, "revision": "abc"}, "options": {"val_tokens": 10**8}, "split_rule": "some"}
    facts = dataset_facts(replace(corpus, manifest=manifest))
    assert facts | {"train_tokens": 0, "val_tokens": 0} == {
        **DATASET,
        "revision": "abc",
        "train_tokens": 0,
        "val_tokens": 0,
    }
    shuffled = {**manifest, "options": {"val_tokens": 10**8, "shuffle": 7, "dedup": True}}
    assert dataset_facts(replace(corpus, manifest=shuffled))["documents"] == (
        "whole documents within the first 100,000,000 tokens, shuffled, repeated ones left out"
    )


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("edufineweb_{}_000000.npy", "HuggingFaceFW/fineweb-edu"),
        ("fineweb_{}_000000.npy", "HuggingFaceFW/fineweb"),
        ("other_{}_000000.npy", ""),
    ],
)
def test_facts_of_shards_of_other_programs(name: str, dataset: str, tmp_path: Path) -> None:
    for split in ("train", "val"):
        np.save(tmp_path / name.format(split), np.arange(1_000, dtype=np.uint16))
    facts = dataset_facts(open_corpus(tmp_path))
    assert facts["name"] == dataset
    assert facts["train_tokens"] == 1_000
    if dataset:
        assert (facts["subset"], facts["documents"]) == (DATASET["subset"], DATASET["documents"])


# The verdict


def test_a_right_run() -> None:
    verdict = judge(EDU, log_of("garg_fineweb_edu", scores={12_000: 0.2952, 19_072: 0.3066}), STEP)
    assert verdict
    assert not verdict.off
    assert verdict.lines == (
        "inside the band: validation loss 3.0656 at step 19,072, expected 3.0500 to 3.0800",
    )  # fmt: skip
    assert not verdict.causes


def test_a_curve_20_percent_above_at_step_1000_is_warned_of_and_ends_outside_tolerance() -> None:
    """T7, with the expected range."""
    loss = 1.2 * (expected(EDU, 1_000 * STEP) or 0)
    record = compared(EDU, 1_000, 1_000 * STEP, loss)
    assert record == {
        "expected": 4.2201,
        "band": [4.0701, 4.3701],
        "place": "far above",
        "message": "warning: validation loss 5.0641 at step 1,000 is far above the band 4.07 to 4.37 of a right run, "
        "where a right run stands at step 580",
    }
    losses = right(range(250, 1_001, 250)) | {1_000: loss}
    verdict = judge(EDU, Log("tenfold", losses, {}), STEP)
    assert verdict
    assert verdict.off
    assert "outside tolerance" in verdict.lines[0]
    assert verdict.lines[1].startswith("outside tolerance at 1 of 4 validations, first at step 1,000: 5.0641, expected")
    back = judge(EDU, Log("tenfold", losses | right(range(1_250, 2_001, 250)), {}), STEP)
    assert back
    assert not back.off  # it came back, and both are said
    assert [line.partition(" at ")[0] for line in back.lines] == [
        "inside the band: validation loss 3.6580",
        "outside tolerance",
    ]


def test_a_place_in_words() -> None:
    found = {loss: compared(EDU, 3_000, 3_000 * STEP, loss) for loss in (3.50, 3.43, 2.0)}
    assert [record["place"] for record in found.values()] == ["inside", "below", "far below"]
    assert ["message" in record for record in found.values()] == [False, False, True]
    assert "lower than a right run ever comes" in found[2.0]["message"]
    assert compared(EDU, 100, 100 * STEP, 8.0) == {}
    assert compared(EDU, 2_000, 2_000 * STEP, 3.74, widened=True)["place"] == "inside"
    (row,) = judge(EDU, Log("tenfold", {1_000: 4.22}, {}), STEP).rows  # type: ignore[union-attr]
    assert phrase(row.place) == "inside the band 4.07 to 4.37 of a right run"


@pytest.mark.parametrize(
    ("losses", "seen"),
    [
        (right(range(0, 2_001, 250), lambda step: 3.0 if not step else 0.5), "wrong from the start"),
        (right(range(250, 5_001, 250), lambda step: 0.5), "too slow from early on"),
        ({**right(range(250, 1_001, 250), lambda s: 0.4), **dict.fromkeys(range(2_000, 9_001, 1_000), 4.2)},
         "hardly learning any more"),
        (right(range(250, 9_001, 250), lambda step: max(0, step - 3_000) / 60_000), "right at first, then too slow"),
        (right(range(250, 9_001, 250), lambda step: -0.08), "a little below"),
        (right(range(250, 9_001, 250), lambda step: -2.0), "far below"),
        ({19_072: 4.2}, "above where it is known"),
        ({250: 6.17, 500: math.nan}, "no longer a number"),
        ({250: math.nan}, "no longer a number"),
    ],
)  # fmt: skip
def test_causes_depend_on_what_is_seen(losses: dict[int, float], seen: str) -> None:
    verdict = judge(EDU, Log("tenfold", losses, {}), STEP)
    assert verdict
    assert verdict.off == (seen != "a little below")
    assert verdict.seen == seen
    assert [cause.name for cause in verdict.causes] == [CAUSES[name].name for name in ORDER[seen]]


def test_published_mistakes_have_their_cause_first() -> None:
    no_warmup = judge(EDU, log_of("agndm_no_warmup"), STEP)
    assert no_warmup
    assert "without warm-up" in no_warmup.causes[0].name
    assert "8.39e-07, 6.00e-04, 3.47e-04, 6.00e-05" in no_warmup.causes[0].test
    bigger = judge(EDU, log_of("agndm_bigger"), STEP)
    assert bigger
    assert (bigger.off, bigger.seen) == (False, "a little below")


def test_every_cause_has_its_place_and_its_figures() -> None:
    assert {name for names in ORDER.values() for name in names} == set(CAUSES)
    for seen in ORDER:
        verdict = judge(EDU, Log("tenfold", {250: math.nan}, {}), STEP)
        assert verdict
        assert all("{" not in cause.test for cause in verdict.causes), seen


def test_the_rates_of_the_test_are_those_of_the_recipe() -> None:
    """Two published schedules: build-nanogpt's and, with its own warm-up and end, llm.c's."""
    assert Recipe(**EDU.recipe) == Recipe()
    verdict = judge(FINEWEB, Log("llm.c", {250: 9.0, 500: 8.0}, {}), STEP)
    assert verdict
    assert "steps 0, 700, 9,780, 19,559: it is 8.57e-07, 6.00e-04, 3.17e-04, 4.16e-12" in verdict.causes[1].test


@pytest.mark.parametrize(
    ("scores", "off"),
    [
        ({11_000: 0.25}, False),  # nothing is due yet
        ({12_000: 0.2870}, False),
        ({12_000: 0.2860}, True),
        ({19_072: 0.2971}, False),
        ({12_000: 0.2955, 19_072: 0.2969}, True),
    ],
)
def test_hellaswag(scores: dict[int, float], off: bool) -> None:
    verdict = judge(EDU, log_of("garg_fineweb_edu", scores=scores), STEP)
    assert verdict
    assert verdict.off is off
    assert verdict.seen == ("right loss, low HellaSwag" if off else "")


def test_a_log_with_nothing_to_compare_has_no_verdict() -> None:
    assert judge(EDU, Log("nanoGPT", {100: 8.0, 30_000: 3.0}, {}), STEP) is None


def test_a_table_has_the_first_the_last_and_the_first_outside() -> None:
    losses = right(range(250, 19_001, 250), lambda step: 0.2 if 3_250 <= step <= 4_000 else 0.0)
    verdict = judge(EDU, Log("tenfold", losses, {}), STEP)
    assert verdict
    rows = thinned(verdict.rows)
    assert len(rows) in (11, 12)
    assert (rows[0].step, rows[-1].step) == (250, 19_000)
    assert next(row.step for row in rows if row.place.outside) == 3_250
    one: tuple[Row, ...] = verdict.rows[:1]
    assert thinned(one) == list(one)


# The command


def told(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and output of `tenfold check`."""
    code = call(["check", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_the_4_2_run_is_impossible_to_miss(tenfold: Tenfold, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("0 val 10.9514\n19072 val 4.2000\n19072 hella 0.2500\n")
    done = tenfold("check", "log.txt", "--curve", "fineweb-edu-124m")
    assert done.returncode == 1, done.stderr
    out = done.stdout
    assert "log.txt, a log of build-nanogpt against fineweb-edu-124m" in out
    assert "far above: where a right run stands at step 1,000; validation loss 4.2000 at step 19,072" in out
    assert "outside tolerance" in out
    assert "HellaSwag 0.2500 at step 19,072" in out
    assert "likely causes, in order:\n1. gradients are not averaged" in out
    assert "garg-aayush/building-from-scratch" in out
    assert len(out.splitlines()) <= 40


def test_the_readme_shows_the_verdicts_that_the_command_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("| `tenfold check right.txt") :].split("\n\n")[0]
    (tmp_path / "spoiled.txt").write_text("0 val 10.9514\n19072 val 4.2000\n19072 hella 0.2500\n")
    right = "".join(f"{step} val {loss:.4f}\n" for step, loss in log_of("garg_fineweb_edu").losses.items())
    (tmp_path / "right.txt").write_text(f"{right}19072 hella 0.3066\n")
    for name, column in (("right", 1), ("spoiled", 2)):
        code, out = told([tmp_path / f"{name}.txt", "--curve", "fineweb-edu-124m"], capsys)
        shown = [line.split("|")[column].strip() for line in table.splitlines()[2:]]
        assert shown[-1].startswith(f"exit code {code}")
        for cell in filter(None, shown[:-1]):
            for piece in cell.removesuffix("...").replace("order: 1.", "order:\n1.").split("\n"):
                assert piece.strip() in out, piece


def test_a_log_must_be_told_its_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    log.write_text("\n".join(f"{t // STEP} val {loss:.4f}" for t, loss in points_of(FINEWEB_RUN)) + "\n")
    with pytest.raises(ConfigError, match=r"does not say its model, recipe and data; .*--curve fineweb-edu-124m"):
        told([log], capsys)
    assert told([log, "--curve", "fineweb-124m"], capsys)[0] == 0
    code, out = told([log, "--curve", "fineweb-edu-124m"], capsys)
    assert (code, "above: where a right run stands at step" in out) == (1, True)
    with pytest.raises(ConfigError, match="no curve 'fineweb'"):
        told([log, "--curve", "fineweb"], capsys)
    with pytest.raises(ConfigError, match="--tokens-per-step -1: give a number above 0"):
        told([log, "--curve", "fineweb-124m", "--tokens-per-step", "-1"], capsys)


FINEWEB_RUN = table()["curves"]["fineweb-124m"]["runs"][0]


def test_tokens_a_step_of_a_log_may_be_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "out.log"
    log.write_text(
        "".join(
            f"step {2 * s}: train loss 4, val loss {loss:.4f}\n" for s, loss in right(range(500, 3_001, 250)).items()
        )
    )
    halved = ["--curve", "fineweb-edu-124m", "--tokens-per-step", STEP // 2]
    assert told([log, *halved], capsys)[0] == 0
    assert told([log, *halved[:2]], capsys)[0] == 1
    log.write_text("step 100: train loss 8, val loss 8.0\n")
    with pytest.raises(
        ConfigError, match=r"no validation .* knows a loss for \(steps 100\); it knows step 0 and steps 500 to"
    ):
        told([log, *halved], capsys)


def folder_of(run: Run, dataset: dict[str, Any], log: Log, path: Path) -> Path:
    """A run folder as a training leaves it."""
    rundir.write_run(path, {**to_dict(run), "dataset": dataset})
    for step, loss in log.losses.items():
        rundir.append(path, {"step": step, "val_loss": loss})
    for step, score in log.hellaswag.items():
        rundir.append(path, {"step": step, "hellaswag_acc_norm": score, "hellaswag_acc_norm_error": 0.0046})
    return path


def test_a_run_finds_its_own_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = log_of("garg_fineweb_edu", scores={19_072: 0.3066})
    folder_of(RUN, DATASET, log, Path("runs/good"))
    code, out = told(["good"], capsys)
    assert code == 0
    assert "runs/good against fineweb-edu-124m: GPT-2 124M" in out
    assert "doubled" not in out
    folder_of(RUN, DATASET, log_of("agndm_no_warmup"), Path("runs/bad"))
    code, out = told(["runs/bad"], capsys)
    assert code == 1
    assert "where a right run stands at step 11,000" in out
    wide = replace(RUN, cadence=replace(RUN.cadence, eval_rows=0))
    folder_of(wide, DATASET, log_of("agndm_linear_lr"), Path("runs/wide"))
    code, out = told(["wide"], capsys)
    assert code == 0
    assert "the band is doubled: another number of tokens validates" in out
    with pytest.raises(ConfigError, match="--tokens-per-step is for logs of other programs; runs/good says its own"):
        told(["good", "--tokens-per-step", "1"], capsys)
    with pytest.raises(CheckpointError, match=r"no run 'none': runs/ has bad, good, wide; .* or the log of another"):
        told(["none"], capsys)


def test_a_run_that_follows_no_curve_is_told_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fast = replace(RUN, recipe=replace(RUN.recipe, lr=6e-3))
    folder_of(fast, DATASET, log_of("garg_fineweb_edu"), Path("runs/fast"))
    code, out = told(["fast"], capsys)
    assert (code, "only resembles fineweb-edu-124m: recipe.lr is 0.006, there 0.0006;" in out) == (0, True)
    code, out = told(["fast", "--curve", "fineweb-edu-124m"], capsys)
    assert (code, "not the same recipe: recipe.lr is 0.006, there 0.0006" in out) == (0, True)
    folder_of(replace(preset("demo"), name="demo"), {}, log_of("garg_fineweb_edu"), Path("runs/demo"))
    code, out = told(["demo"], capsys)
    assert (code, "runs/demo follows no published curve that is known; --curve NAME compares" in out) == (0, True)
    assert "no vital sign spoke" in out
    rundir.append(Path("runs/demo"), {"step": 3, "event": "sign", "sign": "spike", "message": "warning: a spike"})
    code, out = told(["demo"], capsys)
    assert (code, "vital signs that spoke: spike (step 3)" in out) == (0, True)
    rundir.append(Path("runs/demo"), {"step": 3, "event": "sign", "sign": "schedule", "message": "warning: a rate"})
    assert told(["demo"], capsys)[0] == 1
    rundir.append(Path("runs/demo"), {"step": 4, "event": "stopped", "message": "step 4: loss nan"})
    code, out = told(["demo"], capsys)
    assert (code, out.splitlines()[-1]) == (1, "stopped: step 4: loss nan")
    unfinished = json.loads(Path("runs/fast/run.json").read_text())
    del unfinished["dataset"]  # by an earlier tenfold
    Path("runs/fast/run.json").write_text(json.dumps(unfinished))
    assert "data is not known, there HuggingFaceFW/fineweb-edu" in told(["fast"], capsys)[1]


def test_a_run_without_a_validation_still_has_its_signs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of(RUN, DATASET, Log("", {}, {}), Path("runs/new"))
    code, out = told(["new"], capsys)
    assert (code, out.splitlines()[-1]) == (0, "no vital sign spoke")
    assert "has no validation that fineweb-edu-124m knows a loss for (steps none)" in out
    rundir.append(Path("runs/new"), {"step": 0, "event": "stopped", "message": "step 0: an untrained model has a loss"})
    code, out = told(["new"], capsys)
    assert (code, out.splitlines()[1:]) == (1, ["stopped: step 0: an untrained model has a loss"])


def test_a_run_whose_signs_are_off_is_not_said_to_be_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of(replace(preset("demo"), signs="off"), {}, Log("", {}, {}), Path("runs/off"))
    code, out = told(["off"], capsys)
    assert (code, out.splitlines()[-1]) == (0, "vital signs were not looked at (--signs off)")


def test_mistakes_are_one_line_and_exit_code_2(tenfold: Tenfold, tmp_path: Path) -> None:
    (tmp_path / "poem").write_text("Roses are red\n")
    for arguments in (["nothing"], ["poem"], ["poem", "--curve", "x"], [tmp_path]):
        done = tenfold("check", *arguments)
        assert done.returncode == 2, arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("tenfold: ")


def test_a_score_without_an_error_is_no_score_of_all() -> None:
    """Of one item there is none."""
    scored = {"step": 11_500, "hellaswag_acc_norm": 1.0}
    assert from_records([{**scored, "hellaswag_acc_norm_error": None}]).hellaswag == {}
    assert from_records([{**scored, "hellaswag_acc_norm_error": 0.0045}]).hellaswag == {11_500: 1.0}
