"""The runs of a folder as the page shows them: each in a line, each in full, and how several differ. Everything is read
again when its files have changed, and not before."""

import json
import math
import os
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from tenfold import filmfile, rundir
from tenfold.errors import CheckpointError
from tenfold.files import is_held
from tenfold.reference import cards
from tenfold.reference.curves import OUTSIDE, band, expected
from tenfold.run import Run, from_dict
from tenfold.track.match import Match, matching
from tenfold.watch.store import Columns, Marks, Record

SPARK = 40  # losses of a run's small curve
REACH = 1 << 14  # bytes of the last records, from which the recent pace is taken
GLANCE = 1 << 12  # bytes in which a record is looked for
LINE = 100  # bytes of one, about
POINTS = 160  # of a reference curve
OPEN = 32  # runs whose figures are held at a time, 5 MB for 100,000 records
card_of = cache(cards.card_of)


class Watched:
    """A run folder, and what was read of it. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.Lock()
        self.marks = Marks(path / "metrics.jsonl")
        self.columns: Columns | None = None
        self.stamp: Any = None
        self.told: Record = {}

    def state_of_files(self) -> tuple[Any, ...]:
        """What changes whenever a line of the list may: both files, and whether a training holds the folder."""
        return (*(stamp(self.path / name) for name in ("run.json", "metrics.jsonl")), is_held(self.path))

    def summary(self) -> Record:
        """The run in a line."""
        with self.lock:
            if (now := self.state_of_files()) != self.stamp:
                self.told, self.stamp = self.summarised(now[-1]), now
            return self.told

    def summarised(self, held: bool) -> Record:
        try:
            content, run = saved(self.path)
        except CheckpointError as error:
            return {"name": self.path.name, "error": str(error)}
        self.marks.follow()
        marks = self.marks.records
        recent = list(self.marks.near(self.marks.offset - REACH, REACH))
        spark = sparkline(self.marks)
        begun = max((i for i, r in enumerate(recent) if r.get("event") in ("start", *rundir.BACK)), default=0)
        losses = [r["val_loss"] for r in marks if is_number(r.get("val_loss"))]
        step, rate = last(recent, "step"), last(recent, "tokens_per_second")
        left = pace(recent[begun:]) if held else None
        place = last(marks, "place")
        verdicts = (r.get("off") is True for r in reversed(marks) if r.get("event") == "verdict")
        return {
            "name": self.path.name,
            "preset": run.preset,
            "state": state(marks, self.marks.offset, held),
            "step": step,
            "steps": run.recipe.steps,
            "loss": last(recent, "loss") if any("loss" in r for r in recent) else next(reversed(spark), None),
            "val_loss": last(marks, "val_loss"),
            "best_val_loss": min(losses, default=None),
            "tokens_per_second": rate,
            "mfu": mfu(content, run, rate),
            "seconds_left": None if left is None or step is None else left * max(0, run.recipe.steps - step),
            "place": place,
            "off": next(verdicts, place in OUTSIDE),
            "signs": list(dict.fromkeys(str(r.get("sign")) for r in marks if r.get("event") == "sign")),
            "updated": last(recent, "time"),
            "spark": spark,
        }

    def reached(self) -> float:
        """The step that the run is at; files of later ones are of a part of the training that was taken back."""
        step = self.summary().get("step")
        return math.inf if step is None else step

    def samples(self) -> dict[int, Path]:
        """Samples by their step."""
        found = numbered(self.path / "samples", "step-", ".txt")
        return {step: path for step, path in found.items() if step <= self.reached()}

    def texts(self, step: int) -> list[str] | None:
        """The texts of a step's sample, None if there is none."""
        path = own(self.path, self.samples().get(step))
        if path is None:
            return None
        return rundir.read_samples(path)

    def detail(self) -> Record:
        """The run in full, without its figures. CheckpointError if run.json cannot be read."""
        content, run = saved(self.path)
        told = self.summary()
        events = [
            {key: r[key] for key in ("step", "time", "event", "sign", "message") if key in r}
            for r in list(self.marks.records)
            if "event" in r
        ]
        return {
            "name": self.path.name,
            "state": told.get("state"),
            "run": content,
            "summary": told,
            "events": events,
            "samples": sorted(self.samples()),
            "film": (self.path / filmfile.FOLDER / filmfile.FILM).is_file(),
            "checkpoints": sorted(checkpoints(self.path)),
            "curve": curve(run, content.get("dataset", {})),
        }

    def series(self, points: int) -> Record:
        """Every figure of the run, at most about so many points of each. CheckpointError as `detail`."""
        _, run = saved(self.path)
        with self.lock:
            self.columns = self.columns or Columns(self.path / "metrics.jsonl")
            self.columns.follow()
            found = self.columns.series(points)
            return {"offset": self.columns.offset, "tokens_per_step": run.recipe.targets, "series": found}

    def film(self) -> Record:
        """What the film shows, its steps and scores, without those of steps that the run has not reached;
        CheckpointError if it is damaged."""
        film = filmfile.read_film(self.path)
        steps = filmfile.steps(self.path, self.reached())
        scores = filmfile.read_scores(self.path)
        kept = [{"step": step, "scores": scores[step]} for step in steps if step in scores]
        return {**film, "steps": steps, "scores": kept}

    def snapshot(self, step: int) -> Path | None:
        """Where the film's snapshot of a step lies, None for a step that the run has not reached."""
        return self.path / filmfile.FOLDER / f"step-{step:06d}.bin" if step <= self.reached() else None


