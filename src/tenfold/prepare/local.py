"""Local text into a corpus of token shards: which text goes to which split, and how a stopped run goes on.

The source is read twice. The first time counts and hashes it. The second time it is a stream of pieces, each with its
split, that is a function of the source alone. So two things say where a run stands: how many pieces are done and how
many ids each split has. Every few million ids they are written to a journal, after the ids themselves are safe;
a later run drops the ids beyond them and goes on with the next piece.
"""

import contextlib
import errno
import json
import math
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tenfold.data.shards import FORMAT, MANIFEST, SPLITS, VERSION, ShardWriter, dtype_for, read_manifest
from tenfold.data.tokenizer import TOKENIZERS, Chars, Tokenizer, from_spec
from tenfold.errors import ConfigError, DataError
from tenfold.files import held, write_atomically
from tenfold.prepare.sources import Source, Survey, documents, find_source, survey, val_chosen

JOURNAL = "progress.json"
IDS_A_BYTE = {"gpt2": 0.3, "bytes": 1.0, "chars": 1.0}  # English has 0.24 for gpt2; to see whether there is room at all

ONE_DOCUMENT = "one document: the first floor((1 - val_fraction) * characters) characters train, the rest validates"
DOCUMENTS = (
    "whole documents: one validates when that brings the bytes of validation closer to val_fraction of all bytes so "
    "far; the last one does if none would"
)

Report = Callable[[str | dict[str, Any]], None]


def prepare_text(
    source: Path,
    out: Path,
    tokenizer: str = "gpt2",
    val_fraction: float = 0.1,
    shard_tokens: int = 100_000_000,
    text_field: str = "text",
    *,
    suffixes: tuple[str, ...] = (".txt", ".md"),
    exclude: tuple[str, ...] = (),
    errors: str = "strict",
    overwrite: bool = False,
    commit_tokens: int = 4_000_000,
    report: Report = lambda message: None,
) -> dict[str, Any]:
    """Makes a folder of token shards from local text and returns its manifest, which is written last.

    The same source and options give the same bytes. If this was stopped in any way, calling it again goes on; if the
    folder is complete already, it is left as it is.

    Args:
        source: A text file (one document), a folder (a document for each file below it that ends in one of
            `suffixes`, but not in folders called as in `exclude`, in the order of the paths), or a .jsonl file (a
            document a line). Empty documents are left out.
        out: The folder to make. One that holds something else is refused.
        tokenizer: "gpt2", "bytes" or "chars" (the characters of the source).
        val_fraction: Share of the text for validation, above 0 and at most 0.5.
        shard_tokens: Ids a shard; the last one of a split has fewer.
        text_field: The field of a .jsonl line that is read.
        errors: What happens to bytes that are not UTF-8: "strict" refuses them, "replace" makes them U+FFFD.
        overwrite: Whether a complete corpus in `out` that was made from something else is replaced.
        commit_tokens: Ids that may have to be made again after a kill.
        report: Is told lines for people, and dicts for progress bars: "phase" ("survey", "write", "done") and
            "bytes" seen, or "tokens" written and "bytes" written of about "of_bytes".

    Raises:
        ConfigError: an option that cannot be.
        DataError: a source that is missing, damaged or too small, a folder that holds something else, a full disk.
    """
    _check_options(tokenizer, val_fraction, shard_tokens, errors)
    if tokenizer == "gpt2":
        from_spec({"name": "gpt2"}).encode("")  # a missing vocabulary is told now, not after reading all the text
    options = {
        "val_fraction": val_fraction,
        "shard_tokens": shard_tokens,
        "text_field": text_field,
        "suffixes": suffixes,
        "exclude": exclude,
        "errors": errors,
    }
    try:
        text = find_source(source, suffixes, exclude, text_field, errors)
        state = text.state()
        found = survey(
            text, val_fraction, tokenizer == "chars", lambda size: report({"phase": "survey", "bytes": size})
        )
        _check_size(text, found, val_fraction)
        coder = Chars(found.symbols) if tokenizer == "chars" else from_spec({"name": tokenizer})
        head = _head(text, found, coder, options)
        if out.exists() and not out.is_dir():
            raise DataError(f"{out} is a file; nothing was changed: give a new or empty folder")
        out.mkdir(parents=True, exist_ok=True)
        with _alone(out):
            manifest = _finished(out, head, overwrite)
            if manifest:
                report(f"{out} is complete already: {_sizes(manifest)}")
                return manifest
            journal = _journal(out, head, report)
            _check_room(out, found, coder)
            manifest = _write(text, found, coder, out, head, journal, commit_tokens, report)
            if text.state() != state:
                raise DataError(f"{source} was changed while it was read; run the same command again")
            write_atomically(out / MANIFEST, _json(manifest))
            (out / JOURNAL).unlink()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"the disk of {out} is full" if full else f"cannot go on in {error.filename or out} ({error.strerror})"
        remedy = "make room" if full else "mend that"
        raise DataError(f"{what}; {remedy} and run the same command again: it goes on where it stopped") from None
    report(f"{out} is complete: {_sizes(manifest)}")
    return manifest


