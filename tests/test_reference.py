"""The tables of cards, published speeds and prices: whole, sourced, and never a guess."""

import csv
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from conftest import ROOT
from tenfold.errors import ConfigError
from tenfold.model.config import ModelConfig
from tenfold.reference.cards import card, card_of, cards, figures, peak, prices

FOLDER = ROOT / "src/tenfold/reference"
TABLES = sorted(FOLDER.glob("*.csv"))
GIB = 2**30


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.stem)
def test_every_row_has_every_column_and_a_source(path: Path) -> None:
    with path.open(newline="") as file:
        head, *rows = csv.reader(file, strict=True)
    assert rows
    for row in rows:
        assert len(row) == len(head), row
        assert row[head.index("source")], row
        assert row[0], row


def test_the_tables_are_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["tenfold"]
    assert [p.stem for p in TABLES] == ["gpus", "prices", "throughput"]
    for path in TABLES:
        assert any(fnmatch(str(path.relative_to(FOLDER.parent)), pattern) for pattern in patterns), path


def test_rows_belong_together() -> None:
    """A speed names a card of the table, its chip, or nothing; a price names a card."""
    chips = {name.split()[0] for name in cards()}
    assert {f.card for f in figures()} <= set(cards()) | chips | {""}
    assert {f.program for f in figures()} == {"pytorch", "llm.c", "other"}
    assert {p.card for p in prices()} <= set(cards())
    assert all(0 < p.low <= p.high for p in prices())


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("A100 40GB", "A100 40GB"),
        ("a10040gb", "A100 40GB"),
        ("A100-40GB", "A100 40GB"),
        ("A100 40GB PCIe", "A100 40GB"),
        ("a100 80gb sxm4", "A100 80GB SXM"),
        ("4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("GeForce RTX 3060", "RTX 3060 12GB"),
        ("Tesla T4", "T4"),
        ("h200", "H200 SXM"),
        ("a10", "A10"),
        ("a6000", "RTX A6000"),
        ("m1 pro", "Apple M1 Pro"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
    ],
)
def test_a_card_by_its_usual_names(given: str, name: str) -> None:
    assert card(given).name == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a100", "can be A100 40GB, A100 80GB SXM, A100 80GB PCIe; give one of these"),
        ("A100 SXM", "can be A100 40GB, A100 80GB SXM; give"),
        ("h100", "can be H100 PCIe, H100 SXM;"),
        ("RTX 4080", "no card 'RTX 4080' in the table; nearest are RTX 40[79]0, RTX 40[79]0, RTX 5090"),
        ("L40", "no card 'L40' in the table; nearest are .*L40S"),
        ("4090 Ti", "no card '4090 Ti' in the table; nearest are RTX 4090"),
        ("zzzzzz", "possible are T4, P100 SXM2"),
        ("", "no card '' in the table; possible are T4"),
    ],
)
def test_an_unknown_or_ambiguous_card_is_told(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        card(given)


@pytest.mark.parametrize(
    ("name", "gib", "found"),
    [
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100 40GB"),
        ("NVIDIA A100-PCIE-40GB", 39.4, "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", 79.2, "A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", 79.1, "H100 SXM"),
        ("NVIDIA H100 PCIe", 79.1, "H100 PCIe"),
        ("NVIDIA H200", 139.7, "H200 SXM"),
        ("NVIDIA B200", 178.4, "B200 SXM"),
        ("Tesla T4", 14.7, "T4"),
        ("Tesla V100-SXM2-16GB", 15.8, "V100 SXM2 16GB"),
        ("Tesla V100-SXM2-32GB", 31.7, "V100 SXM2 32GB"),
        ("NVIDIA GeForce RTX 4090", 23.5, "RTX 4090"),
        ("NVIDIA GeForce RTX 3060", 11.7, "RTX 3060 12GB"),
        ("NVIDIA RTX 6000 Ada Generation", 47.4, "RTX 6000 Ada"),
        ("NVIDIA L40S", 44.5, "L40S"),
        ("NVIDIA A10G", 22.2, "A10G"),
        # what only looks alike
        ("NVIDIA GeForce RTX 3060", 7.7, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 15.7, None),
        ("NVIDIA GeForce RTX 4090 D", 23.5, None),
        ("NVIDIA L40", 44.5, None),
        ("NVIDIA H100", 79.1, None),
        ("NVIDIA H200 NVL", 139.7, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4.8, None),
        ("Tesla V100-PCIE-16GB", 15.8, None),
        ("NVIDIA A100-SXM4-40GB", 79.2, None),
        ("NVIDIA A100-SXM4-40GB", 0, None),
        ("Intel(R) Xeon(R) Processor", 23.5, None),
        ("", 39.4, None),
    ],
)
def test_a_card_by_the_name_that_torch_reports(name: str, gib: float, found: str | None) -> None:
    known = card_of(name, int(gib * GIB))
    assert (known.name if known else None) == found


def test_a_card_of_the_table_is_found_by_its_own_name_and_memory() -> None:
    for name, known in cards().items():
        assert card(name) is known
        assert card_of(name, int(known.memory_gb * 1e9)) is known


def test_peaks_are_dense_and_accumulate_in_fp32() -> None:
    h100 = {"fp32": 67e12, "tf32": 494.5e12, "bf16": 989e12, "fp16": 989e12, "fp8": 1979e12}
    assert {name: peak(card("H100 SXM"), name) for name in h100} == h100
    assert peak(card("RTX 4090"), "fp16") == 165.2e12  # not the 330.3 of fp16 sums
    assert peak(card("T4"), "fp16") == 65e12
    assert [peak(card("T4"), name) for name in ("tf32", "bf16", "fp8")] == [None, None, None]
    assert peak(card("RTX 6000 Ada"), "bf16") is None


def test_flops_give_the_mfu_that_was_published() -> None:
    """GPT-2 124M's FLOPs a token, times tokens a second, over the card's peak, for every speed of a known card."""
    flops = ModelConfig().flops(1024)
    assert flops == 855_166_464  # 6 * (124,439,808 - 1,024 * 768) + 12 * 12 * 768 * 1,024
    checked = 0
    for figure in figures():
        known = next((c for c in cards().values() if figure.card and c.name.startswith(figure.card)), None)
        precision = "fp16" if figure.dtype == "fp16" else "bf16"
        top = peak(known, precision) if known else None
        if figure.mfu_pct and top and figure.length == 1024:
            assert 100 * figure.tokens_per_second * flops / top == pytest.approx(figure.mfu_pct, abs=0.06), figure
            checked += 1
    assert checked >= 35
