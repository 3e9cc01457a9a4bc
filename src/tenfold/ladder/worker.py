"""One rung in a process of its own: makes the trainer of a run and calls its step when told to. Speaks in lines of JSON
on standard input and output; whatever else is printed goes to standard error.

    python -m tenfold.ladder.worker JOB.json
"""

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from tenfold import world as worlds
from tenfold.data.shards import Shard, Tokens, dtype_for
from tenfold.errors import HardwareError
from tenfold.hardware import detect
from tenfold.ladder.rungs import why_not
from tenfold.model.gpt import GPT
from tenfold.run import Run, from_dict
from tenfold.training import fit
from tenfold.training.loop import peak_memory
from tenfold.training.precision import PRECISIONS
from tenfold.training.prepare import probe_compile
from tenfold.training.trainer import Trainer, trainer_for
from tenfold.world import World

SHAPES = ((2048, 2048, 2048), (4096, 4096, 4096), (2048, 768, 3072))  # of the matrix products that set the rate
REPEATS = 5


def drawn(vocab: int, count: int, seed: int) -> Tokens:
    """So many ids by Zipf's law, the same for a seed on every machine: enough for a model to learn from at once."""
    uniform = np.random.default_rng(seed).random(count)
    ids = (np.power(float(vocab), uniform) - 1).astype(dtype_for(vocab))
    return Tokens([Shard(Path("drawn"), vocab, "", ids)])


def build(run: Run, world: World, steps: int, fitted: bool) -> tuple[Trainer, float]:
    """The trainer of a run whose speed has nothing left open, and the seconds of its trial step, which compiles on a
    GPU; `fitted` lowers speed.rows to what fits the memory."""
    tokens = drawn(run.model.vocab, run.recipe.targets * steps + 1, run.recipe.seed)
    trainer = trainer_for(GPT(run.model).initialise(run.recipe.seed), run.recipe, run.speed, tokens, world)
    start = time.perf_counter()
    fit.fit(trainer, fixed=not fitted)
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(world.device)  # tries that did not fit do not count
    return trainer, time.perf_counter() - start


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything it was given."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def compile_cache() -> str | None:
    """Whether compilation found its cache warm; None if nothing was compiled."""
    from torch._dynamo.utils import counters

    seen = counters["inductor"]
    if seen["fxgraph_cache_miss"] or seen["fxgraph_cache_bypass"]:
        return "cold"
    return "warm" if seen["fxgraph_cache_hit"] or counters["aot_autograd"]["autograd_cache_hit"] else None


def step(trainer: Trainer) -> dict[str, Any]:
    """One step of the training, timed from outside until the device is done."""
    device = trainer.world.device
    synchronise(device)
    start = time.perf_counter()
    done = trainer.step()
    synchronise(device)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "loss": done.loss.item(),
        "applied": done.applied,
        "peak_memory_bytes": peak_memory(device),
        "cache": compile_cache(),
    }


def matrix_rate(trainer: Trainer) -> dict[str, Any]:
    """FLOP/s of this precision's matrix products: the best shape's median of five; None for products of 8 bits."""
    device, row = trainer.world.device, PRECISIONS[trainer.speed.precision]
    if row.linear != "plain":
        return {"matrix_rate": None}
    rates = []
    with torch.no_grad():
        for m, k, n in SHAPES:
            a, b = (torch.randn(*shape, device=device, dtype=row.dtype or torch.float32) for shape in ((m, k), (k, n)))
            times = []
            for _ in range(REPEATS + 1):
                synchronise(device)
                start = time.perf_counter()
                a @ b
                synchronise(device)
                times.append(time.perf_counter() - start)
            rates.append(2 * m * k * n / statistics.median(times[1:]))
    return {"matrix_rate": max(rates)}


ANSWERS: dict[str, Callable[[Trainer], dict[str, Any]]] = {"step": step, "matrix": matrix_rate}


def wrong(error: Exception) -> dict[str, str]:
    """An error as an answer: its kind (memory, hardware, error) and one line."""
    if isinstance(error, RuntimeError) and fit.out_of_memory(error):
        return {"error": "memory", "message": "out of memory"}
    if isinstance(error, fit.Shortage):
        return {"error": "memory", "message": f"out of memory: {str(error).partition('; ')[0]}"}
    line = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, HardwareError):
        return {"error": "hardware", "message": line}
    return {"error": "error", "message": f"{type(error).__name__}: {line}"[:300]}


def asked(source: IO[str], world: World) -> Iterator[str]:
    """What the lead is told to do, on every process, until its input ends."""
    names = list(ANSWERS)
    while True:
        line = source.readline().strip() if world.lead else ""
        number = world.most(names.index(line) if line else -1)
        if number < 0:
            return
        yield names[number]


def serve(job: dict[str, Any], source: IO[str], say: Callable[[dict[str, Any]], None]) -> None:
    """Make the job's trainer, then answer every command."""
    run = from_dict(job["run"], "the ladder's job")
    hardware, world = detect(run.speed.device), worlds.join(run.speed.device)
    reason = why_not(run.speed, hardware, world.size)
    if not reason and run.speed.compile != "none":
        reason = probe_compile(world.device, run.speed)
    if reason:
        raise HardwareError(reason)
    if job["memory_share"] < 1 and world.device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(job["memory_share"], world.device)
    trainer, seconds = build(run, world, job["steps"], job["fitted"])
    say({"rows": trainer.split.micro, "seconds": seconds})
    for name in asked(source, world):
        say(ANSWERS[name](trainer))


def main() -> None:
    lead = os.environ.get("RANK", "0") == "0"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever torch and compilers print must not look like an answer

    def say(content: dict[str, Any]) -> None:
        if lead:
            print(json.dumps(content), file=answers, flush=True)

    try:
        serve(json.loads(Path(sys.argv[1]).read_text()), sys.stdin, say)
        code = 0
    except Exception as error:
        traceback.print_exc()
        say(wrong(error))
        code = 1  # torchrun then ends the others
    sys.stderr.flush()
    os._exit(code)  # everything is said; gloo's threads and the compiler's workers need no farewell


if __name__ == "__main__":
    main()
