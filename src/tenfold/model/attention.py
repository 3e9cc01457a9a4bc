"""Causal attention as a function (q, k, v) -> y, chosen from a table. Every kernel computes the same thing: query i
of Tq sees keys 0 .. Tk - Tq + i, that is, the mask is aligned bottom-right, so that a few new queries see a whole
cache."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

BLOCK = 128  # queries a block of `rows`; fewer skip more of the masked half, but make smaller products


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Boolean (Tq, Tk), true where query i may look at key j: j <= i + Tk - Tq."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by its definition, with the (Tq, Tk) matrix in memory. q: (B, H, Tq, D); k, v: (B, H, Tk, D)."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, Tq, Tk)
    scores = scores.masked_fill(~causal_mask(q.size(-2), k.size(-2), q.device), float("-inf"))
    return torch.softmax(scores.float(), dim=-1).to(v.dtype) @ v  # (B, H, Tq, D)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's scaled_dot_product_attention, which picks a fused kernel. Its causal flag aligns the mask top-left."""
    queries, keys = q.size(-2), k.size(-2)
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if queries == 1:  # one new token sees the whole cache
        return F.scaled_dot_product_attention(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(queries, keys, q.device))


def rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in blocks of queries, each against the keys it may see, with a hand-written backward.

    For CPUs, whose fused kernel has a slow backward: plain batched products run at the matrix rate, and blocks skip
    most of the masked half. The price is memory, the probabilities of about Tq * Tk / 2 pairs a head until backward.
    """
    return Rows.apply(q, k, v)


def blocks(queries: int, keys: int) -> Iterator[tuple[int, int, int]]:
    """For each block of queries: its first, its end, and the end of the keys that its last query sees."""
    for start in range(0, queries, BLOCK):
        end = min(start + BLOCK, queries)
        yield start, end, end + keys - queries


class Rows(torch.autograd.Function):
    """See `rows`. Products are in q's dtype, sums over blocks in at least fp32."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # the products take contiguous operands: copy the strided views once, not in every block
        q, k, v = (q / math.sqrt(q.size(-1))).contiguous(), k.contiguous(), v.contiguous()
        y = torch.empty_like(q)
        kept = []
        with torch.autocast(q.device.type, enabled=False):  # it would widen the softmax, which is fp32 inside anyway
            for start, end, seen in blocks(q.size(-2), k.size(-2)):
                scores = q[..., start:end, :] @ k[..., :seen, :].transpose(-2, -1)  # (B, H, block, seen)
                # of the keys, only the block's last ones, as many as its queries, are hidden from some of them
                scores[..., start - end :].masked_fill_(~causal_mask(end - start, end - start, q.device), float("-inf"))
                kept.append(torch.softmax(scores, dim=-1))
                y[..., start:end, :] = kept[-1] @ v[..., :seen, :]
        ctx.save_for_backward(q, k, v, y, *kept)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, y, *kept = ctx.saved_tensors
        dy = dy.contiguous()
        wide = torch.promote_types(q.dtype, torch.float32)
        dq = torch.empty_like(q)
        dk, dv = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
        # softmax: dscores = p * (dp - sum(p * dp)), and the sum over keys equals that of dy * y over D
        inner = (dy.to(wide) * y.to(wide)).sum(-1, keepdim=True).to(q.dtype)
        for (start, end, seen), p in zip(blocks(q.size(-2), k.size(-2)), kept, strict=True):
            part = dy[..., start:end, :]
            dscores = (part @ v[..., :seen, :].transpose(-2, -1)).sub_(inner[..., start:end, :]).mul_(p)
            dq[..., start:end, :] = dscores @ k[..., :seen, :]
            dk[..., :seen, :] += dscores.transpose(-2, -1) @ q[..., start:end, :]
            dv[..., :seen, :] += p.transpose(-2, -1) @ part
        return dq / math.sqrt(q.size(-1)), dk.to(k.dtype), dv.to(v.dtype)


KERNELS: dict[str, Attention] = {"naive": naive, "sdpa": sdpa, "rows": rows}
