"""The page of `tenfold watch` in a real browser: every view beside a real server, with what its files hold, by pointer
and by keyboard, on wide and on narrow screens; live beside a real training."""

import base64
import contextlib
import hashlib
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from conftest import TINY_OPTIONS, environment, words
from tenfold import filmfile, rundir
from tenfold.run import preset, to_dict
from tenfold.watch.report import page as page_of

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
]

HOSTILE = "<img src=x onerror=alert(1)>"
MARKUP = "</pre><script>document.body.dataset.hacked = 1</script>"
LONG = "x" * 90 + "-end"
TOKENS, LAYERS, HEADS = 12, 2, 3
STEPS = (0, 10, 40)
SCORES = ("previous", "first", "same", "induction", "entropy")
DATASET = {"name": "HuggingFaceFW/fineweb-edu", "train_tokens": 9_900_000_000}


def loss_at(step: int) -> float:
    """A loss that falls as in a training."""
    return 3.2 + 7 * math.exp(-step / 60)


def records(last: int) -> list[dict[str, Any]]:
    """A training's records as far as a step."""
    made: list[dict[str, Any]] = [{"step": 0, "event": "start"}]
    for step in range(0, last + 1, 10):
        made.append({"step": step, "loss": loss_at(step), "lr": 1e-4, "grad_norm": 1.5, "tokens_per_second": 12_345.0})
        made[-1] |= {"data_wait": 0.01, "memory_bytes": 2_000_000_000, "peak_memory_bytes": 3_000_000_000}
        if step % 100 == 0:
            made.append({"step": step, "val_loss": loss_at(step) + 0.01, "place": "inside"})
            made.append({"step": step, "hellaswag_acc_norm": 0.26 + step / 1e4, "hellaswag_acc_norm_error": 0.0045})
    made[:] = [{**one, "loss": None} if one["step"] == 60 else one for one in made]
    made.append({"step": last // 2, "event": "sign", "sign": "spike", "message": f"warning: loss 9.9 {MARKUP}"})
    made.sort(key=lambda record: record["step"])
    return [{**record, "time": 1.7e9 + 2 * record["step"]} for record in made]


def make_run(root: Path, name: str, last: int = 400, lr: float = 6e-4) -> Path:
    """A run folder with all that the page shows."""
    run = preset("gpt2-124m")
    run = replace(run, name=name, recipe=replace(run.recipe, lr=lr))
    rundir.write_run(root / name, {**to_dict(run), "dataset": DATASET, "executed": {"precision": "bf16"}})
    (root / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records(last)))
    (root / name / "samples").mkdir()
    for step in (0, 200):
        (root / name / "samples" / f"step-{step:06d}.txt").write_text(
            f"first at {step} {MARKUP}\n===== sample 2 =====\nsecond at {step}\n"
        )
    return root / name


def map_of(step: int, layer: int, head: int, text: int) -> np.ndarray:
    """A head's map: what it attends to moves with the step, the layer, the head and the text."""
    found = np.zeros((TOKENS, TOKENS), np.float32)
    for query in range(TOKENS):
        found[query, (step // 10 + layer * HEADS + head + text) % (query + 1)] = 1
    return found


def add_film(path: Path, steps: tuple[int, ...]) -> None:
    """A film with these snapshots in a run folder."""
    tokens = [f" w{i}" for i in range(TOKENS - 1)] + [f"<b>{MARKUP}"]
    texts = [(name, list(range(TOKENS)), tokens) for name in ("beginning", "repeated")]
    filmfile.begin(path, filmfile.described(LAYERS, HEADS, texts))
    for step in steps:
        maps = [
            np.array([[map_of(step, layer, head, text) for head in range(HEADS)] for layer in range(LAYERS)])
            for text in range(2)
        ]
        losses = [np.array([math.nan, *(5 - step / 10 + i / 100 for i in range(1, TOKENS))], np.float32)] * 2
        scores = {
            key: [[round((layer * HEADS + head + step) / 100, 4) for head in range(HEADS)] for layer in range(LAYERS)]
            for key in SCORES
        }
        filmfile.write(path, step, maps, losses, scores)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every kind."""
    root = tmp_path_factory.mktemp("watched") / "runs"
    add_film(make_run(root, "right"), STEPS)
    make_run(root, "other", 200, lr=3e-3)
    add_film(make_run(root, HOSTILE), STEPS[-1:])
    make_run(root, LONG)
    rundir.write_run(root / "begun", to_dict(preset("demo")))
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{")
    (root.parent / "ladders" / "here").mkdir(parents=True)
    (root.parent / "ladders" / "here" / "ladder.html").write_text("<!doctype html><title>l</title><h1>A ladder</h1>")
    return root


@contextlib.contextmanager
def served(root: Path, port: int = 0, *options: str) -> Iterator[str]:
    """`tenfold watch` of a folder; where its page is."""
    command = [sys.executable, "-m", "tenfold", "watch", str(root), "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stdout is not None
        yield re.search(r"http://\S+", process.stdout.readline())[0]  # type: ignore[index]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        process.stdout.close()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


Open = Callable[..., Any]


@pytest.fixture
def tab(browser: Any) -> Iterator[Open]:
    """Opens addresses; in the end nothing may have been said on the console, nor any markup of the runs have run."""
    said: list[str] = []
    contexts = []

    def opened(url: str, width: int = 1280, scheme: str = "light", expects: str = "") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto(url)
        page.wait_for_selector("#main:not([aria-busy]) .view")
        return page

    yield opened
    for context in contexts:
        for page in context.pages:
            assert page.evaluate("document.body.dataset.hacked") is None
        context.close()
    assert said == []


def legend(page: Any, title: str) -> dict[str, str]:
    """What the legend of a chart says."""
    chart = page.locator("figure.chart").filter(has=page.locator(f".title:text-is('{title}')")).first
    return {
        item.locator(".name").inner_text(): item.locator(".value").inner_text()
        for item in chart.locator(".legend li").all()
    }


def facts(page: Any) -> dict[str, str]:
    """What stands above the curves of a run."""
    return dict(
        zip(page.locator(".facts dt").all_inner_texts(), page.locator(".facts dd").all_inner_texts(), strict=True)
    )


def step_shown(page: Any) -> int:
    """The step that a run's page says it is at."""
    return int(facts(page)["step"].split(" of ")[0].replace(",", ""))


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true; playwright's own way to wait would need the page to allow eval."""
    deadline = time.monotonic() + 20
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def picture(page: Any, selector: str) -> str:
    """A fingerprint of what a canvas shows."""
    return hashlib.sha256(page.locator(selector).evaluate("canvas => canvas.toDataURL()").encode()).hexdigest()


def test_the_overview_shows_what_the_files_hold(address: str, tab: Open) -> None:
    page = tab(address)
    row = page.locator("tr", has=page.get_by_role("link", name="right", exact=True))
    text = row.inner_text()
    for wanted in ("crashed", "400 / 19,073", f"{loss_at(400):.4f}", f"{loss_at(400) + 0.01:.4f}", "12,345", "1 sign"):
        assert wanted in text, wanted
    assert "inside the band" in text
    assert page.get_by_role("link", name=HOSTILE).count() == 1
    assert "damaged" in page.locator("tr", has_text="unreadable").inner_text()
    assert "0 / 800" in page.locator("tr", has_text="begun").inner_text()

    compare = page.locator(".bar a")
    assert compare.get_attribute("aria-disabled") == "true"
    page.get_by_label("compare right").check()
    page.get_by_label("compare other").check()
    compare.click()
    page.wait_for_selector("text=2 runs compared")
    differing = page.locator(".differing tbody tr").all_inner_texts()
    assert [re.split(r"\s+", line) for line in differing] == [["recipe.lr", "6e-4", "0.003"]]
    assert legend(page, "Validation loss") == {
        "right": f"{loss_at(400) + 0.01:.4f}",
        "other": f"{loss_at(200) + 0.01:.4f}",
    }


def test_a_ladder_is_shown_in_the_frame_of_the_page(address: str, tab: Open) -> None:
    page = tab(address)
    page.get_by_role("link", name="here", exact=True).click()
    assert page.frame_locator("iframe").locator("h1").inner_text() == "A ladder"
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector("table.runs")


def test_an_empty_folder_says_what_to_do(tmp_path: Path, tab: Open) -> None:
    with served(tmp_path) as url:
        page = tab(url)
        assert "tenfold train demo" in page.locator(".empty").inner_text()


def test_what_is_filtered_or_gone_is_said_and_not_compared(tmp_path: Path, tab: Open) -> None:
    names = [f"run-{i}" for i in range(9)]
    for name in names:
        make_run(tmp_path, name, 20)
    with served(tmp_path) as url:
        page = tab(url)
        for name in names[:3]:
            page.get_by_label(f"compare {name}").check()
        search = page.get_by_role("searchbox", name="filter runs by name")
        search.fill("run-2")
        assert page.locator("tbody tr").count() == 1
        search.fill("other")
        page.wait_for_selector("text=No run has this in its name.")
        search.fill("")
        page.wait_for_selector(".bar a:text-is('Compare 3 runs')")
        shutil.rmtree(tmp_path / "run-1")
        page.wait_for_selector(".bar a:text-is('Compare 2 runs')")
        assert page.locator(".bar a").get_attribute("href") == "#/compare/run-0,run-2"
        assert page.get_by_text("No run has this in its name.").is_hidden()


def test_a_run_shows_what_its_files_hold(address: str, tab: Open) -> None:
    page = tab(f"{address}#/run/right")
    said = facts(page)
    assert said["step"] == "400 of 19,073"
    assert said["training loss"] == f"{loss_at(400):.4f} nats"
    assert said["validation loss"] == f"{loss_at(400) + 0.01:.4f} nats"
    assert said["MFU"] == "unknown"
    assert said["against right runs"] == "✓ inside the band"
    until(page, "document.querySelectorAll('.chart svg path.line').length > 6")
    assert legend(page, "Loss")["validation"] == f"{loss_at(400) + 0.01:.4f}"
    assert "to" in legend(page, "Loss")["right runs"]
    assert legend(page, "Memory") == {"now": "2 GB", "most so far": "3 GB"}
    assert legend(page, "HellaSwag") == {"± standard error": "0.3 ± 0.0045"}
    assert page.locator("text.level").all_text_contents() == ["GPT-2 124M 0.2955", "chance 0.25"]
    assert page.get_by_text("Loss scale").is_hidden()

    plot = page.get_by_role("slider", name="Loss: crosshair")
    plot.focus()
    page.keyboard.press("Home")
    assert legend(page, "Loss")["training"] == f"{loss_at(0):.4f}"
    assert legend(page, "Learning rate") == {"learning rate": "1e-4"}
    page.keyboard.press("ArrowRight")
    assert legend(page, "Loss")["training"] == f"{loss_at(10):.4f}"
    assert f"training {loss_at(10):.4f}" in plot.get_attribute("aria-valuetext")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert legend(page, "Loss")["training"] == "not finite"
    page.keyboard.press("Escape")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 50)
    assert legend(page, "Loss")["training"] == f"{loss_at(400):.4f}"

    for axis, mark in (("tokens", "M"), ("time", "min"), ("log", "10 s"), ("steps", "100")):
        page.get_by_text(axis, exact=True).first.click()
        until(page, f"document.querySelector('.chart svg').textContent.includes('{mark}')")

    assert MARKUP in page.locator(".events").first.inner_text()
    assert page.locator(".samples h3").all_inner_texts() == ["step 0", "step 200"]
    assert [text for text in page.locator(".samples pre:visible").all_inner_texts() if text] == [
        f"first at {step} {MARKUP}" for step in (0, 200)
    ]
    page.locator(".choice span:text-is('2')").click()
    assert page.locator(".samples pre:visible").all_inner_texts() == ["second at 0", "second at 200"]
    assert page.get_by_role("row", name="weight decay 0.1").count() == 1
    assert page.get_by_role("row", name="precision auto bf16").count() == 1


def labels(page: Any, title: str, kind: str) -> list[str]:
    """What stands beside an axis of a chart, "x" or "y"."""
    chart = page.locator("figure.chart").filter(has=page.locator(f".title:text-is('{title}')")).first
    return list(chart.locator(f"text.{kind}").all_text_contents())


def test_a_run_of_one_step_and_one_of_no_finite_value(tmp_path: Path, tab: Open) -> None:
    """One point is seen, and a place between two steps is none; what cannot be drawn is said."""
    for name, last in (("one", 0), ("three", 20), ("nothing", 30)):
        make_run(tmp_path, name, last)
    file = tmp_path / "nothing" / "metrics.jsonl"
    file.write_text(re.sub(r'"(loss|grad_norm)": [^,]*', r'"\1": NaN', file.read_text()))
    (tmp_path / "three" / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "loss": 3.0 - step, "time": 1e9 + step}) + "\n" for step in range(3))
    )
    with served(tmp_path) as url:
        page = tab(f"{url}#/run/one")
        until(page, "document.querySelectorAll('.chart circle.dot').length > 6")
        assert labels(page, "Loss", "x") == ["0 steps", "1"]
        assert legend(page, "Loss")["right runs"] == "none"  # none is known of the first steps
        page.goto(f"{url}#/run/three")
        page.wait_for_selector("dd:text-is('2 of 19,073')")
        until(page, "document.querySelector('.chart path.line')")
        assert labels(page, "Loss", "x") == ["0 steps", "1", "2"]
        page.goto(f"{url}#/run/nothing")
        page.wait_for_selector("dd:text-is('30 of 19,073')")
        until(page, "document.querySelectorAll('text.none').length > 1")
        assert labels(page, "Gradient norm", "none") == ["no finite value"]
        assert labels(page, "Gradient norm", "y") == []
        assert page.get_by_text("1 other event", exact=True).count() == 1


