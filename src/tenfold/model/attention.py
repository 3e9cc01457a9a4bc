"""Causal attention as a function (q, k, v) -> y, chosen from a table. Every kernel computes the same thing: query i
of Tq sees keys 0 .. Tk - Tq + i, that is, the mask is aligned bottom-right, so that a few new queries see a whole
cache.

Three rows run anywhere and at any lengths: `naive`, `sdpa` and `rows`. The others are kernels for training, which knows
one length and always asks for gradients: they run as they are named, or raise. Evaluation and sampling, where lengths
vary, precision may be fp32 and speed is not what counts, go through `sdpa` under their names too."""

import math
import operator
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

BLOCK = 128  # queries a block of `rows`; fewer skip more of the masked half, but make smaller products


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Boolean (Tq, Tk), true where query i may look at key j: j <= i + Tk - Tq."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def attention_map(q: Tensor, k: Tensor) -> Tensor:
    """How much each query takes of each key, (B, H, Tq, Tk) in fp32; a row sums to 1. q: (B, H, Tq, D);
    k: (B, H, Tk, D)."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(~causal_mask(q.size(-2), k.size(-2), q.device), float("-inf"))
    return torch.softmax(scores.float(), dim=-1)


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by its definition, with the (Tq, Tk) matrix in memory. q: (B, H, Tq, D); k, v: (B, H, Tk, D)."""
    return attention_map(q, k).to(v.dtype) @ v  # (B, H, Tq, D)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's scaled_dot_product_attention, which picks a fused kernel. Its causal flag aligns the mask top-left."""
    queries, keys = q.size(-2), k.size(-2)
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if queries == 1:  # one new token sees the whole cache
        return F.scaled_dot_product_attention(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(queries, keys, q.device))


def for_training(kernel: Attention) -> Attention:
    """`kernel`, which needs as many queries as keys, where gradients are wanted or the compiler traces; else `sdpa`."""

    @wraps(kernel)
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wanted = torch.is_grad_enabled() or torch.compiler.is_compiling()
        return kernel(q, k, v) if wanted and q.size(-2) == k.size(-2) else sdpa(q, k, v)

    return attention


def only(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's scaled_dot_product_attention by this backend; raises where that cannot run. On GPUs they all want half
    precision."""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@for_training
def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FlashAttention-2 (Dao 2023) as torch has it: the scores never leave the chip. On CPUs, torch's kernel of that
    kind."""
    return only(SDPBackend.FLASH_ATTENTION, q, k, v)


@for_training
def cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same idea in NVIDIA's own library."""
    return only(SDPBackend.CUDNN_ATTENTION, q, k, v)


@torch.compiler.assume_constant_result  # carried out while the compiler traces, instead of being traced
def activate_fa3() -> None:
    """Put FlashAttention-3's kernels, of the package flash_attn_interface, in the place of torch's flash ones. Holds
    for the process: from then on `flash` is FlashAttention-3 too."""
    from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl

    if current_flash_attention_impl() != "FA3":
        activate_flash_attention_impl("FA3")


@for_training
def fa3(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FlashAttention-3 (Shah et al. 2024), for Hopper."""
    activate_fa3()
    return only(SDPBackend.FLASH_ATTENTION, q, k, v)


MASKS: dict[tuple[int, str], BlockMask] = {}  # of `flex`, by length and device: making one takes many small kernels


@torch.compiler.assume_constant_result  # likewise; the mask becomes an input of what is compiled
def make_mask(length: int, device: str) -> None:
    """See that MASKS has this one."""
    if (length, device) not in MASKS:
        MASKS[length, device] = create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device=device)


@cache
def compiled_flex() -> Any:
    """flex_attention is fast only when compiled: called plainly it holds all scores in memory."""
    return torch.compile(flex_attention, dynamic=False)


@for_training
def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's flex_attention: a kernel that the compiler generates for the mask. On CPUs it has no backward."""
    length, device = operator.index(q.size(-2)), str(q.device)  # index: a number, even where the compiler has a symbol
    make_mask(length, device)
    kernel = flex_attention if torch.compiler.is_compiling() else compiled_flex()
    return kernel(q, k, v, block_mask=MASKS[length, device])


def rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in blocks of queries, each against the keys it may see, with a hand-written backward.

    For CPUs, whose fused kernel has a slow backward: plain batched products run at the matrix rate, and blocks skip
    most of the masked half. The price is memory, the probabilities of about Tq * Tk / 2 pairs a head until backward.

    It is an operator of its own, one node to the compiler, which would otherwise unroll the blocks of every layer and
    take minutes to find nothing better.
    """
    # the products take contiguous operands: copy the strided views once, not in every block
    return rows_forward((q / math.sqrt(q.size(-1))).contiguous(), k.contiguous(), v.contiguous())[0]


def blocks(queries: int, keys: int) -> Iterator[tuple[int, int, int]]:
    """For each block of queries: its first, its end, and the end of the keys that its last query sees."""
    for start in range(0, queries, BLOCK):
        end = min(start + BLOCK, queries)
        yield start, end, end + keys - queries


@custom_op("tenfold::rows_forward", mutates_args=())
def rows_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
    """`rows` of q that are scaled already, (B, H, Tq, D), and each block's probabilities, (B, H, block, seen).
    Everything is contiguous; products are in q's dtype."""
    y = torch.empty_like(q)
    kept = []
    with torch.autocast(q.device.type, enabled=False):  # it would widen the softmax, which is fp32 inside anyway
        for start, end, seen in blocks(q.size(-2), k.size(-2)):
            scores = q[..., start:end, :] @ k[..., :seen, :].transpose(-2, -1)  # (B, H, block, seen)
            # of the keys, only the block's last ones, as many as its queries, are hidden from some of them
            scores[..., start - end :].masked_fill_(~causal_mask(end - start, end - start, q.device), float("-inf"))
            kept.append(torch.softmax(scores, dim=-1))
            y[..., start:end, :] = kept[-1] @ v[..., :seen, :]
    return y, kept


@custom_op("tenfold::rows_backward", mutates_args=())
def rows_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, kept: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q (scaled), k and v. Sums over blocks are in at least fp32."""
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
    return dq, dk.to(k.dtype), dv.to(v.dtype)


@rows_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
    shapes = [(*q.shape[:-2], end - start, seen) for start, end, seen in blocks(q.size(-2), k.size(-2))]
    return torch.empty_like(q), [q.new_empty(shape) for shape in shapes]


@rows_backward.register_fake
def _(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def keep_rows(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, list[Tensor]]) -> None:
    y, kept = output
    ctx.save_for_backward(*inputs, y, *kept)
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)  # no zeros for the probabilities, which have no gradient


def rows_gradients(ctx: Any, dy: Tensor, _: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, y, *kept = ctx.saved_tensors
    return rows_backward(dy, q, k, v, y, kept)


rows_forward.register_autograd(rows_gradients, setup_context=keep_rows)


KERNELS: dict[str, Attention] = {
    "naive": naive,
    "sdpa": sdpa,
    "flash": flash,
    "cudnn": cudnn,
    "fa3": fa3,
    "flex": flex,
    "rows": rows,
}
