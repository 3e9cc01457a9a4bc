"""Sampling from a model, one token at a time with a cache of keys and values."""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tenfold.data.tokenizer import Tokenizer
from tenfold.errors import CheckpointError, ConfigError
from tenfold.model.cache import Cache
from tenfold.model.gpt import GPT, LAST

PART = 64  # tokens of a prompt whose scores are held at a time
LIKELY = 10  # alternatives that a choice names


def pick(scores: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator) -> int:
    """Draw one id by its scores (V,), fp32 on the CPU: softmax of scores / temperature over the top_k best (0: all), of
    those the fewest whose probabilities reach top_p (Holtzman et al. 2020), at least one. Temperature 0 takes the
    best."""
    if temperature == 0:
        return int(scores.argmax())
    ids = torch.arange(len(scores))
    if 0 < top_k < len(scores):  # sort those only that may be among the k best; of equal ones the first
        ids = ids[scores >= scores.topk(top_k).values[-1]]
    best, order = torch.sort(scores[ids], descending=True, stable=True)
    if top_k:
        best, order = best[:top_k], order[:top_k]
    ids = ids[order]
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
def generate_rows(
    model: GPT,
    prompt: Sequence[int],
    tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seeds: Sequence[int] = (1337,),
    stop: int | None = None,
    vocab: int | None = None,
    cached: bool = True,
    look: Callable[[Tensor], object] = lambda scores: None,
) -> Iterator[list[int | None]]:
    """Up to `tokens` times an id for each seed's continuation of the prompt (at least one id), None from its first
    `stop` on, until all are there; ids are below the real vocabulary of the model and, where it is smaller, `vocab`.

    All rows are computed together, and each as if it were alone. The model sees the last `context` ids. While all of
    them fit, keys and values are kept; beyond, every id shifts to another learned position with each new one, so
    nothing can be kept and the window is computed anew. Without `cached` it always is: the same ids come out. `look` is
    shown the scores, (rows, vocab) fp32, that each next id is drawn by.
    """
    for seed in seeds:
        check_options(tokens, temperature, top_k, top_p, seed)
    if not prompt:
        raise ConfigError("the prompt is empty; give at least one character")
    context = model.config.context
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    ids = torch.tensor([prompt] * len(seeds))  # (rows, so far)
    new, cache, running = ids, Cache(), [True] * len(seeds)
    for _ in range(tokens):
        fits = cached and ids.size(1) <= context
        seen = new if fits else ids[:, -context:]
        scores = model(seen.to(model.wte.weight.device), cache=cache if fits else None, at=LAST)[:, 0, :vocab]
        scores = scores.float().cpu()
        if not scores.isfinite().all():
            raise CheckpointError("the model's logits are not finite: its weights are damaged; use another checkpoint")
        look(scores)
        drawn = [
            pick(row, temperature, top_k, top_p, generator) for row, generator in zip(scores, generators, strict=True)
        ]
        running = [row and one != stop for row, one in zip(running, drawn, strict=True)]
        if not any(running):
            return
        yield [one if row else None for row, one in zip(running, drawn, strict=True)]
        new = torch.tensor(drawn).unsqueeze(1)
        ids = torch.cat((ids, new), 1)


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
    """The ids of one continuation, as `generate_rows` gives those of several."""
    for (one,) in generate_rows(model, prompt, tokens, temperature, top_k, top_p, (seed,), stop, vocab, cached):
        assert one is not None
        yield one


@torch.no_grad()
def scores_of(model: GPT, ids: Sequence[int], vocab: int | None = None) -> Iterator[Tensor]:
    """For each id but the first the scores (vocab,), fp32, that it is drawn by after those before it; at most `context`
    ids."""
    cache, device = Cache(), model.wte.weight.device
    for start in range(0, len(ids) - 1, PART):
        part = torch.tensor([ids[start : start + PART]], device=device)
        yield from model(part, cache=cache)[0, : len(ids) - 1 - start, :vocab].float().cpu()


@dataclass(frozen=True)
class Choice:
    """A token of a text and what the model expected there. Probabilities are the model's own, softmax of its scores
    over all tokens, whatever temperature, top_k and top_p the text is drawn with."""

    id: int
    text: str
    """What it adds to the text: whole characters, empty while one is incomplete."""
    given: bool
    """Whether it is of the prompt."""
    probability: float | None
    """None where the model sees nothing before it."""
    likely: tuple[tuple[str, float], ...]
    """The most likely tokens there, the likeliest first."""


