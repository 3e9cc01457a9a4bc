"""The language-model head and its loss: the widest product of the model, kept in one place because it is also the slowest."""

import torch.nn.functional as F
from torch import Tensor

IGNORE = -100  # a target of filler rows: adds nothing to the loss


def logits(x: Tensor, weight: Tensor, vocab: int) -> Tensor:
    """Scores of the real vocabulary. x: (..., C); weight: (rows >= vocab, C); returns (..., vocab)."""
    return F.linear(x, weight)[..., :vocab]


def plain(x: Tensor, weight: Tensor, targets: Tensor, vocab: int) -> Tensor:
    """Sum of the cross-entropy, in nats, over targets that are not IGNORE, with the logits in memory. x: (B, T, C); targets: (B, T)."""
    z = logits(x, weight, vocab).flatten(0, -2).float()
    return F.cross_entropy(z, targets.flatten(), ignore_index=IGNORE, reduction="sum")


LOSSES = {"plain": plain}
