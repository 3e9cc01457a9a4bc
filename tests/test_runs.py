"""Whole trainings from Python: resume, checkpoints, what ends a run, and what it leaves behind."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tenfold
from conftest import TINY, TINY_RECIPE, environment
from tenfold import api, rundir, signals
from tenfold.data.shards import Corpus
from tenfold.errors import CheckpointError, ConfigError, TenfoldError
from tenfold.model.gpt import GPT
from tenfold.recipe import lr_at
from tenfold.reference.curves import curves
from tenfold.run import Cadence, Run
from tenfold.track.match import Match
from tenfold.training import checkpoint, fit, loop
from tenfold.training.trainer import Step, Trainer
from tenfold.world import World
from training import EXACT


class Recorder(api.Silent):
    """A display that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.records: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def record(self, record: dict[str, Any]) -> None:
        self.records.append(record)


@pytest.fixture
def run(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of 20 steps in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Run(
        model=TINY,
        recipe=TINY_RECIPE,
        speed=replace(EXACT, rows="auto"),
        cadence=Cadence(log=1, eval=10, sample=0, save=5),
        preset="tiny",
        name="tiny",
        data=str(corpus.path),
    )


def train(run: Run, **options: Any) -> api.Trained:
    """Train without printing."""
    return tenfold.train(run, display=options.pop("display", Recorder()), **options)


def weights(path: Path, step: int) -> dict[str, torch.Tensor]:
    """Weights of a checkpoint."""
    return load_file(path / "checkpoints" / f"step-{step:06d}" / "model.safetensors")


def by_step(path: Path, key: str) -> dict[int, float]:
    """One of the metrics by step."""
    return {r["step"]: r[key] for r in rundir.read_metrics(path) if key in r}


@pytest.mark.parametrize("parallel", ["none", "fsdp"])
def test_resumed_equals_uninterrupted_bit_for_bit(run: Run, parallel: str) -> None:
    """10 steps, a stop and 10 more are 20 steps: the same losses, learning rates, validation losses and weights, also
    where a validation, which under FSDP2 leaves parameters gathered, comes right before a checkpoint."""
    run = replace(run, speed=replace(run.speed, parallel=parallel))
    whole = train(replace(run, name="whole"))
    part = train(run, stop_at=10)
    assert (part.step, rundir.state(part.path)) == (10, "stopped")
    part = train(run)
    assert (part.step, rundir.state(part.path)) == (20, "done")
    for key in ("loss", "lr", "grad_norm", "val_loss"):
        assert by_step(part.path, key) == by_step(whole.path, key)
    assert set(by_step(part.path, "loss")) == set(range(20))
    assert set(by_step(part.path, "val_loss")) == {0, 10, 20}
    for step in (10, 20):
        a, b = weights(whole.path, step), weights(part.path, step)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
        files = [path / "checkpoints" / f"step-{step:06d}" / "model.safetensors" for path in (whole.path, part.path)]
        assert files[0].read_bytes() == files[1].read_bytes()  # the bytes depend on the weights alone
    assert part.val_loss is not None
    assert part.val_loss < by_step(part.path, "val_loss")[0] - 0.5


def test_another_total_changes_the_schedule_only_when_it_is_allowed_and_is_logged(run: Run) -> None:
    """T15: a run goes on with the saved schedule; another total is refused, or allowed by its name and on record."""
    saved, other = run.recipe, replace(run.recipe, steps=40)
    train(run, stop_at=8)
    with pytest.raises(ConfigError, match=r"recipe\.steps was 20, given 40: leave it out, --allow recipe\.steps"):
        train(replace(run, recipe=other))
    train(run, stop_at=12)
    done = train(replace(run, recipe=other), stop_at=16, allow=("recipe.steps",))
    want = {step: lr_at(saved if step < 12 else replace(other, data="x"), step) for step in range(16)}
    assert by_step(done.path, "lr") == pytest.approx(want)
    assert want[14] > 1.2 * lr_at(saved, 14)
    changed = [r for r in rundir.read_metrics(done.path) if r.get("event") == "changed"]
    assert [(r["step"], r["message"]) for r in changed] == [(12, "recipe.steps changed from 20 to 40")]
    assert rundir.read_run(done.path)["recipe"]["steps"] == 40


def test_stopping_leaves_the_schedule_alone(run: Run) -> None:
    done = train(run, stop_at=3)
    saved = rundir.read_run(done.path)
    assert saved["recipe"]["steps"] == 20
    assert by_step(done.path, "lr")[2] == pytest.approx(3e-3 * 3 / 4)


def test_a_changed_field_is_refused_unless_it_is_allowed(run: Run) -> None:
    train(run, stop_at=5)
    other = replace(run, recipe=replace(run.recipe, lr=1e-3))
    with pytest.raises(ConfigError, match=r"recipe\.lr was 0\.003, given 0\.001: leave it out, --allow recipe\.lr"):
        train(other)
    told = Recorder()
    train(other, stop_at=7, allow=("recipe.lr",), display=told)
    assert any("recipe.lr changed from 0.003 to 0.001" in r.get("message", "") for r in told.records)
    assert rundir.read_run(Path("runs/tiny"))["recipe"]["lr"] == 1e-3
    with pytest.raises(ConfigError, match=r"'recipe\.ls' is no field, did you mean 'recipe\.l"):
        train(other, allow=("recipe.ls",))
    with pytest.raises(ConfigError, match=r"model\.layers was 2, given 3.*another --name"):
        train(replace(other, model=replace(TINY, layers=3)))
    with pytest.raises(ConfigError, match=r"the model belongs to its weights"):
        train(replace(other, model=replace(TINY, layers=3)), allow=("model.layers",))
    with pytest.raises(ConfigError, match="started from preset 'tiny', not 'demo'"):
        train(replace(other, preset="demo"))


def test_speed_and_cadence_may_differ_on_resume(run: Run) -> None:
    train(run, stop_at=5)
    train(
        replace(run, speed=replace(run.speed, attention="naive", rows=2), cadence=replace(run.cadence, save=1)),
        stop_at=7,
    )
    assert rundir.read_run(Path("runs/tiny"))["executed"]["rows"] == 2


def test_other_data_is_refused_by_its_fingerprint(run: Run, corpus: Corpus, tmp_path: Path) -> None:
    train(run, stop_at=5)
    shutil.copytree(corpus.path, tmp_path / "moved")
    train(replace(run, data=str(tmp_path / "moved")), stop_at=6)  # the same data may lie elsewhere
    text = tmp_path / "other.txt"
    text.write_text("other words " * 5000)
    with pytest.raises(ConfigError, match=r"recipe\.data was '\w+', given '\w+'"):
        train(replace(run, data=str(text), tokenizer="bytes"))


def test_a_loss_that_is_not_finite_stops_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5: the last good checkpoint stays, nothing is saved of the bad state, and step and position are told."""
    plain = Trainer.step

    def spoiled(self: Trainer) -> Step:
        step = plain(self)
        return step._replace(loss=step.loss * float("nan")) if self.position == 8 else step

    monkeypatch.setattr(Trainer, "step", spoiled)
    with pytest.raises(TenfoldError, match=r"step 7: loss nan.*training stopped") as caught:
        train(run)
    assert "step-000005" in str(caught.value)
    assert list(checkpoint.saved_steps(Path("runs/tiny/checkpoints"))) == [5]
    assert rundir.state(Path("runs/tiny")) == "stopped"
    assert rundir.read_metrics(Path("runs/tiny"))[-1]["event"] == "stopped"
    monkeypatch.setattr(Trainer, "step", plain)
    assert train(run).step == 20


def test_learning_by_heart_is_noticed_and_the_best_checkpoint_kept(run: Run, tmp_path: Path) -> None:
    """T47: a few words seen over and over: training loss falls, validation rises."""
    text = tmp_path / "few.txt"
    text.write_text("".join(f"{i * i % 97} " for i in range(150)))
    cadence = replace(run.cadence, log=10, eval=10, save=10, keep=1, patience=3)
    recipe = replace(run.recipe, steps=400, lr=1e-2, warmup=0, lr_end=1e-2)
    few = replace(run, data=str(text), tokenizer="bytes", recipe=recipe, cadence=cadence)
    told = Recorder()
    done = train(replace(few, cadence=replace(cadence, stop_early=True)), display=told)
    losses = by_step(done.path, "val_loss")
    best = min(losses, key=losses.__getitem__)
    assert done.step < 400
    assert any("has not improved for 3 evaluations" in r.get("message", "") for r in told.records)
    assert best in checkpoint.saved_steps(done.path / "checkpoints")
    assert losses[best] < by_step(done.path, "val_loss")[max(losses)]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "state", "another", "renamed"])
def test_a_damaged_newest_checkpoint_is_passed_over_aloud(run: Run, damage: str) -> None:
    done = train(run, stop_at=12)
    newest = done.path / "checkpoints" / "step-000012"
    file = newest / "model.safetensors"
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "flip":
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(content)
    elif damage == "remove":
        (newest / "optimizer.safetensors").unlink()
    elif damage == "state":
        (newest / "state.json").write_text('{"format": 1, "posi')
    else:  # whole, but of another step than its name says
        shutil.rmtree(newest)
        five = done.path / "checkpoints" / "step-000005"
        five.rename(newest) if damage == "renamed" else shutil.copytree(five, newest)
    with pytest.raises(CheckpointError, match=r"step-000012 is damaged.*others are (--step 5, )?--step 10"):
        tenfold.load(done.path, step=12)
    assert tenfold.load(done.path).step == 10  # said aloud, on standard error
    told = Recorder()
    train(run, stop_at=13, display=told)
    assert any("step-000012 is damaged" in line and "the one before is used" in line for line in told.lines)
    assert any("steps 10 to 20" in line for line in told.lines)


def test_where_no_checkpoint_is_whole_that_is_told(run: Run) -> None:
    done = train(run, stop_at=7)
    for folder in checkpoint.saved_steps(done.path / "checkpoints").values():
        (folder / "state.json").write_text("{")
    told = Recorder()
    train(run, stop_at=8, display=told)
    damaged = [line for line in told.lines if "is damaged" in line]
    assert [line.rpartition("; ")[2] for line in damaged] == ["the one before is used", "no other is left"]
    assert "step-000007 is damaged (state.json is damaged (" in damaged[0]
    assert "another --name" not in "".join(damaged)  # which is asked for where run.json is damaged
    assert any("training tiny" in line and "steps 0 to 20" in line for line in told.lines)


def test_damaged_checkpoints_never_displace_good_ones(run: Run) -> None:
    """With one kept and the newest damaged, going on to an earlier step keeps that step."""
    done = train(run)
    root = done.path / "checkpoints"
    (root / "step-000020" / "model.safetensors").write_bytes(b"nothing")
    (root / "step-000099").mkdir()
    part = train(replace(run, cadence=replace(run.cadence, keep=1, eval=0)), stop_at=17)
    assert part.step == 17
    assert 17 in checkpoint.saved_steps(root)
    assert tenfold.load(done.path).step == 17
    assert {path.name for path in root.glob("*.damaged")} == {"step-000020.damaged", "step-000099.damaged"}


def test_a_prompt_that_cannot_be_encoded_is_told_not_fatal(run: Run, tmp_path: Path) -> None:
    text = tmp_path / "few.txt"
    text.write_text("abc " * 500)
    told = Recorder()
    given = replace(run, data=str(text), tokenizer="chars", model=replace(TINY, vocab=0, padded_vocab=0))
    given = replace(given, cadence=replace(given.cadence, sample=10, prompt="xyz", sample_tokens=5))
    done = train(given, stop_at=3, display=told)
    assert done.step == 3
    assert any("no sample: the character 'x'" in r.get("message", "") for r in told.records)
    assert tenfold.load("tiny").generate(tokens=5)  # begins at end-of-text then
    text.unlink()  # what was prepared from it is what the run goes on with
    assert train(replace(given, data=rundir.read_run(done.path)["data"]), stop_at=5).step == 5


def test_ids_beyond_the_tokenizer_are_never_drawn(run: Run, tmp_path: Path) -> None:
    """A model with a wider vocabulary than its data's tokenizer has."""
    text = tmp_path / "few.txt"
    text.write_text("abc\n" * 500)
    given = replace(
        run, data=str(text), tokenizer="chars", cadence=replace(run.cadence, sample=1, sample_tokens=300, samples=1)
    )
    done = train(given, stop_at=1)
    assert set((done.path / "samples" / "step-000000.txt").read_text()) <= set("abc\n")


def test_fewer_steps_than_were_done_are_refused(run: Run) -> None:
    train(run, stop_at=10)
    with pytest.raises(ConfigError, match=r"recipe\.steps is 5, but tiny is at step 10"):
        train(replace(run, recipe=replace(run.recipe, steps=5)), allow=("recipe.steps",))


def test_a_second_sigterm_changes_nothing_and_a_second_ctrl_c_leaves() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with signals.noted(Recorder().say) as received:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            assert received == [75]
        os.kill(os.getpid(), signal.SIGTERM)  # while the process ends, too
        with pytest.raises(KeyboardInterrupt), signals.noted(Recorder().say):  # noqa: PT012
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_checkpoint_of_another_model_is_refused(run: Run) -> None:
    done = train(run, stop_at=5)
    with pytest.raises(CheckpointError, match=r"is of another model: h\.2.* is missing, the model has"):
        checkpoint.load_weights(GPT(replace(TINY, layers=3)), done.path / "checkpoints" / "step-000005")
    with pytest.raises(
        CheckpointError, match=r"is of another model: .*wpe\.weight is \(32, 32\), the model has \(16, 32\)"
    ):
        checkpoint.load_weights(GPT(replace(TINY, context=16)), done.path / "checkpoints" / "step-000005")


def test_checkpoints_are_plain_files_with_plain_names(run: Run) -> None:
    """Canonical names also from a compiled model under DDP, and nothing that needs unpickling."""
    done = train(replace(run, speed=replace(run.speed, parallel="ddp", recompute="blocks")), stop_at=5)
    folder = done.path / "checkpoints" / "step-000005"
    assert sorted(p.name for p in folder.iterdir()) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    assert set(weights(done.path, 5)) == set(GPT(TINY).state_dict())
    json.loads((folder / "state.json").read_text())
    assert b"pickle" not in b"".join(p.read_bytes() for p in folder.iterdir())


def test_a_model_trained_under_fsdp_goes_on_alone_and_under_ddp(run: Run) -> None:
    whole = train(replace(run, name="whole"))
    for parallel, stop in (("fsdp", 7), ("none", 14), ("ddp", None)):
        part = train(replace(run, speed=replace(run.speed, parallel=parallel)), stop_at=stop)
    assert list(by_step(part.path, "loss").values()) == pytest.approx(
        list(by_step(whole.path, "loss").values()), rel=1e-6
    )


def test_old_checkpoints_go_and_the_best_and_every_mth_stay(tmp_path: Path) -> None:
    for step, loss in ((5, 3.0), (10, 1.0), (15, None), (20, 2.0), (25, 2.5), (30, 2.6)):
        folder = checkpoint.folder_at(tmp_path, step)
        folder.mkdir()
        (folder / "state.json").write_text(json.dumps({"format": 1, "val_loss": loss}))
    checkpoint.prune(tmp_path, keep=2, keep_every=15)
    assert list(checkpoint.saved_steps(tmp_path)) == [10, 15, 25, 30]


KILL = """
import os, sys, threading, torch
from pathlib import Path
from tenfold.training import checkpoint
w, m = {"w": torch.ones(4_000_000)}, {"m": torch.ones(4_000_000)}
first, snap = (checkpoint.Snapshot(w, m, {"format": 1, "position": step}) for step in (1, 2))
root = Path(sys.argv[1])
checkpoint.write(checkpoint.folder_at(root, 1), first)
print("ready", flush=True)
while True:
    checkpoint.write(checkpoint.folder_at(root, 2), snap)
"""

DIE_AT = """checkpoint.write(checkpoint.folder_at(root, 2), snap)
left = int(sys.argv[2])
def die(event, args):
    global left
    if event in ("os.remove", "os.rmdir", "os.rename"):
        left -= 1
        if left == 0:
            os._exit(9)
sys.addaudithook(die)
for _ in range(1):"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_a_kill_while_saving_leaves_whole_checkpoints(tmp_path: Path, delay: float) -> None:
    """T16: whatever the moment, what has a checkpoint's name loads, and what is half-written goes at the next start."""
    process = subprocess.Popen([sys.executable, "-c", KILL, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(delay)
    process.kill()
    process.wait(timeout=30)
    process.stdout.close()
    for folder in checkpoint.saved_steps(tmp_path).values():
        assert checkpoint.damage(folder) is None
    assert 1 in checkpoint.saved_steps(tmp_path)
    checkpoint.clear(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} <= {"step-000001", "step-000002"}


@pytest.mark.timeout(120)
def test_a_checkpoint_that_is_written_again_is_never_seen_half_removed(tmp_path: Path) -> None:
    """Killed at each call that removes or renames something: what has a checkpoint's name is whole."""
    dying = KILL.replace("while True:", DIE_AT) + "os._exit(0)\n"
    for call in range(1, 9):
        root = tmp_path / str(call)
        done = subprocess.run([sys.executable, "-c", dying, root, str(call)], timeout=60, capture_output=True)
        assert done.stdout == b"ready\n", done.stderr
        assert all(checkpoint.damage(folder) is None for folder in checkpoint.saved_steps(root).values())
        if done.returncode == 0:  # got through: every call before has been tried
            assert call > 4
            return
        assert done.returncode == 9
    pytest.fail("more calls than expected")


class Filler(Recorder):
    """Fills a disk as step 14 of a training is told, once the checkpoint of step 10 is whole, and frees it at 44; what
    is wrong with checkpoints then is in `wrong`."""

    def __init__(self, disk: Path) -> None:
        super().__init__()
        self.disk, self.wrong = disk, list[str | None]()

    def record(self, record: dict[str, Any]) -> None:
        super().record(record)
        root, filler = Path("runs/tiny/checkpoints"), self.disk / "filler"
        if "loss" in record and record["step"] == 14:
            end = time.monotonic() + 20
            while not (root / "step-000010").exists() and time.monotonic() < end:
                time.sleep(0.001)
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 12)):
                    pass
        if "loss" in record and record["step"] == 44:
            self.wrong = [checkpoint.damage(folder) for folder in checkpoint.saved_steps(root).values()]
            filler.unlink()


def test_a_full_disk_pauses_saving_until_there_is_room(
    run: Run, small_disk: "Callable[..., Path]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16: the disk fills while training goes on. Saving and the log pause, each told once, with what is needed and
    free, at the save that found it; no checkpoint is harmed. With room again both go on, each told once, and the end is
    as if nothing had been."""
    monkeypatch.chdir(small_disk(8))
    told = Filler(Path.cwd())
    done = train(replace(run, recipe=replace(run.recipe, steps=60), cadence=replace(run.cadence, eval=0)), display=told)
    assert (done.step, done.code, rundir.state(done.path)) == (60, 0, "done")
    paused, again = (
        [(i, r["step"], r["message"]) for i, r in enumerate(told.records) if r.get("event") == event]
        for event in ("not saved", "saving again")
    )
    assert [step for _, step, _ in paused] == [15]
    assert re.search(r"could not be saved \(1\.\d MB are needed, 0\.\d MB are free\); free some space", paused[0][2])
    assert "saving is paused until that is mended: training goes on" in paused[0][2]
    assert not any(r["step"] > 15 for r in told.records[: paused[0][0]])  # told at once, not when the next is due
    assert [step for _, step, _ in again] == [45]
    assert (told.wrong, [checkpoint.damage(f) for f in checkpoint.saved_steps(done.path / "checkpoints").values()]) == (
        [None, None],
        [None, None, None],
    )
    assert not list((done.path / "checkpoints").glob(".*"))
    lines = [line for line in told.lines if "metrics.jsonl" in line]
    assert len(lines) == 2
    assert "metrics.jsonl cannot be written (No space left on device); training goes on" in lines[0]
    missing = int(re.search(r"metrics\.jsonl is written again; (\d+) records before are missing", lines[1])[1])  # type: ignore[index]
    logged = rundir.read_metrics(done.path)
    assert missing == len(told.records) - len(logged) > 10
    assert sum(r.get("missing", 0) for r in logged) == missing
    assert [r["step"] for r in logged if "loss" in r][-15:] == list(range(45, 60))


def test_half_a_line_spoils_no_later_one(run: Run, small_disk: "Callable[..., Path]") -> None:
    """A record that fits only in part is lost alone, and told again when it happens a second time."""
    folder, told = small_disk() / "tiny", Recorder()
    folder.mkdir()
    report = api.Reporter(folder, told, True)
    filler, long = folder.parent / "filler", "x" * 10_000  # more than a page, which a file system gives out whole
    for step in (0, 2):
        report({"step": step, "loss": 1.0})
        filler.write_bytes(bytes(2**20 - (1 << 14)))
        with contextlib.suppress(OSError), (folder / "rest").open("wb", buffering=0) as rest:
            while rest.write(bytes(1 << 12)):
                pass
        os.truncate(folder / "rest", (folder / "rest").stat().st_size - (1 << 12))
        report({"step": step + 1, "message": long})
        report({"step": step + 1, "message": long})
        filler.unlink()
        (folder / "rest").unlink()
    report({"step": 4, "loss": 1.0})
    assert [(r["step"], r.get("missing")) for r in rundir.read_metrics(folder)] == [(0, None), (2, 2), (4, 2)]
    raw = (folder / "metrics.jsonl").read_text().splitlines()
    assert sum(long[:100] in line for line in raw) >= 2  # halves lie there
    assert ["cannot" in line for line in told.lines] == [True, False, True, False]


def test_a_full_disk_is_told_and_training_goes_on(
    run: Run, small_disk: "Callable[..., Path]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16: the checkpoint that fits stays good; later ones are told once, also if the disk turns out to be full while
    they are written; the end, unsaved, is an error."""
    monkeypatch.chdir(small_disk())
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))  # type: ignore[attr-defined]
    told = Recorder()
    with pytest.raises(CheckpointError, match="ended at step 20 but its last checkpoint could not be saved; make room"):
        train(replace(run, cadence=replace(run.cadence, save=3, keep=10)), display=told)
    messages = [r["message"] for r in told.records if r.get("event") == "not saved"]
    assert len(messages) == 1
    assert "No space left" in messages[0]
    assert "earlier checkpoints are untouched" in messages[0]
    root = Path("runs/tiny/checkpoints")
    kept = checkpoint.saved_steps(root)
    assert kept
    assert all(checkpoint.damage(folder) is None for folder in kept.values())
    assert not list(root.glob(".*"))


