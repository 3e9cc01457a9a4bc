"""Downloads of known files: only what was meant is kept, and what went wrong is said for every address."""

import hashlib
import socket
import time
from pathlib import Path

import pytest

from server import Answer, serve
from tenfold.data import web
from tenfold.data.fetch import fetch
from tenfold.errors import DataError

pytestmark = pytest.mark.timeout(60)
RIGHT = b"what was meant " * 1000
SHA256 = hashlib.sha256(RIGHT).hexdigest()
PAGE = b"<html>Sign in</html>"
PAGE_SHA256 = hashlib.sha256(PAGE).hexdigest()


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits."""
    monkeypatch.setattr(web, "PAUSE", 0.01)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(PAGE, 200, "text/html"), f"answered 200, but sent 20 bytes of text/html with sha256 {PAGE_SHA256}"),
        (Answer(PAGE, 404, "text/html"), "the server answered 404 Not Found"),
        (Answer(PAGE, 451, "text/html"), "the server answered 451 Unavailable For Legal Reasons"),
    ],
)
def test_another_source_is_asked_and_a_page_is_never_kept(tmp_path: Path, answer: Answer, says: str) -> None:
    path = tmp_path / "eval.jsonl"  # T29
    with serve({"/gone": answer, "/moved": answer, "/here": RIGHT}) as site:
        gone, moved, here = (f"{site.url}/{name}" for name in ("gone", "moved", "here"))
        for _ in range(2):  # the next run asks again
            with pytest.raises(DataError, match=says) as caught:
                fetch([gone, moved], path, SHA256)
            said = str(caught.value)
            assert "\n" not in said
            assert f"{gone}: the server answered" in said
            assert f"{moved}: the server answered" in said
            assert said.endswith(f"get the file with sha256 {SHA256} some other way and save it as {path}")
            assert list(tmp_path.iterdir()) == []
        assert len(site.requests) == 4  # none of this passes by waiting
        assert fetch([gone, here, moved], path, SHA256) == path
    assert path.read_bytes() == RIGHT


@pytest.mark.parametrize(
    "first",
    [
        Answer(status=503),
        Answer(PAGE, 429, "text/html", {"Retry-After": "0"}),
        Answer(RIGHT, cut=100),
        Answer(RIGHT, cut=0),
    ],
    ids=["503", "429", "cut", "cut at once"],
)
def test_what_passes_is_tried_again(tmp_path: Path, first: Answer) -> None:
    with serve({"/file": [first, first, RIGHT]}) as site:
        assert fetch(f"{site.url}/file", tmp_path / "file", SHA256).read_bytes() == RIGHT
        assert len(site.requests) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_more_tries_than_there_is_time_for(tmp_path: Path) -> None:
    with serve({"/file": Answer(status=503, headers={"Retry-After": "60"})}) as site:
        with pytest.raises(DataError, match="answered 503"):
            fetch(f"{site.url}/file", tmp_path / "file", SHA256, deadline=1)
        assert len(site.requests) == 1


def test_a_server_that_hangs_or_trickles_is_given_up(tmp_path: Path) -> None:
    with serve({"/hang": Answer(hang=True), "/file": RIGHT}) as site:
        with pytest.raises(DataError, match=r"the transfer broke \(timed out\)"):
            fetch(f"{site.url}/hang", tmp_path / "file", SHA256, timeout=0.1, tries=2)
        assert len(site.requests) == 2
        with pytest.raises(DataError, match=r"the transfer broke \(too slow\)"):
            fetch(f"{site.url}/file", tmp_path / "file", SHA256, deadline=0)


def test_no_network_is_told_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # T28
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/file"
    before = time.monotonic()
    with pytest.raises(DataError, match=r"no connection \(.*refused.* save it as .*/file$") as caught:
        fetch([url, url], tmp_path / "file", SHA256)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - before < 5
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"cannot save http://one or http://two as .*file/eval"):
        fetch(["http://one", "http://two"], tmp_path / "file" / "eval", SHA256)
