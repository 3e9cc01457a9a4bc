"""Carries out a Speed on a model, once, in the one order that is right: kernels, recomputation, compilation,
sharding. Also tries whether the compiler works here."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tenfold.errors import HardwareError
from tenfold.hardware import keep_memory
from tenfold.model.attention import KERNELS
from tenfold.model.cache import Cache
from tenfold.model.gpt import GPT, Block
from tenfold.model.head import LOSSES
from tenfold.model.linear import LINEARS, MULTIPLE, Linear
from tenfold.training.precision import PRECISIONS
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


def compilation(speed: Speed) -> dict[str, Any]:
    """Options of torch.compile; HardwareError for a backend that this torch does not know, or a mode that it has
    not."""
    # One shape is trained with. Without that word a second one, of fewer rows that fit, would make it compile for any.
    static = {"dynamic": False}
    if speed.backend == "inductor":
        return static if speed.mode == "default" else {**static, "mode": speed.mode}
    known = torch._dynamo.list_backends(None)
    if speed.backend not in known:
        raise HardwareError(
            f"speed.backend {speed.backend}: this torch has only {', '.join(known)}; use inductor or auto"
        )
    if speed.mode != "default":
        raise HardwareError(
            f"speed.mode {speed.mode}: only the backend inductor has modes, not {speed.backend}; use default or auto"
        )
    return {**static, "backend": speed.backend}


def replays_graphs(speed: Speed, device: torch.device) -> bool:
    """Whether what is compiled runs as CUDA graphs."""
    graphs = speed.mode in ("reduce-overhead", "max-autotune") or speed.backend == "cudagraphs"
    return graphs and speed.compile != "none" and device.type == "cuda"


def own_gradients(model: nn.Module) -> None:
    """Make a parameter's first gradient a copy.

    The outputs of a CUDA graph lie where its next replay writes. Autograd takes the first gradient of a parameter as it
    is, without copying, and adds the later ones to it: with several micro-steps the first one would be overwritten by
    the second (github.com/pytorch/pytorch/issues/169545). Nothing else outlives a micro-step: the loss is added to the
    step's sum before the next replay.
    """
    for parameter in model.parameters():
        parameter.register_hook(partial(copied_first, parameter))


def copied_first(parameter: Tensor, gradient: Tensor) -> Tensor:
    return gradient.clone() if parameter.grad is None else gradient


def marked(sync: Sync) -> Sync:
    """`sync`, telling CUDA graphs that a micro-step begins and everything of the one before may be overwritten."""

    def begin(last: bool) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        sync(last)

    return begin


MISSING = {  # torch's name for a failure of the compiler -> what is missing
    "InvalidCxxCompiler": "no working C++ compiler (g++ or clang++) was found",
    "TritonMissing": "Triton is not installed, or does not work here",
    "GPUTooOldForTriton": "this GPU is too old for Triton",
}


def probe_compile(device: torch.device, speed: Speed) -> str | None:
    """None if the compiler of `speed` works on this device, found by compiling and running a tiny function forward and
    backward; else one line that says what is missing. Training uncompiled goes on in either case."""
    x = torch.ones(8, device=device, requires_grad=True)
    try:
        y = torch.compile(lambda x: (x.sin() * x).sum(), **compilation(replace(speed, mode="default")))(x)
        torch.autograd.grad(y, x)
    except Exception as error:
        cause = getattr(error, "inner_exception", error)  # the compiler's own, which torch wraps
        text = f"{type(cause).__name__}: {cause}"
        return next((said for name, said in MISSING.items() if name in text), text.splitlines()[0])
    return None


def prepare(model: GPT, speed: Speed, world: World) -> tuple[nn.Module, Sync]:
    """The module to call in a step, and its `sync`. `model` is changed in place and keeps its parameter names; `speed`
    has no `auto` left. Its weights must be the same on every process.

    HardwareError for a compiler that this torch has not, or a model whose sizes the precision cannot multiply.
    """
    if speed.memory == "kept":
        keep_memory()
    how = compilation(speed)
    linear = PRECISIONS[speed.precision].linear
    if linear == "fp8" and model.config.width % MULTIPLE:
        raise HardwareError(
            f"speed.precision {speed.precision} multiplies sizes that are multiples of {MULTIPLE}, and model.width is "
            f"{model.config.width}; use bf16 or auto"
        )
    model.to(world.device)
    model.loss = LOSSES[speed.loss]
    for block in model.blocks:
        block.attn.kernel = KERNELS[speed.attention]
        for module in block.modules():
            if isinstance(module, Linear):
                module.product = LINEARS[linear]
        if speed.recompute == "blocks":
            recomputed(block)
    graphs = replays_graphs(speed, world.device)
    if graphs and speed.parallel == "fsdp":
        raise HardwareError(
            f"speed.parallel fsdp: speed.mode {speed.mode} replays CUDA graphs, which want the weights where they "
            "were, and FSDP gathers them anew each time; use ddp, or mode default"
        )
    if graphs:
        own_gradients(model)
    if speed.compile == "blocks":
        for block in model.blocks:
            block.compile(**how)
    if speed.compile == "model":
        if speed.loss == "torch":  # its backward would be unrolled: thousands of nodes
            model.loss = torch.compiler.disable(model.loss)
        model.compile(**how)
    wrapped, sync = parallel(model, speed, world)
    return wrapped, marked(sync) if graphs else sync


def parallel(model: GPT, speed: Speed, world: World) -> tuple[nn.Module, Sync]:
    """The model shared by the processes as `speed` says, and its `sync`."""
    if speed.parallel == "fsdp":
        # in fp32, weights and gradients alike: on any number of processes the same training
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
