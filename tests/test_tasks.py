"""Tasks: what is asked of a record, what the answers mean, where the sets come from."""

import io
import json
import math
import os
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from conftest import TINY, words
from server import Answer, serve
from tenfold.data.tokenizer import Bytes, Chars
from tenfold.errors import ConfigError, DataError
from tenfold.evaluate import sets
from tenfold.evaluate.evaluation import evaluate, some
from tenfold.evaluate.scorer import Scores
from tenfold.evaluate.tasks import TASKS, Question, choice, ends, mean, text, windows, word
from tenfold.reference import evals
from tenfold.world import World
from test_generate import lively
from test_scorer import by_definition

ALONE = World(0, 1, torch.device("cpu"))
SHARED = Path(os.environ.get("TENFOLD_SHARED") or Path(__file__).parents[2] / "shared")


def stories(count: int = 12) -> list[dict[str, Any]]:
    """Items of HellaSwag's form whose right ending is, for the lively model, the best by mean but not by sum."""
    draw, found = random.Random(1), []
    while len(found) < count:
        context = words(2, draw.randrange(1000)).strip()
        endings = ["".join(draw.choices("abcdef ", k=draw.choice([1, 2, 6]))) for _ in range(4)]
        ids = [tuple(f" {ending}".encode()) for ending in endings]
        sums = np.array(by_definition(lively(), [(tuple(context.encode()), ending) for ending in ids])[0])
        means = sums / [len(ending) for ending in ids]
        if means.argmax() != sums.argmax():
            record = {"ctx": context, "ctx_a": context, "ctx_b": "", "activity_label": "Words", "endings": endings}
            found.append({**record, "label": int(means.argmax())})
    return found


def write(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    """A file with a record a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def parquet(records: list[dict[str, Any]]) -> bytes:
    """The same as the Hub has it."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)
    return file.getvalue()


def scores(*sums: float, greedy: bool = False) -> Scores:
    return Scores(np.array(sums), np.full(len(sums), greedy), 0)


def test_a_long_ending_wins_by_mean_and_a_short_one_by_sum(tmp_path: Path) -> None:
    """T40, whose other half, any number of processes and any padding, is in test_scorer.py."""
    path = write(tmp_path / "toy.jsonl", stories())
    result = evaluate(lively(), Bytes(), ["hellaswag"], ALONE, data=path)["hellaswag"]
    assert {name: figure.value for name, figure in result.figures.items()} == {"acc": 0.0, "acc_norm": 1.0}
    assert (result.records, result.of, result.cut) == (12, 12, 0)
    assert result.verdict == "12 records, where the published set has 10,042"


def test_sums_means_and_characters_choose_differently() -> None:
    question = Question(tuple(("x", ending) for ending in (" a", " bcdefgh", " cd")), 1)
    asked = [((1,), (1,)), ((1,), (1, 2, 3)), ((1,), (1, 2))]
    assert choice()([question], asked, scores(-2, -3.3, -4))["acc"].value == 0
    assert choice("tokens")([question], asked, scores(-2, -3.3, -1.5))["acc_norm"].value == 0
    assert choice("tokens")([question], asked, scores(-2, -3.3, -4))["acc_norm"].value == 1
    assert choice("characters")([question], asked, scores(-2, -3.3, -1.5))["acc_norm"].value == 1
    assert "acc_norm" not in choice()([question], asked, scores(-2, -3.3, -4))


def test_the_standard_error_of_an_accuracy() -> None:
    p, n = 0.2955, 10_042
    right = np.zeros(n)
    right[: round(p * n)] = 1
    assert mean(right).error == pytest.approx(math.sqrt(p * (1 - p) / (n - 1)), rel=1e-4)
    assert mean(right).error == pytest.approx(evals.table()["one_standard_error_hellaswag"], abs=1e-4)
    assert math.isnan(mean(np.ones(1)).error)


def test_a_last_word_is_right_if_all_of_it_is_the_most_likely() -> None:
    answers = Scores(np.array([-1.0, -3.0]), np.array([True, False]), 0)
    got = word([], [], answers)
    assert got["acc"].value == 0.5
    assert got["ppl"].value == pytest.approx(math.exp(2))
    assert got["ppl"].error == pytest.approx(math.exp(2) * 1)


@pytest.mark.parametrize(("stride", "scored"), [(0, 99), (1, 99), (5, 99), (16, 99), (32, 99 - 3)])
def test_windows_score_each_token_once(stride: int, scored: int) -> None:
    """All but the first of the text, or of every window where they do not overlap; none sees more than the context."""
    pairs = windows(["x" * 49, "y" * 49], Bytes(), 32, stride)
    whole = ("x" * 49 + "\n\n" + "y" * 49).encode()
    assert sum(len(after) for _, after in pairs) == scored
    assert all(len(before) + len(after) <= 32 for before, after in pairs)
    assert all(bytes(before + after) in whole and before for before, after in pairs)
    if stride < 32:
        assert b"".join(bytes(after) for _, after in pairs) == whole[1:]
    for before, _ in pairs[1:-1]:
        assert len(before) == max(1, 32 - (stride or 16))


def test_perplexities_of_a_text_are_of_one_loss() -> None:
    lines = ["one two\n", "", "three\n"]
    got = text(lines, [((1,), (1, 2, 3)), ((2,), (1,))], scores(-6.0, -2.0))
    assert got["ppl"].value == pytest.approx(math.exp(8 / 4))
    assert got["word_ppl"].value == pytest.approx(math.exp(8 / 3))
    assert got["bits_per_byte"].value == pytest.approx(8 / math.log(2) / len("one two\n \nthree\n"))
    assert got["ppl"].error == 0, "both windows lose the same a token"


def test_a_stride_beyond_the_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="give 1 to 32"):
        windows(["abc"], Bytes(), 32, 33)
    with pytest.raises(DataError, match="has 1 tokens"):
        windows(["a"], Bytes(), 32, 0)


