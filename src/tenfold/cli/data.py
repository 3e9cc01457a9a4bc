"""`tenfold prepare`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tyro

from tenfold.cli.common import command, parse


@dataclass(frozen=True)
class PrepareOptions:
    """Turn text of any size into token shards; goes on where it was stopped. It is read as a stream, and none of it is
    kept on the disk but the tokens."""

    source: tyro.conf.Positional[str]
    """fineweb-edu, fineweb, openwebtext, tinystories, shakespeare; OWNER/NAME of a dataset on the Hub; a .parquet or
    .jsonl file (also .jsonl.gz, .xz, .zst); a text file; a folder of any of these."""
    out: str = ""
    """Folder for the shards; empty for data/ and the source's name."""
    tokens: str = ""
    """Take whole documents until there are so many tokens, such as 10B or 100M; empty for all."""
    subset: str = ""
    """Part of a dataset: sample-10BT (usual for fineweb and fineweb-edu), sample-100BT, sample-350BT, default,
    CC-MAIN-2024-10; a folder, or a pattern of file names."""
    revision: str = "main"
    """Branch, tag or commit of a dataset; going on keeps the commit."""
    tokenizer: Literal["bytes", "chars", "gpt2"] = "gpt2"
    """bytes, chars (one id a character of the text) or gpt2 (GPT-2's BPE)."""
    val_fraction: float | None = None
    """Share of the text kept for validation, in whole documents; 0.1 if the dataset has no rule of its own."""
    val_tokens: str = ""
    """Instead: the documents within the first so many tokens validate (100M for fineweb and fineweb-edu)."""
    shard_tokens: str = "100M"
    """Tokens a shard."""
    text_field: str = "text"
    """Field of a .jsonl line, or column of a .parquet file, that has the text."""
    errors: Literal["auto", "strict", "replace"] = "auto"
    """Whether text that is not Unicode is refused, or replaced by U+FFFD; auto refuses it in your own files and
    replaces it in datasets of the Hub."""
    dedup: bool = False
    """Leave out documents that are the same as an earlier one; needs about 100 bytes of memory a document."""
    shuffle: int | None = None
    """Seed by which documents change places, within windows of 16.8M tokens; the windows keep their order."""
    check: bool = False
    """Compare every row with tiktoken, not one in a thousand; takes fifty times as long."""
    workers: int = 0
    """Processes that encode; 0 for one a core."""
    engine: Literal["auto", "inline", "processes", "ray"] = "auto"
    """Who encodes: this process, processes, or a Ray cluster (needs tenfold[ray]); the shards are the same."""
    overwrite: bool = False
    """Replace shards in --out that were made from something else."""


def prepare(arguments: Sequence[str]) -> int:
    """turn text or a dataset into token shards to train on"""
    from pathlib import Path

    from tenfold.console import Terminal
    from tenfold.prepare.catalog import folder_for, prepare_any
    from tenfold.prepare.options import count_of

    options: PrepareOptions = parse(PrepareOptions, arguments, "prepare")
    out = Path(options.out) if options.out else folder_for(options.source, options.subset)
    with Terminal() as shown:
        manifest = prepare_any(
            options.source,
            out,
            subset=options.subset,
            revision=options.revision,
            tokenizer=options.tokenizer,
            val_fraction=options.val_fraction,
            val_tokens=count_of(options.val_tokens) if options.val_tokens else None,
            tokens=count_of(options.tokens) if options.tokens else 0,
            shard_tokens=count_of(options.shard_tokens),
            text_field=options.text_field,
            errors="" if options.errors == "auto" else options.errors,
            dedup=options.dedup,
            shuffle=-1 if options.shuffle is None else options.shuffle,
            check=options.check,
            workers=options.workers,
            engine=options.engine,
            overwrite=options.overwrite,
            report=shown.preparing,
        )
    preset = "gpt2-124m" if manifest["splits"]["train"]["tokens"] >= 10**9 else "demo"
    print(f"train on it: {command()} train {preset} --name mine --data {shlex.quote(str(out))}")
    return 0