def test_a_full_disk_at_the_start_is_told(
    run: Run, small_disk: "Callable[..., Path]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is named, whatever the system says of where it had no room."""
    monkeypatch.chdir(disk := small_disk())
    Path("runs/tiny").mkdir(parents=True)
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass
    with pytest.raises(CheckpointError, match=r"^runs/tiny/run\.json cannot be written \(No space left on device\)"):
        train(run)


def test_too_little_space_is_seen_before_writing(run: Run, small_disk: "Callable[..., Path]", tmp_path: Path) -> None:
    folder = checkpoint.folder_at(small_disk(), 1)
    saved = checkpoint.Snapshot({"w": torch.ones(1_000_000)}, {}, {"format": 1, "position": 1})
    with pytest.raises(CheckpointError, match=r"5\.0 MB are needed, 1\.0 MB are free\); free some space"):
        checkpoint.write(folder, saved)
    assert not list(folder.parent.iterdir())


def test_two_processes_cannot_train_into_one_folder(run: Run) -> None:
    with rundir.locked(Path("runs/tiny")), pytest.raises(ConfigError, match="is being trained by another process"):
        train(run)


def test_who_is_refused_leaves_the_folder_to_who_holds_it(run: Run) -> None:
    """Nothing lies in it yet, as while data is prepared: whoever comes then is refused, and whoever comes next, too."""
    with rundir.locked(Path("runs/tiny")):
        for _ in range(2):
            with pytest.raises(ConfigError, match="is being trained by another process"):
                train(run)
            assert Path("runs/tiny").is_dir()
    assert not Path("runs/tiny").exists()


ONE_BY_ONE = """
import os, sys
from pathlib import Path
from tenfold import rundir
from tenfold.errors import ConfigError
run = Path(sys.argv[1])
for _ in range(500):
    try:
        with rundir.locked(run):
            os.close(os.open(run.with_name("mine"), os.O_CREAT | os.O_EXCL))
            run.with_name("mine").unlink()
    except ConfigError as error:
        assert "is being trained by another process" in str(error)
"""


@pytest.mark.timeout(60)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_of_processes_that_start_at_once_one_at_a_time_has_the_folder(tmp_path: Path) -> None:
    """Each finds the folder, or makes it, and removes it as it ends, while another has it in its hand."""
    command = [sys.executable, "-c", ONE_BY_ONE, tmp_path / "run"]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    told = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], told


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_signals_save_first(run: Run, number: signal.Signals, code: int) -> None:
    plain = loop.begin_copy
    sent = []

    def send(step: Step, late: bool) -> Any:
        if len(sent) < 1:
            sent.append(os.kill(os.getpid(), number))
        return plain(step, late)

    loop.begin_copy = send
    try:
        done = train(run)
    finally:
        loop.begin_copy = plain
    assert (done.code, done.step, rundir.state(done.path)) == (code, 1, "stopped")
    assert list(checkpoint.saved_steps(done.path / "checkpoints")) == [1]
    assert train(run).step == 20


