"""The one door through which a training prints: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.spinner import Spinner
from rich.text import Text

from tenfold.errors import without_secrets
from tenfold.ladder.report import table


class Display(AbstractContextManager, Protocol):
    """What a training tells while it runs."""

    def say(self, text: str) -> None:
        """One line for the user."""

    def preparing(self, told: str | dict[str, Any]) -> None:
        """A line, or how far the preparation of text is."""

    def begin(self, position: int, steps: int) -> None:
        """Training begins at a position of so many steps."""

    def record(self, record: dict[str, Any]) -> None:
        """A record that also goes to metrics.jsonl."""

    def sample(self, step: int, text: str) -> None:
        """Text that the model wrote."""


class Silent:
    """Prints nothing: the display of all processes but the lead."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def preparing(self, told: str | dict[str, Any]) -> None:
        pass

    def begin(self, position: int, steps: int) -> None:
        pass

    def record(self, record: dict[str, Any]) -> None:
        pass

    def sample(self, step: int, text: str) -> None:
        pass


def printable(text: str) -> str:
    """Text without the control characters by which a model could command a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def figures(record: dict[str, Any]) -> str:
    """The figures of a record in words."""
    told = [
        f"{words} {record[key]:{form}}"
        for key, words, form in (
            ("loss", "loss", ".4f"),
            ("val_loss", "validation loss", ".4f"),
            ("hellaswag_acc_norm", "HellaSwag acc_norm", ".4f"),
            ("lambada_acc", "LAMBADA acc", ".4f"),
            ("lr", "lr", ".2e"),
            ("grad_norm", "norm", ".2f"),
        )
        if isinstance(record.get(key), float)
    ]
    if "place" in record:
        low, high = record["band"]
        told.append(f"{record['place']} the band {low:.2f} to {high:.2f}")
    if "tokens_per_second" in record:
        told.append(f"{record['tokens_per_second']:,.0f} tokens/s")
        told.append(f"data wait {record['data_wait']:.1%}")
    return "  ".join(told)


class Terminal:
    """Prints to standard error, so that standard output stays for results."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            TextColumn("{task.completed:,}/{task.total:,} steps"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID | None = None
        self.status = self.console.status("")
        self.told = time.monotonic()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.status.stop()
        self.bar.stop()

    def say(self, text: str) -> None:
        self.console.print(escape(without_secrets(text)), soft_wrap=True)

    def preparing(self, told: str | dict[str, Any]) -> None:
        if isinstance(told, str):
            self.status.stop()
            self.say(told)
        elif told["phase"] == "survey":
            self.tell(f"reading: {told['bytes'] / 1e6:,.0f} MB")
        elif told["phase"] == "write":
            share = min(1.0, told["bytes"] / max(1, told["of_bytes"]))
            left = f"{told['seconds_left'] / 60:.0f} min left" if told["seconds_left"] > 90 else "soon done"
            self.tell(f"writing: {told['tokens']:,} tokens, about {share:.0%}, {left}")
            if not self.console.is_terminal and time.monotonic() - self.told > 60:  # a log of a job of hours
                self.told = time.monotonic()
                self.say(f"{told['tokens']:,} tokens, about {share:.0%}, {left}")

    def tell(self, text: str) -> None:
        """Show what goes on, on a terminal only."""
        if self.console.is_terminal:
            self.status.update(text)
            self.status.start()

    def begin(self, position: int, steps: int) -> None:
        self.task = self.bar.add_task("", total=steps, completed=position, figures="")
        self.bar.start()

    def record(self, record: dict[str, Any]) -> None:
        step, told = record["step"], figures(record)
        if self.task is not None and "loss" in record:
            self.bar.update(self.task, completed=step + 1, figures=told)
        if message := record.get("message"):
            self.say(f"step {step}: {message}")
        elif told and (record.get("event") or "loss" not in record or not self.console.is_terminal):
            self.say(f"step {step:>6}  {told}" + (f"  {record['event']}" if "event" in record else ""))

    def sample(self, step: int, text: str) -> None:
        self.console.print(Panel(escape(printable(text)), title=f"sample at step {step}", title_align="left"))


class Climbing:
    """Shows rungs while they are measured: a table that grows on a terminal, a line a rung elsewhere."""

    def __init__(self, heading: str) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.heading, self.done = heading, 0
        self.live = Live(console=self.console, transient=True, auto_refresh=True, refresh_per_second=4)

    def __enter__(self) -> Climbing:
        self.say(self.heading)
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def say(self, text: str) -> None:
        """One line for the user."""
        self.console.print(escape(without_secrets(text)), soft_wrap=True)

    def told(self, ladder: dict[str, Any], current: str) -> None:
        """The rungs so far, and the one that is being measured, if one is."""
        rungs = ladder["rungs"]
        if self.console.is_terminal:
            now = Spinner("dots", f" measuring {escape(current)}") if current else Text("")
            self.live.update(Group(Text(table(ladder)), now))
            return
        for rung in rungs[self.done :]:
            figures = rung["reason"] or ""
            if rung["seconds_per_step"]:
                figures = f"{rung['seconds_per_step']:.3f} s a step, {rung['speedup']:.2f} times the first; {figures}"
            self.say(f"{rung['name']:<16} {rung['status']:<9} {figures.rstrip('; ')}")
        self.done = len(rungs)
