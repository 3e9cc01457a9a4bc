"""The playground's processes: one for a checkpoint, started when it is first asked, each of which answers one request
at a time. They end by themselves when nobody asks, when their run goes away, and when this process ends."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from tenfold.watch.runs import Watched, checkpoints, stamp

MOST = 3  # processes, each with a model in memory
POLL = 0.5  # seconds between two looks at whether the server ends
Events = AsyncIterator[tuple[str, Any]]


class Player:
    """A process that plays a checkpoint."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.process: asyncio.subprocess.Process | None = None
        self.asked = 0

    async def started(self, run: Watched, step: int | None) -> asyncio.subprocess.Process:
        """The process, started if there is none."""
        if self.process is None or self.process.returncode is not None:
            where = str(run.path.absolute()), "" if step is None else str(step)
            pipe = asyncio.subprocess.PIPE
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tenfold.watch.player",
                *where,
                stdin=pipe,
                stdout=pipe,
                start_new_session=True,  # Ctrl-C is for the server, which ends it
            )
        return self.process

    async def play(self, run: Watched, step: int | None, asked: Any, ending: Callable[[], bool]) -> Events:
        """What the process answers to a request, whose sender holds the lock. If the listener goes away before its end,
        it is told to stop."""
        process = await self.started(run, step)
        assert process.stdin is not None
        assert process.stdout is not None
        self.asked += 1
        over = False
        process.stdin.write(json.dumps({"id": self.asked, "ask": asked}).encode() + b"\n")
        try:
            while not over:
                line = None
                while line is None:
                    if ending():
                        return
                    with contextlib.suppress(TimeoutError):
                        line = await asyncio.wait_for(process.stdout.readline(), POLL)
                if not line:
                    over = True
                    killed = await process.wait() < 0
                    why = "was killed, as where memory runs out" if killed else "ended; `tenfold watch` printed why"
                    yield "error", {"message": f"the process with the model {why}"}
                    return
                answer = json.loads(line)
                if answer["id"] == self.asked:  # else it is left of a request that was stopped
                    over = answer["event"] != "token"
                    yield answer["event"], answer["data"]
        finally:
            if not over:
                process.stdin.write(b'{"stop": true}\n')

    async def close(self) -> None:
        """End the process."""
        if self.process and self.process.returncode is None and self.process.stdin:
            self.process.stdin.close()
            await self.process.wait()


class Playground:
    """The players by run and checkpoint."""

    def __init__(self) -> None:
        self.players: dict[Any, Player] = {}

    async def play(self, run: Watched, step: int | None, asked: Any, ending: Callable[[], bool]) -> Events:
        """The events of a request: token, end, error."""
        saved = checkpoints(run.path)
        step = max(saved, default=None) if step is None else step
        key = run.path, step, stamp(saved[step] / "state.json") if step in saved else None
        player = self.players.pop(key, None) or Player()
        idle = [other for other, one in self.players.items() if not one.lock.locked()]
        closing = [self.players.pop(other) for other in idle[: max(0, len(self.players) + 1 - MOST)]]
        if len(self.players) >= MOST:
            yield "error", {"message": f"{MOST} checkpoints are writing; stop one of them first"}
            return
        self.players[key] = player  # the last is the one that was asked last; others may ask for it from here on
        async with player.lock:
            for other in closing:
                await other.close()
            async for kind, value in player.play(run, step, asked, ending):
                yield kind, value

    async def close(self) -> None:
        """End all of them."""
        for player in self.players.values():
            await player.close()
