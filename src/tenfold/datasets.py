"""Where a run's tokens come from: shards that are there, text that is prepared first, or text that a preset can get."""

import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tenfold.console import Display
from tenfold.data import foreign
from tenfold.data.fetch import fetch_shakespeare
from tenfold.data.shards import MANIFEST, Corpus, open_corpus
from tenfold.errors import ConfigError, DataError
from tenfold.prepare import DATASETS, prepare_text
from tenfold.run import Run, with_data

NOT_SOURCE = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__")


def standard_library() -> tuple[Path, dict[str, Any]]:
    """The source of the running Python's own standard library: real text that every machine has."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    return stdlib, {"suffixes": (".py",), "exclude": NOT_SOURCE, "errors": "replace"}


# Folder of shards -> how to get the text that they are made from, if they are not there.
TEXTS: dict[str, Callable[[], tuple[Path, dict[str, Any]]]] = {
    "data/demo": standard_library,
    "data/shakespeare-char": lambda: (fetch_shakespeare(), {}),
}


def open_or_prepare(run: Run, shown: Display) -> Corpus:
    """The run's token shards; text that was given instead, or that a preset knows how to get, is prepared first."""
    path, options = Path(run.data), dict[str, Any]()
    if (path / MANIFEST).exists() or foreign.found(path):
        return open_corpus(path)
    if path.is_file():
        source, path = path, Path("data") / f"{path.stem}-{run.tokenizer}"
    elif run.data in TEXTS:
        source, options = TEXTS[run.data]()
    elif path.is_dir():
        raise DataError(
            f"--data {path} holds no token shards (no {MANIFEST}); make some with "
            f"`tenfold prepare {path} --out data/mine` and give --data data/mine"
        )
    elif path.name in DATASETS and not path.exists():
        raise DataError(
            f"no data at {path}; `tenfold prepare {path.name} --tokens 10B --out {path}` makes it, with fewer tokens "
            "if need be; or give --data with a folder of token shards or a text file"
        )
    else:
        raise DataError(
            f"no data at {path or '--data'}; give --data with a folder of token shards, or a text, .jsonl or .parquet "
            f"file; `tenfold prepare TEXT --out FOLDER` makes shards"
        )
    shown.say(f"preparing {source} as tokens ({run.tokenizer}) in {path}")
    prepare_text(source, path, run.tokenizer, report=shown.preparing, **options)
    return open_corpus(path)


def fitted(run: Run, corpus: Corpus) -> Run:
    """The run with what its data says; ConfigError if the two do not fit together."""
    run = with_data(run, corpus.fingerprint, corpus.tokenizer.vocab)
    if corpus.tokenizer.vocab > run.model.vocab:
        raise ConfigError(
            f"the data in {corpus.path} has {corpus.tokenizer.vocab:,} token ids ({corpus.tokenizer.name}), "
            f"model.vocab is {run.model.vocab:,}; give --model.vocab 0 to take it from the data, or other --data"
        )
    if run.recipe.length > run.model.context:
        raise ConfigError(
            f"recipe.length {run.recipe.length} is more than model.context {run.model.context}; give at most that"
        )
    return replace(run, data=str(corpus.path), tokenizer=corpus.tokenizer.name)
