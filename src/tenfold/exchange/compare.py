"""Whether two models are the same function: their logits on the same tokens."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from tenfold.errors import CheckpointError
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT

APART, SHARE = 1e-4, 1e-5  # of logits, and of the largest: 1e-3 for released weights, whose logits go to about 100
ROWS, LENGTH = 2, 64


@torch.no_grad()
def logits(model: GPT) -> Tensor:
    """A model's logits (ROWS, T, vocab) on the tokens that are compared."""
    return model(tokens_for(model.config)).float()


def tokens_for(config: ModelConfig) -> Tensor:
    """Random tokens (ROWS, T), always the same for a shape."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab, (ROWS, min(LENGTH, config.context)), generator=draw)


@torch.no_grad()
def transformers_logits(folder: Path, config: ModelConfig) -> Tensor | None:
    """The logits that transformers computes with a folder's weights in fp32; None where it is not installed."""
    if find_spec("transformers") is None:
        return None
    from transformers import AutoModelForCausalLM

    with quiet():
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # of fields that it reads and we do not, it says almost anything
            raise CheckpointError(f"transformers cannot load {folder}: {str(error).partition(chr(10))[0]}") from None
    return model.eval()(tokens_for(config)).logits[..., : config.vocab]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Neither progress bars nor remarks of transformers."""
    from transformers.utils import logging as told

    level, bars = told.get_verbosity(), told.is_progress_bar_enabled()
    told.set_verbosity(logging.ERROR)
    told.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        told.set_verbosity(level)
        if bars:
            told.enable_progress_bar()


def agreement(ours: Tensor, theirs: Tensor, whose: str) -> str:
    """What was compared and how far it was apart, in one line; CheckpointError if it is too far."""
    apart, bound = (ours - theirs).abs().max().item(), APART + SHARE * ours.abs().max().item()
    if not apart <= bound:
        raise CheckpointError(
            f"the logits differ by {apart:.1e} from those of {whose}, where {bound:.1e} is rounding: it was not kept"
        )
    return f"logits compared with {whose}: at most {apart:.1e} apart"
