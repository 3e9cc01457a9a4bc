"""The validation loss: the mean over every target of the validation split, on any number of processes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import nn

from tenfold.data.batches import load
from tenfold.data.shards import Tokens
from tenfold.data.split import split
from tenfold.errors import DataError
from tenfold.world import World


@torch.no_grad()
def validation_loss(
    model: nn.Module,
    tokens: Tokens,
    length: int,
    world: World,
    rows: int = 0,
    micro: int = 16,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> float:
    """Mean loss in nats a target over the first `rows` rows of `length` tokens, in order, `micro` of them at a time;
    0 is all of them, the shorter last one included, so that every token but the first is a target once. `model(x, y)`
    sums."""
    targets = len(tokens) - 1
    if targets < 1:
        raise DataError(f"{tokens} has {len(tokens)} tokens; a loss needs at least 2; give more validation text")
    if rows:
        targets = min(targets, rows * length)
    layout = split(-(-targets // length), length, world.size, micro)
    parts = []
    for k in range(layout.accum):
        starts = np.array([i * length for i in layout.slot(k, world.rank) if i < layout.rows], np.int64)
        x, y = load(tokens, starts, length, layout.micro)
        with autocast():
            parts.append(model(x.to(world.device), y.to(world.device)))
    total = torch.stack(parts).cpu().double().sum()
    return world.sum(total).item() / targets
