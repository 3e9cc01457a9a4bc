"""The command line, as real processes: the happy path, and one clear line and exit code 2 for each mistake."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import TINY_OPTIONS, Tenfold, environment, torchrun, words
from tenfold import rundir
from tenfold.data.shards import HEADER, Corpus, open_corpus
from tenfold.errors import CheckpointError
from tenfold.hardware import FEATURES, Hardware
from tenfold.listing import NAMES, machine_table
from tenfold.prepare import prepare_text
from tenfold.run import from_dict
from tenfold.training import checkpoint

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def tiny(corpus: Corpus) -> list[str]:
    """Options of a training that takes a second."""
    return ["--data", str(corpus.path), *TINY_OPTIONS, "--speed.precision", "fp32"]


def refused(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """A user's mistake: exit code 2, one line that has these words, no stack trace."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("tenfold: ")]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], lines[0]


def test_train_resume_sample_and_list(tenfold: Tenfold, tiny: list[str], tmp_path: Path) -> None:
    first = tenfold("train", "demo", "--name", "one", *tiny, "--stop-at", 10)
    assert first.returncode == 0, first.stderr
    assert "validation loss" in first.stderr
    assert "tenfold train demo --name one" in first.stdout
    second = tenfold("train", "demo", "--name", "one")  # what is left out keeps its saved value
    assert second.returncode == 0, second.stderr
    assert "steps 10 to 20" in second.stderr
    assert "20 of 20 steps" in second.stdout
    assert json.loads((tmp_path / "runs/one/run.json").read_text())["model"]["width"] == 32
    texts = [tenfold("sample", "one", "--prompt", "ba", "--tokens", 30, "--seed", 3).stdout for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("ba")
    greedy = tenfold("sample", "runs/one", "--prompt", "ba", "--tokens", 30, "--temperature", 0, "--samples", 2).stdout
    a, b = greedy.split("---\n")
    assert a == b
    listed = tenfold("runs").stdout
    assert re.search(r"one +demo +done +20 / 20", listed), listed
    refused(tenfold("train", "demo", "--name", "one", "--recipe.steps", 30), "recipe.steps was 20, given 30", "--allow")
    longer = tenfold("train", "demo", "--name", "one", "--recipe.steps", 30, "--allow", "recipe.steps")
    assert longer.returncode == 0
    assert "recipe.steps changed from 20 to 30" in longer.stderr
    assert "30 of 30 steps" in longer.stdout
    third = tenfold("train", "demo", "--name", "one")
    assert third.returncode == 0
    assert "30 of 30 steps" in third.stdout


def test_prepare_train_and_sample_own_text(tenfold: Tenfold, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(words(5000))
    done = tenfold("prepare", "mine.txt", "--tokenizer", "chars", "--out", "data/mine")
    assert done.returncode == 0, done.stderr
    again = tenfold("prepare", "mine.txt", "--tokenizer", "chars", "--out", "data/mine")
    assert "complete already" in again.stderr
    options = [*TINY_OPTIONS, "--stop-at", 5, "--speed.precision", "fp32"]
    done = tenfold("train", "shakespeare-char", "--name", "mine", "--data", "data/mine", *options)
    assert done.returncode == 0, done.stderr
    done = tenfold("sample", "mine", "--prompt", "ba", "--tokens", 20)
    assert done.returncode == 0
    assert done.stdout.startswith("ba")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], ["no verb 'trian', did you mean 'train'?", "possible are train"]),
        (["train"], ["train needs a preset first", "gpt2-124m"]),
        (["train", "gpt2-124"], ["no preset 'gpt2-124', did you mean 'gpt2-124m'?", "shakespeare-char"]),
        (["train", "gpt2-124m"], ["no data at data/fineweb-edu", "--data"]),
        (["train", "demo", "--data", "nowhere"], ["no data at nowhere", "tenfold prepare"]),
        (["train", "demo", "--name", "../x"], ["--name '../x'"]),
        (["train", "demo", "--recipe.rows", "0"], ["recipe.rows is 0", "at least 1"]),
        (["train", "demo", "--recipe.lr", "-1"], ["recipe.lr is -1"]),
        (["train", "demo", "--model.heads", "3"], ["model.width 128 is not divisible by model.heads 3"]),
        (["train", "demo", "--speed.rows", "0"], ["speed.rows is 0"]),
        (["train", "demo", "--cadence.log", "-1"], ["cadence.log is -1"]),
        (["train", "demo", "--stop-at", "0"], ["--stop-at 0"]),
        (["train", "demo", "--speed.device", "gpu"], ["speed.device is 'gpu'", "cpu, cuda"]),
        (["train", "demo", "--speed.device", "mps"], ["speed.device 'mps' is not here", "sees cpu"]),
        (["sample", "nothing"], ["no run 'nothing'", "runs/ has no run yet"]),
        (["sample", "nothing", "--temperature", "-1"], ["temperature is -1"]),
        (["sample", "nothing", "--seed", "99999999999999999999"], ["seed is 99999999999999999999"]),
        (["train", "demo", "--recipe.seed", "99999999999999999999"], ["recipe.seed is 99999999999999999999"]),
        (["train", "demo", "--name", "x" * 300], ["cannot name a run"]),
        (["train", "demo", "--name", "x", "--allow", "recipe.lr", "--data", "nowhere"], ["no data at nowhere"]),
        (["runs", "nowhere"], ["nowhere is no folder"]),
        (["prepare", "nothing.txt"], ["nothing.txt"]),
    ],
)
def test_mistakes_are_told_in_one_line(tenfold: Tenfold, arguments: list[str], message: list[str]) -> None:
    refused(tenfold(*arguments), *message)


