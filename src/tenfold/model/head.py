"""The language-model head and its loss: the widest product of the model, kept in one place because it is also the
slowest."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]

IGNORE = -100  # a target of filler rows: adds nothing to the loss
CHUNK = 1024  # tokens whose logits `chunked` holds at once
SLICE = 64  # tokens whose probabilities it holds in fp32: few enough to stay in a CPU's caches


def logits(x: Tensor, weight: Tensor, vocab: int) -> Tensor:
    """Scores of the real vocabulary. x: (..., C); weight: (rows >= vocab, C); returns (..., vocab)."""
    return F.linear(x, weight)[..., :vocab]


def plain(x: Tensor, weight: Tensor, targets: Tensor, vocab: int) -> Tensor:
    """Sum of the cross-entropy, in nats, over targets that are not IGNORE, with the logits in memory. x: (B, T, C);
    targets: (B, T)."""
    z = logits(x, weight, vocab).flatten(0, -2).float()
    return F.cross_entropy(z, targets.flatten(), ignore_index=IGNORE, reduction="sum")


def chunked(x: Tensor, weight: Tensor, targets: Tensor, vocab: int) -> Tensor:
    """The same sum, CHUNK tokens at a time, so that the logits are never all in memory.

    The forward already makes the gradients of a sum: once a chunk's probabilities are there, the gradient of its
    logits is one subtraction away, and nothing needs to be kept or computed again for the backward.
    """
    return Chunked.apply(x, weight, targets, vocab, torch.is_grad_enabled())


class Chunked(torch.autograd.Function):
    """See `chunked`. Products run in autocast's dtype, softmax and sums over chunks in at least fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, vocab: int, grad: bool) -> Tensor:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        ctx.shape, ctx.dtypes = x.shape, (x.dtype, weight.dtype)
        with torch.autocast(device, enabled=False):
            loss, dx, dweight = sum_and_gradients(
                x.flatten(0, -2).to(dtype), weight.to(dtype), targets.flatten(), vocab, grad
            )
        if grad:
            ctx.save_for_backward(dx, dweight)
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx, dweight = ctx.saved_tensors
        return (dx * scale).view(ctx.shape).to(ctx.dtypes[0]), (dweight * scale).to(ctx.dtypes[1]), None, None, None


def sum_and_gradients(
    x: Tensor, weight: Tensor, targets: Tensor, vocab: int, grad: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Sum of the losses, and its gradients by x and weight if asked. x: (N, C); weight: (rows, C); targets: (N,)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    loss = torch.zeros((), dtype=wide, device=x.device)
    dx = torch.empty_like(x) if grad else None
    dweight = torch.zeros_like(weight, dtype=wide) if grad else None
    for start in range(0, x.size(0), CHUNK):
        part, target = x[start : start + CHUNK], targets[start : start + CHUNK]
        z = part @ weight.t()  # (CHUNK, rows)
        z[:, vocab:] = float("-inf")  # padding: no probability, no gradient
        for few, few_targets in zip(z.split(SLICE), target.split(SLICE), strict=True):
            loss += softmax_(few, few_targets, wide, grad)
        if dx is not None and dweight is not None:
            real = (target != IGNORE).unsqueeze(1)  # masking here is cheap: C columns, not the vocabulary's
            dx[start : start + CHUNK] = (z @ weight).mul_(real)
            dweight += z.t() @ (part * real)
    return loss, dx, dweight


def softmax_(z: Tensor, targets: Tensor, wide: torch.dtype, grad: bool) -> Tensor:
    """Sum of the losses of logits z, (n, rows); if asked, turns z in place into each row's gradient, p - onehot."""
    real = targets != IGNORE
    index = targets.where(real, 0).unsqueeze(1)
    right, top = z.gather(1, index).to(wide), z.amax(1, keepdim=True).to(wide)
    p = torch.softmax(z, dim=1, dtype=wide)
    # log-sum-exp by way of the largest probability, which is at least 1 / rows and so never rounds to zero
    loss = (top - p.amax(1, keepdim=True).log() - right).squeeze(1).where(real, 0).sum()
    if grad:
        z.copy_(p.scatter_add_(1, index, torch.full_like(right, -1)))
    return loss


LOSSES: dict[str, Loss] = {"plain": plain, "chunked": chunked}
