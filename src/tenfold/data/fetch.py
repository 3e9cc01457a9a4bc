"""One download of one known file: time limits, a few tries, and nothing kept whose hash is not the expected one."""

import contextlib
import hashlib
import os
import time
from pathlib import Path

from tenfold.errors import DataError
from tenfold.files import sha256_of

TINY_SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def cache_folder() -> Path:
    """Tenfold's folder for downloads: $XDG_CACHE_HOME/tenfold, usually ~/.cache/tenfold. It need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tenfold"


def fetch_shakespeare(path: Path | None = None, url: str = TINY_SHAKESPEARE_URL) -> Path:
    """Tiny Shakespeare (1,115,394 bytes) at `path`, by default in the cache, downloaded unless it lies there.

    Raises:
        DataError: the download failed, or another file lies at `path`.
    """
    return fetch(url, path or cache_folder() / "tinyshakespeare.txt", TINY_SHAKESPEARE_SHA256)


def fetch(url: str, path: Path, sha256: str, *, timeout: float = 10, deadline: float = 120, tries: int = 3) -> Path:
    """Makes `path` hold the file whose hash is `sha256`, downloading it from `url` unless it is there already.

    What arrives is written beside `path` under a temporary name and renamed only when its hash is right, so an error
    page, a cut transfer or another version is never kept.

    Args:
        timeout: Seconds to wait for the server to connect or to send more.
        deadline: Seconds for everything together.
        tries: How often a broken transfer or a server in trouble (5xx) is tried.

    Raises:
        DataError: no connection, a status other than 200, another hash, no place, or another file lies at `path`.
    """
    import http.client  # here, because a program that downloads nothing need not wait for them
    import urllib.error

    if path.exists():
        if sha256_of(path) == sha256:
            return path
        raise DataError(f"{path} is not the file expected there (sha256 {sha256}); move it away and try again")
    end, trouble, partial = time.monotonic() + deadline, "", path.with_name(f"{path.name}.{os.getpid()}.partial")
    by_hand = f"get it some other way and save it as {path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(tries):
            if attempt:
                time.sleep(min(attempt, max(0, end - time.monotonic())))
            try:
                kind, size, got = _receive(url, partial, timeout, end)
            except urllib.error.HTTPError as error:
                error.close()
                trouble = f"the server answered {error.code} {error.reason}"
                if error.code < 500:
                    break
            except urllib.error.URLError as error:
                trouble = f"no connection ({error.reason})"
                if not isinstance(error.reason, TimeoutError):
                    break  # no such name, no route, refused: waiting does not help
            except ValueError as error:
                trouble = f"that is no address ({error})"
                break
            except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
                trouble = f"the transfer broke ({error or type(error).__name__})"
            else:
                if got == sha256:
                    partial.replace(path)
                    return path
                trouble = f"the server sent {size} bytes of {kind} with sha256 {got} instead of {sha256}; not kept"
                break
            if time.monotonic() >= end:
                break
    except OSError as error:
        raise DataError(f"cannot save {url} as {path} ({error.strerror}); make room or choose another place") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    raise DataError(f"cannot download {url}: {trouble}; {by_hand}")


def _receive(url: str, partial: Path, timeout: float, end: float) -> tuple[str, int, str]:
    """Downloads to `partial`; returns the content type, the size in bytes and the SHA-256 of what came."""
    import urllib.request

    digest, size = hashlib.sha256(), 0
    request = urllib.request.Request(url, headers={"User-Agent": "tenfold"})
    with urllib.request.urlopen(request, timeout=timeout) as answer, partial.open("wb") as file:
        while block := answer.read1(1 << 16):  # read1 returns what has arrived, so a trickle cannot outwait the end
            if time.monotonic() > end:
                raise TimeoutError("too slow")
            digest.update(block)
            size += len(block)
            file.write(block)
        if answer.length:
            raise ConnectionError(f"it ended {answer.length} bytes early")
        file.flush()
        os.fsync(file.fileno())
        return answer.headers.get_content_type(), size, digest.hexdigest()
