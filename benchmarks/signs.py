"""What the vital signs cost: a share of the step's time, and seconds before the first. Under 1 % of a step is asked.

Stretches of steps with and without signs alternate; since this machine is noisier than one hundredth, the time inside
the signs is also measured by itself. The demo's step is the shortest of all presets.

    python benchmarks/signs.py [--preset demo] [--steps 50] [--rounds 10] [--rows 16]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common import random_corpus, trainer
from tenfold import rundir
from tenfold.data.statistics import statistics as statistics_of
from tenfold.data.tokenizer import Bytes, Gpt2
from tenfold.run import preset
from tenfold.training.loop import loop
from tenfold.training.signs import Signs
from tenfold.training.start import check_start
from tenfold.training.vitals import Vitals


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=0)
    arguments = parser.parse_args()
    run = preset(arguments.preset)
    rows = arguments.rows or run.recipe.rows
    run = replace(run, recipe=replace(run.recipe, rows=rows, steps=10**6))
    corpus = random_corpus(20_000_000, tokenizer=Gpt2() if run.model.vocab else Bytes())
    one = trainer(run, corpus)
    signs = Signs(lambda _: None, acts=False)
    start = time.perf_counter()
    check_start(one, untrained=True, signs=signs)
    checked = time.perf_counter()
    statistics_of(corpus)
    beside = time.perf_counter() - checked
    print(
        f"{arguments.preset}: {checked - start:.2f} s before the first step, and beside it {beside:.2f} s", flush=True
    )

    inside = [0.0]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*given: Any) -> Any:
            begin = time.perf_counter()
            found = call(*given)
            inside[0] += time.perf_counter() - begin
            return found

        return timing

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as reader:
        vitals = Vitals(one, signs, reader.submit(statistics_of, corpus), untrained=True)
        assert vitals.statistics
        vitals.step, vitals.logged = timed(vitals.step), timed(vitals.logged)  # type: ignore[method-assign]
        stretch = partial(loop, one, replace(run.cadence, log=10), {}, partial(rundir.append, Path(folder)))

        def seconds(looks: bool) -> float:
            begin = time.perf_counter()
            stretch(stop=one.position + arguments.steps, vitals=vitals if looks else None)
            return time.perf_counter() - begin

        seconds(True)  # warm-up
        inside[0] = 0.0
        pairs = [
            [seconds(looks) for looks in ((False, True) if n % 2 else (True, False))] for n in range(arguments.rounds)
        ]
    without, with_signs = zip(*(pair if n % 2 else pair[::-1] for n, pair in enumerate(pairs)), strict=True)
    step = statistics.median(with_signs) / arguments.steps
    ratio = statistics.median(b / a for a, b in zip(without, with_signs, strict=True))
    share = inside[0] / sum(with_signs)
    each = 1e6 * inside[0] / arguments.rounds / arguments.steps
    print(f"{rows} rows, {1e3 * step:.2f} ms a step; with signs {ratio:.4f} times the time without")
    print(f"inside the signs: {each:.0f} us a step, {share:.3%} of it")
    reading = timed(one.batches.read)
    inside[0] = 0.0
    for position in range(20):
        reading(position, 0)
    print(f"reading a micro-batch with its hashes, beside the step: {1e6 * inside[0] / 20:.0f} us")
    one.batches.close()


if __name__ == "__main__":
    main()
