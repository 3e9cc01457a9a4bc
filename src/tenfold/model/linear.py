"""The linear layers of the blocks, and the one place where their matrix products are chosen.

A layer's product is a row of LINEARS, (x, weight, bias) -> y. `plain` is torch's own, in autocast's dtype. `fp8`
computes all three products of a layer, the output and both gradients, from 8-bit floats, which the tensor cores of
Ada, Hopper and later multiply at twice the rate of bf16.

Eight bits are few, so a tensor is first divided by a scale that brings its largest value to the largest one of the
format; the product is multiplied by both scales again. Two formats share the work (Micikevicius et al. 2022, FP8
Formats for Deep Learning): e4m3, four bits of exponent and three of mantissa, for activations and weights; e5m2, with
more range and less precision, for the gradients that come from above, which spread over more magnitudes. Sums are fp32,
results bf16; the weights themselves stay fp32 parameters and are cast anew in every step. The scale is that of the
present tensor, found on the device: nothing is remembered from step to step, nothing is waited for.

What it costs: a value keeps a relative error of up to 2^-4 (e4m3) or 2^-3 (e5m2). The scale spans a whole tensor, so
that how rows are spread over micro-steps and processes matters to the last of those bits. And it is for training alone:
without gradients the product is plain, so that a validation loss tells about the weights and a sample does not depend
on what else is in the batch.

Compiled, the casts become part of the kernels around them; uncompiled they take longer than the products save."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]

MULTIPLE = 16  # of the sizes that an 8-bit product takes
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Linear(nn.Linear):
    """nn.Linear whose product is a row of LINEARS; by its parameters they are the same."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.product: Product = F.linear

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


def quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x / scale in an 8-bit dtype, and the scale, an fp32 scalar on x's device; zeros too have one that is not zero."""
    scale = (x.abs().amax().float() / torch.finfo(dtype).max).clamp(min=torch.finfo(torch.float32).tiny)
    return (x.float() / scale).to(dtype), scale


def product8(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, fast: bool = False) -> Tensor:
    """a @ b in bf16. a: (n, k) row by row in memory; b: (k, m) column by column, as the tensor cores want them; `fast`
    leaves some of the fp32 sums to the tensor cores, which round them."""
    return torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16, use_fast_accum=fast)


def by_columns(x: Tensor) -> Tensor:
    """The same matrix, laid out column by column."""
    return x.t().contiguous().t()


class Fp8(torch.autograd.Function):
    """y = x @ weight.t() from 8-bit copies. x: (N, inputs); weight: (outputs, inputs); y: (N, outputs)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.dtypes = x.dtype, weight.dtype
        x8, x_scale = quantised(x, E4M3)
        w8, w_scale = quantised(weight, E4M3)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        return product8(x8, w8.t(), x_scale, w_scale, fast=True)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        dy8, dy_scale = quantised(dy, E5M2)
        dx = product8(dy8, by_columns(w8), dy_scale, w_scale)  # (N, inputs)
        dweight = product8(dy8.t().contiguous(), by_columns(x8), dy_scale, x_scale)  # (outputs, inputs)
        return dx.to(ctx.dtypes[0]), dweight.to(ctx.dtypes[1])


def fp8(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.t() + bias with 8-bit products, or, without gradients, `plain`. x: (..., inputs); the sizes of weight,
    (outputs, inputs), are multiples of MULTIPLE. The number of tokens need not be: rows of zeros change no sum and no
    scale."""
    if not torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    tokens = x.flatten(0, -2)
    missing = -tokens.size(0) % MULTIPLE
    filled = F.pad(tokens, (0, 0, 0, missing)) if missing else tokens
    y = Fp8.apply(filled, weight)[: tokens.size(0)].unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias.to(y.dtype)


LINEARS: dict[str, Product] = {"plain": F.linear, "fp8": fp8}
