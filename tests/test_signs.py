"""Vital signs: for each one a run made wrong on purpose that it catches, and right ones on which all are silent."""

import json
import math
import random
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT, TINY, TINY_OPTIONS, TINY_RECIPE, environment, torchrun
from mistakes import MISTAKES
from tenfold import api, rundir
from tenfold.data.batches import Batches
from tenfold.data.shards import Corpus
from tenfold.data.statistics import Statistics, statistics
from tenfold.errors import DataError, TenfoldError
from tenfold.hardware import detect
from tenfold.ladder import tune
from tenfold.model import head
from tenfold.run import Run
from tenfold.training import checkpoint
from tenfold.training import vitals as vitals_module
from tenfold.training.signs import AT_START, SIGNS, WHILE_TRAINING, Signs
from tenfold.training.speed import Speed
from tenfold.training.vitals import Diverged, Finite, Growth, Patience, Repeats, Running, Vitals
from test_runs import Recorder, by_step, train, weights
from test_runs import run as run  # a fixture
from training import trainer


def spoken(told: Recorder) -> dict[str, str]:
    """The signs that spoke, with what they said."""
    return {r["sign"]: r["message"] for r in told.records if r.get("event") == "sign"}


# A training that is right


@pytest.mark.parametrize("speed", [{}, {"precision": "bf16"}, {"precision": "fp16"}, {"rows": 3}], ids=str)
def test_a_right_training_is_silent(run: Run, speed: dict[str, Any]) -> None:
    told = Recorder()
    recipe = replace(run.recipe, steps=20 if speed else 80)  # over 512 rows: as many as decide on repeated ones
    done = train(replace(run, recipe=recipe, speed=replace(run.speed, **speed)), display=told)
    assert spoken(told) == {}
    assert "no vital sign spoke" in rundir.read_metrics(done.path)[-1]["message"]


def test_going_on_is_silent(run: Run) -> None:
    train(run, stop_at=7)
    told = Recorder()
    train(run, display=told)
    assert spoken(told) == {}


# Mistakes in one process


