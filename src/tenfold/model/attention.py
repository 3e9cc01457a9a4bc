"""Causal attention as a function (q, k, v) -> y, chosen from a table. Every kernel computes the same thing: query i of Tq
sees keys 0 .. Tk - Tq + i, that is, the mask is aligned bottom-right, so that a few new queries see a whole cache."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


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


KERNELS: dict[str, Attention] = {"naive": naive, "sdpa": sdpa}
