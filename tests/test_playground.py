"""The playground's processes, several requests at once and one that is killed."""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tenfold.watch.playground import MOST, Playground
from tenfold.watch.runs import Watched
from test_watch import trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
FIXTURES = (trained,)
Event = tuple[str, Any]


async def played(playground: Playground, run: Path, step: int, tokens: int = 8) -> Event:
    """How the answer to a request ends."""
    asked = {"prompt": "ba", "tokens": tokens, "temperature": 0}
    return [event async for event in playground.play(Watched(run), step, asked, lambda: False)][-1]


def test_all_who_ask_for_a_checkpoint_at_once_get_its_one_process(trained: Path, tmp_path: Path) -> None:
    """Also where it takes the place of another that is idle."""
    one, other = trained / "tiny", tmp_path / "other"
    shutil.copytree(one, other)

    async def ask() -> tuple[list[Event], list[Any]]:
        playground = Playground()
        for run, step in ((other, 10), (other, 20), (one, 10)):
            assert (await played(playground, run, step))[0] == "end"
        before = [player.process for player in playground.players.values()]
        ends = await asyncio.gather(*(played(playground, one, 20) for _ in range(3)))
        assert len(playground.players) == MOST
        running = {player.process for player in playground.players.values()}
        closed = [process.returncode for process in before if process and process not in running]
        await playground.close()
        return ends, closed

    assert asyncio.run(ask()) == ([("end", {})] * 3, [0])


def test_a_process_that_is_killed_is_told_and_the_next_request_gets_another(trained: Path) -> None:
    async def ask() -> tuple[Event, Event]:
        playground = Playground()
        waiting = asyncio.create_task(played(playground, trained / "tiny", 20, 1_000_000))
        while not (players := list(playground.players.values())) or players[0].process is None:
            await asyncio.sleep(0.05)
        os.kill(players[0].process.pid, signal.SIGKILL)
        ends = await waiting, await played(playground, trained / "tiny", 20)
        await playground.close()
        return ends

    told = "the process with the model was killed, as where memory runs out"
    assert asyncio.run(ask()) == (("error", {"message": told}), ("end", {}))
