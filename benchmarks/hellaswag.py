"""HellaSwag's scorer against the plain way, one item at a time, its four rows padded, all scores of the vocabulary: the
same items and weights, in turns, in fp32. Twice as fast is asked on a CPU, ten times on a GPU.

python benchmarks/hellaswag.py hellaswag_val.jsonl [ITEMS] [DEVICE]
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tenfold.data.tokenizer import Gpt2
from tenfold.evaluate import sets
from tenfold.evaluate.evaluation import some
from tenfold.evaluate.scorer import Pair, Scorer
from tenfold.evaluate.tasks import TASKS, ends
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.world import World


@torch.no_grad()
def plain(model: GPT, items: list[list[Pair]], device: torch.device) -> Tensor:
    """Log-likelihoods (items, 4) of the endings."""
    sums = []
    for item in items:
        length = max(len(context) + len(ending) for context, ending in item)
        x, mask = torch.zeros(4, length, dtype=torch.int64), torch.zeros(4, length)
        for row, (context, ending) in enumerate(item):
            x[row, : len(context) + len(ending)] = torch.tensor(context + ending)
            mask[row, len(context) : len(context) + len(ending)] = 1
        x, mask = x.to(device), mask.to(device)
        scores = model(x)[:, :-1].contiguous()
        losses = F.cross_entropy(scores.view(-1, scores.size(-1)), x[:, 1:].reshape(-1), reduction="none")
        sums.append(-(losses.view(4, -1) * mask[:, 1:]).sum(1).cpu())
    return torch.stack(sums)


TURNS = 3


def timed(call) -> tuple[float, float, np.ndarray]:
    """Seconds by the clock and of this process's cores, and what came out."""
    clock, cores = time.perf_counter(), time.process_time()
    sums = call()
    return time.perf_counter() - clock, time.process_time() - cores, np.asarray(sums).reshape(-1, 4)


def main() -> None:
    path = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    device = torch.device(sys.argv[3] if len(sys.argv) > 3 else "cpu")
    records = some(sets.load("hellaswag", path).records, count, False)
    pairs = ends([TASKS["hellaswag"].read(record) for record in records], Gpt2(), 1024, 0)
    items = [pairs[i : i + 4] for i in range(0, len(pairs), 4)]
    model = GPT(ModelConfig()).initialise(1).eval().to(device)
    ours, world = [], World(0, 1, device)
    sides = {"plain": lambda: plain(model, items, device), "scorer": lambda: Scorer(model, world)(pairs).sums}
    plain(model, items[:4], device)  # both warm
    Scorer(model, world)(pairs[:16])
    for turn in range(TURNS):
        found = {name: timed(call) for name, call in sides.items()}
        seconds, cores = ([found[name][i] for name in ("plain", "scorer")] for i in (0, 1))
        ours.append((seconds[0] / seconds[1], cores[0] / cores[1]))
        a, b = found["plain"][2], found["scorer"][2]
        same = int((a.argmax(1) == b.argmax(1)).sum())
        print(
            f"turn {turn}: plain {seconds[0]:.2f} s, scorer {seconds[1]:.2f} s, {ours[-1][0]:.2f} times as fast by the "
            f"clock, {ours[-1][1]:.2f} by core time; {same} of {len(items)} choices equal, log-likelihoods within "
            f"{np.abs(a - b).max():.1e}"
        )
    clock, cores = (statistics.median(turn[i] for turn in ours) for i in (0, 1))
    print(f"median of {len(ours)} turns, {len(items)} items: {clock:.2f} by the clock, {cores:.2f} by core time")


if __name__ == "__main__":
    main()
