"""What an attention head does, told by its map: the scores in which one sees heads take shape (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context Learning and Induction Heads").

N texts of T tokens, L layers, H heads. Query i looks at keys j <= i, and p[i, j] is how much it takes of each."""

from collections.abc import Callable

import torch
from torch import Tensor


def before(ids: Tensor) -> Tensor:
    """Boolean (T, T), true where j < i."""
    return torch.ones(len(ids), len(ids), dtype=torch.bool).tril(-1)


def previous(ids: Tensor) -> Tensor:
    """Where j is the place just before i: j = i - 1."""
    return before(ids) & ~before(ids).tril(-2)


def first(ids: Tensor) -> Tensor:
    """Where j is the text's first place, and i a later one."""
    return before(ids) & (torch.arange(len(ids)) == 0)


def same(ids: Tensor) -> Tensor:
    """Where the same token stands at j < i as at i."""
    return before(ids) & (ids[:, None] == ids)


def induction(ids: Tensor) -> Tensor:
    """Where j < i comes just after an earlier place of i's token: what followed it then is what a head that completes
    repetitions looks at."""
    after = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    after[:, 1:] = ids[:, None] == ids[:-1]
    return before(ids) & after


TARGETS: dict[str, Callable[[Tensor], Tensor]] = {  # score -> which keys j a query i is expected to look at, (T, T)
    "previous": previous,
    "first": first,
    "same": same,
    "induction": induction,
}


def scores(maps: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """Scores of every head, each (L, H) and from 0 to 1. maps: (N, L, H, T, T); ids: (N, T).

    A score of TARGETS is the mean, over all queries that have such keys, of what they take of those together:
    sum over j of p[i, j]. "entropy" is the mean over all queries i >= 1 of -sum over j of p log p, divided by
    log(i + 1), the most that it can be: 0 looks at one place, 1 at all alike.
    """
    found = {}
    for name, targets in TARGETS.items():
        looked_at = torch.stack([targets(row) for row in ids])  # (N, T, T)
        queries = looked_at.any(-1).sum().clamp(min=1)
        found[name] = torch.einsum("nlhij,nij->lh", maps, looked_at.to(maps.dtype)) / queries
    entropy = -torch.xlogy(maps, maps).sum(-1)[..., 1:]  # (N, L, H, T - 1)
    most = torch.arange(2, ids.size(1) + 1).log()
    found["entropy"] = (entropy / most).mean((0, 3))
    return found
