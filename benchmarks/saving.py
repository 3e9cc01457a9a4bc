"""How long a checkpoint of gpt2-124m stalls training: for the copy only; the writing overlaps.

python benchmarks/saving.py
"""

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import random_corpus, trainer
from tenfold.run import preset
from tenfold.training import checkpoint


def main() -> None:
    run = preset("gpt2-124m")
    run = replace(run, recipe=replace(run.recipe, rows=1, length=128))  # short steps: the harder case for overlap
    one = trainer(run, random_corpus(1_000_000))

    def step() -> float:
        start = time.perf_counter()
        one.step().loss.item()
        return time.perf_counter() - start

    def fail(step: int, error: Exception | None) -> None:
        raise error or ValueError(f"step {step} was not expected to fail")

    for _ in range(2):
        step()
    for n in range(3):
        alone = [step() for _ in range(5)]
        with tempfile.TemporaryDirectory() as folder:
            saver = checkpoint.Saver(Path(folder), 2, 0, fail)  # type: ignore[arg-type]
            start = time.perf_counter()
            saved = checkpoint.snapshot(one)
            copied = time.perf_counter()
            saver.save(saved)
            stall, beside = time.perf_counter() - start, []
            while saver.writing is not None and not saver.writing[1].done():
                beside.append(step())
            written = time.perf_counter() - copied
            saver.settle()
        print(
            f"round {n}: {saved.bytes / 1e6:,.0f} MB: stalled {stall:.2f} s (copy {copied - start:.2f} s), written in "
            f"{written:.2f} s beside {len(beside)} steps of {statistics.median(beside or [0]):.2f} s; "
            f"a step alone takes {statistics.median(alone):.2f} s"
        )


if __name__ == "__main__":
    main()
