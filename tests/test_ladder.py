"""The ladder and the tuner, with real processes on tiny models: what is measured, judged, kept and refused."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY, Tenfold, environment
from tenfold.errors import ConfigError, HardwareError
from tenfold.hardware import Hardware, detect
from tenfold.ladder import record
from tenfold.ladder.climb import Climber, Terms, apart, check_fits, measurable
from tenfold.ladder.lessons import LESSONS
from tenfold.ladder.measure import Row, RungFailed, Worker
from tenfold.ladder.rungs import RUNGS, Rung, apply, bottom, skipped
from tenfold.run import Run, preset

CPU = Hardware("cpu", "A processor", 2, 24 << 30, native_bf16=True, torch="2.13.0", compiler="g++", libc="glibc")
RUN = Run(preset="tiny", model=replace(TINY, padded_vocab=0), recipe=replace(preset("demo").recipe, rows=4, length=32))
QUICK = Terms(timed=1, parity=10, products=False)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny tensors: threads that wait for each other only slow the workers down."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def base() -> Run:
    """The naive configuration of a tiny model on a CPU."""
    return bottom(measurable(RUN, 4, 32), "cpu", 4)


def climbed(rungs: Sequence[Rung], terms: Terms = QUICK) -> dict[str, Row]:
    """Rows by name after climbing."""
    with Climber(base(), detect("cpu"), terms, lambda rows, current: None) as climber:
        return {row.name: row for row in climber.climb(rungs)}


def rung(name: str) -> Rung:
    """A rung of the ladder."""
    return next(r for r in RUNGS if r.name == name)


def options(run: Run) -> dict[str, Any]:
    """Every option of a run by its dotted name."""
    parts = {"model": run.model, "recipe": run.recipe, "speed": run.speed}
    return {f"{part}.{name}": value for part, values in parts.items() for name, value in asdict(values).items()}


def test_every_rung_changes_exactly_one_option() -> None:
    below, measured = bottom(measurable(preset("gpt2-124m"), 16, 1024), "cuda", 4), []
    for one in RUNGS:
        above = apply(one, below)
        differ = [name for name, value in options(above).items() if value != options(below)[name]]
        if differ:  # refit finds what batch found where nothing made room in between
            measured.append(one.name)
            assert differ == [one.field]
        below = above
    assert measured == [r.name for r in RUNGS if r.name not in ("naive", "refit")]
    assert below.model.embedding_rows == 50304


def test_the_rungs_begin_naive_and_every_one_is_explained() -> None:
    first = bottom(preset("gpt2-124m"), "cpu", 4)
    assert (first.speed.precision, first.speed.attention, first.speed.fused) == ("fp32", "naive", "no")
    assert first.model.embedding_rows == 50257
    assert "auto" not in asdict(first.speed).values()
    assert list(LESSONS) == [r.name for r in RUNGS]


@pytest.mark.parametrize(
    ("name", "hardware", "reason"),
    [
        ("batch", CPU, "takes minutes on a CPU"),
        ("tf32", CPU, "tf32 needs an NVIDIA GPU"),
        ("ddp", CPU, "there is one device"),
        ("graphs", CPU, "nothing is compiled here"),
        ("compile-model", replace(CPU, compiler=None), r"needs a C\+\+ compiler"),
        ("bf16", replace(CPU, native_bf16=False), "bf16 is not native"),
        ("rows", replace(CPU, kind="cuda", capability=(9, 0)), "for cpu only"),
        ("kept", replace(CPU, libc="musl"), "only glibc"),
    ],
)
def test_what_a_machine_cannot_run_is_skipped_with_the_reason(name: str, hardware: Hardware, reason: str) -> None:
    import re

    told = skipped(rung(name), bottom(RUN, hardware.kind, 2), hardware, everything=False)
    assert told
    assert re.search(reason, told)
    assert "use " not in told  # advice for options has no place in a table


def test_everything_includes_what_takes_minutes() -> None:
    assert skipped(rung("batch"), bottom(RUN, "cpu", 2), CPU, everything=True) is None
    assert skipped(rung("batch"), bottom(RUN, "cuda", 2), replace(CPU, kind="cuda"), everything=False) is None


def test_differences_are_relative_and_the_largest_counts() -> None:
    assert apart([2.0, 4.0, 1.0], [2.0, 5.0, 1.0]) == pytest.approx(0.2)
    assert apart([2.0], [2.0, 5.0]) == 0


@pytest.mark.timeout(200)
def test_rungs_are_measured_and_a_wrong_one_is_caught() -> None:
    """Another learning rate stands for any mistake in a rung: it trains differently, so it fails and nothing stands on
    it. What does not fit the memory, or cannot be at all, ends that rung alone."""
    rows = climbed(
        [
            rung("naive"),
            Rung("wrong", "Another learning rate", "recipe.lr", 4e-2),
            Rung("huge", "Does not fit", "model.width", 1 << 17),
            Rung("unknown", "No such backend", "speed.attention", "none"),
            Rung("fused", "Fused AdamW", "speed.fused", "yes", slack=100.0),
            Rung("slower", "Refused however fast", "speed.recompute", "blocks", slack=-1000.0),
        ]
    )
    assert {name: row.status for name, row in rows.items()} == {
        "naive": "ok",
        "wrong": "failed",
        "huge": "failed",
        "unknown": "failed",
        "fused": "ok",
        "slower": "rejected",
    }
    assert "from naive's; at most 1e-05 is right" in (rows["wrong"].reason or "")
    assert rows["wrong"].parity is not None
    assert rows["wrong"].parity > 1e-4
    assert rows["huge"].reason == "out of memory"
    assert rows["slower"].reason == "slower than the rung below"
    fused = rows["fused"]
    assert fused.parity is not None
    assert fused.parity < 1e-5
    assert fused.parity_with == "naive"
    assert len(fused.losses) == len(fused.step_seconds) == 10
    assert fused.seconds_per_step == fused.step_seconds[2]
    assert fused.spread == [fused.seconds_per_step] * 2
    assert fused.tokens_per_second == pytest.approx(128 / fused.seconds_per_step)
    assert fused.speedup == fused.speedup_before
    assert fused.first_step_seconds == fused.step_seconds[0]
    assert fused.cache is None
    assert fused.mfu is None  # of a CPU no peak rate is known
    assert (fused.peak_memory_bytes or 0) > 50e6


@pytest.mark.timeout(120)
def test_a_broken_kernel_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attention that looks at the future, put into every worker, trains suspiciously well."""
    (tmp_path / "sitecustomize.py").write_text(
        "import tenfold.model.attention as a\n"
        "a.KERNELS['sdpa'] = lambda q, k, v: a.F.scaled_dot_product_attention(q, k, v)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rows = climbed([rung("naive"), rung("sdpa")])
    assert rows["naive"].status == "ok"
    assert rows["sdpa"].status == "failed"
    assert rows["sdpa"].parity is not None
    assert rows["sdpa"].parity > 1e-4


@pytest.mark.timeout(120)
def test_rates_are_compared_with_products_and_the_peak_that_is_given() -> None:
    row = climbed([rung("naive")], replace(QUICK, peak=1e12, products=True))["naive"]
    assert row.seconds_per_step is not None
    assert row.matrix_rate is not None
    rate = 128 * RUN.model.flops(32) / row.seconds_per_step
    assert row.mfu == pytest.approx(rate / 1e12)
    assert row.of_matrix_rate == pytest.approx(rate / row.matrix_rate)
    assert 1e9 < row.matrix_rate < 1e13


def test_blocks_may_be_slower_only_for_a_shorter_first_step() -> None:
    blocks, quick, long = rung("compile-blocks"), Row("b", "", "", "ok", first_step_seconds=9.0), Row("m", "", "", "ok")
    long.first_step_seconds = 60.0
    model = replace(base(), speed=replace(base().speed, compile="model"))

    def slack(best: Run, below: Row | None, hardware: Hardware, row: Row = quick) -> float:
        return Climber(best, hardware, QUICK, lambda rows, current: None, below=below).slack(blocks, row)

    assert slack(model, long, CPU) == blocks.slack > 0
    assert slack(base(), long, CPU) == 0  # the whole model was not compiled: there is nothing to shorten
    assert slack(model, quick, CPU, long) == 0
    assert slack(model, long, replace(CPU, kind="cuda")) == 0
    assert slack(base(), None, CPU) == 0


def test_ladder_and_tune_are_not_run_under_a_launcher(tmp_path: Path) -> None:
    for verb in ("ladder", "tune"):
        command = [sys.executable, "-m", "tenfold", verb, "demo"]
        where = {**environment(), "RANK": "0", "WORLD_SIZE": "2"}
        done = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert f"{verb} starts its own processes; run it without torchrun" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_rung_that_a_cpu_can_run_climbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parity, from a cold compiler's cache; then once more, from a warm one."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    hardware = detect("cpu")
    # how fast is not the question here, and what takes minutes for GPT-2 takes seconds for this model
    rungs = [replace(r, slack=1e9, for_first_step=False, slow=r.slow and r.name != "torch-loss") for r in RUNGS]
    rows = climbed(rungs)
    never = {"batch", "refit", "autotune", "tf32", "ddp", "fp16", "flash", "cudnn", "fa3", "graphs", "fp8", "flex"}
    for name, row in rows.items():
        if row.status == "skipped":
            assert name in never | ({"bf16"} if hardware.lacks("bf16") else set()), f"{name}: {row.reason}"
            assert row.reason
            continue
        assert row.status == "ok", f"{name}: {row.reason}"
        assert row.tolerance is not None
        assert row.parity is None if name == "naive" else row.parity is not None
        if row.parity is not None:
            assert row.parity <= row.tolerance
        compiled = name not in ("naive", "bf16")
        assert (row.cache is not None) == compiled, name
    assert rows["compile-blocks"].cache == "cold"
    again = climbed([rung("naive"), replace(rung("compile-blocks"), slack=1e9, for_first_step=False)])
    assert again["compile-blocks"].status == "ok"
    warm = climbed([rung("naive"), replace(rung("compile-blocks"), slack=1e9, for_first_step=False)])
    assert warm["compile-blocks"].cache == "warm"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_worker_may_be_several_processes() -> None:
    run = base()
    with Worker(run, 3) as alone, Worker(replace(run, speed=replace(run.speed, parallel="ddp")), 3, 2) as two:
        for worker in (alone, two):
            for _ in range(3):
                worker.step()
        assert [s["loss"] for s in two.steps] == pytest.approx([s["loss"] for s in alone.steps], rel=1e-6)


@pytest.mark.timeout(60)
def test_a_worker_that_dies_is_told() -> None:
    with Worker(base(), 3) as worker:
        worker.step()
        worker.process.kill()
        with pytest.raises(RungFailed, match="the system killed it"):
            worker.step()


TINY_LADDER = ["--model.layers", "1", "--model.heads", "2", "--model.width", "32", "--rows", "2", "--length", "32"]


@pytest.mark.timeout(120)
def test_a_ladder_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    shape = record.Shape(4, 32, 4)
    rungs = [rung("naive"), rung("ddp"), replace(rung("fused"), slack=100.0), replace(rung("recompute"), slack=-100.0)]
    measured: list[str] = []

    def climb(stop_at: str = "") -> dict[str, Any]:
        def told(ladder: dict[str, Any], current: str) -> None:
            measured.extend([current] if current else [])
            if current == stop_at:
                raise KeyboardInterrupt

        return record.ladder(RUN, detect("cpu"), "cpu", shape, QUICK, tmp_path, told, rungs=rungs)[0]

    with pytest.raises(KeyboardInterrupt):
        climb(stop_at="recompute")
    kept = json.loads((tmp_path / "ladder.json").read_text())["rungs"]
    assert [r["status"] for r in kept] == ["ok", "skipped", "ok"]
    done = climb(stop_at="none")
    assert measured == ["naive", "fused", "recompute", "recompute"]
    assert done["rungs"][:3] == kept
    assert done["rungs"][3]["status"] == "rejected"
    assert {p.name for p in tmp_path.iterdir()} == {"ladder.json", "ladder.html", "ladder.png"}
    assert json.loads((tmp_path / "ladder.json").read_text()) == done
    with pytest.raises(ConfigError, match=r"of other terms \(rows differ\); give another --out, or --again"):
        record.ladder(RUN, detect("cpu"), "cpu", replace(shape, rows=2), QUICK, tmp_path, lambda d, c: None)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_keeps_what_is_measured_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tenfold", "ladder", "demo", *TINY_LADDER, "--steps", "1"]
    # a compiler that is not there: whatever needs one is skipped, which keeps this short
    where: dict[str, Any] = {"cwd": tmp_path, "env": {**environment(), "CXX": "/nonexistent"}, "text": True}
    file = tmp_path / "ladders" / "demo" / "ladder.json"

    def rungs() -> list[dict[str, Any]]:
        return json.loads(file.read_text())["rungs"] if file.exists() else []

    process = subprocess.Popen(command, stderr=subprocess.PIPE, **where)
    end = time.monotonic() + 100
    while sum(r["status"] == "ok" for r in rungs()) < 1:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted: what is measured is in ladders/demo/ladder.json; the same command goes on" in told
    before = rungs()
    assert 1 <= len(before) < len(RUNGS)
    done = subprocess.run(command, capture_output=True, timeout=120, **where)
    assert done.returncode == 0, done.stderr
    after = rungs()
    assert [r["name"] for r in after] == [r.name for r in RUNGS]
    for was, now in zip(before, after, strict=False):
        assert was["status"] not in ("ok", "rejected") or was == now
    assert {p.name for p in file.parent.iterdir()} == {"ladder.json", "ladder.html", "ladder.png"}
    other = subprocess.run([*command, "--rows", "3"], capture_output=True, timeout=60, **where)
    assert other.returncode == 2
    assert "is a ladder of other terms (rows, at_a_time differ); give another --out, or --again" in other.stderr
    assert rungs() == after


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is no ladder that can be read"),
        ("[]", "is no ladder that can be read"),
        ('{"format": 1}', "is no ladder that can be read"),
    ],
)
def test_a_file_that_is_no_ladder_is_not_replaced(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "ladder.json").write_text(content)
    shape = record.Shape(4, 32, 4)
    with pytest.raises(ConfigError, match=told):
        record.ladder(RUN, CPU, "cpu", shape, QUICK, tmp_path, lambda done, current: None)
    assert (tmp_path / "ladder.json").read_text() == content