@pytest.mark.parametrize(
    ("option", "value", "nearest"),
    [
        ("--recipe.lrr", "1", "--recipe.lr"),
        ("--speed.precison", "bf16", "--speed.precision"),
        ("--stop", "3", "--stop-at"),
        ("--recipe.lr", "fast", "float"),
        ("--speed.precision", "bf17", "bf16"),
    ],
)
def test_mistyped_options_name_the_nearest(tenfold: Tenfold, option: str, value: str, nearest: str) -> None:
    """T49: a mistyped option names the nearest and where help is, a wrong value what is possible; exit code 2."""
    done = tenfold("train", "demo", option, value)
    assert done.returncode == 2
    assert nearest in done.stdout + done.stderr
    assert "tenfold train demo --help" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", [[], ["train"], ["train", "gpt2-124m"], ["prepare"], ["sample"], ["runs"], ["info"]])
def test_help(tenfold: Tenfold, verb: list[str]) -> None:
    """T49: help is printed, with every option."""
    done = tenfold(*verb, "--help")
    assert done.returncode == 0
    assert "usage: tenfold" in done.stdout
    if verb[:1] == ["train"]:
        for option in [
            "--data",
            "--stop-at",
            "--allow",
            "--name",
            "--recipe.steps",
            "--recipe.lr",
            "--recipe.rows",
            "--recipe.length",
            "--recipe.seed",
            "--speed.device",
            "--speed.precision",
            "--speed.compile",
            "--speed.attention",
            "--speed.parallel",
            "--speed.rows",
            "--speed.recompute",
            "--cadence.log",
            "--cadence.eval",
            "--cadence.sample",
            "--cadence.save",
        ]:
            assert option in done.stdout


def test_info_tells_the_machine(tenfold: Tenfold) -> None:
    done = tenfold("info", "--device", "cpu")
    assert done.returncode == 0
    assert "(cpu)" in done.stdout
    assert "tf32" in done.stdout
    assert "no: tf32 needs an NVIDIA GPU" in done.stdout
    assert "peak rate" in done.stdout
    for feature in FEATURES:
        assert f"\n{NAMES.get(feature, feature)} " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_info_names_the_torch_for_a_card_that_this_one_lacks_kernels_for() -> None:
    v100 = Hardware("cuda", "Tesla V100-SXM2-16GB", 1, 16_945_512_448, (7, 0), torch="2.13.0+cu130", triton=True)
    told = " ".join(machine_table(replace(v100, built_for=("sm_75", "sm_90"))).split())
    assert "unusable" in told
    assert "built for CUDA 12.6" in told
    assert "fp32 15.7, tf32 unknown, bf16 unknown, fp16 125, fp8 unknown TFLOP/s dense (V100 SXM2 16GB)" in told
    assert "unusable" not in machine_table(v100)


def test_explicit_speed_that_cannot_run_is_refused(tenfold: Tenfold, tiny: list[str]) -> None:
    refused(
        tenfold("train", "demo", *tiny[:-2], "--speed.precision", "tf32"), "tf32 needs an NVIDIA GPU", "fp32 or auto"
    )
    several = tenfold("train", "demo", *tiny, "--speed.parallel", "none", processes=2)
    assert several.returncode != 0
    assert "2 processes were started; use ddp, fsdp or auto" in several.stderr


