"""What files and servers of others may not do: run code, write elsewhere, or see what gives access to something; and
what is never told."""

import ast
import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conftest import TINY_OPTIONS, Tenfold, environment
from server import Answer, hub, serve
from tenfold import rundir
from tenfold.cli import call
from tenfold.data import web
from tenfold.data.shards import MANIFEST, Corpus, open_corpus
from tenfold.data.tokenizer import Bytes
from tenfold.errors import CheckpointError, ConfigError, DataError, TenfoldError, without_secrets
from tenfold.exchange.exporting import export
from tenfold.exchange.hub import download
from tenfold.exchange.sources import open_source
from tenfold.files import sha256_of
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.training import checkpoint
from test_floors import modules

pytestmark = pytest.mark.timeout(120)
PASSWORD, TOKEN, SIGNATURE = "s3cretpassw0rd", "hf_" + "aBcDeFgH" * 4, "5f2cfe1c9a4411ee"
TRAINING = [*TINY_OPTIONS, "--recipe.steps", "2", "--speed.precision", "fp32"]


# No code from files

READS_CODE = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
MAY_IMPORT = {
    "data.foreign": "pickle: its reader refuses every class and function",
    "exchange.pickled": "pickle: only the error that torch's restricted reader raises",
    "prepare.workers": "pickle: between this process and those that it started itself",
}
CALLS = {"torch.load", "np.load", "numpy.load", "eval", "exec", "compile", "__import__", "os.system", "os.popen"}
MAY_CALL = {
    ("exchange.pickled", "torch.load"): {"weights_only": True},
    ("data.foreign", "np.load"): {"allow_pickle": False},
    ("exchange.compare", "AutoModelForCausalLM.from_pretrained"): {
        "trust_remote_code": False,
        "local_files_only": True,
    },
}


def test_nothing_that_could_run_code_reads_a_file() -> None:
    """Every reader of pickles, and every call that could run what a file says, stands here with what makes it safe."""
    imports, calls = set(), set()
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                imports |= {module for name in names if name.split(".")[0] in READS_CODE}
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in node.keywords}
                assert not given.get("shell"), f"{module} starts a shell"
                if called in CALLS or called.endswith("from_pretrained"):
                    calls.add((module, called))
                    safe = MAY_CALL.get((module, called), {"": None})
                    assert {**given, **safe} == given, f"{module}: {called} without {safe}"
    assert imports == set(MAY_IMPORT)
    assert calls == set(MAY_CALL)