def _check_options(tokenizer: str, val_fraction: float, shard_tokens: int, errors: str) -> None:
    if tokenizer not in TOKENIZERS:
        raise ConfigError(f"there is no tokenizer {tokenizer!r}; choose one of {', '.join(TOKENIZERS)}")
    if not 0 < val_fraction <= 0.5:
        raise ConfigError(f"val_fraction is {val_fraction}; give a share above 0 and at most 0.5, such as 0.1")
    if shard_tokens < 1:
        raise ConfigError(f"shard_tokens is {shard_tokens}; give a number of at least 1, such as 100000000")
    if errors not in ("strict", "replace"):
        raise ConfigError(f"errors is {errors!r}; choose strict or replace")


def _check_size(source: Source, found: Survey, val_fraction: float) -> None:
    cut = _cut(found, val_fraction)
    if not found.documents or (found.documents == 1 and not 0 < cut < found.characters):
        raise DataError(
            f"{source.path} has {found.characters} characters in {found.documents} documents, too few for training and "
            f"validation at val_fraction {val_fraction}; give more text"
        )


def _cut(found: Survey, val_fraction: float) -> int:
    return math.floor((1 - val_fraction) * found.characters)


def _check_room(out: Path, found: Survey, tokenizer: Tokenizer) -> None:
    need = int(found.bytes * IDS_A_BYTE[tokenizer.name] * dtype_for(tokenizer.vocab).itemsize)
    there = sum(path.stat().st_size for split in SPLITS for path in out.glob(f"{split}_*.bin*"))
    free = shutil.disk_usage(out).free
    if need - there > free:
        raise DataError(
            f"the shards need about {need - there:,} more bytes, but the disk of {out} has {free:,} free; make room "
            "or choose another disk, and run the same command again"
        )


