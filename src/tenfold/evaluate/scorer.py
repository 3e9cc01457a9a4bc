"""The log-likelihood of continuations given their contexts: the one thing that every task asks of a model.

What can be shared is shared. A context is computed once for all of its continuations, whose rows go on from its keys
and values, and scores of the vocabulary are computed only where a token is scored. Rows are padded on the right, where
a causal model does not look. Which rows are computed together depends on the pairs alone, so that any number of
processes computes the same batches and comes to the same sums.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenfold.errors import CheckpointError
from tenfold.model.cache import Cache
from tenfold.model.gpt import GPT, LAST
from tenfold.world import World

Ids = tuple[int, ...]
Pair = tuple[Ids, Ids]  # a context of at least one id, and its continuation
Group = tuple[Ids, list[tuple[int, Ids]]]  # a context, and its continuations, each with the number of its pair


class Row(NamedTuple):
    """What is computed of a pair: ids after the part of its context that its group shares."""

    group: int
    """Its place in the batch."""
    number: int
    """Of its pair."""
    start: int
    """The first of the ids that is scored."""
    ids: Ids


MOST_PARTS = 8  # more would save little padding
SLICE = 64  # positions whose scores are widened to fp32 at once: few enough to stay in a CPU's caches


@dataclass(frozen=True)
class Batching:
    """What is computed together. Padding costs time, and so do many small forwards: each reads all weights, and on a
    GPU launches all kernels."""

    tokens: int
    """Positions at once, padding included."""
    spread: int
    """Shared contexts, or else whole rows, of a batch differ in length by less than this."""
    part: int
    """The continuations of a batch, sorted by length, are computed in parts, the smaller the less padding, but with
    about this many ids at least."""


BATCHING = {"cpu": Batching(8192, 8, 512)}  # by kind of device
OTHERWISE = Batching(32768, 32, 32768)


@dataclass(frozen=True)
class Scores:
    """What a model made of some pairs, in their order."""

    sums: npt.NDArray[np.float64]
    """Log-likelihood of each continuation, in nats."""
    greedy: npt.NDArray[np.bool_]
    """Whether each of its tokens was the most likely one."""
    cut: int
    """Pairs that were longer than the model's context, so that its first tokens were not seen."""


