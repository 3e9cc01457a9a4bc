"""The scorer: log-likelihoods by their definition, whatever is shared, padded, cut, batched or spread over
processes."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import ROOT, TINY, environment, torchrun
from tenfold.errors import CheckpointError
from tenfold.evaluate import scorer
from tenfold.evaluate.scorer import Batching, Pair, Scorer, pieces
from tenfold.model.gpt import GPT
from tenfold.world import World
from test_generate import lively

ALONE = World(0, 1, torch.device("cpu"))


@torch.no_grad()
def by_definition(model: GPT, pairs: Sequence[Pair]) -> tuple[list[float], list[bool]]:
    """One whole row at a time in double precision, all scores of the vocabulary."""
    model, sums, greedy = model.double(), [], []
    for context, continuation in pairs:
        total, right = 0.0, True
        for seen, asked in pieces(context, continuation, model.config.context):
            scores = model(torch.tensor([seen + asked[:-1]]))[0, len(seen) - 1 :].log_softmax(-1)
            total += float(scores[range(len(asked)), asked].sum())
            right &= scores.argmax(-1).tolist() == list(asked)
        sums.append(total)
        greedy.append(right)
    return sums, greedy


def some_pairs(items: int, endings: int, seed: int = 0) -> list[Pair]:
    """Contexts of 1 to 20 ids with a few continuations of 1 to 9 each, some of them what the model itself would say."""
    draw, model, pairs = random.Random(seed), lively(), []
    for _ in range(items):
        context = tuple(draw.randrange(257) for _ in range(draw.randint(1, 20)))
        pairs += [
            (context, tuple(draw.randrange(257) for _ in range(draw.randint(1, 9))))
            for _ in range(draw.randint(1, endings))
        ]
        with torch.no_grad():
            pairs.append((context, (int(model(torch.tensor([context]))[0, -1].argmax()),)))
    draw.shuffle(pairs)
    return pairs


@pytest.mark.parametrize("endings", [1, 5])
@pytest.mark.parametrize(
    "batching", [Batching(8192, 2, 1), Batching(60, 1, 3), Batching(1, 100, 1), Batching(500, 64, 40)]
)
def test_the_definition(endings: int, batching: Batching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in single rows, or as many parts as there are rows, or more."""
    monkeypatch.setitem(scorer.BATCHING, "cpu", batching)
    pairs = some_pairs(25, endings)
    sums, greedy = by_definition(lively(), pairs)
    scores = Scorer(lively(), ALONE)(pairs)
    np.testing.assert_allclose(scores.sums, sums, rtol=1e-5, atol=1e-4)
    assert scores.greedy.tolist() == greedy
    assert 25 <= sum(greedy) < len(pairs)
    assert scores.cut == 0


def test_contexts_without_copies_are_computed_whole() -> None:
    pairs = list({context: (context, ids) for context, ids in some_pairs(25, 1)}.values())
    np.testing.assert_allclose(Scorer(lively(), ALONE)(pairs).sums, by_definition(lively(), pairs)[0], rtol=1e-5)


def test_a_long_context_is_cut_on_the_left_and_counted() -> None:
    """A pair needs as many positions as it has ids without the last one, and the model has 32."""
    ids = tuple(range(60))
    scores = Scorer(lively(), ALONE)([(ids[:30], ids[30:33]), (ids[:31], ids[31:34]), (ids[:50], ids[50:60])])
    assert scores.cut == 2
    assert list(pieces(ids[:50], ids[50:60], 32)) == [(ids[27:50], ids[50:60])]
    kept = Scorer(lively(), ALONE)([(ids[27:50], ids[50:60])])
    assert kept.cut == 0
    assert scores.sums[2] == pytest.approx(kept.sums[0], rel=1e-5)


def test_a_context_that_fills_the_model_is_shared() -> None:
    """Its continuations of one id need no forward of their own, and there is no position left for one."""
    ids = tuple(range(60))
    pairs = [(ids[:40], (one,)) for one in range(5)]
    scores = Scorer(lively(), ALONE)(pairs)
    np.testing.assert_allclose(scores.sums, by_definition(lively(), pairs)[0], rtol=1e-5)


def test_a_continuation_longer_than_the_context_is_scored_in_pieces() -> None:
    """Each id once, and the last piece with as much before it as fits."""
    ids = tuple(range(70))
    cut = list(pieces(ids[:1], ids[1:], 32))
    assert cut == [(ids[:1], ids[1:33]), (ids[32:33], ids[33:65]), (ids[37:65], ids[65:70])]
    scores = Scorer(lively(), ALONE)([(ids[:1], ids[1:])])
    assert scores.cut == 1
    np.testing.assert_allclose(scores.sums, by_definition(lively(), [(ids[:1], ids[1:])])[0], rtol=1e-5)


def test_nothing_to_score_is_certain() -> None:
    scores = Scorer(lively(), ALONE)([((1, 2), ()), ((1, 2), (3,))])
    assert scores.sums[0] == 0
    assert scores.greedy[0]
    assert len(Scorer(lively(), ALONE)([]).sums) == 0


def test_padded_rows_of_the_vocabulary_are_no_alternatives() -> None:
    model = lively()
    plain = GPT(replace(TINY, padded_vocab=0)).eval()
    plain.load_state_dict({**model.state_dict(), "wte.weight": model.wte.weight[: TINY.vocab]})
    pairs = some_pairs(8, 3)
    np.testing.assert_allclose(Scorer(plain, ALONE)(pairs).sums, Scorer(model, ALONE)(pairs).sums, rtol=1e-6)


def test_autocast_computes_narrower_and_adds_wider() -> None:
    pairs = some_pairs(8, 3)
    narrow = Scorer(lively(), ALONE, lambda: torch.autocast("cpu", torch.bfloat16))(pairs)
    wide = Scorer(lively(), ALONE)(pairs)
    assert narrow.sums.dtype == np.float64
    assert (narrow.sums != wide.sums).any()
    np.testing.assert_allclose(narrow.sums, wide.sums, rtol=0.1, atol=1)


def test_weights_that_are_not_finite_are_told() -> None:
    model = lively()
    with torch.no_grad():
        model.ln_f.weight[0] = float("nan")
    with pytest.raises(CheckpointError, match="2 of 2 log-likelihoods are not finite"):
        Scorer(model, ALONE)([((1, 2), (3,)), ((1, 2), (4, 5))])


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    Scorer(lively(), ALONE, tokens=100, report=lambda done, of: told.append((done, of)))(some_pairs(25, 2))
    assert [done for done, _ in told] == list(range(1, told[-1][1] + 1))


@pytest.mark.timeout(200)
def test_three_processes_give_the_very_sums_of_one() -> None:
    """To the last bit, whether or not there are as many batches as processes; every process knows all sums and does as
    many forwards as the others."""
    script = str(ROOT / "tests" / "scoring.py")
    command = [*torchrun(3), script], [sys.executable, script]
    done = [subprocess.run(c, capture_output=True, text=True, timeout=180, env=environment()) for c in command]
    assert [d.returncode for d in done] == [0, 0], done[0].stderr[-2000:] + done[1].stderr[-2000:]
    three, one = (json.loads(d.stdout.splitlines()[-1]) for d in done)
    assert three == one
    assert three["results agree"]
    assert three["forwards agree"]
