"""What the loop around the step costs: data, logging and clock, as a share of the step. At most 1 % is asked.

The demo's step is the shortest of all presets and logs every 10 steps; here it logs every step, the worst case.

    python benchmarks/overhead.py [--preset demo] [--steps 200]
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from common import random_corpus, trainer
from tenfold import rundir
from tenfold.data.tokenizer import Bytes
from tenfold.run import preset
from tenfold.training.loop import loop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    run = preset(arguments.preset)
    one = trainer(run, random_corpus(3_000_000, tokenizer=Bytes()))
    plain, inside = one.step, []

    def timed_step():
        start, waited = time.perf_counter(), one.batches.wait
        step = plain()
        step.loss.item()
        inside.append(time.perf_counter() - start - (one.batches.wait - waited))
        return step

    one.step = timed_step
    with tempfile.TemporaryDirectory() as folder:
        report = partial(rundir.append, Path(folder))
        loop(one, replace(run.cadence, log=1), {}, report, stop=5)  # warm-up
        inside.clear()
        start = time.perf_counter()
        loop(one, replace(run.cadence, log=1), {}, report, stop=5 + arguments.steps)
        total = time.perf_counter() - start
    around = total - sum(inside)
    print(f"{arguments.preset}: {arguments.steps} steps, median {1e3 * statistics.median(inside):.2f} ms a step")
    print(f"around it, waiting for data included: {1e6 * around / arguments.steps:.0f} us a step, {around / total:.2%}")


if __name__ == "__main__":
    main()
