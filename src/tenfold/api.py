"""From Python: `preset`, `train`, `load`. Everything that the command line does goes through here."""

import os
import platform
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tenfold import rundir
from tenfold.console import Display, Silent, Terminal
from tenfold.data.fetch import fetch_shakespeare
from tenfold.data.shards import Corpus, open_corpus
from tenfold.data.tokenizer import from_spec
from tenfold.errors import CheckpointError, ConfigError, DataError
from tenfold.evaluate.validation import validation_loss
from tenfold.files import write_atomically
from tenfold.generate import LanguageModel
from tenfold.hardware import Hardware, choose, detect
from tenfold.model.gpt import GPT
from tenfold.prepare import prepare_text
from tenfold.run import Run, from_dict, preset, reconcile, to_dict, with_data
from tenfold.training import checkpoint, fit, loop
from tenfold.training.health import Diverged
from tenfold.training.speed import Speed, resolve
from tenfold.training.trainer import Trainer, trainer_for
from tenfold.world import World, join, launched

__all__ = ["Trained", "load", "preset", "train"]

REQUEUE, INTERRUPTED = 75, 130  # exit codes after SIGTERM and Ctrl-C; both saved first
NOT_SOURCE = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__")
SIGNALS = {signal.SIGTERM: REQUEUE, signal.SIGINT: INTERRUPTED}


@dataclass(frozen=True)
class Trained:
    """What a call of `train` came to."""

    path: Path
    """The run folder."""
    step: int
    """Updates done."""
    val_loss: float | None
    """Last validation loss in nats a token, if there was one."""
    code: int
    """0, or 75 after SIGTERM, or 130 after Ctrl-C."""


def train(
    run: Run, *, stop_at: int | None = None, allow: Sequence[str] = (), display: Display | None = None
) -> Trained:
    """Train a run, or go on with it if its folder has checkpoints.

    stop_at: end early, at this step, without touching the schedule. allow: fields of the recipe ("recipe.lr") that may
    differ from the saved run's. Progress goes to `display`, by default the terminal. Raises a TenfoldError for whatever
    the user can mend: options that contradict each other or the saved run, data or a checkpoint that does not fit.
    """
    run = replace(run, name=run.name or run.preset)
    folder = rundir.folder_of(run.name)
    if stop_at is not None and stop_at < 1:
        raise ConfigError(f"--stop-at {stop_at}: give a step of at least 1")
    hardware = detect(run.speed.device)
    world = join(run.speed.device if run.speed.device != "auto" else hardware.kind)
    with ExitStack() as stack:
        shown = stack.enter_context((display or Terminal()) if world.lead else Silent())
        received = stack.enter_context(signals(shown))
        saved = None
        with world.lead_first() as lead:
            if lead:
                stack.enter_context(rundir.locked(folder))
            if (folder / "run.json").is_file():
                saved = from_dict(rundir.read_run(folder), f"{folder}/run.json")
            corpus = open_or_prepare(run, shown)
            run = fitted(run, corpus)
            changed = reconcile(saved, run, allow) if saved else {}
            if lead:
                corpus.train.check(run.model.vocab)
                corpus.val.check(run.model.vocab)
        speed, why = resolve(run.speed, run.model, run.recipe, hardware, world.size)
        trainer, resumed = build(run, speed, corpus, folder, world, shown)
        speed = replace(speed, rows=fit.fit(trainer, fixed=run.speed.rows != "auto"))
        if resumed:
            checkpoint.restore(trainer, resumed)
        report = partial(write_record, folder, shown) if world.lead else no_record
        if world.lead:
            facts = {
                "executed": asdict(speed),
                "vocabulary": corpus.tokenizer.spec(),
                "environment": environment(hardware, world),
            }
            rundir.write_run(folder, {**to_dict(run), **facts})
        report({"step": trainer.position, "event": "resume" if saved else "start"})
        for name, (was, now) in changed.items():
            report({"step": trainer.position, "event": "changed", "message": f"{name} changed from {was!r} to {now!r}"})
        shown.say(f"{'resuming' if resumed else 'training'} {run.name} in {folder}: {described(run, trainer)}")
        if why:
            shown.say(f"auto: {why}" + (f"; {speed.rows} rows a device fit" if run.speed.rows == "auto" else ""))
        shown.begin(trainer.position, run.recipe.steps)
        work = Work(run, corpus, folder, shown, report, trainer.position if resumed else -1)
        try:
            ending = loop.loop(trainer, run.cadence, work.table, report, stop_at, lambda: received[0])
        except Diverged as error:
            work.saver.settle()
            steps = checkpoint.saved_steps(folder / "checkpoints")
            last = f"the last good checkpoint is {steps[max(steps)]}" if steps else "there is no checkpoint yet"
            report({"step": trainer.position, "event": "stopped", "message": f"{error}; {last}"})
            raise Diverged(f"{error}; {last}") from None
        finally:
            trainer.batches.close()
            kept = work.saver.settle()
        if not kept:
            raise CheckpointError(
                f"{run.name} ended at step {trainer.position} but its last checkpoint could not be saved"
            )
        report({"step": trainer.position, "event": "done" if ending == loop.DONE else "stopped"})
        return Trained(folder, trainer.position, work.val_loss, ending if ending > loop.EARLY else 0)