def test_short_runs_beside_long_ones(tmp_path: Path, tab: Open) -> None:
    """A close view is not that of the first losses of the shortest run; no two of fifteen runs look alike."""
    names = [f"run-{i:02d}" for i in range(15)]
    for name in names:
        make_run(tmp_path, name, 2000 if name == names[0] else 40)
    with served(tmp_path) as url:
        page = tab(f"{url}#/compare/{','.join(names)}")
        until(page, "document.querySelector('.chart path.line')")
        assert max(map(float, labels(page, "Training loss", "y"))) < loss_at(20)
        looks = page.locator(".key .swatch").evaluate_all("all => all.map((one) => one.className + one.style.color)")
        assert len(set(looks)) == 15


def test_a_page_is_loaded_and_drawn_once(address: str, browser: Any) -> None:
    """A script, a style and an icon, then the figures; and each chart once, not again for its own layout."""
    page = browser.new_page()
    page.add_init_script(
        "window.drawn = 0; const put = Element.prototype.replaceChildren; Element.prototype.replaceChildren = "
        "function (...all) { window.drawn += this.matches('.plot > svg'); put.apply(this, all); };"
    )
    page.goto(f"{address}#/run/right")
    until(page, "document.querySelectorAll('.chart svg path.line').length > 6")
    page.wait_for_timeout(500)
    assert page.evaluate("window.drawn") == page.locator(".plot > svg:visible").count()
    loaded = page.evaluate("performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname)")
    assert sorted(one for one in loaded if not one.startswith("/api/")) == [
        "/page/icon.svg",
        "/page/main.js",
        "/page/style.css",
    ]
    page.close()


