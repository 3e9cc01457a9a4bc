"""A source into a corpus of token shards: which document goes to which split, and how a stopped run goes on.

Rows are read in order, encoded by an engine, and come back in order. Here they become shards: the split is decided one
document after the other, so it is a function of the source alone. Every few million ids a journal is written, after the
ids themselves are safe: where the reading stands, how many ids each split has, and all counts. A later run drops the
ids beyond them and goes on from there. Nothing of the source is ever kept on the disk.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tenfold.data.idfile import SPLITS, Ids
from tenfold.data.shards import MANIFEST, ShardWriter, dtype_for, read_manifest
from tenfold.errors import ConfigError, DataError, did_you_mean
from tenfold.files import content_of, from_json, held, open_itself, write_atomically
from tenfold.hardware import cores
from tenfold.prepare.encode import Document
from tenfold.prepare.options import Options
from tenfold.prepare.plan import CUT, SHARE, Job, Pace, Report, announced, expected, plan, sample, too_small, wrong
from tenfold.prepare.sources import Row, Source, brings_closer, find_source
from tenfold.prepare.workers import ENGINES

JOURNAL = "progress.json"
DIGEST_OF_IT = "sha256_of_the_rest"
SEEN = "digests.partial"  # of the documents so far, to find the same ones again
STATE = ".source.json"  # what the files of the source were, so that a complete corpus is known without reading it
OURS = {JOURNAL, JOURNAL + ".partial", SEEN, STATE, STATE + ".partial"}
COMMIT = 4_000_000
WINDOW = 1 << 24  # ids among which documents change places when they are shuffled
DIGEST = 16  # bytes of a document's SHA-256 by which the same one is found again


def prepare_text(
    source: Path,
    out: Path,
    tokenizer: str = "gpt2",
    val_fraction: float = 0.1,
    *,
    suffixes: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    overwrite: bool = False,
    engine: str = "auto",
    workers: int = 0,
    commit_tokens: int = COMMIT,
    report: Report = lambda message: None,
    **options: Any,
) -> dict[str, Any]:
    """Makes a folder of token shards from text on this machine, as `prepare` does.

    Args:
        source: A text file (one document), a .parquet or .jsonl file, also packed as .gz, .xz or .zst (a document a
            row), or a folder of such files, or of text files (a document each), as `find_source` says.
        options: The fields of `Options`.
    """
    chosen = Options(tokenizer, val_fraction, **options)
    return prepare(
        find_source(source, suffixes, exclude),
        out,
        chosen,
        overwrite=overwrite,
        engine=engine,
        workers=workers,
        commit_tokens=commit_tokens,
        report=report,
    )


def prepare(
    source: Source,
    out: Path,
    options: Options,
    *,
    overwrite: bool = False,
    engine: str = "auto",
    workers: int = 0,
    commit_tokens: int = COMMIT,
    report: Report = lambda message: None,
) -> dict[str, Any]:
    """Makes a folder of token shards and returns its manifest, which is written last.

    The same source and options give the same bytes, whoever encodes. If this was stopped in any way, calling it again
    goes on; if the folder is complete already, it is left as it is.

    Args:
        out: The folder to make. One that holds something else is refused.
        overwrite: Whether a complete corpus in `out` that was made from something else is replaced.
        engine: One of ENGINES, or "auto": processes, or this one alone if the source is small.
        workers: How many; 0 for one a core.
        commit_tokens: Ids that may have to be made again after a kill.
        report: Is told lines for people, and dicts for progress bars: "phase" ("survey", "write", "done") and "bytes"
            seen, or "tokens" written, "bytes" written of about "of_bytes", and "seconds_left".

    Raises:
        ConfigError: an option that cannot be.
        DataError: a source that is missing, damaged or too small, a row that cannot be read or ended the process that
            worked on it, a folder that holds something else, a full disk.
    """
    if engine not in ENGINES and engine != "auto":
        raise ConfigError(f"there is no engine {engine!r}{did_you_mean(engine, ENGINES)}; choose {', '.join(ENGINES)}")
    if workers < 0:
        raise ConfigError(f"workers is {workers}; give a number of processes, or 0 for one a core")
    if source.texts and (options.tokens or options.val_tokens or options.dedup or options.shuffle >= 0):
        raise ConfigError(
            "--tokens, --val-tokens, --dedup and --shuffle are for the rows of .jsonl and .parquet files; text files "
            "are taken as they are: leave these options out"
        )
    for note in source.notes:
        report(note)
    try:
        job = plan(source, options, engine, workers or cores(), report)
        pace = None if (out / MANIFEST).exists() else sample(job)
        if out.exists() and not out.is_dir():
            raise DataError(f"{out} is a file; nothing was changed: give a new or empty folder")
        out.mkdir(parents=True, exist_ok=True)
        with _alone(out):
            manifest = _finished(out, job, overwrite)
            if manifest:
                report(f"{out} is complete already: {_sizes(manifest)}")
                return manifest
            progress = _progress(out, job, report)
            pace = pace or sample(job)
            _check_room(out, job, pace)
            report(announced(job, pace, sum(progress["tokens"].values()), shutil.disk_usage(out).free))
            manifest = _write(out, job, pace, progress, commit_tokens, report)
            if source.state() != job.state:
                raise DataError(f"{source.name} was changed while it was read; run the same command again")
            write_atomically(out / STATE, _json(job.state))
            write_atomically(out / MANIFEST, _json(manifest))
            _tidy(out)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"the disk of {out} is full" if full else f"cannot go on in {error.filename or out} ({error.strerror})"
        remedy = "make room" if full else "mend that"
        raise DataError(f"{what}; {remedy} and run the same command again: it goes on where it stopped") from None
    report(f"{out} is complete: {_sizes(manifest)}")
    return manifest


def _check_room(out: Path, job: Job, pace: Pace) -> None:
    need = expected(job, pace) * dtype_for(job.tokenizer.vocab).itemsize
    there = sum(path.stat().st_size for split in SPLITS for path in out.glob(f"{split}_*.bin*"))
    free = shutil.disk_usage(out).free
    if need - there > free:
        raise DataError(
            f"the shards need about {need - there:,} more bytes, but the disk of {out} has {free:,} free; make room "
            "or choose another disk, and run the same command again"
        )


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def _sizes(manifest: dict[str, Any]) -> str:
    parts = (
        f"{split} {part['tokens']:,} tokens in {len(part['shards'])} shard{'s' * (len(part['shards']) > 1)}"
        for split, part in manifest["splits"].items()
    )
    return ", ".join(parts)


def earlier(out: Path) -> dict[str, Any]:
    """What a folder's manifest or journal says about the source; nothing if there is none."""
    about = _loaded(out / MANIFEST).get("source") or _loaded(out / JOURNAL).get("head", {}).get("source")
    return about if isinstance(about, dict) else {}


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keeps a second process out of a folder."""
    try:
        with held(out):
            yield
    except BlockingIOError:
        raise DataError(f"another process is writing to {out}; wait for it, or choose another folder") from None


def _finished(out: Path, job: Job, overwrite: bool) -> dict[str, Any] | None:
    """The manifest, if `out` is complete and made from the same; nothing, if there is something to do in it.

    Raises:
        DataError: `out` holds something else.
    """
    if not (out / MANIFEST).exists():
        others = sorted(path.name for path in out.iterdir() if path.name not in OURS)
        if others and not (out / JOURNAL).exists():
            raise DataError(
                f"{out} holds something else ({others[0]}); nothing was changed: give a new or empty folder"
            )
        return None
    manifest = read_manifest(out)
    same = {key: manifest.get(key) == job.head[key] for key in ("tokenizer", "options", "split_rule")}
    about, known = manifest.get("source"), _loaded(out / STATE)
    same["source"] = isinstance(about, dict) and about == {**about, **job.head["source"]} and known in ({}, job.state)
    differing = next((key for key, equal in same.items() if not equal), None)
    if differing is None:
        _tidy(out)  # after a run that was killed between the two
        return manifest
    if not overwrite:
        raise DataError(
            f"{out} is complete, but its {differing.replace('_', ' ')} differs from what was given; nothing was "
            "changed: choose another folder, or delete this one first"
        )
    (out / MANIFEST).rename(out / JOURNAL)  # from here on it is an unfinished run, of something else
    return None


def _loaded(path: Path) -> dict[str, Any]:
    """What a file of ours says; nothing if it is missing or damaged."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        value = from_json(content_of(path))
        return value if isinstance(value, dict) else {}
    return {}