@dataclass(frozen=True)
class LanguageModel:
    """A model with its tokenizer: text in, text out."""

    model: GPT
    tokenizer: Tokenizer
    prompt: str
    """What samples begin with when nothing is given."""
    step: int
    """Updates that it was trained with."""

    def streams(
        self,
        prompt: str | None = None,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 200,
        top_p: float = 1.0,
        seeds: Sequence[int] = (1337,),
        to_the_end: bool = False,
    ) -> Iterator[list[str]]:
        """Pieces of the texts that follow the prompt, one for each seed, all computed together: each of whole
        characters, empty where nothing new is complete, until `tokens` tokens or each text's end-of-text.

        An empty prompt begins at end-of-text. `to_the_end` computes all `tokens` whatever they are, so that processes
        that share a sharded model do the same number of forwards; what comes after end-of-text is still not shown.
        """
        eot = self.tokenizer.eot
        ids = self.tokenizer.encode(self.prompt if prompt is None else prompt).tolist() or [eot]
        decoders = [codecs.getincrementaldecoder("utf-8")(errors="replace") for _ in seeds]
        picking = (temperature, top_k, top_p, seeds, None if to_the_end else eot, self.tokenizer.vocab)
        running = [True] * len(seeds)
        for drawn in generate_rows(self.model, ids, tokens, *picking):
            running = [row and one != eot for row, one in zip(running, drawn, strict=True)]
            yield [
                decoder.decode(self.tokenizer.decode_bytes([one])) if row and one is not None else ""
                for row, one, decoder in zip(running, drawn, decoders, strict=True)
            ]
        yield [decoder.decode(b"", final=True) for decoder in decoders]

    def stream(
        self,
        prompt: str | None = None,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 200,
        top_p: float = 1.0,
        seed: int = 1337,
    ) -> Iterator[str]:
        """Pieces of one text that follows the prompt, none of them empty."""
        return (text for (text,) in self.streams(prompt, tokens, temperature, top_k, top_p, (seed,)) if text)

    def generate(
        self,
        prompt: str | None = None,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 200,
        top_p: float = 1.0,
        seed: int = 1337,
    ) -> str:
        """The text that follows the prompt; temperature 0 is greedy, top_k 0 and top_p 1 leave all tokens possible."""
        return "".join(self.stream(prompt, tokens, temperature, top_k, top_p, seed))

    def choices(
        self,
        prompt: str | None = None,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 200,
        top_p: float = 1.0,
        seed: int = 1337,
    ) -> Iterator[Choice]:
        """The tokens of a prompt, or the end-of-text for an empty one, and then those of the text that `stream` would
        give, until an end-of-text. Of a longer prompt only the last `context` tokens are seen."""
        check_options(tokens, temperature, top_k, top_p, seed)
        tokenizer, vocab = self.tokenizer, self.tokenizer.vocab
        ids = tokenizer.encode(self.prompt if prompt is None else prompt).tolist() or [tokenizer.eot]
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

        def choice(one: int, given: bool, scores: Tensor | None) -> Choice:
            text = decoder.decode(tokenizer.decode_bytes([one]))
            if scores is None:
                return Choice(one, text, given, None, ())
            chances = torch.softmax(scores, -1)
            best = chances.topk(min(LIKELY, len(chances)))
            likely = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            return Choice(one, text, given, chances[one].item(), tuple((tokenizer.decode([i]), p) for i, p in likely))

        unseen = max(1, len(ids) - self.model.config.context + 1)
        for one in ids[:unseen]:
            yield choice(one, True, None)
        for one, scores in zip(ids[unseen:], scores_of(self.model, ids[unseen - 1 :], vocab), strict=True):
            yield choice(one, True, scores)
        seen: list[Tensor] = []
        picking = (temperature, top_k, top_p, (seed,), tokenizer.eot, vocab)
        for (drawn,) in generate_rows(self.model, ids, tokens, *picking, look=seen.append):
            assert drawn is not None
            yield choice(drawn, False, seen.pop()[0])