def test_the_film_shows_the_maps_of_the_files(address: str, tab: Open) -> None:
    page = tab(f"{address}#/film/right")
    says = page.locator(".says")

    def expect(step: int, layer: int, head: int, text: int, query: int) -> None:
        key = int(map_of(step, layer, head, text)[query].argmax())
        until(page, f"document.querySelector('.lens canvas').dataset.map == '{text}/{step}/{layer * HEADS + head}'")
        assert f"({key}) 1.00" in says.inner_text()
        assert page.locator("h2", has_text=f"Layer {layer}, head {head}").count() == 1

    last = TOKENS - 1
    expect(40, LAYERS - 1, HEADS - 1, 1, last)  # the head with the most induction, on the text that repeats itself
    before = picture(page, ".sheet canvas"), picture(page, ".lens canvas")
    slider = page.get_by_role("slider", name="snapshot")
    slider.fill("1")
    expect(10, LAYERS - 1, HEADS - 1, 1, last)
    assert page.locator(".where").inner_text() == "step 10"
    after = picture(page, ".sheet canvas"), picture(page, ".lens canvas")
    assert before[0] != after[0]
    assert before[1] != after[1]
    for place in ("0", "2", "1", "0", "2"):
        slider.fill(place)
        until(page, f"document.querySelector('.sheet canvas').dataset.step == {STEPS[int(place)]}")
        assert float(page.locator(".sheet canvas").get_attribute("data-frame-ms")) < 50

    page.get_by_role("button", name="layer 0, head 1").click()
    expect(40, 0, 1, 1, last)
    page.keyboard.press("ArrowDown")
    expect(40, 1, 1, 1, last)
    page.get_by_role("slider", name="token that attends").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(40, 1, 1, 1, 1)
    page.get_by_text("beginning").click()
    expect(40, 1, 1, 0, last)
    tokens = page.locator(".tokens .token")
    assert tokens.nth(3).get_attribute("aria-label") == f"w3: loss {1 + 3 / 100:.2f} nats"
    assert tokens.nth(0).get_attribute("aria-label") == "w0: nothing before it"
    assert MARKUP in tokens.nth(last).inner_text()

    assert legend(page, "Induction") == {"layer 1, head 1": "0.440"}
    page.get_by_role("button", name="highest here: layer 1, head 2, 0.450").first.click()
    expect(40, 1, 2, 0, last)
    slider.fill("0")
    page.get_by_role("button", name="Play").click()
    until(page, "document.querySelector('.where').textContent == 'step 40'")
    page.wait_for_selector("button:text-is('Play')")


