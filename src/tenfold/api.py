"""From Python: `preset`, `train`, `load`, `import_run`, `export`. Everything that the command line does with runs goes
through here."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tenfold import heartbeat, rundir, signals, sinks
from tenfold.console import Display, Silent, Terminal
from tenfold.data.shards import Corpus
from tenfold.data.statistics import statistics
from tenfold.data.tokenizer import from_spec
from tenfold.datasets import fitted, open_or_prepare
from tenfold.environment import environment
from tenfold.errors import CheckpointError, ConfigError, DataError, HardwareError
from tenfold.evaluate.evaluation import tasks_of
from tenfold.exchange import hub
from tenfold.exchange.card import model_card
from tenfold.exchange.exporting import export as give_out
from tenfold.exchange.huggingface import huggingface_source
from tenfold.exchange.importing import import_run
from tenfold.exchange.sources import open_source, origin
from tenfold.exchange.weights import model_of, weights_of
from tenfold.generate import LanguageModel
from tenfold.hardware import Hardware, choose, detect
from tenfold.ladder.plan import memory_of
from tenfold.ladder.tune import recall
from tenfold.model.gpt import GPT
from tenfold.run import Run, check_preset, differences, from_dict, preset, reconcile, to_dict
from tenfold.track.logs import from_records
from tenfold.track.match import Match, dataset_facts, matching
from tenfold.track.verdict import by_signs, judge
from tenfold.training import checkpoint, fit, loop
from tenfold.training.prepare import probe_compile
from tenfold.training.signs import Signs, Unsound
from tenfold.training.speed import Speed, combined, resolve
from tenfold.training.start import check_head, check_start, check_weights
from tenfold.training.trainer import Trainer, trainer_for
from tenfold.training.vitals import Diverged, Vitals
from tenfold.work import Work
from tenfold.world import World, join, shares_launchers_store

__all__ = ["Trained", "export", "import_run", "load", "preset", "train"]

ROLLBACKS = 3  # to the same checkpoint, before they are given up
ROWS_MOVE = ("recipe.data", "recipe.rows", "recipe.length", "recipe.seed")  # changing one changes which rows come next


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
        if shares_launchers_store():
            told = "start it with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, as deploy/several_nodes.sh does"
            shown.say(f"warning: a node that fails and comes back would end this training; {told}")
        pulse = stack.enter_context(heartbeat.watched(world, run.cadence.lost, folder))
        with world.lead_first() as lead:
            if run.cadence.score:
                tasks_of(run.cadence.tasks)
            sinks.check(run.log)
            if lead:
                stack.enter_context(rundir.locked(folder))
            saved, facts = saved_run(folder), dict[str, Any]()
            if saved:
                check_preset(saved, run)
                facts = rundir.read_run(folder)
            elif run.init:
                run, facts = shaped(run)
            corpus = open_or_prepare(run, shown)
            check_tokenizer(facts.get("vocabulary"), corpus)
            run = fitted(run, corpus)
            changed = reconcile(saved, run, allow) if saved else {}
            if lead:
                corpus.train.check(run.model.vocab)
                corpus.val.check(run.model.vocab)
        received = stack.enter_context(signals.noted(shown.say))
        trainer, resumed = build(run, corpus, folder, hardware, world, shown)
        pulse.step = lambda: trainer.position
        if trainer.position >= run.recipe.steps and world.most(
            int(lead and rundir.ending(rundir.read_metrics(folder)) == "done")
        ):
            shown.say(f"{run.name} is done; a larger --recipe.steps with --allow recipe.steps goes on")
            trainer.batches.close()
            return Trained(folder, trainer.position, last_validation(folder), 0)
        report = Reporter(folder, shown, world.lead)
        with world.lead_first() as lead:
            if lead:
                write_run(run, trainer, corpus, folder, hardware, facts.get("origin"))
                report({"step": trainer.position, "event": "resume" if saved else "start"}, strict=True)
                report.sinks = stack.enter_context(sinks.Sinks(run.log, folder, trainer.position, shown.say))
        for name, (was, now) in changed.items():
            rows = "; which rows come next changes with it" if name in ROWS_MOVE else ""
            message = f"{name} changed from {was!r} to {now!r}{rows}"
            report({"step": trainer.position, "event": "changed", "message": message})
        known = followed(run, dataset_facts(corpus), shown)
        shown.begin(trainer.position, min(stop_at or run.recipe.steps, run.recipe.steps))
        work = Work(run, corpus, folder, shown, report, trainer.position if resumed else -1, known)
        untrained = not resumed and not run.init
        looked = partial(looked_after, trainer, run, work, report, untrained, hardware)
        ending = carry_out(trainer, run, work, report, stop_at, received, looked)
        if ending <= loop.EARLY:  # a signal wants the process gone
            conclude(known, run, folder, trainer.position, report)
        return Trained(folder, trainer.position, work.val_loss, ending if ending > loop.EARLY else 0)


def last_validation(folder: Path) -> float | None:
    """The last validation loss that the metrics of a run folder tell."""
    return next((r["val_loss"] for r in reversed(rundir.read_metrics(folder)) if "val_loss" in r), None)


def followed(run: Run, dataset: dict[str, Any], shown: Display) -> Match | None:
    """The published curve that the run is compared with at every validation, if there is one of its recipe. What is
    compared, or why a run that resembles one is not, is told."""
    match = matching(run, dataset)
    if match is None:
        return None
    if match.differences:
        shown.say(f"not compared with the published curve {match.curve.name}, which it resembles: {match.told()}")
        return None
    doubled = f"; its band is doubled: {match.validation}" if match.validation else ""
    shown.say(f"compared with the published curve {match.curve.name} at every validation{doubled}")
    return match


def conclude(known: Match | None, run: Run, folder: Path, position: int, report: "Reporter") -> None:
    """Record and tell how the run came out, all in all: against its curve, if it follows one, and by its signs."""
    records = rundir.read_metrics(folder)
    found = None
    if known:
        found = judge(known.curve, from_records(records), run.recipe.targets, bool(known.validation))
    more = f"; `tenfold check {run.name}` tells the likely causes and how to test them" if found and found.off else ""
    signs, wrong = by_signs(records) if run.signs != "off" else ([], False)
    if lines := [*(found.lines if found else ()), *signs]:
        off = wrong or bool(found and found.off)
        report({"step": position, "event": "verdict", "off": off, "message": "; ".join(lines) + more})


def saved_run(folder: Path) -> Run | None:
    """What run.json of a run folder says, if there is one."""
    return from_dict(rundir.read_run(folder), f"{folder}/run.json") if (folder / "run.json").exists() else None


def shaped(run: Run) -> tuple[Run, dict[str, Any]]:
    """A new run with the shape and the tokenizer of the weights that it begins from, and what run.json says of those;
    ConfigError if another shape was asked for."""
    source = open_source(run.init)
    if run.model not in (preset("finetune").model, source.model):
        was = differences(replace(run, model=source.model), run)
        told = "; ".join(f"{name} is {of_source!r} there, given {given!r}" for name, (of_source, given) in was.items())
        raise ConfigError(f"{source.said} has another shape: {told}; leave it to --init, as preset finetune does")
    run = replace(run, model=source.model, tokenizer=source.vocabulary["name"])
    return run, {"vocabulary": source.vocabulary, "origin": origin(run.init, source)}


def check_tokenizer(spec: dict[str, Any] | None, corpus: Corpus) -> None:
    """DataError if the weights were made with another tokenizer (by its spec; None is not known) than the data."""
    if spec is not None and spec != corpus.tokenizer.spec():
        raise DataError(
            f"the data in {corpus.path} was made by the tokenizer {corpus.tokenizer.name}, the weights know another "
            f"({spec.get('name')}{'' if spec.get('name') != 'chars' else ', of other text'}); prepare the text for that"
        )


def build(
    run: Run, corpus: Corpus, folder: Path, hardware: Hardware, world: World, shown: Display
) -> tuple[Trainer, Path | None]:
    """The trainer with initial weights or, if there is a checkpoint to go on from, that one's; and where it lies."""
    speed, why = executed(run, hardware, world, shown)
    root = folder / "checkpoints"
    with world.lead_first() as lead:
        if lead:
            checkpoint.clear(root)
        latest = checkpoint.newest(root, shown.say)
        position = checkpoint.read_state(latest)["position"] if latest else 0
        if lead:
            checkpoint.set_aside(root, position if latest else -1)
    same = replace(run, data="")  # shards may lie elsewhere on another machine; recipe.data is what they hold
    if not world.agree((position, to_dict(same), speed)):
        raise ConfigError(
            "the processes do not agree on the run, its newest checkpoint and what was tuned; start all of them with "
            "the same options, in folders that share runs/"
        )
    if position > run.recipe.steps:
        raise ConfigError(
            f"recipe.steps is {run.recipe.steps}, but {run.name} is at step {position}; give at least that"
        )
    if latest and checkpoint.model_config(latest) != run.model:  # heads, say, do not show in the shapes of weights
        raise CheckpointError(f"checkpoint {latest} is of another model than {folder}/run.json says; restore the file")
    try:
        model = GPT(run.model)
    except RuntimeError as error:
        if not fit.out_of_memory(error):
            raise
        raise HardwareError(
            f"a model of {run.model.parameters:,} parameters does not fit this machine's memory; take a smaller one"
        ) from None
    if latest:
        checkpoint.load_weights(model, latest)
    elif run.init:
        source = open_source(run.init)
        model.load_state_dict(weights_of(source))
        shown.say("; ".join((f"beginning from {source.said}", *source.notes)))
    else:
        model.initialise(run.recipe.seed)
    if run.signs != "off":
        signs = Signs(lambda sign: shown.say(sign["message"]), run.signs == "act")
        check_weights(model, world, position, signs, "they begin from different ones, each drawn by a seed of its own?")
    if world.device.type != "cpu":
        check_head(model.wte.weight, world.device)
    skip = run.on_nonfinite == "skip"
    trainer = trainer_for(model, run.recipe, speed, corpus.train, world, skip)
    if skip and speed.fused != "yes" and trainer.scale.value == 1.0:
        shown.say("--on-nonfinite skip: this optimizer is not fused, so each step waits for its gradient's norm")
    rows = fit.fit(trainer, fixed=run.speed.rows != "auto")
    if latest:
        checkpoint.restore(trainer, latest)
    shown.say(f"{'resuming' if latest else 'training'} {run.name} in {folder}: {described(run, trainer)}")
    if why:
        fewer = f"; {rows} rows at a time fit its memory" if rows != speed.rows else ""
        shown.say(f"auto: {why}{fewer}")
    trainer.speed = replace(speed, rows=rows)
    return trainer, latest


