"""Optimizers as a table, and the rule that every parameter is in exactly one group."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from tenfold.recipe import Recipe


def groups(model: nn.Module, recipe: Recipe) -> list[dict]:
    """Parameter groups: weight decay on matrices and embeddings (two dimensions), none on biases and norms."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def adamw(parameters: Iterable[dict], recipe: Recipe, fused: bool) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019) as torch has it."""
    betas = (recipe.beta1, recipe.beta2)
    return torch.optim.AdamW(parameters, lr=recipe.lr, betas=betas, eps=recipe.eps, fused=fused)


OPTIMIZERS: dict[str, Callable[[Iterable[dict], Recipe, bool], torch.optim.Optimizer]] = {"adamw": adamw}


def optimizer_for(model: nn.Module, recipe: Recipe, fused: bool) -> torch.optim.Optimizer:
    """The recipe's optimizer over every parameter of the model."""
    return OPTIMIZERS[recipe.optimizer](groups(model, recipe), recipe, fused)
