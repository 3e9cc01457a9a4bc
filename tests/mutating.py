"""What tests/test_mutations.py starts: good files of every kind that tenfold reads, damaged in many ways, and the
command that reads them, as a user would give it.

Every command runs in this process, through the same `main` that ends a real one, with a time limit and a limit on
memory. Around the folder that it works in lies another one, which must stay as it is. The outcomes are printed as JSON.
"""

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import pickle
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from conftest import TINY_OPTIONS, words
from tenfold import hardware
from tenfold.cli import main
from tenfold.data.tokenizer import Bytes, Gpt2
from tenfold.exchange.exporting import export
from tenfold.exchange.llmc import order
from tenfold.ladder import tune
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.prepare import prepare_text
from tenfold.run import preset
from tenfold.training.checkpoint import digest
from tenfold.training.speed import Speed

SECONDS = 10  # a command may take; on a quiet machine they take less than one
MEMORY = 3 << 30  # bytes that a command may need on top of what this process has
LOADED = (0, 1)  # exit codes: done, and `check` found a run that is off
ROW = b'{"text": "ba ke lo, mi nu ra."}\n'
TRAIN = ["train", "demo", "--data", "data", *TINY_OPTIONS, "--recipe.steps", "3", "--cadence.sample-tokens", "3"]
SMALL = ModelConfig(1, 2, 8, 16)  # GPT-2's vocabulary, padded


# Good files


def text(here: Path) -> None:
    (here / "words.txt").write_text(words(600))


def corpus(here: Path) -> None:
    text(here)
    prepare_text(here / "words.txt", here / "data", "bytes", shard_tokens=2_000)


def run(here: Path) -> None:
    """A run of three steps, stopped after two."""
    corpus(here)
    done = command(here, [*TRAIN, "--stop-at", "2"])
    assert done.code == 0, done.said


def filmed(here: Path) -> None:
    """Such a run with a film of its checkpoint."""
    run(here)
    done = command(here, ["film", "demo"])
    assert done.code == 0, done.said


def foreign(here: Path) -> None:
    """The same ids in the formats of three programs."""
    ids = np.array([15496, 11, 314, 1101, 257, 3303, 2746, 11, 50256] * 9, "<u2")
    for split in ("train", "val"):
        for name in ("llmc", "npy", "raw", "chars"):
            (here / name).mkdir(exist_ok=True)
        header = struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253)
        (here / f"llmc/words_{split}.bin").write_bytes(header + ids.tobytes())
        np.save(here / f"npy/words_{split}_000000.npy", ids)
        (here / f"raw/{split}.bin").write_bytes(ids.tobytes())
        (here / f"chars/{split}.bin").write_bytes((ids % 5).tobytes())
    symbols = dict(enumerate("abcde"))
    meta = {"vocab_size": 5, "itos": symbols, "stoi": {symbol: i for i, symbol in symbols.items()}}
    (here / "chars/meta.pkl").write_bytes(pickle.dumps(meta))


def huggingface(here: Path) -> None:
    """A folder with a tokenizer of ours and one with GPT-2's, whose weights are two pieces."""
    export(GPT(ModelConfig(1, 2, 8, 16, 257, 0)).initialise(1).eval(), Bytes(), here / "hf", "hf", "", str)
    export(GPT(SMALL).initialise(1).eval(), Gpt2(), here / "pieces", "hf", "", str)
    (here / "pieces/tokenizer_config.json").unlink()
    (here / "pieces/tokenizer.json").unlink()
    whole = here / "pieces/model.safetensors"
    weights = load_file(whole)
    whole.unlink()
    index = {}
    for number, names in enumerate((list(weights)[::2], list(weights)[1::2]), 1):
        save_file({name: weights[name] for name in names}, here / f"pieces/model-{number}.safetensors")
        index |= dict.fromkeys(names, f"model-{number}.safetensors")
    (here / "pieces/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def files_of_models(here: Path) -> None:
    """A model in llm.c's form and one in nanoGPT's."""
    weights = GPT(SMALL).initialise(1).state_dict()
    header = np.array([20240326, 3, 16, 50257, 1, 2, 8, 50304, *[0] * 248], "<i4")
    (here / "llmc.bin").write_bytes(header.tobytes() + b"".join(weights[name].numpy().tobytes() for name in order(1)))
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 16, "vocab_size": 50304, "bias": True}
    torch.save(
        {"model": {f"_orig_mod.transformer.{n}": t for n, t in weights.items()}, "model_args": shape}, here / "c.pt"
    )