@dataclass(frozen=True)
class Scorer:
    """A model as tasks see it: pairs of token ids in, log-likelihoods out, the same on every process."""

    model: GPT
    world: World
    autocast: Callable[[], AbstractContextManager] = nullcontext
    tokens: int = 0
    """Positions computed at once; 0 is the device's row of BATCHING."""
    report: Callable[[int, int], None] = lambda done, of: None
    """Told how many batches are done, and of how many."""

    @torch.no_grad()
    def __call__(self, pairs: Sequence[Pair]) -> Scores:
        """The scores of all pairs. Every process gives the same pairs and computes its share of the batches; all of
        them do the same number of forwards, as a sharded model needs."""
        limit, size = self.model.config.context, self.world.size
        batching = BATCHING.get(self.world.device.type, OTHERWISE)
        batching = replace(batching, tokens=self.tokens or batching.tokens)
        groups: dict[Ids, list[tuple[int, Ids]]] = {}
        for number, (context, continuation) in enumerate(pairs):
            for seen, asked in pieces(context, continuation, limit):
                groups.setdefault(seen, []).append((number, asked))
        shared = any(len(members) > 1 for members in groups.values())
        batches = list(batched(groups, batching, shared))
        share = sum(len(continuation) for _, continuation in pairs) // max(1, len(batches))  # ids a batch
        parts = max(1, min(MOST_PARTS, share // batching.part)) if shared else 0
        owners: list[int] = []
        values = []
        for turn in range(-(-len(batches) // size)):
            mine = turn * size + self.world.rank
            batch = batches[min(mine, len(batches) - 1)]
            with self.autocast():
                numbers, value = score_batch(self.model, batch, parts)
            if mine < len(batches):  # else a filler, computed for the others' sake
                owners += numbers
                values.append(value)
            self.report(min(turn * size + size, len(batches)), len(batches))
        # added in one order and in double precision, so that the sums are the same whoever adds
        totals = torch.zeros(2, len(pairs), dtype=torch.float64)
        if values:
            totals.index_add_(1, torch.tensor(owners), torch.cat(values, 1).cpu().double())
        sums, missed = self.world.sum(totals).numpy()
        if bad := int((~np.isfinite(sums)).sum()):
            raise CheckpointError(
                f"{bad:,} of {len(pairs):,} log-likelihoods are not finite: the weights are damaged or their training "
                "diverged, or the precision is too narrow for them; score an earlier checkpoint, or in fp32"
            )
        cut = sum(len(context) + len(continuation) - 1 > limit for context, continuation in pairs)
        return Scores(sums, missed == 0, cut)


def pieces(context: Ids, continuation: Ids, limit: int) -> Iterator[Pair]:
    """A pair as a model of `limit` positions can take it: with the last ids of its context, as many as fit; a
    continuation that is too long by itself in several pairs, each of which goes on from the one before."""
    whole, start = context + continuation, len(context)
    while start < len(whole):
        end = min(start + limit, len(whole))
        yield whole[max(0, end - 1 - limit) : start], whole[start:end]
        start = end


def batched(groups: dict[Ids, list[tuple[int, Ids]]], batching: Batching, shared: bool) -> Iterator[list[Group]]:
    """Groups of equally many continuations and about equally long ones, each group once. A batch has at most
    `batching.tokens` positions, or one group."""

    def width(group: Group) -> int:
        return len(group[0]) + max(len(asked) for _, asked in group[1])

    def kind(group: Group) -> tuple[int, int]:
        return len(group[1]), (len(group[0]) if shared else width(group)) // batching.spread

    batch: list[Group] = []
    for group in sorted(groups.items(), key=lambda group: (kind(group), width(group))):
        rows = (len(batch) + 1) * len(group[1])
        if batch and (kind(group) != kind(batch[0]) or rows * width(group) > batching.tokens):
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def score_batch(model: GPT, batch: list[Group], parts: int) -> tuple[list[int], Tensor]:
    """For every scored token of a batch the number of its pair, and, as (2, tokens) in fp32, its log-likelihood and
    whether another token was more likely.

    With `parts`, the contexts are computed first, once each and as far as the shortest reaches, and then what follows
    them in so many forwards, short rows with short ones. With 0, all rows are computed whole in one forward.
    """
    most = model.config.context - 1  # a position is left for what follows, also where nothing is asked there
    S = min(most, *(len(context) for context, _ in batch)) if parts else 0
    rows = [
        Row(index, number, len(context) - S, context[S:] + asked)
        for index, (context, members) in enumerate(batch)
        for number, asked in members
    ]
    rows.sort(key=lambda row: len(row.ids))
    rows += [Row(0, 0, 1, (0,))] * (parts - len(rows))  # which ask for nothing, but every part needs one
    if not parts:
        return score_rows(model, rows, None)
    cache = Cache()
    x = torch.tensor([context[:S] for context, _ in batch])
    scores = model(x.to(model.wte.weight.device), cache=cache, at=LAST)[:, 0]
    first = [row for row in rows if row.start == 0]  # what these ask for first is predicted here
    done = [likelihoods(scores, [row.group for row in first], first, [0] * len(first))]
    for part in np.array_split(np.arange(len(rows)), parts):
        done.append(score_rows(model, [rows[i] for i in part], cache))
    return [number for numbers, _ in done for number in numbers], torch.cat([values for _, values in done], 1)


def score_rows(model: GPT, rows: list[Row], cache: Cache | None) -> tuple[list[int], Tensor]:
    """The same of rows, each of which goes on from the cache's row of its group, if there is a cache."""
    device = model.wte.weight.device
    x = torch.zeros(len(rows), max(1, *(len(row.ids) - 1 for row in rows)), dtype=torch.int64)
    for one, row in zip(x, rows, strict=True):
        one[: len(row.ids) - 1] = torch.tensor(row.ids[:-1], dtype=torch.int64)
    asked = [(i, at) for i, row in enumerate(rows) for at in range(max(1, row.start), len(row.ids))]
    where = torch.tensor([(i, at - 1) for i, at in asked], dtype=torch.int64, device=device).view(-1, 2)
    if cache is not None:
        cache = cache.take(torch.tensor([row.group for row in rows], device=device))
    scores = model(x.to(device), cache=cache, at=(where[:, 0], where[:, 1]))  # (asked, vocab)
    return likelihoods(scores, list(range(len(asked))), [rows[i] for i, _ in asked], [at for _, at in asked])


def likelihoods(scores: Tensor, which: list[int], rows: list[Row], at: list[int]) -> tuple[list[int], Tensor]:
    """The numbers of the rows' pairs, and (2, rows): the log-softmax of the given scores of (N, V) at each row's id of
    the given position, and 1 where another id has a higher score, else 0."""
    parts = [part.float() for part in scores.split(SLICE)]
    norms = torch.cat([part.logsumexp(-1) for part in parts])
    best = torch.cat([part.amax(-1) for part in parts])
    index = torch.tensor(which, dtype=torch.int64, device=scores.device)
    ids = torch.tensor([row.ids[i] for row, i in zip(rows, at, strict=True)], dtype=torch.int64, device=scores.device)
    own = scores[index, ids].float()
    return [row.number for row in rows], torch.stack((own - norms[index], (own < best[index]).float()))
