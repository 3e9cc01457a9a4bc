"""One comparison of a claim, how differences are measured, and how far apart figures may be that are equal in
mathematics."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tenfold.ladder.rungs import TOLERANCE

EXACT = 0.0  # the same operations in the same order
CPU_SUM = 1e-6  # fp32 on one CPU, sums in another order: rounding is 6e-8, up to 6e-7 was seen after ten steps
SUM = TOLERANCE["fp32"]  # the same by another kernel, or on a GPU, where more of the sums are in another order
ACROSS = 1e-4  # losses on two kinds of device: every operation rounds otherwise, and the difference grows with steps
BF16 = 2e-2  # of a bf16 result to fp32's, by norm: bf16 keeps 8 bits, 4e-3, at each of several roundings
FP16 = 2.5e-3  # the same of fp16, which keeps three bits more
GPU_RESUME = 1e-4  # of state, by norm: a GPU may add gradients in no fixed order; forgotten moments make 0.5
LOGITS = 1e-4  # of logits of about four, absolute: products of one row and of many sum in other orders


@dataclass(frozen=True)
class Case:
    """One comparison: what is compared, how far apart it may be in `unit`, and what measures that; or why not here."""

    what: str
    bound: float
    measure: Callable[[], float]
    unit: str = "relative"
    not_here: str | None = None


# A difference is NaN where something is no number, and that is within no bound.


def by_norm(got: Tensor, want: Tensor) -> float:
    """Norm of the difference, relative to that of what is wanted."""
    got, want = got.cpu().double(), want.cpu().double()
    return ((got - want).norm() / want.norm()).item()


def each(got: Tensor, want: Tensor) -> float:
    """The largest relative difference of one element."""
    return ((got - want).abs() / want.abs()).max().item()


def largest(got: Tensor, want: Tensor) -> float:
    """The largest absolute difference of one element."""
    return (got.cpu().double() - want.cpu().double()).abs().max().item()


def of_largest(got: Tensor, want: Tensor) -> float:
    """The largest absolute difference of one element, relative to the largest element that is wanted."""
    return largest(got, want) / want.abs().max().item()


def worst(differences: Iterable[float]) -> float:
    """The largest difference; NaN if one is."""
    return torch.tensor(list(differences), dtype=torch.float64).max().item()


def flat(tensors: dict[str, Tensor]) -> Tensor:
    """Tensors as one vector, in the order of their names."""
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])
