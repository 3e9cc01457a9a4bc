"""What is done at each cadence of a run: validate, score, sample, film, save. The loop calls the rows of
`Work.table`."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tenfold import film, rundir
from tenfold.console import Display
from tenfold.data.shards import Corpus
from tenfold.errors import CheckpointError, DataError, TenfoldError
from tenfold.evaluate.evaluation import evaluate, missing, tasks_of
from tenfold.evaluate.validation import validation_loss
from tenfold.files import write_atomically
from tenfold.generate import LanguageModel
from tenfold.run import Run
from tenfold.track.match import Match
from tenfold.track.verdict import compared
from tenfold.training import checkpoint, loop
from tenfold.training.trainer import Trainer

EVAL_TOKENS = 4096  # at least so many at a time, where a micro-step has fewer


class Work:
    """The functions of a run's cadences and what they remember: the last validation loss and the newest checkpoint."""

    def __init__(
        self,
        run: Run,
        corpus: Corpus,
        folder: Path,
        shown: Display,
        report: loop.Report,
        saved: int,
        known: Match | None = None,
    ) -> None:
        self.known = known
        """The published curve that validations are compared with."""
        self.run, self.corpus, self.folder, self.shown, self.report = run, corpus, folder, shown, report
        self.table: loop.Table = {
            "eval": self.validate,
            "score": self.score,
            "sample": self.sample,
            "film": self.film,
            "save": self.save,
        }
        self.filming = True
        """Whether nothing hindered the last snapshot of the film."""
        self.val_loss: float | None = None
        self.validated = -1
        self.saved = saved
        """Step of the newest checkpoint, or -1."""
        cadence = run.cadence
        self.saver = checkpoint.Saver(folder / "checkpoints", cadence.keep, cadence.keep_every, self.told)

    def validate(self, trainer: Trainer) -> loop.Record:
        """The validation loss, and how it stands against the curve that the run should follow."""
        length = trainer.split.length
        micro = max(1, trainer.split.micro, EVAL_TOKENS // length)
        with trainer.eager():
            self.val_loss = validation_loss(
                trainer.module,
                self.corpus.val,
                length,
                trainer.world,
                self.run.cadence.eval_rows,
                micro,
                trainer.autocast,
            )
        self.validated = at = trainer.position
        record: loop.Record = {"val_loss": self.val_loss}
        if self.known:
            widened = bool(self.known.validation)
            record |= compared(self.known.curve, at, at * self.run.recipe.targets, self.val_loss, widened)
        return record

    def score(self, trainer: Trainer) -> loop.Record:
        """What the model scores on the cadence's tasks: their figures with standard errors. If that cannot be, for want
        of data or because its text cannot be encoded, it is told once, and training goes on."""
        tasks = tasks_of(self.run.cadence.tasks)
        limit, tokenizer = self.run.cadence.score_items or None, self.corpus.tokenizer
        try:
            if told := missing(tasks, trainer.world):
                raise DataError(told)
            with trainer.eager():
                results = evaluate(trainer.module, tokenizer, tasks, trainer.world, limit, autocast=trainer.autocast)
        except TenfoldError as error:  # on every process: all of them read, encode and add up the same
            del self.table["score"]
            return {"event": "not scored", "message": f"{', '.join(tasks)} will not be scored: {error}"}
        return {
            f"{task}_{name}{suffix}": value
            for task, result in results.items()
            for name, figure in result.figures.items()
            for suffix, value in (("", figure.value), ("_error", figure.error))
        }

    def sample(self, trainer: Trainer) -> loop.Record:
        """Samples of the cadence's prompt, written to samples/. A prompt that cannot be encoded is told, not fatal."""
        cadence, sharded = self.run.cadence, trainer.speed.parallel == "fsdp"
        if not (cadence.samples and cadence.sample_tokens and (trainer.world.lead or sharded)):
            return {}
        model = LanguageModel(trainer.module, self.corpus.tokenizer, cadence.prompt, trainer.position)
        path = None
        try:
            with trainer.eager():
                seeds = [self.run.recipe.seed % 2**62 + i for i in range(cadence.samples)]
                pieces = list(model.streams(tokens=cadence.sample_tokens, seeds=seeds, to_the_end=sharded))
            texts = [cadence.prompt + "".join(row) for row in zip(*pieces, strict=True)]
            if trainer.world.lead:
                path = rundir.write_samples(self.folder, trainer.position, texts)
                self.shown.sample(trainer.position, texts[0])
        except TenfoldError as error:
            return {"event": "not sampled", "message": f"no sample: {error}; --cadence.prompt can be another"}
        except OSError as error:
            return {"event": "not sampled", "message": f"no sample: {error}; training goes on"}
        return {"samples": f"samples/{path.name}"} if path else {}

    def film(self, trainer: Trainer) -> loop.Record:
        """A snapshot of what every head looks at, written to film/. What hinders it is told once, and is not fatal."""
        if not (trainer.world.lead or trainer.speed.parallel == "fsdp"):
            return {}
        val, config = self.corpus.val, trainer.module.config
        try:
            ids = film.texts(val.read(0, min(film.LONGEST, len(val))), config.context)
            with trainer.eager():
                seen = film.look(trainer.module, ids, trainer.autocast)
            if not trainer.world.lead:
                return {}
            content = film.described(config, ids, self.corpus.tokenizer)
            path = film.record(self.folder, content, trainer.position, seen)
        except (TenfoldError, OSError) as error:
            told = f"no snapshot for the film: {error}; training goes on, and each next one is tried"
            was, self.filming = self.filming, False
            return {"event": "not filmed", "message": told} if was else {}
        self.filming = True
        return {"film": f"{path.parent.name}/{path.name}"}

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

    def keep_rows(self, trainer: Trainer, step: int, facts: dict[str, Any]) -> str:
        """Write the rows of a step to spikes/, each by where it begins in the training split and as text, with what is
        said of the step; where that is, for a message."""
        batches, split = trainer.batches, trainer.split
        path = self.folder / "spikes" / f"step-{step:06d}.json"
        if trainer.world.lead:
            numbers = batches.numbered(step) * split.rows + np.arange(split.rows)
            try:
                rows = [
                    {"start": start, "text": self.corpus.tokenizer.decode(batches.tokens.read(start, split.length))}
                    for start in batches.starts(numbers).tolist()
                ]
                path.parent.mkdir(exist_ok=True)
                write_atomically(path, json.dumps({"step": step, **facts, "rows": rows}, indent=1) + "\n")
            except (OSError, TenfoldError) as error:
                return f"; its rows could not be saved ({error})"
        return f"; its rows are in {path}"

    def told(self, step: int, failed: CheckpointError | None) -> None:
        """Checkpoints can no longer be written, or can again; training goes on either way."""
        if failed:
            paused = "saving is paused until that is mended: training goes on, and each next save is tried"
            self.report({"step": step, "event": "not saved", "message": f"{failed}; {paused}"})
        else:
            self.report({"step": step, "event": "saving again", "message": "the checkpoint is whole: saving goes on"})
