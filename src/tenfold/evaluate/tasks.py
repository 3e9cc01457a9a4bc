"""The tasks: rows of TASKS. A task knows how to make questions of a set's records, in token ids through whatever
tokenizer the model has, and what its log-likelihoods mean; of the model it knows nothing else.

Each reader's docstring says which protocol it follows and which figures are published for that. Published figures of
GPT-2 are in reference/evals.json, with their sources.
"""

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tenfold.data.tokenizer import Tokenizer
from tenfold.errors import ConfigError, DataError
from tenfold.evaluate.scorer import Ids, Pair, Scores
from tenfold.evaluate.sets import Record


@dataclass(frozen=True)
class Figure:
    """A measured value with its standard error; nan where one item does not give any."""

    value: float
    error: float


@dataclass(frozen=True)
class Question:
    """Contexts with their continuations, of which one pair is right."""

    pairs: tuple[tuple[str, str], ...]
    gold: int = 0

    def __post_init__(self) -> None:
        if type(self.gold) is not int or not 0 <= self.gold < len(self.pairs):
            raise ValueError(f"{self.gold!r} is no answer: there are {len(self.pairs)}")
        if not all(isinstance(text, str) for pair in self.pairs for text in pair):
            raise TypeError("what should be text is none")


Figures = dict[str, Figure]
Ask = Callable[[Sequence[Any], Tokenizer, int, int], list[Pair]]
"""(what was read of the records, tokenizer, the model's context, stride or 0) -> what the model is to score"""
Tell = Callable[[Sequence[Any], Sequence[Pair], Scores], Figures]
"""(what was read, what was asked, its scores) -> the figures by name"""


@dataclass(frozen=True)
class Task:
    """A row of TASKS."""

    set: str
    """Its row in sets.SETS."""
    read: Callable[[Record], Any]
    """Makes of a record what the other two take; its docstring tells the protocol."""
    ask: Ask
    tell: Tell
    known: str = ""
    """Its row in reference/evals.json, if figures of GPT-2 by this very protocol are published."""


# What the model is asked, and what its answers mean


def encoder(tokenizer: Tokenizer) -> Callable[[str], Ids]:
    """Text to ids, each text once; of an empty one end-of-text, which is what stands before a text in training."""
    return cache(lambda text: tuple(tokenizer.encode(text).tolist()) or (tokenizer.eot,))


def ends(questions: Sequence[Question], tokenizer: Tokenizer, context: int, stride: int) -> list[Pair]:
    """All pairs of all questions. Context and continuation are encoded apart."""
    ids = encoder(tokenizer)
    return [(ids(before), ids(after)) for question in questions for before, after in question.pairs]


