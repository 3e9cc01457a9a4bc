"""Where `--log` sends what a training records, beside its own metrics.jsonl: a table, name -> sink. Behind each is a
library of others, imported when it is asked for."""

import contextlib
import html
import importlib.util
import io
import json
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tenfold import rundir
from tenfold.errors import ConfigError, did_you_mean, without_secrets
from tenfold.files import from_json, open_itself

Record = dict[str, Any]

PROJECT = "tenfold"  # what the libraries file runs under, where the user's environment names nothing else
SEPARATOR = "\n---\n"  # between the texts of a sample, to be read
BEGIN, END = 20, 60  # seconds that a server is waited for, at the start and at the end


@dataclass(frozen=True)
class Opening:
    """What a sink is opened with."""

    folder: Path
    """The run folder."""
    key: str
    """The run's name and when it began: the same however often it goes on, and another for another run."""
    content: dict[str, Any]
    """What run.json says."""
    step: int
    """Updates done; what was recorded of this step and later ones is taken back."""


class Sink(Protocol):
    """Takes the records of one run."""

    package: str
    """What must be installed; the extra of the same name brings it."""
    told: str
    """Where the user finds it, or why it is not where it was expected."""

    def __init__(self, opening: Opening) -> None: ...

    def write(self, step: int, figures: dict[str, float], event: str, samples: Sequence[str]) -> None:
        """The parts of one record: its numbers by name, what happened, in a line, and texts that the model wrote."""

    def back(self, step: int) -> None:
        """The training went back: what was recorded of this step and later ones no longer counts."""

    def close(self, failed: bool) -> None:
        """The training ended, or failed; returns once everything is written."""


class TensorBoard:
    """An event file in the run folder, another each time the run goes on. What is taken back disappears from its pages.
    It is written here, not by the library's SummaryWriter, whose thread prints a trace when the disk is full."""

    package = "tensorboard"

    def __init__(self, opening: Opening) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        self.event, self.began, self.summary = Event, SessionLog(status=SessionLog.START), summary
        path = opening.folder / "tensorboard" / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        path.parent.mkdir(exist_ok=True)
        self.file = RecordWriter(open_itself(path, "xb"))
        self.add(0, file_version="brain.Event:2")
        self.back(opening.step)
        self.add(opening.step, summary=summary.text("run", verbatim(json.dumps(opening.content, indent=2))))
        self.told = f"`tensorboard --logdir {opening.folder.parent}` shows it"

    def add(self, step: int, **what: Any) -> None:
        """One event of a step."""
        self.file.write(self.event(wall_time=time.time(), step=step, **what).SerializeToString())

    def write(self, step: int, figures: dict[str, float], event: str, samples: Sequence[str]) -> None:
        for name, value in figures.items():
            self.add(step, summary=self.summary.scalar(name, value))
        for name, texts in (("event", [event] if event else []), ("samples", samples)):
            if texts:
                self.add(step, summary=self.summary.text(name, verbatim(SEPARATOR.join(texts))))
        self.file.flush()

    def back(self, step: int) -> None:
        self.add(step, session_log=self.began)  # readers forget what they have of this step and later ones

    def close(self, failed: bool) -> None:
        self.file.close()


