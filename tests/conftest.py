"""What several test files share: made text, small corpora, and real `tenfold` and `torchrun` processes."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tenfold.data.shards import Corpus, open_corpus
from tenfold.model.config import ModelConfig
from tenfold.prepare import prepare_text
from tenfold.recipe import Recipe

torch.set_num_threads(1)  # tiny tensors; threads that wait for each other only slow them down

ROOT = Path(__file__).parent.parent
TINY = ModelConfig(layers=2, heads=2, width=32, context=32, vocab=257, padded_vocab=264)
TINY_RECIPE = Recipe(rows=8, length=32, steps=20, lr=3e-3, lr_end=3e-4, warmup=4)
TINY_OPTIONS = [
    "--model.layers",
    "2",
    "--model.heads",
    "2",
    "--model.width",
    "32",
    "--model.context",
    "32",
    "--recipe.rows",
    "8",
    "--recipe.length",
    "32",
    "--recipe.steps",
    "20",
    "--recipe.warmup",
    "4",
    "--recipe.beta2",
    "0.95",
    "--cadence.eval",
    "10",
    "--cadence.sample",
    "0",
    "--cadence.score",
    "0",
    "--cadence.film",
    "0",
    "--cadence.save",
    "10",
    "--cadence.log",
    "1",
]


def words(count: int, seed: int = 0) -> str:
    """Text of made-up words with enough structure to learn from."""
    draw = random.Random(seed)
    syllables = ["ba", "ke", "lo", "mi", "nu", "ra", "se", "ti", "vo", "zu"]
    vocabulary = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(60)]
    return "".join(draw.choice(vocabulary) + draw.choice([" ", " ", " ", ", ", ".\n"]) for _ in range(count))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of about 60 kB."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(words(12_000))
    return path


@pytest.fixture(scope="session")
def corpus(text_file: Path) -> Corpus:
    """That text as bytes in token shards."""
    prepare_text(text_file, text_file.parent / "shards", "bytes", shard_tokens=7_000)
    return open_corpus(text_file.parent / "shards")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache for the tests alone: what somebody tuned on this machine must not decide what they see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


Tenfold = Callable[..., subprocess.CompletedProcess[str]]


def environment() -> dict[str, str]:
    """This process's environment without what a launcher or a terminal would add."""
    return {**os.environ, "COLUMNS": "200", "TERM": "dumb", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def tenfold(tmp_path: Path) -> Tenfold:
    """Runs the command line in an empty folder, as a process of its own or, with `processes`, as several."""

    def call(
        *arguments: object, processes: int = 0, timeout: float = 120, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tenfold"]
        if processes:
            command = [*torchrun(processes), "-m", "tenfold"]
        given = [str(a) for a in arguments]
        return subprocess.run(
            [*command, *given],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**environment(), **(env or {})},
        )

    return call


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A real file system of so many megabytes, where this user may mount one."""
    mounted = []

    def mount(megabytes: int = 1) -> Path:
        path = tmp_path / "small"
        path.mkdir()
        size = f"size={megabytes}m"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", path], capture_output=True, timeout=20)
        if done.returncode:
            pytest.skip("mounting a small file system needs root")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", path], check=True, timeout=20)


def torchrun(processes: int) -> list[str]:
    """The command that starts so many processes on this machine, at a free port."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