def test_rows_are_halved_until_they_fit(run: Run, corpus: Corpus) -> None:
    """A limit that only a trial shows: halved, accumulated, and the rows a step stay."""
    alone = World(0, 1, torch.device("cpu"))
    tried = []

    def trial(rows: int) -> None:
        tried.append(rows)
        if rows > 5:
            raise torch.OutOfMemoryError("out of memory")

    assert fit.largest(trial, 32, alone) == 4
    assert tried == [32, 16, 8, 4]
    with pytest.raises(TenfoldError, match=r"speed\.rows 8 does not fit.*such as 4"):
        fit.largest(trial, 8, alone, fixed=True)

    def never(rows: int) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.00 GiB of which 1.50 GiB "
            "is free."
        )

    told = r"not even one row fits the device's memory \(2\.00 GiB more were asked for, 1\.50 GiB were free\); use"
    with pytest.raises(TenfoldError, match=told):
        fit.largest(never, 8, alone)

    for words in ("DefaultCPUAllocator: not enough memory: you", "DefaultCPUAllocator: can't allocate memory: you"):
        assert fit.out_of_memory(RuntimeError(f"{words} tried to allocate 9 bytes"))
        assert fit.shortage(f"{words} tried to allocate 9 bytes") == " (9 bytes more were asked for)"

    def broken(rows: int) -> None:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        fit.largest(broken, 8, alone)


