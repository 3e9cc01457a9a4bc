"""`tenfold prepare`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tyro

from tenfold.cli.common import command, parse


@dataclass(frozen=True)
class PrepareOptions:
    """Turn a text file, a folder of .txt and .md files, or a .jsonl file into token shards; goes on where it was
    stopped."""

    source: tyro.conf.Positional[str]
    """Text file, folder of .txt and .md files, or .jsonl file with a text field."""
    out: str = ""
    """Folder for the shards; empty for data/ and the source's name."""
    tokenizer: Literal["bytes", "chars", "gpt2"] = "gpt2"
    """bytes, chars (one id a character of the text) or gpt2 (GPT-2's BPE)."""
    val_fraction: float = 0.1
    """Share of the text kept for validation, in whole documents."""
    shard_tokens: int = 100_000_000
    """Tokens a shard."""
    text_field: str = "text"
    """Field of a .jsonl line that has the text."""
    errors: Literal["strict", "replace"] = "strict"
    """Whether bytes that are not UTF-8 are refused, or replaced by U+FFFD."""
    overwrite: bool = False
    """Replace shards in --out that were made from something else."""


def prepare(arguments: Sequence[str]) -> int:
    """turn text into token shards to train on"""
    from pathlib import Path

    from tenfold.console import Terminal
    from tenfold.prepare import prepare_text

    options: PrepareOptions = parse(PrepareOptions, arguments, "prepare")
    source = Path(options.source)
    whole = source.resolve()
    out = Path(options.out) if options.out else Path("data") / (whole.name if whole.is_dir() else whole.stem)
    with Terminal() as shown:
        prepare_text(
            source,
            out,
            options.tokenizer,
            val_fraction=options.val_fraction,
            shard_tokens=options.shard_tokens,
            text_field=options.text_field,
            errors=options.errors,
            overwrite=options.overwrite,
            report=shown.preparing,
        )
    print(f"train on it: {command()} train demo --name mine --data {shlex.quote(str(out))}")
    return 0
