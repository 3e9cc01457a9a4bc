"""GPT-2 as one plain model file, by the names of its released checkpoint.

B rows, T tokens a row, C width, H heads, D = C / H size of a head, V vocabulary. How it is executed (precision,
kernels, compilation, parallelism) is decided by whoever prepares the model; what it computes is decided here alone.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tenfold.model import attention, head
from tenfold.model.cache import Cache
from tenfold.model.config import STD, ModelConfig
from tenfold.model.linear import Linear

Index = slice | Tensor
LAST = (slice(None), slice(-1, None))  # of every row the last position, (B, 1, vocab)


class LayerNorm(nn.Module):
    """Layer normalisation with epsilon 1e-5 and an optional bias."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class SelfAttention(nn.Module):
    """Causal multi-head self-attention; the kernel is a row of `attention.KERNELS`."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.layer = config.heads, layer
        self.c_attn = Linear(config.width, 3 * config.width, bias=config.bias)
        self.c_proj = Linear(config.width, config.width, bias=config.bias)
        self.kernel: attention.Attention = attention.sdpa

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        if cache is not None:
            k, v = cache.extend(self.layer, k, v)  # (B, H, T so far, D)
        y = self.kernel(q, k, v)  # (B, H, T, D)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


def gelu(x: Tensor) -> Tensor:
    """GELU in GPT-2's tanh form, 0.5 x (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x^3), as x sigmoid(2 u), which
    is the same. Compilers make one exponential of that, in half of tanh's time on a CPU; uncompiled, torch's own is
    faster."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))).to(x.dtype)


class MLP(nn.Module):
    """Two linear layers with GPT-2's tanh form of GELU between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_fc = Linear(config.width, 4 * config.width, bias=config.bias)
        self.c_proj = Linear(4 * config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(gelu(self.c_fc(x)))


class Block(nn.Module):
    """One transformer block, normalised before each of its two halves."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.width, config.bias)
        self.attn = SelfAttention(config, layer)
        self.ln_2 = LayerNorm(config.width, config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2. `model(x, y)` is the sum of losses over real targets; `model(x)` the logits of the real vocabulary."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.embedding_rows, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.ln_f = LayerNorm(config.width, config.bias)
        self.loss: head.Loss = head.plain

    @property
    def blocks(self) -> Iterator[Block]:
        """The transformer blocks, first to last."""
        return iter(self.h)  # type: ignore[arg-type]

    @torch.no_grad()
    def initialise(self, seed: int) -> "GPT":
        """GPT-2's initial weights, the same for a seed whatever the padding of the vocabulary and the number of
        threads.

        Normal with standard deviation 0.02; the two projections into the residual stream of each block by
        1 / sqrt(2 * layers) of that (Radford et al. 2019, section 2.3); biases zero; rows of padding zero.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                real = parameter[: self.config.vocab] if name == "wte.weight" else parameter
                scale = 1 / math.sqrt(2 * self.config.layers) if name.endswith("c_proj.weight") else 1.0
                real.normal_(0.0, STD * scale, generator=generator)
        self.wte.weight[self.config.vocab :] = 0
        return self

    def forward(
        self, x: Tensor, y: Tensor | None = None, cache: Cache | None = None, at: tuple[Index, Index] | None = None
    ) -> Tensor:
        """x: (B, T) token ids. With targets y (B, T): a scalar, the sum in nats of the losses of targets that are not
        `head.IGNORE`. Without: logits (B, T, vocab) in the dtype of the computation, or only those at an index of the
        first two dimensions, such as LAST, or rows and positions as two tensors (N,), which give (N, vocab). With a
        cache, x are the tokens after the cached ones and the cache grows by T positions; in all at most `context`
        positions are possible."""
        start = cache.length if cache is not None else 0
        positions = torch.arange(start, start + x.size(1), device=x.device)
        h = self.wte(x) + self.wpe(positions)  # (B, T, C)
        for block in self.blocks:
            h = block(h, cache)
        if cache is not None:
            cache.length += x.size(1)
        h = self.ln_f(h)
        if y is not None:
            return self.loss(h, self.wte.weight, y, self.config.vocab)
        return head.logits(h if at is None else h[at], self.wte.weight, self.config.vocab)
