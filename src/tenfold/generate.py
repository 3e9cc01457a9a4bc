"""Sampling from a model, one token at a time with a cache of keys and values."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tenfold.data.tokenizer import Tokenizer
from tenfold.errors import ConfigError
from tenfold.model.cache import Cache
from tenfold.model.gpt import GPT


def pick(scores: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator) -> int:
    """Draw one id by its scores (V,): softmax of scores / temperature over the top_k best (0: all), of those the fewest
    whose probabilities reach top_p (Holtzman et al. 2020), at least one. Temperature 0 takes the best."""
    scores = scores.float().cpu()
    if temperature == 0:
        return int(scores.argmax())
    best, ids = torch.sort(scores, descending=True, stable=True)
    if top_k:
        best, ids = best[:top_k], ids[:top_k]
    probabilities = torch.softmax((best - best[0]) / temperature, dim=-1)
    kept = probabilities.cumsum(-1) - probabilities < top_p  # the best one always: before it there is nothing
    return int(ids[torch.multinomial(probabilities * kept, 1, generator=generator)])


def check_options(tokens: int, temperature: float, top_k: int, top_p: float, seed: int = 0) -> None:
    """ConfigError for sampling options that cannot be."""
    if tokens < 1:
        raise ConfigError(f"tokens is {tokens}: give at least 1")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed is {seed}: give a number from 0 to below 2^63")
    if not 0 <= temperature < float("inf"):
        raise ConfigError(
            f"temperature is {temperature}: give 0 (always the most likely token) or more; 1 is unchanged"
        )
    if top_k < 0:
        raise ConfigError(f"top_k is {top_k}: give 0 (all tokens) or more")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p is {top_p}: give a probability above 0, at most 1")


@torch.no_grad()
def generate(
    model: GPT,
    prompt: Sequence[int],
    tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 1337,
    stop: int | None = None,
    vocab: int | None = None,
    cached: bool = True,
) -> Iterator[int]:
    """Up to `tokens` ids that follow the prompt (at least one id), ending before `stop`; ids are below the real
    vocabulary of the model and, where it is smaller, `vocab`.

    The model sees the last `context` ids. While all of them fit, keys and values are kept; beyond, every id shifts to
    another learned position with each new one, so nothing can be kept and the window is computed anew. Without `cached`
    it always is: the same ids come out.
    """
    check_options(tokens, temperature, top_k, top_p, seed)
    if not prompt:
        raise ConfigError("the prompt is empty; give at least one character")
    device, context = model.wte.weight.device, model.config.context
    generator = torch.Generator().manual_seed(seed)
    ids, cache, new = list(prompt), Cache(), list(prompt)
    for _ in range(tokens):
        if cached and len(ids) <= context:
            scores = model(torch.tensor([new], device=device), cache=cache, last=True)[0, -1]
        else:
            scores = model(torch.tensor([ids[-context:]], device=device), last=True)[0, -1]
        new = [pick(scores[:vocab], temperature, top_k, top_p, generator)]
        if new[0] == stop:
            return
        ids += new
        yield new[0]


@dataclass(frozen=True)
class LanguageModel:
    """A model with its tokenizer: text in, text out."""

    model: GPT
    tokenizer: Tokenizer
    prompt: str
    """What samples begin with when nothing is given."""
    step: int
    """Updates that it was trained with."""

    def stream(
        self,
        prompt: str | None = None,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 200,
        top_p: float = 1.0,
        seed: int = 1337,
        to_the_end: bool = False,
    ) -> Iterator[str]:
        """Pieces of the text that follows the prompt, each of whole characters, until `tokens` tokens or end-of-text.

        An empty prompt begins at end-of-text. `to_the_end` computes all `tokens` whatever they are, so that processes
        that share a sharded model do the same number of forwards; what comes after end-of-text is still not shown.
        """
        eot = self.tokenizer.eot
        ids = self.tokenizer.encode(self.prompt if prompt is None else prompt).tolist() or [eot]
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        picking = (temperature, top_k, top_p, seed, None if to_the_end else eot, self.tokenizer.vocab)
        ended = False
        for token in generate(self.model, ids, tokens, *picking):
            ended = ended or token == eot
            if not ended and (text := decoder.decode(self.tokenizer.decode_bytes([token]))):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text

    def generate(
        self,
        prompt: str | None = None,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 200,
        top_p: float = 1.0,
        seed: int = 1337,
        to_the_end: bool = False,
    ) -> str:
        """The text that follows the prompt; temperature 0 is greedy, top_k 0 and top_p 1 leave all tokens possible."""
        return "".join(self.stream(prompt, tokens, temperature, top_k, top_p, seed, to_the_end))