def test_a_film_of_one_snapshot(address: str, tab: Open) -> None:
    page = tab(f"{address}#/film/{quote(HOSTILE)}")
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator(".where").inner_text() == "step 40"
    assert page.get_by_role("button", name="Play").count() == 0
    assert legend(page, "Induction") == {"layer 1, head 2": "0.450"}


VIEWS = (
    "",
    "#/run/right",
    f"#/run/{quote(HOSTILE)}",
    f"#/run/{LONG}",
    "#/run/begun",
    "#/compare/right,other",
    "#/film/right",
)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_every_page_can_be_used_by_everybody(address: str, tab: Open, view: str, width: int, scheme: str) -> None:
    """No serious finding of axe, and nothing wider than the screen."""
    page = tab(address + view, width, scheme)
    page.wait_for_timeout(300)
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_what_is_not_there_is_said(address: str, tab: Open, browser: Any) -> None:
    page = browser.new_page()  # a browser itself logs every 404
    page.goto(f"{address}#/run/nope")
    page.wait_for_selector("text=no run 'nope'")
    page.goto(f"{address}#/nowhere")
    page.wait_for_selector("text=There is no such page here.")
    page.get_by_role("link", name="All runs").click()
    page.wait_for_selector("table.runs")
    page.close()


def test_a_server_that_went_away_comes_back(tmp_path: Path, browser: Any) -> None:
    """Points written meanwhile arrive; a resume takes back what came after it; a folder that is gone is said to be."""
    path = make_run(tmp_path / "runs", "one", 100)
    with served(tmp_path / "runs") as url:
        page = browser.new_page()  # a browser itself logs every failed request
        page.goto(f"{url}#/run/one")
        page.wait_for_selector("dd:text-is('100 of 19,073')")
    page.wait_for_selector("text=The server does not answer")
    rundir.append(path, {"step": 110, "loss": 1.25})
    with served(tmp_path / "runs", int(url.rsplit(":", 1)[1].strip("/"))):
        page.wait_for_selector("dd:text-is('110 of 19,073')", timeout=20_000)
        assert page.locator("#notice").is_hidden()
        assert legend(page, "Loss")["training"] == "1.2500"
        rundir.append(path, {"step": 50, "event": "resume"})
        page.wait_for_selector("dd:text-is('50 of 19,073')")
        until(page, f"document.querySelector('.legend .value').textContent == '{loss_at(40):.4f}'")
        shutil.rmtree(path)
        page.wait_for_selector("text=The folder of this run is gone")
        make_run(tmp_path / "runs", "one", 200)
        page.wait_for_selector("dd:text-is('200 of 19,073')")
        assert page.get_by_text("The folder of this run is gone").count() == 0
    page.close()


