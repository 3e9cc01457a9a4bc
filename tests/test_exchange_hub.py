"""Models from the Hub and to it, by a real server on loopback that answers as the Hub does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file

from server import SHA, Answer, hub, serve
from tenfold import api
from tenfold.data.tokenizer import Gpt2
from tenfold.errors import CheckpointError
from tenfold.exchange.exporting import export
from tenfold.exchange.hub import download, push
from tenfold.exchange.sources import open_source
from tenfold.exchange.weights import weights_of
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT

NAME = "openai-community/gpt2"
PAGE = Answer(b"<html>sign in</html>", type="text/html")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2 in Hugging Face's form."""
    path = tmp_path_factory.mktemp("out") / "hf"
    export(GPT(ModelConfig(1, 2, 8, 16)).initialise(1).eval(), Gpt2(), path, "hf", "a card", lambda _: None)
    return path


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the library ask another server, with an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    def ask(url: str) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        monkeypatch.setattr(
            huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
        )

    return ask


def test_a_released_model_comes_by_its_name_and_stays(folder: Path, at: Any) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"onnx/model.safetensors": b"not wanted", "pytorch_model.bin": b"not wanted"}
    with serve(hub(NAME, files, kind="models")) as site:
        at(site.url)
        source = open_source("gpt2")
        fetched = {request.path.rpartition("/")[2] for request in site.requests if "/resolve/" in request.path}
    assert source.revision == SHA
    want = load_file(folder / "model.safetensors")
    assert torch.equal(weights_of(source)["wte.weight"][:50257], want["transformer.wte.weight"])
    assert "pytorch_model.bin" not in fetched
    assert "README.md" not in fetched
    again = open_source("gpt2")  # nobody answers now: what was fetched is used
    assert (again.revision, again.folder) == (SHA, source.folder)


def test_older_weights_come_where_there_are_no_others(folder: Path, at: Any, tmp_path: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    files = {"config.json": (folder / "config.json").read_bytes()}
    with serve(
        hub("me/old", {**files, "pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes()}, kind="models")
    ) as s:
        at(s.url)
        api.import_run("me/old", "old", lambda _: None)
    with serve(hub("me/none", files, kind="models")) as site:
        at(site.url)
        with pytest.raises(
            CheckpointError, match=r"me/none on the Hub has no config\.json with model\*\.safetensors or"
        ):
            open_source("me/none")


def answers(answer: Answer) -> dict[str, Answer]:
    return {f"/api/models/{NAME}": answer}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ({}, r"answered 404 about .*: there is none of this name, or it is private; check it, or put your token"),
        (answers(Answer(b"", 401)), r"answered 401 about .*: there is none of this name, or it is private"),
        (answers(Answer(b"", 403, headers={"X-Error-Code": "GatedRepo"})), r"is gated: accept its terms on the Hub"),
        (answers(Answer(b"", 451)), r"answered 451 about .*: it is blocked for legal reasons"),
        (answers(Answer(b"", 500)), r"answered 500 about .*: try again later"),
        (answers(PAGE), r"did not answer properly about .*Expecting value"),
    ],
)
def test_what_the_hub_refuses_is_told_in_one_line(at: Any, script: dict[str, Answer], told: str) -> None:
    with serve(script) as site:
        at(site.url)
        with pytest.raises(CheckpointError, match=told) as error:
            open_source("gpt2")
    assert "\n" not in str(error.value)


@pytest.mark.timeout(60)
def test_no_network_is_told_at_once(at: Any) -> None:
    with serve({}) as site:
        pass
    at(site.url)  # a port at which nobody listens any more
    with pytest.raises(CheckpointError, match=r"cannot be reached for openai-community/gpt2 \(.*refused\); connect"):
        download(NAME)


def test_a_page_in_place_of_the_weights_is_not_taken(folder: Path, at: Any) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with serve(hub(NAME, {**files, "model.safetensors": PAGE}, kind="models")) as site:
        at(site.url)
        with pytest.raises(
            CheckpointError, match=r"it is a web page, as a server sends instead of a file\); remove it"
        ):
            api.import_run("gpt2", "one", lambda _: None)
    assert not Path("runs/one").exists()


class Receiver(BaseHTTPRequestHandler):
    """The Hub's side of a push: a repository is made, every file comes inside the commit."""

    posted: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted[self.path] = body
        answer: dict[str, Any] = {"url": f"http://{self.headers['Host']}/me/model", "name": "me/model"}
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            answer = {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        if "/commit/" in self.path:
            answer = {"success": True, "commitOid": SHA, "commitUrl": answer["url"] + f"/commit/{SHA}"}
        self.say(answer)

    def do_GET(self) -> None:
        self.say({"id": "me/model", "sha": SHA, "siblings": []})

    do_HEAD = do_GET

    def say(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def receiver() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A server that takes a push: its address, and what it was sent."""
    posted: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Mine", (Receiver,), {"posted": posted}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.timeout(60)
def test_a_folder_is_pushed(
    folder: Path, at: Any, receiver: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, posted = receiver
    at(url)
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    assert push(folder, "me/model") == f"{url}/me/model"
    assert json.loads(posted["/api/repos/create"])["name"] == "model"
    commit = next(body for path, body in posted.items() if "/commit/" in path)
    sent = {json.loads(line)["value"].get("path") for line in commit.splitlines()}
    assert sent >= {path.name for path in folder.iterdir()}


def test_a_push_that_is_refused_is_told_in_one_line(folder: Path, at: Any) -> None:
    with serve({}) as site:
        at(site.url)
        with pytest.raises(CheckpointError, match=r"answered (501|404|405) about me/model"):
            push(folder, "me/model")
