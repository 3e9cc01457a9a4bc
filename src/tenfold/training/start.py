"""What is checked before the first step: the device, the data, the model and the optimizer, each by a small trial of
its own. What is found wrong is told as a sign."""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tenfold.data.batches import windows
from tenfold.data.statistics import Statistics
from tenfold.errors import HardwareError
from tenfold.model.head import IGNORE, working_dtype
from tenfold.recipe import Recipe
from tenfold.training.initial import first_loss
from tenfold.training.signs import SIGNS, Signs
from tenfold.training.trainer import Trainer
from tenfold.world import World

PRODUCT_ERROR = 1e-2  # of the largest result; TF32 makes about a thousandth
TRIAL = 512  # random tokens at least
LATER = 1000.0  # what later values are moved by, so that a glimpse of one shows; among many it needs more
LEAK = 0.1  # of the largest output: one value in a thousand moves it by about a fourth, rounding by a hundredth


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


def checksum(model: nn.Module) -> int:
    """A number that any changed bit of any parameter changes. Parameters are whole, not sharded."""
    bits = (p.detach().view(torch.int32).sum(dtype=torch.int64) * (i + 1) for i, p in enumerate(model.parameters()))
    return int(sum(bits, start=torch.zeros((), dtype=torch.int64, device=next(model.parameters()).device)).item())


UNSHARED = (
    "gradients are not shared as they should be, for instance because they are reduced from the last micro-step's "
    "backward on, but not from its forward on"
)


def check_weights(model: nn.Module, world: World, step: int, signs: Signs, why: str = UNSHARED) -> None:
    """The sign `weights`, of a model whose parameters are whole on every process."""
    if world.size > 1 and not world.agree(checksum(model)):
        signs("weights", step, why=why)


def check_start(trainer: Trainer, untrained: bool, signs: Signs) -> None:
    """All signs that are looked at before the first step; every process takes part, and all find the same."""
    check_recipe(trainer, signs)
    check_groups(trainer.module, trainer.optimizer, trainer.recipe, trainer.position, signs)
    check_rows(trainer, signs)
    check_targets(trainer, signs)
    check_attention(trainer, signs)
    check_model(trainer, untrained, signs)


def usual_rate(parameters: int) -> float:
    """The peak learning rate that models of a size bear: 0.003239 - 0.0001395 ln N (Kaplan et al. 2020, equation
    D.1)."""
    return 0.003239 - 0.0001395 * math.log(parameters)


def check_recipe(trainer: Trainer, signs: Signs) -> None:
    """The signs `learning rate` and `warm-up`."""
    recipe, usual = trainer.recipe, usual_rate(trainer.module.config.parameters)
    if recipe.lr > SIGNS["learning rate"].threshold * usual:
        signs("learning rate", trainer.position, lr=recipe.lr, value=recipe.lr / usual, usual=usual)
    steps = 2 / (1 - recipe.beta2)
    if recipe.warmup < SIGNS["warm-up"].threshold * steps:
        what = (
            f", where AdamW with beta2 {recipe.beta2:g} asks for about {steps:.0f} steps: the first updates go astray, "
            "and a published run stayed 0.1 above its curve to the end"
        )
        signs("warm-up", trainer.position, warmup=recipe.warmup, what=what)
    if recipe.warmup >= recipe.steps > 1:
        what = (
            f" of {recipe.steps:,} steps: the learning rate never reaches recipe.lr; give fewer, a tenth for instance"
        )
        signs("warm-up", trainer.position, warmup=recipe.warmup, what=what)


def check_groups(
    model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe, position: int, signs: Signs
) -> None:
    """The sign `groups`: every parameter in exactly one group, matrices and embeddings with weight decay, the others
    without, and all with the recipe's other options."""
    wrong: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        inside = [g for g in optimizer.param_groups if any(parameter is p for p in g["params"])]
        options = {
            "weight_decay": recipe.weight_decay if parameter.dim() >= 2 else 0.0,
            "betas": (recipe.beta1, recipe.beta2),
            "eps": recipe.eps,
        }
        if len(inside) != 1:
            wrong[name] = f"it is in {len(inside)} groups"
            continue
        for option, value in options.items():
            if option in inside[0] and inside[0][option] != value:
                wrong[name] = f"its {option} is {inside[0][option]}, not {value}"
    if wrong:
        first = next(iter(wrong))
        signs("groups", position, value=len(wrong), parameter=first, what=wrong[first])