def test_the_run_folder_says_everything(run: Run) -> None:
    done = train(replace(run, cadence=replace(run.cadence, sample=10, sample_tokens=20, prompt="ba")))
    saved = rundir.read_run(done.path)
    assert saved["recipe"]["data"]
    assert saved["environment"]["versions"]["torch"] == torch.__version__
    assert saved["environment"]["hardware"]["kind"] == "cpu"
    assert saved["environment"]["processes"] == 1
    assert saved["executed"]["rows"] == 8
    assert {p.name for p in (done.path / "samples").iterdir()} == {f"step-0000{n}.txt" for n in ("00", "10", "20")}
    assert (done.path / "samples" / "step-000020.txt").read_text().startswith("ba")
    lines = [json.loads(line) for line in (done.path / "metrics.jsonl").read_text().splitlines()]
    logged = [r for r in lines if "loss" in r]
    assert [r["step"] for r in logged] == list(range(20))
    assert {"step", "loss", "lr", "grad_norm", "tokens_per_second", "data_wait", "peak_memory_bytes"} <= set(logged[3])
    assert 0 <= logged[3]["data_wait"] < 1
    assert [lines[i]["event"] for i in (0, -2, -1)] == ["start", "done", "verdict"]


def test_metrics_that_were_taken_back_are_dropped(tmp_path: Path) -> None:
    for record in ({"step": 0, "loss": 3.0}, {"step": 1, "loss": float("nan")}, {"step": 2, "loss": 1.0}):
        rundir.append(tmp_path, record)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')  # a crash in the middle of a line
    rundir.append(tmp_path, {"step": 1, "event": "resume"})
    rundir.append(tmp_path, {"step": 1, "loss": 2.5})
    got = [(r["step"], r.get("loss")) for r in rundir.read_metrics(tmp_path)]
    assert got == [(0, 3.0), (1, None), (1, 2.5)]