@pytest.mark.parametrize(
    ("mistake", "sign"),
    [
        ("undivided_loss", "first loss"),
        ("unit_variance", "initial loss"),
        ("tenfold_rate", "schedule"),
        ("no_warmup", "schedule"),
        ("decay_everything", "groups"),
        ("forgotten_parameter", "groups"),
        ("mask_off_by_one", "causality"),
        ("mask_off_in_training", "causality"),
        ("unmoved_targets", "targets"),
    ],
)
def test_a_mistake_stops_the_training_in_its_first_step(
    mistake: str, sign: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    MISTAKES[mistake](monkeypatch)
    small = replace(run, speed=replace(run.speed, rows=2))
    with pytest.raises(TenfoldError) as caught:
        train(small)
    begin = re.escape(SIGNS[sign].message.split("{")[0])
    assert re.match(rf"step [01]: {begin}", str(caught.value)), str(caught.value)
    assert caught.value.code == 1
    assert rundir.state(Path("runs/tiny")) == "stopped"
    assert not checkpoint.saved_steps(Path("runs/tiny/checkpoints"))


@pytest.mark.parametrize(
    ("mistake", "sign"),
    [
        ("undivided_loss", "first loss"),
        ("unit_variance", "initial loss"),
        ("tenfold_rate", "schedule"),
        ("decay_everything", "groups"),
        ("mask_off_by_one", "causality"),
        ("unmoved_targets", "targets"),
    ],
)
def test_a_mistake_is_only_told_if_the_user_says_so(
    mistake: str, sign: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    MISTAKES[mistake](monkeypatch)
    told = Recorder()
    small = replace(run, signs="warn", speed=replace(run.speed, rows=2))
    assert train(small, stop_at=3, display=told).step == 3
    assert sign in spoken(told)
    assert spoken(told)[sign].startswith("warning: ")
    verdict = rundir.read_metrics(Path("runs/tiny"))[-1]
    assert verdict["event"] == "verdict"
    assert sign in verdict["message"]
    silent = Recorder()
    train(replace(small, signs="off", name="off"), stop_at=3, display=silent)
    assert spoken(silent) == {}


def test_a_rate_ten_times_too_high_and_no_warm_up_are_told_of_the_recipe(run: Run) -> None:
    told = Recorder()
    hot = replace(run, recipe=replace(run.recipe, lr=3e-2, warmup=0))
    train(hot, stop_at=1, display=told)
    assert {"learning rate", "warm-up"} <= spoken(told).keys()
    assert "recipe.lr 0.03 is 16." in spoken(told)["learning rate"]
    assert "recipe.warmup is 0" in spoken(told)["warm-up"]


def test_the_presets_recipes_are_usual() -> None:
    from tenfold.run import PRESETS
    from tenfold.training.start import usual_rate

    for make in PRESETS.values():
        preset = make()
        vocab = preset.model.vocab or 257
        usual = usual_rate(replace(preset.model, vocab=vocab).parameters)
        assert preset.recipe.lr < SIGNS["learning rate"].threshold * usual / 2
        assert preset.recipe.warmup >= SIGNS["warm-up"].threshold * 2 / (1 - preset.recipe.beta2)


def test_a_block_that_is_read_again_and_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unshuffled repeated blocks, by a wrong reader and in the data."""
    MISTAKES["few_rows"](monkeypatch)
    told = Recorder()
    train(replace(run, recipe=replace(run.recipe, steps=60)), display=told)
    assert "repeated rows" in spoken(told)


def test_short_rows_come_again_in_any_text(run: Run) -> None:
    told = Recorder()
    train(replace(run, recipe=replace(run.recipe, length=4, steps=60)), display=told)
    assert spoken(told) == {}


def test_data_that_repeats(run: Run, tmp_path: Path) -> None:
    draw = random.Random(1)
    block = "".join(draw.choice("abcdefgh ") for _ in range(32 * 40))
    (tmp_path / "again.txt").write_text(block * 60)
    told = Recorder()
    again = replace(run, data=str(tmp_path / "again.txt"), tokenizer="bytes", recipe=replace(run.recipe, steps=60))
    train(again, display=told)
    assert "repeated rows" in spoken(told)


@pytest.mark.parametrize(
    ("mistake", "sign", "steps", "rows"),
    [
        ("undivided_gradient", "first norm", 2, 32),
        ("slow_reader", "data wait", 20, 8),
        ("leak", "memory", 120, 8),
    ],
)
def test_a_mistake_is_told_and_training_goes_on(
    mistake: str, sign: str, steps: int, rows: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same training without it is silent."""
    monkeypatch.setattr(vitals_module, "ON_END", 0.5)
    told, silent = Recorder(), Recorder()
    small = replace(
        run, recipe=replace(run.recipe, steps=steps, rows=rows), cadence=replace(run.cadence, eval=0, save=0)
    )
    assert train(replace(small, name="right"), display=silent).step == steps
    assert sign not in spoken(silent)
    MISTAKES[mistake](monkeypatch)
    assert train(small, display=told).step == steps
    assert sign in spoken(told)


def test_a_machine_that_is_far_slower_than_when_it_was_tuned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals_module, "ON_END", 0.1)
    auto = replace(run, speed=Speed(device="cpu"))
    told, here = Recorder(), detect("cpu")
    first = train(replace(auto, name="first"))
    executed = Speed(**rundir.read_run(first.path)["executed"])
    for name, figure in (("right", 1.0), ("slow", 1e9)):
        found = tune.Tuned(executed, figure, figure, "2026-01-01")
        tune.remember(found, run.model, run.recipe.length, here, auto.speed)
        told = Recorder()
        train(replace(auto, name=name), display=told)
        assert ("throughput" in spoken(told)) == (name == "slow")
    tune.path_of(run.model, run.recipe.length, here).unlink()


def test_a_model_that_does_not_learn(run: Run) -> None:
    """Its rate is next to nothing: no better than a bigram model, and its validation loss stands still."""
    told = Recorder()
    steps = 2 * TINY.parameters // (8 * 32) + 20
    cadence = replace(run.cadence, log=50, eval=20, save=0, eval_rows=8, patience=3)
    stuck = replace(run, recipe=replace(run.recipe, steps=steps, lr=1e-12, lr_end=1e-12), cadence=cadence)
    train(stuck, display=told)
    assert {"bigram", "plateau"} <= spoken(told).keys() <= {"bigram", "plateau", "spike"}


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_mask_off_by_one_falls_below_any_floor(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    MISTAKES["mask_off_by_one"](monkeypatch)
    told = Recorder()
    recipe = replace(run.recipe, steps=1500, lr=5e-3, warmup=20)
    cadence = replace(run.cadence, log=50, eval=300, save=0, eval_rows=64)
    train(replace(run, signs="warn", recipe=recipe, cadence=cadence), display=told)
    assert {"causality", "floor"} <= spoken(told).keys()


# Mistakes among several processes


def together(
    mistake: str, folder: Path, data: Path, *options: str, processes: int = 2
) -> subprocess.CompletedProcess[str]:
    """A tiny training with a mistake on several processes, by the command line."""
    command = [*torchrun(processes), str(ROOT / "tests" / "mistakes.py"), mistake, "train", "demo", "--name", "two"]
    return subprocess.run(
        [
            *command,
            "--data",
            str(data),
            *TINY_OPTIONS,
            "--model.vocab",
            "257",
            "--speed.rows",
            "2",
            "--recipe.beta2",
            "0.95",
            *options,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
    )


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("late_sync", "step 1: the processes do not have the same weights"),
        ("own_seed", "step 0: the processes do not have the same weights"),
        ("same_rows", "step 0: 4 of the 8 rows of step 0 are taken twice"),
    ],
)
def test_a_mistake_among_processes_stops_them(mistake: str, says: str, tmp_path: Path, corpus: Corpus) -> None:
    done = together(mistake, tmp_path, corpus.path)
    assert says in done.stderr, done.stderr
    assert done.returncode == 1
    assert not checkpoint.saved_steps(tmp_path / "runs/two/checkpoints")


@pytest.mark.timeout(250)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_right_processes_are_silent(parallel: str, tmp_path: Path, corpus: Corpus) -> None:
    done = together("nothing", tmp_path, corpus.path, "--speed.parallel", parallel)
    assert done.returncode == 0, done.stderr
    records = rundir.read_metrics(tmp_path / "runs/two")
    assert [r for r in records if r.get("event") == "sign"] == []
    assert "no vital sign spoke" in records[-1]["message"]


# Signs of figures


def ready(found: Statistics) -> "Future[Statistics]":
    """Statistics that were computed."""
    future: Future[Statistics] = Future()
    future.set_result(found)
    return future


@pytest.fixture
def watch(corpus: Corpus) -> Callable[..., tuple[Vitals, list[dict[str, Any]]]]:
    """Vitals of a tiny training, and what they tell; options are theirs, or fields of the data's statistics."""
    found = statistics(corpus)

    def make(rows: int = 8, **options: Any) -> tuple[Vitals, list[dict[str, Any]]]:
        told: list[dict[str, Any]] = []
        one = trainer(corpus.train, recipe=replace(TINY_RECIPE, rows=rows))
        one.batches.close()
        given = replace(found, **{name: options.pop(name) for name in list(options) if hasattr(found, name)})
        options = {"untrained": True, **options}
        return Vitals(one, Signs(told.append, acts=False), ready(given), **options), told

    return make


def names(told: list[dict[str, Any]]) -> list[str]:
    return [record["sign"] for record in told]


LOG = {"data_wait": 0.01, "tokens_per_second": 1000.0, "memory_bytes": 10**9}


@pytest.mark.parametrize(("share", "count", "speaks"), [(0.06, 15, True), (0.06, 14, False), (0.04, 50, False)])
def test_data_wait(watch: Any, share: float, count: int, speaks: bool) -> None:
    vitals, told = watch()
    vitals.logged(0, LOG | {"data_wait": 1.0}, seconds=100.0)  # the first steps do not count: they compile
    for at in range(2 * count):
        vitals.logged(at, LOG | {"data_wait": 0.0 if at == count else share}, seconds=2.0)
        if at == count:
            assert names(told) == ["data wait"] * speaks
    assert names(told) == ["data wait"] * speaks


@pytest.mark.parametrize(("tuned", "speaks"), [(1600.0, False), (1700.0, True), (None, False)])
def test_throughput(watch: Any, tuned: float | None, speaks: bool) -> None:
    vitals, told = watch(tuned=tuned)
    for at in range(20):
        vitals.logged(at, LOG, seconds=2.0)
    assert names(told) == ["throughput"] * speaks
    if speaks:
        assert "1,000 tokens/s are 59% of the 1,700" in told[0]["message"]


@pytest.mark.parametrize(
    ("memory", "speaks"),
    [
        (lambda i: 1e9, False),
        (lambda i: 1e9 + 1e7 * i, True),  # a leak
        (lambda i: 1e9 if i < 30 else 1.6e9, False),  # the first evaluation
        (lambda i: 1e9 * (1 + 0.3 * (i % 3)), False),
        (lambda i: 1e9 * (2 - 1 / (1 + i)), False),  # rises, and is soon at rest
    ],
)
def test_memory_that_grows(watch: Any, memory: Callable[[int], float], speaks: bool) -> None:
    vitals, told = watch()
    for at in range(100):
        vitals.logged(at, LOG | {"memory_bytes": memory(at)}, seconds=1.0)
    assert names(told) == ["memory"] * speaks


@pytest.mark.parametrize(("bits", "speaks"), [(0.29, True), (0.31, False)])
def test_a_loss_below_the_floor(watch: Any, bits: float, speaks: bool) -> None:
    vitals, told = watch(bytes_per_token=4.5)
    vitals.validated(100, bits * math.log(2) * 4.5)
    assert names(told) == ["floor"] * speaks


def test_no_better_than_a_bigram_model(watch: Any) -> None:
    vitals, told = watch(bigram=2.0)
    needed = 2 * TINY.parameters // (8 * 32) + 1
    vitals.validated(needed - 2, 2.1)
    vitals.validated(needed, 1.9)
    assert told == []
    vitals.validated(needed, 2.0)
    assert names(told) == ["bigram"]


@pytest.mark.parametrize("factor", [1.0, 4.0, 0.25, 0.0])
def test_the_first_gradient_norm(watch: Any, corpus: Corpus, factor: float) -> None:
    vitals, told = watch(rows=32)
    one = trainer(corpus.train, recipe=replace(TINY_RECIPE, rows=32))
    first = one.step()
    one.batches.close()
    vitals.step(0, first.loss.item(), factor * first.norm.item(), [one.optimizer.param_groups[0]["lr"]])
    assert names(told) == ["first norm"] * (factor != 1.0)


def test_a_spike_is_told_and_its_rows_are_saved(run: Run, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of noise in the middle of a training on words."""
    plain = Batches.read
    noise = torch.Generator().manual_seed(0)

    def read(self: Batches, position: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = plain(self, position, k)
        return (x, torch.randint(257, y.shape, generator=noise)) if position == 60 else (x, y)

    monkeypatch.setattr(Batches, "read", read)
    told = Recorder()
    long = replace(run, recipe=replace(run.recipe, steps=70), cadence=replace(run.cadence, save=0))
    done = train(long, display=told)
    said = [r for r in told.records if r.get("sign") == "spike"]
    assert {r["step"] for r in said} == {60}
    assert "standard deviations above its running mean" in said[0]["message"]
    kept = json.loads((done.path / "spikes/step-000060.json").read_text())
    assert len(kept["rows"]) == 8
    row = kept["rows"][0]
    assert row["text"] == corpus.tokenizer.decode(corpus.train.read(row["start"], 32))
    assert list((done.path / "spikes").iterdir()) == [done.path / "spikes/step-000060.json"]


def test_a_running_score() -> None:
    """Against the plain mean and deviation while there are few values; noise of many shapes is no spike, a jump is."""
    draw = random.Random(3)
    running = Running()
    values = [draw.gauss(4, 0.1) for _ in range(40)]
    for value in values:
        running.score(value)
    assert running.mean == pytest.approx(sum(values) / 40, rel=1e-9)
    for shape in (lambda: draw.gauss(0, 1), lambda: draw.uniform(-1, 1)):
        running = Running()
        scores = [running.score(10 * 0.999**i + 0.3 * shape()) for i in range(5000)]
        assert max(scores) < SIGNS["spike"].threshold
        assert running.score(running.mean + 20) > SIGNS["spike"].threshold
    assert Running().score(1e9) == 0


def test_repeats_are_counted_in_bounded_memory() -> None:
    rows = [random.Random(1).getrandbits(62) * 2 + 1 for _ in range(1)] + [hash(str(i)) for i in range(5000)]
    seen = Repeats()
    seen.MOST = 1000  # type: ignore[misc]
    for row in rows * 2:
        seen.add(row)
    assert len(seen.known) <= 1000
    assert seen.again / seen.rows == pytest.approx(0.5, abs=0.35)
    fresh = Repeats()
    for row in rows:
        fresh.add(row)
    assert fresh.again == 0


def test_growth_wants_rises_one_after_the_other() -> None:
    growth = Growth()
    assert [growth.add(v) for v in [1.0] * 30] == [0.0] * 30
    found = [growth.add(1 + 0.01 * i) for i in range(40)]
    assert found[:24] == [0.0] * 24
    assert found[24] == pytest.approx(0.20)


def test_patience_tells_learning_by_heart_from_standing_still() -> None:
    """T47: K evaluations without a better validation loss, while the training loss falls."""
    for train_loss, name in ((lambda i: 3 - 0.1 * i, "overfitting"), (lambda i: 3.0, "plateau")):
        told: list[dict[str, Any]] = []
        patience = Patience(2, Signs(told.append))
        losses = [3.0, 2.0, 2.1, 2.2, 1.9, 2.0, 2.0, 2.0, 2.0]
        assert [patience(i, v, train_loss(i)) for i, v in enumerate(losses)] == [
            False, False, False, True, False, False, True, False, True
        ]  # fmt: skip
        assert names(told) == [name]
        assert "2.2000 now, 2.0000 at step 1" in told[0]["message"]
    assert not Patience(0, Signs(lambda _: None))(0, 1.0, 1.0)


# Not finite: stop, skip, roll back


def test_finite_or_stopped(corpus: Corpus) -> None:
    one = trainer(corpus.train)
    one.batches.close()
    assert Finite(one)(1, 2.0, 1.0, True)
    one.scale.value = 2.0**10
    assert not Finite(one)(1, 2.0, float("inf"), False)  # fp16 skipped it
    for loss, norm, applied, scale in [
        (float("nan"), 1.0, True, 1.0),
        (2.0, float("inf"), True, 1.0),
        (float("nan"), float("nan"), False, 2.0**10),
        (2.0, float("inf"), False, 2.0**-20),
    ]:
        one.scale.value = scale
        with pytest.raises(Diverged, match="not finite"):
            Finite(one)(1, loss, norm, applied)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the loss of the rows of one step of the data NaN, whatever update takes them."""
    plain_take, plain_loss = Batches.take, head.plain

    def at(step: int) -> None:
        bad = [False]

        def take(self: Batches, position: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
            bad[0] = self.numbered(position) == step
            return plain_take(self, position, k)

        def loss(*arguments: Any) -> torch.Tensor:
            return plain_loss(*arguments) * (float("nan") if bad[0] and torch.is_grad_enabled() else 1.0)

        monkeypatch.setattr(Batches, "take", take)
        monkeypatch.setitem(head.LOSSES, "plain", loss)

    return at


def skipping(corpus: Corpus, run: Run, without: int, as_data: bool) -> dict[str, torch.Tensor]:
    """Final weights of a training whose update of one step is left out or, `as_data`, the rows of that step."""
    one = trainer(corpus.train, recipe=run.recipe, speed=replace(run.speed, rows=8))
    if as_data:
        one.batches.skip([without])
    while one.position < run.recipe.steps:
        if not as_data and one.position == without:
            one.position += 1
        else:
            one.step()
    one.batches.close()
    return {name: p.detach().clone() for name, p in one.module.named_parameters()}


def test_fp16_leaves_a_loss_out_that_is_not_finite_if_it_is_told_to(run: Run, poison: Any) -> None:
    poison(5)
    told = Recorder()
    half = replace(run, speed=replace(run.speed, precision="fp16"))
    assert train(replace(half, on_nonfinite="skip"), display=told).step == 20
    assert 5 in [r["step"] for r in told.records if r.get("event") == "skipped"]
    with pytest.raises(Diverged, match="step 5: loss nan"):
        train(replace(half, name="stops"))


@pytest.mark.parametrize("fused", ["yes", "no"])
def test_skip_leaves_the_update_out_and_nothing_else(run: Run, corpus: Corpus, poison: Any, fused: str) -> None:
    poison(5)
    told = Recorder()
    skips = replace(run, on_nonfinite="skip", speed=replace(run.speed, fused=fused))
    done = train(skips, display=told)
    assert done.step == 20
    said = [r for r in told.records if r.get("event") == "skipped"]
    assert [r["step"] for r in said] == [5]
    assert "update left out: loss nan" in said[0]["message"]
    assert any("each step waits" in line for line in told.lines) == (fused == "no")
    want = skipping(corpus, skips, 5, as_data=False)
    for name, value in weights(done.path, 20).items():
        assert torch.equal(value, want[name]), name


def test_skipping_gives_up(run: Run, poison: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "numbered", lambda self, position: max(position, 5) if position > 4 else position)
    monkeypatch.setitem(head.LOSSES, "plain", lambda *a: head.plain(*a) * float("nan"))
    with pytest.raises(Diverged, match="step 10: loss nan"):
        train(replace(run, on_nonfinite="skip", signs="off"))


@pytest.mark.parametrize("parallel", ["none", "fsdp"])
def test_roll_back_goes_to_the_last_checkpoint_and_leaves_the_rows_out(
    run: Run, corpus: Corpus, poison: Any, parallel: str
) -> None:
    poison(7)
    told = Recorder()
    cadence = replace(run.cadence, eval=5)
    rolls = replace(run, on_nonfinite="rollback", speed=replace(run.speed, parallel=parallel), cadence=cadence)
    done = train(rolls, display=told, stop_at=12)
    assert spoken(told) == {}
    said = next(r for r in told.records if r.get("event") == "rollback")
    assert said["step"] == 5
    assert "step 7: loss nan" in said["message"]
    assert "back to the checkpoint of step 5; the rows of step 7 are left out" in said["message"]
    state = checkpoint.read_state(checkpoint.folder_at(done.path / "checkpoints", 12))
    assert state["skipped"] == [7]
    done = train(rolls)  # another process goes on
    assert done.step == 20
    losses = by_step(done.path, "loss")
    assert list(losses) == list(range(20))
    assert all(math.isfinite(loss) for loss in losses.values())
    want = skipping(corpus, run, 7, as_data=True)
    for name, value in weights(done.path, 20).items():
        assert torch.equal(value, want[name]), name


def test_roll_back_without_a_checkpoint_or_without_end_stops(run: Run, poison: Any, monkeypatch: Any) -> None:
    poison(3)
    rolls = replace(run, on_nonfinite="rollback")
    with pytest.raises(Diverged, match=r"step 3: loss nan.*there is no checkpoint yet"):
        train(rolls)
    plain = head.plain
    calls = [0]

    def later(*arguments: Any) -> torch.Tensor:
        calls[0] += torch.is_grad_enabled()
        return plain(*arguments) * (float("nan") if calls[0] > 8 and torch.is_grad_enabled() else 1.0)

    monkeypatch.setitem(head.LOSSES, "plain", later)
    told = Recorder()
    with pytest.raises(Diverged, match="step 5: loss nan"):
        train(replace(rolls, name="again"), display=told)
    assert [r["step"] for r in told.records if r.get("event") == "rollback"] == [5, 5, 5]
    (left,) = [r["message"] for r in rundir.read_metrics(Path("runs/again")) if r.get("event") == "rollback"]
    assert left.endswith("the rows of steps 5, 6, 8 are left out from now on")  # the last line tells of all


def test_what_was_told_before_a_roll_back_may_be_told_again() -> None:
    told: list[dict[str, Any]] = []
    signs = Signs(told.append, acts=False)
    signs("weights", 300, why="of a test")
    signs("weights", 310, why="of a test")
    signs.went_back(200)
    signs("weights", 300, why="of a test")
    assert [r["step"] for r in told] == [300, 300]


def test_signs_that_need_the_datas_statistics_are_left_out_where_there_are_none(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards of GPT-2 tokens may be trained on where its vocabulary is not to be had."""

    def missing(corpus: Corpus) -> Statistics:
        raise DataError("vocab.bpe is missing")

    monkeypatch.setattr(api, "statistics", missing)
    told = Recorder()
    assert train(run, display=told).step == 20
    said = [r["message"] for r in told.records if r.get("event") == "not looked at"]
    assert said == ["not looked at: first loss, first norm, floor and bigram (vocab.bpe is missing)"]


# The table


def test_every_sign_is_in_the_documentation_with_its_threshold() -> None:
    page = (ROOT / "docs" / "signs.md").read_text()
    for table in (AT_START, WHILE_TRAINING):
        for name, sign in table.items():
            assert (
                f"| {name} | {sign.looks} | {sign.threshold:g} {sign.unit} | {'stops' if sign.stops else 'tells'} |"
                in page
            )
