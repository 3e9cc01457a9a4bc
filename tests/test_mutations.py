"""A thousand damaged files: each is refused in one line or does what the good one does, in time, in memory, and nothing
is written outside its folder. `mutating.py` makes them and says what it did to which file."""

import json
import subprocess
import sys

import pytest

from conftest import ROOT, environment
from mutating import KINDS

QUICK, ALL = 8, 80  # damages of a kind


def mutated(count: int, seed: int, *kinds: str) -> dict[str, dict[str, int]]:
    """How many damages of each kind were refused, and how many loaded."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/mutating.py"), str(count), str(seed), *kinds],
        capture_output=True,
        text=True,
        timeout=280,
        env={**environment(), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    result: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    wrong = [f"{kind}, seed {seed}, {one}" for kind, found in result.items() for one in found.pop("wrong")]
    print(result)
    assert not wrong, "\n\n".join(wrong[:5])
    return result


def test_a_hundred_damaged_files() -> None:
    found = mutated(QUICK, 0)
    assert sum(sum(counts.values()) for counts in found.values()) == QUICK * len(KINDS) > 100
    assert sum(counts["refused"] for counts in found.values()) > 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_damaged_files(kind: str) -> None:
    assert ALL * len(KINDS) > 1_000
    (counts,) = mutated(ALL, 1, kind).values()
    assert counts["refused"] + counts["loaded"] == ALL
