"""What a model scores on tasks: the one function that the command line and a training call."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tenfold.data.tokenizer import Tokenizer
from tenfold.errors import ConfigError, DataError, did_you_mean
from tenfold.evaluate import sets
from tenfold.evaluate.scorer import Scorer
from tenfold.evaluate.tasks import GROUPS, TASKS, Figure, windows
from tenfold.model.gpt import GPT
from tenfold.world import World

SEED = 0  # of the sample that a limit takes: the same items for every model, run and number of processes


@dataclass(frozen=True)
class Result:
    """What a task came to."""

    figures: dict[str, Figure]
    records: int
    """Records that were scored."""
    of: int
    """Records in the set."""
    cut: int
    """Pairs of context and continuation that were longer than the model's context and lost their beginning."""
    verdict: str
    """Empty if the data was the published set; else how it differs, or what could not be checked."""


def check_options(
    tasks: Sequence[str], limit: int | None = None, data: Path | None = None, stride: int = 0, tokens: int = 0
) -> None:
    """ConfigError for tasks that do not exist, or options that cannot be."""
    if not tasks:
        raise ConfigError(f"no task is given; possible are {', '.join(TASKS)}")
    for name in tasks:
        if name not in TASKS:
            raise ConfigError(f"no task {name!r}{did_you_mean(name, TASKS)}; possible are {', '.join(TASKS)}")
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit}: give at least 1 item, or leave it out for all")
    for option, value in {"stride": stride, "tokens": tokens}.items():
        if value < 0:
            raise ConfigError(f"--{option} {value}: give a number above 0, or 0 for what suits")
    if data is not None and not data.is_dir() and len({TASKS[name].set for name in tasks}) > 1:
        raise ConfigError(f"--data {data} is no folder, so it can be the set of one task only; give a folder of sets")


def tasks_of(given: str) -> list[str]:
    """The tasks, or GROUPS of them, named in a text with commas between; ConfigError for one that does not exist."""
    named = (name.strip() for name in given.split(",") if name.strip())
    tasks = [task for name in named for task in GROUPS.get(name, (name,))]
    check_options(tasks)
    return tasks


def missing(tasks: Sequence[str], world: World) -> str:
    """Why some tasks cannot be scored, their sets not being had, or nothing. The lead brings them into the cache, and
    knows the reason; the other processes know that there is one."""
    said = ""
    if world.lead:
        try:
            for name in tasks:
                sets.load(TASKS[name].set)
        except DataError as error:
            said = str(error)
    return "" if world.least(int(not said)) else said or "the lead has no data"


def evaluate(
    model: GPT,
    tokenizer: Tokenizer,
    tasks: Sequence[str],
    world: World,
    limit: int | None = None,
    data: Path | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    stride: int = 0,
    tokens: int = 0,
    report: Callable[[str, int, int], None] = lambda task, done, of: None,
) -> dict[str, Result]:
    """The results of some tasks by name, the same on every process, all of which call this together.

    Args:
        limit: Score so many records of each set: a sample, the same at any time and anywhere; of running text the
            first so many lines.
        data: Folder of sets or file of one set; without, they come from the cache or their publishers.
        stride: Tokens from window to window of running text; 0 is half of the model's context.
        tokens: Positions computed at once; 0 is what suits the device.
        report: Told a task's name, how many of its batches are done, and of how many.

    Raises:
        ConfigError: no such task, or options that cannot be.
        DataError: a set is missing, damaged or another one, or has text that the tokenizer cannot encode.
        CheckpointError: the model gives values that are not finite.
    """
    check_options(tasks, limit, data, stride, tokens)
    results = {}
    for name in tasks:
        task = TASKS[name]
        with world.lead_first():  # which downloads what is missing
            loaded = sets.load(task.set, data)
        chosen = loaded.records if limit is None else some(loaded.records, limit, task.ask is windows)
        try:
            read = [task.read(record) for record in chosen]
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{name}: a record of its set has another form ({error}); get the set again") from None
        try:
            asked = task.ask(read, tokenizer, model.config.context, stride)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        scores = Scorer(model, world, autocast, tokens, partial(report, name))(asked)
        figures = task.tell(read, asked, scores)
        results[name] = Result(figures, len(chosen), len(loaded.records), scores.cut, loaded.verdict)
    return results


def some(records: list[sets.Record], limit: int, first: bool) -> list[sets.Record]:
    """At most `limit` records in their order: the first ones, or a sample, since sets are sorted by where they come
    from (HellaSwag has the captions of videos first)."""
    if first or limit >= len(records):
        return records[:limit]
    return [records[i] for i in sorted(random.Random(SEED).sample(range(len(records)), limit))]