def sources(here: Path) -> None:
    """The same rows in every form that text comes in."""
    rows = b"".join(ROW.replace(b"ba", str(i).encode()) for i in range(40))
    (here / "rows.jsonl").write_bytes(rows)
    (here / "rows.jsonl.gz").write_bytes(gzip.compress(rows))
    (here / "rows.jsonl.xz").write_bytes(lzma.compress(rows))
    (here / "rows.jsonl.zst").write_bytes(pyarrow.compress(rows, "zstd", asbytes=True))
    texts = [json.loads(line)["text"] for line in rows.splitlines()]
    parquet.write_table(pyarrow.table({"text": texts, "id": list(range(40))}), here / "rows.parquet", row_group_size=9)
    text(here)


class Enough(Exception):
    """Stops a preparation."""


def journal(here: Path) -> None:
    """A preparation that was stopped on its way, after its journal was written."""
    (here / "rows.jsonl").write_bytes(b"".join(b'{"text": "%d %s"}\n' % (i, b"lo " * 20_000) for i in range(40)))

    def stop(told: Any) -> None:
        if isinstance(told, dict) and told["phase"] == "write":
            raise Enough

    with contextlib.suppress(Enough):
        prepare_text(
            here / "rows.jsonl",
            here / "out",
            "bytes",
            report=stop,
            commit_tokens=5_000,
            shard_tokens=500_000,
            dedup=True,
        )
    assert (here / "out/progress.json").exists()


def logs(here: Path) -> None:
    """Logs of three programs."""
    losses = [(0, 10.98), (250, 6.02), (500, 4.81), (1000, 4.05)]
    (here / "log.txt").write_text("".join(f"{step} val {loss}\n{step} hella 0.25\n" for step, loss in losses))
    (here / "main.log").write_text("".join(f"s:{step} tel:{loss}\ns:{step} eval:0.25\n" for step, loss in losses))
    (here / "nano.log").write_text(
        "".join(f"step {step}: train loss {loss}, val loss {loss}\niter 9: loss 1\n" for step, loss in losses)
    )


def sets(here: Path) -> None:
    """A run, and sets to score it on."""
    run(here)
    story = {"activity_label": "a", "ctx": "ba ke", "ctx_a": "ba ke", "ctx_b": "", "label": 1}
    (here / "hellaswag_val.jsonl").write_text((json.dumps({**story, "endings": ["lo", "mi", "nu", "ra"]}) + "\n") * 3)
    (here / "lambada_test.jsonl").write_bytes(ROW * 3)
    (here / "wikitext2.test.raw").write_text(" = A = \n ba ke lo mi .\n \n" * 4)
    arc = {"question": "ba?", "choices": ["ke", "lo"], "gold": 0}
    (here / "arc_easy").mkdir()
    (here / "arc_easy/arc_easy_test.jsonl").write_text((json.dumps(arc) + "\n") * 3)


def tuned(here: Path) -> None:
    """What was tuned for the model that is trained."""
    corpus(here)
    model = ModelConfig(2, 2, 32, 32, 257, 0, preset("demo").model.bias)
    found = tune.Tuned(Speed(precision="fp32", compile="none", rows=4), 2.0, 1.0, "2026-01-01")
    asked = preset("demo").speed
    with contextlib.chdir(here):
        path = tune.remember(found, model, 32, hardware.detect("auto"), asked)
        assert tune.recall(model, 32, hardware.detect("auto"), asked)[0]
    assert path.resolve().is_relative_to(here.resolve())


@dataclass(frozen=True)
class Kind:
    """What is made, which of it is damaged (patterns of paths), and the command that reads it; {} is what was damaged.
    `hashed` is the file that states SHA-256s, which are often set right again; where they are not, what was damaged
    must be told. `whole` is what the command makes, which must be the same as from good files."""

    make: Callable[[Path], None]
    damaged: tuple[str, ...]
    command: tuple[str, ...]
    hashed: str = ""
    whole: str = ""


