"""Which published curve a run should follow, and in which fields it differs from that curve's runs."""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from tenfold.data.shards import Corpus
from tenfold.reference.curves import Curve, curves
from tenfold.run import Run

RESEMBLES = 4  # most fields that may differ for a run to be told of a curve
FIRST = "whole documents within the first {:,} tokens"
FOREIGN = {  # how the shards of other programs are named -> repository and subset that these programs read
    r"(?:edufineweb|edu_fineweb)_.*": ("HuggingFaceFW/fineweb-edu", "sample-10BT"),
    r"fineweb_.*": ("HuggingFaceFW/fineweb", "sample-10BT"),
}
SHARD = 100_000_000  # tokens of their first shard, which validates


@dataclass(frozen=True)
class Match:
    """A curve, the fields in which a run differs from it as name -> (there, here), and why its validation loss is not
    computed on the same tokens, or nothing."""

    curve: Curve
    differences: dict[str, tuple[Any, Any]]
    validation: str

    def told(self) -> str:
        """The differences in one line."""
        return "; ".join(f"{name} is {here}, there {there}" for name, (there, here) in self.differences.items())


def dataset_facts(corpus: Corpus) -> dict[str, Any]:
    """What run.json says of the data: name (its repository on the Hub, or what it was made from), subset, revision,
    which documents validate, and the tokens of both splits. Shards of other programs are known by their names alone."""
    about, options = corpus.manifest.get("source", {}), corpus.manifest.get("options", {})
    name, subset = about.get("repository", about.get("name", "")), about.get("subset", "")
    documents = corpus.manifest.get("split_rule", "")
    if options.get("val_tokens"):
        documents = FIRST.format(options["val_tokens"])
        documents += ", shuffled" if options.get("shuffle", -1) >= 0 else ""
        documents += ", repeated ones left out" if options.get("dedup") else ""
    for pattern, known in FOREIGN.items():
        if not about and re.fullmatch(pattern, corpus.val.shards[0].path.name):
            (name, subset), documents = known, FIRST.format(SHARD)
    return {
        "name": name,
        "subset": subset,
        "revision": about.get("revision", ""),
        "documents": documents,
        "train_tokens": len(corpus.train),
        "val_tokens": len(corpus.val),
    }


def compare(run: Run, dataset: dict[str, Any], curve: Curve) -> Match:
    """How a run on data of these facts differs from a curve. Padding, seed, speed and cadence make no difference."""
    here = {
        f"{part}.{field}": (wanted, asdict(run)[part][field])
        for part, fields in (("model", curve.model), ("recipe", curve.recipe))
        for field, wanted in fields.items()
    }
    here["data"] = (curve.dataset, dataset.get("name") or "not known")
    here["tokenizer"] = ("gpt2", run.tokenizer)
    here["init"] = ("random weights", run.init or "random weights")
    epochs = run.recipe.targets * run.recipe.steps / dataset.get("train_tokens", math.inf)
    if epochs > 1.05 * curve.epochs:
        here["epochs"] = (f"at most {curve.epochs}", f"{epochs:.1f}")
    differences = {name: pair for name, pair in here.items() if not same(*pair)}
    return Match(curve, differences, other_validation(run, dataset, curve))


def same(there: Any, here: Any) -> bool:
    """Whether two values of a field are equal, numbers up to rounding: a tenth of 6e-4 is not exactly 6e-5."""
    return math.isclose(there, here) if isinstance(there, int | float) else bool(there == here)


def other_validation(run: Run, dataset: dict[str, Any], curve: Curve) -> str:
    """Why a run's validation loss is over other tokens than the curve's, in words; nothing if they are the same."""
    wanted, val_tokens = curve.validation, dataset.get("val_tokens", 0)
    rows = run.cadence.eval_rows * run.recipe.length
    tokens = min(rows, val_tokens) if rows else val_tokens
    if dataset.get("subset") != wanted["subset"]:
        return (
            f"another part of the dataset validates ({dataset.get('subset') or 'not known'}, there {wanted['subset']})"
        )
    if dataset.get("documents") != wanted["documents"]:
        return f"other documents validate ({dataset.get('documents') or 'not known'}; there {wanted['documents']})"
    if tokens not in wanted["tokens"]:
        several = " or ".join(f"{n:,}" for n in wanted["tokens"])
        return f"another number of tokens validates ({tokens:,}, there the first {several}: --cadence.eval-rows)"
    return ""


def matching(run: Run, dataset: dict[str, Any]) -> Match | None:
    """The curve that a run on data of these facts follows, with no differences, or the one that it resembles most, or
    None if it resembles none. One of the same dataset comes first."""
    found = (compare(run, dataset, curve) for curve in curves().values())
    near = [match for match in found if len(match.differences) <= RESEMBLES]
    return min(near, key=lambda m: ("data" in m.differences, len(m.differences)), default=None)