def test_a_loaded_model_generates(run: Run) -> None:
    done = train(run, stop_at=5)
    model = tenfold.load("tiny")
    assert model.step == 5
    text = model.generate("ba", tokens=20, temperature=0)
    assert text == tenfold.load(done.path / "checkpoints" / "step-000005").generate("ba", tokens=20, temperature=0)
    with pytest.raises(CheckpointError, match=r"no run 'tinny': runs/ has tiny"):
        tenfold.load("tinny")
    with pytest.raises(CheckpointError, match="has no checkpoint of step 7; it has 5"):
        tenfold.load("tiny", step=7)


@pytest.mark.parametrize(("start", "place"), [((5.0, 6.0), "inside"), ((10.8, 11.1), "far below")])
def test_a_run_that_follows_a_curve_is_compared_and_judged(
    run: Run, monkeypatch: pytest.MonkeyPatch, start: tuple[float, float], place: str
) -> None:
    """At every validation for which the curve knows a loss, here the first one, and all in all at the end."""
    curve = replace(curves()["fineweb-edu-124m"], start=start)
    monkeypatch.setattr(api, "matching", lambda *_: Match(curve, {}, ""))
    shown = Recorder()
    api.train(run, display=shown)
    records = rundir.read_metrics(Path("runs/tiny"))
    first = next(record for record in records if "val_loss" in record)
    assert first["place"] == place
    assert first["band"] == list(start)
    (verdict,) = (record for record in records if record.get("event") == "verdict")
    assert verdict["off"] == (place != "inside")
    assert verdict["message"].startswith(place)
    assert ("tenfold check tiny" in verdict["message"]) == verdict["off"]
    assert rundir.state(Path("runs/tiny")) == "done"
    assert any("compared with the published curve fineweb-edu-124m" in line for line in shown.lines)


