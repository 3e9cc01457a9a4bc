"""The server: the page's files, and what they ask for, over HTTP. Who may ask is decided here too."""

import hmac
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenfold import filmfile
from tenfold.errors import TenfoldError
from tenfold.watch.playground import Playground
from tenfold.watch.report import joined
from tenfold.watch.runs import Runs, Watched, differing, encoded, own
from tenfold.watch.stream import event, listen, places

PAGE = Path(__file__).parent / "page"
LADDER = "ladder.html"  # in a ladder's folder
WHOLE = re.compile("[0-9]{1,18}")
FEWEST, MOST = 10, 20_000  # points that a series may be asked for
LARGEST = 1 << 20  # bytes of a request
THREADS = 4  # that read files; more would not be faster, and each keeps memory
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
APART = (  # a ladder's page has its style and script inside, and may have come from elsewhere: it reaches nothing
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'self'; sandbox allow-scripts allow-popups"
)


def application(root: Path, hosts: set[str] | None, token: str, cookie: str, ending: Callable[[], bool]) -> ASGIApp:
    """The server's application for the runs below a folder.

    hosts: what a request may call this server, so that no name of another site is made to lead here; None is any.
    token: what has to be known to ask for anything, empty for nothing, and `cookie` is where a browser keeps it. Long
    answers end soon after `ending()`.
    """
    routes = [
        Route("/", index),
        Route("/page/main.js", script),
        Mount("/page", StaticFiles(directory=PAGE, check_dir=False)),
        Route("/api/runs", listed),
        Route("/api/runs/{name}", detail),
        Route("/api/runs/{name}/series", series),
        Route("/api/runs/{name}/samples/{step}", sample),
        Route("/api/runs/{name}/film", film),
        Route("/api/runs/{name}/film/{step}", frame),
        Route("/api/compare", compare),
        Route("/api/stream", stream),
        Route("/api/ladders", ladders),
        Route("/ladder/{name}", ladder),
        Route("/api/play", play, methods=["POST"]),
    ]
    playground = Playground()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield
        await playground.close()

    app = Starlette(routes=routes, exception_handlers={HTTPException: told, TenfoldError: told}, lifespan=lifespan)
    app.state.runs, app.state.ending, app.state.playground = Runs(root), ending, playground
    app.state.ladders = root.absolute().parent / "ladders"
    return guarded(app, hosts, token, cookie)


def guarded(app: ASGIApp, hosts: set[str] | None, token: str, cookie: str) -> ASGIApp:
    """The application behind what `application` says of hosts and token; every answer has the headers of SECURITY that
    it does not set itself."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] != "http":
            return await app(scope, receive, send)
        refusal = refused(Request(scope), hosts, token, cookie)
        await (refusal or app)(scope, receive, sending)

    return guard


def refused(request: Request, hosts: set[str] | None, token: str, cookie: str) -> Response | None:
    """The answer to a request that may not ask, or that shows its token for the first time; None for one that may."""
    host, origin = named(request.headers), request.headers.get("origin")
    if hosts is not None and host not in hosts:
        return answer({"error": f"this server is {' or '.join(sorted(hosts))}, not {host!r}; open one of these"}, 403)
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        return answer({"error": "a page of another site asks; open this server's own"}, 403)
    if not token:
        return None
    asked = [(k, v) for k, v in parse_qsl(request.url.query, keep_blank_values=True) if k != "token"]
    if is_secret(request.query_params.get("token", ""), token):
        response = RedirectResponse(f"/{request.url.path.lstrip('/')}" + (f"?{urlencode(asked)}" if asked else ""), 303)
        response.set_cookie(cookie, token, httponly=True, samesite="lax")
        return response
    if is_secret(request.cookies.get(cookie, ""), token):
        return None
    return answer({"error": "this needs the token; open the whole address that `tenfold watch` printed"}, 401)


def named(headers: Headers) -> str:
    """What a request calls this server, without the port."""
    return re.sub(r":\d*$", "", headers.get("host", "")).strip("[]").lower()


def is_secret(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def answer(value: Any, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(encoded(value), status, media_type="application/json")


def told(request: Request, error: Exception) -> Response:
    """The answer to what cannot be: an error of HTTP, or one line for whatever is wrong with the files."""
    if isinstance(error, HTTPException):
        return answer({"error": error.detail}, error.status_code)
    return answer({"error": str(error)}, 422)


def run_of(request: Request) -> Watched:
    """The run that a request names; 404 if there is none."""
    return known(request, request.path_params["name"])


def known(request: Request, name: str) -> Watched:
    """The run of this name; 404 if there is none."""
    run: Watched | None = request.app.state.runs.find(name)
    if run is None:
        raise HTTPException(404, f"no run {name!r}")
    return run


def step_of(request: Request) -> int:
    """The step that a request names; 404 if that is no step."""
    step = request.path_params["step"]
    if not WHOLE.fullmatch(step):
        raise HTTPException(404, f"no step {step[:80]!r}")
    return int(step)


def names(request: Request) -> list[str]:
    """The names in ?runs=, with commas between; a comma in a name is written %2C."""
    given = re.search(r"(?:^|&)runs=([^&]*)", request.url.query)
    return [unquote(name) for name in given[1].split(",")] if given and given[1] else []


def within(folder: Path, path: Path | None) -> Path:
    """A file of a folder; 404 if it is none, or a link that leads out of it."""
    if (found := own(folder, path)) is None:
        raise HTTPException(404, "no such file")
    return found


def index(request: Request) -> Response:
    return FileResponse(PAGE / "index.html")


def script(request: Request) -> Response:
    """The page's modules as one: asking for each takes longer than all else of a page that is opened anew."""
    return Response(joined(PAGE), media_type="text/javascript")


