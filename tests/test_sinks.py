"""Where `--log` sends records: each library's own files say what metrics.jsonl says, with no account and no network."""

import json
import os
import pty
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import TINY_OPTIONS, Tenfold, environment, torchrun
from tenfold import rundir, sinks
from tenfold.cli import call
from tenfold.data.shards import Corpus
from tenfold.errors import CheckpointError, ConfigError
from tenfold.run import Run, from_dict, to_dict

pytestmark = pytest.mark.timeout(240)
OPTIONS = [*TINY_OPTIONS, "--speed.precision", "fp32", "--cadence.sample", "10", "--cadence.sample-tokens", "20"]
LIBRARIES = ("tensorboard", "wandb", "trackio")
KEY = "a" * 40  # of the form that wandb wants, and nobody's


@pytest.fixture(scope="module")
def trap() -> Iterator[tuple[dict[str, str], list[str]]]:
    """An environment in which every way out leads to a door that is shut, and the list of who knocked there."""
    knocked: list[str] = []

    def wait(listener: socket.socket) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller:
                caller.settimeout(5)
                knocked.append(caller.recv(1000).decode(errors="replace"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=wait, args=(listener,), daemon=True).start()
        door = f"http://127.0.0.1:{listener.getsockname()[1]}"
        out = {f"{kind}_proxy": door for kind in ("http", "https", "all")}
        yield {**out, **{name.upper(): door for name in out}, "no_proxy": "127.0.0.1,localhost"}, knocked


def train(corpus: Corpus, home: Path, ways: dict[str, str], *options: object, processes: int = 0) -> str:
    """A training of the run `one` in `home`, whose user has no account, but a terminal that could be asked for one."""
    command = torchrun(processes) if processes else [sys.executable]
    given = [
        "-m",
        "tenfold",
        "train",
        "demo",
        "--name",
        "one",
        "--data",
        str(corpus.path),
        *OPTIONS,
        *map(str, options),
    ]
    clean = {name: value for name, value in environment().items() if not name.startswith(("WANDB", "TRACKIO", "HF_"))}
    here = {"HOME": str(home), "TRACKIO_DIR": str(home / "trackio")}
    master, slave = pty.openpty()
    try:
        done = subprocess.run(
            [*command, *given],
            cwd=home,
            env={**clean, **ways, **here},
            stdin=slave,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "rackio" not in done.stdout
    return done.stderr


@pytest.fixture(scope="module")
def twice(
    corpus: Corpus, tmp_path_factory: pytest.TempPathFactory, trap: tuple[dict[str, str], list[str]]
) -> tuple[Path, str]:
    """A training with all three that stopped at step 12 and lost that checkpoint, and went on from step 10 with the
    same options but --log, on two processes; the folder that holds runs/, and what the first one said."""
    home = tmp_path_factory.mktemp("home")
    said = train(corpus, home, trap[0], "--stop-at", 12, "--log", *LIBRARIES)
    shutil.rmtree(home / "runs/one/checkpoints/step-000012")
    again = train(corpus, home, trap[0], processes=2)
    assert [again.count(f"--log {name}: ") for name in LIBRARIES] == [1, 1, 1]
    return home, said


def written(home: Path, taken_back: bool = False) -> dict[str, list[tuple[int, float]]]:
    """The numbers of metrics.jsonl that sinks get, by name, each with its step."""
    lines = (home / "runs/one/metrics.jsonl").read_text().splitlines()
    records = list(map(json.loads, lines)) if taken_back else rundir.read_metrics(home / "runs/one")
    found: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, value in sinks.figures({k: v for k, v in record.items() if k != "time"}).items():
            found.setdefault(name, []).append((record["step"], value))
    assert {"loss", "lr", "grad_norm", "tokens_per_second", "val_loss"} <= found.keys()
    return found


@pytest.mark.slow
def test_nobody_is_asked_for_an_account_or_spoken_to(
    twice: tuple[Path, str], trap: tuple[dict[str, str], list[str]]
) -> None:
    """T50: no login, no prompt though there is a terminal, no network; the run's own file is written all the same."""
    home, said = twice
    assert trap[1] == []
    assert len(written(home)["loss"]) == 20
    assert "--log wandb: not logged in, written to runs/one/wandb; `wandb sync runs/one/wandb/offline-run-*`" in said
    assert "--log tensorboard: `tensorboard --logdir runs` shows it" in said
    assert "--log trackio: `trackio show --project tenfold` shows it as one-2" in said


def shown(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, list[tuple[int, bytes]]]]:
    """The numbers and the texts of event files as TensorBoard itself reads them, by name, each with its step."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder)).Reload()
    found: dict[str, dict[str, list[Any]]] = {"scalars": {}, "text": {}}
    for name in events.Tags()["tensors"]:
        points = [(event.step, make_ndarray(event.tensor_proto).flat[0]) for event in events.Tensors(name)]
        found[events.SummaryMetadata(name).plugin_data.plugin_name][name] = points
    return found["scalars"], found["text"]


@pytest.mark.slow
def test_tensorboard_shows_what_the_file_says(twice: tuple[Path, str]) -> None:
    """And nothing of the steps that were taken back."""
    home, _ = twice
    numbers, texts = shown(home / "runs/one/tensorboard")
    assert numbers == {name: [(step, np.float32(v)) for step, v in points] for name, points in written(home).items()}
    samples = texts["samples/text_summary"]
    assert [step for step, _ in samples] == [0, 10, 20]
    assert samples[-1][1].startswith(b"    def ")
    assert texts["run/text_summary"][-1][0] == 10
    assert b'"sample_tokens": 20' in texts["run/text_summary"][-1][1]


def offline_records(path: Path) -> Iterator[Any]:
    """The records of a file that `wandb sync` sends: W&B's messages in LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


@pytest.mark.slow
def test_wandb_has_what_the_file_says(twice: tuple[Path, str]) -> None:
    """One run, in two files that are sent one after the other; what was taken back is in the first."""
    home, _ = twice
    found: dict[str, list[tuple[int, float]]] = {}
    keys, samples, files = set(), [], sorted((home / "runs/one/wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    for file in files:
        for record in offline_records(file):
            if record.WhichOneof("record_type") == "run":
                keys.add((record.run.project, record.run.run_id, record.run.display_name))
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                assert config["recipe"]["steps"] == 20
            row = {".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in row.items():
                if name == "samples.path":
                    samples.append((row["step"], (file.parent / "files" / value).read_text()))
                elif not name.startswith(("_", "samples.")) and name not in ("step", "event"):
                    found.setdefault(name, []).append((row["step"], value))
    assert len(keys) == 1
    project, key, shown = keys.pop()
    assert (project, shown) == ("tenfold", "one")
    assert key == sinks.key(home / "runs/one")
    assert found == written(home, taken_back=True)
    assert [step for step, _ in samples] == [0, 10, 10, 20]
    assert samples[-1][1].startswith("<pre>def ")


@pytest.mark.slow
def test_trackio_has_what_the_file_says(twice: tuple[Path, str]) -> None:
    """One run, with what was taken back beside what came after."""
    home, _ = twice
    found: dict[str, list[tuple[int, float]]] = {}
    with sqlite3.connect(home / "trackio/tenfold.db") as database:
        rows = database.execute("SELECT run_id, run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    database.close()
    assert {(run, name) for run, name, _, _ in rows} == {(rows[0][0], sinks.key(home / "runs/one"))}
    for _, _, step, content in rows:
        for name, value in json.loads(content).items():
            if name == "samples":
                assert value["_value"].startswith("    def ")
            elif name != "event":
                found.setdefault(name, []).append((step, value))
    assert found == written(home, taken_back=True)


def test_without_log_nothing_of_them_is_imported(
    corpus: Corpus, tmp_path: Path, trap: tuple[dict[str, str], list[str]]
) -> None:
    before = len(trap[1])
    code = (
        "import sys; from tenfold.cli import call; code = call(sys.argv[1:]); "
        f"print('imported', *sorted({set(LIBRARIES)!r} & sys.modules.keys())); sys.exit(code)"
    )
    given = [sys.executable, "-c", code, "train", "demo", "--data", corpus.path, *OPTIONS, "--stop-at", "2"]
    done = subprocess.run(
        given, cwd=tmp_path, env={**environment(), **trap[0]}, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.endswith("imported\n"), done.stderr
    assert {path.name for path in (tmp_path / "runs/demo").iterdir()} == {
        "run.json",
        "metrics.jsonl",
        "checkpoints",
        "samples",
    }
    assert len(trap[1]) == before


@pytest.mark.parametrize("name", LIBRARIES)
def test_one_that_is_not_installed_is_told_before_anything_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were nowhere to be found
    with pytest.raises(ConfigError, match=rf"--log {name}: {name} is not installed; pip install 'tenfold\[{name}\]'"):
        call(["train", "demo", "--log", name])
    assert not any(tmp_path.iterdir())


def test_one_that_is_unknown_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"--log tensorbord: no such sink, did you mean 'tensorboard'\?; possible are"
    ):
        call(["train", "demo", "--log", "tensorbord"])


def test_the_sinks_of_a_run_are_kept_in_its_file() -> None:
    run = Run(log=("wandb", "trackio"))
    content = json.loads(json.dumps(to_dict(run)))
    assert from_dict(content, "run.json") == run
    for wrong in ("wandb", [1], {"wandb": 1}):
        with pytest.raises(CheckpointError, match="which it cannot be"):
            from_dict({**content, "log": wrong}, "run.json")


class Kept:
    """A sink of the test's own: it keeps what it is given and fails when it is told to."""

    package, told = "json", "it is in memory"
    fails = ""

    def __init__(self, opening: sinks.Opening) -> None:
        self.rows: list[Any] = []
        self.fail("open")

    def fail(self, where: str) -> None:
        if where == self.fails:
            raise RuntimeError(f"no\nluck with {where}")

    def write(self, step: int, figures: dict[str, float], event: str, samples: Sequence[str]) -> None:
        self.rows.append((step, figures, event, list(samples)))
        self.fail("write")

    def back(self, step: int) -> None:
        self.rows.append(("back", step))
        self.fail("back")

    def close(self, failed: bool) -> None:
        self.rows.append(("close", failed))
        self.fail("close")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder that training has just begun in."""
    path = tmp_path / "runs/one"
    rundir.write_run(path, {"name": "one"})
    rundir.append(path, {"step": 0, "event": "start"})
    return path


@pytest.mark.parametrize("fails", ["", "open", "write", "back", "close"])
def test_one_that_fails_is_told_once_and_dropped(fails: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sinks.SINKS, "kept", Kept)
    monkeypatch.setitem(sinks.SINKS, "other", type("Other", (Kept,), {}))
    monkeypatch.setattr(Kept, "fails", fails)
    monkeypatch.setattr(sinks.SINKS["other"], "fails", "")
    said: list[str] = []
    sinks.check(["kept", "other"])
    (folder / "samples").mkdir()
    (folder / "samples/step-000003.txt").write_text("one\n===== sample 2 =====\ntwo\n")
    with sinks.Sinks(["kept", "other"], folder, 0, said.append) as opened:
        other: Any = opened.opened["other"]
        opened({"step": 3, "loss": 2.5, "off": False, "place": "inside", "band": [1, 2.0]})
        opened({"step": 3, "samples": "samples/step-000003.txt"})
        opened({"step": 2, "event": "rollback", "message": "back, see http://me:secret@host/"})
    assert other.rows == [
        (3, {"loss": 2.5, "band_low": 1, "band_high": 2.0}, "", []),
        (3, {}, "", ["one", "two"]),
        ("back", 2),
        (2, {}, "rollback: back, see http://***@host/", []),
        ("close", False),
    ]
    failed = [line for line in said if "failed" in line]
    assert failed == (
        [f"--log kept failed (no luck with {fails}); training goes on, and metrics.jsonl has it all"] if fails else []
    )


def test_a_training_that_fails_is_told_to_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sinks.SINKS, "kept", Kept)
    opened = sinks.Sinks(["kept"], folder, 0, print)
    kept: Any = opened.opened["kept"]
    with pytest.raises(ZeroDivisionError), opened:
        raise ZeroDivisionError
    assert kept.rows == [("close", True)]


def test_what_a_roll_back_takes_back_is_gone_from_tensorboard(folder: Path) -> None:
    with sinks.Sinks(["tensorboard"], folder, 0, print) as opened:
        for step in range(6):
            opened({"step": step, "loss": float(step)})
        opened({"step": 3, "event": "rollback", "message": "the rows of step 4 are left out"})
        opened({"step": 3, "loss": 30.0})
    assert shown(folder / "tensorboard")[0]["loss"] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0)]


@pytest.mark.slow
def test_a_full_disk_ends_the_sink_not_the_training(
    tenfold: Tenfold, corpus: Corpus, tmp_path: Path, small_disk: Any
) -> None:
    """Event files on a real file system with no room for them; the rest of the run folder has room."""
    place = small_disk()
    (tmp_path / "runs/one").mkdir(parents=True)
    (tmp_path / "runs/one/tensorboard").symlink_to(place)
    with (place / "filling").open("wb") as filling:
        filling.write(bytes(1024 * 1024 - 4 * 4096))
    given = ["--name", "one", "--data", corpus.path, *OPTIONS, "--recipe.steps", 100, "--log", "tensorboard"]
    done = tenfold("train", "demo", *given)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("--log tensorboard failed") == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert [record["step"] for record in rundir.read_metrics(tmp_path / "runs/one") if "loss" in record] == [
        *range(100)
    ]


@pytest.mark.slow
def test_wandb_out_of_reach_is_written_offline(
    corpus: Corpus, tmp_path: Path, trap: tuple[dict[str, str], list[str]]
) -> None:
    """Whoever is logged in, where the server does not answer, loses nothing; neither key nor server stops the run."""
    before = len(trap[1])
    said = train(corpus, tmp_path, {**trap[0], "WANDB_API_KEY": KEY}, "--stop-at", 2, "--log", "wandb")
    assert len(trap[1]) > before  # it was asked for, so it tried
    assert "written to runs/one/wandb; `wandb sync" in said
    assert KEY not in said
    assert "failed" not in said.replace("Failed", "")
    (file,) = (tmp_path / "runs/one/wandb").glob("offline-run-*/*.wandb")
    assert sum(record.WhichOneof("record_type") == "history" for record in offline_records(file)) > 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_what_the_user_says_of_wandb_counts(
    mode: str, corpus: Corpus, tmp_path: Path, trap: tuple[dict[str, str], list[str]]
) -> None:
    before = len(trap[1])
    ways = {**trap[0], "WANDB_API_KEY": KEY, "WANDB_MODE": mode, "WANDB_PROJECT": "mine"}
    said = train(corpus, tmp_path, ways, "--stop-at", 2, "--log", "wandb")
    assert ("--log wandb: written to" if mode == "offline" else "--log wandb: off, as WANDB_MODE says") in said
    assert len(trap[1]) == before
    files = list(tmp_path.glob("runs/one/wandb/offline-run-*/*.wandb"))
    projects = [record.run.project for file in files for record in offline_records(file) if record.run.project]
    assert projects == ["mine"] * (mode == "offline")


@pytest.mark.slow
def test_whoever_says_online_and_is_not_logged_in_is_not_asked(
    corpus: Corpus, tmp_path: Path, trap: tuple[dict[str, str], list[str]]
) -> None:
    before = len(trap[1])
    said = train(corpus, tmp_path, {**trap[0], "WANDB_MODE": "online"}, "--stop-at", 2, "--log", "wandb")
    assert "--log wandb: not logged in, written to" in said
    assert len(trap[1]) == before