def test_a_model_that_does_not_fit_the_host_is_refused(tmp_path: Path) -> None:
    """By how much, before anything is started: 16 bytes for each of 1,557,611,200 parameters, and a row's activations
    and logits."""
    big = bottom(measurable(preset("gpt2-1558m"), 4, 512), "cpu", 4)
    with pytest.raises(
        HardwareError, match=r"gpt2-1558m needs 27\.7 GB for one row of 512 in fp32, 11\.7 GB more than"
    ):
        check_fits(big, replace(CPU, memory_bytes=16_000_000_000))
    check_fits(big, replace(CPU, memory_bytes=28_000_000_000))
    small, shape = replace(CPU, memory_bytes=25_000_000_000), record.Shape(4, 512, 4)
    with pytest.raises(HardwareError, match=r"2\.7 GB more"):
        record.ladder(preset("gpt2-1558m"), small, "cpu", shape, QUICK, tmp_path / "new", lambda d, c: None)
    assert not (tmp_path / "new").exists()


def test_the_shape_of_a_step_suits_the_machine() -> None:
    gpt2 = preset("gpt2-124m")
    h200 = replace(CPU, kind="cuda", memory_bytes=150_000_000_000)
    assert record.shape(gpt2, CPU) == record.Shape(2, 512, 2)
    assert record.shape(gpt2, h200) == record.Shape(64, 1024, 4)
    assert record.shape(gpt2, replace(h200, memory_bytes=16_000_000_000)) == record.Shape(8, 1024, 4)
    assert record.shape(gpt2, CPU, rows=2, length=128) == record.Shape(2, 128, 2)
    assert record.shape(preset("demo"), CPU) == record.Shape(8, 128, 8)
    assert record.shape(gpt2, CPU, search=True) == record.Shape(2, 512, 1)
    with pytest.raises(ConfigError, match=r"--length 2048 is more than model.context 1024"):
        record.shape(gpt2, CPU, length=2048)
    with pytest.raises(ConfigError, match="--rows -1"):
        record.shape(gpt2, CPU, rows=-1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ladder"], "ladder needs a preset first"),
        (["ladder", "gpt3"], "no preset 'gpt3'"),
        (["ladder", "demo", "--rows", "-3"], "--rows -3"),
        (["ladder", "demo", "--peak", "0"], "give positive numbers"),
        (["ladder", "demo", "--length", "4096"], "more than model.context 128"),
        (["tune"], "tune needs a preset first"),
        (["tune", "demo", "--minutes", "0"], "--minutes 0.0: give a number above 0"),
    ],
)
def test_mistakes_are_one_line(tenfold: Tenfold, arguments: list[str], told: str) -> None:
    done = tenfold(*arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