STEP = "runs/demo/checkpoints/step-000002"
WEIGHTS = (f"{STEP}/state.json", f"{STEP}/model.safetensors", f"{STEP}/optimizer.safetensors", "runs/demo/run.json")
KINDS = {
    "checkpoint, sampled": Kind(run, WEIGHTS, ("sample", "demo", "--tokens", "3"), f"{STEP}/state.json"),
    "checkpoint, resumed": Kind(run, (*WEIGHTS, "runs/demo/metrics.jsonl"), ("train", "demo"), f"{STEP}/state.json"),
    "run, listed": Kind(run, ("runs/demo/run.json", "runs/demo/metrics.jsonl"), ("runs",)),
    "run, checked": Kind(
        run, ("runs/demo/run.json", "runs/demo/metrics.jsonl"), ("check", "demo", "--curve", "fineweb-edu-124m")
    ),
    "film": Kind(filmed, ("runs/demo/film/film.json",), ("film", "demo")),
    "corpus": Kind(corpus, ("data/manifest.json", "data/*.bin", "data/.*.json"), ("data", "show", "data")),
    "corpus, trained on": Kind(corpus, ("data/manifest.json", "data/*.bin"), (*TRAIN, "--stop-at", "1")),
    "tokens of others": Kind(foreign, ("*/*.bin", "*/*.npy", "*/meta.pkl", "*/meta.pkl"), ("data", "show", "{folder}")),
    "hugging face": Kind(huggingface, ("hf/*.json", "hf/model.safetensors"), ("import", "hf", "--name", "taken")),
    "hugging face, pieces": Kind(
        huggingface, ("pieces/*.json", "pieces/*.safetensors"), ("import", "pieces", "--name", "taken")
    ),
    "files of models": Kind(files_of_models, ("llmc.bin", "c.pt"), ("import", "{file}", "--name", "taken")),
    "sources": Kind(sources, ("rows.*", "words.txt"), ("prepare", "{file}", "--tokenizer", "bytes", "--out", "new")),
    "journal": Kind(
        journal,
        ("out/progress.json", "out/progress.json", "out/*.bin*", "out/digests.partial"),
        ("prepare", "rows.jsonl", "--tokenizer", "bytes", "--shard-tokens", "500000", "--dedup", "--out", "out"),
        whole="out/*.bin",
    ),
    "logs": Kind(logs, ("*.txt", "*.log"), ("check", "{file}", "--curve", "fineweb-edu-124m")),
    "sets": Kind(
        sets,
        ("*.jsonl", "*.raw", "arc_easy/*"),
        ("eval", "demo", "--tasks", "{task}", "--data", "{file}", "--device", "cpu"),
    ),
    "tuned": Kind(tuned, ("cache/tenfold/tuned/*.json",), (*TRAIN, "--stop-at", "1")),
}
TASKS = {"hella": "hellaswag", "lamba": "lambada", "wikit": "wikitext2", "arc_e": "arc_easy"}


# Damage