def _tidy(out: Path) -> None:
    for name in (JOURNAL, SEEN):
        (out / name).unlink(missing_ok=True)


def _beginning(last_validates: int = 0) -> dict[str, Any]:
    """The progress of a run that has done nothing yet. `next` is a position in the source, `passed` counts the ids of
    all documents with an end of text after each, `sha256` is a chain: that of the last one and of the next document's.
    A document whose running number is `last_validates` does."""
    counts = ("rows", "empty", "null", "cleaned", "duplicate", "compared", "differing", "characters", "bytes")
    return {
        "next": (0, 0, 0),
        "tokens": dict.fromkeys(SPLITS, 0),
        "documents": dict.fromkeys(SPLITS, 0),
        "counts": dict.fromkeys(counts, 0),
        "passed": 0,
        "val_bytes": 0,
        "sha256": "",
        "last_validates": last_validates,
    }


def _progress(out: Path, job: Job, report: Report) -> dict[str, Any]:
    """Where an earlier run stopped, or the beginning; it is in the journal then."""
    progress, told = _beginning(), ""
    if (out / JOURNAL).exists():
        journal = _loaded(out / JOURNAL)
        if any(journal.get(key) != known for key, known in (("head", job.head), ("state", job.state))):
            told = f"{out} holds the beginning of a run with another source or other options; starting over"
        elif _signed({key: value for key, value in journal.items() if key != DIGEST_OF_IT}) != journal:
            told = f"{out / JOURNAL} is damaged; starting over"
        else:
            progress = {key: journal[key] for key in progress}
            done = sum(progress["tokens"].values())
            told = f"going on after {done:,} tokens of an earlier run" if done else ""
    if told:
        report(told)
    _record(out, job, progress)  # before the first shard: by this file the folder is known as ours
    return progress


