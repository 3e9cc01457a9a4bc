"""Sampling from gpt2-124m on this machine's CPU, fp32, 1 and 8 rows together: with the cache, against transformers'
`generate` with its cache and against computing the whole context for every token. Asked for: 8 times as fast as
without a cache, and no slower than transformers.

    python benchmarks/generate.py [--rounds 3] [--tokens 1000]

Without a cache only every 50th length is computed, and counts for 50: all of them take a quarter of an hour.
"""

import argparse
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tenfold.generate import generate_rows
from tenfold.model.gpt import GPT, LAST
from tenfold.run import preset

EVERY = 50
PICKING = {"temperature": 0.8, "top_k": 200}


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@torch.no_grad()
def rounds(count: int, tokens: int, rows: int, ours: GPT, theirs: GPT2LMHeadModel) -> dict[str, list[float]]:
    """Seconds of each side, round by round."""
    prompt = torch.full((rows, 1), 50256)
    options = {"max_new_tokens": tokens, "do_sample": True, "pad_token_id": 50256, **PICKING}
    lengths = range(EVERY // 2, tokens, EVERY)
    sides = {
        "tenfold": lambda: list(generate_rows(ours, [50256], tokens, seeds=range(rows), **PICKING)),
        "transformers": lambda: theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **options),
        "no cache": lambda: [ours(torch.zeros(rows, n, dtype=torch.long), at=LAST) for n in lengths],
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(count):
        for name, call in sides.items():
            times[name].append(seconds(call) * (EVERY if name == "no cache" else 1))
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1000)
    options = parser.parse_args()
    ours = GPT(preset("gpt2-124m").model).initialise(0).eval()
    theirs = GPT2LMHeadModel(GPT2Config()).eval()
    theirs.generation_config.eos_token_id = None  # ours has no stop either: both make all tokens
    for rows in (1, 8):
        times = rounds(options.rounds, options.tokens, rows, ours, theirs)
        for name, taken in times.items():
            ratio = statistics.median(t / mine for t, mine in zip(taken, times["tenfold"], strict=True))
            rate = rows * options.tokens / statistics.median(taken)
            print(f"{rows} rows  {name:<13} {rate:8.1f} tokens/s, {ratio:5.2f} times tenfold's time", flush=True)


if __name__ == "__main__":
    main()