HUGE = (-1, 0, 1, 2**31 - 1, -(2**31), 10**9, 2**32 - 1, 2**63 - 1, 10**18)
VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "text", [], {}, [None], {"a": 1}, 0, -1, 1.5, 10**9, 10**18, 10**400, -(10**9), 2**63),
    *(
        float("nan"),
        float("inf"),
        1e300,
        "x" * 100_000,
        "\0",
        "a\0b",
        "\ud800",
        "\n\n",
        "../beside",
        "../../beside/escaped",
    ),
    *("{beside}", "{beside}/escaped", "/dev/null", "~", "."),
)
NUMBERS = (b"NaN", b"1e400", b"-1", b"0", b"1000000000", b"9" * 5_000, b"1.5", b"null", b'"7"', b"-Infinity", b"1e-400")
STRUCTURES = (b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"{}", b"null", b"\xff\xfe{\0}\0", b"", b"\n", b"\0" * 5_000)
PAGES = (b"<!doctype html><p>Sign in</p>", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", b"PK\x03\x04")


def span(draw: random.Random, data: bytes) -> tuple[int, int]:
    """A piece of some bytes, more often near their beginning."""
    first = int(len(data) * draw.random() ** 3)
    return first, min(len(data), first + draw.choice((1, 2, 8, 64, 1000)))


def in_bytes(draw: random.Random, data: bytes) -> bytes:
    """Bytes damaged in one of the ways that need not know what they are."""
    first, last = span(draw, data)
    piece, other = data[first:last], span(draw, data)
    number = draw.choice(HUGE)
    packed = (
        struct.pack("<q", number) if draw.random() < 0.5 else struct.pack("<i", max(-(2**31), min(number, 2**31 - 1)))
    )
    aligned = first - first % 4
    where = draw.choice([m.span() for m in itertools.islice(re.finditer(rb"-?\d+(?:\.\d+)?", data), 400)] or [(0, 0)])
    return draw.choice(
        (
            lambda: data[:first] + bytes(byte ^ (1 << draw.randrange(8)) for byte in piece) + data[last:],
            lambda: data[:first] + bytes(draw.randrange(256) for _ in piece) + data[last:],
            lambda: data[:first],
            lambda: data[: draw.randrange(len(data) + 1)],
            lambda: data + draw.choice((b"\0", b"x", bytes(8), piece, data)),
            lambda: data[:last] + piece + data[last:],
            lambda: data[:first] + data[last:],
            lambda: data[:first] + data[slice(*other)] + data[first:],
            lambda: data[:aligned] + packed + data[aligned + len(packed) :],
            lambda: data[: where[0]] + draw.choice(NUMBERS) + data[where[1] :],
            lambda: draw.choice((*STRUCTURES, *PAGES)),
        )
    )()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its key there."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def in_json(draw: random.Random, data: bytes, beside: Path) -> bytes:
    """JSON with one value, key or list changed; where it is none, its first line that is."""
    try:
        value, rest = json.loads(data), b""
    except ValueError:
        line, _, rest = data.partition(b"\n")
        value = json.loads(line)
    found = list(places(value))
    if not found:
        return draw.choice(STRUCTURES)
    holder, key = draw.choice(found)
    new = draw.choice(VALUES)
    new = new.replace("{beside}", str(beside)) if isinstance(new, str) else new

    def change() -> None:
        holder[key] = new

    def scale() -> None:
        holder[key] = holder[key] * draw.choice((-1, 10**6, 1e-9)) if isinstance(holder[key], int | float) else new

    def drop() -> None:
        del holder[key]

    def add() -> None:
        if isinstance(holder, dict):
            holder[draw.choice(("extra", "", "../beside/escaped", "\0"))] = new
        else:
            holder.insert(key, new)

    draw.choice((change, change, change, scale, drop, add))()
    return json.dumps(value).encode() + (b"\n" + rest if rest else b"")


def damage(draw: random.Random, path: Path, kind: Kind, here: Path) -> str:
    """Damages one file; what was done, in a word or two."""
    beside = here.parent / "beside"
    ways = ["bytes"] * 8 + ["file"] * 2 + (["json"] * 12 if path.suffix in (".json", ".jsonl") else [])
    way = draw.choice(ways)
    if way == "file":
        data = path.read_bytes()
        path.unlink()
        links = {"a link to a good file": beside / "good", "a dangling link": beside / "none", "a loop": path}
        links["a link to what never ends"] = Path("/dev/zero")
        what = draw.choice(("a folder", "nothing", "a pipe", *links))
        if what == "a folder":
            path.mkdir()
        elif what == "a pipe":
            os.mkfifo(path)
        elif what in links:
            (beside / "good").write_bytes(data)
            path.symlink_to(links[what])
        return what
    data = path.read_bytes()
    with contextlib.suppress(ValueError):  # "json" of what is none
        path.write_bytes(in_bytes(draw, data) if way == "bytes" else in_json(draw, data, beside))
    return way + ", hash set right" * (
        bool(kind.hashed) and draw.random() < 0.7 and set_right(path, here / kind.hashed)
    )


def set_right(path: Path, stated: Path) -> bool:
    """Makes a checkpoint's state say the hashes of what is there now, so that what reads it looks further."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        state = json.loads(stated.read_bytes())
        if path == stated:
            state["sha256"][path.name] = digest(state)
        elif path.suffix == ".safetensors":
            state["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        stated.write_text(json.dumps(state))
        return path == stated or path.suffix == ".safetensors"
    return False


# Commands


class Hung(BaseException):
    """A command took too long; no `except Exception` swallows it."""


@dataclass(frozen=True)
class Outcome:
    """A command's exit code, None if it ended otherwise, and what it said on standard error."""

    code: int | None
    said: str


def command(here: Path, arguments: list[str]) -> Outcome:
    """Runs `tenfold ARGUMENTS` in a folder, through main."""

    def late(*_: object) -> None:
        raise Hung

    out, said, before = io.StringIO(), io.StringIO(), sys.argv
    os.environ["XDG_CACHE_HOME"] = str(here / "cache")
    sys.argv = ["tenfold", *arguments]
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.chdir(here), contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            try:
                main()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except SystemExit as ending:
        return Outcome(ending.code if isinstance(ending.code, int) else None, said.getvalue())
    except BaseException:
        return Outcome(None, said.getvalue() + traceback.format_exc())
    finally:
        sys.argv = before
    raise AssertionError("main always exits")


def wrong(outcome: Outcome) -> str:
    """What is wrong with how a command ended; nothing if it refused in one line, or did its work."""
    lines = outcome.said.rstrip().splitlines()
    if outcome.code in LOADED:
        return ""
    if outcome.code != 2:
        return f"exit code {outcome.code}"
    told = [line for line in lines if line.startswith("tenfold: ")]
    if len(told) != 1 or lines[-1] != told[0]:
        return "not one line"
    return "" if len(told[0]) < 5_000 else "a line without end"


def outside(here: Path) -> dict[str, Any]:
    """Everything beside the folder that commands work in."""
    beside = here.parent / "beside"
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(beside.rglob("*"))} | {
        str(path): None for path in here.parent.iterdir()
    }


