"""Files that are whole or absent, their hashes, and folders that one process holds at a time. Standard library only."""

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

PATIENCE = 1.0  # seconds; whoever only looks whether a folder is held holds it for a moment


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open_whole(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_whole(path: Path) -> BufferedReader:
    """Opens a file to read, as `open` does. What may never answer, or never end, is refused by OSError: a pipe or a
    device, which a folder that came from elsewhere may hold, or link to, where a file should be."""

    def opener(name: str, flags: int) -> int:
        handle = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
        if stat.S_ISREG(mode := os.fstat(handle).st_mode) or stat.S_ISDIR(mode):  # `open` refuses folders itself
            return handle
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a pipe or a device", name)

    return open(path, "rb", opener=opener)


def content_of(path: Path) -> bytes:
    """What a file holds; refused by OSError is what `open_whole` refuses."""
    with open_whole(path) as file:
        return file.read()


def from_json(content: str | bytes) -> Any:
    """The value that JSON says; ValueError for whatever is none, and for brackets in brackets beyond all measure."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None


def open_itself(path: Path, mode: str) -> BinaryIO:
    """Opens a file to write, as `open` does. A symbolic link is refused by OSError, so that nothing is written where a
    folder that came from elsewhere points."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    return cast(BinaryIO, open(path, mode, opener=opener))


def sync(path: Path) -> None:
    """Returns once a file's content, or a folder's entries, are safe on the disk."""
    with contextlib.suppress(PermissionError):  # Windows opens no folders, and needs no help with renames
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content in one step: readers see the old or the new, never a half, also after a power cut."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open_itself(partial, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync(path.parent)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes of this machine, by a lock that ends with the process, however it ends.

    Raises BlockingIOError if another one holds it. Where there are no such locks (Windows, some network file systems)
    nothing is noticed.
    """
    handle = None
    try:
        import fcntl
    except ImportError:
        fcntl = None  # type: ignore[assignment]
    try:
        if fcntl is not None:
            handle = os.open(folder, os.O_RDONLY)
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.05)
                except OSError:
                    break
        yield
    finally:
        if handle is not None:
            os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether another process of this machine holds a folder."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
