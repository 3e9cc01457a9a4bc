"""The keys and values of tokens already seen, so that sampling computes one position at a time."""

import torch
from torch import Tensor


class Cache:
    """Keys and values of every layer for up to `context` positions; `length` positions are filled."""

    def __init__(self) -> None:
        self.length = 0
        self.layers: list[tuple[Tensor, Tensor]] = []

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v, (B, H, T, D), to a layer and return all of its keys and values."""
        if layer == len(self.layers):
            self.layers.append((k, v))
        else:
            old_k, old_v = self.layers[layer]
            self.layers[layer] = (torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2))
        return self.layers[layer]
