"""The baseline: GPT-2 124M trained the ordinary way, in one file that imports nothing from tenfold.

bf16 autocast over fp32 weights, torch's own attention, AdamW and cross-entropy over all the logits. It counts as a
baseline only while it is at most 10 % slower than transformers' GPT2LMHeadModel in the same run: `--check` tells.

    python benchmarks/plain.py [--rows 4] [--length 512] [--compile] [--check]
"""

import argparse
import math
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alternate import alternate, seconds

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB, ROWS = 12, 12, 768, 1024, 50257, 50304  # the embedding has ROWS rows


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.attn_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.mlp_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C)
        B, T, C = x.shape
        q, k, v = (t.view(B, T, HEADS, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, D)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(ROWS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if "proj" in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe(torch.arange(x.size(1), device=x.device))
        for block in self.h:
            h = block(h)
        logits = self.head(self.ln_f(h))  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def training_step(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], rows: int, length: int, device: str = "cpu"
):
    """A closure that makes one update on random tokens and returns the loss, for which it waits. The same for every
    contender."""
    decayed = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    generator = torch.Generator().manual_seed(0)

    def step() -> float:
        tokens = torch.randint(VOCAB, (rows, length + 1), generator=generator).to(device)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            value = loss(tokens[:, :-1], tokens[:, 1:])
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.item()

    return step


def plain_step(rows: int = 4, length: int = 512, compiled: bool = False, device: str = "cpu"):
    """The baseline's step() on `rows` rows of `length` tokens."""
    torch.manual_seed(0)
    model = GPT2().to(device)
    return training_step(model, torch.compile(model) if compiled else model, rows, length, device)


def transformers_step(rows: int = 4, length: int = 512, compiled: bool = False):
    """The same step with transformers' model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=ROWS, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    config._attn_implementation = "sdpa"
    model = GPT2LMHeadModel(config)
    run = torch.compile(model) if compiled else model
    return training_step(model, lambda x, y: F.cross_entropy(run(x).logits.flatten(0, 1), y.flatten()), rows, length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=7, help="measured steps")
    parser.add_argument("--compile", action="store_true", help="torch.compile the whole model")
    parser.add_argument("--check", action="store_true", help="alternate with transformers' GPT2LMHeadModel")
    options = parser.parse_args()
    shape = (options.rows, options.length, options.compile)
    tokens = options.rows * options.length
    if options.check:
        contenders = {"transformers": (transformers_step, *shape), "plain": (plain_step, *shape)}
        ratio = alternate(contenders, options.steps, tokens)["plain"]
        raise SystemExit(f"{ratio:.3f} of transformers' speed: not a fair baseline" if ratio < 0.9 else 0)
    step = plain_step(*shape)
    first = seconds(step)
    middle = statistics.median(seconds(step) for _ in range(options.steps))
    print(f"plain: {tokens / middle:.1f} tokens/s, {middle:.3f} s a step (first {first:.1f} s)")


if __name__ == "__main__":
    main()