RECORDS: dict[str, tuple[dict[str, Any], Any]] = {  # set -> a record as published, and what is asked of it
    "hellaswag": (
        {"ctx": "A b.", "ctx_a": "A b.", "ctx_b": "", "activity_label": "C", "endings": ["d", "e"], "label": "1"},
        Question((("A b.", " d"), ("A b.", " e")), 1),
    ),
    "lambada": ({"text": "one two three"}, Question((("one two", " three"),))),
    "wikitext2": ({"text": " = A = \n"}, " = A = \n"),
    "arc_easy": (
        {"question": "Q?", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"},
        Question((("Question: Q?\nAnswer:", " a"), ("Question: Q?\nAnswer:", " b")), 1),
    ),
    "piqa": (
        {"goal": "G", "sol1": "a", "sol2": "b", "label": 1},
        Question((("Question: G\nAnswer:", " a"), ("Question: G\nAnswer:", " b")), 1),
    ),
    "winogrande": (
        {"sentence": "A or B, _ was it.", "option1": "A", "option2": "B", "answer": "2"},
        Question((("A or B, A", " was it."), ("A or B, B", " was it.")), 1),
    ),
    "openbookqa": (
        {"question_stem": "Q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A "},
        Question((("Q", " a"), ("Q", " b")), 0),
    ),
    "sciq": (
        {"question": "Q", "distractor1": "a", "distractor2": "b", "distractor3": "c", "correct_answer": "d"}
        | {"support": " S."},
        Question(tuple(("S.\nQuestion: Q\nAnswer:", f" {x}") for x in "abcd"), 3),
    ),
    "boolq": (
        {"question": "is it", "passage": "P.", "answer": True},
        Question((("P.\nQuestion: is it?\nAnswer:", " no"), ("P.\nQuestion: is it?\nAnswer:", " yes")), 1),
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_how_a_record_is_asked(name: str) -> None:
    record, asked = RECORDS[name]
    assert TASKS[name].read(sets.SETS[name].keep(record)) == asked


def test_the_harness_asks_hellaswag_otherwise() -> None:
    record = {"ctx": "", "ctx_a": "Cut. [step] Go on.", "ctx_b": "then he", "activity_label": "Fix [title] It"}
    read = TASKS["hellaswag-harness"].read(sets.SETS["hellaswag"].keep({**record, "endings": [" a  b"], "label": 0}))
    assert read == Question((("Fix. It: Cut. Go on. Then he", " a b"),), 0)


@pytest.mark.parametrize("name", TASKS)
def test_docstrings_carry_the_published_figures(name: str) -> None:
    told = TASKS[name].read.__doc__ or ""
    given = evals.known(TASKS[name].known).get("gpt2-124m", {})
    numbers = {float(number) for number in re.findall(r"\d+\.\d+", told)}
    assert {value for key, value in given.items() if "shot" not in key} <= numbers
    if name.startswith("wikitext"):
        rows = ("wikitext2_paper", "wikitext103_paper", "wikitext2_strided_token_ppl", "wikitext_lm_eval")
        published = {value for row in rows for figures in evals.known(row).values() for value in figures.values()}
        assert numbers <= published


def test_an_empty_context_is_end_of_text() -> None:
    assert ends([Question((("", "a"),))], Bytes(), 0, 0) == [((256,), (97,))]


def test_a_limit_takes_a_sample_that_is_always_the_same() -> None:
    records = [{"n": n} for n in range(1000)]
    sample = [record["n"] for record in some(records, 50, False)]
    assert sample == [record["n"] for record in some(records, 50, False)] == sorted(set(sample))
    assert 400 < sum(sample) / 50 < 600
    assert some(records, 50, True) == records[:50]
    assert some(records, 5000, False) == records


def test_a_text_that_cannot_be_encoded_is_told_with_its_task(tmp_path: Path) -> None:
    path = write(tmp_path / "toy.jsonl", [{"text": "ab é ba"}])
    with pytest.raises(DataError, match=r"^lambada: the character 'é'"):
        evaluate(lively(), Chars(" ab"), ["lambada"], ALONE, data=path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"text": "a b"}\n{"text": \n', "damaged in record 2"),
        (b'{"text": "a b"}\n\n{"txt": "a"}\n', "record 2, has no 'text'"),
        (b"[1]\n", "damaged in record 1"),
        (b'{"text": "a\xff"}\n', "not UTF-8 at byte 11"),
        (b"<html></html>", "damaged in record 1"),
    ],
)
def test_a_damaged_file_is_told_with_the_place(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "lambada_test.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=told):
        sets.load("lambada", tmp_path)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"piqa/piqa_validation.jsonl does not exist; give the folder that has"):
        sets.load("piqa", tmp_path)


# Downloads: the made server offers a small set, whose row is changed to match


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """HellaSwag made small: what its row says is true of these records, and the cache is empty."""
    records = [sets.SETS["hellaswag"].keep(record) for record in stories(3)]
    row = sets.SETS["hellaswag"]
    changed = sets.Set(row.file, 3, sets.digest(records), row.urls, row.keep, "0aa3")
    monkeypatch.setitem(sets.SETS, "hellaswag", changed)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return [{**record, "label": str(record["label"]), "ind": 5} for record in records]  # as the Hub has them


PLACE = "/datasets/Rowan/hellaswag/resolve/refs/convert/parquet/default/validation/0000.parquet"


def test_a_set_is_downloaded_once_and_checked_again(
    small: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serve({PLACE: parquet(small)}) as site:
        monkeypatch.setenv("HF_ENDPOINT", site.url)
        first, again = sets.load("hellaswag"), sets.load("hellaswag")
        assert len(site.requests) == 1
    assert first == again
    assert first.verdict == ""
    assert first.records[0]["label"] == int(small[0]["label"])
    path = tmp_path / "tenfold" / "eval" / "hellaswag_val.jsonl"
    assert sets.load("hellaswag", path).verdict == "", "the same records in another form are the same set"
    path.write_text(path.read_text().replace("Words", "Verbs"))
    with pytest.raises(DataError, match=r"is not the set hellaswag: records with sha256 .*; delete it"):
        sets.load("hellaswag")
    assert "sha256" in sets.load("hellaswag", path).verdict, "a file that is given is used, and told"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(b"<html>blocked</html>", 200, "text/html"), "answered 200 with 20 bytes of an HTML page; not kept"),
        (Answer(b"", 404), "answered 404 Not Found"),
        (Answer(b"", 451), "answered 451 Unavailable For Legal Reasons"),
        (Answer(b"PAR1 not really"), "is not parquet, but begins with b'PAR1 not really'"),
        ("two", "2 records, where the published set has 3; not kept"),
        ("other", "records with sha256 [0-9a-f]{64}, where the published set has [0-9a-f]{64}; not kept"),
    ],
)
def test_another_answer_is_not_kept(
    small: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answer: Answer | str,
    told: str,
) -> None:
    """What came and from where is told, and which file would be right and where it belongs."""
    made = {"two": parquet(small[:2]), "other": parquet([*small[:2], {**small[2], "ctx": "else"}])}
    with serve({PLACE: answer if isinstance(answer, Answer) else made[answer]}) as site:
        monkeypatch.setenv("HF_ENDPOINT", site.url)
        with pytest.raises(DataError, match=told) as error:
            sets.load("hellaswag")
    path = tmp_path / "tenfold" / "eval" / "hellaswag_val.jsonl"
    assert str(error.value).startswith(f"cannot download the set hellaswag: {site.url}/datasets/Rowan")
    assert f"get hellaswag_val.jsonl (sha256 0aa3) some other way and save it as {path}" in str(error.value)
    assert not path.exists()


