"""The best step of gpt2-124m on this machine's CPU, in turn with the naive one and with the matrix rate: how many times
faster, and what share of the rate. Asked for: 2.7 times, 65 % (stretch 75 %), at most 60 % of the memory.

    python benchmarks/best.py [--rounds 5] [--rows 4] [--length 512] [--compile blocks]
"""

import argparse
import statistics
from dataclasses import replace

from tenfold.ladder.climb import measurable
from tenfold.ladder.measure import Worker
from tenfold.ladder.rungs import bottom
from tenfold.run import preset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--compile", default="blocks", choices=("none", "blocks", "model"))
    options = parser.parse_args()
    naive = bottom(measurable(preset("gpt2-124m"), options.rows, options.length), "cpu", options.rows)
    speed = replace(naive.speed, precision="bf16", attention="rows", loss="chunked", fused="yes", memory="kept")
    best = replace(naive, model=preset("gpt2-124m").model, speed=replace(speed, compile=options.compile))
    flops = best.recipe.targets * best.model.flops(options.length)
    ratios, shares = [], []
    steps = options.rounds + 2
    with Worker(naive, steps) as slow, Worker(best, steps) as fast:
        for worker in (slow, fast, slow, fast):
            worker.step()
        for _ in range(options.rounds):
            rates = [fast.ask("matrix")["matrix_rate"]]
            seconds = fast.step()
            rates.append(fast.ask("matrix")["matrix_rate"])
            ratios.append(slow.step() / seconds)
            shares.append(flops / seconds / statistics.mean(rates))
            print(
                f"{seconds:.3f} s, {flops / seconds / 1e9:.0f} of {statistics.mean(rates) / 1e9:.0f} GFLOP/s",
                flush=True,
            )
        memory = [worker.steps[-1]["peak_memory_bytes"] for worker in (slow, fast)]
    print(
        f"naive to best {statistics.median(ratios):.2f} times; {statistics.median(shares):.1%} of the matrix rate "
        f"({min(shares):.1%} to {max(shares):.1%}); first step {fast.steps[0]['seconds']:.1f} s "
        f"({fast.steps[0]['cache'] or 'nothing compiled'}); memory {memory[1] / 1e9:.2f} of {memory[0] / 1e9:.2f} GB, "
        f"{memory[1] / memory[0]:.0%}"
    )


if __name__ == "__main__":
    main()