def _record(out: Path, job: Job, progress: dict[str, Any]) -> None:
    write_atomically(out / JOURNAL, _json(_signed({"head": job.head, "state": job.state, **progress})))


def _signed(journal: dict[str, Any]) -> dict[str, Any]:
    """A journal with its own SHA-256: by one that is damaged the shards would go on wrongly, and nothing would show."""
    return {**journal, DIGEST_OF_IT: hashlib.sha256(json.dumps(journal, sort_keys=True).encode()).hexdigest()}


class _Writing(contextlib.ExitStack):
    """Documents on their way into shards, in the order of their rows. `progress` speaks of all that was taken; what is
    in the journal speaks of what is safe. Documents are held back until `flush`, which shuffles them if that was asked
    for; only with nothing held back may the journal be written."""

    def __init__(self, out: Path, job: Job, progress: dict[str, Any]) -> None:
        super().__init__()
        self.out, self.job, self.progress = out, job, progress
        self.held: dict[str, list[tuple[bytes, bool, Ids]]] = {split: [] for split in SPLITS}
        self.holding = 0  # ids
        self.seen: set[bytes] = set()
        self.digests: BinaryIO | None = None

    def __enter__(self) -> "_Writing":
        vocab, tokens = self.job.tokenizer.vocab, self.progress["tokens"]
        size = self.job.options.shard_tokens
        self.writers = {
            split: self.enter_context(ShardWriter(self.out, split, vocab, size, tokens[split])) for split in SPLITS
        }
        if self.job.options.dedup:
            self.digests = self.enter_context(open_itself(self.out / SEEN, "a+b"))
            known = DIGEST * sum(self.progress["documents"].values())
            if os.fstat(self.digests.fileno()).st_size < known:
                raise DataError(f"{self.out / SEEN} has lost what was written; delete {self.out} and prepare again")
            self.digests.truncate(known)
            self.digests.seek(0)
            self.seen = {self.digests.read(DIGEST) for _ in range(known // DIGEST)}
        return self

    @property
    def tokens(self) -> int:
        """Ids in the shards, once all is written: no split has an end of text before its first document."""
        return self.progress["passed"] - sum(count > 0 for count in self.progress["documents"].values())

    def take(self, row: Row, document: Document, ids: Ids) -> None:
        """Counts a row and, if it has a document that is new, sends its ids to a split."""
        progress, counts, options = self.progress, self.progress["counts"], self.job.options
        progress["next"] = (row.part, row.unit, row.row + 1)
        counts["rows"] += row.starts
        counts["compared"] += document.compared
        counts["differing"] += document.differs
        if document.state:
            counts[document.state] += 1
        if document.state in ("null", "empty"):
            return
        if self.digests:
            digest = document.digest[:DIGEST]
            if digest in self.seen:
                counts["duplicate"] += 1
                return
            self.seen.add(digest)
            self.digests.write(digest)
        counts["characters"] += document.characters
        counts["bytes"] += document.size
        progress["sha256"] = hashlib.sha256(bytes.fromhex(progress["sha256"]) + document.digest).hexdigest()
        split = self.job.source.parts[row.part].split or self._split(document)
        progress["documents"][split] += row.starts
        progress["passed"] += len(ids) + row.starts
        key = hashlib.sha256(b"%d " % options.shuffle + document.digest).digest() if options.shuffle >= 0 else b""
        self.held[split].append((key, row.starts, ids))
        self.holding += len(ids)

    def _split(self, document: Document) -> str:
        progress, options = self.progress, self.job.options
        if options.val_tokens:
            return "val" if progress["passed"] + document.tokens + 1 <= options.val_tokens else "train"
        size, total = document.size, progress["counts"]["bytes"]
        last = progress["last_validates"] == sum(progress["documents"].values()) + 1
        take = last or brings_closer(size, progress["val_bytes"], total, options.val_fraction)
        progress["val_bytes"] += size * take
        return "val" if take else "train"

    def flush(self) -> None:
        """Sends what is held back to the shards."""
        eot = np.array([self.job.tokenizer.eot])
        for split, documents in self.held.items():
            writer, parts = self.writers[split], list[Ids]()
            for _, starts, ids in sorted(documents, key=itemgetter(0)):  # the keys are equal if nothing is shuffled
                parts += [eot, ids] if starts and (writer.tokens or parts) else [ids]
            if parts:
                writer.append(np.concatenate(parts))
            documents.clear()
            self.progress["tokens"][split] = writer.tokens
        self.holding = 0

    def commit(self) -> None:
        """Makes sure that all is on the disk, and then says so in the journal."""
        for writer in self.writers.values():
            writer.sync()
        if self.digests:
            self.digests.flush()
            os.fsync(self.digests.fileno())
        _record(self.out, self.job, self.progress)


def _write(
    out: Path, job: Job, pace: Pace, progress: dict[str, Any], commit_tokens: int, report: Report
) -> dict[str, Any]:
    """Everything from where an earlier run stopped; the manifest."""
    options, source, begun, total = job.options, job.source, time.perf_counter(), sum(job.source.sizes())
    width, window = dtype_for(job.tokenizer.vocab).itemsize, WINDOW if options.shuffle >= 0 else 1
    of_tokens, enough = expected(job, pace), options.tokens or sys.maxsize
    with _Writing(out, job, progress) as writing:
        first = committed = writing.tokens
        engine = ENGINES[job.engine](job.coder, job.batches(tuple(progress["next"])), job.workers)
        with contextlib.closing(engine):
            for rows, encoded in engine:
                start = 0
                for row, document in zip(rows, encoded.documents, strict=encoded.problem is None):
                    if writing.tokens < enough:
                        writing.take(row, document, encoded.ids[start : start + document.tokens])
                        start += document.tokens
                if writing.tokens >= enough:
                    break
                if encoded.problem:
                    raise wrong(source, rows[encoded.problem[0]], encoded.problem[1])
                if writing.holding >= window:
                    writing.flush()
                if not writing.holding and writing.tokens - committed >= commit_tokens:
                    committed = writing.tokens
                    writing.commit()
                    of_tokens = min(round(committed * total / max(1, source.bytes_to(rows[-1]))), enough)
                    left = (of_tokens - committed) * (time.perf_counter() - begun) / (committed - first)
                    told = {"tokens": committed, "bytes": committed * width, "of_bytes": of_tokens * width}
                    report({"phase": "write", **told, "seconds_left": left})
        writing.flush()
        documents, tokens = progress["documents"], writing.tokens
        if job.head["split_rule"] == SHARE and not documents["val"] and documents["train"] > 1:
            progress = _beginning(last_validates=documents["train"])  # only now it is known which the last one is
        elif not all(progress["tokens"].values()):
            raise _one_sided(job, progress)
        else:
            parts = {
                split: {"documents": documents[split], "tokens": writer.tokens, "shards": writer.finish()}
                for split, writer in writing.writers.items()
            }
            report({"phase": "done", "tokens": tokens, "encoded": tokens - first, "bytes": tokens * width})
            if tokens < options.tokens:
                report(
                    f"{source.place} has {tokens:,} tokens, fewer than the {options.tokens:,} asked for; all were taken"
                )
            return {**_told(job, progress, report), "splits": parts}
    _record(out, job, progress)
    return _write(out, job, pace, progress, commit_tokens, report)


def _one_sided(job: Job, progress: dict[str, Any]) -> DataError:
    """The error for a source of which nothing trains, or nothing validates."""
    documents, counts = progress["documents"], progress["counts"]
    if job.head["split_rule"] == SHARE or sum(documents.values()) < 2:
        return too_small(job.source, job.options, counts["characters"], sum(documents.values()))
    empty = min(SPLITS, key=lambda split: documents[split])
    return DataError(
        f"{job.source.place} has {sum(documents.values()):,} documents and none of them is for {empty} "
        f"({job.head['split_rule']}); give more text, or another --val-tokens or --val-fraction"
    )


def _told(job: Job, progress: dict[str, Any], report: Report) -> dict[str, Any]:
    """The manifest but for the splits."""
    counts, documents, cut = progress["counts"], sum(progress["documents"].values()), job.head["split_rule"] == CUT
    if counts["differing"]:
        report(f"{counts['differing']:,} of {counts['compared']:,} compared rows took the reference tokenizer's ids")
    about = {
        "rows": 1 if cut else counts["rows"],
        "documents": 1 if cut else documents,
        **{f"{state}_documents": counts[state] for state in ("empty", "null", "cleaned", "duplicate")},
        "characters": counts["characters"],
        "bytes": counts["bytes"],
        "sha256": progress["sha256"],
    }
    compared = {"one_row_in": job.coder.every, "rows": counts["compared"], "differing": counts["differing"]}
    shuffled = {"shuffled_within_tokens": WINDOW} if job.options.shuffle >= 0 else {}
    return {**job.head, "source": about | job.head["source"], "compared": compared, **shuffled}
