"""`tenfold watch`."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from tenfold import rundir
from tenfold.cli.common import parse
from tenfold.errors import ConfigError


@dataclass(frozen=True)
class WatchOptions:
    """Show the runs of a folder on a local page: live while they train, and afterwards. It reads their files only, and
    starts a process with a model where one is played with. Ctrl-C ends it."""

    folder: tyro.conf.Positional[Path] = rundir.RUNS
    """Folder of runs."""
    port: int = 6710
    """Port of the page; 0 takes any that is free."""
    host: str = "127.0.0.1"
    """Address that it listens on; on any but this machine's own it asks for a token, which is part of what is
    printed."""
    open: bool = False
    """Open the page in the browser."""


def watch(arguments: Sequence[str]) -> int:
    """show runs on a local page, live while they train"""
    options: WatchOptions = parse(WatchOptions, arguments, "watch")
    folder = options.folder
    if (folder / "run.json").is_file():
        raise ConfigError(f"{folder} is a run; give the folder that holds it: {folder.absolute().parent}")
    if folder != rundir.RUNS and not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give one that holds run folders, or none for {rundir.RUNS}/")
    if not 0 <= options.port < 2**16:
        raise ConfigError(f"--port {options.port}: give 1 to 65535, or 0 for any that is free")
    from importlib.util import find_spec

    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise ConfigError(f"watch needs {' and '.join(missing)}; run `pip install 'tenfold[web]'`")
    listener = bound(options.host, options.port)
    from tenfold.watch.serve import serve

    return serve(folder, listener, options.host, options.open)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens on this address; ConfigError if it cannot."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a restart has to wait
        listener.bind(address)
        listener.listen()
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigError(
            f"{host} port {port} cannot be listened on ({error.strerror}); give another --port, 0 for any that is "
            "free, or another --host"
        ) from None
    return listener
