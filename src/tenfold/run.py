"""A Run: model, recipe, speed and cadence together, and the presets, plain functions that return one. No torch here."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tenfold.errors import CheckpointError, ConfigError, did_you_mean
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe
from tenfold.training.speed import Speed

FILM_TOKENS = 512  # training on so many costs no less than a snapshot of a film; benchmarks/film.py


@dataclass(frozen=True)
class Cadence:
    """How often what happens, in steps; 0 is never. It has no influence on the training."""

    log: int = 10
    """Print and record loss, learning rate, gradient norm and speed."""
    eval: int = 250
    """Compute the validation loss; also at the start and the end."""
    score: int = 0
    """Score the tasks, on all processes together; also at the end."""
    sample: int = 1000
    """Write samples of the text; also at the start and the end."""
    save: int = 1000
    """Save a checkpoint; also at the end and when stopped."""
    keep: int = 3
    """Newest checkpoints kept; the one with the best validation loss stays besides."""
    keep_every: int = 0
    """Checkpoints at multiples of this many steps stay for good."""
    eval_rows: int = 0
    """Rows of the validation split that are evaluated; 0 is all of it."""
    tasks: str = "hellaswag"
    """Tasks that are scored, as `tenfold eval` knows them, with commas between."""
    score_items: int = 0
    """Items of each task that are scored, a sample, always the same; 0 is all of them."""
    samples: int = 2
    """Samples written each time."""
    sample_tokens: int = 200
    """Tokens of a sample."""
    prompt: str = "\n"
    """Text that samples begin with."""
    patience: int = 5
    """Evaluations without a better validation loss before a notice; 0 gives none."""
    stop_early: bool = False
    """Stop at that notice."""
    lost: int = 60
    """Seconds without a sign of life of a process after which the others name it and end; 0 leaves that to the
    libraries."""
    film: int = 200
    """Snapshots of every head's attention over the whole run, most of them early; a short run gets fewer, so that they
    cost less than a hundredth of it."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.type is int and getattr(self, item.name) < 0:
                raise ConfigError(f"cadence.{item.name} is {getattr(self, item.name)}; give 0 (never) or more")
        if self.keep < 1:
            raise ConfigError("cadence.keep is 0; keep at least 1 checkpoint")


