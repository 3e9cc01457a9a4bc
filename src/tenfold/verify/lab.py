"""What the claims are tried on: a small model, ids in real shards, and what is kept of trainings of a few steps."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tenfold import world as worlds
from tenfold.data.shards import FORMAT, MANIFEST, SPLITS, VERSION, Corpus, ShardWriter, Tokens, open_corpus
from tenfold.data.tokenizer import Bytes
from tenfold.hardware import Hardware, detect
from tenfold.ladder.rungs import bottom
from tenfold.ladder.worker import drawn
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.recipe import Recipe
from tenfold.run import Run
from tenfold.training import checkpoint
from tenfold.training.trainer import Trainer, trainer_for
from tenfold.world import World

STEPS = 10
TOKENS = 40_000
MODEL = ModelConfig(layers=2, heads=4, width=64, context=64, vocab=Bytes().vocab, padded_vocab=272)
RECIPE = Recipe(rows=8, length=MODEL.context, steps=100, lr=1e-3, lr_end=1e-4, warmup=4)
SPEED = replace(bottom(Run(model=MODEL, recipe=RECIPE), "cpu", RECIPE.rows).speed, attention="sdpa")  # fp32, no frills


@dataclass(frozen=True)
class Lab:
    """The device that is verified, and data in a folder that is removed afterwards."""

    device: str
    """Its name, as it was asked for."""
    hardware: Hardware
    world: World
    """This process alone, on that device."""
    corpus: Corpus

    @property
    def cpu(self) -> World:
        """This process alone, on the CPU."""
        return replace(self.world, device=torch.device("cpu"))


@contextmanager
def opened(device: str) -> Iterator[Lab]:
    """A lab on a device by its name, or `auto`; HardwareError if it is not here."""
    hardware = detect(device)
    device = hardware.kind if device == "auto" else device
    world = worlds.join(device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: threads that wait for each other make it ten times slower
    try:
        with tempfile.TemporaryDirectory(prefix="tenfold-verify-") as folder:
            yield Lab(device, hardware, world, made_corpus(Path(folder) / "shards"))
    finally:
        torch.set_num_threads(threads)


def made_corpus(folder: Path) -> Corpus:
    """Shards of ids by Zipf's law, which a model learns from at once."""
    folder.mkdir()
    tokenizer, splits = Bytes(), {}
    for seed, split in enumerate(SPLITS):
        with ShardWriter(folder, split, tokenizer.vocab, TOKENS // 3) as writer:
            writer.append(drawn(tokenizer.vocab, TOKENS, seed).read(0, TOKENS))
            splits[split] = {"shards": writer.finish()}
    manifest = {"format": FORMAT, "version": VERSION, "tokenizer": tokenizer.spec(), "splits": splits}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return open_corpus(folder)


def lively() -> GPT:
    """The small model with so much noise on its initial weights, norms and biases too, that every part of it matters to
    what comes out, as in a trained one."""
    draw, model = torch.Generator().manual_seed(0), GPT(MODEL).initialise(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.1)
    return model.eval()


def trainer(tokens: Tokens, world: World, rows: int = RECIPE.rows, held: int = RECIPE.rows, **speed: Any) -> Trainer:
    """A trainer of the lively model, with so many rows a step of which a device holds at most `held` at a time; `speed`
    says what else is not as in SPEED."""
    recipe = replace(RECIPE, rows=rows)
    chosen = replace(SPEED, **{"device": str(world.device), "rows": held, **speed})
    return trainer_for(lively(), recipe, chosen, tokens, world)


class Evidence(NamedTuple):
    """What is kept of a training of STEPS steps, in fp64 on the CPU."""

    losses: Tensor
    norms: Tensor
    """Of the gradients, before clipping."""
    gradient: Tensor
    """Of the first step, all parameters in one vector, but for a factor; on the lead only."""


def evidence(one: Trainer) -> Evidence:
    """Train from the beginning. After one step AdamW's first moment is the gradient times a constant, and a checkpoint
    gathers it from all processes."""
    with closing(one.batches):
        steps = [one.step()]
        moments = checkpoint.snapshot(one).moments
        parts = [moment.flatten() for name, moment in moments.items() if name.startswith("exp_avg.")]
        steps += [one.step() for _ in range(STEPS - 1)]
    gradient = torch.cat([torch.empty(0), *parts]).double()
    return Evidence(figures([step.loss for step in steps]), figures([step.norm for step in steps]), gradient)


def losses_of(one: Trainer, steps: int = STEPS) -> Tensor:
    """The losses of so many steps, in fp64 on the CPU."""
    with closing(one.batches):
        return figures([one.step().loss for _ in range(steps)])


def figures(scalars: list[Tensor]) -> Tensor:
    """Scalars on any device as one vector in fp64 on the CPU."""
    return torch.stack(scalars).cpu().double()  # mps has no fp64
