"""A training step of gpt2-124m on this machine's CPU against the plain loop, alternated in one run.

Rows of 512, 4 rows a step, bf16. Asked for: at least 1.35 times the plain loop's tokens/s.

    python benchmarks/step.py [--rounds 7] [--rows 4] [--length 512]
"""

import argparse
from dataclasses import replace

from alternate import Step, alternate
from common import random_corpus, trainer
from plain import plain_step
from tenfold.run import preset
from tenfold.training.speed import Speed


def tenfold_step(rows: int, length: int, speed: Speed) -> Step:
    """The trainer's own step."""
    run = preset("gpt2-124m")
    run = replace(run, recipe=replace(run.recipe, rows=rows, length=length), speed=speed)
    one = trainer(run, random_corpus(1_000_000))
    return lambda: one.step().loss.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    options = parser.parse_args()
    shape = (options.rows, options.length)
    auto = Speed(device="cpu", precision="bf16", rows=options.rows)
    contenders = {
        "plain": (plain_step, *shape),
        "tenfold, sdpa": (tenfold_step, *shape, replace(auto, attention="sdpa")),
        "tenfold, auto": (tenfold_step, *shape, auto),
        "tenfold, blocks compiled": (tenfold_step, *shape, replace(auto, compile="blocks")),
    }
    alternate(contenders, options.rounds, options.rows * options.length)


if __name__ == "__main__":
    main()
