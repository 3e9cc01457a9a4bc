"""Trainings of a tiny model, in this process or, run as a script under torchrun, in several; prints their losses as
JSON."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from conftest import TINY, TINY_RECIPE
from tenfold import world as worlds
from tenfold.data.shards import Tokens, open_corpus
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.recipe import Recipe
from tenfold.training.speed import Speed
from tenfold.training.trainer import Trainer, trainer_for

EXACT = Speed(
    device="cpu",
    precision="fp32",
    attention="sdpa",
    loss="plain",
    compile="none",
    mode="default",
    backend="inductor",
    fused="yes",
    memory="returned",
    recompute="none",
    parallel="none",
    rows=8,
)


def trainer(tokens: Tokens, model: ModelConfig = TINY, recipe: Recipe = TINY_RECIPE, speed: Speed = EXACT) -> Trainer:
    """A trainer of the tiny model on the process group that this process is in."""
    return trainer_for(GPT(model).initialise(recipe.seed), recipe, speed, tokens, worlds.join("cpu"))


def losses(one: Trainer, steps: int) -> list[float]:
    """Losses of so many steps."""
    return [one.step().loss.item() for _ in range(steps)]


def case(tokens: Tokens, rows: int, micro: int, parallel: str, steps: int) -> dict[str, Any]:
    """Losses and final norm of a training, and the gradient norm of its first step."""
    speed = replace(EXACT, rows=micro, parallel=parallel)
    one = trainer(tokens, recipe=replace(TINY_RECIPE, rows=rows), speed=speed)
    first = one.step()
    values = [first.loss.item(), *losses(one, steps - 1)]
    one.batches.close()
    return {"losses": values, "norm": first.norm.item()}


def gradient(tokens: Tokens, micro: int, parallel: str) -> torch.Tensor:
    """The reduced gradient of the first step, all parameters in one vector."""
    one = trainer(tokens, speed=replace(EXACT, rows=micro, parallel=parallel))
    kept: list[torch.Tensor] = []
    one.optimizer.step = lambda: kept.extend(  # type: ignore[method-assign]
        p.grad.detach().clone().flatten() for p in one.module.parameters() if p.grad is not None
    )
    one.recipe = replace(one.recipe, clip=0.0)
    one.step()
    one.batches.close()
    return torch.cat(kept)


def main() -> None:
    """Arguments: a JSON list of [rows, micro, parallel, steps], and the folder of the corpus."""
    tokens = open_corpus(Path(sys.argv[2])).train
    group = worlds.join("cpu")
    out = [case(tokens, *arguments) for arguments in json.loads(sys.argv[1])]
    mine = gradient(tokens, 2, "ddp").double()
    others = group.sum(mine) / group.size
    apart = (others - mine).abs().max().item()
    if group.lead:
        print(json.dumps({"cases": out, "gradient": mine.tolist(), "apart": apart}), flush=True)
    from tenfold.cli import finish

    finish(0)


if __name__ == "__main__":
    main()
