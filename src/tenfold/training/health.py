"""Is this run still sound? A loss or norm that is not finite ends it; a validation loss that stopped improving is
told."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tenfold.errors import HardwareError, TenfoldError

SMALLEST_SCALE = 2.0**-14
MARGIN = 1.2  # nats by which a first loss may exceed chance
PRODUCT_ERROR = 1e-2  # of the largest result; TF32 makes about a thousandth


class Diverged(TenfoldError):
    """The loss or the gradient norm is no longer finite."""

    code = 1


def check_finite(step: int, loss: float, norm: float, applied: bool, scale: float) -> None:
    """Raise Diverged if an update went wrong; one that fp16 skipped only when its scale has shrunk beyond use."""
    if not applied and scale >= SMALLEST_SCALE and math.isfinite(loss):
        return
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise Diverged(
            f"step {step}: loss {loss}, gradient norm {norm}: not finite, training stopped and nothing of it was "
            f"saved; begin again with a lower recipe.lr, a longer warm-up or another precision"
        )


def check_start(loss: float, vocab: int) -> None:
    """Raise Diverged if an untrained model is much worse than chance, which is ln(vocab) nats: above 12 at 50,257."""
    chance = math.log(vocab)
    if loss > chance + MARGIN:
        raise Diverged(
            f"the first loss is {loss:.2f}, where chance gives {chance:.2f}: the initialisation is wrong, or the tying "
            f"of the head (an embedding of unit variance, for instance)"
        )


def check_head(weight: Tensor, device: torch.device, product: Callable[[Tensor, Tensor], Tensor] = F.linear) -> None:
    """HardwareError if the widest product of the model, of 8 rows and of 9, differs on the device from the CPU's: some
    builds of torch got that wrong from 9 rows on. weight: (rows, C)."""
    draw = torch.Generator().manual_seed(0)
    here, there = weight.detach().cpu(), weight.detach().to(device)
    for rows in (8, 9):
        x = torch.randn(rows, weight.size(1), generator=draw)
        want, got = F.linear(x, here), product(x.to(device), there).cpu()
        apart = (got - want).abs().max().item() / want.abs().max().item()
        if not apart < PRODUCT_ERROR:
            raise HardwareError(
                f"{device} multiplies wrongly: the head's product of {rows} rows is {apart:.1e} from the CPU's; "
                f"use another version of torch, or --speed.device cpu"
            )


class Validation:
    """The validation losses seen so far; `notice` speaks when there was no better one for `patience` evaluations."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.at, self.since = patience, math.inf, 0, 0

    def notice(self, step: int, loss: float) -> str | None:
        """One line once no better loss was seen for `patience` evaluations in a row, else None."""
        if loss < self.best:
            self.best, self.at, self.since = loss, step, 0
        else:
            self.since += 1
        if self.patience and self.since and self.since % self.patience == 0:
            return (
                f"validation loss has not improved for {self.since} evaluations: {loss:.4f} now, {self.best:.4f} at "
                f"step {self.at}: the model is learning its training data by heart; the best checkpoint is kept"
            )
        return None
