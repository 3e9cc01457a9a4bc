"""Weights from elsewhere as a run: it can be evaluated, sampled and trained on."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from tenfold import rundir
from tenfold.environment import environment
from tenfold.errors import ConfigError
from tenfold.exchange import compare
from tenfold.exchange.sources import open_source, origin
from tenfold.exchange.weights import Source, model_of, weights_of
from tenfold.hardware import look, reach
from tenfold.model.gpt import GPT
from tenfold.run import Run, preset, to_dict
from tenfold.training import checkpoint


def import_run(given: str, name: str, said: Callable[[str], None]) -> Path:
    """Make runs/NAME from what `open_source` finds, with one checkpoint, of step 0 and without moments; its folder.

    The logits of what was written are compared with the source's before run.json makes it a run. ConfigError if there
    is such a run already; CheckpointError if the weights are not those of a GPT-2 like ours.
    """
    folder = rundir.folder_of(name)
    with rundir.locked(folder):
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} exists; give another --name, or remove it")
        source = open_source(given)
        said(f"{source.said}: {source.model.parameters:,} parameters")
        for note in source.notes:
            said(f"note: {note}")
        run = first_run(given, name, source)
        try:
            saved = checkpoint.folder_at(folder / "checkpoints", 0)
            checkpoint.write(saved, snapshot(run, source))
            said(compared(source, saved))
            facts = {
                "vocabulary": source.vocabulary,
                "origin": origin(given, source),
                "environment": environment(look(reach("auto")), 1),
            }
            rundir.write_run(folder, {**to_dict(run), **facts})
        except BaseException:
            with contextlib.suppress(OSError):
                shutil.rmtree(folder / "checkpoints")
            raise
    return folder


def first_run(given: str, name: str, source: Source) -> Run:
    """The run of an import: the preset for fine-tuning with the source's shape, not trained on anything yet."""
    base = preset("finetune")
    recipe = replace(base.recipe, length=min(base.recipe.length, source.model.context))
    tokenizer = source.vocabulary["name"]
    return replace(base, name=name, init=given, model=source.model, recipe=recipe, tokenizer=tokenizer)


def snapshot(run: Run, source: Source) -> checkpoint.Snapshot:
    """A checkpoint of step 0: the weights, no moments, no loss scale."""
    state = {
        "format": rundir.FORMAT,
        "position": 0,
        "scale": {},
        "model": asdict(run.model),
        "recipe": asdict(run.recipe),
    }
    return checkpoint.Snapshot(weights_of(source), {}, state)


def compared(source: Source, saved: Path) -> str:
    """The logits of a written checkpoint against the source's: by transformers where it can read the source, else by a
    second reading of our own."""
    model = GPT(source.model).eval()
    checkpoint.load_weights(model, saved)
    ours = compare.logits(model)
    del model
    theirs = compare.transformers_logits(source.folder, source.model) if source.folder else None
    if theirs is not None:
        return compare.agreement(ours, theirs, "transformers' own model")
    return compare.agreement(ours, compare.logits(model_of(source)), "a second reading of the source by tenfold")
