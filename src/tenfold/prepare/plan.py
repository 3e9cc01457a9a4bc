"""What a preparation will be, found out before it starts: the split, the tokenizer, and about how many tokens, bytes
and seconds it takes, from a short sample of this very source."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tenfold.data.shards import FORMAT, VERSION, dtype_for
from tenfold.data.tokenizer import Bytes, Chars, Tokenizer, from_spec
from tenfold.errors import ConfigError, DataError
from tenfold.prepare.encode import SELDOM, Coder, Unfit
from tenfold.prepare.options import Options
from tenfold.prepare.sources import Position, Reading, Row, Source, batches, cut_in_two, divided, place, read
from tenfold.prepare.workers import Batch

SMALL = 1 << 24  # bytes of source for which no process is started
SAMPLE = 1 << 22  # bytes of text by which a plan is made

CUT = "one document: the first floor((1 - val_fraction) * characters) characters train, the rest validates"
SHARE = (
    "whole documents: one validates when that brings the bytes of validation closer to val_fraction of all bytes so "
    "far; the last one does if none would"
)
FIRST = "whole documents: those within the first {:,} tokens, an end of text after each counted, validate"
GIVEN = "whole documents, as the dataset's own files divide them"

Report = Callable[[str | dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """What is to be done, as far as it is known before the first id. `head` is what the manifest begins with; a stopped
    run goes on only where it and `state`, the source's, are the same. `engine` is a key of ENGINES."""

    source: Source
    options: Options
    tokenizer: Tokenizer
    head: dict[str, Any]
    state: dict[str, str]
    engine: str
    workers: int

    @property
    def coder(self) -> Coder:
        """What the engine is given."""
        every = 1 if self.options.check else SELDOM
        return Coder(self.tokenizer.spec(), self.options.text_field, self.options.errors, every)

    def batches(self, start: Position = (0, 0, 0)) -> Iterator[Batch]:
        """The rows from a position on."""
        how = Reading(self.options.text_field, self.options.errors, self.tokenizer.pieces)
        for rows in batches(self.source, read(self.source, how, start)):
            yield self.source.lines(rows[0]), rows


def plan(source: Source, options: Options, engine: str, workers: int, report: Report) -> Job:
    """Decides what can be decided without encoding. One text is read for its length, and everything for `chars`."""
    state, size = source.state(), sum(part.file.size for part in source.parts)
    if engine == "auto":
        engine = "inline" if size < SMALL or workers == 1 else "processes"
    listing = json.dumps([[part.file.name, part.file.size] for part in source.parts])
    about = {"name": source.name, "files": len(source.parts), **source.origin}
    about["listing_sha256"] = hashlib.sha256(listing.encode()).hexdigest()
    texts = sum(part.file.size > 0 for part in source.parts) if source.texts else 0
    chars, rule = options.tokenizer == "chars", SHARE
    if not chars:  # a missing vocabulary is told now, not after reading the text
        from_spec({"name": options.tokenizer}).encode("")
    found = survey(source, options, report) if chars or texts == 1 else Survey(0, "", "")
    if chars and not found.symbols:
        raise too_small(source, options, 0, 0)
    tokenizer = Chars(found.symbols) if chars else from_spec({"name": options.tokenizer})
    if texts == 1:
        about["sha256"] = found.sha256
        source, rule = cut_in_two(source, found.characters, options.val_fraction), CUT
        if 0 in source.sizes():
            raise too_small(source, options, found.characters, 1)
    elif source.texts:
        source = divided(source, options.val_fraction) if texts else source
    elif all(part.split for part in source.parts):
        rule = GIVEN
        if options.val_tokens:
            raise ConfigError(
                f"{source.place} has files of its own for validation, so --val-tokens cannot be; leave it out, or "
                "choose the files for training alone with --subset"
            )
    elif options.val_tokens:
        rule = FIRST.format(options.val_tokens)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "tenfold": _version(),
        "tokenizer": tokenizer.spec(),
        "options": options.as_json(),
        "split_rule": rule,
        "source": about,
    }
    return Job(source, options, tokenizer, head, state, engine, workers)


def too_small(source: Source, options: Options, characters: int, documents: int) -> DataError:
    """The error for a source that does not give both splits something."""
    return DataError(
        f"{source.place} has {characters} characters in {documents} documents, too few for training and validation at "
        f"val_fraction {options.val_fraction}; give more text"
    )


