"""`tenfold report`: one file with a run's page in it, what it holds, and that it works alone in a real browser."""

import json
import math
import re
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import Tenfold
from tenfold import filmfile, rundir
from tenfold.cli.entry import call
from tenfold.errors import CheckpointError, ConfigError
from tenfold.run import preset, to_dict
from tenfold.watch import picture, report

pytestmark = pytest.mark.timeout(120)

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "</script><!--<img src=x onerror=alert(1)>"
MARKUP = f"{HOSTILE}<script>document.body.dataset.hacked = 1</script>"
STEPS = (0, 1, 2, 3, 5, 8, 13, 20, 32, 50, 80, 126, 200, 316)
TOKENS, LAYERS, HEADS = 12, 2, 2
DATASET = {"name": "HuggingFaceFW/fineweb-edu", "train_tokens": 9_900_000_000}


def loss_at(step: int) -> float:
    """A loss that falls and wavers as in a training."""
    return 3.2 + 7 * math.exp(-step / 60) + 0.05 * math.sin(step)


def made(path: Path, last: int = 320, every: int = 10) -> Path:
    """A run folder with figures, events and samples."""
    facts = {"executed": {"precision": "bf16"}, "dataset": DATASET}
    rundir.write_run(path, {**to_dict(preset("gpt2-124m")), "name": "right", **facts})
    records: list[dict[str, Any]] = [{"step": 0, "event": "start"}]
    for step in range(0, last + 1, every):
        records.append({"step": step, "loss": loss_at(step), "lr": 6e-4 * min(1, step / 100)})
        if step % 80 == 0:
            records.append({"step": step, "val_loss": loss_at(step) + 0.01, "place": "inside"})
    records.append({"step": last, "event": "sign", "sign": "spike", "message": MARKUP})
    (path / "metrics.jsonl").write_text(
        "".join(json.dumps({**one, "time": 1.7e9 + one["step"]}) + "\n" for one in records)
    )
    (path / "samples").mkdir()
    for step in (0, 160):
        (path / "samples" / f"step-{step:06d}.txt").write_text(
            f"first at {step} {MARKUP}\n===== sample 2 =====\nsecond\n"
        )
    return path


def with_film(path: Path, steps: tuple[int, ...] = STEPS) -> Path:
    """The same run folder with a film, in which each head looks at another token at each snapshot."""
    tokens = [f" w{i}" for i in range(TOKENS - 1)] + [HOSTILE]
    filmfile.begin(path, filmfile.described(LAYERS, HEADS, [("text", list(range(TOKENS)), tokens)]))
    for place, step in enumerate(steps):
        maps = np.zeros((LAYERS, HEADS, TOKENS, TOKENS), np.float32)
        for query in range(TOKENS):
            maps[:, :, query, place % (query + 1)] = 1
        losses = np.array([math.nan] + [1.0] * (TOKENS - 1), np.float32)
        names = ("previous", "first", "same", "induction", "entropy")
        filmfile.write(path, step, [maps], [losses], {name: [[0.5] * HEADS] * LAYERS for name in names})
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a film, in runs/ of the current folder."""
    monkeypatch.chdir(tmp_path)
    return with_film(made(Path("runs/right")))


class Parts(HTMLParser):
    """What a browser makes of a file: its elements with their attributes, and the text of scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.comments: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style") and data.strip():
            self.texts.append((self.elements[-1][1].get("type") or "css", data))

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def held(path: Path) -> Any:
    """The data in a report."""
    return json.loads(dict(Parts(path).texts)["application/json"])


# --- what it holds ---


def test_it_holds_what_the_files_hold(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["report", "right"]) == 0
    out = run / "report.html"
    size = sum(report.inlined(path.stat().st_size) for path in (run / "film").glob("*.bin"))
    assert size < 10**5
    told = f"{out}: {math.ceil(out.stat().st_size / 10**5) / 10:g} MB, film: 14 of 14 snapshots, 0.1 MB\n"
    assert capsys.readouterr().out == told

    found = held(out)
    assert found["format"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["made"])
    (summary,) = found["runs"]["runs"]
    assert (summary["name"], summary["step"], summary["place"]) == ("right", 320, "inside")
    assert found["run"]["right"]["run"] == json.loads((run / "run.json").read_text())
    assert found["run"]["right"]["curve"]["name"] == "fineweb-edu-124m"
    figures = found["series"]["right"]["series"]
    assert figures["loss"] == [[s, 1.7e9 + s, pytest.approx(loss_at(s), rel=1e-6)] for s in range(0, 321, 10)]
    assert found["samples"]["right"] == {str(s): [f"first at {s} {MARKUP}", "second"] for s in (0, 160)}
    assert found["film"]["right"]["steps"] == list(STEPS)
    assert [one["step"] for one in found["film"]["right"]["scores"]] == list(STEPS)
    for step in STEPS:
        file = run / "film" / f"step-{step:06d}.bin"
        assert b64decode(found["frames"]["right"][str(step)]) == file.read_bytes()