def damaged(corpus: Corpus, target: Path, change: str) -> Path:
    """A copy of a corpus with one thing wrong."""
    import shutil

    shutil.copytree(corpus.path, target)
    shard = sorted(target.glob("train_*.bin"))[0]
    content = bytearray(shard.read_bytes())
    if change == "truncated":
        content = content[:-7]
    elif change == "foreign":
        content[:4] = b"RIFF"
    elif change == "dtype":
        content[12] = 4
    elif change == "id":
        content[HEADER.size + 2 * 1234 : HEADER.size + 2 * 1235] = np.uint16(300).tobytes()
    shard.write_bytes(content)
    if change == "missing":
        shard.unlink()
    return target


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("truncated", "bytes"),
        ("foreign", "is not a tenfold shard"),
        ("dtype", "bytes an id"),
        ("missing", "cannot read the shard"),
        ("id", "the id 300 at position 1234"),
    ],
)
def test_damaged_shards_are_refused_before_the_first_step(
    tenfold: Tenfold, tiny: list[str], corpus: Corpus, tmp_path: Path, change: str, message: str
) -> None:
    path = damaged(corpus, tmp_path / "bad", change)
    refused(tenfold("train", "demo", "--data", path, *tiny[2:]), "train_000000.bin", message)
    assert not (tmp_path / "runs/demo").exists()


def test_data_that_does_not_fit_the_model_is_refused(tenfold: Tenfold, tiny: list[str], tmp_path: Path) -> None:
    refused(tenfold("train", "demo", *tiny, "--model.vocab", 200), "257 token ids", "model.vocab is 200")
    refused(tenfold("train", "demo", *tiny, "--recipe.length", 64), "recipe.length 64", "model.context 32")
    (tmp_path / "short.txt").write_text("too short for a row of thirty-two.")
    refused(tenfold("train", "demo", "--data", "short.txt", *TINY_OPTIONS), "too few for one row of 32")


def test_no_account_and_no_network_are_needed(tenfold: Tenfold, tiny: list[str], tmp_path: Path) -> None:
    """No prompt, no login: whatever is recorded lies in the run folder."""
    done = tenfold("train", "demo", *tiny, "--stop-at", 3)
    assert done.returncode == 0
    assert (tmp_path / "runs/demo/metrics.jsonl").is_file()
    assert not {p.name for p in tmp_path.iterdir()} - {"runs", "data"}


