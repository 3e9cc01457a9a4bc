"""Where weights can come from, by what is given: a run, a checkpoint, a folder or file of another program, or a name on
the Hub."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenfold import rundir
from tenfold.errors import CheckpointError
from tenfold.exchange import hub
from tenfold.exchange.huggingface import huggingface_source
from tenfold.exchange.llmc import MAGIC, TOKENS_MAGIC, llmc_source
from tenfold.exchange.pickled import nanogpt_source
from tenfold.exchange.weights import Source, kind_of
from tenfold.files import sha256_of
from tenfold.training import checkpoint

FILES: dict[bytes, Callable[[Path], Source]] = {  # first bytes of a file -> its reader
    struct.pack("<i", MAGIC): llmc_source,
    b"PK\x03\x04": nanogpt_source,
    b"\x80\x02": nanogpt_source,  # torch.save before its zip format
}


def open_source(given: str) -> Source:
    """The weights that `given` names: a run by its name or path, a checkpoint folder, a folder of Hugging Face's form,
    a file of llm.c or nanoGPT, or a name on the Hub, which is downloaded. CheckpointError with what is possible for
    anything else."""
    path = Path(given)
    for run in (rundir.RUNS / given, path):
        if (run / "run.json").is_file():
            return run_source(run)
    if (path / checkpoint.STATE).is_file():
        return checkpoint_source(path, path.resolve().parent.parent)
    if path.is_dir():
        return huggingface_source(path)
    if path.is_file():
        return file_source(path)
    if (repository := hub.repository(given)) is not None:
        folder, revision = hub.download(repository)
        return huggingface_source(folder, f"{repository} of the Hub", revision)
    raise CheckpointError(
        f"no weights {given!r}: give a run, a checkpoint, a folder with config.json, a file of llm.c or nanoGPT, "
        f"{', '.join(hub.RELEASED)}, or owner/name on the Hub"
    )


def file_source(path: Path) -> Source:
    """The weights in one file, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(4)
    for magic, reader in FILES.items():
        if head.startswith(magic):
            return reader(path)
    if head == struct.pack("<i", TOKENS_MAGIC):
        raise CheckpointError(f"{path} holds tokens of llm.c, not a model; give it as --data")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: give the folder that holds it and its config.json")
    raise CheckpointError(f"{path} is no model of llm.c (magic {MAGIC}) or nanoGPT: {kind_of(path)}; get it again")


def run_source(run: Path) -> Source:
    """The newest checkpoint of a run."""
    newest = checkpoint.newest(run / "checkpoints", lambda _: None)
    if newest is None:
        raise CheckpointError(f"{run} has no whole checkpoint yet; train it further, it saves at its end")
    return checkpoint_source(newest, run)


def checkpoint_source(folder: Path, run: Path) -> Source:
    """One checkpoint of a run."""
    if (wrong := checkpoint.damage(folder)) is not None:
        raise CheckpointError(f"checkpoint {folder} is damaged ({wrong}); give another one")
    try:
        vocabulary = rundir.read_run(run)["vocabulary"]
    except KeyError:
        raise CheckpointError(f"{run}/run.json lacks the vocabulary; restore the file") from None
    weights = folder / checkpoint.WEIGHTS
    return Source(
        said=f"checkpoint {folder}",
        model=checkpoint.model_config(folder),
        vocabulary=vocabulary,
        files=(weights,),
        read=lambda: checkpoint.tensors(weights),
    )


def origin(given: str, source: Source) -> dict[str, Any]:
    """Where weights came from, for run.json: what was given, what it was, and the files' hashes."""
    return {
        "given": given,
        "source": source.said,
        "revision": source.revision,
        "sha256": {path.name: sha256_of(path) for path in source.files},
    }