def _head(source: Source, found: Survey, tokenizer: Tokenizer, options: dict[str, Any]) -> dict[str, Any]:
    """The part of the manifest that is known before any id is written; a run goes on only where it is the same."""
    single = found.documents == 1
    val = 1 if single else found.val_documents or 1
    return json.loads(
        _json(
            {
                "format": FORMAT,
                "version": VERSION,
                "tenfold": _version(),
                "tokenizer": tokenizer.spec(),
                "options": options,
                "split_rule": ONE_DOCUMENT if single else DOCUMENTS,
                "source": {
                    "name": source.name,
                    "files": len(source.files),
                    "documents": found.documents,
                    "empty_documents": found.empty_documents,
                    "characters": found.characters,
                    "bytes": found.bytes,
                    "sha256": found.sha256,
                },
                "splits": {"train": {"documents": found.documents - val + single}, "val": {"documents": val}},
            }
        )
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tenfold")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def _sizes(manifest: dict[str, Any]) -> str:
    parts = (
        f"{split} {part['tokens']:,} tokens in {len(part['shards'])} shard{'s' * (len(part['shards']) > 1)}"
        for split, part in manifest["splits"].items()
    )
    return ", ".join(parts)


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keeps a second process out of a folder."""
    try:
        with held(out):
            yield
    except BlockingIOError:
        raise DataError(f"another process is writing to {out}; wait for it, or choose another folder") from None


def _finished(out: Path, head: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """The manifest, if `out` is complete and made from the same; nothing, if there is something to do in it.

    Raises:
        DataError: `out` holds something else.
    """
    if not (out / MANIFEST).exists():
        ours = {JOURNAL, JOURNAL + ".partial"}
        others = sorted(path.name for path in out.iterdir() if path.name not in ours)
        if others and not (out / JOURNAL).exists():
            raise DataError(
                f"{out} holds something else ({others[0]}); nothing was changed: give a new or empty folder"
            )
        return None
    manifest = read_manifest(out)
    same = ("tokenizer", "options", "source", "split_rule")  # by another version of tenfold is no reason to do it again
    if all(manifest.get(key) == head[key] for key in same):
        (out / JOURNAL).unlink(missing_ok=True)  # of a run that was killed between the two
        return manifest
    if not overwrite:
        differing = next(key for key in same if manifest.get(key) != head[key])
        raise DataError(
            f"{out} is complete, but its {differing.replace('_', ' ')} differs from what was given; nothing was "
            "changed: choose another folder, or delete this one first"
        )
    (out / MANIFEST).rename(out / JOURNAL)  # from here on it is an unfinished run, of something else
    return None


def _journal(out: Path, head: dict[str, Any], report: Report) -> dict[str, Any]:
    """Where an earlier run stopped, or the beginning."""
    start = {"head": head, "pieces": 0, "tokens": dict.fromkeys(SPLITS, 0)}
    journal = start
    with contextlib.suppress(FileNotFoundError):
        try:
            journal = json.loads((out / JOURNAL).read_bytes())
            if journal["head"] != head:
                raise KeyError
            if done := sum(journal["tokens"].values()):
                report(f"going on after {done:,} tokens of an earlier run")
        except (KeyError, TypeError, ValueError):
            report(f"{out} holds the beginning of a run with another source or other options; starting over")
            journal = start
    write_atomically(out / JOURNAL, _json(journal))  # before the first shard: by this file the folder is known as ours
    return journal


def _stream(
    source: Source, found: Survey, tokenizer: Tokenizer, val_fraction: float
) -> Iterator[tuple[str, bool, str]]:
    """All text in order: the split, whether end-of-text comes before it, and a piece to encode."""
    if found.documents == 1:
        cut = _cut(found, val_fraction)
        for split, start, stop in (("train", 0, cut), ("val", cut, found.characters)):
            document = next(document for document in documents(source) if document.size)
            for piece in tokenizer.pieces(_characters(document.chunks, start, stop)):
                yield split, False, piece
        return
    chosen, begun, count = val_chosen(val_fraction), set[str](), 0
    for document in documents(source):
        if not document.size:
            continue
        count += 1
        last = count == found.documents and not found.val_documents
        split = "val" if chosen(document.size) or last else "train"
        border = split in begun
        begun.add(split)
        for piece in tokenizer.pieces(document.chunks):
            yield split, border, piece
            border = False


def _characters(chunks: Iterator[str], start: int, stop: int) -> Iterator[str]:
    """The characters from `start` to before `stop` of a text."""
    for chunk in chunks:
        if stop <= 0:
            return
        yield chunk[max(0, start) : stop]
        start, stop = start - len(chunk), stop - len(chunk)


def _write(
    source: Source,
    found: Survey,
    tokenizer: Tokenizer,
    out: Path,
    head: dict[str, Any],
    journal: dict[str, Any],
    commit_tokens: int,
    report: Report,
) -> dict[str, Any]:
    """Encodes and writes what the journal does not have yet; returns the manifest."""
    options, pieces = head["options"], journal["pieces"]
    width = dtype_for(tokenizer.vocab).itemsize
    of_bytes = int(found.bytes * IDS_A_BYTE[tokenizer.name] * width)
    with contextlib.ExitStack() as stack:
        writers = {
            split: stack.enter_context(
                ShardWriter(out, split, tokenizer.vocab, options["shard_tokens"], journal["tokens"][split])
            )
            for split in SPLITS
        }
        first = committed = sum(writer.tokens for writer in writers.values())
        for split, border, piece in islice(_stream(source, found, tokenizer, options["val_fraction"]), pieces, None):
            if border:
                writers[split].append([tokenizer.eot])
            writers[split].append(tokenizer.encode(piece))
            pieces += 1
            tokens = sum(writer.tokens for writer in writers.values())
            if tokens - committed >= commit_tokens:
                committed = tokens
                for writer in writers.values():
                    writer.sync()
                counts = {split: writer.tokens for split, writer in writers.items()}
                write_atomically(out / JOURNAL, _json({"head": head, "pieces": pieces, "tokens": counts}))
                report({"phase": "write", "tokens": tokens, "bytes": tokens * width, "of_bytes": of_bytes})
        parts = {
            split: {**head["splits"][split], "tokens": writer.tokens, "shards": writer.finish()}
            for split, writer in writers.items()
        }
    tokens = sum(part["tokens"] for part in parts.values())
    report({"phase": "done", "tokens": tokens, "encoded": tokens - first, "bytes": tokens * width})
    return {**head, "splits": parts}
