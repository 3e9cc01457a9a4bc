"""Carries out a Speed on a model, once, in the one order that is right: kernels, recomputation, compilation,
sharding."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tenfold.hardware import keep_memory
from tenfold.model.attention import KERNELS
from tenfold.model.cache import Cache
from tenfold.model.gpt import GPT, Block
from tenfold.model.head import LOSSES
from tenfold.training.speed import Speed
from tenfold.world import World

Sync = Callable[[bool], None]  # sync(last): whether the coming forward and backward reduce gradients over processes


def recomputed(block: Block) -> None:
    """Make the block's backward pass compute its forward pass again, instead of keeping what it made."""
    plain = block.forward

    def forward(x: Tensor, cache: Cache | None = None) -> Tensor:
        if cache is not None or not torch.is_grad_enabled():
            return plain(x, cache)
        return checkpoint(plain, x, use_reentrant=False)

    block.forward = forward  # type: ignore[method-assign]


def set_ddp_sync(model: DistributedDataParallel, last: bool) -> None:
    """DDP reads this flag in its forward and in its backward, so it is set before both."""
    model.require_backward_grad_sync = last


def eager(speed: Speed) -> Callable[[], AbstractContextManager]:
    """A function that gives the context in which a compiled model runs uncompiled, so that new lengths compile
    nothing."""
    return nullcontext if speed.compile == "none" else partial(torch.compiler.set_stance, "force_eager")


def prepare(model: GPT, speed: Speed, world: World) -> tuple[nn.Module, Sync]:
    """The module to call in a step, and its `sync`. `model` is changed in place and keeps its parameter names; `speed`
    has no `auto` left. Its weights must be the same on every process."""
    if speed.memory == "kept":
        keep_memory()
    model.to(world.device)
    model.loss = LOSSES[speed.loss]
    for block in model.blocks:
        block.attn.kernel = KERNELS[speed.attention]
        if speed.recompute == "blocks":
            recomputed(block)
    how: dict[str, Any] = {"backend": speed.backend, "mode": None if speed.mode == "default" else speed.mode}
    if speed.compile == "blocks":
        for block in model.blocks:
            block.compile(**how)
    if speed.compile == "model":
        if speed.loss == "chunked":  # its loops would be unrolled: minutes of compilation for nothing
            model.loss = torch.compiler.disable(model.loss)
        model.compile(**how)
    if speed.parallel == "fsdp":
        mesh = init_device_mesh(world.device.type, (world.size,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert isinstance(model, FSDPModule)
        return model, model.set_requires_gradient_sync
    if speed.parallel == "ddp":
        on = [world.device.index] if world.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=on, gradient_as_bucket_view=True)
        return wrapped, partial(set_ddp_sync, wrapped)
    return model, lambda last: None