def test_a_new_token_is_asked_for(tmp_path: Path, browser: Any) -> None:
    """On another address each start has a token of its own: a page that stays open says so until it is known."""
    make_run(tmp_path, "one", 100)

    def here(url: str) -> str:
        return re.sub("//[^:]*:", "//127.0.0.1:", url)

    context = browser.new_context()
    page = context.new_page()
    with served(tmp_path, 0, "--host", "0.0.0.0") as url:
        page.goto(f"{here(url)}#/run/one")
        page.wait_for_selector("dd:text-is('100 of 19,073')")
    with served(tmp_path, int(re.findall(r":(\d+)/", url)[0]), "--host", "0.0.0.0") as url:
        page.wait_for_selector("text=The server refuses: this needs the token", timeout=20_000)
        other = context.new_page()
        other.goto(here(url))
        other.wait_for_selector("table.runs")
        page.wait_for_selector("#notice", state="hidden")
    context.close()


def test_live_beside_a_training(tmp_path: Path, tab: Open) -> None:
    """A run appears in the list, its points arrive without a jump of the page, and its checkpoint writes text."""
    (tmp_path / "words.txt").write_text(words(12_000))
    (tmp_path / "runs").mkdir()
    options = [
        *TINY_OPTIONS,
        "--name",
        "tiny",
        "--data",
        "words.txt",
        "--recipe.steps",
        "20000",
        "--cadence.save",
        "100",
    ]
    with served(tmp_path / "runs") as url:
        page = tab(url)
        command = [sys.executable, "-m", "tenfold", "train", "demo", *options]
        training = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            page.get_by_role("link", name="tiny").click(timeout=60_000)
            page.wait_for_selector(".facts")
            page.evaluate(
                "window.jumps = 0; new PerformanceObserver((list) => list.getEntries().forEach((one) => "
                "{ window.jumps += one.value; })).observe({ type: 'layout-shift' })"
            )
            written = 0
            while written < 150:
                written = max(record["step"] for record in rundir.read_metrics(tmp_path / "runs" / "tiny"))
                page.wait_for_timeout(2000)  # in which what was written must have arrived
                assert step_shown(page) >= written
            assert page.evaluate("window.jumps") < 0.05
        finally:
            training.terminate()
            assert training.wait(60) == 75
        page.wait_for_selector(".state-stopped")
        last = max(record["step"] for record in rundir.read_metrics(tmp_path / "runs" / "tiny"))
        assert step_shown(page) == last

        page.get_by_role("link", name="Playground").click()
        page.get_by_label("prompt").fill("ba ke")
        page.get_by_label("tokens").fill("30")
        page.get_by_label("beside it").select_option(index=2)
        page.get_by_role("button", name="Generate").click()
        page.wait_for_selector(".pane >> nth=1 >> text=30 tokens in", timeout=60_000)
        page.wait_for_selector(".pane >> nth=0 >> text=30 tokens in", timeout=60_000)
        tokens = page.locator(".pane").first.locator(".token")
        assert tokens.count() == 30 + len("ba ke")
        assert page.locator(".pane").first.locator(".token.given").count() == len("ba ke")
        tokens.nth(9).hover()
        assert page.locator(".others:visible li").count() == 10
        tokens.nth(9).focus()
        page.keyboard.press("ArrowRight")
        told = tokens.nth(10).get_attribute("aria-label").split(": ")[-1]
        assert told in page.locator(".others:visible p").inner_text()
        found = axe.Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []

        page.get_by_label("tokens").fill("2000")
        page.get_by_role("button", name="Generate").click()
        until(page, "document.querySelectorAll('.token').length > 20")
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector("text=stopped after")


