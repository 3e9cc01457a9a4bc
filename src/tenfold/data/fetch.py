"""One download of one known file: time limits, a few tries, and nothing kept whose hash is not the expected one."""

import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tenfold.data.web import Trouble, blocks, persistently, request
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


def fetch(
    url: str | Sequence[str],
    path: Path,
    sha256: str,
    *,
    timeout: float = 10,
    deadline: float = 120,
    tries: int = 3,
) -> Path:
    """Makes `path` hold the file whose hash is `sha256`, downloading it unless it is there already.

    What arrives is written beside `path` under a temporary name and renamed only when its hash is right, so an error
    page, a cut transfer or another version is never kept.

    Args:
        url: Where the file is, or several such addresses: each next one is asked if the one before fails.
        timeout: Seconds to wait for a server to connect or to send more.
        deadline: Seconds for everything from one address together.
        tries: How often a broken transfer or a server in trouble (429, 5xx) is tried.

    Raises:
        DataError: every address failed (no connection, a status other than 200, another hash), no place, or another
            file lies at `path`.
    """
    if path.exists():
        if sha256_of(path) == sha256:
            return path
        raise DataError(f"{path} is not the file expected there (sha256 {sha256}); move it away and try again")
    failed, beside = [], path.with_name(f"{path.name}.{os.getpid()}.partial")
    urls = (url,) if isinstance(url, str) else url
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for source in urls:
            end = time.monotonic() + deadline
            try:
                persistently(functools.partial(_receive, source, beside, sha256, timeout, end), tries, end)
            except Trouble as trouble:
                failed.append(f"{source}: {trouble}")
            else:
                beside.replace(path)
                return path
    except OSError as error:
        raise DataError(
            f"cannot save {' or '.join(urls)} as {path} ({error.strerror}); make room or choose another place"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    raise DataError(
        f"cannot download {'; '.join(failed)}; get the file with sha256 {sha256} some other way and save it as {path}"
    )


def _receive(url: str, partial: Path, sha256: str, timeout: float, end: float) -> None:
    """Downloads to `partial`; Trouble if that fails or what came is not what was meant."""
    digest, size = hashlib.sha256(), 0
    with request(url, timeout) as answer, partial.open("wb") as file:
        for block in blocks(answer, end):
            digest.update(block)
            size += len(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        if digest.hexdigest() != sha256:
            kind = answer.headers.get_content_type()
            raise Trouble(
                f"the server answered {answer.status}, but sent {size} bytes of {kind} with sha256 "
                f"{digest.hexdigest()}, which are not kept"
            )