def test_where_the_run_lay_is_not_told(run: Path) -> None:
    call(["report", "right"])
    assert str(Path.cwd()) not in (run / "report.html").read_text()


def test_no_text_of_a_run_leaves_its_place(tmp_path: Path) -> None:
    path = with_film(made(tmp_path / HOSTILE.replace("/", "\u2215")))
    call(["report", str(path), "--out", str(tmp_path / "out.html")])
    parts = Parts(tmp_path / "out.html")
    assert parts.comments == []
    assert [tag for tag, _ in parts.elements if tag in ("script", "img")] == ["script", "script"]
    assert [kind for kind, _ in parts.texts] == ["css", "application/json", "module"]
    assert list(held(tmp_path / "out.html")["run"]) == [path.name]


def test_a_browser_may_run_what_is_in_it_and_nothing_else(run: Path) -> None:
    call(["report", "right"])
    parts = Parts(run / "report.html")
    texts = dict(parts.texts)
    (policy,) = [a["content"] for tag, a in parts.elements if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": report.hashed(texts["module"]),
        "style-src": report.hashed(texts["css"]),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    addresses = [a[key] or "" for _, a in parts.elements for key in ("src", "href") if key in a]
    assert [a.partition(",")[0] for a in addresses] == ["data:image/svg+xml;base64", "#main", "#/"]


def test_the_modules_fit_into_one() -> None:
    """Each is there once, after those that it imports; and no name of one is that of another."""
    joined = report.joined(report.PAGE)
    assert not re.search(r"^(import|export)\b|</script|<!--", joined, re.M | re.I)
    names: list[str] = []
    for path in report.PAGE.glob("*.js"):
        text = path.read_text()
        begin = text.partition("\n")[0]
        assert joined.count(begin) == 1, path
        declared = r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+|[\[{][^=]*) ?[=({]"
        mine = [name for found in re.findall(declared, text, re.M) for name in re.findall(r"\w+", found)]
        names += mine
        for needed in report.IMPORT.findall(text):
            assert joined.index((report.PAGE / needed).read_text().partition("\n")[0]) < joined.index(begin)
    assert len(names) > 50
    assert sorted(names) == sorted(set(names))


def test_a_link_that_leads_out_of_the_run_is_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret of this machine")
    (run / "samples" / "step-000100.txt").symlink_to(tmp_path / "secret")
    (run / "film" / "step-000300.bin").symlink_to(tmp_path / "secret")
    call(["report", "right"])
    found = held(run / "report.html")
    assert sorted(found["samples"]["right"]) == ["0", "160"]
    assert found["run"]["right"]["samples"] == [0, 160]
    assert 300 not in found["film"]["right"]["steps"]
    assert "a secret" not in (run / "report.html").read_text()


# --- the film's size ---


def test_snapshots_are_thinned_evenly_in_the_log_of_the_step() -> None:
    steps = sorted({round(1.06**i) for i in range(170)} | {0})
    sizes = dict.fromkeys(steps, 1000)
    kept = report.thinned(sizes, 12_500)
    assert len(kept) == 12
    assert (kept[0], kept[-1]) == (0, steps[-1])
    gaps = [math.log1p(b) - math.log1p(a) for a, b in pairwise(kept)]
    assert max(gaps) < 1.7 * min(gaps)  # whole steps lie no closer at the beginning


@pytest.mark.parametrize("seed", range(20))
def test_as_many_snapshots_as_there_is_room_for(seed: int) -> None:
    draw = np.random.default_rng(seed)
    steps = sorted({0, *draw.integers(1, 20_000, draw.integers(2, 150)).tolist()})
    sizes = {step: int(draw.integers(500, 1500)) for step in steps}
    whole, ends = sum(sizes.values()), sizes[steps[0]] + sizes[steps[-1]]
    assert report.thinned(sizes, whole) == steps
    for share in (0.1, 0.5, 0.9):
        room = max(ends, int(whole * share))
        kept = report.thinned(sizes, room)
        assert sum(sizes[step] for step in kept) <= room
        assert kept == sorted(set(kept) & set(steps))
        assert (kept[0], kept[-1]) == (steps[0], steps[-1])
        assert len(kept) > 0.5 * len(steps) * share - 1
    with pytest.raises(ConfigError, match=r"first and last snapshot take .* give at least that, or 0 for no film"):
        report.thinned(sizes, ends - 1)
    assert report.thinned({}, 0) == []
    assert report.thinned({5: 100}, 100) == [5]


def test_the_size_is_kept_and_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {step: report.inlined((run / "film" / f"step-{step:06d}.bin").stat().st_size) for step in STEPS}
    room = sum(sizes.values()) // 2
    call(["report", "right", "--film-megabytes", f"{room / 1e6:f}"])
    found = held(run / "report.html")
    kept = found["film"]["right"]["steps"]
    assert 2 < len(kept) < len(STEPS)
    assert f"film: {len(kept)} of 14 snapshots, 0.1 MB" in capsys.readouterr().out
    assert f"film: {len(kept)} of 14 snapshots" in found["made"]
    assert sorted(map(int, found["frames"]["right"])) == kept
    assert sum(map(len, found["frames"]["right"].values())) <= room
    assert len(found["film"]["right"]["scores"]) == len(STEPS)  # small: the curves stay whole

    call(["report", "right", "--film-megabytes", "0"])
    found = held(run / "report.html")
    assert (found["film"], found["frames"]["right"], found["run"]["right"]["film"]) == ({}, {}, False)
    assert "no film" in capsys.readouterr().out


# --- what cannot be ---


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        (["nope"], CheckpointError, "no run 'nope'.*right"),
        (["begun"], CheckpointError, "no figures yet.*train it first"),
        (["broken"], CheckpointError, "damaged"),
        (["right", "--film-megabytes", "nan"], ConfigError, "give 0 or more"),
        (["right", "--film-megabytes", "-1"], ConfigError, "give 0 or more"),
        (["right", "--film-megabytes", "0.0001"], ConfigError, "first and last snapshot take"),
        (["right", "--out", "mine.txt"], ConfigError, r"give a file that ends in \.html"),
        (["right", "--out", "nowhere/mine.html"], ConfigError, "nowhere is no folder"),
        (["right", "--out", "thesis.html"], ConfigError, "thesis.html is there and no report"),
        (["right", "--out", "pictured.html", "--png"], ConfigError, "pictured.png is there and no report"),
        (["right", "--out", "folder.html"], ConfigError, "folder.html is there and no report"),
        (["only-film", "--png"], CheckpointError, "no loss to draw; leave out --png"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_written(
    run: Path, arguments: list[str], error: type[Exception], told: str
) -> None:
    rundir.write_run(Path("runs/begun"), to_dict(preset("demo")))
    rundir.write_run(Path("runs/only-film"), to_dict(preset("demo")))
    with_film(Path("runs/only-film"), (0,))
    Path("runs/broken").mkdir()
    Path("runs/broken/run.json").write_text("{")
    Path("thesis.html").write_text("years of work")
    Path("pictured.png").write_bytes(b"a holiday")
    Path("folder.html").mkdir()
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    with pytest.raises(error, match=told):
        call(["report", *arguments])
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


def test_a_film_alone_and_figures_alone_are_enough(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "film")
    call(["report", "right"])
    (run / "metrics.jsonl").unlink()
    with_film(run, (0,))
    call(["report", "right"])
    assert re.findall("no film|film: .*", capsys.readouterr().out) == ["no film", "film: 1 of 1 snapshots, 0.1 MB"]


def test_a_report_replaces_a_report(run: Path) -> None:
    call(["report", "right", "--png"])
    rundir.append(run, {"step": 330, "loss": 1.25})
    call(["report", "right", "--png"])
    assert held(run / "report.html")["series"]["right"]["series"]["loss"][-1][::2] == [330, 1.25]


def test_a_full_disk_is_one_line_and_leaves_the_old_report(run: Path, small_disk: Callable[..., Path]) -> None:
    disk = small_disk(1)
    call(["report", "right", "--out", f"{disk}/out.html"])
    before = (disk / "out.html").read_bytes()
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - 50_000))
    with pytest.raises(ConfigError, match=r"out\.html cannot be written: No space left on device; .*another --out"):
        call(["report", "right", "--out", f"{disk}/out.html"])
    assert sorted(path.name for path in disk.iterdir()) == ["ballast", "out.html"]
    assert (disk / "out.html").read_bytes() == before


def test_the_command(run: Path, tenfold: Tenfold, tmp_path: Path) -> None:
    done = tenfold("report", "right", "--png")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        f"runs/right/report.{kind}" for kind in ("html", "png")
    ]
    done = tenfold("report", "wrong")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    (tmp_path / "torch.py").write_text("raise ImportError('a report needs no torch')")
    here = {"PYTHONPATH": str(tmp_path)}
    assert tenfold("report", "right", env=here).returncode == 0
    done = tenfold("report", "right", "--png", env=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--png needs matplotlib, which is not installed: pip install 'tenfold[plots]'" in done.stderr


# --- the picture ---


def test_the_picture_has_the_curves_in_the_page_s_colours(run: Path) -> None:
    call(["report", "right", "--png"])
    with Image.open(run / "report.png") as image:
        assert image.size == (1600, 920)
        pixels = {color for _, color in image.convert("RGB").getcolors(1 << 24) or []}
    colors = picture.colors()
    for name in ("c0", "c1", "c2", "line"):
        assert tuple(bytes.fromhex(colors[name][1:])) in pixels, name
    assert colors["paper"] == "#fff"  # light


def test_a_picture_of_figures_that_are_few_or_not_finite(run: Path) -> None:
    for text in (
        '{"step": 0, "loss": 11.0}\n',
        '{"step": 0, "loss": null}\n',
        '{"step": 0, "val_loss": 3.0}\n',
        '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN, "lr": null}\n',
    ):
        (run / "metrics.jsonl").write_text(text)
        assert call(["report", "right", "--png"]) == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_is_of_what_lies_near(seed: int) -> None:
    draw = np.random.default_rng(seed)
    steps = np.unique(draw.integers(0, 3000, 200)).astype(float)
    values = draw.normal(size=len(steps))
    values[draw.random(len(steps)) < 0.1] = np.nan
    for i, mean in enumerate(picture.smoothed(steps, values)):
        near = np.abs(steps - steps[i]) <= max(0.05 * steps[i], 0.5)
        near[max(0, i - 1) : i + 2] = True
        expected = np.nan if np.isnan(values[i]) else np.nanmean(values[near])
        np.testing.assert_allclose(mean, expected)


# --- in a browser ---


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Any]]:
    """Opens a file in Chromium without a network; in the end nothing was said on the console, nothing was asked for
    but the file, and no markup of the run has become any."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    said: list[str] = []
    asked: list[str] = []
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        context = chromium.new_context(viewport={"width": 1280, "height": 900}, offline=True)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))

        def show(path: Path) -> Any:
            page.goto(path.absolute().as_uri())
            page.wait_for_selector("#main:not([aria-busy]) .view")
            return page

        yield show
        assert page.evaluate("document.body.dataset.hacked") is None
        address = page.url.partition("#")[0]
        chromium.close()
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [address]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_it_works_alone_in_a_browser(tmp_path: Path, opened: Callable[[Path], Any]) -> None:
    path = with_film(made(tmp_path / HOSTILE.replace("/", "\u2215")))
    sizes = sum(report.inlined(file.stat().st_size) for file in (path / "film").glob("*.bin"))
    out = tmp_path / "out.html"
    call(["report", str(path), "--out", str(out), "--film-megabytes", f"{sizes / 2e6:f}"])
    page = opened(out)
    assert page.locator("h1").inner_text() == path.name
    facts = dict(
        zip(page.locator(".facts dt").all_inner_texts(), page.locator(".facts dd").all_inner_texts(), strict=True)
    )
    assert facts["step"] == "320 of 19,073"
    assert facts["training loss"] == f"{loss_at(320):.4f} nats"
    assert facts["validation loss"] == f"{loss_at(320) + 0.01:.4f} nats"
    chart = page.locator("figure.chart").first
    chart.locator("path.band").wait_for(state="attached")
    legend = dict(zip(chart.locator(".name").all_inner_texts(), chart.locator(".value").all_inner_texts(), strict=True))
    steps = np.arange(0, 321, 10, dtype=float)
    mean = picture.smoothed(steps, np.array([loss_at(int(step)) for step in steps]))
    assert legend["smoothed"] == f"{mean[-1]:.4f}"  # as the picture has it
    assert f"first at 160 {MARKUP}" in page.locator(".samples pre:visible").all_inner_texts()
    assert page.locator(".events").first.inner_text().endswith(MARKUP)
    assert page.get_by_role("link", name="Playground").count() == 0

    kept = held(out)["film"][path.name]["steps"]
    told = page.locator("#folder").inner_text()
    assert told.endswith(f"film: {len(kept)} of 14 snapshots")
    page.get_by_role("link", name="Attention film").click()
    slider = page.get_by_role("slider", name="snapshot")
    seen = set()
    for place in range(len(kept)):
        slider.fill(str(place))
        page.wait_for_selector(f".sheet canvas[data-step='{kept[place]}']")
        assert f"({STEPS.index(kept[place]) % TOKENS}) 1.00" in page.locator(".says").inner_text()
        seen.add(page.locator(".sheet canvas").evaluate("canvas => canvas.toDataURL()"))
    assert len(seen) == len({STEPS.index(step) % TOKENS for step in kept})
    page.get_by_role("link", name="tenfold").click()
    page.get_by_role("link", name=path.name).click()
    page.wait_for_selector(".facts")
    assert page.locator("#folder").inner_text() == told
