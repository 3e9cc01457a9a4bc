"""Comparing ways to do the same work on a machine whose speed drifts: alternate them, and trust only the ratio."""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

Step = Callable[[], object]


def seconds(step: Step) -> float:
    """Wall-clock seconds of one call. A step that runs on another device must wait for it itself."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def serve(link: Connection, make: Callable[..., Step], arguments: tuple) -> None:
    """Make a step, then time one call of it for every message."""
    step = make(*arguments)
    while link.recv():
        link.send(seconds(step))


def alternate(contenders: dict[str, tuple], rounds: int, tokens: int) -> dict[str, float]:
    """Time steps in turn; print each one's tokens/s and its speed relative to the first; return those ratios.

    contenders: name -> (function that makes a step, its arguments...); tokens: in one step. Each contender lives in a
    process of its own, made by spawn, for settings of the memory allocator and the compiler are a process's. A first
    call is reported apart, for compilation and first touches of memory, and a second is not counted. The ratio is
    the median over rounds of neighbouring measurements, which a slow spell hits alike.
    """
    context = multiprocessing.get_context("spawn")
    links, processes = [], []
    for make, *arguments in contenders.values():
        link, far_end = context.Pipe()
        processes.append(context.Process(target=serve, args=(far_end, make, tuple(arguments)), daemon=True))
        processes[-1].start()
        links.append(link)

    def turn(which: int) -> float:
        links[which].send(True)
        return links[which].recv()

    everyone = range(len(links))
    first = [turn(i) for i in everyone]
    for i in everyone:
        turn(i)
    times: list[list[float]] = [[] for _ in everyone]
    for n in range(rounds):
        for i in everyone if n % 2 == 0 else reversed(everyone):  # nobody always follows the same neighbour
            times[i].append(turn(i))
    for link, process in zip(links, processes, strict=True):
        link.send(False)
        process.join()
    ratios = {}
    for name, start, own in zip(contenders, first, times, strict=True):
        middle = statistics.median(own)
        ratios[name] = statistics.median(base / mine for base, mine in zip(times[0], own, strict=True))
        print(
            f"{name:32s} {tokens / middle:7.1f} tokens/s  {middle:6.3f} s a step, fastest {min(own):6.3f}, "
            f"first {start:5.1f}  ratio {ratios[name]:.3f}",
            flush=True,
        )
    return ratios