def test_a_run_that_only_resembles_a_curve_is_told_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    match = Match(curves()["fineweb-edu-124m"], {"recipe.lr": (6e-4, 3e-3)}, "")
    monkeypatch.setattr(api, "matching", lambda *_: match)
    shown = Recorder()
    api.train(replace(run, recipe=replace(run.recipe, steps=2)), display=shown)
    assert any("not compared" in line and "recipe.lr is 0.003, there 0.0006" in line for line in shown.lines)
    assert not any("place" in record for record in rundir.read_metrics(Path("runs/tiny")))
    assert "dataset" in rundir.read_run(Path("runs/tiny"))


def test_a_finished_run_is_left_as_it_is(run: Run) -> None:
    """Whoever calls it again loses nothing of it, also if that call is killed."""
    done = train(run)
    before = (done.path / "metrics.jsonl").read_bytes()
    told = Recorder()
    again = train(run, display=told)
    assert (again.step, again.val_loss, again.code) == (done.step, done.val_loss, 0)
    assert (done.path / "metrics.jsonl").read_bytes() == before
    assert any("is done; a larger --recipe.steps" in line for line in told.lines)
    (done.path / "metrics.jsonl").write_bytes(before[: before.index(b'"event": "done"') - 20])
    train(run)  # killed before it said so
    assert rundir.state(done.path) == "done"