def executed(run: Run, hardware: Hardware, world: World, shown: Display) -> tuple[Speed, str]:
    """The run's speed with nothing left open, from what was tuned here or else the hardware table, and why so. A
    compiler that does not work is found by trying it: `auto` goes on without, a speed.compile that was given is refused
    with HardwareError."""
    tuned, stale = recall(run.model, run.recipe.length, hardware, run.speed)
    if stale:
        shown.say(stale)
    speed, why = resolve(run.speed, run.model, run.recipe, hardware, world.size, tuned.speed if tuned else None)
    if speed.parallel == "fsdp" and run.speed.rows == "auto" and hardware.kind != "cpu" and hardware.memory_bytes:
        # a process that runs out within FSDP's exchanges cannot try with fewer, so what is tried first is reckoned
        rows = world.least(memory_of(replace(run, speed=speed), hardware.memory_bytes, world.size).rows)
        speed = replace(speed, rows=max(1, min(rows, int(speed.rows))))
        why += f"; rows {speed.rows} at most by the memory that is reckoned"
    if speed.compile == "none":
        return speed, why
    missing = probe_compile(world.device, speed)
    if world.least(int(missing is None)):
        return speed, why
    missing = missing or "it failed on another process"
    if {run.speed.compile, run.speed.mode, run.speed.backend} != {"auto"}:
        raise HardwareError(
            f"speed.compile {speed.compile} does not work here: {missing}; mend that, or use none or auto"
        )
    shown.say(f"warning: torch.compile does not work here: {missing}; training goes on uncompiled")
    return replace(speed, compile="none", mode="default"), f"{why}; then compile none, as said above"


