"""Signs of life. Among several processes each beats every few seconds, so that one that is stopped, or whose machine is
gone, is named within a stated time and the others end, instead of waiting for it in an exchange.

A star: each process writes its own key of the store where all met, the lead reads all of them and the others only the
lead's, and whom the lead has named. No clocks are compared: who listens counts its own waits since a key last changed,
so a process that was itself asleep accuses nobody when it wakes.

A thread beats, so a process beats on while its main thread is stuck (a deadlock, a file system that no longer answers)
and all others wait for it. Each beat therefore tells for how long its main thread has stood at one line. When all of
them have, once training has begun, the lead says where each stands, and leaves the end to the exchange's own limit,
`world.TIMEOUT`: one very long call of each looks the same.
"""

import contextlib
import json
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tenfold import rundir
from tenfold.world import TIMEOUT, World, launched

EVERY = 3.0  # seconds between beats, at most
STUCK = 5  # times the limit of silence: nothing moves
DONE = "done"  # the last beat of a process that ended well; nobody waits for another


@contextmanager
def watched(world: World, seconds: int, folder: Path) -> Iterator["Pulse"]:
    """While the block runs this process beats, and ends with exit code 1 if it hears nothing of another for `seconds`
    (0: it only beats). The lead also notes that in the metrics of the run folder, if they exist. All processes enter
    together. Alone, or in a group that no launcher made, nothing is watched."""
    pulse = Pulse(world, seconds, folder)
    if world.size == 1 or not launched():
        yield pulse
        return
    pulse.begin()
    try:
        yield pulse
        pulse.last = DONE  # not after an exception: if that process then does not end, it is to be named
    finally:
        pulse.end()


