"""What an attention film costs: its bytes, and the seconds of a snapshot against those of the training.

python benchmarks/film.py

Trains the demo for real, on its own text, and films it. For gpt2-124m a snapshot and a short step are timed, and the
bytes of 200 snapshots of it are told for four kinds of maps: of initial weights, as packed as the demo's in the middle
and at the end of its training, and of random rows as hard to pack as rows that sum to 1 can be: their square roots are
spread evenly over a sphere.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import tenfold
from common import random_corpus, trainer
from tenfold import film, filmfile, rundir
from tenfold.console import Silent
from tenfold.data.tokenizer import Gpt2
from tenfold.run import Run, film_steps, preset
from tenfold.training.loop import Record
from tenfold.training.trainer import Trainer
from tenfold.work import Work


def entries(run: Run) -> int:
    """Probabilities in a snapshot of the run's model."""
    return 2 * run.model.layers * run.model.heads * film.LONGEST * (film.LONGEST + 1) // 2


def demo() -> dict[int, float]:
    """Train and film the demo; bits a probability of each snapshot."""
    took: list[float] = []
    plain = Work.film

    def timed(self: Work, trainer: Trainer) -> Record:
        start = time.perf_counter()
        record = plain(self, trainer)
        took.append(time.perf_counter() - start)
        return record

    Work.film = timed  # type: ignore[method-assign]
    run = preset("demo")
    run = replace(run, cadence=replace(run.cadence, sample=0, save=0))
    done = tenfold.train(run, display=Silent())
    rates = [r["tokens_per_second"] for r in rundir.read_metrics(done.path) if "tokens_per_second" in r]
    training = sum(run.recipe.targets * run.cadence.log / rate for rate in rates)
    step, snapshot = training / run.recipe.steps, statistics.median(took)
    print(
        f"demo: {len(took)} snapshots of {snapshot * 1e3:.1f} ms (longest {max(took) * 1e3:.1f}), a step takes "
        f"{step * 1e3:.1f} ms: {sum(took) / training:.2%} of the training; a snapshot costs as much as training on "
        f"{snapshot / step * run.recipe.targets:.0f} tokens"
    )
    folder = done.path / filmfile.FOLDER
    sizes = {step: (folder / f"step-{step:06d}.bin").stat().st_size for step in filmfile.steps(done.path)}
    print(f"demo: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.2f} MB in all")
    return {step: 8 * size / entries(run) for step, size in sizes.items()}


def timed(work: Callable[[], object], times: int) -> float:
    """Median of its seconds."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def gpt2() -> tuple[int, int]:
    """Seconds of a snapshot and a step of gpt2-124m; bytes of a snapshot of its initial weights, and of its scores."""
    run = preset("gpt2-124m")
    short = replace(run, recipe=replace(run.recipe, rows=4, length=512))
    corpus = random_corpus(1_000_000)
    one = trainer(short, corpus)
    ids = film.texts(corpus.val.read(0, film.LONGEST), run.model.context)
    told = film.described(run.model, ids, Gpt2())
    folder = Path("gpt2")
    folder.mkdir()

    def snapshot() -> None:
        film.record(folder, told, 0, film.look(one.module, ids, one.autocast))

    snapshot()
    seconds = timed(snapshot, 7)
    one.step().loss.item()
    step = timed(lambda: one.step().loss.item(), 5)
    one.batches.close()
    tokens = step / short.recipe.targets
    count = len(film_steps(run.recipe, run.cadence.film))
    whole = run.recipe.steps * run.recipe.targets * tokens
    print(
        f"gpt2-124m, {one.speed.precision}: a snapshot takes {seconds:.2f} s, as much as training on "
        f"{seconds / tokens:.0f} tokens; {count} of them are {count * seconds / whole:.5%} of the run"
    )
    lines = (folder / "film/scores.jsonl").read_text().splitlines()
    return (folder / "film/step-000000.bin").stat().st_size, len(lines[0]) + 1


def worst(run: Run) -> int:
    """Bytes of a snapshot of random rows: squares of points spread evenly over the sphere."""
    shape = run.model.layers, run.model.heads, film.LONGEST, film.LONGEST
    draw = np.random.default_rng(0)
    maps = []
    for _ in range(2):
        squares = np.tril(draw.standard_normal(shape)) ** 2
        maps.append((squares / squares.sum(-1, keepdims=True)).astype(np.float32))
    losses = [draw.standard_normal(film.LONGEST).astype(np.float32) for _ in maps]
    return len(filmfile.pack(maps, losses))


def main() -> None:
    torch.manual_seed(0)
    os.chdir(tempfile.mkdtemp(prefix="tenfold-film-"))
    bits = demo()
    steps = list(bits)
    initial, scores = gpt2()
    run = preset("gpt2-124m")
    packed = {
        "initial weights": initial,
        f"as the demo at step {steps[len(steps) // 2]}": bits[steps[len(steps) // 2]] * entries(run) / 8,
        f"as the demo at step {steps[-1]}": bits[steps[-1]] * entries(run) / 8,
        "the worst": worst(run),
    }
    for name, size in packed.items():
        whole, each = 200 * (size + scores) / 1e6, 8 * size / entries(run)
        print(f"200 snapshots of gpt2-124m, {name}: {whole:.1f} MB, {each:.2f} bits a probability")


if __name__ == "__main__":
    main()