def test_patience_outlives_a_stop(run: Run) -> None:
    """Nothing is learnt: each evaluation is as bad as the first."""
    cadence = replace(run.cadence, eval=1, save=0, patience=4, stop_early=True, log=1)
    still = replace(run, recipe=replace(run.recipe, lr=0.0, lr_end=0.0), cadence=cadence)
    at_once = train(replace(still, name="at-once")).step
    for _ in range(3):
        parted = train(replace(still, name="parted"), stop_at=3).step
    assert (at_once, parted) == (5, 3)
    assert train(replace(still, name="parted")).step == at_once


LONELY = """
import sys, time
from tenfold import signals
signals.leave_at_sigterm()
from multiprocessing import get_context
worker = get_context("fork").Process(target=time.sleep, args=(60,))
worker.start()
worker.terminate()
worker.join()
print(worker.exitcode, flush=True)
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print("waits", flush=True)
store.wait(["never"])
"""


@pytest.mark.timeout(60)
def test_sigterm_before_the_first_step_ends_at_once_with_its_code() -> None:
    """Also while the main thread waits for others in a call that no handler interrupts; not by a worker's end."""
    process = subprocess.Popen(
        [sys.executable, "-c", LONELY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == f"{-signal.SIGTERM}\n"
    assert process.stdout.readline() == "waits\n"
    time.sleep(0.2)
    process.terminate()
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 75
    assert errors == "tenfold: SIGTERM: nothing was trained yet; the same command begins again\n"


@pytest.mark.timeout(90)
def test_a_signal_in_the_start_of_a_training(tmp_path: Path) -> None:
    """While a text is prepared."""
    text = tmp_path / "long.txt"
    text.write_text("some words and others\n" * 2_000_000)
    command = [sys.executable, "-m", "tenfold", "train", "demo", "--data", str(text), "--tokenizer", "gpt2"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, env=environment(), text=True)
    end = time.monotonic() + 40
    while not (tmp_path / "runs" / "demo").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.terminate()
    assert "nothing was trained yet" in process.communicate(timeout=20)[1]
    assert process.returncode == 75


def test_the_loss_scale_is_told_where_there_is_one(run: Run) -> None:
    done = train(replace(run, speed=replace(run.speed, precision="fp16")), stop_at=2)
    assert set(by_step(done.path, "scale").values()) == {65536.0}
    assert not by_step(train(replace(run, name="fp32"), stop_at=2).path, "scale")


def test_a_folder_of_runs_that_leads_nowhere_is_told(run: Run) -> None:
    Path("runs").symlink_to("nowhere/at/all")
    with pytest.raises(ConfigError, match=r"runs/tiny cannot be a run's folder"):
        train(run)
