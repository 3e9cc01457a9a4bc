"""The README's commands work, in its order, in one folder."""

import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from conftest import ROOT, TINY_OPTIONS, environment, words
from scoring import stories, write
from server import hub, serve

README = (ROOT / "README.md").read_text()


REAL = "## Real data in, real scores out"  # the part whose commands need the Hub


def commands(text: str) -> list[str]:
    """Every line of the sh blocks of a text, without its comment."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    return [line.split(" #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def parts() -> tuple[list[str], list[str]]:
    """The commands that need nothing, and those of the part that needs the Hub."""
    before, _, rest = README.partition(REAL)
    real, _, after = rest.partition("\n## ")
    return commands(before + after), commands(real)


def test_there_are_commands() -> None:
    assert [[c.split()[0] for c in part].count("tenfold") for part in parts()] == [4, 6]


def test_make_has_the_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M))
    assert {"demo", "test", "setup", "test-all"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.timeout(240)
def test_the_commands_work(tmp_path: Path) -> None:
    """Trainings are cut short and made tiny; nothing else is changed."""
    (tmp_path / "my.txt").write_text("The " + words(4000))
    for line in parts()[0]:
        if line.startswith(("make", "pip")):
            continue  # test_make_has_the_targets; the environment of the tests has it
        command = shlex.split(line)
        if command[0] == "torchrun":
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                *command[1:],
                "--data",
                "data/mine",
            ]
        else:
            command = [sys.executable, "-m", *command]
        if "train" in command:
            command += [*TINY_OPTIONS, "--speed.precision", "fp32"]
        if "watch" in command:
            watched(command, tmp_path)
            continue
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (line, done.stderr[-2000:])
    assert (tmp_path / "runs/mine/checkpoints/step-000020/model.safetensors").is_file()
    assert (tmp_path / "runs/two/checkpoints/step-000020/model.safetensors").is_file()


def watched(command: list[str], folder: Path) -> None:
    """The page comes up, and ends by Ctrl-C."""
    server = subprocess.Popen(
        [*command, "--port", "0"], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert server.stdout
    with server, server.stdout:
        address = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert b"tenfold" in answer.read()
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0


def stand_in(tmp_path: Path) -> dict:
    """What a Hub would answer that has a small dataset of FineWeb-Edu's form and a small GPT-2."""
    rows = [{"text": words(60, i), "score": 3.0} for i in range(200)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    shape = GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=64)
    GPT2LMHeadModel(shape).save_pretrained(tmp_path / "gpt2")
    rows_file = {"sample/10BT/000_00000.parquet": (tmp_path / "rows.parquet").read_bytes()}
    weights = {name: (tmp_path / "gpt2" / name).read_bytes() for name in ("config.json", "model.safetensors")}
    return {
        **hub("HuggingFaceFW/fineweb-edu", rows_file),
        **hub("openai-community/gpt2", weights, kind="models"),
    }


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_commands_that_need_the_hub_work_with_a_small_one(tmp_path: Path) -> None:
    """From text on a Hub to a trained, evaluated, exported and fine-tuned model; what is added makes it small."""
    (tmp_path / "my.txt").write_text("The " + words(4000))
    (tmp_path / "sets").mkdir()
    write(tmp_path / "sets/hellaswag_val.jsonl", stories(6))
    write(tmp_path / "sets/lambada_test.jsonl", [{"text": f"ba ke lo {word}"} for word in ("mi", "nu", "ra")])
    (tmp_path / "sets/wikitext2.test.raw").write_text(" \n = Ba = \n \n" + " ke lo mi nu ra \n" * 20)
    added = {
        "prepare": ["--val-tokens", "3000"],
        "train gpt2-124m": [*TINY_OPTIONS, "--speed.precision", "fp32"],
        "train finetune": ["--recipe.rows", "2", "--recipe.length", "32", "--recipe.steps", "3"],
        "eval": ["--data", "sets"],
    }
    with serve(stand_in(tmp_path)) as site:
        here = {**environment(), "HF_ENDPOINT": site.url, "HF_HOME": str(tmp_path / "hf")}
        for line in parts()[1]:
            more = next((options for verb, options in added.items() if line.startswith(f"tenfold {verb}")), [])
            command = [sys.executable, "-m", *shlex.split(line), *more]
            done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, (line, done.stderr[-2000:])
    for name, steps in (("gpt2-124m", 20), ("released", 0), ("tuned", 3)):
        assert (tmp_path / f"runs/{name}/checkpoints/step-{steps:06d}/model.safetensors").is_file(), name
    assert GPT2LMHeadModel.from_pretrained(tmp_path / "out").config.vocab_size == 50257


@pytest.mark.timeout(240)
def test_the_python_works(tmp_path: Path) -> None:
    """The Python block, with a shorter training on little data."""
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    (tmp_path / "my.txt").write_text(words(4000))
    code = block.replace("steps=100", "steps=3").replace('name="short"', 'name="short", data="my.txt"')
    assert code != block
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout) > 3
