"""The run folder: run.json, metrics.jsonl, checkpoints/ and samples/. Standard library only, so that whatever shows a
run needs nothing of what trains it."""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tenfold.errors import CheckpointError, ConfigError, without_secrets
from tenfold.files import content_of, from_json, held, is_held, open_itself, write_atomically

FORMAT = 1
RUNS = Path("runs")
FACTS = ("vocabulary", "dataset", "origin", "environment", "executed")  # of run.json, beside the run's own fields
ENDINGS = ("done", "stopped", "resume", "start")  # the last of these tells how a training stands
BACK = ("resume", "rollback")  # events from whose step on everything before them is taken back


def find(name: str) -> Path:
    """The folder of a run given by its name in runs/ or by a path; CheckpointError names the runs that there are."""
    for path in (RUNS / name, Path(name)):
        if (path / "run.json").is_file():
            return path
    have = [path.name for path in runs()]
    there = f"runs/ has {', '.join(have[:8])}{' ...' if len(have) > 8 else ''}" if have else "runs/ has no run yet"
    raise CheckpointError(f"no run {name!r}: {there}; give one of them, or the path of a run folder")


def runs(root: Path = RUNS) -> list[Path]:
    """Run folders below `root`, by name."""
    return sorted(path.parent for path in root.glob("*/run.json"))


def folder_of(name: str) -> Path:
    """Where a run of this name lives; ConfigError if it is no name."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
        raise ConfigError(
            f"--name {name!r} cannot name a run; use letters, digits, '-', '_' and '.', at most 100 of them"
        )
    return RUNS / name


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError, naming `what` it should be, if there is none or it is damaged."""
    try:
        value = from_json(content_of(path))
    except OSError as error:
        raise CheckpointError(f"{what} {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(
            f"{what} {path} is damaged ({error}); restore it, or begin under another --name"
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} {path} is damaged (no JSON object); restore it, or begin under another --name")
    if value.get("format", FORMAT) != FORMAT:
        raise CheckpointError(
            f"{what} {path} has format {value['format']}, this tenfold reads {FORMAT}; update tenfold"
        )
    return value


def read_run(path: Path) -> dict[str, Any]:
    """What run.json of a run folder says."""
    content = read_json(path / "run.json", "run file")
    for part in FACTS:
        if not isinstance(content.get(part, {}), dict):
            raise CheckpointError(f"run file {path}/run.json is damaged ({part} is no object); restore it")
    return content


def write_run(path: Path, content: dict[str, Any]) -> None:
    """Write run.json of a run folder; CheckpointError if the disk does not take it."""
    text = json.dumps({"format": FORMAT, **content}, indent=2)
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "run.json", without_secrets(text) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"{path}/run.json cannot be written ({error.strerror}); mend that, and run the same command again"
        ) from None


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one line to metrics.jsonl of a run folder; numbers that are not finite become null, as JSON has none."""
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    append_line(path / "metrics.jsonl", json.dumps({**clean, "time": round(time.time(), 3)}))


def append_line(path: Path, line: str) -> None:
    """Add one line to a file of lines."""
    with open_itself(path, "a+b") as file:
        if file.tell() and not ends_line(file):
            file.write(b"\n")  # a crash left half a line; readers pass over it
        file.write(without_secrets(line).encode() + b"\n")


def ends_line(file: IO[bytes]) -> bool:
    """Whether a file opened for reading ends with a line feed."""
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl in order, without those that a later resume or roll-back took back and without
    half-written ones."""
    records: list[dict[str, Any]] = []
    try:
        lines = content_of(path / "metrics.jsonl").decode(errors="replace").splitlines()
    except OSError:
        return records
    for line in lines:
        try:
            record = from_json(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            continue
        if record.get("event") in BACK:
            records = [r for r in records if r["step"] < record["step"]]
        records.append(record)
    return records


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a run folder; ConfigError if another process on this machine trains into it, or it cannot be one."""
    while True:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            mine = isinstance(error, FileExistsError) and error.filename == str(path)  # not a folder above it
            if mine and (path.is_dir() or not os.path.lexists(path)):
                continue  # removed, or made, while `mkdir` looked what is there
            raise ConfigError(
                f"{path} cannot be a run's folder ({error.strerror}); move it, or give another --name"
            ) from None
        with contextlib.ExitStack() as stack:
            try:
                made = path.stat()
                stack.enter_context(held(path))
                same = os.path.samestat(made, path.stat())
            except FileNotFoundError:
                same = False
            except BlockingIOError:
                raise ConfigError(
                    f"{path} is being trained by another process; wait for it, or give another --name"
                ) from None
            if same:  # else another process removed it meanwhile, and what is held has no name any more
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):
                        path.rmdir()  # nothing came to lie in it; only who holds it may remove it
                return


def write_samples(path: Path, step: int, texts: Sequence[str]) -> Path:
    """Write the texts sampled at a step to samples/ of a run folder, each but the first under a line with its number;
    where they are."""
    place = path / "samples" / f"step-{step:06d}.txt"
    place.parent.mkdir(exist_ok=True)
    rest = (f"\n===== sample {number} =====\n{text}" for number, text in enumerate(texts[1:], 2))
    write_atomically(place, "".join((*texts[:1], *rest, "\n")))
    return place


def read_samples(place: Path) -> list[str]:
    """The texts of a file in samples/; OSError if it cannot be read."""
    content = content_of(place).decode(errors="replace").removesuffix("\n")
    return re.split(r"\n===== sample \d+ =====\n", content)


def state(path: Path) -> str:
    """running, done, stopped, crashed or new: what became of a run."""
    if is_held(path):
        return "running"
    records = read_metrics(path)
    return ending(records) or ("crashed" if records else "new")


def ending(records: list[dict[str, Any]]) -> str:
    """done or stopped, as the last training said that made these records; empty if it did not."""
    last = next((r["event"] for r in reversed(records) if r.get("event") in ENDINGS), "")
    return last if last in ("done", "stopped") else ""
