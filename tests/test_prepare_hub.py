"""Datasets by name: which files are read from a Hub on loopback, which commit, and that a stopped run goes on there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Tenfold
from preparing import documents, parquet_file, shards, story
from server import SHA, Answer, Site, hub, serve
from tenfold.data import web
from tenfold.data.shards import open_corpus
from tenfold.errors import ConfigError, DataError
from tenfold.prepare import DATASETS, catalog, prepare_any
from tenfold.prepare.corpus import STATE

TEXTS = [story(30, i) for i in range(60)]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries that a test can wait for."""
    monkeypatch.setattr(web, "PAUSE", 0.01)


def table(folder: Path, texts: list[Any], group: int = 10) -> bytes:
    """The bytes of a parquet file."""
    return parquet_file(folder / "made.parquet", texts, group).read_bytes()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """FineWeb-Edu with two small files in its usual sample, and other files; TinyStories with its two splits."""
    files = {
        "README.md": b"what this is",
        "sample/10BT/000_00000.parquet": table(tmp_path, [*TEXTS[:30], None]),
        "sample/10BT/001_00000.parquet": table(tmp_path, TEXTS[30:]),
        "sample/100BT/000_00000.parquet": table(tmp_path, ["other"] * 9),
        "data/CC-MAIN-2024-10/train-00000-of-00001.parquet": table(tmp_path, ["crawled"] * 5),
    }
    stories = {
        "data/train-00000-of-00001.parquet": table(tmp_path, ["for training"] * 5),
        "data/validation-00000-of-00001.parquet": table(tmp_path, ["for validation"] * 2),
        "data/test-00000-of-00001.parquet": table(tmp_path, ["for tests"] * 2),
        "TinyStories-train.txt": b"text",
    }
    with serve({**hub("HuggingFaceFW/fineweb-edu", files), **hub("roneneldan/TinyStories", stories)}) as site:
        yield site


@pytest.mark.timeout(60)
def test_a_named_dataset_is_streamed(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "fineweb-edu", catalog.Dataset("HuggingFaceFW/fineweb-edu", catalog.SAMPLES, 200))
    out, said = tmp_path / "out", list[Any]()
    manifest = prepare_any("fineweb-edu", out, endpoint=site.url, report=said.append)
    corpus = open_corpus(out)
    assert [*documents(corpus, "val"), *documents(corpus, "train")] == TEXTS
    assert 100 < len(corpus.val) < 200
    about = manifest["source"]
    assert [about[key] for key in ("repository", "revision", "asked", "subset", "files", "rows", "null_documents")] == [
        "HuggingFaceFW/fineweb-edu",
        SHA,
        "main",
        "sample-10BT",
        2,
        61,
        1,
    ]
    assert "about " in said[0]
    assert manifest["options"]["errors"] == "replace"
    assert sorted(json.loads((out / STATE).read_text())) == [
        f"HuggingFaceFW/fineweb-edu/sample/10BT/00{i}_00000.parquet" for i in (0, 1)
    ]
    assert "complete already" in str(prepare_and_hear("fineweb-edu", out, site))


def prepare_and_hear(name: str, out: Path, site: Site, **options: Any) -> list[Any]:
    """What is reported."""
    said: list[Any] = []
    prepare_any(name, out, endpoint=site.url, report=said.append, **options)
    return said


@pytest.mark.timeout(60)
def test_a_subset_is_a_name_a_folder_or_a_pattern(site: Site, tmp_path: Path) -> None:
    for number, (subset, files) in enumerate(
        [("sample-100BT", 1), ("CC-MAIN-2024-10", 1), ("sample/10BT", 2), ("sample/*", 3), ("*/000_*.parquet", 2)]
    ):
        manifest = prepare_any(
            "HuggingFaceFW/fineweb-edu" if number == 2 else "fineweb-edu",
            tmp_path / str(number),
            subset=subset,
            val_fraction=0.2,
            endpoint=site.url,
        )
        assert manifest["source"]["files"] == files, subset
    with pytest.raises(DataError, match=r"no file of the dataset HuggingFaceFW/fineweb-edu matches .*nothing"):
        prepare_any("fineweb-edu", tmp_path / "none", subset="nothing", endpoint=site.url)


@pytest.mark.timeout(60)
def test_a_datasets_own_files_divide_it(site: Site, tmp_path: Path) -> None:
    said = prepare_and_hear("tinystories", tmp_path / "out", site)
    corpus = open_corpus(tmp_path / "out")
    assert documents(corpus, "train") == ["for training"] * 5
    assert documents(corpus, "val") == ["for validation"] * 2
    assert said[0] == (
        "reading 1 files of roneneldan/TinyStories for validation and 1 for training, as they are named; "
        "1 files for tests are left out"
    )
    with pytest.raises(ConfigError, match=r"has files of its own for validation, so --val-tokens cannot be"):
        prepare_any("tinystories", tmp_path / "other", val_tokens=5, endpoint=site.url)
    training = prepare_any("tinystories", tmp_path / "train", subset="data/train-*", endpoint=site.url)
    assert training["source"]["documents"] == 5


