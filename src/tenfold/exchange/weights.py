"""What a source of weights is, and its weights under our names and in our shapes, checked. Where they come from is the
readers' business: `huggingface`, `llmc`, `pickled`, `sources`."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import CheckpointError
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT

GPT2_VOCAB, GPT2_PADDED, GPT2_MOST = (
    50257,
    50304,
    51200,
)  # real rows, rows in our presets, rows after the widest padding
PREFIX = re.compile(r"^(?:(?:_orig_mod|module)\.)*(?:transformer\.)?")  # of torch.compile, DDP, and transformers
MASK = re.compile(r"h\.\d+\.attn\.(?:bias|masked_bias)")  # causal masks that older code saved as buffers
HEAD, EMBEDDING = "lm_head.weight", "wte.weight"


@dataclass(frozen=True)
class Source:
    """Weights that were found and opened; the tensors are read when `read` is called."""

    said: str
    """What it is and where, in words."""
    model: ModelConfig
    vocabulary: dict[str, Any]
    """The tokenizer's spec."""
    files: tuple[Path, ...]
    """The files with the weights."""
    read: Callable[[], dict[str, Tensor]]
    """The tensors with matrices as (out, in), under names that `canonical` understands."""
    revision: str = ""
    """Commit on the Hub."""
    notes: tuple[str, ...] = ()
    """What the user should know of how it is taken in."""
    folder: Path | None = None
    """The folder, if transformers can load it."""


def weights_of(source: Source) -> dict[str, Tensor]:
    """A source's weights as our model has them: fp32 on the CPU. CheckpointError if they are not exactly its."""
    return canonical(source.read(), source.model, source.said)


def model_of(source: Source) -> GPT:
    """A source's model, for evaluation on the CPU."""
    model = GPT(source.model)
    model.load_state_dict(weights_of(source))
    return model.eval()


def beyond_gpt2(rows: int, where: str) -> tuple[str, ...]:
    """What to say of an embedding of `rows` rows that is for GPT-2's tokenizer; CheckpointError unless they are its own
    50,257 or those padded."""
    if not GPT2_VOCAB <= rows <= GPT2_MOST:
        raise CheckpointError(
            f"{where} has {rows:,} token ids, which are not GPT-2's {GPT2_VOCAB:,}, padded or not, and does not say "
            "which text they stand for; train such a model with `tenfold train` on text of yours instead"
        )
    extra = rows - GPT2_VOCAB
    return (f"{extra} rows of its embedding beyond GPT-2's {GPT2_VOCAB:,} are left out",) if extra else ()


def shapes(model: ModelConfig) -> dict[str, torch.Size]:
    """The shape of each weight of a model, by name."""
    with torch.device("meta"):
        return {name: parameter.shape for name, parameter in GPT(model).named_parameters()}


def canonical(raw: dict[str, Tensor], model: ModelConfig, where: str) -> dict[str, Tensor]:
    """`raw` under our names in fp32: prefixes and mask buffers gone, the tied head dropped, the embedding cut to the
    vocabulary and padded with zero rows. CheckpointError unless names and shapes are exactly the model's, the head is
    the embedding, and every number is finite."""
    named = {PREFIX.sub("", name): tensor for name, tensor in raw.items()}
    named = {name: tensor for name, tensor in named.items() if not MASK.fullmatch(name)}
    head, want = named.pop(HEAD, None), shapes(model)
    if EMBEDDING in named:
        real = named[EMBEDDING][: model.vocab]
        if head is not None and not torch.equal(head[: model.vocab], real):
            raise CheckpointError(
                f"{where}: its head ({HEAD}) is not its embedding; this model ties the two, so it cannot be taken in"
            )
        if real.shape == (model.vocab, model.width):
            padding = real.new_zeros(model.embedding_rows - model.vocab, model.width)
            named[EMBEDDING] = torch.cat((real, padding))
    wrong = [
        f"{name} is {tuple(named[name].shape) if name in named else 'missing'} and should be "
        f"{tuple(want[name]) if name in want else 'absent'}"
        for name in sorted(want.keys() | named.keys())
        if name not in want or name not in named or want[name] != named[name].shape
    ]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise CheckpointError(f"{where} is not this GPT-2, or only half of it: {wrong[0]}{more}; get it again, whole")
    for name, tensor in named.items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"{where}: {name} has values that are not finite; use an earlier or another copy")
    return {name: named[name].float().contiguous() for name in want}


def kind_of(path: Path) -> str:
    """What a file that is not what it should be seems to be, for messages."""
    with path.open("rb") as file:
        head = file.read(200).lstrip().lower()
    if not head:
        return "it is empty"
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, as a server sends instead of a file"
    if head.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS; `git lfs pull` gets the file itself"
    return f"it begins with {head[:8]!r}"
