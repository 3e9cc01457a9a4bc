"""What tokens alone predict: against a dictionary, and against chains whose entropies are known."""

import json
import math
import random
import struct
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from conftest import words
from tenfold.data.shards import FORMAT, MANIFEST, VERSION, Corpus, ShardWriter, open_corpus
from tenfold.data.statistics import WINDOW, sample, statistics
from tenfold.data.tokenizer import Bytes, Chars, Gpt2, Tokenizer
from tenfold.errors import DataError

ABC = Chars("abc")  # and end-of-text, id 3


def corpus_of(folder: Path, train: Sequence[int], val: Sequence[int], tokenizer: Tokenizer = ABC) -> Corpus:
    """A corpus of these ids, in shards of 30,000."""
    splits = {}
    for split, ids in (("train", train), ("val", val)):
        with ShardWriter(folder, split, tokenizer.vocab, 30_000) as writer:
            writer.append(ids)
            splits[split] = {"shards": writer.finish()}
    manifest = {"format": FORMAT, "version": VERSION, "tokenizer": tokenizer.spec(), "splits": splits}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return open_corpus(folder)


def by_hand(train: Sequence[int], val: Sequence[int], vocab: int) -> tuple[float, float, float, float]:
    """Both losses, collision and repeats, token by token from dictionaries."""
    ones, twos = Counter(train), Counter(pairwise(train))
    times, different = Counter(train[:-1]), Counter(u for u, _ in twos)

    def unigram(v: int) -> float:
        return (ones[v] + len(ones) / vocab) / (len(train) + len(ones))

    def bigram(u: int, v: int) -> float:
        if not times[u]:
            return unigram(v)
        return (twos[u, v] + different[u] * unigram(v)) / (times[u] + different[u])

    assert sum(unigram(v) for v in range(vocab)) == pytest.approx(1)
    assert sum(bigram(train[0], v) for v in range(vocab)) == pytest.approx(1)
    targets = list(pairwise(val))
    return (
        -sum(math.log(unigram(v)) for _, v in targets) / len(targets),
        -sum(math.log(bigram(u, v)) for u, v in targets) / len(targets),
        sum((n / len(train)) ** 2 for n in ones.values()),
        sum(u == v for u, v in pairwise(train)) / (len(train) - 1),
    )


@pytest.mark.parametrize(("vocab", "train", "val"), [(4, 300, 50), (257, 400, 90), (257, 5000, 700), (50257, 300, 40)])
def test_they_are_what_counting_by_hand_gives(tmp_path: Path, vocab: int, train: int, val: int) -> None:
    tokenizer = {4: ABC, 257: Bytes(), 50257: Gpt2()}[vocab]
    draw = np.random.default_rng(vocab + train)
    ids = np.minimum(draw.zipf(1.3, train + val), vocab) - 1  # some of the validation ids are new
    found = statistics(corpus_of(tmp_path, ids[:train], ids[train:], tokenizer))
    want = by_hand(ids[:train].tolist(), ids[train:].tolist(), vocab)
    assert (found.unigram, found.bigram, found.collision, found.repeats) == pytest.approx(want, rel=1e-12)


def test_of_a_chain_they_become_its_entropies(tmp_path: Path) -> None:
    moves = [[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.5, 0.0, 0.5]]
    draw, ids = random.Random(0), [0]
    while len(ids) < 120_000:
        ids += draw.choices(range(3), moves[ids[-1]])
    share = np.linalg.matrix_power(np.array(moves), 200)[0]
    rate = -sum(share[u] * p * math.log(p) for u in range(3) for p in moves[u] if p)
    found = statistics(corpus_of(tmp_path, ids[:100_000], ids[100_000:]))
    assert found.unigram == pytest.approx(-(share * np.log(share)).sum(), abs=0.01)
    assert found.bigram == pytest.approx(rate, abs=0.01)
    assert found.collision == pytest.approx((share**2).sum(), abs=0.01)
    assert found.repeats == pytest.approx(sum(share[u] * moves[u][u] for u in range(3)), abs=0.01)


def test_of_uniform_ids_they_are_chance(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 257, 600_000)
    found = statistics(corpus_of(tmp_path, ids[:500_000], ids[500_000:], Bytes()))
    assert found.unigram == pytest.approx(math.log(257), abs=0.001)
    assert math.log(257) < found.bigram < math.log(257) + 0.15  # eight of each pair: some of it is noise
    assert found.collision == pytest.approx(1 / 257, rel=0.01)
    assert found.repeats == pytest.approx(1 / 257, rel=0.1)


def test_of_one_id_alone_they_are_certain(tmp_path: Path) -> None:
    found = statistics(corpus_of(tmp_path, [1] * 500, [1] * 100))
    assert 0 <= found.bigram < found.unigram < 0.002
    assert (found.collision, found.repeats, found.bytes_per_token) == (1, 1, 1)


def test_text_is_measured_in_bytes_of_utf8(tmp_path: Path) -> None:
    tokenizer = Chars("aé\N{GRINNING FACE}")  # 1, 2 and 4 bytes; end-of-text none
    found = statistics(corpus_of(tmp_path, [0, 1, 2], [0, 1, 2, 3, 1, 1], tokenizer))
    assert found.bytes_per_token == 11 / 6


def test_shards_of_another_program_are_measured_as_they_are(tmp_path: Path) -> None:
    ids = Gpt2().encode(words(2000)).tolist()
    for split, part in (("train", ids[:-400]), ("val", ids[-400:])):
        (tmp_path / f"{split}.bin").write_bytes(struct.pack(f"<{len(part)}H", *part))
    found = statistics(open_corpus(tmp_path))
    assert (found.unigram, found.bigram) == pytest.approx(by_hand(ids[:-400], ids[-400:], 50257)[:2], rel=1e-12)
    assert found.bytes_per_token == len(Gpt2().decode_bytes(ids[-400:])) / 400


def test_a_long_split_is_sampled_evenly_from_end_to_end(tmp_path: Path) -> None:
    tokens = corpus_of(tmp_path, np.arange(50_000), [0, 0], Gpt2()).train
    rows = sample(tokens, 8 * WINDOW)
    assert rows.shape == (8, WINDOW)
    assert (np.diff(rows) == 1).all()  # each a piece of the split as it is
    assert (rows[0, 0], rows[-1, -1]) == (0, 49_999)
    assert np.ptp(np.diff(rows[:, 0])) <= 1
    assert sample(tokens, 50_000).shape == (1, 50_000)


def test_a_split_of_one_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\(val\) has 1 tokens; statistics need at least 2: give more text"):
        statistics(corpus_of(tmp_path, [1, 2, 3], [1]))