def listed(request: Request) -> Response:
    return answer(request.app.state.runs.listed())


def detail(request: Request) -> Response:
    return answer(run_of(request).detail())


def series(request: Request) -> Response:
    points = request.query_params.get("points", "1200")
    if not (WHOLE.fullmatch(points) and FEWEST <= int(points) <= MOST):
        raise HTTPException(400, f"points {points[:80]!r}: give {FEWEST} to {MOST}")
    return answer(request.app.state.runs.series(run_of(request), int(points)))


def sample(request: Request) -> Response:
    run, step = run_of(request), step_of(request)
    if (texts := run.texts(step)) is None:
        raise HTTPException(404, "no such file")
    return answer({"step": step, "texts": texts})


def film(request: Request) -> Response:
    run = run_of(request)
    within(run.path, run.path / filmfile.FOLDER / filmfile.FILM)
    return answer(run.film())


def frame(request: Request) -> Response:
    run, step = run_of(request), step_of(request)
    path = within(run.path, run.snapshot(step))
    return Response(path.read_bytes(), media_type="application/octet-stream")


def compare(request: Request) -> Response:
    return answer({"fields": differing([known(request, name).path for name in names(request)])})


def stream(request: Request) -> Response:
    try:
        listener = places(names(request), request.query_params.get("offsets", ""), request.headers.get("last-event-id"))
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    events = listen(request.app.state.runs, listener, request.app.state.ending)
    return StreamingResponse(events, media_type="text/event-stream")


def ladders(request: Request) -> Response:
    found = request.app.state.ladders.glob(f"*/{LADDER}")
    return answer({"ladders": sorted(path.parent.name for path in found)})


def ladder(request: Request) -> Response:
    root, name = request.app.state.ladders, request.path_params["name"]
    path = next((one for one in root.glob(f"*/{LADDER}") if one.parent.name == name), None)
    return FileResponse(within(root, path), headers={"Content-Security-Policy": APART})


async def play(request: Request) -> Response:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send JSON, as application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise HTTPException(413, f"a request has at most {LARGEST:,} bytes")
    try:
        asked = json.loads(body)
        run, step = known(request, asked.pop("run")), asked.pop("step", None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise HTTPException(400, "send an object with run, step, prompt, tokens, temperature and so on") from None
    if step is not None and type(step) is not int:
        raise HTTPException(400, f"step {step!r}: give a whole number, or null for the newest checkpoint")

    async def events() -> AsyncIterator[str]:
        async for kind, value in request.app.state.playground.play(run, step, asked, request.app.state.ending):
            yield event(kind, value)

    return StreamingResponse(events(), media_type="text/event-stream")