class Runs:
    """The runs below a folder. `path` of a name that is none of theirs is None, whatever is in the name."""

    def __init__(self, root: Path) -> None:
        self.root, self.lock, self.parsing = root, threading.Lock(), threading.Lock()
        self.watched: dict[str, Watched] = {}
        self.opened: list[Watched] = []

    def names(self) -> list[str]:
        """Names of the runs there are."""
        try:
            with os.scandir(self.root) as entries:
                return sorted(e.name for e in entries if Path(e.path, "run.json").is_file())
        except OSError:
            return []

    def find(self, name: str) -> Watched | None:
        """The run of this name, if it is one of those that are listed."""
        try:
            with os.scandir(self.root) as entries:
                if not any(e.name == name and Path(e.path, "run.json").is_file() for e in entries):
                    return None
        except OSError:
            return None
        with self.lock:
            return self.watched.setdefault(name, Watched(self.root / name))

    def found(self) -> list[Watched]:
        """All runs; those that are gone are forgotten."""
        names = self.names()
        with self.lock:
            self.watched = {name: self.watched.get(name) or Watched(self.root / name) for name in names}
            return list(self.watched.values())

    def series(self, run: Watched, points: int) -> Record:
        """`Watched.series`; the figures of the run that was asked for longest ago are forgotten."""
        with self.lock:
            self.opened = [*(one for one in self.opened if one is not run), run]
            closed, self.opened = self.opened[:-OPEN], self.opened[-OPEN:]
        for one in closed:
            one.columns = None
        with self.parsing:  # threads would not make it faster, only larger
            return run.series(points)

    def stamps(self) -> tuple[Any, ...]:
        """What changes whenever the list does."""
        return tuple((run.path.name, run.state_of_files()) for run in self.found())

    def listed(self) -> Record:
        """All runs in a line each."""
        return {"folder": str(self.root), "runs": [run.summary() for run in self.found()]}


def own(folder: Path, path: Path | None) -> Path | None:
    """The path if it is a file of this folder; None if it is none, or a link that leads out of it."""
    return path if path and path.is_file() and path.resolve().is_relative_to(folder.resolve()) else None


def encoded(value: Any) -> str:
    """JSON that every browser reads: what is not finite is null, and nothing but ASCII is in it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(finite(value), separators=(",", ":"))


def finite(value: Any) -> Any:
    """The same value with None for numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes whenever a file does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def saved(path: Path) -> tuple[Record, Run]:
    """run.json of a folder, and the run that it describes; CheckpointError if it cannot be read."""
    content = rundir.read_run(path)
    return content, from_dict(content, f"{path}/run.json")