class WandB:
    """Weights & Biases: its server where the user is logged in, files in the run folder otherwise; it is never asked
    for an account. What is taken back stays there, and the curves, over the step, go back as the training did."""

    package = "wandb"

    def __init__(self, opening: Opening) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # of itself, which it would also send when offline
        import wandb

        self.html = wandb.Html
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            x_disable_meta=True,  # the command line, which may give access to data; run.json says the rest
            init_timeout=BEGIN,
            finish_timeout=END,
            finish_timeout_raises=True,
        )
        wanted = wandb.setup(settings).settings  # with what the user's environment and files say

        def begin(mode: str) -> Any:
            return wandb.init(
                project=wanted.project or PROJECT,
                id=opening.key,
                name=opening.folder.name,
                dir=opening.folder,
                config=opening.content,
                mode=mode,  # type: ignore[arg-type]
                resume="allow" if mode == "online" else None,  # files of one id become one run when they are sent
                settings=settings,
            )

        mode, why = wanted.mode, ""
        try:
            if mode == "online" and not wandb.login(prompt=False, verify=False):
                mode, why = "offline", "not logged in, "
            self.run = begin(mode)
        except wandb.Error as error:
            why = f"{in_a_line(error)}; "
            wandb.teardown()  # what is left of that try keeps the run's key
            self.run = begin("offline")
        self.run.define_metric("*", step_metric="step")
        files = f"{why}written to {opening.folder}/wandb; `wandb sync {opening.folder}/wandb/offline-run-*` sends it"
        there = f"it is at {self.run.url}" if self.run.url else "off, as WANDB_MODE says"
        self.told = files if self.run.offline else there

    def write(self, step: int, figures: dict[str, float], event: str, samples: Sequence[str]) -> None:
        record: dict[str, Any] = {"step": step, **figures}
        if event:
            record["event"] = event
        if samples:
            record["samples"] = self.html(f"<pre>{html.escape(SEPARATOR.join(samples))}</pre>", inject=False)
        self.run.log(record)

    def back(self, step: int) -> None:
        pass

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Trackio:
    """trackio's own database on this machine, or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL says. What is taken back
    stays there beside what came after."""

    package = "trackio"

    def __init__(self, opening: Opening) -> None:
        import trackio

        self.text, self.finish = trackio.Markdown, trackio.finish
        with quiet():
            self.run = trackio.init(PROJECT, opening.key, config=opening.content, resume="allow", embed=False)
        self.told = f"`trackio show --project {PROJECT}` shows it as {opening.key}"

    def write(self, step: int, figures: dict[str, float], event: str, samples: Sequence[str]) -> None:
        record: dict[str, Any] = dict(figures)
        if event:
            record["event"] = event
        if samples:
            record["samples"] = self.text(verbatim(SEPARATOR.join(samples)))
        self.run.log(record, step)

    def back(self, step: int) -> None:
        pass

    def close(self, failed: bool) -> None:
        with quiet():
            self.finish()


SINKS: dict[str, type[Sink]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}


def check(names: Sequence[str]) -> None:
    """ConfigError if a sink is unknown, or not installed."""
    for name in names:
        if name not in SINKS:
            raise ConfigError(f"--log {name}: no such sink{did_you_mean(name, SINKS)}; possible are {', '.join(SINKS)}")
        package = SINKS[name].package
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"--log {name}: {package} is not installed; pip install 'tenfold[{name}]', or leave it out"
            )


class Sinks(AbstractContextManager):
    """The open sinks of a run. One that fails, opening or later, is told once and dropped: the training and its own
    metrics.jsonl go on."""

    def __init__(self, names: Sequence[str], folder: Path, step: int, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.opened: dict[str, Sink] = {}
        for name in names:
            with self.dropped(name):
                opening = Opening(folder, key(folder), rundir.read_run(folder), step)
                self.opened[name] = SINKS[name](opening)
                say(f"--log {name}: {self.opened[name].told}")

    def __call__(self, record: Record) -> None:
        """Give a record of metrics.jsonl to all of them."""
        step, happened = record["step"], record.get("event", "")
        event = without_secrets(": ".join(part for part in (happened, record.get("message")) if part))
        for name, sink in list(self.opened.items()):
            with self.dropped(name):
                if happened in rundir.BACK:
                    sink.back(step)
                sink.write(step, figures(record), event, self.samples(record))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name, sink in list(self.opened.items()):
            with self.dropped(name):
                sink.close(failed=kind is not None)

    @contextlib.contextmanager
    def dropped(self, name: str) -> Iterator[None]:
        """Whatever a library raises ends its sink, not the training."""
        try:
            yield
        except Exception as error:
            self.opened.pop(name, None)
            self.say(f"--log {name} failed ({in_a_line(error)}); training goes on, and metrics.jsonl has it all")

    def samples(self, record: Record) -> list[str]:
        """The texts that a record names."""
        if "samples" not in record:
            return []
        return rundir.read_samples(self.folder / record["samples"])


def figures(record: Record) -> dict[str, float]:
    """The numbers of a record by their names; of a band, its two ends."""
    ends = dict(zip(("band_low", "band_high"), record.get("band", ()), strict=False))
    numbers = {name: value for name, value in record.items() if type(value) in (int, float) and name != "step"}
    return {**numbers, **ends}


def key(folder: Path) -> str:
    """A run's name and when it began, of which the first line of its metrics.jsonl tells."""
    with (folder / "metrics.jsonl").open(encoding="utf-8") as file:
        begun = from_json(file.readline())["time"]
    return f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(begun))}"


def in_a_line(error: Exception) -> str:
    """What an error of a library says."""
    return " ".join(str(error).split()) or type(error).__name__


def verbatim(text: str) -> str:
    """Text that a reader of Markdown shows as it is."""
    return textwrap.indent(text, "    ", lambda line: True)


def quiet() -> AbstractContextManager[io.StringIO]:
    """Standard output is for results: what a library prints there is left out."""
    return contextlib.redirect_stdout(io.StringIO())
