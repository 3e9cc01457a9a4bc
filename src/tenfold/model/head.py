"""The language-model head and its loss: the widest product of the model, kept in one place because it is also the
slowest."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op

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

    It is an operator of its own, one node to the compiler, which would otherwise unroll the loops.
    """
    wanted = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return chunked_sum(x.flatten(0, -2), weight, targets.flatten(), vocab, working_dtype(x), wanted)[0]


def working_dtype(x: Tensor) -> torch.dtype:
    """What products with x are computed in: autocast's dtype, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


@custom_op("tenfold::chunked_sum", mutates_args=())
def chunked_sum(
    x: Tensor, weight: Tensor, targets: Tensor, vocab: int, dtype: torch.dtype, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of the losses and, if `wanted` (else empty), its gradients by x and weight. x: (N, C); weight: (rows, C);
    targets: (N,). Products run in `dtype`, softmax and sums over chunks in at least fp32."""
    loss, dx, dweight = chunked_shapes(x, weight, targets, vocab, dtype, wanted)
    loss.zero_()
    with torch.autocast(x.device.type, enabled=False):
        x, weight = x.to(dtype), weight.to(dtype)
        for start in range(0, x.size(0), CHUNK):
            part, target = x[start : start + CHUNK], targets[start : start + CHUNK]
            z = part @ weight.t()  # (CHUNK, rows)
            z[:, vocab:] = float("-inf")  # padding: no probability, no gradient
            for few, few_targets in zip(z.split(SLICE), target.split(SLICE), strict=True):
                loss += softmax_(few, few_targets, loss.dtype, wanted)
            if wanted:
                real = (target != IGNORE).unsqueeze(1)  # masking here is cheap: C columns, not the vocabulary's
                dx[start : start + CHUNK] = (z @ weight).mul_(real)
                both = z.t() @ (part * real)
                dweight = dweight.add_(both) if start else dweight.copy_(both)  # zeros first would cost a pass
    return loss, dx, dweight


@chunked_sum.register_fake
def chunked_shapes(
    x: Tensor, weight: Tensor, targets: Tensor, vocab: int, dtype: torch.dtype, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors of the right shapes and dtypes."""
    wide = torch.promote_types(dtype, torch.float32)
    dx = x.new_empty(x.shape if wanted else (0,), dtype=dtype)
    return x.new_empty((), dtype=wide), dx, weight.new_empty(weight.shape if wanted else (0,), dtype=wide)


def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.dtypes = inputs[0].dtype, inputs[1].dtype
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for gradients, which have none


def scaled_gradients(ctx: Any, scale: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    dx, dweight = ctx.saved_tensors
    return (dx * scale).to(ctx.dtypes[0]), (dweight * scale).to(ctx.dtypes[1]), None, None, None, None


chunked_sum.register_autograd(scaled_gradients, setup_context=keep_gradients)


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


def builtin(x: Tensor, weight: Tensor, targets: Tensor, vocab: int) -> Tensor:
    """The same sum by torch's own fused head (from 2.13 on), in chunks of its choice.

    A loss a token, summed here: torch's own sum goes from chunk to chunk in autocast's dtype, and bf16 is too coarse
    for that. The price is that the backward computes the logits again.
    """
    dtype = working_dtype(x)
    losses = F.linear_cross_entropy(  # (N,)
        x.flatten(0, -2).to(dtype),
        weight[:vocab].to(dtype),
        targets.flatten(),
        reduction="none",
        ignore_index=IGNORE,
        options=torch.nn.LinearCrossEntropyOptions(),
    )
    return losses.to(torch.promote_types(dtype, torch.float32)).sum()


LOSSES: dict[str, Loss] = {"plain": plain, "chunked": chunked, "torch": builtin}
