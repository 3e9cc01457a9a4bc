"""Datasets by name, and any dataset of the Hub: which files are read, and what validates. They are read where they are,
by ranges of bytes: none is ever on the disk."""

import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tenfold.data.fetch import fetch_shakespeare
from tenfold.data.remote import hub_files
from tenfold.errors import ConfigError, did_you_mean
from tenfold.prepare.corpus import earlier, prepare, prepare_text
from tenfold.prepare.options import Options
from tenfold.prepare.sources import DATA, Part, Source, kind_of
from tenfold.prepare.sources import TEXTS as ENDINGS


@dataclass(frozen=True)
class Dataset:
    """A dataset of the Hub: subset -> pattern of its files, the first one being the usual one; documents within the
    first `val_tokens` validate, if they are not 0."""

    repository: str
    subsets: dict[str, str] = field(default_factory=lambda: {"": "*"})
    val_tokens: int = 0


SAMPLES = {f"sample-{size}BT": f"sample/{size}BT/*" for size in (10, 100, 350)}
DATASETS = {
    "fineweb-edu": Dataset("HuggingFaceFW/fineweb-edu", {**SAMPLES, "default": "data/*"}, val_tokens=100_000_000),
    "fineweb": Dataset("HuggingFaceFW/fineweb", {**SAMPLES, "default": "data/*"}, val_tokens=100_000_000),
    "openwebtext": Dataset("Skylion007/openwebtext"),
    "tinystories": Dataset("roneneldan/TinyStories"),
}
TEXTS = {"shakespeare": fetch_shakespeare}  # a text that is fetched whole
SPLIT_WORDS = {"train": "train", "validation": "val", "valid": "val", "val": "val", "dev": "val", "test": "test"}
SPLIT = re.compile(rf"(?:^|[/_.-])({'|'.join(SPLIT_WORDS)})(?=[/_.-])")


def is_dataset(name: str) -> bool:
    """Whether a name is in DATASETS, or OWNER/NAME of a dataset on the Hub and not the path of a file."""
    like_a_path = Path(name).parent.exists() or name.endswith((*ENDINGS, *DATA))
    return name in DATASETS or (bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name)) and not like_a_path)


def folder_for(name: str, subset: str = "") -> Path:
    """Where shards go that nobody said a folder for: below data/, called as the source without its ending."""
    last = name if is_dataset(name) or name in TEXTS else Path(name).resolve().name
    stem = last.rpartition("/")[2]
    if not Path(name).is_dir():
        kind = kind_of(stem)
        stem = Path(stem).stem if kind == "text" and not is_dataset(name) else stem.removesuffix(kind)
    return Path("data") / re.sub(r"[^\w.-]+", "-", f"{stem}-{subset}" if subset else stem)


def prepare_any(
    name: str,
    out: Path,
    *,
    subset: str = "",
    revision: str = "main",
    endpoint: str | None = None,
    val_fraction: float | None = None,
    val_tokens: int | None = None,
    errors: str = "",
    **rest: Any,
) -> dict[str, Any]:
    """Makes a folder of token shards of a named dataset, a dataset of the Hub, or text on this machine, in this order,
    and returns its manifest, as `prepare` does.

    Args:
        subset: Which part of a dataset: a name in its row of DATASETS, a folder in it, or a pattern of file names.
        revision: Branch, tag or commit. It is resolved once: going on in `out` takes the same commit.
        endpoint: Another server than the Hub that answers like it.
        val_fraction, val_tokens, errors: As in `Options`; otherwise the dataset's own rule, and "replace" for a
            dataset, whose rows its reader cannot mend, but "strict" for text on this machine.
        rest: What `prepare` takes, and the other fields of `Options`.
    """
    chosen = {"val_fraction": val_fraction, "val_tokens": val_tokens, "errors": errors or None}
    given: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
    if is_dataset(name):
        how = {item.name: rest.pop(item.name) for item in fields(Options) if item.name in rest}
        usual: dict[str, Any] = {"errors": "replace"}
        if name in DATASETS and val_fraction is None:
            usual["val_tokens"] = DATASETS[name].val_tokens
        options = Options(**{**usual, **given, **how})
        return prepare(find_dataset(name, out, subset, revision, endpoint), out, options, **rest)
    if subset or revision != "main":
        raise ConfigError(f"--subset and --revision are for datasets of the Hub; {name} is none: leave them out")
    if name in TEXTS:
        return prepare_text(TEXTS[name](), out, **given, **rest)
    if not Path(name).exists() and "." not in name and "/" not in name:
        known = (*DATASETS, *TEXTS)
        raise ConfigError(
            f"{name} is no file or folder, and no dataset{did_you_mean(name, known)}; give a path, OWNER/NAME of a "
            f"dataset on the Hub, or one of {', '.join(known)}"
        )
    return prepare_text(Path(name), out, **given, **rest)


def find_dataset(name: str, out: Path, subset: str = "", revision: str = "main", endpoint: str | None = None) -> Source:
    """The files of a dataset at one commit: the one that `out` was begun with, if it was.

    Raises:
        DataError: there are none, or the Hub cannot be asked.
    """
    dataset = DATASETS.get(name, Dataset(name))
    asked = subset or next(iter(dataset.subsets))
    pattern = dataset.subsets.get(asked, asked)
    patterns = [pattern] if "*" in pattern else [f"{pattern}/*", f"*/{pattern}/*"]
    about = {"repository": dataset.repository, "subset": asked, "asked": revision}
    begun = earlier(out)
    commit = begun["revision"] if begun == {**begun, **about} and "revision" in begun else revision
    commit, files = hub_files(
        dataset.repository,
        commit,
        [one if one.endswith(DATA) else f"{one}{kind}" for one in patterns for kind in DATA],
        endpoint,
    )
    place = f"{dataset.repository} ({asked})" if asked else dataset.repository
    parts = tuple(Part(file, f"{dataset.repository}/{file.name}", kind_of(file.name)) for file in files)
    parquet = tuple(part for part in parts if part.kind == ".parquet")
    return by_name(Source(dataset.repository, place, parquet or parts, {**about, "revision": commit}))


def by_name(source: Source) -> Source:
    """A source whose files are called after the splits, such as train-00000-of-00004.parquet: with files for validation
    these validate, and come first; files for tests are left out."""
    splits: dict[str, list[Part]] = {"val": [], "train": [], "test": [], "": []}
    for part in source.parts:
        found = SPLIT.findall(part.file.name)
        splits[SPLIT_WORDS[found[-1]] if found else ""].append(part)
    if splits[""] or not splits["train"]:
        return source
    counts = {split: f"{len(parts):,}" for split, parts in splits.items()}
    left_out = f"; {counts['test']} files for tests are left out" if splits["test"] else ""
    if not splits["val"]:
        note = f"reading the {counts['train']} files for training of {source.place}{left_out}"
        return replace(source, parts=tuple(splits["train"]), notes=(note,) if left_out else ())
    note = (
        f"reading {counts['val']} files of {source.place} for validation and {counts['train']} for training, as they "
        f"are named{left_out}"
    )
    parts = tuple(replace(part, split=split) for split in ("val", "train") for part in splits[split])
    return replace(source, parts=parts, notes=(note,))