class Evil:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_a_pickle_that_would_run_code_is_refused_everywhere(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As --init, by import, as weights of a folder, as a table of characters and as an array."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "made"
    pickle.loads(pickle.dumps(Evil(made)))
    assert made.exists()  # so it is one
    made.rmdir()
    torch.save({"model": Evil(made)}, tmp_path / "new.pt")
    torch.save({"model": Evil(made)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "hf").mkdir()
    fields = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16, "vocab_size": 50257, "model_type": "gpt2"}
    (tmp_path / "hf/config.json").write_text(json.dumps(fields))
    torch.save({"wte.weight": Evil(made)}, tmp_path / "hf/pytorch_model.bin")
    for name in ("raw", "npy"):
        (tmp_path / name).mkdir()
    for split in ("train", "val"):
        (tmp_path / f"raw/{split}.bin").write_bytes(bytes(64))
        np.save(tmp_path / f"npy/a_{split}.npy", np.array([Evil(made)], dtype=object), allow_pickle=True)
    (tmp_path / "raw/meta.pkl").write_bytes(pickle.dumps({"itos": Evil(made)}))
    for arguments in (
        ("train", "finetune", "--init", "new.pt", "--data", str(corpus.path)),
        ("import", "old.pt", "--name", "taken"),
        ("import", "hf", "--name", "taken"),
        ("data", "show", "raw"),
        ("data", "show", "npy"),
    ):
        with pytest.raises(TenfoldError, match=r"was not read: it wants|it wants posix\.mkdir|Python objects in dtype"):
            call(arguments)
        assert not made.exists(), arguments
    assert not (tmp_path / "runs/taken").exists()


# No paths that leave their folder


@pytest.mark.parametrize("name", ["../beside/train_000000.bin", "{beside}/train_000000.bin", "..", "a\0b", "a\\b", ""])
def test_a_manifest_cannot_name_what_lies_elsewhere(tmp_path: Path, corpus: Corpus, name: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "beside").symlink_to(corpus.path)
    manifest = json.loads((corpus.path / MANIFEST).read_text())
    for part in manifest["splits"].values():
        part["shards"][0]["name"] = name.replace("{beside}", str(corpus.path))
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="which is not a file in its folder; do not use it"):
        open_corpus(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in Hugging Face's form."""
    path = tmp_path_factory.mktemp("out") / "hf"
    export(GPT(ModelConfig(1, 2, 8, 16, 257, 0)).initialise(1).eval(), Bytes(), path, "hf", "a card", lambda _: None)
    return path


def test_an_index_of_weights_cannot_name_what_lies_elsewhere(tmp_path: Path, folder: Path) -> None:
    here = tmp_path / "model"
    here.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (here / name).write_bytes((folder / name).read_bytes())
    save_file({"x": torch.zeros(1)}, tmp_path / "beside.safetensors")
    for name in ("../beside.safetensors", str(tmp_path / "beside.safetensors"), "a\0b", 7):
        (here / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
        with pytest.raises(CheckpointError, match=r"is half downloaded: .* which is missing"):
            open_source(str(here))


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/b", "..", ".", "", "a\0b", "a\nb", "-x", "x" * 101])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a run"):
        rundir.folder_of(name)


def test_links_are_not_written_through(tmp_path: Path) -> None:
    """A run folder that came from elsewhere may hold links to files of the user's, or checkpoints that are links."""
    precious, run = tmp_path / "precious", tmp_path / "run"
    run.mkdir()
    precious.write_text("mine")
    for name in ("metrics.jsonl", "run.json.partial"):
        (run / name).symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        rundir.append(run, {"step": 1})
    with pytest.raises(CheckpointError, match="symbolic link"):
        rundir.write_run(run, {})
    assert precious.read_text() == "mine"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/kept").write_text("mine")
    (run / "checkpoints").mkdir()
    (run / "checkpoints/step-000001").symlink_to(tmp_path / "folder")
    checkpoint.remove(run / "checkpoints/step-000001")
    checkpoint.clear(run / "checkpoints")
    assert (tmp_path / "folder/kept").read_text() == "mine"


@pytest.mark.timeout(30)
@pytest.mark.skipif(sys.platform == "win32", reason="no pipes among files")
@pytest.mark.parametrize("endless", ["pipe", "/dev/zero"])
def test_what_never_ends_is_not_read(tmp_path: Path, endless: str) -> None:
    """A pipe that nobody writes to, or a device, where the weights of a checkpoint should be."""
    os.mkfifo(tmp_path / "pipe")
    folder, state = tmp_path / "step-000001", {"position": 1}
    folder.mkdir()
    stated = {checkpoint.WEIGHTS: "", checkpoint.MOMENTS: "", checkpoint.STATE: checkpoint.digest(state)}
    (folder / checkpoint.STATE).write_text(json.dumps({**state, "sha256": stated}))
    (folder / checkpoint.WEIGHTS).symlink_to(tmp_path / endless)
    with pytest.raises(OSError, match="it is a pipe or a device"):
        sha256_of(tmp_path / endless)
    assert "it is a pipe or a device" in str(checkpoint.damage(folder))


def test_names_in_a_listing_stay_names(
    tmp_path: Path, folder: Path, at: Any, tenfold: Tenfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may list whatever it likes, for models and for datasets: nothing is written outside."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    odd = dict.fromkeys(("../model9.safetensors", "../../vocab.json", "/tmp/model.safetensors", ".."), b"bad")
    with serve(hub("me/model", {**files, **odd}, kind="models")) as site:
        at(site.url)
        found, _ = download("me/model")
    assert found.is_relative_to(tmp_path / "cache")
    assert {path.name for path in found.iterdir()} <= set(files)
    rows = b'{"text": "ba ke lo"}\n' * 9
    with serve(hub("me/rows", {"../../train.jsonl": rows, "/train/a.jsonl": rows})) as site:
        done = tenfold("prepare", "me/rows", "--tokenizer", "bytes", env={"HF_ENDPOINT": site.url})
    assert done.returncode in (0, 2)
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", "data"}


# What was downloaded is checked before it is used


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the library ask another server, with an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    def ask(url: str) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    return ask


def test_weights_that_are_not_those_that_the_hub_lists_are_not_kept(tmp_path: Path, folder: Path, at: Any) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    script = dict(hub("me/model", files, kind="models"))
    place = next(place for place in script if place.endswith("/model.safetensors") and "0123" in place)
    good = script[place]
    assert isinstance(good, Answer)
    other = bytes([*good.body[:-1], good.body[-1] ^ 1])  # of the same size
    script[place] = Answer(other, headers=good.headers)
    with serve(script) as site:
        at(site.url)
        with pytest.raises(CheckpointError, match="is not the file that the Hub lists; it was removed: run the same"):
            download("me/model")
        assert not list((tmp_path / "cache").rglob("model.safetensors"))
        site.script[place] = good
        found, _ = download("me/model")
    assert (found / "model.safetensors").read_bytes() == good.body


# Nothing that gives access is told


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"https://me:{PASSWORD}@host/a?b=1", "https://***@host/a?b=1"),
        (f"nonnumeric port: '{PASSWORD}@127.0.0.1:80'", "nonnumeric port: '***@127.0.0.1:80'"),
        (f"get http://h/x?a=1&token={PASSWORD}&b=2 now", "get http://h/x?a=1&token=***&b=2 now"),
        (
            f"https://s3/x?X-Amz-Credential={PASSWORD}%2F1&X-Amz-Date=2026&X-Amz-Signature={SIGNATURE}",
            "https://s3/x?X-Amz-Credential=***&X-Amz-Date=2026&X-Amz-Signature=***",
        ),
        (f"https://b/x?sv=1&sig={SIGNATURE}&se=2", "https://b/x?sv=1&sig=***&se=2"),
        (f"{{'Authorization': 'Bearer {PASSWORD}'}}", "{'Authorization': 'Bearer ***'}"),
        (f"authorization: Basic {PASSWORD}", "authorization: Basic ***"),
        (f"the token {TOKEN} is wrong", "the token hf_*** is wrong"),
        (f"WANDB said 401 for {'k' * 40}", "WANDB said 401 for ***"),
    ],
)
def test_what_gives_access_is_taken_out(monkeypatch: pytest.MonkeyPatch, text: str, left: str) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert without_secrets(text) == left
    assert str(TenfoldError(text)) == left