def check_rows(trainer: Trainer, signs: Signs) -> None:
    """The sign `rows`: what the processes take in the coming step is the step's rows, each once. A step over the end of
    an epoch may take a row twice."""
    batches, world, split = trainer.batches, trainer.world, trainer.split
    mine = torch.full((split.accum, split.micro), -1, dtype=torch.int64)
    for k in range(split.accum):
        starts = torch.from_numpy(batches.starts(batches.numbers(trainer.position, k)))
        mine[k, : len(starts)] = starts
    every = torch.zeros(world.size, mine.numel(), dtype=torch.int64)
    every[world.rank] = mine.flatten() + 1
    taken = world.sum(every.to(world.device)).cpu().numpy() - 1
    first = batches.numbered(trainer.position) * split.rows
    available = windows(batches.tokens, split.length)
    if first // available == (first + split.rows - 1) // available:
        taken = taken[taken >= 0]
        if twice := len(taken) - len(np.unique(taken)):
            signs("rows", trainer.position, value=twice, rows=split.rows)


def check_targets(trainer: Trainer, signs: Signs) -> None:
    """The sign `targets`."""
    x, y = trainer.batches.read(trainer.position, 0)
    trainer.batches.read_rows.clear()  # they were looked at, not trained on
    real = y[:, :-1] != IGNORE
    wrong = int(((y[:, :-1] != x[:, 1:]) & real).sum())
    if trainer.world.most(wrong):  # the process with the most tells how many
        same = ": they are the input itself" if torch.equal(y[real.any(1)], x[real.any(1)]) else ""
        signs("targets", trainer.position, value=trainer.world.most(wrong), same=same)


def uniform(vocab: int) -> Statistics:
    """The statistics of random tokens."""
    chance = math.log(vocab)
    return Statistics(chance, chance, bytes_per_token=1.0, collision=1 / vocab, repeats=1 / vocab)


def check_attention(trainer: Trainer, signs: Signs) -> None:
    """The sign `causality` of the kernel that trains, on random vectors. In `check_model`, without gradients, several
    kernels leave the work to another one."""
    config, length = trainer.module.config, trainer.split.length
    if not (half := length // 2):
        return
    draw = torch.Generator().manual_seed(trainer.recipe.seed % 2**62)
    drawn = torch.randn(1, length, 3, config.heads, config.width // config.heads, generator=draw)
    kernel = next(trainer.module.blocks).attn.kernel
    with trainer.autocast():
        qkv = drawn.to(trainer.world.device)
        qkv = qkv.to(working_dtype(qkv))
        changed = qkv.clone()
        changed[:, half:, 2] += max(LATER, 2.0 * length)
        before, after = (kernel(*t.requires_grad_().permute(2, 0, 3, 1, 4)).detach() for t in (qkv, changed))
    apart = ((before - after)[..., :half, :].abs().max() / before.abs().max()).item()
    if trainer.world.most(int(not apart <= LEAK)):
        signs("causality", trainer.position, what="its results", value=apart)


def check_model(trainer: Trainer, untrained: bool, signs: Signs) -> None:
    """The signs `causality` and, of an untrained model, `initial loss`, on random tokens of the run's own shape."""
    config, length = trainer.module.config, trainer.split.length
    draw = torch.Generator().manual_seed(trainer.recipe.seed % 2**62)
    half, count = length // 2, -(-TRIAL // length)
    x = torch.randint(config.vocab, (count, length + 1), generator=draw).to(trainer.world.device)
    x, y = x[:, :-1], x[:, 1:]
    changed = torch.cat([x[:, :half], (x[:, half:] + 1) % config.vocab], 1)
    places = torch.linspace(0, length - 1, min(length, TRIAL)).long().tolist()  # all logits may be too many to hold
    seen = torch.tensor(sorted({*places, max(0, half - 1)}), device=x.device)
    at = torch.arange(count, device=x.device).repeat_interleave(len(seen)), seen.repeat(count)
    with torch.no_grad(), trainer.eager(), trainer.autocast():
        before, after = trainer.module(x, at=at), trainer.module(changed, at=at)  # each (places, vocab)
    if half and config.vocab > 1:
        earlier = at[1] < half
        apart = (before[earlier] - after[earlier]).abs().max().item() / (before.abs().max().item() or 1.0)
        if trainer.world.most(int(not apart <= SIGNS["causality"].threshold)):
            signs("causality", trainer.position, what="logits", value=apart)
    if untrained:
        loss = F.cross_entropy(before.float(), y[at]).item()
        low, high = first_loss(config, uniform(config.vocab), len(before))
        if trainer.world.most(int(not low <= loss <= high)):
            chance = math.log(config.vocab)
            signs("initial loss", trainer.position, loss=loss, low=low, high=high, chance=chance)