def silent(path: Path, good: Path) -> bool:
    """Whether a file of a checkpoint is no longer what it was, without that showing by itself."""
    return path.parent.name.startswith("step-") and path.is_file() and path.read_bytes() != good.read_bytes()


def mutate(name: str, count: int, seed: int) -> dict[str, Any]:
    """So many damages of one kind: how many were refused and how many loaded, and what went wrong."""
    kind, draw = KINDS[name], random.Random(f"{seed} {name}")
    result: dict[str, Any] = {"refused": 0, "loaded": 0, "wrong": []}
    want: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as scratch:
        good, here = Path(scratch) / "good", Path(scratch) / "work" / "here"
        good.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(good / "cache")
        kind.make(good)
        with Path("/proc/self/statm").open() as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
        for number in range(-1, count):
            shutil.rmtree(here.parent, ignore_errors=True)
            shutil.copytree(good, here)
            (here.parent / "beside").mkdir()
            (here.parent / "beside/kept").write_text("as it was")
            pattern = kind.damaged[number % len(kind.damaged)]
            path = draw.choice(sorted(here.glob(pattern)))
            how = damage(draw, path, kind, here) if number >= 0 else "nothing"  # first of all the good files must load
            before = outside(here)
            told = {"{file}": path.name, "{folder}": path.parent.name, "{task}": TASKS.get(path.name[:5], "")}
            told["{file}"] = path.relative_to(here).as_posix()
            outcome = command(here, [told.get(part, part) for part in kind.command])
            bad = wrong(outcome) or ("it wrote outside its folder" if outside(here) != before else "")
            loaded = outcome.code in LOADED
            made = {part.name: part.read_bytes() for part in here.glob(kind.whole)} if kind.whole and loaded else {}
            if number < 0:
                want, bad = made, bad or ("" if loaded else "good files were refused")
            elif loaded and made != want:
                bad = bad or "it made something else"
            elif loaded and kind.hashed and not how.endswith("right") and silent(path, good / path.relative_to(here)):
                bad = bad or ("" if "damaged" in outcome.said else "it was not told")
            if bad:
                where = f"{number}: {path.relative_to(here)}, {how}: {bad}"
                result["wrong"].append(f"{where}\n{outcome.said[-3_000:]}")
            result["loaded" if loaded else "refused"] += number >= 0
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[3:] or list(KINDS)
    print(json.dumps({name: mutate(name, int(sys.argv[1]), int(sys.argv[2])) for name in wanted}))