@pytest.mark.parametrize(
    "text",
    [
        "give --recipe.lr 3e-4 or model.heads 2; hf_hub_download, the key of it, basic tokenizers, a@b, me@example.com",
        json.dumps({"symbols": "".join(map(chr, range(10, 500)))}),  # of a tokenizer, which must stay as it is
        "https://huggingface.co/datasets/a/b/resolve/main/c.parquet?download=true",
    ],
)
def test_what_gives_none_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    said = str(DataError("a\nb \x1b[31m\ud800 " + "x" * 100_000 + " end"))
    assert said.startswith("a b \ufffd[31m\ufffd x")
    assert said.endswith("x end")
    assert len(said) < 5_000


SECRETS = (PASSWORD, TOKEN, SIGNATURE)


def told_nothing(done: "subprocess.CompletedProcess[str]", here: Path) -> None:
    """Neither what was printed nor any file has a secret in it."""
    written = [path.read_bytes().decode(errors="replace") for path in here.rglob("*") if path.is_file()]
    for secret in SECRETS:
        assert not [text for text in (done.stdout, done.stderr, *written) if secret in text], secret


def test_a_run_keeps_no_secrets(tenfold: Tenfold, tmp_path: Path, corpus: Corpus) -> None:
    """run.json has the arguments, and whatever fails or is noted goes to the console and metrics.jsonl."""
    prompt = f"https://me:{PASSWORD}@h/x?X-Amz-Signature={SIGNATURE} {TOKEN}"
    options = [*TRAINING, "--cadence.prompt", prompt, "--cadence.sample", "1", "--cadence.samples", "0"]
    done = tenfold("train", "demo", "--data", corpus.path, *options)
    assert done.returncode == 0, done.stderr
    told_nothing(done, tmp_path)
    arguments = json.loads((tmp_path / "runs/demo/run.json").read_text())["environment"]["arguments"]
    assert "https://***@h/x?X-Amz-Signature=*** hf_***" in arguments
    rundir.append(tmp_path / "runs/demo", {"step": 2, "event": "noted", "message": f"Authorization: Bearer {PASSWORD}"})
    told_nothing(done, tmp_path)


