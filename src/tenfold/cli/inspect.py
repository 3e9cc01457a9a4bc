"""`tenfold data show`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from tenfold.cli.common import parse
from tenfold.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

    from tenfold.data.census import Census
    from tenfold.data.shards import Tokens
    from tenfold.data.tokenizer import Tokenizer

MARK = "<|endoftext|>"


@dataclass(frozen=True)
class ShowOptions:
    """Tell what a folder of token shards or one such file is, decode some of it, and check all of it."""

    path: tyro.conf.Positional[Path]
    """Folder that `tenfold prepare` made, or folder or file of llm.c, modded-nanogpt, build-nanogpt or nanoGPT."""
    start: int = 0
    """Position of the first token to decode."""
    tokens: int = 100
    """Number of tokens to decode."""
    split: Literal["train", "val"] | None = None
    """Split to decode from; by default train, or the only one of a single file."""


def data(arguments: Sequence[str]) -> int:
    """show what token shards hold, and check them"""
    verbs = ("show",)
    if not arguments or arguments[0] not in ("-h", "--help", *verbs):
        given = f"no {arguments[0]!r}{did_you_mean(arguments[0], verbs)}" if arguments else "nothing is asked"
        raise ConfigError(f"data: {given}; possible is `tenfold data show PATH`")
    options: ShowOptions = parse(ShowOptions, arguments[arguments[0] == "show" :], "data show")
    if options.start < 0 or options.tokens < 0:
        raise ConfigError(f"--start {options.start} --tokens {options.tokens}: give numbers of at least 0")
    from tenfold.console import printable
    from tenfold.data.census import census
    from tenfold.listing import render

    facts, tokenizer, splits = _open(options.path)
    split: str = options.split or next(iter(splits))
    if split not in splits:
        raise ConfigError(f"--split {split}: {options.path} belongs to {', '.join(splits)}; leave --split out")
    tokens = splits[split]
    if options.start >= len(tokens):
        raise ConfigError(
            f"--start {options.start}: {split} has {len(tokens):,} tokens; give at most {len(tokens) - 1}"
        )
    print(render(_facts(facts, splits), width=120))
    stop = min(options.start + options.tokens, len(tokens))
    text = _decoded(tokenizer, tokens, options.start, stop)
    print(f"\n{split}, tokens {options.start:,} to {stop:,}:")
    print(printable(text) if sys.stdout.isatty() else text, flush=True)
    found = {name: census(tokens.shards, tokenizer.vocab, tokenizer.eot) for name, tokens in splits.items()}
    print("\n" + render(_checks(found, tokenizer), width=120))
    for tokens in splits.values():
        tokens.check(tokenizer.vocab)  # names the file and the place of the first id that is beyond
    return 0


def _open(path: Path) -> "tuple[dict[str, str], Tokenizer, dict[str, Tokens]]":
    """What a path is, the tokenizer of its ids, and the ids of its splits."""
    from tenfold.data import foreign
    from tenfold.data.shards import FORMAT, Tokens, open_corpus

    if path.is_file() and not foreign.found(path):
        raise DataError(f"{path} is no token file; if it is text, `tenfold prepare {path}` makes token shards of it")
    if path.is_file():
        kind, tokenizer, shard = foreign.open_file(path)
        splits, identity = {foreign.split_of(path.name): Tokens([shard])}, {"sha256 of ids": shard.sha256}
    else:
        corpus = open_corpus(path)
        kind, tokenizer, identity = corpus.manifest["format"], corpus.tokenizer, {"fingerprint": corpus.fingerprint}
        splits = {"train": corpus.train, "val": corpus.val}
    about = "tenfold's shards" if kind == FORMAT else foreign.FORMATS[kind].about
    ids = f"{tokenizer.name}, {tokenizer.vocab:,} ids"
    facts = {"path": str(path), "format": about, "tokenizer": ids, **identity}
    return facts, tokenizer, splits


def _facts(facts: dict[str, str], splits: "dict[str, Tokens]") -> "Table":
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(name, value)
    for name, tokens in splits.items():
        size = sum(shard.path.stat().st_size for shard in tokens.shards)
        shards = f"{len(tokens.shards)} file{'s' * (len(tokens.shards) > 1)}"
        table.add_row(name, f"{len(tokens):,} tokens in {shards} of {size:,} bytes")
    return table


def _decoded(tokenizer: "Tokenizer", tokens: "Tokens", start: int, stop: int) -> str:
    """The text of some tokens, with every end-of-text marked; ids that the vocabulary lacks are told as such."""
    import numpy as np

    ids = tokens.read(start, stop - start)
    cuts = np.flatnonzero(ids >= tokenizer.eot)
    parts = [tokenizer.decode(part[part < tokenizer.eot]) for part in np.split(ids, cuts)]
    marks = [MARK if ids[cut] == tokenizer.eot else f"<no token: {ids[cut]}>" for cut in cuts]
    return parts[0] + "".join(mark + part for mark, part in zip(marks, parts[1:], strict=True))


def _checks(found: "dict[str, Census]", tokenizer: "Tokenizer") -> "Table":
    """What a look at all ids found, a column for each split."""
    from rich.table import Table

    from tenfold.data.census import LENGTHS, PIECE

    table = Table("", *found, box=None, pad_edge=False)
    for name, tell in {
        "ids in range": lambda c: f"NO: {c.beyond:,} above {tokenizer.vocab - 1}" if c.beyond else "yes",
        "highest id": lambda c: f"{c.highest:,}",
        "documents": lambda c: f"{c.documents:,}",
        "median length": lambda c: "at least " * (c.median == LENGTHS) + f"{c.median:,} tokens",
        "longest": lambda c: f"{c.longest:,} tokens",
        f"repeated in pieces of {PIECE:,}": lambda c: (
            f"{c.repeated / max(1, c.looked):.2%} of {c.looked:,} tokens" + f" (1 in {c.share})" * (c.share > 1)
        ),
        "most frequent tokens": lambda c: "\n".join(
            [f"(of 1 in {c.stride})"] * (c.stride > 1) + [f"{_name(tokenizer, i)} {part:.2%}" for i, part in c.frequent]
        ),
    }.items():
        table.add_row(name, *(tell(census) for census in found.values()))
    return table


def _name(tokenizer: "Tokenizer", i: int) -> str:
    """A token as it is written in a table."""
    if i >= tokenizer.eot:
        return MARK if i == tokenizer.eot else str(i)
    return repr(tokenizer.decode([i]))