def test_the_page_is_a_report_of_its_own(folder: Path, address: str, tmp_path: Path, tab: Open) -> None:
    """Joined into one file, with its data in it, it shows the same without any server."""

    def asked(path: str) -> Any:
        with urllib.request.urlopen(f"{address}api/{path}") as answer:
            return json.load(answer)

    film = asked("runs/right/film")
    frames = {step: (folder / "right" / "film" / f"step-{step:06d}.bin").read_bytes() for step in STEPS}
    report = {
        "format": 1,
        "made": "2026-01-31",
        "runs": {"runs": [one for one in asked("runs")["runs"] if one["name"] == "right"]},
        "run": {"right": asked("runs/right")},
        "series": {"right": asked("runs/right/series")},
        "samples": {"right": {step: asked(f"runs/right/samples/{step}")["texts"] for step in (0, 200)}},
        "film": {"right": film},
        "frames": {"right": {step: base64.b64encode(content).decode() for step, content in frames.items()}},
    }
    (tmp_path / "report.html").write_text(page_of(report))
    page = tab((tmp_path / "report.html").as_uri())
    assert facts(page)["training loss"] == f"{loss_at(400):.4f} nats"
    assert page.locator("#folder").inner_text() == "report of 2026-01-31"
    assert [text for text in page.locator(".samples pre:visible").all_inner_texts() if text][
        1
    ] == f"first at 200 {MARKUP}"
    assert page.get_by_role("link", name="Playground").count() == 0
    page.get_by_role("link", name="Attention film").click()
    key = int(map_of(STEPS[-1], LAYERS - 1, HEADS - 1, 1)[TOKENS - 1].argmax())
    page.wait_for_selector(f"text=({key}) 1.00")
