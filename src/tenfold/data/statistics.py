"""What tokens alone predict: the losses of the two simplest models of a corpus, which a training passes one after the
other, and how uneven its tokens are. From an even sample of windows, in bounded time and memory. No torch here.

Both models are smoothed by Witten and Bell's method C (1991, The zero-frequency problem), which has nothing to tune: a
token that is new after a context is as likely as it was for the training tokens to be new there. Where n(u) tokens
followed the context u, d(u) different ones,

    p(v | u) = (count(u, v) + d(u) p(v)) / (n(u) + d(u)),

and p(v) is the same one order down, over the uniform distribution: (count(v) + d / V) / (n + d).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tenfold.data.shards import Corpus, Tokens
from tenfold.errors import DataError

TRAIN = 1 << 22  # ids of the training split that are looked at, at most
VAL = 1 << 18  # the same of the validation split
WINDOW = 1 << 10  # ids in a row of such a sample

Sample = npt.NDArray[np.int64]  # (windows, ids)


@dataclass(frozen=True)
class Statistics:
    """Figures of a corpus. The losses are over the same validation tokens, those that follow another one."""

    unigram: float
    """Cross-entropy, in nats a validation token, of a model that knows the training tokens' frequencies alone."""
    bigram: float
    """The same of a model that also knows the token before. More training tokens than the sample would lower it."""
    bytes_per_token: float
    """UTF-8 bytes of text that a validation token stands for; end-of-text stands for none."""
    collision: float
    """Probability that two random training tokens are the same: the sum of squared frequencies."""
    repeats: float
    """Share of training tokens that equal the one before."""


def statistics(corpus: Corpus) -> Statistics:
    """The figures of a corpus whose ids are below its vocabulary; the same each time.

    Raises:
        DataError: a split has fewer than two tokens, or the tokenizer's vocabulary is not to be had.
    """
    vocab = corpus.tokenizer.vocab
    train, val = sample(corpus.train, TRAIN), sample(corpus.val, VAL)
    counts = np.bincount(train.ravel(), minlength=vocab)
    seen = np.count_nonzero(counts)
    unigram = (counts + seen / vocab) / (train.size + seen)  # (V)
    pairs, times = np.unique(_pairs(train, vocab), return_counts=True)
    following = np.bincount(train[:, :-1].ravel(), minlength=vocab)  # n(u), (V)
    different = np.bincount(pairs // vocab, minlength=vocab)  # d(u), (V)
    wanted, before, after = _pairs(val, vocab), val[:, :-1].ravel(), val[:, 1:].ravel()
    at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    known = np.where(pairs[at] == wanted, times[at], 0)  # count(u, v)
    lower, n, d = unigram[after], following[before], different[before]
    # Nothing follows a context that training never saw: there the lower order is all there is.
    bigram = np.where(n > 0, (known + d * lower) / np.maximum(n + d, 1), lower)
    frequencies = counts / train.size
    return Statistics(
        unigram=float(-np.log(lower).mean()),
        bigram=float(-np.log(bigram).mean()),
        bytes_per_token=len(corpus.tokenizer.decode_bytes(val.ravel())) / val.size,
        collision=float(frequencies @ frequencies),
        repeats=float((train[:, 1:] == train[:, :-1]).mean()),
    )


def sample(tokens: Tokens, limit: int) -> Sample:
    """All tokens as one row or, of more than `limit`, windows that lie evenly over them, `limit` in all."""
    if len(tokens) < 2:
        raise DataError(f"{tokens} has {len(tokens)} tokens; statistics need at least 2: give more text")
    if len(tokens) <= limit:
        return tokens.read(0, len(tokens))[np.newaxis]
    starts = np.linspace(0, len(tokens) - WINDOW, limit // WINDOW).astype(np.int64)
    return np.stack([tokens.read(int(start), WINDOW) for start in starts])


def _pairs(ids: Sample, vocab: int) -> npt.NDArray[np.int64]:
    """A number for each id and the one after it in its row: id * vocab + next id, in one dimension."""
    return (ids[:, :-1] * vocab + ids[:, 1:]).ravel()
