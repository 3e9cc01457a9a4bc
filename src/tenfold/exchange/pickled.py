"""Checkpoints that torch.save wrote: nanoGPT's ckpt.pt, build-nanogpt's model_*.pt and older .bin weights. They are
pickles, which may run code when they are read; only torch's restricted reader is used, which makes tensors and plain
values and nothing else."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tenfold.errors import CheckpointError
from tenfold.exchange.weights import GPT2_PADDED, GPT2_VOCAB, Source, beyond_gpt2, kind_of
from tenfold.model.config import ModelConfig


class Configuration:
    """Stands for the GPTConfig that build-nanogpt saves beside the weights: it takes the fields and has no code."""


CONFIGURATIONS = tuple((Configuration, f"{module}.GPTConfig") for module in ("__main__", "train_gpt2", "model"))

SIZES = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")


def load_pickle(path: Path) -> Any:
    """What torch.save wrote into a file, tensors left on the disk until they are used; CheckpointError if it is damaged
    or wants anything but tensors and plain values."""
    try:
        with torch.serialization.safe_globals(list(CONFIGURATIONS)):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it wants to run {wanted[1]}, which a file of weights never needs" if wanted else kind_of(path)
        raise CheckpointError(f"{path} was not read: {reason}; use another copy, best as safetensors") from None
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
        told = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} cannot be read ({told}; {kind_of(path)}); get the file again, whole") from None


def nanogpt_source(path: Path) -> Source:
    """The checkpoint of nanoGPT (`model` and `model_args`) or build-nanogpt (`model` and `config`) in a file."""
    content = load_pickle(path)
    weights = content.get("model") if isinstance(content, Mapping) else None
    if not isinstance(weights, Mapping) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise CheckpointError(
            f"{path} holds no nanoGPT checkpoint (no 'model'); of weights alone, give the folder with their config.json"
        )
    config = content.get("config")
    shape = content.get("model_args") or (vars(config) if isinstance(config, Configuration) else {})
    try:
        layers, heads, width, context, rows = (int(shape[name]) for name in SIZES)
        bias = bool(shape.get("bias", True))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"{path} does not say the model's shape (model_args or config with {', '.join(SIZES)}); "
            "the number of heads cannot be told from the weights, so use a whole checkpoint"
        ) from None
    return Source(
        said=f"nanoGPT's checkpoint {path}",
        model=ModelConfig(layers, heads, width, context, GPT2_VOCAB, GPT2_PADDED, bias),
        vocabulary={"name": "gpt2"},
        files=(path,),
        read=lambda: dict(weights),
        notes=beyond_gpt2(rows, str(path)),
    )
