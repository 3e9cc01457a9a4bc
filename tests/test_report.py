"""The ladder's report: its table, its page (opened in a browser), its picture and its file, for whole and partial
ladders."""

import ast
import json
import math
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from conftest import environment
from tenfold.ladder import figures, report
from tenfold.ladder.lessons import LESSONS
from tenfold.ladder.rungs import RUNGS

NAMES = [
    *("naive", "batch", "tf32", "bf16", "fp16", "compile-model", "compile-blocks", "sdpa", "flash", "cudnn", "fa3"),
    *("flex", "rows", "padded", "fused", "chunked", "torch-loss", "kept", "recompute", "refit", "fp8", "graphs"),
    *("autotune", "ddp"),
]
FIGURES = [
    *("reason", "spread", "step_seconds", "tokens_per_second", "speedup", "speedup_before", "mfu", "matrix_rate"),
    *("of_matrix_rate", "peak_memory_bytes", "first_step_seconds", "cache", "parity", "parity_with", "losses"),
]
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[2J\nnext"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def rung(name: str, seconds: float | None = None, status: str = "skipped", **known: Any) -> dict[str, Any]:
    """A row of ladder.json, made up; without seconds one that was not measured."""
    row: dict[str, Any] = dict.fromkeys(FIGURES)
    row |= {"name": name, "title": f"The rung {name}", "status": status, "change": f"speed.{name} yes"}
    row |= {"seconds_per_step": seconds, "tolerance": 2e-3}
    if seconds:
        row |= {"spread": [seconds * 0.97, seconds * 1.04], "step_seconds": [seconds * 3, *[seconds] * 9]}
        row |= {"tokens_per_second": 2048 / seconds, "speedup": 10 / seconds, "speedup_before": 1.25}
        row |= {"matrix_rate": 4.1e11, "of_matrix_rate": 4 / seconds, "peak_memory_bytes": int(3.2e9)}
        row |= {"first_step_seconds": seconds * 3, "cache": "cold", "parity": 3.14e-4, "parity_with": "naive"}
        row |= {"losses": [10.9, 10.1]}
    return row | known


def ladder(**known: Any) -> dict[str, Any]:
    """A ladder with rungs of every status: 9 of its 24 are measured."""
    made = {
        "naive": rung("naive", 10.0, "ok", parity=None, parity_with=None, cache=None, change=""),
        "bf16": rung("bf16", 5.0, "ok", cache=None),
        "fp16": rung("fp16", 40.0, "rejected", title=HOSTILE, reason=HOSTILE),
        "compile-model": rung("compile-model", 4.0, "ok", cache="cold", first_step_seconds=51.5),
        "compile-blocks": rung("compile-blocks", 4.1, "rejected", cache="warm"),
        "sdpa": rung("sdpa", 3.0, "ok"),
        "padded": rung("padded", 2.5, "ok", parity_with=HOSTILE, change=HOSTILE),
        "recompute": rung("recompute", 3.3, "failed", reason=f"its losses are wrong {HOSTILE}", losses=[math.nan]),
        "kept": rung("kept", 2.0, "ok", losses=[10.9, 9.75]),
        "graphs": rung("graphs", None, "failed", reason="out of memory"),
        "fa3": rung("fa3", reason=f"needs a card {HOSTILE}"),
    }
    return {
        "format": 1,
        "machine": {"name": "CPU", "kind": "cpu", "described": f"A CPU {HOSTILE}", "count": 2, "torch": "2.13.0+cpu"},
        "preset": "gpt2-124m",
        "date": "2026-11-30",
        "rows": 4,
        "length": 512,
        "tokens_per_step": 2048,
        "flops_per_token": 798_000_000,
        "rungs": [made.get(name) or rung(name, reason="this machine has none") for name in NAMES],
    } | known


MEASURED = 9
WHOLE = ladder()
FIRST = ladder(rungs=WHOLE["rungs"][:1])
EMPTY = ladder(rungs=[])
PARTIAL = {"whole": WHOLE, "half": ladder(rungs=WHOLE["rungs"][:8]), "first": FIRST, "empty": EMPTY}


def bars(page: str) -> int:
    """Bars in a page."""
    return len(re.findall(r'<rect class="bar"', page))


def opened(page: str, folder: Path, fragment: str = "") -> tuple[str, list[str], list[str]]:
    """A page opened in the browser: its document after all scripts, what it complained of, and what it asked for."""
    if BROWSER is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    folder.mkdir(exist_ok=True)
    (folder / "page.html").write_text(page)
    done = subprocess.run(
        [
            BROWSER,
            *("--headless", "--disable-gpu", "--dump-dom", "--enable-logging=stderr", "--v=0", "--no-first-run"),
            *("--virtual-time-budget=2000", "--disable-background-networking", "--disable-component-update"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={folder / 'net.json'}",
            f"{(folder / 'page.html').as_uri()}{fragment}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    net = json.loads((folder / "net.json").read_text())
    asked = [event["params"] for event in net["events"] if "initiator" in event.get("params", {})]
    # what the browser asks for by itself has no origin
    return (
        done.stdout,
        [line for line in done.stderr.splitlines() if "CONSOLE" in line],
        [params["url"] for params in asked if params["initiator"] != "not an origin"],
    )


def test_lessons_are_about_exactly_the_rungs() -> None:
    assert list(LESSONS) == NAMES == [rung.name for rung in RUNGS]


def test_every_lesson_says_all_five_things() -> None:
    for name, lesson in LESSONS.items():
        for words in (lesson.what, lesson.helps, lesson.hurts, lesson.accuracy):
            assert len(words) > 20, name
            assert words.endswith("."), name
        assert 1 <= len(re.findall(r"[.:;] ", lesson.what)) <= 7, name
        assert ast.parse(lesson.code).body, name


def test_the_code_of_the_attention_lessons_computes_attention() -> None:
    q, k, v = torch.randn(3, 2, 3, 200, 16)
    given = {"torch": torch, "F": F, "math": math, "q": q, "k": k, "v": v, "T": 200, "y": torch.empty_like(q)}
    exec(LESSONS["naive"].code, given)
    right = given["y"]
    for name in ("sdpa", "flash", "rows"):
        given["y"] = torch.zeros_like(q)
        exec(LESSONS[name].code, given)
        torch.testing.assert_close(given["y"], right, msg=name)


def test_the_code_of_the_loss_lessons_computes_the_loss() -> None:
    h, wte, targets = torch.randn(3000, 32), nn.Embedding(100, 32), torch.randint(100, (3000,))
    given = {"torch": torch, "nn": nn, "F": F, "h": h, "states": h, "wte": wte, "targets": targets}
    right = F.cross_entropy(h @ wte.weight.t(), targets, reduction="sum")
    for name in ("chunked", *(["torch-loss"] if hasattr(F, "linear_cross_entropy") else [])):
        exec(LESSONS[name].code, given)
        torch.testing.assert_close(given["loss"], right, msg=name)


def test_the_code_of_the_fp8_lesson_multiplies() -> None:
    given = {"torch": torch, "x": torch.randn(32, 64), "weight": torch.randn(16, 64)}
    exec(LESSONS["fp8"].code, given)
    right = given["x"] @ given["weight"].t()
    assert (given["y"].float() - right).abs().max() < 0.2 * right.std()


def test_the_page_opens_without_an_error_and_asks_for_nothing(tmp_path: Path) -> None:
    dom, complaints, requests = opened(report.html(WHOLE), tmp_path)
    assert (complaints, requests) == ([], [])
    assert bars(dom) == MEASURED == len(figures.measured(WHOLE))
    assert len(re.findall("<details", dom)) == len(NAMES)
    assert "<img" not in dom
    assert "hidden" not in re.search(r'<button id="all"[^>]*>', dom)[0]  # type: ignore[index]  # the script ran to here


def test_a_link_opens_the_fold_out_that_it_names(tmp_path: Path) -> None:
    dom, _, _ = opened(report.html(WHOLE), tmp_path, "#rung-3")
    assert re.findall(r'<details id="([^"]*)" open', dom) == ["rung-3"]


def test_an_error_and_a_request_would_be_seen(tmp_path: Path) -> None:
    page = report.html(FIRST)
    wrong = page.replace("</script>", "</script><script>missing()</script>")
    assert "missing" in "".join(opened(wrong, tmp_path / "error")[1])
    curious = re.sub(r"<meta http-equiv[^>]*>", "", page).replace("<main>", '<main><img src="http://127.0.0.1:9/a">')
    assert opened(curious, tmp_path / "request")[2] == ["http://127.0.0.1:9/a"]
    forbidden = page.replace("<main>", '<main><img src="http://127.0.0.1:9/a">')  # and the page itself forbids it
    _, complaints, requests = opened(forbidden, tmp_path / "forbidden")
    assert "Content Security Policy" in "".join(complaints)
    assert requests == []


class Links(HTMLParser):
    """Collects every tag and every address in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


@pytest.mark.parametrize("name", PARTIAL)
def test_a_page_holds_no_foreign_tag_or_address(name: str) -> None:
    page = report.html(PARTIAL[name])
    links = Links(page)
    assert "img" not in links.tags
    assert links.tags.count("script") == 1
    assert links.handlers == []
    assert all(address.startswith("#rung-") for address in links.addresses)
    assert "url(" not in page
    assert "@import" not in page
    assert "\x1b" not in page


@pytest.mark.parametrize("name", PARTIAL)
def test_a_page_has_a_bar_a_measured_rung_and_a_fold_out_a_rung(name: str) -> None:
    shown = PARTIAL[name]
    page = report.html(shown)
    assert bars(page) == sum(r["seconds_per_step"] is not None for r in shown["rungs"])
    assert page.count("<details") == len(shown["rungs"])
    assert page.count('class="curve ') == bars(page)
    assert ("No rung has been measured" in page) == (shown is EMPTY)


def test_bars_are_as_long_as_steps_take_and_one_far_longer_is_cut() -> None:
    page = report.html(WHOLE)
    widths = [float(w) for w in re.findall(r'<rect class="bar"[^>]*width="([\d.]+)%"', page)]
    times = [r["seconds_per_step"] for r in figures.measured(WHOLE)]
    assert page.count('class="cut"') == 1
    for width, seconds in zip(widths, times, strict=True):
        assert width == pytest.approx(min(100, 100 * seconds / 12), abs=0.01)  # 12: the longest taken takes 10


def test_the_page_tells_lessons_reasons_and_figures() -> None:
    page = report.html(WHOLE)
    assert "5.00 times as fast" in page
    assert "2,048 (4 rows of 512)" in page
    for told in ("this machine has none", "out of memory", "1040 ms a step", "51.5 s cold", "3e-4", "10.9000, 9.7500"):
        assert told in page, told
    assert "use_reentrant=False" in page


def test_the_page_says_that_speedups_are_no_ratios_only_where_they_are_not() -> None:
    assert "need not equal the ratios" not in report.html(WHOLE)
    other = ladder(rungs=[*WHOLE["rungs"][:3], {**WHOLE["rungs"][3], "speedup": 2.2}])
    assert "need not equal the ratios" in report.html(other)


def test_a_share_of_the_peak_is_shown_where_the_peak_is_known() -> None:
    known = ladder(rungs=[{**FIRST["rungs"][0], "mfu": 0.417}])
    assert "41.7%" in report.table(known)
    assert "MFU" in report.table(known)
    assert "MFU" not in report.table(FIRST)
    assert "40.0%" in report.table(FIRST)


def test_the_table_has_a_line_a_rung() -> None:
    lines = report.table(WHOLE).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines if line[0] != " "] == ["rung", *NAMES]
    kept = next(line for line in lines if line.startswith("kept"))
    assert re.split(r" +", kept) == [
        *("kept", "ok", "2.00", "s", "(1.94-2.08)", "1,024", "1.25", "5.00", "200.0%", "2.98", "GiB"),
        *("6.00", "s", "cold", "3e-4"),
    ]
    assert next(line for line in lines if line.startswith("ddp")).endswith(" this machine has none")
    after = lines[next(i for i, line in enumerate(lines) if line.startswith("recompute")) + 1]
    assert after.strip().startswith("its losses are wrong")
    assert "\x1b" not in "".join(lines)


def test_tables_of_partial_ladders() -> None:
    assert len(report.table(EMPTY).splitlines()) == 1
    assert [line.split()[0] for line in report.table(FIRST).splitlines()] == ["rung", "naive"]
    unmeasured = ladder(rungs=[rung("compile-blocks", reason="word " * 60)])
    lines = report.table(unmeasured).splitlines()
    assert lines[1].startswith("compile-blocks  skipped  word")
    assert len(lines) > 3
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("form", "value", "words"),
    [
        (figures.seconds, 14.37, "14.4 s"),
        (figures.seconds, 0.1041, "104 ms"),
        (figures.seconds, 0.00052, "0.520 ms"),
        (figures.seconds, 123.4, "123 s"),
        (figures.seconds, None, "-"),
        (figures.seconds, math.nan, "-"),
        (figures.rate, 1234567.8, "1,234,568"),
        (figures.rate, 83.94, "83.9"),
        (figures.memory, 5.9e9, "5.49 GiB"),
        (figures.memory, 3e6, "2.86 MiB"),
        (figures.relative, 8.4e-4, "8e-4"),
        (figures.relative, 0, "0"),
        (figures.share, 0.4171, "41.7%"),
        (figures.flops, 4.1e11, "410 GFLOP/s"),
        (figures.flops, 6.9e14, "690 TFLOP/s"),
        (figures.times, "1.5", "-"),
    ],
)
def test_how_figures_are_written(form: Any, value: Any, words: str) -> None:
    assert form(value) == words


@pytest.mark.parametrize("steps", [[14.0, 18.7], [0.0011], [50.0, 1.5], [600.0, 0.02]])
def test_a_logarithmic_axis_has_marks_and_holds_every_step(steps: list[float]) -> None:
    low, high = figures.extent([({}, steps)])
    marks = figures.ticks(low, high)
    assert 2 <= len(marks) <= 8
    assert all(low <= value <= high for value in [*steps, *marks])
    assert all(re.fullmatch(r"[\d.,]{1,5} m?s", figures.tick(mark)) for mark in marks)


def test_labels_keep_apart_and_inside() -> None:
    placed = figures.apart([0, 1, 2, 50, 99, 99.5], 10, 100)
    assert all(b - a >= 10 for a, b in pairwise(placed))
    assert placed[0] == 0
    assert placed[-1] <= 100


@pytest.mark.parametrize("name", PARTIAL)
def test_the_picture_opens_and_has_room_for_every_bar(name: str, tmp_path: Path) -> None:
    report.png(PARTIAL[name], tmp_path / "ladder.png")
    with Image.open(tmp_path / "ladder.png") as picture:
        picture.load()
        width, height = picture.size
    assert width == report.INCHES * report.DPI == 1500
    count = max(report.FEWEST, len(figures.measured(PARTIAL[name])))
    assert height == pytest.approx(report.DPI * (report.ROW * count + report.CURVES + report.MARGIN), abs=1)
    assert not list(tmp_path.glob("*.partial"))


def test_all_three_are_written(tmp_path: Path) -> None:
    lines = report.write(WHOLE, folder := tmp_path / "new")
    assert lines == [str(folder / f"ladder.{kind}") for kind in ("json", "html", "png")]
    assert all(Path(line).stat().st_size > 1000 for line in lines)
    text = (folder / "ladder.json").read_text()
    assert text.startswith('{\n  "format": 1,\n')
    assert "NaN" not in text  # which is no JSON
    read = json.loads(text)
    assert read["rungs"][NAMES.index("recompute")]["losses"] == [None]
    assert read["rungs"][NAMES.index("kept")] == WHOLE["rungs"][NAMES.index("kept")]
    assert (folder / "ladder.html").read_text() == report.html(read)


def test_without_matplotlib_the_rest_is_written_and_torch_is_never_needed(tmp_path: Path) -> None:
    (tmp_path / "given.json").write_text(json.dumps(FIRST))
    program = """
import json, sys
from pathlib import Path
sys.modules["matplotlib"] = None
from tenfold.errors import ConfigError
from tenfold.ladder import report
ladder = json.loads(Path("given.json").read_text())
print(report.write(ladder, Path())[-1])
try:
    report.png(ladder, Path("other.png"))
except ConfigError as error:
    print(error)
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told, raised = done.stdout.splitlines()
    assert told.startswith("ladder.png needs matplotlib")
    assert 'pip install "tenfold[plots]"' in told
    assert raised == told.replace("ladder.png", "other.png", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.json", "ladder.html", "ladder.json"]