def test_the_second_publisher_is_asked_if_the_first_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    records, row = [{"text": "a b"}], sets.SETS["lambada"]
    with serve({"/there.jsonl": b'{"text": "a b"}\n'}) as site:
        urls = (site.url + "/gone.jsonl", site.url + "/there.jsonl")
        monkeypatch.setitem(sets.SETS, "lambada", sets.Set(row.file, 1, sets.digest(records), urls, row.keep))
        assert sets.load("lambada").records == records


def test_running_text_is_the_same_from_the_file_and_from_the_hub() -> None:
    keep, file = sets.SETS["wikitext2"].keep, b" \n = A = \n \n b c \n"
    rows = [{"text": ""}, {"text": " = A = \n"}, {"text": ""}, {"text": " b c \n"}]
    from_file = sets.parse(file, "x.raw", keep)
    assert from_file == sets.parse(parquet(rows), "x.parquet", keep)
    assert sets.written(from_file, "x.raw") == file


@pytest.mark.parametrize("name", ["lambada", "wikitext2"])
def test_the_published_sets_have_the_known_hash(name: str) -> None:
    if not (SHARED / "data" / sets.SETS[name].file).is_file():
        pytest.skip(f"{sets.SETS[name].file} is not here; TENFOLD_SHARED names a folder with data/ that has it")
    assert sets.load(name, SHARED / "data").verdict == ""


def test_every_task_has_a_set() -> None:
    assert {task.set for task in TASKS.values()} == set(sets.SETS)
    assert TINY.context == 32, "what the windows above were written for"
