"""The validation losses that a run left: tenfold's own records, or the log of another program."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.errors import DataError

STEP = r"(\d{1,18})"
NUMBER = r"([-+]?(?:nan|inf(?:inity)?|\d+(?:\.\d*)?(?:e[-+]?\d+)?))"
SCORE = "hellaswag_acc_norm"  # in metrics.jsonl
LONGEST = 1 << 16  # characters of a line; more are no line of a log
UNKNOWN = 1 << 24  # characters without a line that is known, after which a file is no log
WHOLE = 0.005  # largest standard error of a score of all 10,042 items
Values = dict[int, float]  # step -> loss or score


@dataclass(frozen=True)
class Log:
    """What a log says, by step: validation loss in nats a token (not finite where the run diverged), and HellaSwag
    (acc_norm). `back`: the steps to which the log of another program goes back, which takes back what came after."""

    program: str
    losses: Values
    hellaswag: Values
    back: tuple[int, ...] = ()


@dataclass(frozen=True)
class Form:
    """What a program's lines look like: any of them, and those with a step and a validation loss or HellaSwag."""

    example: str
    any: re.Pattern[str]
    loss: re.Pattern[str]
    hellaswag: re.Pattern[str] | None = None


FORMS = {
    "build-nanogpt": Form(
        "250 val 6.1668",
        re.compile(rf"^\d+ (?:train|val|hella) {NUMBER}$", re.I),
        re.compile(rf"^{STEP} val {NUMBER}$", re.I),
        re.compile(rf"^{STEP} hella {NUMBER}$", re.I),
    ),
    "nanoGPT": Form(
        "step 250: train loss 6.1612, val loss 6.1668",
        re.compile(r"\b(?:step \d+: train loss|iter \d+: loss) ", re.I),
        re.compile(rf"\bstep {STEP}: train loss \S+, val loss {NUMBER}(?![\w.])", re.I),
    ),
    "llm.c": Form(
        "s:250 tel:6.1668",
        re.compile(rf"^s:\d+ (?:tel|trl|eval):{NUMBER}", re.I),
        re.compile(rf"^s:{STEP} tel:{NUMBER}$", re.I),
        re.compile(rf"^s:{STEP} eval:{NUMBER}$", re.I),
    ),
}


def from_records(records: Iterable[dict[str, Any]]) -> Log:
    """What the records of a run folder say, as `rundir.read_metrics` gives them; a null there was no finite number.
    HellaSwag counts where all of it was scored: a right run has 0.356 on the first 2,000 items."""
    losses, scores = Values(), Values()
    for record in records:
        if "val_loss" in record:
            losses[record["step"]] = math.nan if record["val_loss"] is None else record["val_loss"]
        error = record.get(f"{SCORE}_error", 0)
        if SCORE in record and error is not None and error <= WHOLE:
            scores[record["step"]] = record[SCORE]
    return Log("tenfold", losses, scores)


def read_log(path: Path) -> Log:
    """What the log of another program says. Of a run that went back and on again, only what holds at the end.

    Raises:
        DataError: it cannot be read, is empty, of none of these programs, or has no validation loss.
    """
    counts, figures = Counter[str](), {name: list[str]() for name in FORMS}
    read = filled = 0
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            while (line := file.readline(LONGEST)) and (counts or read < UNKNOWN):
                plain = line.strip()
                read, filled = read + len(line), filled + len(plain)
                for name, form in FORMS.items():
                    if form.any.search(plain):
                        counts[name] += 1
                        if form.loss.search(plain) or (form.hellaswag and form.hellaswag.search(plain)):
                            figures[name].append(line)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; give a log file or a run") from None
    program = max(FORMS, key=lambda name: counts[name])
    known = "; ".join(f"{name} ({form.example})" for name, form in FORMS.items())
    if not counts[program]:
        what = "is no log that tenfold reads" if filled else "is empty"
        raise DataError(f"{path} {what}; it reads, line by line, those of {known}; give one, or a run of tenfold's")
    form, lines = FORMS[program], figures[program]
    losses, back = values(lines, form.loss)
    if not losses:
        raise DataError(
            f"{path} is a log of {program} without a validation loss; give one that has lines like: {form.example}"
        )
    return Log(program, losses, values(lines, form.hellaswag)[0] if form.hellaswag else {}, back)


def values(lines: list[str], pattern: re.Pattern[str]) -> tuple[Values, tuple[int, ...]]:
    """Step -> number of the lines that match, and the steps to which the run went back: what came from such a step on
    before is dropped. A last line without a line feed whose number has fewer decimals than the one before is half
    written."""
    found: Values = {}
    back: list[int] = []
    decimals = 0
    for line in lines:
        if match := pattern.search(line.strip()):
            step, before, decimals = int(match[1]), decimals, len(match[2].partition(".")[2])
            if decimals < before and line[-1] not in "\r\n" and not match[2].isalpha():
                break
            if found and step <= next(reversed(found)):
                found = {at: value for at, value in found.items() if at < step}
                back.append(step)
            found[step] = float(match[2])
    return found, tuple(back)
