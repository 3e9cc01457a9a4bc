"""Sampling: with and without cache the same, never a padded id, never half a character."""

import codecs
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import TINY
from tenfold.data.tokenizer import from_spec
from tenfold.errors import ConfigError
from tenfold.generate import LanguageModel, generate, generate_rows, pick
from tenfold.model.cache import Cache
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT


def lively(config: ModelConfig = TINY, seed: int = 3) -> GPT:
    """A model with weights large enough that its choices depend on everything it sees."""
    model = GPT(config).initialise(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2 and name != "wte.weight":
                p.mul_(1 if name == "wpe.weight" else 40)
        model.wte.weight[config.vocab :] = 100.0  # whatever lies in padded rows must not matter
    return model.eval()


@pytest.mark.parametrize("prompt", [1, 7, 30, 32, 50])
def test_cached_equals_uncached_also_past_the_context(prompt: int) -> None:
    """Greedy ids are equal token for token, from prompts below, at and beyond the context of 32."""
    model = lively()
    ids = torch.randint(0, 257, (prompt,), generator=torch.Generator().manual_seed(1)).tolist()
    cached = list(generate(model, ids, 60, temperature=0))
    assert cached == list(generate(model, ids, 60, temperature=0, cached=False))
    plain = list(ids)
    for _ in range(60):  # the definition: the most likely token after the last `context` ones
        plain.append(int(model(torch.tensor([plain[-32:]]))[0, -1].argmax()))
    assert cached == plain[prompt:]
    assert len(set(cached)) > 10


@pytest.mark.parametrize("parts", [[32], [1] * 32, [7, 1, 1, 10, 13], [31, 1]])
def test_cached_logits_equal_uncached_ones(parts: list[int]) -> None:
    """Also when several new tokens meet a cache, where a mask aligned top-left would be wrong."""
    model = lively()
    x = torch.randint(0, 257, (2, 32))
    with torch.no_grad():
        whole, cache, start, pieces = model(x), Cache(), 0, []
        for count in parts:
            pieces.append(model(x[:, start : start + count], cache=cache))
            start += count
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-4)


def test_rows_that_share_a_beginning_share_its_cache() -> None:
    model = lively()
    x = torch.randint(0, 257, (3, 9))
    endings = torch.randint(0, 257, (6, 5))
    cache = Cache()
    with torch.no_grad():
        model(x, cache=cache)
        shared = model(endings, cache=cache.take(torch.tensor([0, 0, 1, 1, 2, 2])))
        whole = model(torch.cat((x.repeat_interleave(2, 0), endings), 1))[:, 9:]
    torch.testing.assert_close(shared, whole, rtol=0, atol=1e-4)
    assert cache.length == 9, "the cache that was taken from can go on"


def test_rows_together_are_each_as_if_alone() -> None:
    """Also past the context, and when one ends before the others."""
    model = lively()
    seeds = [1, 2, 3, 4]
    alone = [list(generate(model, [5, 6, 7], 40, seed=seed, top_k=20)) for seed in seeds]
    assert list(map(list, zip(*generate_rows(model, [5, 6, 7], 40, seeds=seeds, top_k=20), strict=True))) == alone
    stop = alone[0][10]  # ends the first row there, and others elsewhere or never
    together = list(map(list, zip(*generate_rows(model, [5, 6, 7], 40, seeds=seeds, top_k=20, stop=stop), strict=True)))
    for row, whole in zip(together, alone, strict=True):
        ended = whole.index(stop) if stop in whole else 40
        assert row == whole[:ended][: len(row)] + [None] * (len(row) - ended)


def test_the_k_best_are_taken_in_order_also_among_equals() -> None:
    scores = torch.tensor([0.0, 5.0, 5.0, 5.0, 1.0])
    drawn = {pick(scores, 1.0, 2, 1.0, torch.Generator().manual_seed(i)) for i in range(50)}
    assert drawn == {1, 2}


def test_padded_ids_are_never_drawn() -> None:
    model = lively()
    ids = list(generate(model, [1], 4000, temperature=5.0, seed=1))
    assert len(ids) == 4000
    assert max(ids) < 257
    from_spec({"name": "bytes"}).decode(ids)


def test_the_seed_decides() -> None:
    model = lively()
    a, b, c = (list(generate(model, [1], 50, seed=s)) for s in (1, 1, 2))
    assert a == b != c


@given(
    scores=st.lists(st.floats(-50, 50), min_size=1, max_size=65),
    temperature=st.sampled_from([0.0, 1e-3, 0.8, 1.0, 100.0]),
    top_k=st.sampled_from([0, 1, 5, 200]),
    top_p=st.sampled_from([1e-9, 0.5, 1.0]),
)
def test_pick_always_gives_an_allowed_id(scores: list[float], temperature: float, top_k: int, top_p: float) -> None:
    tensor = torch.tensor(scores)
    got = pick(tensor, temperature, top_k, top_p, torch.Generator().manual_seed(0))
    assert 0 <= got < len(scores)
    if temperature == 0 or top_k == 1 or top_p == 1e-9:
        assert tensor[got] == tensor.max()
    if top_k:
        assert (tensor > tensor[got]).sum() < top_k


def test_pick_draws_by_probability() -> None:
    scores = torch.log(torch.tensor([0.1, 0.2, 0.7]))
    generator = torch.Generator().manual_seed(0)
    drawn = [pick(scores, 1.0, 0, 1.0, generator) for _ in range(3000)]
    assert [drawn.count(i) / 3000 for i in range(3)] == pytest.approx([0.1, 0.2, 0.7], abs=0.03)
    drawn = [pick(scores, 1.0, 0, 0.6, generator) for _ in range(100)]
    assert set(drawn) == {2}  # 0.7 alone reaches 0.6
    drawn = [pick(scores, 1.0, 2, 1.0, generator) for _ in range(300)]
    assert set(drawn) == {1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"seed": 2**70}, "seed is"),
        ({"tokens": 0}, "tokens is 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(generate(lively(), [1], **{"tokens": 5, **options}))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="the prompt is empty"):
        list(generate(lively(), [], 5))


def test_streaming_never_gives_half_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "aé€😀z"
    ids = [*text.encode(), 0xF0, 0x9F]  # ends within a character
    model = LanguageModel(lively(), from_spec({"name": "bytes"}), "a", 0)
    monkeypatch.setattr("tenfold.generate.generate_rows", lambda *_: ([one] for one in ids))
    pieces = list(model.stream("x"))
    assert pieces == [*text, "�"]


def test_generation_stops_before_end_of_text() -> None:
    """Ids come out up to, and without, the first end-of-text."""
    model = lively()
    free = list(generate(model, [1], 200, temperature=2.0))
    stop = free[100]
    want = list(itertools.takewhile(lambda i: i != stop, free))
    assert list(generate(model, [1], 200, temperature=2.0, stop=stop)) == want


def test_streamed_text_is_the_decoded_ids() -> None:
    model = LanguageModel(lively(), from_spec({"name": "bytes"}), "a", 0)
    ids = list(generate(model.model, [97], 300, 1.5, 0, 1.0, 5, 256))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    assert model.generate(tokens=300, temperature=1.5, top_k=0, seed=5) == decoder.decode(bytes(ids), final=True)