def write_run(
    run: Run, trainer: Trainer, corpus: Corpus, folder: Path, hardware: Hardware, came: dict[str, Any] | None
) -> None:
    """run.json: the run's fields, what `auto` became, the tokenizer, and what else is needed to repeat it, among it
    where weights that were not random came from."""
    facts = {
        "executed": asdict(trainer.speed),
        "vocabulary": corpus.tokenizer.spec(),
        "environment": environment(hardware, trainer.world.size),
        "dataset": dataset_facts(corpus),
        **({"origin": came} if came else {}),
    }
    rundir.write_run(folder, {**to_dict(run), **facts})


def carry_out(
    trainer: Trainer,
    run: Run,
    work: Work,
    report: "Reporter",
    stop_at: int | None,
    received: list[int],
    looked: Callable[[ThreadPoolExecutor], Vitals | None],
) -> int:
    """The loop, with the signs before and around it, and what must be said and done however it ends; why it ended."""
    told = None
    back = Counter[int]()
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="statistics") as reader:
            vitals = looked(reader)
            while True:
                try:
                    earlier = rundir.read_metrics(work.folder)
                    asked = partial(received.__getitem__, 0)
                    ending = loop.loop(trainer, run.cadence, work.table, report, stop_at, asked, vitals, earlier)
                    break
                except Diverged as error:
                    if run.on_nonfinite != "rollback":
                        raise
                    roll_back(trainer, run, work, report, error, back)
                    if vitals:
                        vitals.went_back()
    except (Diverged, Unsound) as error:
        work.saver.settle()
        steps = checkpoint.saved_steps(work.folder / "checkpoints")
        last = f"the last good checkpoint is {steps[max(steps)]}" if steps else "there is no checkpoint yet"
        step = error.step if isinstance(error, Diverged) else trainer.position
        row = trainer.batches.numbered(step) * run.recipe.rows
        rows = f"rows {row:,} to {row + run.recipe.rows - 1:,} of the data"
        told = f"{error}; position {trainer.position}, {rows}; {last}"
        raise type(error)(told) from None
    finally:
        trainer.batches.close()
        kept = work.saver.settle()
        if told:
            report({"step": trainer.position, "event": "stopped", "message": told})
    if not trainer.world.least(int(kept)):
        raise CheckpointError(
            f"{run.name} ended at step {trainer.position} but its last checkpoint could not be saved; make room, and "
            "the same command goes on from the one before"
        )
    report({"step": trainer.position, "event": "done" if ending == loop.DONE else "stopped"})
    return ending