def build(
    run: Run, speed: Speed, corpus: Corpus, folder: Path, world: World, shown: Display
) -> tuple[Trainer, Path | None]:
    """The trainer with initial weights or, if there is a checkpoint to go on from, that one's; and where it lies."""
    root = folder / "checkpoints"
    with world.lead_first() as lead:
        if lead:
            checkpoint.clear(root)
        latest = checkpoint.newest(root, shown.say)
    model = GPT(run.model)
    if latest:
        checkpoint.load_weights(model, latest)
    else:
        model.initialise(run.recipe.seed)
    return trainer_for(model, run.recipe, speed, corpus.train, world), latest


class Work:
    """What is done at each cadence of a run: the loop calls the rows of `table`."""

    def __init__(self, run: Run, corpus: Corpus, folder: Path, shown: Display, report: loop.Report, saved: int) -> None:
        self.run, self.corpus, self.folder, self.shown, self.report = run, corpus, folder, shown, report
        self.table: loop.Table = {"eval": self.validate, "sample": self.sample, "save": self.save}
        self.val_loss: float | None = None
        self.validated = -1
        cadence = run.cadence
        self.saver = checkpoint.Saver(folder / "checkpoints", cadence.keep, cadence.keep_every, self.not_saved)
        self.saved = saved
        """Step of the newest checkpoint, or -1."""

    def validate(self, trainer: Trainer) -> loop.Record:
        """The validation loss."""
        micro = max(1, trainer.split.micro, 4096 // trainer.split.length)
        with trainer.eager():
            self.val_loss = validation_loss(
                trainer.module,
                self.corpus.val,
                trainer.split.length,
                trainer.world,
                self.run.cadence.eval_rows,
                micro,
                trainer.autocast,
            )
        self.validated = trainer.position
        return {"val_loss": self.val_loss}

    def sample(self, trainer: Trainer) -> loop.Record:
        """Samples of the cadence's prompt, written to samples/; every process computes, the lead writes."""
        cadence = self.run.cadence
        model = LanguageModel(trainer.module, self.corpus.tokenizer, cadence.prompt, trainer.position)
        with trainer.eager():
            texts = [
                cadence.prompt + model.generate(cadence.prompt, cadence.sample_tokens, seed=self.run.recipe.seed + i)
                for i in range(cadence.samples)
            ]
        path = self.folder / "samples" / f"step-{trainer.position:06d}.txt"
        if trainer.world.lead and texts:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, "\n---\n".join(texts) + "\n")
            self.shown.sample(trainer.position, texts[0])
        return {"samples": f"samples/{path.name}"}

    def save(self, trainer: Trainer) -> loop.Record:
        """A checkpoint; the copy is made here, the writing goes on beside the training."""
        if self.saved == trainer.position:
            return {}  # a run that goes on ends where it began
        self.saved = trainer.position
        saved = checkpoint.snapshot(trainer)
        if self.validated == trainer.position:
            saved.state["val_loss"] = self.val_loss
        if trainer.world.lead:
            self.saver.save(saved)
        return {"event": "save"}

    def not_saved(self, error: CheckpointError) -> None:
        """A checkpoint could not be written; training goes on."""
        self.report({"step": self.saved, "event": "not saved", "message": str(error)})


def write_record(folder: Path, shown: Display, record: loop.Record) -> None:
    """A record for the metrics file and the console."""
    rundir.append(folder, record)
    shown.record(record)


def no_record(record: loop.Record) -> None:
    """What all processes but the lead do with a record."""


def fitted(run: Run, corpus: Corpus) -> Run:
    """The run with what its data says; ConfigError if the two do not fit together."""
    run = with_data(run, corpus.fingerprint, corpus.tokenizer.vocab)
    if corpus.tokenizer.vocab > run.model.vocab:
        raise ConfigError(
            f"the data in {corpus.path} has {corpus.tokenizer.vocab:,} token ids ({corpus.tokenizer.name}), "
            f"model.vocab is {run.model.vocab:,}; give --model.vocab 0 to take it from the data, or other --data"
        )
    if run.recipe.length > run.model.context:
        raise ConfigError(
            f"recipe.length {run.recipe.length} is more than model.context {run.model.context}; give at most that"
        )
    return run


