"""Serves the page until Ctrl-C, on a socket that listens already."""

import contextlib
import ipaddress
import secrets
import socket
from pathlib import Path

import uvicorn

from tenfold.watch.app import application

LOOPBACK = {"localhost", "127.0.0.1", "::1"}
GRACE = 5  # seconds for answers that are under way when the server ends


def serve(folder: Path, listener: socket.socket, host: str, browse: bool) -> int:
    """Serve the runs of a folder and print where; `browse` opens it. 0 after Ctrl-C."""
    address, port = listener.getsockname()[:2]
    here = ipaddress.ip_address(address)
    token = "" if here.is_loopback else secrets.token_urlsafe(24)
    # Behind a token any name may lead here: a page of another site has no cookie of this one.
    hosts = None if here.is_unspecified else LOOPBACK | {address, host.lower()}
    server = uvicorn.Server(
        uvicorn.Config(
            application(folder, hosts, token, f"tenfold-{port}", lambda: server.should_exit),
            log_level="warning",
            access_log=False,
            server_header=False,
            http="h11",
            loop="asyncio",
            ws="none",
            timeout_graceful_shutdown=GRACE,
        )
    )
    shown = socket.gethostname() if here.is_unspecified else f"[{address}]" if here.version == 6 else address
    url = f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
    print(f"watching {folder}: {url}")
    if here.is_loopback:
        print(
            f"from another machine: ssh -L {port}:localhost:{port} {socket.gethostname()}, then http://localhost:{port}/"
        )
    print("Ctrl-C ends it", flush=True)
    if browse:
        import webbrowser

        webbrowser.open(url)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    return 0
