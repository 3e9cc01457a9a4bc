"""A trained model for other programs: a folder for transformers, or a GGUF file for llama.cpp. What was written is read
back and compared before it gets its name."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tenfold.data.tokenizer import Tokenizer
from tenfold.errors import CheckpointError, ConfigError
from tenfold.exchange import compare
from tenfold.exchange.gguf_file import write_gguf
from tenfold.exchange.huggingface import huggingface_source, write_folder
from tenfold.exchange.weights import model_of
from tenfold.model.gpt import GPT

Say = Callable[[str], None]


def export(model: GPT, tokenizer: Tokenizer, out: Path, form: str, card: str, said: Say) -> None:
    """Write a model that lies on the CPU at `out`, in one of FORMS; `card` is its model card. ConfigError if something
    is at `out` or the form cannot hold the model; CheckpointError if what was written is not the model. Then nothing is
    left."""
    if form not in FORMS:
        raise ConfigError(f"no form {form!r} to export in; possible are {', '.join(FORMS)}")
    if out.exists():
        raise ConfigError(f"{out} exists; give another place, or remove it")
    if not model.config.bias:
        said("this model has no biases and the form wants some: zeros are written, which compute the same")
    partial = out.with_name(f".{out.name}.partial")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        remove(partial)
        said(FORMS[form](model, tokenizer, partial, card))
        partial.rename(out)
    except OSError as error:
        raise CheckpointError(f"{out} could not be written ({error.strerror or error}); give another place") from None
    finally:
        remove(partial)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def huggingface(model: GPT, tokenizer: Tokenizer, folder: Path, card: str) -> str:
    """A folder for transformers, and how its logits compare: as transformers reads it, else as we do."""
    folder.mkdir()
    write_folder(folder, model, tokenizer, card)
    ours, theirs = compare.logits(model), compare.transformers_logits(folder, model.config)
    if theirs is not None:
        return compare.agreement(ours, theirs, "transformers' model of what was written")
    read_back = compare.logits(model_of(huggingface_source(folder)))
    return compare.agreement(ours, read_back, "tenfold's own reading of what was written, without transformers")


def gguf(model: GPT, tokenizer: Tokenizer, path: Path, card: str) -> str:
    """A GGUF file, which has no place for a card, and how its tensors compare."""
    return write_gguf(model, tokenizer, path)


FORMS = {"hf": huggingface, "gguf": gguf}
