"""THE step: one optimizer update on exactly the recipe's rows, on any number of processes, at any precision."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tenfold.data.batches import Batches
from tenfold.data.shards import Tokens
from tenfold.data.split import Split, split
from tenfold.model.gpt import GPT
from tenfold.recipe import Recipe, lr_at
from tenfold.training.optimizers import optimizer_for
from tenfold.training.precision import LossScale, autocast, loss_scale
from tenfold.training.prepare import Sync, eager, prepare
from tenfold.training.speed import Speed
from tenfold.world import World


class Step(NamedTuple):
    """What an update was: mean loss in nats a target and gradient norm before clipping, both scalars on the device and
    over all processes, and whether it was applied (fp16 skips an update that overflowed)."""

    loss: Tensor
    norm: Tensor
    applied: bool


def world_norm(gradients: list[Tensor]) -> Tensor:
    """Euclidean norm of all gradients together: the same number on every process, sharded or not."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def rescale(gradients: list[Tensor], clip: float, norm: Tensor, used: float) -> None:
    """Undo the loss scale `used` and clip the true norm, norm / used, to `clip` (0: no clipping), in one pass."""
    factor = torch.clamp(clip / (norm / used + 1e-6), max=1.0) / used if clip else torch.full_like(norm, 1 / used)
    if clip or used != 1.0:
        torch._foreach_mul_([g.to_local() if isinstance(g, DTensor) else g for g in gradients], factor)


@dataclass
class Trainer:
    """A training in progress. Its state is weights, moments, loss scale and one integer, the position: updates done."""

    model: nn.Module
    """What a step calls: `module`, wrapped where several processes need it."""
    module: GPT
    """The model by its own names."""
    optimizer: torch.optim.Optimizer
    batches: Batches
    split: Split
    recipe: Recipe
    speed: Speed
    scale: LossScale
    autocast: Callable[[], AbstractContextManager]
    sync: Sync
    eager: Callable[[], AbstractContextManager]
    """The context for evaluation and sampling, in which nothing is compiled."""
    world: World
    position: int = 0

    def step(self) -> Step:
        """One optimizer update on exactly recipe.rows rows. Touches no clock, no log, no file."""
        split, scale, used = self.split, self.scale, self.scale.value
        weight = self.world.size * used / split.targets  # wrappers average over processes, we want it over targets
        loss = torch.zeros((), device=self.world.device)
        for k in range(split.accum):
            x, y = self.batches.take(self.position, k)  # a function of (position, k, rank); fillers have targets IGNORE
            self.sync(k == split.accum - 1)  # reduce gradients on the last micro-step
            with self.autocast():
                part = self.model(x, y)  # a sum over real targets
            (part * weight).backward()
            loss += part.detach()
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = world_norm(gradients)
        applied = scale.accepts(norm)
        if applied:
            rescale(gradients, self.recipe.clip, norm, used)
            for group in self.optimizer.param_groups:
                group["lr"] = lr_at(self.recipe, self.position)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.position += 1
        return Step(self.world.sum(loss) / split.targets, norm / used, applied)


def trainer_for(model: GPT, recipe: Recipe, speed: Speed, tokens: Tokens, world: World, skip: bool = False) -> Trainer:
    """Prepare a model (the same weights on every process; changed in place) for training by a recipe.

    `speed` has no `auto` left; `tokens` are the training split. With `skip` an update whose gradient is not finite is
    left out, in fp16 it always is.
    """
    assert isinstance(speed.rows, int)
    layout = split(recipe.rows, recipe.length, world.size, speed.rows)
    wrapped, sync = prepare(model, speed, world)
    fused = speed.fused == "yes"
    optimizer = optimizer_for(model, recipe, fused)
    return Trainer(
        model=wrapped,
        module=model,
        optimizer=optimizer,
        batches=Batches(tokens, layout, recipe.seed, world.rank, world.device),
        split=layout,
        recipe=recipe,
        speed=speed,
        scale=loss_scale(speed.precision, optimizer, fused, skip),
        autocast=autocast(speed.precision, world.device),
        sync=sync,
        eager=eager(speed),
        world=world,
    )