def wrong(source: Source, row: Row, said: str) -> DataError:
    """The error for a row that cannot be used."""
    return DataError(f"{place(source, row)} {said}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tenfold")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


@dataclass(frozen=True)
class Survey:
    """What a source holds: characters (bytes that are not UTF-8 count as one each), SHA-256 of the bytes of its rows,
    and its characters once each, in their order, unless they were not asked for."""

    characters: int
    sha256: str
    symbols: str


def survey(source: Source, options: Options, report: Report) -> Survey:
    """Reads a source once; `report` is told the number of bytes seen every now and then.

    Raises:
        DataError: as `read` and `Coder.text`.
    """
    coder, digest, symbols = Coder({"name": "bytes"}, options.text_field, options.errors), hashlib.sha256(), set[str]()
    characters = size = told = 0
    for row in read(source, Reading(options.text_field, options.errors, Bytes().pieces)):
        data = row.data or b""
        digest.update(data)
        size += len(data)
        characters += len(data.decode(errors="surrogateescape")) if source.texts else 0
        if options.tokenizer == "chars":
            try:
                symbols.update(coder.text(source.lines(row), row.data)[0] or "")
            except Unfit as error:
                raise wrong(source, row, str(error)) from None
        if size - told > 1 << 26:
            told = size
            report({"phase": "survey", "bytes": size})
    return Survey(characters, digest.hexdigest(), "".join(sorted(symbols)))


@dataclass(frozen=True)
class Pace:
    """A sample from the beginning of a source: ids, about how many bytes of its files were read for them, seconds to
    read them, and seconds to encode them in one process."""

    tokens: int
    bytes: int
    reading: float
    encoding: float


def sample(job: Job) -> Pace:
    """Reads and encodes a few megabytes, so that what is wrong with a source shows before anything is written.

    Raises:
        DataError: no vocabulary; a source that is wrong or, if the sample is all of it, too small.
    """
    coder, total = job.coder, sum(job.source.sizes())
    if total > SAMPLE:
        coder.tokenizer.reference("")  # to load it takes as long as the whole sample
    start, encoding, tokens, size, characters, documents = time.perf_counter(), 0.0, 0, 0, 0, 0
    row = None
    for lines, rows in job.batches():
        before, row = time.perf_counter(), rows[-1]
        encoded = coder.encode(lines, [row.data for row in rows])
        encoding += time.perf_counter() - before
        if encoded.problem:
            number, said = encoded.problem
            raise wrong(job.source, rows[number], said)
        tokens += len(encoded.ids)
        characters += sum(document.characters for document in encoded.documents)
        documents += sum(document.tokens > 0 for document in encoded.documents)
        size += sum(len(row.data or b"") for row in rows)
        if size >= SAMPLE:
            return Pace(tokens, job.source.bytes_to(row), time.perf_counter() - start - encoding, encoding)
    if documents < 2:
        raise too_small(job.source, job.options, characters, documents)
    return Pace(tokens, total, time.perf_counter() - start - encoding, encoding)


def expected(job: Job, pace: Pace) -> int:
    """About how many tokens there will be; 0 if nothing is known."""
    total = round(pace.tokens * sum(job.source.sizes()) / max(1, pace.bytes))
    return min(total, job.options.tokens or total)


def announced(job: Job, pace: Pace, done: int, free: int) -> str:
    """What is coming, in a line: `done` are the tokens of an earlier run, `free` the bytes of the disk."""
    tokens, workers = expected(job, pace), 1 if job.engine == "inline" else job.workers
    if not tokens:
        return "how many tokens there will be is not known: the source begins without any text"
    seconds = max(0, tokens - done) / pace.tokens * (pace.reading + pace.encoding / workers)
    size = tokens * dtype_for(job.tokenizer.vocab).itemsize
    return (
        f"about {tokens:,} tokens, {in_bytes(size)} of shards ({in_bytes(free)} are free), and {in_time(seconds)} with "
        f"{workers} worker{'s' * (workers > 1)}; of the source nothing is kept on the disk"
    )


def in_bytes(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def in_time(seconds: float) -> str:
    """A number of seconds for people."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
