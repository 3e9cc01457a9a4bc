"""What may be asked of a preparation, checked before anything is read."""

import re
from dataclasses import dataclass, fields
from typing import Any

from tenfold.data.tokenizer import TOKENIZERS
from tenfold.errors import ConfigError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True)
class Options:
    """All that decides, with the source, which ids are written where.

    Attributes:
        tokenizer: "gpt2", "bytes" or "chars" (the characters of the source).
        val_fraction: Share of the text for validation, above 0 and at most 0.5.
        val_tokens: Instead of a share: the documents within the first so many tokens validate.
        tokens: Whole documents are taken until there are so many tokens for training and validation; 0 takes all.
        shard_tokens: Ids a shard; the last one of a split has fewer.
        text_field: The field of a .jsonl line, or the column of a .parquet file, that is read.
        errors: What happens to text that is not Unicode: "strict" refuses it, "replace" makes it U+FFFD.
        dedup: Whether a document that is the same as an earlier one is left out.
        shuffle: A seed by which documents change places, or -1.
        check: Whether every row is compared with the reference tokenizer, not one in a thousand.
    """

    tokenizer: str = "gpt2"
    val_fraction: float = 0.1
    val_tokens: int = 0
    tokens: int = 0
    shard_tokens: int = 100_000_000
    text_field: str = "text"
    errors: str = "strict"
    dedup: bool = False
    shuffle: int = -1
    check: bool = False

    def __post_init__(self) -> None:
        possible: dict[str, tuple[bool, str]] = {
            "tokenizer": (self.tokenizer in TOKENIZERS, f"one of {', '.join(TOKENIZERS)}"),
            "val_fraction": (0 < self.val_fraction <= 0.5, "a share above 0 and at most 0.5, such as 0.1"),
            "val_tokens": (self.val_tokens >= 0, "a number of tokens, such as 1M, or 0 for a share"),
            "tokens": (self.tokens >= 0, "a number of tokens, such as 10M, or 0 for all"),
            "shard_tokens": (self.shard_tokens >= 1, "a number of at least 1, such as 100M"),
            "text_field": (bool(self.text_field), "the name of the field with the text"),
            "errors": (self.errors in ("strict", "replace"), "strict or replace"),
            "shuffle": (self.shuffle >= -1, "a seed of at least 0"),
        }
        for name, (fine, needed) in possible.items():
            if not fine:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give {needed}")
        if self.tokens and self.tokens <= self.val_tokens:
            raise ConfigError(
                f"tokens is {self.tokens:,}, but the documents within the first {self.val_tokens:,} tokens validate, "
                "so nothing would train; ask for more --tokens, or give a smaller --val-tokens"
            )

    def as_json(self) -> dict[str, Any]:
        """What was asked beyond what is usual, for the manifest, with what every corpus has."""
        usual = Options()
        always = {"val_fraction", "shard_tokens", "text_field", "errors"}
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "tokenizer"}
        return {name: value for name, value in given.items() if name in always or value != getattr(usual, name)}


def count_of(text: str) -> int:
    """A number of tokens as people write it: 1000000, 1_000_000, 100M, 1.5B.

    Raises:
        ConfigError: it is none.
    """
    found = re.fullmatch(r"(\d[\d_,]*(?:\.\d+)?)\s*([KMBT]?)", text.strip(), re.IGNORECASE)
    if not found:
        raise ConfigError(f"{text!r} is no number of tokens; give one such as 1000000, 100M or 10B")
    number, unit = re.sub("[_,]", "", found[1]), UNITS[found[2].upper()]
    return round(float(number) * unit) if "." in number else int(number) * unit
