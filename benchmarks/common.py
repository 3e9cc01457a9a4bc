"""What the benchmarks share: a corpus of random ids and a trainer on it."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from tenfold import world as worlds
from tenfold.data.shards import FORMAT, MANIFEST, VERSION, Corpus, ShardWriter, open_corpus
from tenfold.data.tokenizer import Gpt2, Tokenizer
from tenfold.hardware import detect
from tenfold.model.gpt import GPT
from tenfold.run import Run
from tenfold.training.speed import resolve
from tenfold.training.trainer import Trainer, trainer_for


def random_corpus(tokens: int, folder: Path | None = None, tokenizer: Tokenizer = Gpt2()) -> Corpus:  # noqa: B008
    """So many random ids for training, and a few for validation, in a temporary folder."""
    folder = folder or Path(tempfile.mkdtemp(prefix="tenfold-bench-"))
    draw, splits = np.random.default_rng(0), {}
    for split, count in (("train", tokens), ("val", 10_000)):
        with ShardWriter(folder, split, tokenizer.vocab, 100_000_000) as writer:
            for start in range(0, count, 1 << 22):
                writer.append(draw.integers(0, tokenizer.eot, min(1 << 22, count - start), dtype=np.uint16))
            splits[split] = {"shards": writer.finish()}
    manifest = {"format": FORMAT, "version": VERSION, "tokenizer": tokenizer.spec(), "splits": splits}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return open_corpus(folder)


def trainer(run: Run, corpus: Corpus) -> Trainer:
    """A trainer of a run on this process alone, with initial weights."""
    hardware = detect(run.speed.device)
    world = worlds.join(hardware.kind)
    run = replace(run, model=replace(run.model, vocab=run.model.vocab or corpus.tokenizer.vocab))
    speed, _ = resolve(run.speed, run.model, run.recipe, hardware)
    return trainer_for(GPT(run.model).initialise(run.recipe.seed), run.recipe, speed, corpus.train, world)