def open_or_prepare(run: Run, shown: Display) -> Corpus:
    """The run's token shards; text that was given instead, or that a preset knows how to get, is prepared first."""
    path = Path(run.data)

    def make(source: Path, out: Path, **options: Any) -> Corpus:
        shown.say(f"preparing {source} as tokens ({run.tokenizer}) in {out}")
        prepare_text(source, out, run.tokenizer, report=shown.preparing, **options)
        return open_corpus(out)

    if (path / "manifest.json").exists():
        return open_corpus(path)
    if path.is_file():
        return make(path, Path("data") / f"{path.stem}-{run.tokenizer}")
    if run.data == preset("demo").data:
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        return make(stdlib, path, suffixes=(".py",), exclude=NOT_SOURCE, errors="replace")
    if run.data == preset("shakespeare-char").data:
        return make(fetch_shakespeare(), path)
    if path.is_dir():
        raise DataError(f"--data {path} holds no token shards (no manifest.json); make some with `tenfold prepare`")
    raise DataError(
        f"no data at {path}; give --data with a folder of token shards or a text file; "
        f"`tenfold prepare TEXT --out {path}` makes shards"
    )


@contextmanager
def signals(shown: Display) -> Iterator[list[int]]:
    """While training, SIGTERM and Ctrl-C only leave their exit code in the list that this gives; the loop then
    saves."""
    received = [0]

    def note(number: int, _: Any) -> None:
        if received[0] and not launched():  # launchers send a signal more than once
            raise KeyboardInterrupt
        if not received[0]:
            received[0] = SIGNALS[signal.Signals(number)]
            shown.say(f"{signal.Signals(number).name} received: saving, then stopping")

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def described(run: Run, trainer: Trainer) -> str:
    """A run in one line."""
    split, world = trainer.split, trainer.world.size
    return (
        f"{run.model.parameters:,} parameters, {run.recipe.rows} rows of {run.recipe.length} tokens a step "
        f"({split.accum} x {world} x {split.micro} rows), steps {trainer.position:,} to {run.recipe.steps:,}"
    )


def environment(hardware: Hardware, world: World) -> dict[str, Any]:
    """What is needed, besides the run's fields, to repeat it."""
    return {
        "versions": {
            "python": platform.python_version(),
            **{n: installed(n) for n in ("tenfold", "torch", "numpy", "safetensors", "gigatoken")},
        },
        "revision": revision(),
        "hardware": asdict(hardware),
        "processes": world.size,
        "platform": platform.platform(),
        "arguments": sys.argv[1:],
    }


def installed(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def revision() -> str | None:
    """Git revision of this package's source, with '+' if it was changed since; None if it does not lie in a
    checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        if not git("ls-files", "api.py"):
            return None  # an installed package inside somebody else's checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def load(path: str | os.PathLike[str], step: int | None = None, device: str = "auto") -> LanguageModel:
    """A trained model with its tokenizer: from a run by its name in runs/ or its path, at its newest checkpoint or
    the one of `step`, or from a checkpoint folder. CheckpointError if there is none, or it is damaged."""
    given = Path(path)
    folder = given if (given / checkpoint.STATE).is_file() else None
    run_folder = given.parent.parent if folder else rundir.find(str(path))
    steps = checkpoint.saved_steps(run_folder / "checkpoints")
    if folder is None:
        if step is not None and step not in steps:
            raise CheckpointError(
                f"{run_folder} has no checkpoint of step {step}; it has {', '.join(map(str, steps)) or 'none'}"
            )
        if not steps:
            raise CheckpointError(
                f"{run_folder} has no checkpoint yet; train it further, it saves at its end and when stopped"
            )
        folder = steps[max(steps) if step is None else step]
    if wrong := checkpoint.damage(folder):
        raise CheckpointError(
            f"checkpoint {folder} is damaged ({wrong}); use another one: {', '.join(map(str, steps))}"
        )
    saved = rundir.read_run(run_folder)
    run = from_dict(saved, f"{run_folder}/run.json")
    model = GPT(checkpoint.model_config(folder))
    checkpoint.load_weights(model, folder)
    model.to(choose(device)).eval()
    return LanguageModel(
        model, from_spec(saved["vocabulary"]), run.cadence.prompt, checkpoint.read_state(folder)["position"]
    )