def test_mistakes_with_secrets_in_them_are_told_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    address = f"https://me:{PASSWORD}@127.0.0.1:1/x?token={TOKEN}&X-Amz-Signature={SIGNATURE}"
    for arguments in (
        ("train", "demo", "--data", address),
        ("train", "finetune", "--init", address, "--data", "x"),
        ("import", address, "--name", "x"),
        ("prepare", address),
        ("data", "show", address),
        ("eval", address),
        ("check", address),
    ):
        with pytest.raises(TenfoldError) as caught:
            call(arguments)
        assert not [secret for secret in SECRETS if secret in str(caught.value)], arguments


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"no", 401),
        Answer(b"no", 500),
        Answer(b"<html>sign in</html>", type="text/html"),
        Answer(b"x", 302, headers={"Location": f"http://127.0.0.1:1/x?X-Amz-Signature={SIGNATURE}"}),
    ],
    ids=["401", "500", "page", "moved"],
)
@pytest.mark.parametrize("at", ["listing", "file"])
@pytest.mark.parametrize("password", ["", f"me:{PASSWORD}@"], ids=["token", "password"])
def test_a_server_that_wants_to_know_who_asks_and_fails(tmp_path: Path, answer: Answer, at: str, password: str) -> None:
    """The token, or the password that stands in the server's address, goes to the server, and is not told or kept."""
    script = dict(hub("me/rows", {"train.jsonl": b'{"text": "ba"}\n' * 9}))
    for place in script:
        if place.startswith("/api") == (at == "listing"):
            script[place] = answer
    code = f"from tenfold.data import web; web.PAUSE = {web.PAUSE / 100}; from tenfold.cli import main; main()"
    with serve(script) as site:
        given = site.url.replace("://", f"://{password}")
        done = subprocess.run(
            [sys.executable, "-c", code, "prepare", "me/rows", "--tokenizer", "bytes", "--out", "out"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            env={**environment(), "HF_ENDPOINT": given, "HF_TOKEN": TOKEN},
        )
        who = "Basic" if password else TOKEN
        assert any(who in str(request.headers) for request in site.requests)
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("tenfold: ")
    told_nothing(done, tmp_path)


# One way to ask for TF32


def test_tf32_has_one_call_path() -> None:
    """T51: torch has an old and a new way to set TF32, which may not be mixed; the one call that every version that is
    admitted has for both stands in one place, and nothing sets either way's own switches."""
    calls = []
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.set_float32_matmul_precision":
                calls.append(module)
            assert not (isinstance(node, ast.Attribute) and node.attr in ("allow_tf32", "fp32_precision")), module
    assert calls == ["training.precision"]


# Nobody is asked who need not be


REFUSING = """if True:
    import socket
    def refuse(*arguments, **options):
        raise OSError(101, f"no network: {arguments}")
    connect = socket.socket.connect
    socket.getaddrinfo = socket.create_connection = socket.socket.connect_ex = refuse
    socket.socket.connect = lambda self, to: connect(self, to) if self.family == socket.AF_UNIX else refuse(to)
    from tenfold.cli import main
    main()
"""


def test_a_training_needs_no_network_and_no_account(tmp_path: Path, corpus: Corpus) -> None:
    """T50: with every connection refused, nobody at the keyboard and no account anywhere, a training does all its work
    and leaves its records in metrics.jsonl; nothing is sent anywhere unless it was asked for."""
    options = [*TRAINING, "--cadence.sample", "1", "--cadence.sample-tokens", "3"]
    empty = {key: value for key, value in environment().items() if not key.endswith(("TOKEN", "KEY"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", REFUSING, "train", "demo", "--data", str(corpus.path), *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
        env={**empty, "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "no network" not in done.stderr
    records = rundir.read_metrics(tmp_path / "runs/demo")
    assert [record["step"] for record in records if "loss" in record] == [0, 1]
    assert any("val_loss" in record for record in records)
    assert "done" in [record.get("event") for record in records]


def test_the_refusal_refuses(tmp_path: Path) -> None:
    """So that the test above means something."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", REFUSING, "prepare", "me/rows", "--tokenizer", "bytes"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            env={**environment(), "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"},
        )
    assert done.returncode == 2
    assert "no network" in done.stderr
