"""Attention through training, as a film: what every head looks at on two short texts, and the loss of each token, at
steps of the training or at its checkpoints. What a film is on the disk is the business of `filmfile`.

The map of a head is computed by its definition in fp32, from the queries and keys that the model itself makes at its
own precision, as in evaluation. So that no other tensor is ever shown as a map, the model's values are weighted by it
and compared with what the model's kernel gave."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tenfold import filmfile, rundir
from tenfold.data.shards import open_corpus
from tenfold.data.tokenizer import Tokenizer, from_spec
from tenfold.errors import CheckpointError, ConfigError, DataError, HardwareError
from tenfold.hardware import choose
from tenfold.model.attention import Attention, attention_map
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.model.heads import scores
from tenfold.run import Run, from_dict
from tenfold.training import checkpoint

LONGEST = 64  # tokens of a text
NAMES = ("beginning", "repeated")
TOLERANCE = {  # of |map v - y| / |y|, by the dtype of the kernel's output y; some kernels round their scores to it
    torch.float32: 2e-3,  # tf32 products have 10 bits
    torch.bfloat16: 3e-2,
    torch.float16: 1e-2,
}
PASSAGE = (
    "The lamp in the harbour office was still burning when the last boat came in. Nobody had asked the old clerk to "
    "stay, and nobody had told him to go home, so he sat by the window, counted the boats and wrote their names into "
    "the book. When the last name stood below the others he closed the book and put out the lamp."
)


@dataclass(frozen=True)
class Seen:
    """What a model made of N texts of T tokens, in fp32 on the CPU."""

    maps: Tensor
    """(N, L, H, T, T): how much of each key a query takes; rows sum to 1, nothing lies above the diagonal."""
    losses: Tensor
    """(N, T): of each token in nats, by those before it; NaN for the first."""


def texts(ids: npt.NDArray[Any], context: int) -> Tensor:
    """The ids of the two texts of a film, (2, T): the first of `ids`, at most LONGEST, and the first half of those said
    twice, on which induction shows. DataError if there are fewer than four, or the context is shorter."""
    beginning = torch.from_numpy(ids[: min(LONGEST, context)].astype(np.int64))
    half = len(beginning) // 2
    if half < 2:
        raise DataError(f"a film needs a text and a context of at least 4 tokens, not {len(beginning)}")
    return torch.stack((beginning[: 2 * half], beginning[:half].repeat(2)))


def keeping(kernel: Attention, kept: list[tuple[Tensor, ...]], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What the kernel gives; its operands and its output are kept. It runs as in training: kernels of `for_training` go
    another way where nobody wants gradients, and one may need the compiler."""
    with torch.enable_grad(), torch.compiler.set_stance("default"):
        y = kernel(q, k, v)
    kept.append((q, k, v, y))
    return y


@contextlib.contextmanager
def kept_attention(model: GPT) -> Iterator[list[tuple[Tensor, ...]]]:
    """While this lasts, (q, k, v, y) of every layer that runs goes into the list that this gives."""
    kept: list[tuple[Tensor, ...]] = []
    kernels = [block.attn.kernel for block in model.blocks]
    for block, kernel in zip(model.blocks, kernels, strict=True):
        block.attn.kernel = partial(keeping, kernel, kept)
    try:
        yield kept
    finally:
        for block, kernel in zip(model.blocks, kernels, strict=True):
            block.attn.kernel = kernel


