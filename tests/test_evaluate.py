"""The validation loss: every token but the first is a target once, whatever the layout."""

import pytest
import torch
import torch.nn.functional as F

from conftest import TINY
from tenfold.data.shards import Corpus, Tokens
from tenfold.errors import DataError
from tenfold.evaluate.validation import validation_loss
from tenfold.world import World
from test_generate import lively

ALONE = World(0, 1, torch.device("cpu"))


class Part:
    """The first tokens of a split."""

    def __init__(self, tokens: Tokens, count: int) -> None:
        self.tokens, self.count = tokens, count

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, count: int):
        assert start + count <= self.count
        return self.tokens.read(start, count)


@torch.no_grad()
def by_definition(tokens: Part, length: int, targets: int) -> float:
    """Mean of the losses, one row at a time, in double precision."""
    model, total = lively().double(), 0.0
    for start in range(0, targets, length):
        end = min(start + length, targets)
        window = torch.from_numpy(tokens.read(start, end - start + 1))
        total += F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="sum").item()
    return total / targets


@pytest.mark.parametrize("count", [1000, 32 * 31 + 1, 20])
@pytest.mark.parametrize("micro", [1, 7, 64])
def test_all_of_a_split(corpus: Corpus, count: int, micro: int) -> None:
    tokens = Part(corpus.val, count)
    got = validation_loss(lively(), tokens, TINY.context, ALONE, micro=micro)  # type: ignore[arg-type]
    assert got == pytest.approx(by_definition(tokens, TINY.context, count - 1), rel=1e-5)


def test_some_rows_of_a_split(corpus: Corpus) -> None:
    tokens = Part(corpus.val, 1000)
    got = validation_loss(lively(), tokens, 16, ALONE, rows=5)  # type: ignore[arg-type]
    assert got == pytest.approx(by_definition(tokens, 16, 80), rel=1e-5)


def test_a_single_token_has_no_loss(corpus: Corpus) -> None:
    with pytest.raises(DataError, match="a loss needs at least 2"):
        validation_loss(lively(), Part(corpus.val, 1), 16, ALONE)  # type: ignore[arg-type]
