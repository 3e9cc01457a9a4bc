"""A request over HTTP with time limits: what its answer means, and which trouble is worth another try. Standard library
only, and imported when a request is made: a program that downloads nothing need not wait for it."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from http.client import HTTPResponse

PAUSE = 1.0  # seconds before the second try; every further one waits twice as long
LONGEST_PAUSE = 120.0  # seconds at most, also if a server asks for more

Got = TypeVar("Got")


class Trouble(Exception):
    """Why a request did not give what was asked for. `status` is the server's or 0; `passing` means that another try
    may help, after `wait` seconds if the server asked for that."""

    def __init__(self, said: str, *, passing: bool = False, status: int = 0, wait: float = 0) -> None:
        super().__init__(said)
        self.passing, self.status, self.wait = passing, status, wait


def persistently(ask: Callable[[], Got], tries: int, end: float) -> Got:
    """What `ask()` returns, after a few tries if need be, but none that would begin after `end` (time.monotonic()).

    Raises:
        Trouble: that of the last try, or the first that does not pass by waiting.
    """
    for attempt in range(1, tries + 1):
        try:
            return ask()
        except Trouble as trouble:
            pause = min(max(trouble.wait, PAUSE * 2 ** (attempt - 1)), LONGEST_PAUSE)
            if not trouble.passing or attempt == tries or time.monotonic() + pause > end:
                raise
            time.sleep(pause)
    raise ValueError(f"{tries} tries: give at least 1")


def request(
    url: str, timeout: float, headers: dict[str, str] | None = None, token: str | None = None
) -> "HTTPResponse":
    """The server's answer, whose status is a success; it is the caller's to close.

    Args:
        timeout: Seconds to wait for the server to connect or to send more.
        token: Goes to the server that `url` names, and to none that it redirects to.

    Raises:
        Trouble: no connection, silence, or another status.
    """
    import http.client
    import urllib.error
    import urllib.request

    try:
        asked = urllib.request.Request(url, headers={"User-Agent": "tenfold", **(headers or {})})
        if token:
            asked.add_unredirected_header("Authorization", f"Bearer {token}")
        answer: http.client.HTTPResponse = urllib.request.urlopen(asked, timeout=timeout)
        return answer
    except urllib.error.HTTPError as error:
        error.close()
        raise refusal(error.code, error.headers.get("Retry-After")) from None
    except urllib.error.URLError as error:
        # No such name, no route, refused: waiting does not help.
        waits = isinstance(error.reason, TimeoutError | ConnectionResetError)
        raise Trouble(f"no connection ({error.reason})", passing=waits) from None
    except ValueError as error:
        raise Trouble(f"that is no address ({error})") from None
    except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise _broken(error) from None


def refusal(status: int, retry_after: str | None = None) -> Trouble:
    """The trouble that a status stands for; too many requests (429) and a server in trouble (5xx) pass."""
    import http.client

    said = f"the server answered {status} {http.client.responses.get(status, '')}".rstrip()
    return Trouble(said, passing=status == 429 or status >= 500, status=status, wait=_seconds(retry_after))


def _seconds(retry_after: str | None) -> float:
    """The seconds of a Retry-After header, which has them or a date; 0 if it is neither."""
    from email.utils import parsedate_to_datetime

    if not retry_after:
        return 0
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        return max(0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0


def blocks(answer: "HTTPResponse", end: float) -> Iterator[bytes]:
    """The body of an answer as it arrives.

    Raises:
        Trouble: the transfer broke, was too short, or was not done at `end` (time.monotonic()).
    """
    import http.client

    try:
        while block := answer.read1(1 << 16):  # read1 returns what has arrived, so a trickle cannot outwait the end
            yield block
            if time.monotonic() > end:
                raise TimeoutError("too slow")
        if answer.length:
            raise ConnectionError(f"it ended {answer.length} bytes early")
    except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise _broken(error) from None


def _broken(error: Exception) -> Trouble:
    return Trouble(f"the transfer broke ({error or type(error).__name__})", passing=True)
