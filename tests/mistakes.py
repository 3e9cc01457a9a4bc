"""Trainings made wrong on purpose, as people have made them: a table of mistakes, each a function that changes tenfold
in this process. As a script it makes one and then is the command line: `python mistakes.py MISTAKE train ...`."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tenfold.data import batches
from tenfold.data.split import Split
from tenfold.model import attention, head
from tenfold.model.gpt import GPT
from tenfold.recipe import Recipe, lr_at
from tenfold.training import optimizers, prepare, trainer

Patch = pytest.MonkeyPatch


def late_sync(patch: Patch) -> None:
    """Gradients are shared from the last micro-step's backward on, but its forward did not know."""

    def set_late(model: Any, last: bool) -> None:
        if not hasattr(model, "late"):
            model.register_forward_hook(lambda *_: setattr(model, "require_backward_grad_sync", model.late))
        model.late = last

    patch.setattr(prepare, "set_ddp_sync", set_late)


def undivided_loss(patch: Patch) -> None:
    """The loss is divided by the targets of a micro-step, not by those of the step."""
    patch.setattr(Split, "targets", property(lambda self: self.rows * self.length // self.accum))


def undivided_gradient(patch: Patch) -> None:
    """The loss is shown as it is, but its gradient is not divided by the four micro-steps."""

    def loss(*arguments: Any) -> Tensor:
        value = head.plain(*arguments)
        return value + 3 * (value - value.detach())

    patch.setitem(head.LOSSES, "plain", loss)


def slow_reader(patch: Patch) -> None:
    """Reading a micro-batch takes longer than training on it."""
    plain = batches.Batches.read

    def read(self: batches.Batches, position: int, k: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.05)
        return plain(self, position, k)

    patch.setattr(batches.Batches, "read", read)


def leak(patch: Patch) -> None:
    """Something of every step is kept."""
    plain, kept = trainer.Trainer.step, list[Tensor]()

    def step(self: trainer.Trainer) -> trainer.Step:
        kept.append(torch.ones(4_000_000))
        return plain(self)

    patch.setattr(trainer.Trainer, "step", step)


def unit_variance(patch: Patch) -> None:
    """The embedding, which is the head too, keeps torch's own initialisation."""
    plain = GPT.initialise

    def initialise(self: GPT, seed: int) -> GPT:
        plain(self, seed)
        nn.init.normal_(self.wte.weight)
        return self

    patch.setattr(GPT, "initialise", initialise)


def own_seed(patch: Patch) -> None:
    """Every process draws initial weights of its own."""
    plain = GPT.initialise

    def initialise(self: GPT, seed: int) -> GPT:
        return plain(self, seed + int(os.environ["RANK"]))

    patch.setattr(GPT, "initialise", initialise)


def tenfold_rate(patch: Patch) -> None:
    """The learning rate is ten times the recipe's."""
    patch.setattr(trainer, "lr_at", lambda recipe, position: 10 * lr_at(recipe, position))


def no_warmup(patch: Patch) -> None:
    """The warm-up is forgotten."""
    patch.setattr(trainer, "lr_at", lambda recipe, position: lr_at(replace(recipe, warmup=0), position))


def same_rows(patch: Patch) -> None:
    """Every process reads the first one's rows."""
    plain = batches.Batches.__init__

    def init(self: batches.Batches, tokens: Any, split: Split, seed: int, rank: int, device: torch.device) -> None:
        plain(self, tokens, split, seed, 0, device)

    patch.setattr(batches.Batches, "__init__", init)


def few_rows(patch: Patch) -> None:
    """The same block of rows is read again and again, in its order."""

    def permute(index: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
        return index % 64

    patch.setattr(batches, "permute", permute)


def decay_everything(patch: Patch) -> None:
    """Weight decay reaches biases and LayerNorms too."""

    def groups(model: nn.Module, recipe: Recipe) -> list[dict]:
        return [{"params": list(model.parameters()), "weight_decay": recipe.weight_decay}]

    patch.setattr(optimizers, "groups", groups)


def forgotten_parameter(patch: Patch) -> None:
    """One parameter is in no group."""
    plain = optimizers.groups

    def groups(model: nn.Module, recipe: Recipe) -> list[dict]:
        found = plain(model, recipe)
        found[1]["params"].pop()
        return found

    patch.setattr(optimizers, "groups", groups)


def mask_off_by_one(patch: Patch) -> None:
    """Attention sees the token that it should predict."""

    def off(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril(1 + k.size(-2) - q.size(-2))
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    patch.setitem(attention.KERNELS, "sdpa", off)


def mask_off_in_training(patch: Patch) -> None:
    """The same, where gradients are wanted: evaluation and sampling take another kernel, which is right."""
    right = attention.KERNELS["sdpa"]
    mask_off_by_one(patch)
    wrong = attention.KERNELS["sdpa"]
    patch.setitem(attention.KERNELS, "sdpa", lambda q, k, v: (wrong if torch.is_grad_enabled() else right)(q, k, v))


def unmoved_targets(patch: Patch) -> None:
    """Targets are the inputs themselves."""
    plain = batches.load

    def load(*arguments: Any) -> tuple[Tensor, Tensor]:
        x, _ = plain(*arguments)
        return x, x.clone()

    patch.setattr(batches, "load", load)


def nothing(patch: Patch) -> None:
    """No mistake."""


MISTAKES: dict[str, Callable[[Patch], None]] = {
    made.__name__: made
    for made in (
        late_sync,
        undivided_loss,
        undivided_gradient,
        slow_reader,
        leak,
        unit_variance,
        own_seed,
        tenfold_rate,
        no_warmup,
        same_rows,
        few_rows,
        decay_everything,
        forgotten_parameter,
        mask_off_by_one,
        mask_off_in_training,
        unmoved_targets,
        nothing,
    )
}


if __name__ == "__main__":
    from tenfold.cli import main

    MISTAKES[sys.argv[1]](pytest.MonkeyPatch())
    sys.argv[1:] = sys.argv[2:]
    main()
