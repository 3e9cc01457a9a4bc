"""The recipe: which training this is. Data, rows a step, optimizer, schedule, steps and seed; nothing of how it is
executed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tenfold.errors import ConfigError


@dataclass(frozen=True)
class Recipe:
    """One training. The defaults are the published FineWeb-Edu 10B recipe for GPT-2 124M."""

    data: str = ""
    """Fingerprint of the token shards; filled in at the start, must match on resume."""
    rows: int = 512
    """Rows a step, on all processes together."""
    length: int = 1024
    """Tokens a row, at most the model's context."""
    steps: int = 19073
    """Optimizer updates in all; the schedule ends here."""
    optimizer: Literal["adamw"] = "adamw"
    """Optimizer, by its row in training.optimizers.OPTIMIZERS."""
    lr: float = 6e-4
    """Peak learning rate."""
    lr_end: float = 6e-5
    """Learning rate at the end of the schedule."""
    warmup: int = 715
    """Steps of linear warm-up."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Shape of the learning rate after the warm-up."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.95
    """AdamW's decay of the second moment."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.1
    """Decoupled weight decay, on matrices and embeddings only."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 clips nothing."""
    seed: int = 1337
    """Seed of the initial weights and of the data order."""

    def __post_init__(self) -> None:
        for field in ("rows", "length", "steps"):
            if getattr(self, field) < 1:
                raise ConfigError(f"recipe.{field} is {getattr(self, field)}; give a number of at least 1")
        for field in ("lr", "lr_end", "warmup", "weight_decay", "clip", "seed"):
            if not 0 <= getattr(self, field) < math.inf:
                raise ConfigError(f"recipe.{field} is {getattr(self, field)}; give a finite number of at least 0")
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ConfigError(f"recipe.{field} is {getattr(self, field)}; give a number from 0 to below 1")
        if self.seed >= 2**63:
            raise ConfigError(f"recipe.seed is {self.seed}; give a number below 2^63")
        if not 0 < self.eps < math.inf:
            raise ConfigError(f"recipe.eps is {self.eps}; give a finite number above 0")

    @property
    def targets(self) -> int:
        """Targets, that is tokens, a step: every token of every row has one."""
        return self.rows * self.length


def cosine(recipe: Recipe, progress: float) -> float:
    """Half a cosine from lr to lr_end; progress runs from 0 to 1 (Loshchilov & Hutter 2017, equation 5)."""
    return recipe.lr_end + 0.5 * (1 + math.cos(math.pi * progress)) * (recipe.lr - recipe.lr_end)


def constant(recipe: Recipe, progress: float) -> float:
    """The peak learning rate throughout."""
    return recipe.lr


SCHEDULES: dict[str, Callable[[Recipe, float], float]] = {"cosine": cosine, "constant": constant}


def lr_at(recipe: Recipe, position: int) -> float:
    """Learning rate of the update that follows `position` completed ones, 0 <= position < steps."""
    if position < recipe.warmup:
        return recipe.lr * (position + 1) / recipe.warmup
    progress = (position - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return SCHEDULES[recipe.schedule](recipe, min(1.0, progress))
