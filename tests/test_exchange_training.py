"""Fine-tuning: training that begins from weights which were there before."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tenfold
from conftest import TINY, TINY_OPTIONS, TINY_RECIPE, Tenfold
from tenfold import api, rundir
from tenfold.cli import call
from tenfold.data.shards import Corpus
from tenfold.errors import CheckpointError, ConfigError, DataError
from tenfold.prepare import prepare_text
from tenfold.run import Cadence, Run, from_dict, preset
from tenfold.training import checkpoint
from training import EXACT

BASE = Run(
    model=TINY,
    recipe=TINY_RECIPE,
    speed=replace(EXACT, rows="auto"),
    cadence=Cadence(log=1, eval=10, sample=0, save=10),
    preset="tiny",
    name="base",
    tokenizer="bytes",
)


class Recorder(api.Silent):
    """A display that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def folder(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a tiny run on bytes was trained for 20 steps, and exported as a folder of Hugging Face's form."""
    path = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        tenfold.train(replace(BASE, data=str(corpus.path)), display=Recorder())
        api.export("base", "hf", display=Recorder())
    return path


@pytest.fixture
def tuning(corpus: Corpus, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A fine-tuning from that folder, in an empty one."""
    monkeypatch.chdir(tmp_path)
    return replace(
        preset("finetune"),
        name="tuned",
        init=str(folder / "hf"),
        recipe=replace(TINY_RECIPE, steps=6, lr=1e-3, warmup=2),
        speed=BASE.speed,
        cadence=Cadence(log=1, eval=3, sample=0, save=3),
        data=str(corpus.path),
    )


def metric(path: Path, key: str) -> dict[int, float]:
    """One of the metrics by step."""
    return {record["step"]: record[key] for record in rundir.read_metrics(path) if key in record}


def weights(path: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(path / "checkpoints" / f"step-{step:06d}" / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_it_begins_where_the_other_training_ended(tuning: Run, folder: Path) -> None:
    told = Recorder()
    done = tenfold.train(tuning, display=told)
    ended = metric(folder / "runs/base", "val_loss")[20]
    assert metric(done.path, "val_loss")[0] == pytest.approx(ended, abs=1e-5)
    assert metric(done.path, "lr")[0] == pytest.approx(1e-3 / 2)  # the schedule begins at step 0
    assert any(line.startswith(f"beginning from folder {folder}") for line in told.lines)
    saved = rundir.read_run(done.path)
    assert saved["model"] == {**vars(TINY), "padded_vocab": 0}  # the folder has no padding
    assert saved["origin"]["given"] == str(folder / "hf")
    assert len(saved["origin"]["sha256"]["model.safetensors"]) == 64


def test_from_a_run_an_export_or_an_import_it_is_the_same_training(tuning: Run, folder: Path) -> None:
    """Fresh moments each time, so also what was imported first goes the same way bit for bit."""
    straight = tenfold.train(tuning, display=Recorder())
    api.import_run(tuning.init, "taken", lambda _: None)
    assert checkpoint.tensors(Path("runs/taken/checkpoints/step-000000/optimizer.safetensors")) == {}
    saved = from_dict(rundir.read_run(Path("runs/taken")), "run.json")
    assert (saved.preset, saved.recipe.data, saved.recipe.length, saved.tokenizer) == ("finetune", "", 32, "bytes")
    other = replace(saved, recipe=tuning.recipe, speed=tuning.speed, cadence=tuning.cadence, data=tuning.data)
    imported = tenfold.train(other, display=Recorder())
    assert metric(imported.path, "loss") == metric(straight.path, "loss")
    assert same(weights(imported.path, 6), weights(straight.path, 6))
    assert rundir.read_run(imported.path)["origin"] == rundir.read_run(straight.path)["origin"]
    with pytest.raises(ConfigError, match=r"recipe\.lr was 0\.001, given 0\.002"):  # now it has a recipe
        tenfold.train(replace(other, recipe=replace(other.recipe, lr=2e-3)), display=Recorder())
    run = tenfold.train(replace(tuning, name="run", init=str(folder / "runs/base")), display=Recorder())
    assert metric(run.path, "loss") == pytest.approx(metric(straight.path, "loss"), abs=1e-5)


def test_it_goes_on_as_any_run(tuning: Run) -> None:
    whole = tenfold.train(replace(tuning, name="whole"), display=Recorder())
    tenfold.train(tuning, stop_at=3, display=Recorder())
    origin = rundir.read_run(Path("runs/tuned"))["origin"]
    with pytest.raises(ConfigError, match=r"run 'tuned' began from .*hf, not random weights; leave --init out"):
        tenfold.train(replace(tuning, init="", model=replace(TINY, padded_vocab=0)), display=Recorder())
    part = tenfold.train(replace(tuning, model=replace(TINY, padded_vocab=0)), display=Recorder())
    assert metric(part.path, "loss") == metric(whole.path, "loss")
    assert same(weights(part.path, 6), weights(whole.path, 6))
    assert rundir.read_run(part.path)["origin"] == origin


def test_what_does_not_go_together_is_refused(tuning: Run, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has another shape: model\.layers is 2 there, given 24; "):
        tenfold.train(replace(tuning, model=preset("gpt2-350m").model), display=Recorder())
    text = tmp_path / "text.txt"
    text.write_text("some other text, " * 3000)
    prepare_text(text, tmp_path / "chars", "chars")
    with pytest.raises(DataError, match=r"was made by the tokenizer chars, the weights know another \(bytes\)"):
        tenfold.train(replace(tuning, data=str(tmp_path / "chars")), display=Recorder())
    with pytest.raises(CheckpointError, match=r"no weights 'nothing': give a run, a checkpoint"):
        tenfold.train(replace(tuning, init="nothing"), display=Recorder())
    assert not list(Path("runs").iterdir())


def test_learning_by_heart_is_told_and_the_best_is_kept(tuning: Run, tmp_path: Path) -> None:
    """T47: a few words seen over and over; training loss falls, validation loss rises."""
    text = tmp_path / "few.txt"
    text.write_text("".join(f"{i * i % 97} " for i in range(150)))
    prepare_text(text, tmp_path / "shards", "bytes")
    recipe = replace(tuning.recipe, steps=400, lr=1e-2, lr_end=1e-2, rows=8)
    cadence = Cadence(log=1, eval=10, sample=0, save=10, keep=1, patience=3, stop_early=True)
    done = tenfold.train(
        replace(tuning, recipe=recipe, cadence=cadence, data=str(tmp_path / "shards")), display=Recorder()
    )
    losses, notices = metric(done.path, "val_loss"), metric(done.path, "message")
    assert "validation loss has not improved for 3 evaluations" in str(notices)
    assert done.step < 400
    best = min(losses, key=losses.__getitem__)
    assert 0 < best < done.step - 20
    assert best in checkpoint.saved_steps(done.path / "checkpoints")
    assert losses[max(losses)] > losses[best]
    trained = list(metric(done.path, "loss").values())
    assert sum(trained[-10:]) < sum(trained[best : best + 10])


def command(data: Path, init: Path, name: str) -> list[str]:
    """A short fine-tuning by the command line."""
    pairs = zip(TINY_OPTIONS[::2], TINY_OPTIONS[1::2], strict=True)
    options = [part for pair in pairs if not pair[0].startswith("--model") for part in pair]
    given = ["--init", str(init), "--data", str(data), "--name", name]
    return ["train", "finetune", *given, *options, "--recipe.steps", "4"]


def test_the_commands(folder: Path, corpus: Corpus, tuning: Run, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"^--model\.layers: the model's shape is that of --init .*hf; leave it out$"):
        call([*command(corpus.path, folder / "hf", "mine"), "--model.layers", "3"])
    assert call(["import", str(folder / "hf"), "--name", "mine"]) == 0
    told = capfd.readouterr()
    assert "logits compared with" in told.err
    assert "train finetune --name mine --data SHARDS" in told.out
    assert call(["sample", "mine", "--tokens", "5"]) == 0
    assert call(command(corpus.path, folder / "hf", "mine")) == 0
    with pytest.raises(ConfigError, match=r"run 'mine' began from .*, not elsewhere"):
        call(["train", "finetune", "--name", "mine", "--init", "elsewhere"])
    assert call(["export", "mine", "out"]) == 0
    assert "mine is in out" in capfd.readouterr().err
    card = Path("out/README.md").read_text()
    assert "trained with Tenfold" in card
    assert f"the fingerprint {corpus.fingerprint}" in card
    assert "| step | validation loss |" in card
    with pytest.raises(ConfigError, match="out exists"):
        call(["export", "mine", "out"])


@pytest.mark.slow
def test_two_processes_begin_from_the_same_weights(
    tenfold: Tenfold, folder: Path, corpus: Corpus, tmp_path: Path
) -> None:
    one = tenfold(*command(corpus.path, folder / "hf", "one"))
    two = tenfold(*command(corpus.path, folder / "hf", "two"), processes=2)
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    a, b = (metric(tmp_path / "runs" / name, "loss") for name in ("one", "two"))
    assert len(a) == 4
    assert a == pytest.approx(b, abs=1e-3)
    assert json.loads((tmp_path / "runs/two/run.json").read_text())["origin"]["sha256"]