def windows(lines: Sequence[str], tokenizer: Tokenizer, context: int, stride: int) -> list[Pair]:
    """Running text in windows as long as the model's context that begin every `stride` ids, by default half of it. Each
    id is scored in the first window that has it, except those with nothing before them: the text's first, and with a
    stride of a whole window every window's first."""
    stride = stride or max(1, context // 2)
    if not 0 < stride <= context:
        raise ConfigError(f"--stride {stride}: give 1 to {context}, which is the model's context")
    ids = encoder(tokenizer)("\n\n".join(lines))
    if len(ids) < 2:
        raise DataError(f"the text has {len(ids)} tokens; a loss needs at least 2")
    pairs, done = [], 0
    for start in range(0, len(ids), stride):
        end, begin = min(start + context, len(ids)), max(done, start + 1)
        pairs.append((ids[start:begin], ids[begin:end]))
        done = end
        if end == len(ids):
            break
    return pairs


def exp(nats: float) -> float:
    """e to this, or the largest number there is: perplexities of a diverged model are none, but can be printed."""
    return math.exp(min(nats, math.log(sys.float_info.max)))


def mean(values: npt.NDArray[np.float64]) -> Figure:
    """Their mean with its standard error; of accuracies that is sqrt(p (1 - p) / (n - 1))."""
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Figure(float(values.mean()), float(error))


def choice(norm: str = "") -> Tell:
    """Accuracy where the answer is the continuation with the highest sum of log-likelihoods (acc) and, with `norm`, the
    highest sum divided by its length in tokens or characters (acc_norm), without the space before it. Of equals the
    first counts."""

    def tell(questions: Sequence[Question], asked: Sequence[Pair], scores: Scores) -> Figures:
        texts = [after.removeprefix(" ") for question in questions for _, after in question.pairs]
        lengths = {
            "tokens": np.array([len(after) for _, after in asked]),
            "characters": np.array([max(1, len(text)) for text in texts]),
        }
        cuts = np.cumsum([len(question.pairs) for question in questions])[:-1]

        def accuracy(values: npt.NDArray[np.float64]) -> Figure:
            answers = [part.argmax() for part in np.split(values, cuts)]
            return mean(np.array([float(a == q.gold) for a, q in zip(answers, questions, strict=True)]))

        figures = {"acc": accuracy(scores.sums)}
        return {**figures, "acc_norm": accuracy(scores.sums / lengths[norm])} if norm else figures

    return tell


def word(questions: Sequence[Question], asked: Sequence[Pair], scores: Scores) -> Figures:
    """Share of continuations whose every token is the most likely one (acc), and exp of their mean loss (ppl)."""
    loss = mean(-scores.sums)
    ppl = exp(loss.value)
    return {"acc": mean(scores.greedy.astype(np.float64)), "ppl": Figure(ppl, ppl * loss.error)}


def text(lines: Sequence[str], asked: Sequence[Pair], scores: Scores) -> Figures:
    """Perplexity by token (ppl) and by word between white space (word_ppl), and bits a byte of UTF-8 (bits_per_byte),
    all of the same loss. The errors take windows as independent."""
    losses, counts = -scores.sums, np.array([len(after) for _, after in asked])
    total, tokens, n = float(losses.sum()), int(counts.sum()), len(asked)
    rest = losses - counts * total / tokens  # of each window against the mean
    error = math.sqrt((rest**2).sum() * n / (n - 1)) if n > 1 else math.nan
    whole = "".join(line or " \n" for line in lines)

    def perplexity(units: int) -> Figure:
        value = exp(total / units)
        return Figure(value, value * error / units)

    bits = math.log(2) * len(whole.encode())
    return {
        "ppl": perplexity(tokens),
        "word_ppl": perplexity(len(whole.split())),
        "bits_per_byte": Figure(total / bits, error / bits),
    }


# How records are read


def hellaswag(record: Record) -> Question:
    """HellaSwag (Zellers et al. 2019), 10,042 validation items, in the completion style of build-nanogpt: the context
    as it stands, then a space and an ending; acc_norm by tokens. GPT-2 124M has acc 0.2859 and acc_norm 0.2955, 1558M
    acc 0.3842 and acc_norm 0.4893; GPT-3 125M has acc_norm 0.337. Chance is 0.25, one standard error 0.0045."""
    return Question(tuple((record["ctx"], " " + ending) for ending in record["endings"]), record["label"])


def cleaned(passage: str) -> str:
    """Without the marks of headings and of what was left out that WikiHow's part has."""
    return re.sub(r"\[.*?\]", "", passage.strip().replace(" [title]", ". ")).replace("  ", " ")


def hellaswag_harness(record: Record) -> Question:
    """The same items as lm-evaluation-harness asks them, without examples: the activity in front, text cleaned,
    acc_norm by characters. GPT-2 124M has acc 0.2892 and acc_norm 0.3114, 1558M acc 0.4004 and acc_norm 0.5089."""
    context = cleaned(f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}")
    return Question(tuple((context, " " + cleaned(ending)) for ending in record["endings"]), record["label"])


def lambada(record: Record) -> Question:
    """LAMBADA (Paperno et al. 2016) in OpenAI's form, 5,153 passages, by the protocol of lm-evaluation-harness
    (lambada_openai): the last word, with the space before it, is right if each of its tokens is the most likely one.
    GPT-2 124M has acc 0.3256 and ppl 40.06, 350M acc 0.4306, 1558M acc 0.5121 and ppl 10.63. The GPT-2 paper's 0.4599
    and 35.13 for 124M are of another protocol, which it does not spell out: compare with neither."""
    context, _, last = record["text"].rpartition(" ")
    return Question(((context, " " + last),))


def wikitext(record: Record) -> str:
    """WikiText (Merity et al. 2016), raw test text, 4,358 lines joined by two line ends as transformers' documentation
    does it: 287,644 tokens of GPT-2. By token and at context 1,024, GPT-2 774M has ppl 16.45 with stride 512 and 19.44
    with stride 1,024; for 124M 29.94 is told. The GPT-2 paper's 29.41 (WikiText-2) and 37.5 (WikiText-103) for 124M are
    of text that was prepared otherwise, and lm-evaluation-harness's word_ppl 37.37 and bits_per_byte 0.9769 are by
    document, of changed text: compare with neither. By their publisher's count the raw test sets of WikiText-2 and
    WikiText-103 have the same lines and bytes."""
    return record["text"] and record["text"] + "\n"


def arc(record: Record) -> Question:
    """ARC (Clark et al. 2018), test questions, as lm-evaluation-harness asks them without examples; acc_norm by
    characters."""
    context = f"Question: {record['question']}\nAnswer:"
    return Question(tuple((context, " " + answer) for answer in record["choices"]), record["gold"])


def piqa(record: Record) -> Question:
    """PIQA (Bisk et al. 2019), validation questions, as lm-evaluation-harness asks them without examples; acc_norm by
    characters."""
    context = f"Question: {record['goal']}\nAnswer:"
    return Question(tuple((context, " " + record[name]) for name in ("sol1", "sol2")), record["label"])


def winogrande(record: Record) -> Question:
    """WinoGrande XL (Sakaguchi et al. 2019), validation sentences, by partial evaluation as in lm-evaluation-harness:
    the gap is filled in both ways, and the log-likelihood of what stands behind it decides."""
    before, _, after = record["sentence"].partition("_")
    pairs = tuple((before + record[name], " " + after.strip()) for name in ("option1", "option2"))
    return Question(pairs, int(record["answer"]) - 1)


def openbookqa(record: Record) -> Question:
    """OpenBookQA (Mihaylov et al. 2018), validation questions, the question alone as context, as in
    lm-evaluation-harness without examples; acc_norm by characters."""
    return Question(tuple((record["question"], " " + answer) for answer in record["choices"]), record["gold"])


def sciq(record: Record) -> Question:
    """SciQ (Welbl et al. 2017), validation questions with their supporting text, as lm-evaluation-harness asks them
    without examples; acc_norm by characters."""
    context = f"{record['support'].lstrip()}\nQuestion: {record['question']}\nAnswer:"
    answers = ("distractor1", "distractor2", "distractor3", "correct_answer")
    return Question(tuple((context, " " + record[name]) for name in answers), 3)


def boolq(record: Record) -> Question:
    """BoolQ (Clark et al. 2019), validation questions with their passage, no or yes, as lm-evaluation-harness asks them
    without examples."""
    context = f"{record['passage']}\nQuestion: {record['question']}?\nAnswer:"
    return Question(((context, " no"), (context, " yes")), int(record["answer"]))


TASKS: dict[str, Task] = {
    "hellaswag": Task("hellaswag", hellaswag, ends, choice("tokens"), "hellaswag"),
    "hellaswag-harness": Task("hellaswag", hellaswag_harness, ends, choice("characters"), "hellaswag_lm_eval"),
    "lambada": Task("lambada", lambada, ends, word, "lambada_lm_eval"),
    "wikitext2": Task("wikitext2", wikitext, windows, text),
    "wikitext103": Task("wikitext103", wikitext, windows, text),
    "arc_easy": Task("arc_easy", arc, ends, choice("characters")),
    "arc_challenge": Task("arc_challenge", arc, ends, choice("characters")),
    "piqa": Task("piqa", piqa, ends, choice("characters")),
    "winogrande": Task("winogrande", winogrande, ends, choice()),
    "openbookqa": Task("openbookqa", openbookqa, ends, choice("characters")),
    "sciq": Task("sciq", sciq, ends, choice("characters")),
    "boolq": Task("boolq", boolq, ends, choice()),
}
GROUPS = {"wikitext": ("wikitext2",), "arc": ("arc_easy", "arc_challenge")}  # names that stand for tasks