def test_start_up_needs_no_torch() -> None:
    code = "import sys, tenfold, tenfold.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def wait_for(path: Path, needle: str, process: "subprocess.Popen[str]") -> None:
    """Until a file has a word in it, for a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if path.exists() and needle in path.read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"{needle} never came to {path}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_signals_save_and_exit_with_their_code(tiny: list[str], tmp_path: Path, number: int, code: int) -> None:
    command = [
        sys.executable,
        "-m",
        "tenfold",
        "train",
        "demo",
        *tiny,
        "--recipe.steps",
        "100000",
        "--cadence.eval",
        "0",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "runs/demo/metrics.jsonl", '"step": 20,', process)
    os.kill(process.pid, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert "saving, then stopping" in told
    records = rundir.read_metrics(tmp_path / "runs/demo")
    assert records[-1]["event"] == "stopped"
    assert records[-1]["step"] == max(checkpoint.saved_steps(tmp_path / "runs/demo/checkpoints"))


def test_a_signal_to_one_rank_saves_at_one_step_on_all(tiny: list[str], tmp_path: Path) -> None:
    """SIGTERM to the processes of a group, at different moments: one checkpoint, then every one ends."""
    arguments = ["train", "demo", *tiny, "--recipe.steps", "100000", "--cadence.eval", "0"]
    command = [*torchrun(2), "-m", "tenfold", *arguments]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "runs/demo/metrics.jsonl", '"step": 20,', process)
    ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, timeout=20).stdout.split()
    os.kill(int(ranks[-1]), signal.SIGTERM)
    _, told = process.communicate(timeout=90)
    assert "exitcode  : 75" in told, told[-3000:]
    steps = list(checkpoint.saved_steps(tmp_path / "runs/demo/checkpoints"))
    records = rundir.read_metrics(tmp_path / "runs/demo")
    assert records[-1]["event"] == "stopped"
    assert records[-1]["step"] == steps[-1]
    assert steps[-1] % 10  # not one that was due


def test_after_a_change_of_processes_the_next_rows_are_the_unused_ones(
    tenfold: Tenfold, tiny: list[str], tmp_path: Path
) -> None:
    """2 processes to step 7, alone to 13, then 3: the losses of an unbroken run on one."""
    assert tenfold("train", "demo", "--name", "whole", *tiny).returncode == 0
    for processes, stop in ((2, ["--stop-at", 7]), (0, ["--stop-at", 13]), (3, [])):
        done = tenfold("train", "demo", "--name", "parts", *tiny, *stop, processes=processes)
        assert done.returncode == 0, done.stderr[-3000:]
    a, b = (
        {r["step"]: r["loss"] for r in rundir.read_metrics(tmp_path / "runs" / name) if "loss" in r}
        for name in ("parts", "whole")
    )
    assert list(a) == list(range(20))
    assert list(a.values()) == pytest.approx(list(b.values()), rel=1e-6)


def test_a_run_whose_file_is_damaged_is_told(tenfold: Tenfold, tiny: list[str], tmp_path: Path) -> None:
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/run.json").write_text('{"format": 1, "mod')
    refused(tenfold("train", "demo", *tiny), "runs/demo/run.json is damaged")
    (tmp_path / "runs/demo/run.json").write_text('{"format": 9}')
    refused(tenfold("train", "demo", *tiny), "format 9", "update tenfold")
    for content, message in (
        ('"model": {"depth": 3}', "unknown model fields depth"),
        ('"recipe": []', "no fields for recipe"),
        ('"recipe": {"rows": "x"}', "recipe.rows 'x', which it cannot be"),
        ('"recipe": {"rows": 8.5}', "recipe.rows 8.5"),
        ('"recipe": {"optimizer": "sgd"}', "recipe.optimizer 'sgd'"),
        ('"speed": {"rows": "5"}', "speed.rows '5'"),
        ('"data": 5', "data 5"),
    ):
        (tmp_path / "runs/demo/run.json").write_text(f'{{"format": 1, {content}}}')
        with pytest.raises(CheckpointError, match=re.escape(message)):
            from_dict(rundir.read_run(tmp_path / "runs/demo"), "run.json")
    refused(tenfold("train", "demo", *tiny), message)
    assert message in tenfold("runs").stdout


@pytest.mark.parametrize("way", ["runs", "runs/demo", "runs/demo/metrics.jsonl/", "runs/demo/checkpoints"])
def test_something_in_the_way_is_told_in_one_line(tenfold: Tenfold, tiny: list[str], tmp_path: Path, way: str) -> None:
    path = tmp_path / way
    if way.endswith("/"):
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("in the way")
    done = tenfold("train", "demo", *tiny, "--stop-at", 2)
    refused(done)
    assert way.rstrip("/") in done.stderr


@pytest.mark.timeout(200)
def test_processes_that_see_different_checkpoints_do_not_train(tiny: list[str], tmp_path: Path) -> None:
    """Two processes in folders of their own, as on two machines that do not share runs/."""
    one = subprocess.run(
        [sys.executable, "-m", "tenfold", "train", "demo", *tiny, "--stop-at", "5"],
        cwd=tmp_path, env=environment(), capture_output=True, timeout=100,
    )  # fmt: skip
    assert one.returncode == 0
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "start.py"
    script.write_text(
        "import os, sys\nif os.environ['RANK'] == '1': os.chdir('elsewhere')\nfrom tenfold.cli import main\nmain()"
    )
    command = [*torchrun(2), str(script), "train", "demo", *tiny, "--stop-at", "8"]
    two = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=150)
    assert two.returncode != 0
    assert "the processes do not agree on the run, its newest checkpoint" in two.stderr
    assert list(checkpoint.saved_steps(tmp_path / "runs/demo/checkpoints")) == [5]


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Anonymous memory after reading all rows of 0.2 MB and of 40 MB of shards differs by less than 8 MB."""
    code = (
        "import sys, torch; from tenfold.data.shards import open_corpus; from tenfold.data.batches import Batches\n"
        "from tenfold.data.split import split\n"
        "tokens = open_corpus(sys.argv[1]).train; tokens.check(257)\n"
        "b = Batches(tokens, split(64, 1024, 1, 64), 1, 0, torch.device('cpu'))\n"
        "for p in range(max(50, b.available // 64)): b.take(p, 0)\n"
        "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('RssAnon')))"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("RssAnon is read from Linux's /proc")
    used = []
    for megabytes in (0.4, 40):
        text, out = tmp_path / f"{megabytes}.txt", tmp_path / f"shards-{megabytes}"
        text.write_text("abcdefghij klmnop " * int(megabytes * 1e6 / 2 / 18))
        prepare_text(text, out, "bytes")
        assert len(open_corpus(out).train) > megabytes * 4e5
        done = subprocess.run([sys.executable, "-c", code, out], capture_output=True, text=True, timeout=200)
        used.append(int(done.stdout))
    assert used[1] - used[0] < 8_000
