"""Precision as a table row: what autocast computes in, how fp32 products are done, whether the loss is scaled."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Precision:
    """`dtype` of autocast (None: no autocast), torch's name for its fp32 products, whether small gradients need a
    scale, and the products of the blocks' linear layers, by their row in model.linear.LINEARS."""

    dtype: torch.dtype | None = None
    products: str = "highest"
    scaled: bool = False
    linear: str = "plain"


PRECISIONS = {
    "fp32": Precision(),
    "tf32": Precision(products="high"),
    "bf16": Precision(dtype=torch.bfloat16),
    "fp16": Precision(dtype=torch.float16, scaled=True),
    "fp8": Precision(dtype=torch.bfloat16, linear="fp8"),
}


def autocast(name: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """A function that gives the context in which the forward pass runs; sets how fp32 products are done in this
    process."""
    row = PRECISIONS[name]
    torch.set_float32_matmul_precision(row.products)
    if row.dtype is None:
        return partial(nullcontext)
    return partial(torch.autocast, device.type, dtype=row.dtype)


class LossScale:
    """A fixed scale of one: every norm is accepted without looking at it, so the device is never waited for."""

    value = 1.0
    skipped = 0
    skips = False
    """Whether an update whose norm is not finite is left out, whatever `accepts` said."""

    def accepts(self, norm: Tensor) -> bool:
        """Whether the update with this (scaled) gradient norm is applied."""
        return True

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"value": self.value}

    def restore(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint's state; of another precision's checkpoint, from the start."""


class DynamicLossScale(LossScale):
    """fp16's scale: halved when the norm, the same number on every process, is not finite, and that update is skipped;
    doubled after `patience` good ones (Micikevicius et al. 2018, section 3.2)."""

    def __init__(self, value: float = 2.0**16, patience: int = 2000) -> None:
        self.value, self.patience, self.good, self.skipped = value, patience, 0, 0

    def accepts(self, norm: Tensor) -> bool:
        if math.isfinite(norm.item()):
            self.good += 1
            if self.good >= self.patience:
                self.value, self.good = self.value * 2, 0
            return True
        self.value, self.good, self.skipped = self.value / 2, 0, self.skipped + 1
        return False

    def state(self) -> dict[str, float]:
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def restore(self, state: dict[str, float]) -> None:
        if "good" in state:
            self.value, self.good, self.skipped = state["value"], int(state["good"]), int(state["skipped"])


class Skipping(LossScale):
    """A fixed scale of one that leaves out an update whose norm is not finite. A fused optimizer decides that on the
    device, by its own `found_inf`; any other must be waited for."""

    skips = True

    def __init__(self, optimizer: torch.optim.Optimizer, fused: bool) -> None:
        self.optimizer, self.fused = optimizer, fused

    def accepts(self, norm: Tensor) -> bool:
        if not self.fused:
            return math.isfinite(norm.item())
        self.optimizer.found_inf = norm.isfinite().logical_not().float()  # type: ignore[attr-defined]
        return True


def loss_scale(name: str, optimizer: torch.optim.Optimizer, fused: bool, skip: bool) -> LossScale:
    """The loss scale that a precision needs, and that leaves out updates that are not finite if `skip`."""
    if PRECISIONS[name].scaled:
        scale = DynamicLossScale()
        scale.skips = skip
        return scale
    return Skipping(optimizer, fused) if skip else LossScale()