@torch.no_grad()
def look(model: GPT, ids: Tensor, autocast: Callable[[], AbstractContextManager] = nullcontext) -> Seen:
    """What the model makes of the texts `ids` (N, T), by its own kernels and at its own precision. Of a sharded model
    every process takes part. HardwareError if a map is not what its kernel computed."""
    with kept_attention(model) as kept, autocast():
        scored = model(ids.to(model.wte.weight.device)).float().cpu()  # (N, T, V)
    maps = torch.stack([proven_map(layer, *tensors) for layer, tensors in enumerate(kept)], 1)
    losses = torch.full(ids.shape, torch.nan)
    losses[:, 1:] = F.cross_entropy(scored[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(
        len(ids), -1
    )
    return Seen(maps, losses)


def proven_map(layer: int, q: Tensor, k: Tensor, v: Tensor, y: Tensor) -> Tensor:
    """The map of a layer's heads, (N, H, T, T), from q, k and v, each (N, H, T, D), if it is the one by which the
    kernel came to y. HardwareError if not."""
    allowed = TOLERANCE[y.dtype]
    q, k, v, y = (tensor.float().cpu() for tensor in (q, k, v, y))
    found = attention_map(q, k)
    apart = ((found @ v - y).norm() / y.norm()).item()
    if not apart <= allowed:
        raise HardwareError(
            f"the attention kernel's output in layer {layer} is {apart:.2g} of its size away from what the map gives, "
            f"{allowed:g} is allowed; compare with --speed.attention naive"
        )
    return found


def record(folder: Path, film: dict[str, Any], step: int, seen: Seen) -> Path:
    """Add a snapshot to the film in a run folder, and the heads' scores; where it is. CheckpointError if the folder has
    another film."""
    ids = torch.tensor([text["ids"] for text in film["texts"]])
    told = {name: heads.tolist() for name, heads in scores(seen.maps, ids).items()}
    filmfile.begin(folder, film)
    return filmfile.write(folder, step, list(seen.maps.numpy()), list(seen.losses.numpy()), told)


def described(model: ModelConfig, ids: Tensor, tokenizer: Tokenizer) -> dict[str, Any]:
    """What film.json says of a film of these texts, (2, T). A token that is no text by itself shows as U+FFFD."""
    shown = [
        [tokenizer.decode([one]) if one != tokenizer.eot else "<|endoftext|>" for one in row] for row in ids.tolist()
    ]
    return filmfile.described(model.layers, model.heads, list(zip(NAMES, ids.tolist(), shown, strict=True)))


# Afterwards


def make(folder: Path, text: str, device: str, said: Callable[[str], None]) -> int:
    """Film a run at all of its whole checkpoints, in order and in fp32; how many snapshots its film has then. The texts
    are those of the film that it has or, if it has none or a `text` is given, those that `chosen` finds.
    CheckpointError if there is no checkpoint, or the folder has the film of another model or of other texts."""
    saved = rundir.read_run(folder)
    whole = []
    for step, path in checkpoint.saved_steps(folder / "checkpoints").items():
        if wrong := checkpoint.damage(path):
            said(f"checkpoint {path} is damaged ({wrong}); the film goes on without it")
        else:
            whole.append((step, path))
    if not whole:
        raise CheckpointError(f"{folder} has no whole checkpoint to film; train it further, it saves at its end")
    config = checkpoint.model_config(whole[0][1])
    if text or not (folder / filmfile.FOLDER / filmfile.FILM).exists():
        film = chosen(from_dict(saved, f"{folder}/run.json"), saved.get("vocabulary"), config, text, said)
    else:
        film = filmfile.read_film(folder)
    ids = torch.tensor([one["ids"] for one in film["texts"]])
    beyond = ids.size(1) > config.context or ids.max() >= config.vocab
    if beyond or (film["layers"], film["heads"]) != (config.layers, config.heads):
        raise CheckpointError(f"{folder / filmfile.FOLDER} holds the film of another model; move it away")
    filmfile.begin(folder, film)
    model = GPT(config).to(choose(device)).eval()
    for step, path in whole:
        checkpoint.load_weights(model, path)
        seen = look(model, ids)
        record(folder, film, step, seen)
        means = zip(film["texts"], seen.losses[:, 1:].mean(1).tolist(), strict=True)
        said(f"step {step:>6}  " + "  ".join(f"loss on {one['name']} {mean:.3f}" for one, mean in means))
    return len(filmfile.steps(folder))


def chosen(
    run: Run, vocabulary: dict[str, Any] | None, config: ModelConfig, text: str, said: Callable[[str], None]
) -> dict[str, Any]:
    """film.json of a film on the beginning of `text` or, if that is empty, of the run's validation split or, if that is
    not to be had, which is told, of PASSAGE."""
    if vocabulary is None:
        raise CheckpointError(f"run.json of {run.name} lacks the vocabulary; restore the file")
    tokenizer = from_spec(vocabulary)
    ids: npt.NDArray[Any] | None = None
    if not text and run.recipe.data:
        try:
            corpus = open_corpus(run.data)
            if corpus.fingerprint != run.recipe.data:
                raise DataError(f"{run.data} holds other data than {run.name} was trained on")
            ids = corpus.val.read(0, min(LONGEST, len(corpus.val)))
        except DataError as error:
            said(f"not filmed on the run's validation split: {error}")
    if ids is None:
        said(f"filmed on {'the text given' if text else 'a passage of its own; --text gives another'}")
        try:
            ids = tokenizer.encode(text or PASSAGE)
        except DataError as error:
            raise ConfigError(f"{error}; give a --text that it can encode") from None
    return described(config, texts(ids, config.context), tokenizer)
