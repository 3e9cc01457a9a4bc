"""Remote files: read in parts they are what they are; every wrong answer is one clear line, and only what may pass is
tried again."""

import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from server import SHA, Answer, Site, hub, serve
from tenfold.data import remote, web
from tenfold.data.remote import RemoteFile, hub_files
from tenfold.errors import DataError

pytestmark = pytest.mark.timeout(60)
DATA = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8).tobytes()
HTML = b"<!DOCTYPE html><html>Sign in</html>"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits, small blocks, no account."""
    monkeypatch.setattr(web, "PAUSE", 0.01)
    monkeypatch.setattr(remote, "BLOCK", 10_000)
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def site() -> Iterator[Site]:
    """A server that has a file of 100,000 bytes."""
    with serve({"/file": DATA}) as running:
        yield running


def file(site: Site, size: int = len(DATA)) -> RemoteFile:
    return RemoteFile("file", f"{site.url}/file", size, hashlib.sha256(DATA).hexdigest())


# Reading


def test_a_remote_file_reads_as_a_local_one(site: Site) -> None:
    draw = np.random.default_rng(1)
    with file(site).open() as there, io.BytesIO(DATA) as here:
        assert (there.readable(), there.seekable(), there.writable()) == (True, True, False)
        for _ in range(60):
            whence = int(draw.integers(3))
            place = int(draw.integers(0, len(DATA) + 10))
            offset = (place, place - here.tell(), place - len(DATA))[whence]
            assert there.seek(offset, whence) == here.seek(offset, whence)
            count = int(draw.choice([0, 1, 100, 9_999, 10_000, 25_000, 200_000]))
            assert there.read(count) == here.read(count)
            assert there.tell() == here.tell()
        assert there.seek(0) == 0
        assert there.read() == DATA
        with pytest.raises(ValueError):
            there.seek(-1)


def test_no_request_is_for_more_than_a_block_and_small_reads_share_one(site: Site) -> None:
    with file(site).open() as there:
        there.read(35_000)
        sizes = [np.diff([int(n) for n in r.headers["Range"][6:].split("-")])[0] + 1 for r in site.requests]
        assert max(sizes) <= 10_000
        site.requests.clear()
        there.seek(50_000)
        assert b"".join(there.read(10) for _ in range(1_000)) == DATA[50_000:60_000]
        assert len(site.requests) == 1


def test_parquet_is_read_row_group_by_row_group(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    texts = ["".join(map(chr, rng.integers(97, 123, rng.integers(0, 400)))) for _ in range(1_000)]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": texts, "other": texts[::-1]}), path, row_group_size=150)
    body = path.read_bytes()
    with serve({"/rows.parquet": body}) as site:
        there = RemoteFile("rows.parquet", f"{site.url}/rows.parquet", len(body), "")
        rows = []
        with there.open() as source:
            parquet = pq.ParquetFile(source, pre_buffer=False)
            assert parquet.num_row_groups == 7
            for group in range(parquet.num_row_groups):
                rows += parquet.read_row_group(group, columns=["text"])["text"].to_pylist()
                assert rows[-1] == texts[len(rows) - 1]
        assert rows == texts
        assert len(site.requests) < 60


def test_an_error_comes_through_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["x" * 100] * 1000}), path, compression=None, use_dictionary=False)
    body = path.read_bytes()
    with serve({"/rows.parquet": body}) as site:
        source = RemoteFile("rows.parquet", f"{site.url}/rows.parquet", len(body), "").open()
        parquet = pq.ParquetFile(source, pre_buffer=False)
        site.script["/rows.parquet"] = Answer(HTML, 451, "text/html")
        with pytest.raises(DataError, match="451 Unavailable For Legal Reasons"):
            parquet.read_row_group(0, columns=["text"])


# Trouble


@pytest.mark.parametrize(
    "first",
    [
        Answer(b"busy", 429, headers={"Retry-After": "0"}),
        Answer(b"busy", 429, headers={"Retry-After": formatdate(0)}),
        Answer(b"busy", 429, headers={"Retry-After": "soon"}),
        Answer(HTML, 503, "text/html"),
        Answer(HTML, 500, "text/html"),
        Answer(DATA, cut=3_000),
        Answer(DATA, cut=0),
    ],
    ids=["429 at once", "429 with a date", "429 with nonsense", "503", "500", "cut", "cut at once"],
)
def test_what_passes_is_tried_again(first: Answer) -> None:
    with serve({"/file": [first, first, DATA]}) as site, file(site).open() as there:
        assert there.read() == DATA
        assert len(site.requests) == 12  # 10 blocks


def test_a_broken_transfer_goes_on_where_it_broke() -> None:
    with serve({"/file": [Answer(DATA, cut=3_000), DATA]}) as site, file(site).open() as there:
        assert there.read(10_000) == DATA[:10_000]
        assert [r.headers["Range"] for r in site.requests] == ["bytes=0-9999", "bytes=3000-9999"]


def test_waits_grow_and_are_those_that_the_server_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(web.time, "sleep", waits.append)
    busy = Answer(b"busy", 429, headers={"Retry-After": "7"})
    forever = Answer(b"busy", 429, headers={"Retry-After": "100000"})
    with serve({"/file": [Answer(status=503), Answer(status=503), busy, forever, DATA]}) as site:
        assert file(site).open().read(1)
    assert waits == [0.01, 0.02, 7, web.LONGEST_PAUSE]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(HTML, 404, "text/html"), r"answered 404 Not Found; check the name"),
        (Answer(HTML, 401, "text/html"), r"answered 401 Unauthorized; it is private or gated: .* variable HF_TOKEN"),
        (Answer(HTML, 403, "text/html"), r"answered 403 Forbidden; it is private or gated: .* variable HF_TOKEN"),
        (Answer(HTML, 451, "text/html"), r"answered 451 .*; it is blocked for legal reasons: take another source"),
        (Answer(HTML, 416, "text/html"), r"answered 416 .*; the file is not the one that was listed"),
        (Answer(HTML, 418, "text/html"), r"answered 418 .*; run the same command again later"),
        (Answer(HTML, 200, "text/html", ranges=False), r"answered 200 with an HTML page in place of data; download"),
        (Answer(DATA, ranges=False), r"answered 200 with the whole file .* when asked for a part of it; download"),
        (Answer(DATA + b"x"), r"the file has 100001 bytes, not 100000 as when it was listed; .* run the same command"),
        (
            Answer(DATA, headers={"Content-Range": "bytes 5-10004/100000"}),
            r"sent bytes 5-10004/100000, not bytes 0-9999/100000; run the same command again",
        ),
        (Answer(DATA[:10_000], 206, ranges=False), r"sent an unnamed part, not bytes 0-9999/100000"),
    ],
    ids=["404", "401", "403", "451", "416", "418", "HTML", "no ranges", "changed", "other range", "unnamed range"],
)
def test_what_does_not_pass_is_told_at_once(answer: Answer, says: str) -> None:
    with serve({"/file": answer}) as site, file(site).open() as there:
        with pytest.raises(DataError, match=says) as caught:
            there.read(10)
        assert f"cannot read file from {site.url}/file" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(site.requests) == 1


def test_trouble_that_stays_is_told_after_a_few_tries() -> None:
    with serve({"/file": Answer(b"busy", 503)}) as site, file(site).open() as there:
        with pytest.raises(DataError, match="answered 503 Service Unavailable; run the same command again later"):
            there.read(10)
        assert len(site.requests) == remote.TRIES


def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TIMEOUT", 0.1)
    monkeypatch.setattr(remote, "TRIES", 2)
    with serve({"/file": Answer(hang=True)}) as site, file(site).open() as there:
        with pytest.raises(DataError, match=r"the transfer broke \(timed out\); check the network"):
            there.read(10)
        assert len(site.requests) == 2


def test_a_trickle_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "DEADLINE", -1)
    with file(site).open() as there, pytest.raises(DataError, match=r"the transfer broke \(too slow\)"):
        there.read(10)


def test_no_server_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    before = time.monotonic()
    with pytest.raises(DataError, match=r"no connection \(.*refused.*; check the network"):
        RemoteFile("file", f"http://127.0.0.1:{port}/file", 10, "").open().read(1)
    with pytest.raises(DataError, match=r"no connection \(.*; check the network"):
        hub_files("owner/name", "main", ["*"], f"http://127.0.0.1:{port}")
    assert time.monotonic() - before < 5


def test_the_token_goes_to_the_named_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve({"/file": DATA}) as other:
        moved = Answer(b"", 302, headers={"Location": f"{other.url}/file"})
        with serve({"/file": moved}) as site, file(site).open() as there:
            assert there.read(10) == DATA[:10]
            assert site.requests[0].headers["Authorization"] == "Bearer hf_secret"
            assert "Authorization" not in other.requests[0].headers
            assert other.requests[0].headers["Range"] == "bytes=0-9999"
        assert "hf_secret" not in repr(file(site))


# Listing

FILES = {
    "README.md": b"# read me",
    "sample/10BT/001.parquet": b"one",
    "sample/10BT/000.parquet": DATA,
    "data/é 1.bin": b"1",
}


def test_files_of_a_dataset_are_listed_in_order_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(hub("owner/name", FILES)) as site:
        commit, files = hub_files("owner/name", "main", ["sample/10BT/*.parquet"], site.url)
        assert commit == SHA
        assert [(f.name, f.size) for f in files] == [
            ("sample/10BT/000.parquet", 100_000),
            ("sample/10BT/001.parquet", 3),
        ]
        assert files[0].identity == hashlib.sha256(DATA).hexdigest()
        assert files[0].open().read() == DATA
        assert SHA in files[0].url
        assert hub_files("owner/name", SHA, ["sample/10BT/*.parquet"], site.url) == (commit, files)
        _, (odd,) = hub_files("owner/name", "main", ["data/*"], site.url)
        assert odd.open().read() == b"1"
        assert len(hub_files("owner/name", "main", ["*.md", "data/*"], site.url)[1]) == 2


def test_the_environment_names_another_server() -> None:
    code = """if True:
        from tenfold.data.remote import hub_files
        print(hub_files("owner/name", "main", ["*.md"])[1][0].open().read())
    """
    with serve(hub("owner/name", FILES)) as site:
        surroundings = {**os.environ, "HF_ENDPOINT": site.url}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True, env=surroundings
        )
    assert done.stdout == "b'# read me'\n"


@pytest.mark.parametrize(
    ("repo", "revision", "pattern", "says"),
    [
        (
            "owner/other",
            "main",
            "*",
            r"owner/other \(revision 'main' at http.*\) does not exist, or is private or gated",
        ),
        ("owner/name", "nowhere", "*", r"owner/name has no revision 'nowhere' at http.*; give a branch, a tag or"),
        (
            "owner/name",
            "main",
            "*.csv",
            r"no file .* matches \*\.csv; its 4 files are README\.md, data/é 1\.bin, sample",
        ),
        ("no such name", "main", "*", r"the dataset no such name cannot exist on the Hub; give OWNER/NAME"),
    ],
)
def test_what_is_not_there_is_told(repo: str, revision: str, pattern: str, says: str) -> None:
    with serve(hub("owner/name", FILES)) as site:
        site.script["/api/datasets/owner/other/revision/main"] = Answer(
            b"{}", 401, "application/json", {"X-Error-Code": "RepoNotFound"}
        )
        with pytest.raises(DataError, match=says) as caught:
            hub_files(repo, revision, [pattern], site.url)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(b"{}", 403, headers={"X-Error-Code": "GatedRepo"}), r"403 Forbidden; it is private or gated"),
        (Answer(b"{}", 404), r"answered 404 Not Found; check the name"),
        (Answer(b"{}", 451), r"it is blocked for legal reasons"),
        (Answer(HTML, 200, "text/html"), r"the answer is not the Hub's, but maybe a sign-in page"),
        (Answer(b"[]", 200, "application/json"), r"the answer is not the Hub's"),
        (Answer(b'{"id": "owner/name"}', 200, "application/json"), r"names no commit"),
        (
            Answer(b'{"id": "owner/name", "sha": "a", "siblings": [{"rfilename": "b"}]}', 200, "application/json"),
            r"does not tell the size of b",
        ),
    ],
)
def test_wrong_answers_for_a_listing_are_told(answer: Answer, says: str) -> None:
    with serve({"/api/datasets/owner/name/revision/main": answer}) as site:
        with pytest.raises(DataError, match=says) as caught:
            hub_files("owner/name", "main", ["*"], site.url)
        assert "\n" not in str(caught.value)
        assert len(site.requests) == 1


def test_a_listing_is_tried_again_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/api/datasets/owner/name/revision/main"
    found = hub("owner/name", FILES)
    busy = Answer(b"busy", 429, headers={"Retry-After": "0"})
    with serve({**found, path: [busy, Answer(b"", 503), found[path]]}) as site:  # type: ignore[list-item]
        assert len(hub_files("owner/name", "main", ["*"], site.url)[1]) == 4
    monkeypatch.setattr(remote, "LISTING", 0.1)
    with serve({path: Answer(hang=True)}) as site, pytest.raises(DataError, match=r"no connection \(.*time"):
        hub_files("owner/name", "main", ["*"], site.url)


def test_a_file_without_an_lfs_hash_has_gits() -> None:
    path = "/api/datasets/owner/name/revision/main"
    answer = {"id": "owner/name", "sha": SHA, "siblings": [{"rfilename": "a", "size": 3, "blobId": "f" * 40}]}
    with serve({path: replace(Answer(type="application/json"), body=json.dumps(answer).encode())}) as site:
        (only,) = hub_files("owner/name", "main", ["*"], site.url)[1]
    assert only.identity == "f" * 40
