"""Who encodes: this process, processes of their own, or a Ray cluster. Every engine takes lists of rows and gives what
became of them, in the same order and with a bounded number under way, so that memory does not depend on who is faster.

The processes are plain programs that talk over pipes. Unlike Python's own pools they start from any program, also one
without a main guard and in a daemon; they end when this process ends, however it does; and when one dies, the row that
it was working on is known.
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tenfold.prepare.encode import Coder, Encoded
from tenfold.prepare.sources import Row

Batch = tuple[bool, list[Row]]  # whether the rows are JSON lines
Results = Generator[tuple[list[Row], Encoded], None, None]
Engine = Callable[[Coder, Iterable[Batch], int], Results]

SERVE = "import sys; from tenfold.prepare.workers import serve; serve(sys.argv[1])"


def inline(coder: Coder, batches: Iterable[Batch], workers: int = 1) -> Results:
    """Encodes in this process."""
    for lines, rows in batches:
        yield rows, coder.encode(lines, [row.data for row in rows])


def processes(coder: Coder, batches: Iterable[Batch], workers: int) -> Results:
    """Encodes in as many processes. One that dies is the problem of the row that it was working on."""
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(workers))
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for _ in range(workers):
            idle.put(stack.enter_context(Worker(coder)))

        def encode(lines: bool, rows: list[Row]) -> Encoded:
            worker = idle.get()
            try:
                return worker.encode(lines, rows)
            finally:
                idle.put(worker)

        yield from ordered(batches, 2 * workers, lambda batch: threads.submit(encode, *batch), Future.result)


def on_ray(coder: Coder, batches: Iterable[Batch], workers: int) -> Results:
    """Encodes on a Ray cluster, whose other machines need tenfold too."""
    from tenfold.prepare.cluster import encode

    return encode(coder, batches, workers)


ENGINES: dict[str, Engine] = {"inline": inline, "processes": processes, "ray": on_ray}


def ordered(
    batches: Iterable[Batch], ahead: int, submit: Callable[[Batch], Any], result: Callable[[Any], Encoded]
) -> Results:
    """Results in the order of the batches, of which at most `ahead` + 1 are submitted and not yet asked for."""
    waiting: deque[tuple[list[Row], Any]] = deque()
    for batch in batches:
        waiting.append((batch[1], submit(batch)))
        if len(waiting) > ahead:
            rows, submitted = waiting.popleft()
            yield rows, result(submitted)
    for rows, submitted in waiting:
        yield rows, result(submitted)


class Worker:
    """A process that encodes; `notes` is a small file in which it writes the number of the row that it begins with, and
    to which its complaints go as well."""

    def __init__(self, coder: Coder) -> None:
        paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
        self.notes, self.complaints = tempfile.NamedTemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, self.notes.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
        )
        self.coder: Coder | None = coder

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.notes, self.complaints):
            with contextlib.suppress(OSError):  # what is left in the buffer of a broken pipe
                file.close()  # type: ignore[union-attr]

    def encode(self, lines: bool, rows: list[Row]) -> Encoded:
        """What `Coder.encode` gives in that process."""
        assert self.process.stdin
        assert self.process.stdout
        os.pwrite(self.notes.fileno(), bytes(8), 0)
        try:
            if self.coder:
                pickle.dump(self.coder, self.process.stdin, pickle.HIGHEST_PROTOCOL)
                self.coder = None
            pickle.dump((lines, [row.data for row in rows]), self.process.stdin, pickle.HIGHEST_PROTOCOL)
            self.process.stdin.flush()
            answer: Encoded = pickle.load(self.process.stdout)
            return answer
        except (EOFError, OSError, pickle.UnpicklingError):
            return Encoded(*nothing(), (int.from_bytes(os.pread(self.notes.fileno(), 8, 0), "little"), self._end()))

    def _end(self) -> str:
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.complaints.seek(0)
        last = self.complaints.read()[-2000:].decode(errors="replace").strip().rpartition("\n")[2]
        return (
            f"ended the process that worked on it ({how}{': ' if last else ''}{last}); if memory ran out, give fewer "
            "--workers; otherwise leave this document out"
        )


def nothing() -> tuple[Any, list[Any]]:
    """The ids and documents of rows that nobody encoded."""
    import numpy as np

    return np.empty(0, np.uint16), []


def serve(notes: str) -> None:
    """What a worker process does until nobody sends it anything more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it
    inward, outward = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    note = os.open(notes, os.O_WRONLY)

    def begin(number: int) -> None:
        os.pwrite(note, number.to_bytes(8, "little"), 0)

    with contextlib.suppress(EOFError, BrokenPipeError):
        coder: Coder = pickle.load(inward)
        while True:
            lines, rows = pickle.load(inward)
            pickle.dump(coder.encode(lines, rows, begin), outward, pickle.HIGHEST_PROTOCOL)
            outward.flush()