@pytest.mark.timeout(60)
def test_a_stopped_run_goes_on_at_the_same_commit_without_fetching_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenfold.prepare.sources.BLOCK", 500)
    how: dict[str, Any] = {"tokenizer": "bytes", "val_fraction": 0.1, "commit_tokens": 300, "endpoint": site.url}
    whole = prepare_any("fineweb-edu", tmp_path / "whole", **how)

    def stop(message: Any) -> None:
        if isinstance(message, dict) and message["tokens"] > 5000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_any("fineweb-edu", tmp_path / "out", **how, report=stop)
    moved = json.loads(site.script["/api/datasets/HuggingFaceFW/fineweb-edu/revision/main"].body)  # type: ignore[union-attr]
    site.script["/api/datasets/HuggingFaceFW/fineweb-edu/revision/main"] = Answer(
        json.dumps({**moved, "sha": "f" * 40}).encode(), type="application/json"
    )
    before = len(site.requests)
    assert prepare_any("fineweb-edu", tmp_path / "out", **how) == whole
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")
    asked = [request.path for request in site.requests[before:]]
    assert f"/api/datasets/HuggingFaceFW/fineweb-edu/revision/{SHA}" in asked
    with pytest.raises(DataError, match="is complete, but its source differs"):
        prepare_any("fineweb-edu", tmp_path / "out", **how, revision=SHA)


@pytest.mark.timeout(60)
def test_trouble_on_the_way_is_one_line_and_a_later_run_goes_on(site: Site, tmp_path: Path) -> None:
    how: dict[str, Any] = {"tokenizer": "bytes", "val_fraction": 0.1, "commit_tokens": 300, "endpoint": site.url}
    whole = prepare_any("fineweb-edu", tmp_path / "whole", **how)
    path = f"/datasets/HuggingFaceFW/fineweb-edu/resolve/{SHA}/sample/10BT/001_00000.parquet"
    good = site.script[path]
    site.script[path] = Answer(b"<html>blocked</html>", 451, "text/html")
    with pytest.raises(DataError, match=r"cannot read .*001_00000.parquet .* answered 451") as caught:
        prepare_any("fineweb-edu", tmp_path / "out", **how)
    assert "\n" not in str(caught.value)
    site.script[path] = good
    assert prepare_any("fineweb-edu", tmp_path / "out", **how) == whole
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")


@pytest.mark.timeout(120)
def test_the_command_line_prepares_a_dataset_and_says_how_to_train_on_it(site: Site, tenfold: Tenfold) -> None:
    hub = {"HF_ENDPOINT": site.url}
    done = tenfold("prepare", "tinystories", "--tokenizer", "bytes", "--dedup", "--shuffle", 1, env=hub)
    assert done.returncode == 0, done.stderr
    assert "reading 1 files of roneneldan/TinyStories for validation and 1 for training" in done.stderr
    assert "data/tinystories is complete: train 12 tokens in 1 shard, val 14 tokens in 1 shard" in done.stderr
    assert "train demo --name mine --data data/tinystories" in done.stdout
    for arguments, says in (
        (("fineweb-edu", "--tokens", "10X"), "tenfold: '10X' is no number of tokens; give one such as"),
        (("fineweb-edu", "--revision", "nowhere"), "tenfold: the dataset HuggingFaceFW/fineweb-edu has no revision"),
        (("tinystorys",), "tenfold: tinystorys is no file or folder, and no dataset, did you mean 'tinystories'?"),
    ):
        done = tenfold("prepare", *arguments, env=hub)
        assert done.returncode == 2
        assert done.stderr.startswith(says)
        assert len(done.stderr.splitlines()) == 1


def test_what_is_no_dataset_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"fineweb-ed is no file .*no dataset, did you mean 'fineweb-edu'"):
        prepare_any("fineweb-ed", tmp_path / "out")
    (tmp_path / "folder").mkdir()
    for path in ("mine.txt", "folder/missing", "nowhere/mine.jsonl"):
        with pytest.raises(DataError, match=f"{path} is no file or folder"):
            prepare_any(path, tmp_path / "out")
    (tmp_path / "mine.txt").write_text("some text")
    with pytest.raises(ConfigError, match=r"--subset and --revision are for datasets of the Hub; mine.txt is none"):
        prepare_any("mine.txt", tmp_path / "out", subset="sample")
    with pytest.raises(ConfigError, match="tokens is 1,000, but the documents within the first 100,000,000"):
        prepare_any("fineweb-edu", tmp_path / "out", tokens=1000)


def test_folders_are_called_after_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.texts").mkdir()
    for name, subset, folder in (
        ("fineweb-edu", "", "fineweb-edu"),
        ("fineweb-edu", "sample-100BT", "fineweb-edu-sample-100BT"),
        ("owner/some.name", "a/*", "some.name-a-"),
        ("texts/novels.jsonl.xz", "", "novels"),
        ("story.txt", "", "story"),
        ("my.texts", "", "my.texts"),
        ("shakespeare", "", "shakespeare"),
    ):
        assert catalog.folder_for(name, subset) == Path("data") / folder