def looked_after(
    trainer: Trainer,
    run: Run,
    work: Work,
    report: "Reporter",
    untrained: bool,
    hardware: Hardware,
    reader: ThreadPoolExecutor,
) -> Vitals | None:
    """The signs that are looked at while training; those before it have then been looked at. None if the user wants
    none."""
    if run.signs == "off":
        return None
    signs = Signs(report, acts=run.signs == "act")
    found = reader.submit(statistics, work.corpus)
    check_start(trainer, untrained, signs)
    tuned, _ = recall(run.model, run.recipe.length, hardware, run.speed)
    same = tuned is not None and combined(trainer.speed, replace(tuned.speed, rows="auto")) == trainer.speed
    rate = tuned.tokens_per_second if tuned and same else None
    return Vitals(trainer, signs, found, untrained, rate, partial(work.keep_rows, trainer))


def roll_back(trainer: Trainer, run: Run, work: Work, report: "Reporter", wrong: Diverged, back: Counter[int]) -> None:
    """Go back to the newest checkpoint, from there on without the rows of the step that went wrong; raises `wrong` if
    there is none, or it was gone back to often."""
    with trainer.world.lead_first() as lead:
        if lead:
            work.saver.settle()
        latest = checkpoint.newest(work.folder / "checkpoints", work.shown.say)
    position = checkpoint.read_state(latest)["position"] if latest else -1
    back[position] += 1
    if latest is None or back[position] > ROLLBACKS:
        raise wrong
    step = trainer.batches.numbered(wrong.step)
    skipped = {*trainer.batches.skipped, step}
    checkpoint.take_back(trainer, latest)
    trainer.batches.skip(skipped)
    work.saved, work.validated = position, -1
    steps = ", ".join(f"{step:,}" for step in trainer.batches.skipped)
    rows = f"the rows of step{'s' if len(skipped) > 1 else ''} {steps}"  # all: readers see the last of such lines only
    message = f"{wrong.what}: back to the checkpoint of step {position}; {rows} are left out from now on"
    report({"step": position, "event": "rollback", "message": message})


class Reporter:
    """Records go to the metrics file, the console and the sinks, of the lead only. A disk that takes no more is told
    once, and once when it does again, with the number of records that are missing."""

    def __init__(self, folder: Path, shown: Display, lead: bool) -> None:
        self.folder, self.shown, self.lead, self.missing = folder, shown, lead, 0
        self.sinks = sinks.Sinks((), folder, 0, shown.say)

    def __call__(self, record: loop.Record, strict: bool = False) -> None:
        if not self.lead or not record.keys() - {"step"}:
            return
        try:
            rundir.append(self.folder, {**record, **({"missing": self.missing} if self.missing else {})})
            if self.missing:
                self.shown.say(f"metrics.jsonl is written again; {self.missing} records before are missing")
            self.missing = 0
        except OSError as error:
            if strict:
                raise CheckpointError(f"{self.folder}/metrics.jsonl cannot be written: {error.strerror}") from None
            if not self.missing:
                self.shown.say(f"metrics.jsonl cannot be written ({error.strerror}); training goes on without it")
            self.missing += 1
        self.shown.record(record)
        self.sinks(record)