def is_number(value: Any) -> bool:
    """Whether this is a finite number, which a float can be."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def last(found: list[Record], key: str) -> Any:
    """The last value of a key, None if there is none; a number that is not finite is None too."""
    value = next((r[key] for r in reversed(found) if key in r), None)
    return value if isinstance(value, str) or is_number(value) else None


def state(marks: list[Record], offset: int, held: bool) -> str:
    """What became of a run, as `rundir.state` says."""
    if held:
        return "running"
    return rundir.ending(marks) or ("crashed" if offset else "new")


def sparkline(marks: Marks) -> list[float]:
    """Losses at about even distances in the file, in order."""
    count = min(SPARK, marks.offset // LINE)
    near = (marks.near(marks.offset * i // count, GLANCE) for i in range(count))
    found = [next((r for r in records if is_number(r.get("loss"))), None) for records in near]
    return [loss for _, loss in sorted({r["step"]: r["loss"] for r in found if r}.items())]


def pace(recent: list[Record]) -> float | None:
    """Seconds a step over these records, with whatever was done between the steps."""
    timed = [(r["step"], r["time"]) for r in recent if is_number(r.get("time"))]
    if len(timed) < 2 or timed[-1][0] <= timed[0][0]:
        return None
    return max(0.0, (timed[-1][1] - timed[0][1]) / (timed[-1][0] - timed[0][0]))


def mfu(content: Record, run: Run, rate: float | None) -> float | None:
    """Share of the devices' dense peak rate that a rate in tokens/s takes; None where anything of it is not known."""
    facts = content.get("environment", {})
    hardware, processes = facts.get("hardware"), facts.get("processes")
    try:
        card = card_of(hardware["name"], hardware["memory_bytes"])
        peak = card and cards.peak(card, content["executed"]["precision"])
        return rate * run.model.flops(run.recipe.length) / (peak * processes) if rate and peak else None
    except (KeyError, TypeError, AttributeError, ArithmeticError):  # not known, or no such facts
        return None


def numbered(folder: Path, before: str, after: str) -> dict[int, Path]:
    """What lies in a folder under a number between these, by the number."""
    found = {}
    for path in folder.glob(f"{before}*{after}"):
        number = path.name[len(before) : len(path.name) - len(after)]
        if number.isascii() and number.isdigit():
            found[int(number)] = path
    return found


def checkpoints(path: Path) -> dict[int, Path]:
    """Whole checkpoints of a run folder by their step."""
    return {n: one for n, one in numbered(path / "checkpoints", "step-", "").items() if (one / "state.json").is_file()}


def curve(run: Run, dataset: dict[str, Any]) -> Record | None:
    """The published curve that the run follows, from the first step on at which a loss is known."""
    match = followed(run, dataset)
    if match is None:
        return None
    known, tokens = match.curve, match.curve.tokens_per_step
    first, end = known.points[1][0] / tokens, known.recipe["steps"]
    steps = sorted({math.ceil(first * (end / first) ** (i / (POINTS - 1)) - 1e-6) for i in range(POINTS)})
    points = []
    for step in steps:
        loss, limits = expected(known, step * tokens), band(known, step * tokens, bool(match.validation))
        if loss is not None and limits is not None:
            points.append([step, round(loss, 4), round(limits[0], 4), round(limits[1], 4)])
    return {"name": known.name, "about": known.about, "points": points}


def followed(run: Run, dataset: dict[str, Any]) -> Match | None:
    """The curve whose recipe this is exactly, if there is one."""
    try:
        match = matching(run, dataset)
    except (TypeError, ValueError, ArithmeticError):  # facts of the data that cannot be
        return None
    return match if match and not match.differences else None


def flat(content: Any, name: str = "") -> dict[str, Any]:
    """The fields of an object in objects by their dotted names."""
    if not isinstance(content, dict):
        return {name: content}
    return {k: v for key, value in content.items() for k, v in flat(value, f"{name}.{key}" if name else key).items()}


def differing(paths: list[Path]) -> dict[str, list[Any]]:
    """Dotted fields of run.json in which these runs differ, with the value of each run, None for one that lacks it."""
    found = [flat(saved(path)[0]) for path in paths]
    names = dict.fromkeys(name for fields in found for name in fields)
    values = {name: [fields.get(name) for fields in found] for name in names if name not in ("name", "format")}
    return {name: each for name, each in values.items() if any(one != each[0] for one in each)}
