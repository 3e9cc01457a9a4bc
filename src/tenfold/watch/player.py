"""The playground's process: `python -m tenfold.watch.player RUN STEP` loads a checkpoint, the newest if STEP is empty,
and answers requests, JSON lines on its input, by JSON lines on its output:

    {"id": 1, "ask": {"prompt": "The", "tokens": 50, "temperature": 0.8, "top_k": 200, "top_p": 1, "seed": 1}}
    {"id": 1, "event": "token", "data": {"id": 464, "text": "The", "given": true, "p": null, "top": []}}

`{"stop": true}` ends an answer early. The process ends when its input does, after IDLE seconds without a request, and
when its run is gone."""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tenfold.errors import ConfigError, TenfoldError
from tenfold.files import is_held
from tenfold.run import fits

IDLE = 300  # seconds
LOOK = 2  # seconds between two looks at whether the run is still there
OPTIONS: dict[str, Any] = {
    "prompt": str | None,
    "tokens": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "seed": int,
}
Asked = tuple[int, dict[str, Any], threading.Event]  # a request, and what is set when its answer is to stop


def listen(lines: IO[str], requests: "queue.Queue[Asked]") -> None:
    """Read requests until there are no more; then this process ends, whatever it is doing."""
    stop = threading.Event()
    for line in lines:
        said = json.loads(line)
        if said.get("stop"):
            stop.set()
        else:
            stop = threading.Event()
            requests.put((said["id"], said["ask"], stop))
    os._exit(0)


def awaited(requests: "queue.Queue[Asked]", run: Path, idle: float) -> Asked | None:
    """The next request; None if there is none for so many seconds, or the run is gone."""
    for _ in range(max(1, round(idle / LOOK))):
        try:
            return requests.get(timeout=min(idle, LOOK))
        except queue.Empty:
            if not (run / "run.json").is_file():
                return None
    return None


def checked(ask: dict[str, Any]) -> dict[str, Any]:
    """The options of a request; ConfigError for one that there is not, or that it cannot be."""
    for name, value in ask.items():
        if name not in OPTIONS:
            raise ConfigError(f"no option {name!r}; possible are {', '.join(OPTIONS)}")
        if not fits(value, OPTIONS[name]):
            raise ConfigError(f"{name} is {value!r}, which it cannot be")
    return ask


def main(run: Path, step: int | None, say: Callable[[dict[str, Any]], None], idle: float = IDLE) -> None:
    """Answer requests for a checkpoint by `say`."""
    requests: queue.Queue[Asked] = queue.Queue()
    threading.Thread(target=listen, args=(sys.stdin, requests), daemon=True).start()
    model = None
    while (asked := awaited(requests, run, idle)) is not None:
        number, ask, stop = asked
        end: dict[str, Any] = {"id": number, "event": "end", "data": {}}
        try:
            options = checked(ask)
            if model is None:
                import torch

                from tenfold import api

                torch.set_num_threads(max(1, torch.get_num_threads() // 2))  # a training may run beside it
                # beside a training on the same machine its device is left to it
                model = api.load(run, step, "cpu" if is_held(run) else "auto")
            for one in model.choices(**options):
                if stop.is_set():
                    break
                top = [[text, round(p, 6)] for text, p in one.likely]
                chance = None if one.probability is None else round(one.probability, 6)
                token = {"id": one.id, "text": one.text, "given": one.given, "p": chance, "top": top}
                say({"id": number, "event": "token", "data": token})
        except TenfoldError as error:
            end = {"id": number, "event": "error", "data": {"message": str(error)}}
        say(end)


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is no answer
    main(
        Path(sys.argv[1]),
        int(sys.argv[2]) if sys.argv[2] else None,
        lambda answer: print(json.dumps(answer), file=out, flush=True),
        *map(float, sys.argv[3:]),
    )
