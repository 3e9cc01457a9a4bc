"""`tenfold watch`: what it reads of run folders, and a real server on loopback: asked, listened to and attacked."""

import contextlib
import http.client
import json
import math
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch

import tenfold as package
from conftest import TINY, TINY_OPTIONS, Tenfold, environment, words
from tenfold import rundir
from tenfold.data.tokenizer import Bytes
from tenfold.errors import ConfigError
from tenfold.files import held
from tenfold.generate import LanguageModel
from tenfold.model.gpt import GPT
from tenfold.run import preset, to_dict
from tenfold.track.match import FIRST
from tenfold.watch import store
from tenfold.watch.runs import Runs

pytestmark = pytest.mark.timeout(120)

A100 = {"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 42_298_834_944}
Record = dict[str, Any]


def made(root: Path, name: str, records: list[Record] | str = "", **content: Any) -> Path:
    """A run folder with these records, or this text, as its metrics; what is given replaces parts of run.json."""
    facts = {"executed": {"precision": "bf16"}, "environment": {"hardware": A100, "processes": 2}, "dataset": {}}
    rundir.write_run(root / name, {**to_dict(preset("gpt2-124m")), "name": name, **facts, **content})
    text = records if isinstance(records, str) else "".join(json.dumps(record) + "\n" for record in records)
    (root / name / "metrics.jsonl").write_text(text)
    return root / name


def training(steps: int, start: int = 0) -> list[Record]:
    """Records as a training leaves them: a log each step, a validation each tenth."""
    draw, records = random.Random(start), list[Record]()
    for step in range(start, start + steps):
        at = {"step": step, "time": 1000.0 + step}
        if step % 10 == 0:
            records.append({**at, "val_loss": 4 + 1 / (step + 1), "place": "inside", "expected": 4.0, "band": [3, 5]})
        figures = {"loss": draw.uniform(3, 5), "lr": 1e-4 * step, "tokens_per_second": draw.uniform(1e5, 2e5)}
        records.append({**at, **figures, "grad_norm": draw.random()})
    return records


def lines(records: list[Record]) -> str:
    """Records as metrics.jsonl has them."""
    return "".join(json.dumps(record) + "\n" for record in records)


def expected_series(path: Path) -> dict[str, list[list[Any]]]:
    """Every figure by what `rundir.read_metrics` says of a run."""
    found: dict[str, list[list[Any]]] = {}
    for record in sorted(rundir.read_metrics(path), key=lambda r: r["step"]):
        for key, value in record.items():
            if key not in ("step", "time") and (value is None or type(value) in (int, float)):
                short = None if value is None or not math.isfinite(value) else float(f"{np.float32(value):.7g}")
                found.setdefault(key, []).append([record["step"], record.get("time"), short])
    return found


# --- what is read of metrics.jsonl ---


@pytest.mark.parametrize("seed", range(6))
def test_columns_are_what_the_run_folder_says_however_it_grew(tmp_path: Path, seed: int) -> None:
    """Written in pieces that end anywhere, with resumes, roll-backs, nulls, NaN and lines that are none, and read in
    between at any time."""
    draw = random.Random(seed)
    text, step = "", 0
    for _ in range(draw.randint(3, 8)):
        more = draw.randint(1, 40)
        text += lines(training(more, step))
        text += draw.choice(['{"step": 3, "lo', "[1]", '"x"', '{"step": "a"}', "", "\xff{}", "[" * 5000]) + "\n"
        step += more
        text += lines([{"step": step, "loss": None, "time": 5.0}, {"step": step, "loss": math.nan, "time": None}])
        step = draw.randint(0, step + 20)
        text += lines([{"step": step, "event": draw.choice(["resume", "rollback"]), "time": 1.0}])
    path = made(tmp_path, "a")
    columns, marks = store.Columns(path / "metrics.jsonl"), store.Marks(path / "metrics.jsonl")
    content = text.encode()
    with (path / "metrics.jsonl").open("wb", buffering=0) as file:
        while content:
            cut = draw.randint(1, 4000)
            file.write(content[:cut])
            content = content[cut:]
            columns.follow()
            marks.follow()
            assert columns.series(10**6) == expected_series(path)
    marked = [r for r in rundir.read_metrics(path) if "event" in r or "val_loss" in r]
    assert marks.records == [{k: v if v == v else None for k, v in r.items()} for r in marked]
    assert columns.offset == marks.offset == len(text.encode())


def test_a_file_that_becomes_another_is_read_anew(tmp_path: Path) -> None:
    path = made(tmp_path, "a", [{"step": 0, "event": "start", "time": 1.5}, *training(30)])
    alike = lines([{"step": 0, "event": "start", "time": 2.5}, *training(60)]).replace('"loss": 3', '"loss": 7')
    columns = store.Columns(path / "metrics.jsonl")
    columns.follow()
    for change in (
        lambda file: file.write_text(alike),  # longer, its lines end where the others did
        lambda file: file.write_text(lines(training(5))),  # shorter
        lambda file: file.unlink(),
    ):
        change(path / "metrics.jsonl")
        columns.follow()
        assert columns.series(10**6) == expected_series(path)


def test_thinned_keeps_what_stands_out() -> None:
    """Of each stretch the lowest, the highest and the first that is not finite; the ends; in order; not many more."""
    draw = np.random.default_rng(0)
    for count in (1, 2, 99, 1000, 4321):
        values = draw.normal(size=count).astype(np.float32)
        values[draw.integers(0, count, count // 100)] = np.nan
        chosen = store.thinned(values, 100)
        assert (np.diff(chosen) > 0).all()
        assert {0, count - 1} <= set(chosen.tolist())
        assert len(chosen) <= 100 + 2 + 50
        width = -(-count // 50)
        for start in range(0, count, width if count > 100 else count):
            part = values[start : start + (width if count > 100 else count)]
            kept = values[[i for i in chosen if start <= i < start + len(part)]]
            assert np.nanmin(part) == np.nanmin(kept)
            assert np.nanmax(part) == np.nanmax(kept)
            assert np.isnan(part).any() == np.isnan(kept).any()


ENDS = [
    [],
    [{"step": 0, "event": "start"}],
    [{"step": 0, "event": "start"}, {"step": 9, "event": "done"}],
    [
        {"step": 0, "event": "start"},
        {"step": 9, "event": "done"},
        {"step": 5, "event": "resume"},
        {"step": 6, "loss": 1},
    ],
    [{"step": 0, "event": "start"}, {"step": 9, "event": "stopped", "message": "x"}],
    [{"step": 0, "event": "start"}, {"step": 9, "event": "save"}],
]


@pytest.mark.parametrize("records", ENDS, ids=str)
def test_the_state_is_that_of_the_run_folder(tmp_path: Path, records: list[Record]) -> None:
    path = made(tmp_path, "a", records)
    runs = Runs(tmp_path)
    assert runs.listed()["runs"][0]["state"] == rundir.state(path)
    with held(path):
        assert runs.listed()["runs"][0]["state"] == rundir.state(path) == "running"
    assert runs.listed()["runs"][0]["state"] == rundir.state(path)


def test_a_summary_has_the_figures_of_the_files(tmp_path: Path) -> None:
    records = training(101)
    sign = {"step": 40, "event": "sign", "sign": "spike", "message": "m", "time": 1040.0}
    path = made(tmp_path, "a", [{"step": 0, "event": "start", "time": 1000.0}, *records, sign])
    (told,) = Runs(tmp_path).listed()["runs"]
    assert told["preset"] == "gpt2-124m"
    assert (told["step"], told["steps"]) == (40, 19073)
    assert told["loss"] == records[-1]["loss"]
    assert told["val_loss"] == told["best_val_loss"] == 4 + 1 / 101
    assert told["tokens_per_second"] == records[-1]["tokens_per_second"]
    assert told["mfu"] == pytest.approx(records[-1]["tokens_per_second"] * 855_166_464 / (2 * 312e12))
    assert (told["place"], told["off"], told["signs"], told["seconds_left"]) == ("inside", False, ["spike"], None)
    assert set(told["spark"]) <= {r["loss"] for r in records if "loss" in r}
    assert len(told["spark"]) > 20
    rundir.append(path, {"step": 50, "event": "rollback"})
    rundir.append(path, {"step": 50, "loss": None})
    with held(path):
        (told,) = Runs(tmp_path).listed()["runs"]
    assert told["loss"] is None
    assert told["val_loss"] == 4 + 1 / 41
    rundir.append(path, {"step": 60, "event": "verdict", "off": True, "message": "m"})
    assert Runs(tmp_path).listed()["runs"][0]["off"] is True


def test_the_time_left_is_by_the_recent_pace(tmp_path: Path) -> None:
    path = made(tmp_path, "a", training(101))
    with held(path):
        (told,) = Runs(tmp_path).listed()["runs"]
    assert told["seconds_left"] == pytest.approx(19073 - 100)


@pytest.mark.parametrize(
    "facts",
    [
        {"environment": {"hardware": {"name": "some CPU", "memory_bytes": 10**9}, "processes": 1}},
        {"environment": {}},
        {"environment": {"hardware": {"name": 3, "memory_bytes": "x"}, "processes": None}},
        {"executed": {"precision": "fp64"}},
        {"executed": {}},
    ],
    ids=str,
)
def test_the_share_of_an_unknown_peak_is_not_guessed(tmp_path: Path, facts: Record) -> None:
    made(tmp_path, "a", training(20), **facts)
    assert Runs(tmp_path).listed()["runs"][0]["mfu"] is None


def test_the_reference_band_is_there_where_the_recipe_is(tmp_path: Path) -> None:
    data = {"name": "HuggingFaceFW/fineweb-edu", "subset": "sample-10BT", "documents": FIRST.format(100_000_000)}
    made(tmp_path, "follows", dataset={**data, "train_tokens": 9_900_000_000, "val_tokens": 10**8})
    made(tmp_path, "other")
    made(tmp_path, "odd", dataset={**data, "train_tokens": "many", "val_tokens": []})
    runs = Runs(tmp_path)
    known = runs.watched.get("follows") or runs.find("follows")
    assert known is not None
    curve = known.detail()["curve"]
    assert curve["name"] == "fineweb-edu-124m"
    assert curve["points"][0][0] >= 100
    assert curve["points"][-1][0] == 19073
    assert all(low < loss < high for _, loss, low, high in curve["points"])
    for name in ("other", "odd"):
        found = runs.find(name)
        assert found is not None
        assert found.detail()["curve"] is None


# --- the server ---


@dataclass
class Server:
    """A `tenfold watch` that runs, and the folder it watches."""

    process: "subprocess.Popen[str]"
    root: Path
    port: int
    first: str

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()

    def json(self, path: str, status: int = 200) -> Any:
        """What an answer in JSON says."""
        got, headers, body = self.ask(path)
        assert got == status, body
        assert headers["content-type"] == "application/json"
        return json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    def listen(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> "Listener":
        """The events of an answer."""
        return Listener(self.port, path, method, body, headers)


class Listener:
    """Server-sent events, with when they came."""

    def __init__(self, port: int, path: str, method: str, body: str | None, headers: dict[str, str]) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        assert self.answer.headers["content-type"].startswith("text/event-stream")
        self.mark = ""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        kind = ""
        for line in self.answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "id":
                self.mark = value
            elif name == "data":
                yield kind, json.loads(value)

    def next(self, kind: str) -> Any:
        """The content of the next event of a kind."""
        return next(value for one, value in self if one == kind)

    def close(self) -> None:
        """Go away."""
        self.answer.close()
        self.connection.close()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def watching(root: Path, *options: str, cwd: Path | None = None) -> Iterator[Server]:
    """A server for the runs of a folder."""
    command = [sys.executable, "-m", "tenfold", "watch", str(root), "--port", "0", *options]
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        found = re.search(r"http://[^ ]*:(\d+)/", first)
        assert found, first + (process.stderr.read() if process.stderr and process.poll() is not None else "")
        yield Server(process, root, int(found[1]), first)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if process.stderr:
            process.stderr.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that each use runs of their own."""
    root = tmp_path_factory.mktemp("watch") / "runs"
    root.mkdir()
    with watching(root) as one:
        yield one


HOSTILE = "<script>alert(1)</script>"


def test_a_run_is_given_as_its_files_have_it(server: Server) -> None:
    records = [{"step": 0, "event": "start", "time": 1000.0}, *training(120)]
    path = made(server.root, "whole", records)
    two = "a\n---\n\n===== sample 2 =====\nb"
    for step, text in ((0, two), (100, HOSTILE), (500, "of a part that was taken back")):
        (path / "samples").mkdir(exist_ok=True)
        (path / "samples" / f"step-{step:06d}.txt").write_text(text + "\n")
    (path / "checkpoints" / "step-000100").mkdir(parents=True)
    (path / "checkpoints" / "step-000100" / "state.json").write_text("{}")
    (path / "checkpoints" / ".step-000200.partial").mkdir()
    told = server.json("/api/runs/whole")
    assert told["summary"] == next(r for r in server.json("/api/runs")["runs"] if r["name"] == "whole")
    assert told["run"] == json.loads((path / "run.json").read_text())
    assert (told["samples"], told["checkpoints"], told["film"], told["curve"]) == ([0, 100], [100], False, None)
    assert told["events"] == [{"step": 0, "time": 1000.0, "event": "start"}]
    series = server.json("/api/runs/whole/series")
    assert series["series"] == expected_series(path)
    assert series["offset"] == (path / "metrics.jsonl").stat().st_size
    assert series["tokens_per_step"] == 524_288
    assert max(map(len, server.json("/api/runs/whole/series?points=20")["series"].values())) <= 22
    assert server.json("/api/runs/whole/samples/0") == {"step": 0, "texts": ["a\n---\n", "b"]}
    assert server.json("/api/runs/whole/samples/100") == {"step": 100, "texts": [HOSTILE]}
    numbers = [f"{part}{'9' * 5000}" for part in ("samples/", "film/", "series?points=")]
    for absent in ("samples/500", "samples/-1", "film", "film/0", "x", "series?points=1", "series?points=x", *numbers):
        assert "error" in server.json(f"/api/runs/whole/{absent}", 400 if "points" in absent else 404)


def test_a_film_is_given_without_what_was_taken_back(server: Server) -> None:
    path = made(server.root, "filmed", training(50))
    (path / "film").mkdir()
    text = {"name": "one", "ids": [1, 2], "tokens": ["a", HOSTILE]}
    film = {"format": 1, "layers": 1, "heads": 1, "texts": [text]}
    (path / "film" / "film.json").write_text(json.dumps(film))
    for step in (0, 40, 70):
        (path / "film" / f"step-{step:06d}.bin").write_bytes(bytes([step]))
    scores = [{"step": s, "scores": {"first": [[v]]}} for s, v in ((0, 0.5), (40, 0.1), (40, 0.2), (70, 0.9))]
    (path / "film" / "scores.jsonl").write_text(lines(scores) + '{"step": 80, "sco')
    assert server.json("/api/runs/filmed/film") == {**film, "steps": [0, 40], "scores": [scores[0], scores[2]]}
    status, headers, body = server.ask("/api/runs/filmed/film/40")
    assert (status, headers["content-type"], body) == (200, "application/octet-stream", bytes([40]))
    assert server.ask("/api/runs/filmed/film/70")[0] == 404
    (path / "film" / "film.json").write_text(json.dumps({**film, "format": 2}))
    assert "update tenfold" in server.json("/api/runs/filmed/film", 422)["error"]


def test_what_differs_is_listed(server: Server) -> None:
    recipe = to_dict(preset("gpt2-124m"))["recipe"]
    made(server.root, "a,b", recipe=recipe)
    made(server.root, "plain", recipe={**recipe, "lr": 1e-3}, origin={"kind": "x"})
    fields = server.json(f"/api/compare?runs={quote('a,b')},plain")["fields"]
    assert fields == {"recipe.lr": [6e-4, 1e-3], "origin.kind": [None, "x"]}


def test_one_bad_run_does_not_hide_the_others(server: Server) -> None:
    """A newer format, damaged files, foreign folders and numbers that are none; names are what they are."""
    made(server.root, "newer", format=2)
    made(server.root, "damaged").joinpath("run.json").write_text("{")
    (server.root / "no-run").mkdir()
    (server.root / "file").write_text("x")
    made(
        server.root,
        HOSTILE.replace("/", "%2f"),
        [{"step": 1, "loss": math.nan, "time": 1.0}, {"step": 2, "loss": 1e999}],
    )
    huge = {"step": 3, "loss": 10**400, "val_loss": [HOSTILE], "event": {"a": math.inf}, "place": {}}
    made(server.root, "odd values", [huge, {"step": 10**30, "loss": 1.0}, {"step": True}, {"step": 4, "lr": 1e300}])
    listed = {run["name"]: run for run in server.json("/api/runs")["runs"]}
    assert "update tenfold" in listed["newer"]["error"]
    assert "damaged" in listed["damaged"]["error"]
    assert {"no-run", "file"}.isdisjoint(listed)
    assert listed["odd values"]["step"] == 4
    assert listed[HOSTILE.replace("/", "%2f")]["loss"] is None
    for name in ("newer", "damaged"):
        assert "error" in server.json(f"/api/runs/{name}", 422)
        assert "error" in server.json(f"/api/runs/{name}/series", 422)
    name = quote(HOSTILE.replace("/", "%2f"))
    assert server.json(f"/api/runs/{name}/series")["series"] == {"loss": [[1, 1.0, None], [2, None, None]]}
    assert server.json("/api/runs/odd%20values/series")["series"] == {"lr": [[4, None, None]]}
    assert server.json("/api/runs/odd%20values")["events"] == [{"step": 3, "event": {"a": None}}]


TRAVERSALS = [
    "/page/../app.py",
    "/page/..%2fapp.py",
    "/page/%2e%2e/app.py",
    "/page/..%5capp.py",
    "/page//etc/passwd",
    "/page/%00",
    "/../../../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/api/runs/..",
    "/api/runs/%2e%2e",
    "/api/runs/%2e",
    "/api/runs/..%2f..%2fsecret",
    "/api/runs/%2fetc",
    "/api/runs/..%5csecret",
    "/api/runs/%00",
    "/api/runs/%ff%fe",
    "/api/runs/.../series",
    "/api/runs/secret-link%2f..%2fwhole",
    "/api/runs/x/samples/..%2f..%2f..%2fsecret",
    "/api/runs/x/samples/-1",
    "/api/runs/x/film/..%2frun.json",
    "/api/compare?runs=..,%2e%2e",
    "/ladder/..",
    "/ladder/%2e%2e%2fruns%2fwhole",
    "/ladder/..%2f..%2fetc",
]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_address_leads_out_of_the_folder(server: Server, path: str) -> None:
    made(server.root, "x", training(3))
    made(server.root.parent, "secret")
    status, _, body = server.ask(path)
    assert status == 404, body
    assert b"root:" not in body
    assert b"import" not in body


def test_no_link_leads_out_of_a_run(server: Server) -> None:
    path = made(server.root, "linked", training(3))
    (path / "samples").mkdir()
    (path / "samples" / "step-000001.txt").symlink_to("/etc/passwd")
    assert server.json("/api/runs/linked/samples/1", 404)


def test_the_pages_script_is_one_answer(server: Server) -> None:
    """Not one for each module, of which each waits for the one that imports it."""
    status, headers, body = server.ask("/page/main.js")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/javascript")
    assert not re.search(rb"^(import|export) ", body, re.M)
    assert b"function makeChart(" in body


def test_ladders_are_found_beside_the_runs(server: Server) -> None:
    folder = server.root.parent / "ladders" / "demo"
    folder.mkdir(parents=True)
    (folder / "ladder.html").write_text("<p>ladder</p>")
    (folder.parent / "empty").mkdir()
    assert server.json("/api/ladders") == {"ladders": ["demo"]}
    status, headers, body = server.ask("/ladder/demo")
    assert (status, body) == (200, b"<p>ladder</p>")
    assert "sandbox allow-scripts" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["/", "/page/index.html", "/api/runs", "/api/runs/none", "/api/stream?runs=&offsets=x"]
)
def test_every_answer_forbids_what_is_not_needed(server: Server, path: str) -> None:
    _, headers, _ = server.ask(path)
    assert headers["content-security-policy"].startswith("default-src 'self'; ")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_only_this_server_is_asked_by_only_its_own_pages(server: Server) -> None:
    """A name of another site that is made to lead here, and a page of another site that asks."""
    for host in ("evil.example", "evil.example:6710", "127.0.0.1.evil.example", "", "[::2]", "localhost.evil.example"):
        assert server.ask("/api/runs", Host=host)[0] in (400, 403), host
    for host in ("localhost", "localhost:8000", "127.0.0.1", "LOCALHOST:1", "[::1]:6710"):
        assert server.ask("/api/runs", Host=host)[0] == 200, host
    own = f"127.0.0.1:{server.port}"
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{server.port + 1}"):
        assert server.ask("/api/runs", Origin=origin)[0] == 403, origin
    assert server.ask("/api/runs", Origin=f"http://{own}")[0] == 200
    body = json.dumps({"run": "whole", "prompt": "x"})
    assert server.ask("/api/play", "POST", body, Content_Type="text/plain")[0] == 415
    assert server.ask("/api/runs", "POST", body)[0] == 405
    assert server.ask("/api/play", "POST", "x" * 2_000_000, Content_Type="application/json")[0] == 413


def test_another_address_asks_for_a_token(tmp_path: Path) -> None:
    made(tmp_path, "a", training(3))
    with watching(tmp_path, "--host", "0.0.0.0") as server:
        (token,) = re.findall(r"\?token=([\w-]{30,})", server.first)
        for path in ("/", "/api/runs", "/page/index.html", "/api/stream?runs=", "/api/runs?token=x", "/?token="):
            assert server.ask(path)[0] == 401, path
        assert server.ask("/api/runs", Cookie=f"tenfold-{server.port}=x")[0] == 401
        status, headers, _ = server.ask(f"/api/runs?points=3&token={token}")
        assert (status, headers["location"]) == (303, "/api/runs?points=3")
        cookie = headers["set-cookie"]
        assert "httponly" in cookie.lower()
        assert "samesite=lax" in cookie.lower()
        assert server.ask("/api/runs", Cookie=cookie.partition(";")[0])[0] == 200
        assert server.ask(f"//evil.example/?token={token}")[1]["location"].startswith("/evil")
        assert token not in "".join(server.ask("/")[1].values())


# --- live ---


def test_new_lines_arrive_within_two_seconds(server: Server) -> None:
    path = made(server.root, "live", training(5))
    offset = server.json("/api/runs/live/series")["offset"]
    listener = server.listen(f"/api/stream?runs=live&offsets={offset}")
    for step in range(5, 8):
        time.sleep(0.2)
        rundir.append(path, {"step": step, "loss": math.inf if step == 6 else 1.0})
        begun = time.monotonic()
        told = listener.next("records")
        assert time.monotonic() - begun < 2
        assert told["run"] == "live"
        assert [(r["step"], r["loss"]) for r in told["records"]] == [(step, None if step == 6 else 1.0)]
        assert told["offset"] == (path / "metrics.jsonl").stat().st_size
    with (path / "metrics.jsonl").open("a") as file:  # half a line waits for its other half
        file.write('{"step": 8, "loss": NaN, "ti')
        file.flush()
        time.sleep(1.2)
        file.write('me": 3}\n')
        file.flush()
        assert listener.next("records")["records"] == [{"step": 8, "loss": None, "time": 3}]
    listener.close()


def test_what_happens_to_a_run_is_told(server: Server) -> None:
    """Taken back, shortened, made anew, deleted, there again; and the list of runs."""
    path = made(server.root, "fate", [{"step": 0, "event": "start", "time": 1.0}, *training(5)])
    offset = (path / "metrics.jsonl").stat().st_size
    listener = server.listen(f"/api/stream?runs=fate&offsets={offset}")
    file = path / "metrics.jsonl"
    with file.open("a") as out:
        out.write(lines([{"step": 5, "loss": 1.0}, {"step": 2, "event": "rollback"}, {"step": 2, "loss": 2.0}]))
    assert [r["step"] for r in listener.next("records")["records"]] == [5]
    assert listener.next("rewind") == {"run": "fate", "step": 2}
    assert [r.get("event", r.get("loss")) for r in listener.next("records")["records"]] == ["rollback", 2.0]
    file.write_text(lines(training(1)))
    assert listener.next("replaced") == {"run": "fate"}
    file.write_text(lines([{"step": 0, "event": "start", "time": 2.0}, *training(50)]))
    assert listener.next("replaced") == {"run": "fate"}
    shutil.rmtree(path)
    assert listener.next("gone") == {"run": "fate"}
    made(server.root, "fate", training(4))
    assert listener.next("replaced") == {"run": "fate"}
    rundir.append(path, {"step": 4, "loss": 1.0})
    assert listener.next("records")["records"][0]["step"] == 4
    made(server.root, "another")
    listener.next("runs")
    listener.close()


def test_several_runs_in_one_stream(server: Server) -> None:
    for name in ("one,", "two"):
        made(server.root, name, training(2))
    with (server.root / "two" / "metrics.jsonl").open() as file:
        first = len(file.readline())
    listener = server.listen(f"/api/stream?runs={quote('one,')},two&offsets=0,{first}")
    told = [listener.next("records") for _ in range(2)]
    assert [(t["run"], len(t["records"])) for t in told] == [("one,", 3), ("two", 2)]
    listener.close()
    for wrong in ("1,2", "x", "-1", "1,", "1" + "0" * 30, "9" * 5000, "1-2-3"):
        status, _, body = server.ask(f"/api/stream?runs=two&offsets={wrong}")
        assert (status, b"give an offset for each of 1 runs" in body) == (400, True), wrong
        if "," not in wrong:  # a mark of other runs is none
            assert server.ask("/api/stream?runs=two", Last_Event_ID=wrong)[0] == 400, wrong


def test_a_browser_that_stays_open_over_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    """It asks the same address again, with the mark of the last event; the other run became another file meanwhile."""
    a, b = made(tmp_path, "a", training(3)), made(tmp_path, "b", training(3))
    address = "/api/stream?runs=a,b&offsets=0,0"
    with watching(tmp_path) as server:
        listener = server.listen(address)
        assert [listener.next("records")["run"] for _ in range(2)] == ["a", "b"]
        listener.close()
    rundir.append(a, {"step": 3, "loss": 1.0})
    (b / "metrics.jsonl").write_text(lines(training(9, 1)))
    with watching(tmp_path) as server:
        again = server.listen(address, Last_Event_ID=listener.mark)
        assert [r["step"] for r in again.next("records")["records"]] == [3]
        assert again.next("replaced") == {"run": "b"}
        again.close()


def test_ctrl_c_ends_it_quietly_with_a_browser_connected(tmp_path: Path) -> None:
    made(tmp_path, "a", training(3))
    with watching(tmp_path) as server:
        listener = server.listen("/api/stream?runs=a&offsets=0")
        listener.next("records")
        server.process.send_signal(signal.SIGINT)
        server.process.wait(20)
        assert server.process.stdout is not None
        assert server.process.stderr is not None
        out, complaint = server.process.stdout.read(), server.process.stderr.read()  # what was buffered is in it too
        assert (server.process.returncode, complaint) == (0, "")
        assert out.splitlines()[-1] == "Ctrl-C ends it"
        assert f"ssh -L {server.port}:localhost:{server.port} " in out
        listener.close()


def test_the_server_never_imports_torch(server: Server) -> None:
    path = made(server.root, "plain torch", training(30))
    for part in ("/api/runs", "/api/runs/plain%20torch", "/api/runs/plain%20torch/series"):
        server.json(part)
    maps = Path(f"/proc/{server.process.pid}/maps")
    if not maps.exists():
        pytest.skip("no /proc here")
    assert "numpy" in maps.read_text()
    assert "libtorch" not in maps.read_text()
    assert path.exists()


@pytest.mark.slow
def test_a_thousand_runs(tmp_path: Path) -> None:
    first = made(tmp_path, "run-0000", training(30))
    for i in range(1, 1000):
        shutil.copytree(first, tmp_path / f"run-{i:04d}")
    with watching(tmp_path) as server:
        begun = time.monotonic()
        assert len(server.json("/api/runs")["runs"]) == 1000
        cold = time.monotonic() - begun
        begun = time.monotonic()
        server.json("/api/runs")
        warm = time.monotonic() - begun
        listener = server.listen("/api/stream?runs=")
        time.sleep(1)
        begun = time.monotonic()
        rundir.append(tmp_path / "run-0500", {"step": 30, "loss": 1.0})
        listener.next("runs")
        told = time.monotonic() - begun
        print(f"cold {cold:.2f} s, warm {warm:.3f} s, told after {told:.2f} s")
        assert cold < 20
        assert warm < 2
        assert told < 4
        listener.close()


# --- the command ---


def test_what_cannot_be_is_told_in_a_line(tenfold: Tenfold, tmp_path: Path) -> None:
    made(tmp_path / "runs", "a")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = {
            ("--port", str(port)): "give another --port, 0 for any that is free",
            ("runs/a",): f"give the folder that holds it: {tmp_path}/runs",
            ("nowhere",): "is no folder",
            ("--port", "99999"): "give 1 to 65535, or 0",
            ("--host", "no.such.host.invalid"): "cannot be listened on",
            ("--host", "192.0.2.1"): "cannot be listened on",
        }
        for arguments, told in cases.items():
            done = tenfold("watch", *arguments)
            assert done.returncode == 2, done.stdout
            assert told in done.stderr
            assert len(done.stderr.splitlines()) == 1


def test_without_the_extra_it_is_named(tenfold: Tenfold, tmp_path: Path) -> None:
    hidden = "import importlib.util as u, sys; found = u.find_spec\n"
    hidden += "u.find_spec = lambda name, *a: None if name == 'uvicorn' else found(name, *a)\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    done = tenfold("watch", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr == "tenfold: watch needs uvicorn; run `pip install 'tenfold[web]'`\n"


@pytest.mark.slow
def test_deleting_it_breaks_nothing_else(tmp_path: Path) -> None:
    """A copy of the package without the page's folder trains, samples and lists."""
    shutil.copytree(
        Path(package.__file__).parent, tmp_path / "tenfold", ignore=shutil.ignore_patterns("watch", "__pycache__")
    )
    assert not (tmp_path / "tenfold" / "watch").exists()
    (tmp_path / "words.txt").write_text(words(4000))
    options = [*TINY_OPTIONS, "--tokenizer", "bytes", "--data", "words.txt", "--recipe.steps", "10"]
    for arguments in (["--help"], ["train", "demo", *options], ["sample", "demo", "--tokens", "5"], ["runs"]):
        done = subprocess.run(
            [sys.executable, "-m", "tenfold", *arguments],
            cwd=tmp_path,
            env={**environment(), "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr


# --- the playground ---


def test_a_choice_has_the_models_own_probabilities() -> None:
    """Of the prompt and of what follows, whatever it is drawn with: a direct softmax of the logits over the window."""
    torch.manual_seed(0)
    model = GPT(replace(TINY, vocab=257, padded_vocab=264)).initialise(1).eval()
    with torch.no_grad():
        model.wte.weight[:257].normal_(0, 0.5)
    language = LanguageModel(model, Bytes(), "", 0)
    for prompt in ("ab", "a longer prompt, as long as many windows are, and more than the context", ""):
        found = list(language.choices(prompt, 20, temperature=0.3, top_k=2, seed=5))
        ids = [one.id for one in found]
        given = list(prompt.encode()) or [256]
        assert [one.given for one in found] == [True] * len(given) + [False] * (len(found) - len(given))
        assert ids[: len(given)] == given
        assert "".join(one.text for one in found) == prompt + language.generate(prompt, 20, 0.3, 2, seed=5)
        unseen = max(1, len(given) - TINY.context + 1)
        for i, one in enumerate(found):
            if i < unseen:
                assert (one.probability, one.likely) == (None, ())
                continue
            begin = unseen - 1 if one.given else max(0, i - TINY.context)
            with torch.no_grad():
                chances = torch.softmax(model(torch.tensor([ids[begin:i]]))[0, -1], -1)
            assert one.probability == pytest.approx(chances[one.id].item(), abs=1e-6)
            best = chances.sort(descending=True)
            assert [p for _, p in one.likely] == pytest.approx(best.values[:10].tolist(), abs=1e-6)
            assert one.likely[0][0] == Bytes().decode([int(best.indices[0])])


def test_whole_characters_only() -> None:
    """A token that ends within a character adds nothing until it is complete."""
    model = LanguageModel(GPT(TINY).initialise(1).eval(), Bytes(), "", 0)
    assert [one.text for one in model.choices("aé", 1)][:3] == ["a", "", "é"]
    with pytest.raises(ConfigError, match="temperature"):
        next(model.choices("a", 1, temperature=-1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a tiny trained one."""
    root = tmp_path_factory.mktemp("trained")
    (root / "words.txt").write_text(words(4000))
    options = [*TINY_OPTIONS, "--tokenizer", "bytes", "--data", "words.txt", "--name", "tiny", "--speed.device", "cpu"]
    command = [sys.executable, "-m", "tenfold", "train", "demo", *options]
    subprocess.run(command, cwd=root, env=environment(), check=True, capture_output=True, timeout=100)
    return root / "runs"


def played(listener: Listener) -> tuple[list[Any], str, Any]:
    """The tokens of an answer, and how it ended."""
    tokens = []
    with listener:
        for kind, value in listener:
            if kind != "token":
                return tokens, kind, value
            tokens.append(value)
    pytest.fail("it did not end")


ASK: Record = {"run": "tiny", "step": None, "tokens": 8, "temperature": 0, "top_k": 0, "top_p": 1, "seed": 1}


def children(process: int) -> list[int]:
    """Processes that a process started."""
    return [int(p) for t in Path(f"/proc/{process}/task").glob("*/children") for p in t.read_text().split()]


def gone(processes: list[int], seconds: float = 10) -> bool:
    """Whether processes end within some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(Path(f"/proc/{p}").exists() for p in processes):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_the_playground_streams_tokens_with_what_was_likely(trained: Path) -> None:
    with watching(trained) as server:

        def play(**changed: Any) -> Listener:
            body = json.dumps({**ASK, **changed})
            return server.listen("/api/play", "POST", body, Content_Type="application/json")

        tokens, ending, _ = played(play(prompt="ba"))
        assert ending == "end"
        assert [t["text"] for t in tokens[:2]] == ["b", "a"]
        assert [t["given"] for t in tokens] == [True] * 2 + [False] * 8
        assert tokens[0]["p"] is None
        for token in tokens[2:]:  # temperature 0: each is the likeliest
            assert token["top"][0] == [token["text"], token["p"]]
            assert len(token["top"]) == 10
        (process,) = children(server.process.pid)
        assert [t["text"] for t in played(play(prompt="ba", step=20))[0]] == [t["text"] for t in tokens]
        assert children(server.process.pid) == [process], "the same checkpoint, the same process"
        played(play(prompt="ba", step=10))
        assert len(children(server.process.pid)) == 2

        wrong: list[tuple[Record, str]] = [
            ({"step": 7}, "has no checkpoint of step 7; it has 10, 20"),
            ({"temperature": -1}, "temperature is -1"),
            ({"tokens": "x"}, "tokens is 'x'"),
            ({"nonsense": 1}, "no option 'nonsense'"),
        ]
        for changed, told in wrong:
            tokens, ending, value = played(play(prompt="ba", **changed))
            assert (tokens, ending) == ([], "error")
            assert told in value["message"]
        for body in ("[]", "{}", "x", json.dumps({**ASK, "step": "1"}), "[" * 100_000):
            assert server.ask("/api/play", "POST", body, Content_Type="application/json")[0] == 400
        body = json.dumps({**ASK, "run": "../tiny"})
        assert server.ask("/api/play", "POST", body, Content_Type="application/json")[0] == 404

        long = play(prompt="ba", tokens=100_000)  # who goes away stops it, and the next one is not kept waiting
        long.next("token")
        long.close()
        begun = time.monotonic()
        assert played(play(prompt="ke"))[1] == "end"
        assert time.monotonic() - begun < 5

        processes = children(server.process.pid)
        long = play(prompt="ba", tokens=100_000)
        long.next("token")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
        assert gone(processes)
        long.close()


@pytest.mark.slow
def test_a_killed_server_leaves_no_process(trained: Path) -> None:
    with watching(trained) as server:
        body = json.dumps({**ASK, "prompt": "ba", "tokens": 100_000})
        listener = server.listen("/api/play", "POST", body, Content_Type="application/json")
        listener.next("token")
        processes = children(server.process.pid)
        assert processes
        server.process.kill()
        assert gone(processes)
        listener.close()


@pytest.mark.slow
def test_a_player_ends_when_it_is_idle_and_when_its_run_is_gone(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained / "tiny", copy)
    command = [sys.executable, "-m", "tenfold.watch.player", str(copy), ""]
    pipes: Record = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment()}
    with subprocess.Popen([*command, "1"], **pipes) as idle, subprocess.Popen(command, **pipes) as orphan:
        assert orphan.stdin is not None
        assert orphan.stdout is not None
        orphan.stdin.write(json.dumps({"id": 1, "ask": {"prompt": "ba", "tokens": 1}}) + "\n")
        orphan.stdin.flush()
        assert json.loads(orphan.stdout.readline())["event"] == "token"
        assert idle.wait(20) == 0
        (copy / "run.json").unlink()
        assert orphan.wait(20) == 0


# --- how fast, how much memory ---


def long_run(root: Path, name: str, steps: int = 100_000) -> None:
    """A run whose every step was logged, as a training logs it."""
    path = made(root, name, [{"step": 0, "event": "start", "time": 1000.0}])
    draw = random.Random(name)
    with (path / "metrics.jsonl").open("a") as file:
        for step in range(steps):
            figures = {"loss": draw.uniform(3, 4), "lr": draw.random() * 1e-3, "grad_norm": draw.random()}
            machine = {"tokens_per_second": draw.uniform(1e5, 2e5), "data_wait": draw.random() * 1e-3}
            memory = {"memory_bytes": draw.randrange(10**10), "peak_memory_bytes": draw.randrange(10**10)}
            record = {"step": step, **figures, **machine, **memory, "time": 1000.0 + step}
            file.write(json.dumps(record) + "\n")
            if step % 250 == 0:
                file.write(json.dumps({"step": step, "val_loss": draw.uniform(3, 4), "time": 1000.0 + step}) + "\n")


def memory(process: int) -> int:
    """Most memory that a process held, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_long_runs_open_fast_and_stay_small(tmp_path: Path) -> None:
    """100,000 logged steps, and twenty such runs side by side; the limits leave room for a busy machine."""
    long_run(tmp_path, "run-00")
    for i in range(1, 20):
        shutil.copytree(tmp_path / "run-00", tmp_path / f"run-{i:02d}")
    with watching(tmp_path) as server:
        begun = time.monotonic()
        server.json("/api/runs/run-00")
        server.json("/api/runs/run-00/series")
        opened = time.monotonic() - begun
        together = [threading.Thread(target=server.json, args=(f"/api/runs/run-{i:02d}/series",)) for i in range(20)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
        begun = time.monotonic()
        server.json("/api/runs")
        listed = time.monotonic() - begun
        held = memory(server.process.pid)
        print(f"opened in {opened:.2f} s; 20 listed in {listed:.2f} s; {held / 1e6:.0f} MB")
        assert opened < 3
        assert held < 200e6
