"""Comparing two ways to do the same work on a machine whose speed drifts: alternate them, and trust only the ratio."""

import statistics
import time
from collections.abc import Callable


def seconds(step: Callable[[], object]) -> float:
    """Wall-clock seconds of one call. A step that runs on another device must wait for it itself."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def alternate(
    names: tuple[str, str], steps: tuple[Callable[[], object], Callable[[], object]], rounds: int, tokens: int
) -> float:
    """Run two steps in turn, print tokens/s by their median seconds, and return the first's speed over the second's.

    The ratio is the median over rounds of neighbouring measurements, which a slow spell hits alike. Each step runs
    once unmeasured, so compilation and first touches of memory do not count. tokens: in one step.
    """
    first = [seconds(step) for step in steps]
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):  # neither always follows the other
            times[which].append(seconds(steps[which]))
    for name, warm_up, measured in zip(names, first, times, strict=True):
        middle = statistics.median(measured)
        print(f"{name:28s} {tokens / middle:8.1f} tokens/s  {middle:7.3f} s a step (first {warm_up:.1f} s)", flush=True)
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    print(f"{names[0]} / {names[1]}: {ratio:.3f} over {rounds} rounds", flush=True)
    return ratio