def described(run: Run, trainer: Trainer) -> str:
    """A run in one line."""
    split, world = trainer.split, trainer.world.size
    return (
        f"{run.model.parameters:,} parameters, {run.recipe.rows} rows of {run.recipe.length} tokens a step "
        f"({split.accum} x {world} x {split.micro} rows), steps {trainer.position:,} to {run.recipe.steps:,}"
    )


def find(path: str | os.PathLike[str], step: int | None = None) -> tuple[Path, Path]:
    """The run's folder and the checkpoint's that `load` reads; CheckpointError if there is none, or it is damaged."""
    given = Path(path).resolve()
    is_checkpoint = (given / checkpoint.STATE).is_file()
    run_folder = given.parent.parent if is_checkpoint else rundir.find(str(path))
    root = run_folder / "checkpoints"
    steps = checkpoint.saved_steps(root)
    if is_checkpoint:
        folder = given
    elif step is not None:
        if step not in steps:
            have = ", ".join(map(str, steps)) or "none"
            raise CheckpointError(f"{run_folder} has no checkpoint of step {step}; it has {have}")
        folder = steps[step]
    else:
        newest = checkpoint.newest(root, Terminal().say)
        if newest is None:
            raise CheckpointError(
                f"{run_folder} has no checkpoint yet; train it further, it saves at its end and when stopped"
            )
        folder = newest
    if (wrong := checkpoint.damage(folder)) is not None:
        others = ", ".join(f"--step {n}" for n, other in steps.items() if other.resolve() != folder.resolve()) or "none"
        raise CheckpointError(f"checkpoint {folder} is damaged ({wrong}); others are {others}")
    return run_folder, folder


def load(path: str | os.PathLike[str], step: int | None = None, device: str = "auto") -> LanguageModel:
    """A trained model with its tokenizer: from a run by its name in runs/ or its path, at its newest checkpoint or the
    one of `step`, from a checkpoint folder of a run, or from a folder of Hugging Face's form. CheckpointError if there
    is none, or it is damaged."""
    if (Path(path) / "config.json").is_file():
        source = huggingface_source(Path(path))
        return LanguageModel(model_of(source).to(choose(device)), from_spec(source.vocabulary), "", 0)
    run_folder, folder = find(path, step)
    saved = rundir.read_run(run_folder)
    run = from_dict(saved, f"{run_folder}/run.json")
    model = GPT(checkpoint.model_config(folder))
    checkpoint.load_weights(model, folder)
    model.to(choose(device)).eval()
    try:
        tokenizer = from_spec(saved["vocabulary"])
    except KeyError:
        raise CheckpointError(f"{run_folder}/run.json lacks the vocabulary; restore the file") from None
    prompt = run.cadence.prompt
    with contextlib.suppress(DataError):
        tokenizer.encode(prompt)
        return LanguageModel(model, tokenizer, prompt, checkpoint.read_state(folder)["position"])
    return LanguageModel(model, tokenizer, "", checkpoint.read_state(folder)["position"])


def export(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    form: str = "hf",
    step: int | None = None,
    push: str = "",
    display: Display | None = None,
) -> None:
    """Write a run's checkpoint, found as `load` finds it, for other programs: a folder for transformers (hf) with its
    tokenizer and a model card, or a GGUF file (gguf). `push` also sends the folder to that repository of the Hub."""
    if push and form != "hf":
        raise ConfigError(f"--push sends a folder of --format hf, not {form}; push that, or leave it out")
    shown = display or Terminal()
    run_folder, folder = find(path, step)
    model = load(folder, device="cpu")
    saved = rundir.read_run(run_folder)
    run = from_dict(saved, f"{run_folder}/run.json")
    card = model_card(run, saved, rundir.read_metrics(run_folder), model.step)
    give_out(model.model, model.tokenizer, Path(out), form, card, shown.say)
    shown.say(f"{path} is in {out}")
    if push:
        shown.say(f"pushed to {hub.push(Path(out), push)}")