@cache
def film_steps(recipe: Recipe, count: int) -> frozenset[int]:
    """The steps at which a training is filmed: at most `count`, and so few that they cost less than a hundredth of it.

    Step 0 is always among them, and where there are others the last step is. From one to the next the distance grows
    evenly, to about a hundred times the first: steps * (101^k - 1) / 100, k from 0 to 1.
    """
    count = min(count, recipe.steps * recipe.targets // (100 * FILM_TOKENS))
    parts = max(1, count - 1)
    return frozenset(round(recipe.steps * (101 ** (k / parts) - 1) / 100) for k in range(max(1, count)))


@dataclass(frozen=True)
class Run:
    """Everything a training is made of."""

    model: ModelConfig = field(default_factory=ModelConfig)
    recipe: Recipe = field(default_factory=Recipe)
    speed: Speed = field(default_factory=Speed)
    cadence: Cadence = field(default_factory=Cadence)
    preset: str = ""
    """Name of the preset it came from."""
    name: str = ""
    """Name of its folder in runs/; empty for the preset's."""
    data: str = ""
    """Folder of token shards, or text to prepare first; it may move, recipe.data is what must match."""
    tokenizer: str = "gpt2"
    """How text is prepared: bytes, chars or gpt2."""
    init: str = ""
    """Weights that the training begins from: a run, a checkpoint, a folder or file of another program, or a name on the
    Hub; empty for random ones."""
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """What is done about a loss or gradient that is not finite: stop, leave the update out, or go back to the last
    checkpoint and leave its rows out."""
    signs: Literal["act", "warn", "off"] = "act"
    """Vital signs: those that mean a wrong training stop it, are only told, or are not looked at."""
    log: tuple[str, ...] = ()
    """Sinks that get each record too, beside metrics.jsonl: tensorboard, wandb, trackio."""


def demo() -> Run:
    """A small model on the source of Python's standard library, as bytes: under two minutes on two cores."""
    return Run(
        preset="demo",
        model=ModelConfig(layers=4, heads=4, width=128, context=128, vocab=0, padded_vocab=0, bias=False),
        recipe=Recipe(rows=16, length=128, steps=800, lr=2e-3, lr_end=2e-4, warmup=50, beta2=0.99),
        speed=Speed(precision="fp32", compile="none"),
        cadence=Cadence(
            log=10, eval=200, sample=400, save=400, eval_rows=256, prompt="def ", samples=1, sample_tokens=300
        ),
        data="data/demo",
        tokenizer="bytes",
    )


def shakespeare_char() -> Run:
    """Tiny Shakespeare by characters: nanoGPT's small CPU configuration, validation loss 1.88 there."""
    return Run(
        preset="shakespeare-char",
        model=ModelConfig(layers=4, heads=4, width=128, context=64, vocab=0, padded_vocab=0, bias=False),
        recipe=Recipe(rows=12, length=64, steps=2000, lr=1e-3, lr_end=1e-4, warmup=100, beta2=0.99),
        speed=Speed(precision="fp32", compile="none"),
        cadence=Cadence(log=10, eval=250, sample=500, save=500),
        data="data/shakespeare-char",
        tokenizer="chars",
    )


def gpt2(name: str, layers: int, heads: int, width: int, lr: float) -> Run:
    """GPT-2 of one of its four sizes by the published FineWeb-Edu 10B recipe; peak learning rates as for GPT-3 (Brown
    et al. 2020, table 2.1), ending at a tenth."""
    return Run(
        preset=name,
        model=ModelConfig(layers=layers, heads=heads, width=width),
        recipe=Recipe(lr=lr, lr_end=lr / 10),
        cadence=Cadence(eval_rows=10240, score=1000),
        data="data/fineweb-edu",
    )


def finetune() -> Run:
    """Fine-tuning of a trained GPT-2, by default the released 124M: gentle and short, as nanoGPT's (3e-5, some 32,768
    tokens a step), with a warm-up because the moments begin empty. The shape is that of the weights it begins from."""
    return Run(
        preset="finetune",
        recipe=Recipe(rows=32, steps=200, lr=3e-5, lr_end=3e-6, warmup=10),
        cadence=Cadence(log=1, eval=10, sample=50, save=10, keep=1, eval_rows=256, patience=3),
        data="data/mine",
        init="gpt2",
    )


PRESETS: dict[str, Callable[[], Run]] = {
    "demo": demo,
    "shakespeare-char": shakespeare_char,
    "gpt2-124m": lambda: gpt2("gpt2-124m", layers=12, heads=12, width=768, lr=6e-4),
    "gpt2-350m": lambda: gpt2("gpt2-350m", layers=24, heads=16, width=1024, lr=3e-4),
    "gpt2-774m": lambda: gpt2("gpt2-774m", layers=36, heads=20, width=1280, lr=2.5e-4),
    "gpt2-1558m": lambda: gpt2("gpt2-1558m", layers=48, heads=25, width=1600, lr=2e-4),
    "finetune": finetune,
}


def preset(name: str) -> Run:
    """The preset of this name; ConfigError if there is none."""
    if name not in PRESETS:
        raise ConfigError(f"no preset {name!r}{did_you_mean(name, PRESETS)}; possible are {', '.join(PRESETS)}")
    return PRESETS[name]()


def to_dict(run: Run) -> dict[str, Any]:
    """A run as plain values, for JSON."""
    return dataclasses.asdict(run)


def from_dict(content: dict[str, Any], where: str) -> Run:
    """The run that `to_dict` wrote; fields it lacks take their defaults. CheckpointError names `where` for others."""
    return typed(Run, {k: v for k, v in content.items() if k in {item.name for item in fields(Run)}}, where, "")


def typed(kind: type, values: Any, where: str, prefix: str) -> Any:
    """A dataclass from plain values, each checked against the type of its field."""
    if not isinstance(values, dict):
        raise CheckpointError(
            f"{where} has no fields for {prefix[:-1]}; restore the file, or begin under another --name"
        )
    hints = get_type_hints(kind)
    if unknown := set(values) - set(hints):
        raise CheckpointError(f"{where} has unknown {prefix[:-1]} fields {', '.join(sorted(unknown))}; update tenfold")
    made = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(hint := hints[name]):
            made[name] = typed(hint, value, where, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif not fits(value, hint):
            raise CheckpointError(f"{where} has {prefix}{name} {value!r}, which it cannot be; restore the file")
        else:
            made[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**made)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from None


def fits(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON is of a field's type."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:  # of any length, of one type
        return isinstance(value, list) and all(fits(one, get_args(hint)[0]) for one in value)
    if get_args(hint):  # a union
        return any(fits(value, one) for one in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint


def differences(saved: Run, given: Run) -> dict[str, tuple[Any, Any]]:
    """Fields of the model and the recipe that differ: dotted name -> (saved, given)."""
    return {
        f"{part}.{item.name}": (was, now)
        for part in ("model", "recipe")
        for item in fields(getattr(saved, part))
        if (was := getattr(getattr(saved, part), item.name)) != (now := getattr(getattr(given, part), item.name))
    }


def check_preset(saved: Run, given: Run) -> None:
    """ConfigError if a run is asked to go on as another preset, or from other weights than its own."""
    if given.preset != saved.preset:
        raise ConfigError(
            f"run {saved.name!r} was started from preset {saved.preset!r}, not {given.preset!r}; "
            "give that, or another --name"
        )
    if given.init != saved.init:
        raise ConfigError(
            f"run {saved.name!r} began from {saved.init or 'random weights'}, not {given.init or 'random weights'}; "
            "leave --init out to go on, or give another --name"
        )


def reconcile(saved: Run, given: Run, allow: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """The fields of the model and recipe that may change on resume, as `allow` names them; ConfigError for any other
    that differs. What was imported and never trained has no recipe yet: it takes the given one."""
    if not saved.recipe.data:
        saved = replace(saved, recipe=given.recipe)
    changed = differences(saved, given)
    known = [f"{part}.{item.name}" for part in ("model", "recipe") for item in fields(getattr(saved, part))]
    for name in allow:
        if name not in known:
            raise ConfigError(
                f"--allow {name!r} is no field{did_you_mean(name, known)}; possible are {', '.join(known)}"
            )
        if name.startswith("model."):
            raise ConfigError(
                f"--allow {name}: the model belongs to its weights and cannot change; give another --name"
            )
    refused = {name: pair for name, pair in changed.items() if name not in allow}
    if refused:
        told = "; ".join(f"{name} was {was!r}, given {now!r}" for name, (was, now) in refused.items())
        names = " ".join(refused)
        model = any(name.startswith("model.") for name in refused)
        remedy = "give another --name" if model else f"leave it out, --allow {names}, or give another --name"
        raise ConfigError(f"run {saved.name!r} exists and {told}: {remedy}")
    return changed


def with_data(run: Run, fingerprint: str, vocab: int) -> Run:
    """The run with what the data says: its fingerprint and, where the model leaves it open, the vocabulary."""
    model = run.model if run.model.vocab else replace(run.model, vocab=vocab)
    return replace(run, model=model, recipe=replace(run.recipe, data=fingerprint))