class Pulse:
    """This process's beat, and how long each of those that it listens to has been silent, in its own waits."""

    def __init__(self, world: World, seconds: int, folder: Path) -> None:
        self.world, self.seconds, self.folder = world, seconds, folder
        self.every = min(EVERY, seconds / 10) if seconds else EVERY
        self.step: Callable[[], int | None] = lambda: None
        """The step that this process is at; None is before the first."""
        self.beats = 0
        self.last = ""
        self.stood: object = None
        """Where the main thread stood at the last beat, and"""
        self.still = 0
        """for how many beats it has stood there."""
        self.stuck = False
        """Whether all processes stand still; that was told."""
        self.lost = ""
        """Who is lost, in words; this process is about to end."""
        self.over = threading.Event()

    def begin(self) -> None:
        """Meet the others, under a name that no earlier attempt of theirs had, and start to beat."""
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # A connection of its own: the group's may be in use by a main thread that waits.
        store = dist.TCPStore(*place, is_master=False, timeout=TIMEOUT, wait_for_workers=False)
        self.store = dist.PrefixStore(f"tenfold/{self.world.most(secrets.randbits(62))}", store)
        self.beat()
        if self.world.lead:
            self.store.set("lost", "")
        self.world.most(0)  # now every key is there, and reading never waits
        self.keys = [f"beat/{rank}" for rank in range(self.world.size if self.world.lead else 1)]
        self.heard = self.store.multi_get(self.keys)
        self.silent = [0] * len(self.keys)
        # Two threads, since a store whose machine is gone blocks who asks it, whatever limit was set.
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.listen, self.count)]
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        """Stop, with a last beat if the block ended well."""
        self.over.set()
        for thread in self.threads:
            thread.join(None if self.lost else self.every)

    def beat(self) -> None:
        """Write this process's key: something new, and what the others will say if it is the last."""
        self.beats += 1
        step, (lines, at) = self.step(), standing()
        self.still, self.stood = self.still + 1 if self.stood == (step, lines) else 0, (step, lines)
        who = {"rank": self.world.rank, "host": socket.gethostname(), "pid": os.getpid(), "step": step}
        who |= {"still": self.still, "at": at}
        self.store.set(f"beat/{self.world.rank}", self.last or json.dumps({**who, "beat": self.beats}))

    def listen(self) -> None:
        """Beat and read until the block is over, and once more then: it may be over because somebody was named and the
        others ended. A store that is gone is silence, which `count` counts."""
        over = False
        with contextlib.suppress(RuntimeError):
            while not over:
                over = self.over.wait(self.every)
                self.beat()
                if self.lost and self.world.lead:
                    self.store.set("lost", self.lost)
                lost, *beats = self.store.multi_get(["lost", *self.keys])
                for rank, heard in enumerate(beats):
                    if heard != self.heard[rank]:
                        self.heard[rank], self.silent[rank] = heard, 0
                if self.world.lead and self.seconds:
                    self.look()
                if lost and not self.world.lead:
                    self.leave(lost.decode())

    def count(self) -> None:
        """Count the waits since each was heard of, and end this process when one was silent for too long."""
        limit = math.ceil(self.seconds / self.every) or math.inf
        while not self.over.wait(self.every):
            for rank, heard in enumerate(self.heard):
                self.silent[rank] += heard != DONE.encode()
            if max(self.silent) > limit:
                lost = [rank for rank, waits in enumerate(self.silent) if waits > limit - 2]  # of one machine: together
                # The store is with process 0, so all that comes by it is silent, too, when that is.
                self.leave(told([self.heard[rank] for rank in (lost if lost[0] else [0])], self.seconds))

    def look(self) -> None:
        """Tell once that nothing moves, and where each process stands."""
        if DONE.encode() in self.heard:
            return
        beats = [json.loads(beat) for beat in self.heard]
        trained = all(who["step"] is not None for who in beats)  # before, the lead may prepare data for long
        was, self.stuck = self.stuck, trained and min(who["still"] for who in beats) > STUCK * self.seconds / self.every
        if self.stuck and not was:
            stand = ", ".join(f"{named(who)} stands at {who['at']}" for who in beats)
            ends = f"if that is no long evaluation, end them, or wait {TIMEOUT.seconds // 60} minutes for their end"
            self.note("stuck", f"nothing was seen to move for {STUCK * self.seconds} s: {stand}; {ends}")

    def note(self, event: str, message: str, said: str = "") -> None:
        """Say it, and let the lead write it to the metrics of the run folder, if they exist."""
        print(f"tenfold: {said or message}", file=sys.stderr, flush=True)
        if self.world.lead:  # in a thread: what is stuck may be the file system
            writer = threading.Thread(target=self.write, args=(event, message), daemon=True)
            writer.start()
            writer.join(self.every)

    def write(self, event: str, message: str) -> None:
        """Add a record to the metrics of the run folder, if they exist."""
        if (self.folder / "metrics.jsonl").exists():
            with contextlib.suppress(OSError):
                rundir.append(self.folder, {"step": self.step() or 0, "event": event, "message": message})

    def leave(self, lost: str) -> None:
        """Say who is lost, and end, although the main thread waits in an exchange."""
        self.lost, mine = lost, "" if self.world.lead else f"process {self.world.rank}: "
        self.note("lost", lost, f"{mine}{lost}; this process ends so that the launcher can start all again")
        if self.world.lead:
            time.sleep(2 * self.every)  # the others read who is lost, in a store that may end with this process
        os._exit(1)


def told(beats: list[bytes], seconds: int) -> str:
    """Processes that are lost, by their last beats."""
    lost = [json.loads(beat) for beat in beats]
    names = ", ".join(map(named, lost))
    steps = [who["step"] for who in lost if who["step"] is not None]
    at = f"last at step {max(steps):,}" if steps else "before the first step"
    return f"{names} not heard of for {seconds} s, {at}: it hangs, or its machine, its launcher or the network is gone"


def named(who: dict[str, Any]) -> str:
    """A process, by its beat."""
    return f"process {who['rank']} on {who['host']} (pid {who['pid']})"


def standing() -> tuple[list[tuple[str, int]], str]:
    """Where the main thread of this process stands: the lines of all its calls, and in words the innermost one and the
    innermost one of tenfold."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines, calls = [], []
    while frame:
        code = frame.f_code
        lines.append((f"{code.co_filename} {code.co_qualname}", frame.f_lasti))
        calls.append(f"{frame.f_globals.get('__name__')}.{code.co_qualname}, line {frame.f_lineno}")
        frame = frame.f_back
    own = [call for call in calls if call.startswith("tenfold.")][:1]
    return lines, ", called by ".join(dict.fromkeys([*calls[:1], *own]))
