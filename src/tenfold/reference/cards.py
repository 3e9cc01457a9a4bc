"""Cards with their dense peak rates, published training speeds of GPT-2 124M, and prices: rows of gpus.csv,
throughput.csv and prices.csv. What a table lacks is None, never a guess."""

import csv
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from tenfold.errors import ConfigError

SLACK = (0.95, 1.1)  # of the table's memory, what torch reports: less with ECC, more where the maker means GiB
VERSION = re.compile(r"(\d+)\.(\d+)")
NOISE = {"nvidia", "geforce", "tesla", "amd", "instinct"}  # words of a name that tell no card from another


@dataclass(frozen=True)
class Card:
    """A row of gpus.csv. Rates are dense, in TFLOP/s; those of bf16, fp16 and fp8 accumulate in fp32."""

    name: str
    words: str
    """Further words that names of this card have, such as PCIe."""
    vendor: str
    capability: tuple[int, int] | None
    """CUDA compute capability."""
    memory_gb: float
    """In 10^9 bytes; of the smallest version where there are several."""
    bandwidth_gbs: float | None
    fp32: float | None
    tf32: float | None
    bf16: float | None
    fp16: float | None
    fp8: float | None
    native_bf16: bool
    notes: str
    source: str


@dataclass(frozen=True)
class Figure:
    """A row of throughput.csv: a published speed of training GPT-2 124M, or something near it."""

    gpu: str
    """As its source names it."""
    card: str
    """Name of the card in gpus.csv, or its chip (A100) where the version is not known; empty where neither is."""
    program: str
    """pytorch or llm.c for GPT-2 124M itself; other for another model or optimizer."""
    gpus: int
    length: int | None
    """Tokens a row."""
    dtype: str
    compile: str
    flash: str
    extra: str
    tokens_per_second: float
    """Of one GPU."""
    mfu_pct: float | None
    """Of the card's dense peak at that dtype."""
    kind: str
    source: str


@dataclass(frozen=True)
class Price:
    """A row of prices.csv, in US dollars a GPU-hour."""

    card: str
    low: float
    high: float
    kind: str
    date: str
    source: str


def rows(table: str) -> list[dict[str, str]]:
    """The rows of a table in this folder, by column."""
    text = (resources.files(__package__) / f"{table}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def number(text: str) -> float | None:
    """A figure; None where the table has none. Of a range such as 8-16, the smaller."""
    return float(text.split("-")[0]) if text else None


@cache
def cards() -> dict[str, Card]:
    """Every card by its name in the table."""
    return {
        row["gpu"]: Card(
            name=row["gpu"],
            words=row["words"],
            vendor=row["vendor"],
            capability=(int(found[1]), int(found[2]))
            if (found := VERSION.fullmatch(row["compute_capability"]))
            else None,
            memory_gb=number(row["mem_gb"]) or 0.0,
            bandwidth_gbs=number(row["bandwidth_gbs"]),
            fp32=number(row["fp32_tflops"]),
            tf32=number(row["tf32_tflops"]),
            bf16=number(row["bf16_tflops"]),
            fp16=number(row["fp16_tflops_fp32_accum"]),
            fp8=number(row["fp8_tflops"]),
            native_bf16=row["bf16_support"] == "yes",
            notes=row["notes"],
            source=row["source"],
        )
        for row in rows("gpus")
    }


@cache
def figures() -> tuple[Figure, ...]:
    """Every published training speed."""
    return tuple(
        Figure(
            gpu=row["gpu"],
            card=row["card"],
            program=row["program"],
            gpus=int(row["n_gpus"]),
            length=int(row["T"]) if row["T"] else None,
            dtype=row["dtype"],
            compile=row["compile"],
            flash=row["flash"],
            extra=row["extra"],
            tokens_per_second=float(row["tok_per_s_per_gpu"]),
            mfu_pct=number(row["mfu_implied_pct"]),
            kind=row["kind"],
            source=row["source"],
        )
        for row in rows("throughput")
    )


@cache
def prices() -> tuple[Price, ...]:
    """Every price."""
    return tuple(
        Price(
            card=row["card"],
            low=float(row["usd_per_gpu_hour_low"]),
            high=float(row["usd_per_gpu_hour_high"]),
            kind=row["kind"],
            date=row["date"],
            source=row["source"],
        )
        for row in rows("prices")
    )


def words(name: str) -> frozenset[str]:
    """A name's words in lower case, without those that tell no card from another; SXM4 counts as SXM."""
    found = re.findall(r"[a-z0-9]+", name.lower())
    return frozenset(re.sub(r"^sxm\d$", "sxm", word) for word in found) - NOISE


def matching(name: str) -> list[Card]:
    """The cards whose names have every word of this one. A word more, such as Laptop or Ti, is another card."""
    given = words(name)
    return [card for card in cards().values() if given and given <= words(f"{card.name} {card.words}")]


def squeezed(name: str) -> str:
    """A name without case, spaces and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def card(name: str) -> Card:
    """The card of a name: the table's, whatever its case and spaces, or a usual short one such as 4090 where only one
    card has it. ConfigError with the candidates or the nearest names otherwise."""
    for exact in cards().values():
        if squeezed(exact.name) == squeezed(name):
            return exact
    found = matching(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"the card {name!r} can be {listed(c.name for c in found)}; give one of these")
    lower = {known.lower(): known for known in cards()}
    near = [lower[known] for known in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.4)]
    raise ConfigError(
        f"no card {name!r} in the table; {'nearest' if near else 'possible'} are {listed(near or cards())}"
    )


def listed(names: Iterable[str]) -> str:
    """Names in one line."""
    return ", ".join(names)


def card_of(name: str, memory_bytes: int) -> Card | None:
    """The card of a device whose name and memory torch reports (NVIDIA A100-SXM4-40GB), or None: never a guess."""
    least, most = SLACK
    found = [c for c in matching(name) if least <= memory_bytes / (c.memory_gb * 1e9) <= most]
    return found[0] if len(found) == 1 else None


def peak(card: Card, precision: str) -> float | None:
    """Dense peak rate in FLOP/s of products in fp32, tf32, bf16, fp16 or fp8 (the last three accumulate in fp32); None
    where the table has none."""
    rates = {"fp32": card.fp32, "tf32": card.tf32, "bf16": card.bf16, "fp16": card.fp16, "fp8": card.fp8}
    rate = rates[precision]
    return None if rate is None else rate * 1e12
