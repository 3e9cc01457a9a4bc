"""What is new in some runs, as server-sent events: whoever listens is told within a second or so. While nobody does,
nothing is looked at."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import anyio
import anyio.to_thread

from tenfold.rundir import BACK
from tenfold.watch.runs import Runs, encoded
from tenfold.watch.store import blocks, identity, is_another, marked, records

POLL = 0.5  # seconds
LISTING = 2  # polls from one look at the list of runs to the next
HEARTBEAT = 30  # polls without anything new after which a comment keeps the connection
PLACE = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")  # bytes, and an identity
AGAIN = 1000  # milliseconds after which a browser that lost the server asks again


def event(kind: str, value: Any, mark: str = "") -> str:
    """A server-sent event; a browser that reconnects by itself tells the last mark that it saw."""
    return f"{f'id: {mark}' + chr(10) if mark else ''}event: {kind}\ndata: {encoded(value)}\n\n"


@dataclass
class Place:
    """How far a listener has read a run: its metrics up to an offset, when that file had this identity."""

    run: str
    offset: int
    identity: int = 0
    gone: bool = False

    @property
    def mark(self) -> str:
        """This place as text, for `places`."""
        return f"{self.offset}-{self.identity}"


def places(names: list[str], offsets: str, mark: str | None) -> list[Place]:
    """Where a listener wants to go on: by the mark of the last event that it had, else by the offsets that it gives.
    ValueError if these are none."""
    if mark is not None and mark.count(",") == len(names) - 1:
        given = mark.split(",")
    else:
        given = offsets.split(",") if offsets else ["0"] * len(names)
    if len(given) != len(names) or not all(map(PLACE.fullmatch, given)):
        raise ValueError(f"places {','.join(given)[:80]!r}: give an offset for each of {len(names)} runs, with commas")
    found = [one.partition("-") for one in given]
    return [Place(name, int(at), int(known or 0)) for name, (at, _, known) in zip(names, found, strict=True)]


def news(runs: Runs, place: Place) -> Iterator[tuple[str, Any, str]]:
    """What is new in a run since a listener's place, which moves along: event, its content, and the mark after it."""
    run = runs.find(place.run)
    if run is None:
        if not place.gone:
            place.gone = True
            yield "gone", {"run": place.run}, place.mark
        return
    path = run.marks.path
    if place.gone or is_another(path, place.offset, place.identity):
        place.offset, place.identity, place.gone = 0, identity(path), False
        for end, _ in blocks(path, 0):
            place.offset = end  # whoever is told loads it anew, and then asks from there on
        yield "replaced", {"run": place.run}, place.mark
        return
    place.identity = place.identity or identity(path)
    for _, block in blocks(path, place.offset):
        for part in turns(block):
            found = records(part)
            place.offset += len(part)
            if found and found[0].get("event") in BACK:
                yield "rewind", {"run": place.run, "step": found[0]["step"]}, place.mark
            if found:
                yield "records", {"run": place.run, "offset": place.offset, "records": found}, place.mark


def told(runs: Runs, place: Place) -> list[tuple[str, Any, str]]:
    """All of that news."""
    return list(news(runs, place))


def turns(block: bytes) -> list[bytes]:
    """Whole lines, cut before each that takes back what came before it."""
    starts = [at for at, line in marked(block) if any(r.get("event") in BACK for r in records(line))]
    return [part for a, b in pairwise([0, *starts, len(block)]) if (part := block[a:b])]


async def listen(runs: Runs, listener: list[Place], ending: Callable[[], bool]) -> AsyncIterator[str]:
    """Events for a listener until it goes away, or the server ends."""
    yield f"retry: {AGAIN}\n\n"
    listed = await anyio.to_thread.run_sync(runs.stamps)
    silent = turn = 0
    while not ending():
        silent, turn = silent + 1, turn + 1
        for place in listener:
            for kind, value, mark in await anyio.to_thread.run_sync(told, runs, place):
                silent = 0
                yield event(kind, value, ",".join(mark if one is place else one.mark for one in listener))
        if turn % LISTING == 0 and (now := await anyio.to_thread.run_sync(runs.stamps)) != listed:
            listed, silent = now, 0
            yield event("runs", {})
        if silent >= HEARTBEAT:
            silent = 0
            yield ": still here\n\n"
        await anyio.sleep(POLL)
