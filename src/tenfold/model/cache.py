"""The keys and values of tokens already seen, so that sampling and scoring compute new positions only."""

from torch import Tensor

ROOM = 64  # positions that a layer's first buffer holds at least


class Cache:
    """Keys and values of every layer; `length` positions are filled. They lie in buffers that double when they are
    full, so that a new position costs its own size and not that of all before it. For use without gradients."""

    def __init__(self) -> None:
        self.length = 0
        self.layers: list[tuple[Tensor, Tensor]] = []  # each (B, H, room, D)

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v, (B, H, T, D), to a layer and return all of its keys and values."""
        end = self.length + k.size(2)
        if layer == len(self.layers):
            self.layers.append((roomy(k[:, :, :0], end), roomy(v[:, :, :0], end)))
        keys, values = self.layers[layer]
        if end > keys.size(2):
            keys, values = self.layers[layer] = roomy(keys, end), roomy(values, end)
        keys[:, :, self.length : end], values[:, :, self.length : end] = k, v
        return keys[:, :, :end], values[:, :, :end]

    def take(self, rows: Tensor) -> "Cache":
        """A cache of these rows, (rows,) int64, each as often as it is named: beginnings that several rows share."""
        other = Cache()
        other.length = self.length
        other.layers = [(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self.layers]
        return other


def roomy(buffer: Tensor, needed: int) -> Tensor:
    """The buffer (B, H, room, D) with room for `needed` positions and as many again."""
    B, H, room, D = buffer.shape
    larger = buffer.new_empty(B, H, max(2 * needed, ROOM), D)
    larger[:, :, :room] = buffer
    return larger
