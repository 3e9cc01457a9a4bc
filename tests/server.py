"""A real HTTP server on loopback that answers as a test has written down, and a Hub made of such answers."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"  # the commit of every dataset and model on the made Hub


@dataclass(frozen=True)
class Answer:
    """What one request gets. A body that is served with status 200 is also served by ranges, unless `ranges` is False.

    `cut` closes the connection after so many bytes of the body; `hang` says nothing at all until the server stops.
    """

    body: bytes = b""
    status: int = 200
    type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    ranges: bool = True
    cut: int | None = None
    hang: bool = False


# Path, with its percent escapes resolved -> one answer, or several of which each request takes the next, the last for
# good. A path that is not there is answered 404.
Script = Mapping[str, bytes | Answer | Sequence[bytes | Answer]]


@dataclass
class Request:
    """What was asked: the path as in the script, the query and the headers."""

    path: str
    query: str
    headers: dict[str, str]


class Site:
    """A running server: `url` ends without a slash, `requests` are all that came, `script` may be changed."""

    def __init__(self, url: str, script: Script) -> None:
        self.url, self.script = url, dict(script)
        self.requests: list[Request] = []
        self.lock, self.stopped = threading.Lock(), threading.Event()

    def next(self, request: Request) -> Answer:
        """The answer to a request, which is remembered."""
        with self.lock:
            earlier = sum(one.path == request.path for one in self.requests)
            self.requests.append(request)
            found = self.script.get(request.path, Answer(b"nothing here", 404, "text/plain"))
            if not isinstance(found, bytes | Answer):
                found = found[min(earlier, len(found) - 1)]
            return Answer(found) if isinstance(found, bytes) else found


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD by the site's script."""

    site: Site

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        answer = self.site.next(Request(unquote(where.path), where.query, dict(self.headers.items())))
        if answer.hang:
            self.site.stopped.wait(60)
            self.close_connection = True
            return
        body, status, headers = answer.body, answer.status, dict(answer.headers)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and answer.ranges and status == 200:
            first, last = int(asked[1]), min(int(asked[2] or len(body)), len(body) - 1)
            headers = {"Content-Range": f"bytes {first}-{last}/{len(body)}", **headers}
            status, body = 206, body[first : last + 1]
        self.send_response(status)
        for name, value in {"Content-Type": answer.type, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(ConnectionError):  # the client has gone
                self.wfile.write(body[: answer.cut])
        if answer.cut is not None:
            self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def serve(script: Script) -> Iterator[Site]:
    """A server at a free port of the loopback interface, for as long as the block lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Scripted", (Handler,), {}))
    server.daemon_threads = True
    site = Site(f"http://127.0.0.1:{server.server_port}", script)
    server.RequestHandlerClass.site = site  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        site.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


def hub(repo: str, files: Mapping[str, bytes | Answer], *, kind: str = "datasets", revision: str = "main") -> Script:
    """The Hub's answers for one repository of `kind` "datasets" or "models": what it holds at a branch and at the
    commit SHA, and each file."""
    place = "/datasets/" if kind == "datasets" else "/"
    whole = {name: Answer(given) if isinstance(given, bytes) else given for name, given in files.items()}
    hashes = {name: hashlib.sha256(answer.body).hexdigest() for name, answer in whole.items()}
    siblings = [
        {
            "rfilename": name,
            "size": len(answer.body),
            "blobId": hashes[name][:40],
            "lfs": {"sha256": hashes[name], "size": len(answer.body), "pointerSize": 134},
        }
        for name, answer in whole.items()
    ]
    info = Answer(json.dumps({"id": repo, "sha": SHA, "siblings": siblings}).encode(), type="application/json")
    missing = Answer(b'{"error": "Invalid rev id"}', 404, "application/json", {"X-Error-Code": "RevisionNotFound"})
    script: dict[str, bytes | Answer | Sequence[bytes | Answer]] = {
        f"/api/{kind}/{repo}": info,
        f"/api/{kind}/{repo}/revision/{revision}": info,
        f"/api/{kind}/{repo}/revision/{SHA}": info,
        f"/api/{kind}/{repo}/revision/nowhere": missing,
    }
    for name, answer in whole.items():
        headers = {"ETag": f'"{hashes[name]}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes", **answer.headers}
        for at in {revision, SHA}:
            script[f"{place}{repo}/resolve/{at}/{name}"] = Answer(
                answer.body, answer.status, answer.type, headers, answer.ranges, answer.cut, answer.hang
            )
    return script
