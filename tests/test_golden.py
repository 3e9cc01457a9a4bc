"""Golden numbers: the demo's model and recipe on a small committed text give these losses, today and tomorrow."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import ROOT
from tenfold.data.shards import open_corpus
from tenfold.prepare import prepare_text
from tenfold.run import preset
from training import EXACT, losses, trainer

GOLDEN = [5.57771, 5.49636, 5.3409, 5.15539, 5.01376, 4.89826, 4.83273, 4.76809, 4.72092, 4.6486]


def test_golden_losses_of_the_demo(tmp_path: Path) -> None:
    """A change here is a change of what is computed: find out why before writing new numbers."""
    prepare_text(ROOT / "tests/data/small.txt", tmp_path, "bytes")
    run = preset("demo")
    one = trainer(
        open_corpus(tmp_path).train,
        model=replace(run.model, vocab=257),
        recipe=run.recipe,
        speed=replace(EXACT, rows=run.recipe.rows),
    )
    assert losses(one, 10) == pytest.approx(GOLDEN, abs=1e-4)
