"""The attention film: that a map is what the model's kernel computed, what heads score, what lies on the disk, and
films made while training and afterwards."""

import contextlib
import json
import math
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from conftest import TINY, TINY_OPTIONS, TINY_RECIPE, Tenfold
from tenfold import film, filmfile, rundir
from tenfold import run as runs
from tenfold.cli import call
from tenfold.data.shards import Corpus
from tenfold.data.tokenizer import Bytes
from tenfold.errors import CheckpointError, ConfigError, DataError, HardwareError
from tenfold.exchange.huggingface import huggingface_source
from tenfold.exchange.weights import model_of
from tenfold.model import attention
from tenfold.model.attention import KERNELS
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.model.heads import TARGETS, scores
from tenfold.run import Cadence, Run, film_steps
from tenfold.training import checkpoint, loop
from tenfold.training.precision import PRECISIONS
from test_runs import Recorder, train
from training import EXACT, losses, trainer

pytestmark = pytest.mark.timeout(120)
IDS = Bytes().encode("ba ke lo, mi nu ra. ba ke lo, mi")


def model(config: ModelConfig = TINY) -> GPT:
    """A model whose heads look at something: random weights, larger than initial ones."""
    made = GPT(config).initialise(0)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return made


def films(path: Path) -> dict[int, tuple[list[Any], list[Any]]]:
    """The snapshots of a run's film by step."""
    content = filmfile.read_film(path)
    return {s: filmfile.read(path / "film" / f"step-{s:06d}.bin", content) for s in filmfile.steps(path)}


# A map is what the kernel computed


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kernel", [pytest.param(k, marks=pytest.mark.slow) if k == "flex" else k for k in KERNELS])
def test_the_map_is_what_each_kernel_computed(kernel: str, precision: str, device: str) -> None:
    """T39: the running kernel's output equals what the map makes of the values; rows sum to 1; nothing lies above the
    diagonal. A kernel that cannot run here says so by itself; none is replaced by another."""
    one, ids = model().to(device), film.texts(IDS, TINY.context)
    for block in one.blocks:
        block.attn.kernel = KERNELS[kernel]
    mixed = partial(torch.autocast, device, PRECISIONS[precision].dtype, enabled=precision != "fp32")
    try:
        seen = film.look(one, ids, mixed)
    except (RuntimeError, ModuleNotFoundError) as error:
        assert kernel in ("cudnn", "fa3", "flash")
        pytest.skip(f"{kernel} cannot run in {precision} on {device}: {error}")
    assert seen.maps.shape == (2, TINY.layers, TINY.heads, 32, 32)
    assert seen.maps.dtype == torch.float32
    torch.testing.assert_close(seen.maps.sum(-1), torch.ones(seen.maps.shape[:-1]))
    assert seen.maps.triu(1).abs().max() == 0
    assert seen.maps.std() > 0.05  # not the even maps of untrained heads, which any kernel would match
    assert all(block.attn.kernel is KERNELS[kernel] for block in one.blocks)


def test_the_kernel_that_runs_is_the_one_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for training leave evaluation to another one; a snapshot is no evaluation."""
    called = []

    @attention.for_training
    def counted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        called.append(q.shape)
        return attention.naive(q, k, v)

    one = model()
    for block in one.blocks:
        block.attn.kernel = counted
    film.look(one, film.texts(IDS, 32))
    assert called == [(2, 2, 32, 16)] * 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "spoilt",
    [
        lambda q, k: attention.attention_map(k, q),
        lambda q, k: attention.attention_map(q * 0.8, k),
        lambda q, k: attention.attention_map(q, k).roll(1, 1),
        lambda q, k: attention.attention_map(q, k).transpose(-2, -1),
        lambda q, k: attention.attention_map(q, k) * torch.nan,
    ],
    ids=["keys for queries", "another scale", "another head", "transposed", "not finite"],
)
def test_another_tensor_is_never_shown_as_a_map(
    spoilt: Callable[[Tensor, Tensor], Tensor], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(film, "attention_map", spoilt)
    mixed = partial(torch.autocast, "cpu", PRECISIONS[precision].dtype, enabled=precision != "fp32")
    with pytest.raises(HardwareError, match=r"kernel's output in layer 0 is \S+ of its size away from what the map"):
        film.look(model(), film.texts(IDS, 32), mixed)


def test_the_map_and_the_losses_are_those_of_transformers(tmp_path: Path) -> None:
    """By its own attentions, of a model that it made."""
    theirs = tiny_huggingface(tmp_path)
    ours = model_of(huggingface_source(tmp_path))
    ids = torch.randint(50257, (2, 32), generator=torch.Generator().manual_seed(0))
    seen = film.look(ours, ids)
    with torch.no_grad():
        out = theirs(ids, output_attentions=True)
    torch.testing.assert_close(seen.maps, torch.stack(out.attentions, 1), rtol=1e-4, atol=1e-5)
    expected = F.cross_entropy(out.logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    torch.testing.assert_close(seen.losses[:, 1:], expected, rtol=1e-4, atol=1e-4)
    assert seen.losses[:, 0].isnan().all()


def tiny_huggingface(folder: Path) -> Any:
    """A small GPT-2 of transformers' making, saved in a folder."""
    torch.manual_seed(0)
    shape = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=32, initializer_range=0.3, attn_implementation="eager"
    )
    made = transformers.GPT2LMHeadModel(shape).eval()
    made.save_pretrained(folder)
    return made


# Texts and scores


def test_the_second_text_says_half_of_the_first_twice() -> None:
    ids = film.texts(np.arange(100, dtype=np.uint32), 1024)
    assert ids.tolist() == [list(range(64)), [*range(32), *range(32)]]
    assert film.texts(np.arange(100), 31).tolist() == [list(range(30)), [*range(15), *range(15)]]
    assert film.texts(np.arange(5), 1024).tolist() == [[0, 1, 2, 3], [0, 1, 0, 1]]
    for count, context in ((3, 1024), (100, 3)):
        with pytest.raises(DataError, match="needs a text and a context of at least 4 tokens, not 3"):
            film.texts(np.arange(count), context)


def pointing(ids: list[int], where: Callable[[int], int]) -> dict[str, float]:
    """Scores of a head whose query i looks at key where(i) alone."""
    one = torch.zeros(1, 1, 1, len(ids), len(ids))
    for i in range(len(ids)):
        one[..., i, where(i)] = 1
    return {name: round(value.item(), 4) for name, value in scores(one, torch.tensor([ids])).items()}


def test_heads_that_do_one_thing_score_one() -> None:
    """On 1 2 3 1 2 3. With few queries some things coincide: place 1 has one place before it, which is the first."""
    ids = [1, 2, 3, 1, 2, 3]
    nothing = {"same": 0, "induction": 0, "entropy": 0}
    assert pointing(ids, lambda i: max(i - 1, 0)) == {"previous": 1, "first": 0.2, **nothing}
    assert pointing(ids, lambda i: 0) == {"previous": 0.2, "first": 1, "same": 0.3333, "induction": 0, "entropy": 0}
    assert pointing(ids, lambda i: i) == {"previous": 0, "first": 0, **nothing}
    # 1 at 3 was followed at 1, 2 at 4 by the 3 at 2, 3 at 5 by the 1 at 3
    assert pointing(ids, lambda i: max(i - 3 + 1, 0) if i >= 3 else i) == {"previous": 0, "first": 0} | nothing | {
        "induction": 1
    }
    assert pointing(ids, lambda i: i - 3 if i >= 3 else i) == {"previous": 0, "first": 0.2} | nothing | {"same": 1}


def test_a_head_that_looks_everywhere_has_all_the_entropy() -> None:
    even = torch.ones(4, 4).tril() / torch.arange(1.0, 5)[:, None]
    found = scores(even.expand(1, 2, 3, 4, 4), torch.tensor([[7, 7, 8, 9]]))
    assert {name: value.shape for name, value in found.items()} == dict.fromkeys(found, (2, 3))
    assert found["entropy"].tolist() == [[pytest.approx(1)] * 3] * 2
    assert found["previous"][0, 0].item() == found["first"][1, 2].item() == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert found["same"][0, 0].item() == pytest.approx(1 / 2)  # query 1 alone
    assert found["induction"][0, 0].item() == 0  # a token after itself would be the query's own place


def test_scores_are_what_they_are_by_definition() -> None:
    """Two texts, in loops."""
    draw = torch.Generator().manual_seed(0)
    maps = torch.softmax(
        torch.randn(2, 1, 1, 12, 12, generator=draw).masked_fill(torch.ones(12, 12).triu(1) > 0, -9e9), -1
    )
    ids = torch.randint(4, (2, 12), generator=draw)
    conditions: dict[str, Callable[[Tensor, int, int], bool]] = {
        "previous": lambda row, i, j: j == i - 1,
        "first": lambda row, i, j: j == 0,
        "same": lambda row, i, j: bool(row[j] == row[i]),
        "induction": lambda row, i, j: j > 0 and bool(row[j - 1] == row[i]),
    }
    found = scores(maps, ids)
    assert conditions.keys() == TARGETS.keys()
    for name, holds in conditions.items():
        taken, queries = 0.0, 0
        for n in range(2):
            for i in range(12):
                keys = [j for j in range(i) if holds(ids[n], i, j)]
                taken += sum(maps[n, 0, 0, i, j].item() for j in keys)
                queries += bool(keys)
        assert found[name].item() == pytest.approx(taken / queries, rel=1e-5), name
    entropy = [
        -sum(p * math.log(p) for p in maps[n, 0, 0, i, : i + 1].tolist()) / math.log(i + 1)
        for n in range(2)
        for i in range(1, 12)
    ]
    assert found["entropy"].item() == pytest.approx(sum(entropy) / len(entropy), rel=1e-5)


# When


def test_the_steps_are_dense_at_first_and_few_in_a_short_run() -> None:
    presets = {name: make() for name, make in runs.PRESETS.items()}
    counts = {name: len(film_steps(run.recipe, run.cadence.film)) for name, run in presets.items()}
    assert counts["gpt2-124m"] == 200
    for name, run in presets.items():
        steps = sorted(film_steps(run.recipe, 200))
        assert (steps[0], steps[-1]) == (0, run.recipe.steps), name
        gaps = np.diff(steps)
        assert (np.diff(gaps) >= -1).all(), name  # wider and wider, but for rounding
        cost = counts[name] * runs.FILM_TOKENS / (run.recipe.steps * run.recipe.targets)
        assert cost <= 0.01, name
    long = sorted(film_steps(presets["gpt2-124m"].recipe, 200))
    assert long[:3] == [0, 4, 9]
    assert 400 < long[-1] - long[-2] < 450
    assert film_steps(TINY_RECIPE, 200) == {0}
    assert film_steps(TINY_RECIPE, 1) == film_steps(presets["gpt2-124m"].recipe, 1) == {0}


@pytest.mark.parametrize(
    ("at", "ending", "every", "due"),
    [
        (0, 0, 200, True),
        (1, 0, 200, False),
        (20, loop.DONE, 200, True),
        (7, loop.STOPPED, 200, False),
        (0, 75, 200, False),
        (20, loop.DONE, 0, False),
        (0, 0, 0, False),
    ],
)
def test_it_is_due_at_its_steps_and_at_the_end(at: int, ending: int, every: int, due: bool) -> None:
    assert loop.is_due(Cadence(film=every), TINY_RECIPE, "film", at, ending) == due


# On the disk


def test_a_snapshot_byte_for_byte() -> None:
    """A frozen format: two texts of 2 tokens, whose maps have 3 numbers, so that half a byte is left."""
    maps = [np.array([[[[1, 0], [p, 1 - p]]]], np.float32) for p in (0.25, 0)]
    losses = [np.array([np.nan, loss], np.float32) for loss in (1.5, 2)]
    content = filmfile.pack(maps, losses)
    nan = "0000c07f"
    assert zlib.decompress(content).hex() == "8f0d" + "0f0f" + nan + "0000c03f" + nan + "00000040"
    told = filmfile.described(1, 1, [("a", [1, 2], ["x", "y"]), ("b", [1, 1], ["x", "x"])])
    back, losses_back = filmfile.unpack(content, told)
    np.testing.assert_allclose(back[0], [[[[1, 0], [(8 / 15) ** 2, (13 / 15) ** 2]]]], rtol=1e-6)
    np.testing.assert_array_equal(losses_back, losses)


def test_what_is_read_is_near_what_was_written() -> None:
    seen = film.look(model(), film.texts(IDS, 32))
    told = film.described(TINY, film.texts(IDS, 32), Bytes())
    maps, losses = filmfile.unpack(filmfile.pack(list(seen.maps.numpy()), list(seen.losses.numpy())), told)
    for got, want in zip(maps, seen.maps.numpy(), strict=True):
        assert np.abs(np.sqrt(got) - np.sqrt(want)).max() <= 1 / 30 + 1e-6
        assert np.abs(got - want).max() <= 1 / 15
    np.testing.assert_array_equal(losses, seen.losses.numpy())
    assert told["texts"][0]["tokens"][:3] == ["b", "a", " "]


def test_the_worst_film_of_gpt2_124m_fits_into_40_megabytes(tmp_path: Path) -> None:
    """200 snapshots of two texts of 64 tokens, of rows as hard to pack as rows that sum to 1 can be, and their scores:
    square roots spread evenly over a sphere."""
    draw = torch.Generator().manual_seed(0)
    squares = torch.randn(2, 12, 12, 64, 64, generator=draw).tril().square()
    seen = film.Seen(squares / squares.sum(-1, keepdim=True), torch.randn(2, 64, generator=draw))
    told = film.described(ModelConfig(), film.texts(np.arange(64), 1024), Bytes())
    film.record(tmp_path, told, 19073, seen)
    size = sum(path.stat().st_size for path in (tmp_path / "film").glob("s*"))
    assert 39.6e6 < 200 * size <= 40e6


def test_a_token_that_is_no_text_still_has_a_label() -> None:
    told = film.described(TINY, torch.tensor([[0xC3, 0xA9, 256, 10]]).repeat(2, 1), Bytes())
    assert told["texts"][1]["tokens"] == ["\ufffd", "\ufffd", "<|endoftext|>", "\n"]


def recorded(folder: Path, step: int = 3) -> dict[str, Any]:
    """A film of one snapshot in a folder."""
    ids = film.texts(IDS, 32)
    told = film.described(TINY, ids, Bytes())
    film.record(folder, told, step, film.look(model(), ids))
    return told


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:-20],
        lambda content: content[:-2],
        lambda content: b"",
        lambda content: b"no zlib",
        lambda content: content[:30] + bytes(4) + content[34:],
        lambda content: zlib.compress(zlib.decompress(content) + b"x"),
        lambda content: zlib.compress(bytes(1 << 24)),
    ],
    ids=["cut", "cut in its sum", "empty", "foreign", "spoilt", "longer", "a bomb"],
)
def test_a_damaged_snapshot_is_refused(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    told = recorded(tmp_path)
    path = tmp_path / "film/step-000003.bin"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"snapshot .*step-000003.bin is damaged .*; remove it"):
        filmfile.read(path, told)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "has format 2, this tenfold reads 1; update tenfold"),
        ({"layers": 0}, "is damaged"),
        ({"layers": 10**9}, "is damaged"),
        ({"heads": "2"}, "is damaged"),
        ({"texts": 3}, "is damaged"),
        ({"texts": []}, "is damaged"),
        ({"texts": [{"name": "a", "ids": [1] * n, "tokens": ["x"] * n} for n in (1, 2)]}, "is damaged"),
        ({"texts": [{"name": "a", "ids": [1, 2], "tokens": ["x"]}]}, "is damaged"),
        ({"texts": [{"name": "a", "ids": [-1], "tokens": ["x"]}]}, "is damaged"),
        ({"texts": [{"name": "a", "ids": [1], "tokens": [1]}]}, "is damaged"),
    ],
)
def test_a_damaged_film_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    told = recorded(tmp_path)
    assert filmfile.read_film(tmp_path) == told
    (tmp_path / "film/film.json").write_text(json.dumps({**told, **change}))
    with pytest.raises(CheckpointError, match=said):
        filmfile.read_film(tmp_path)


def test_a_later_line_of_a_step_counts_and_half_a_line_does_not(tmp_path: Path) -> None:
    for step in (5, 3):
        recorded(tmp_path, step)
    with (tmp_path / "film/scores.jsonl").open("a") as file:
        file.write('{"step": 4, "scor')
    lines = tmp_path / "film/scores.jsonl"
    for told in ([[["1"]]], [[1]], 1, None, {"a": 1}, {"a": [["x"]]}):
        rundir.append_line(lines, json.dumps({"step": 5, "thousandths": told}))
    rundir.append_line(lines, "[]")
    found = filmfile.read_scores(tmp_path)
    assert list(found) == [3, 5]
    for name in ("a", "b"):
        rundir.append_line(lines, json.dumps({"step": 5, "scores": {name: [[0.25]]}}))  # as films of before have them
    assert filmfile.read_scores(tmp_path) == {3: found[3], 5: {"b": [[0.25]]}}
    rundir.append_line(lines, json.dumps({"step": 5, "thousandths": {"a": [[125]]}}))
    assert filmfile.read_scores(tmp_path) == {3: found[3], 5: {"a": [[0.125]]}}
    assert {name: np.shape(value) for name, value in found[3].items()} == dict.fromkeys([*TARGETS, "entropy"], (2, 2))
    assert filmfile.steps(tmp_path) == [3, 5]
    assert filmfile.steps(tmp_path, 4) == [3]
    seen = film.look(model(), film.texts(IDS, 32))
    for name, heads in scores(seen.maps, film.texts(IDS, 32)).items():
        np.testing.assert_allclose(found[3][name], heads, atol=0.0005001)
    assert filmfile.read_scores(tmp_path / "none") == {}


# While training


@pytest.fixture
def run(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run of 20 steps in an empty folder, of which ten snapshots are taken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "FILM_TOKENS", 1)
    film_steps.cache_clear()
    yield Run(
        model=TINY,
        recipe=TINY_RECIPE,
        speed=EXACT,
        cadence=Cadence(log=1, eval=0, sample=0, save=10, film=10),
        preset="tiny",
        name="tiny",
        data=str(corpus.path),
    )
    film_steps.cache_clear()


def test_a_training_films_itself_and_stays_the_same(run: Run) -> None:
    """The film's last snapshot is what the last checkpoint's weights give, and no loss changes by a bit."""
    done = train(run)
    assert filmfile.steps(done.path) == sorted(film_steps(run.recipe, 10)) == [0, 1, 2, 4, 7, 12, 20]
    records = rundir.read_metrics(done.path)
    assert [r["film"] for r in records if "film" in r][-1] == "film/step-000020.bin"
    told = filmfile.read_film(done.path)
    assert [len(text["ids"]) for text in told["texts"]] == [32, 32]
    assert (told["layers"], told["heads"]) == (2, 2)
    last = GPT(TINY)
    checkpoint.load_weights(last, done.path / "checkpoints/step-000020")
    seen = film.look(last, torch.tensor([text["ids"] for text in told["texts"]]))
    (done.path / "film/again.bin").write_bytes(filmfile.pack(list(seen.maps.numpy()), list(seen.losses.numpy())))
    assert (done.path / "film/again.bin").read_bytes() == (done.path / "film/step-000020.bin").read_bytes()
    first, final = (films(done.path)[step][1] for step in (0, 20))
    assert np.nanmean(final) < np.nanmean(first) - 0.5
    assert list(filmfile.read_scores(done.path)) == filmfile.steps(done.path)
    shutil.rmtree(done.path)
    train(replace(run, cadence=replace(run.cadence, film=0)))
    assert not (done.path / "film").exists()
    without = rundir.read_metrics(done.path)
    assert [r["loss"] for r in records if "loss" in r] == [r["loss"] for r in without if "loss" in r]


def test_a_resumed_film_is_as_if_never_stopped(run: Run) -> None:
    train(run, stop_at=11)
    assert filmfile.steps(Path("runs/tiny")) == [0, 1, 2, 4, 7]
    done = train(run)
    halves = {path.name: path.read_bytes() for path in (done.path / "film").glob("*.bin")}
    shutil.rmtree(done.path)
    train(run)
    assert halves == {path.name: path.read_bytes() for path in (done.path / "film").glob("*.bin")}


@pytest.mark.parametrize(
    "speed",
    [{"precision": "bf16", "attention": "rows"}, {"precision": "fp16"}, {"loss": "chunked", "recompute": "blocks"}],
)
def test_any_speed_is_filmed(run: Run, speed: dict[str, Any]) -> None:
    told = Recorder()
    done = train(replace(run, speed=replace(run.speed, **speed)), display=told)
    assert filmfile.steps(done.path)[-1] == 20
    assert not [r for r in told.records if r.get("event") == "not filmed"]


def test_a_model_with_fp8_products_is_filmed(corpus: Corpus) -> None:
    """As it is evaluated: products without gradients are bf16."""
    maps = []
    for precision in ("fp8", "bf16"):
        one = trainer(corpus.train, speed=replace(EXACT, precision=precision))
        maps.append(film.look(one.module, film.texts(IDS, 32), one.autocast).maps)
        one.batches.close()
    assert torch.equal(*maps)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at the .grad of what it traces
def test_a_compiled_training_is_filmed_eagerly_and_compiles_nothing_for_it(corpus: Corpus) -> None:
    compiled, plain = (trainer(corpus.train, speed=replace(EXACT, compile=how)) for how in ("none", "none"))
    made = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        made.append(graph)
        return graph.forward

    for block in compiled.module.blocks:
        block.compile(backend=backend)
    before = losses(compiled, 2)
    count = len(made)
    with torch.compiler.set_stance("force_eager"):
        seen = film.look(compiled.module, film.texts(IDS, 32), compiled.autocast)
    after = losses(compiled, 2)
    assert len(made) == count > 0
    expected = losses(plain, 2)
    torch.testing.assert_close(seen.maps, film.look(plain.module, film.texts(IDS, 32)).maps, rtol=1e-4, atol=1e-5)
    assert [*before, *after] == pytest.approx([*expected, *losses(plain, 2)], rel=1e-5)
    for one in (compiled, plain):
        one.batches.close()


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_film_as_one_does(tenfold: Tenfold, text_file: Path, tmp_path: Path, parallel: str) -> None:
    options = [*TINY_OPTIONS, "--cadence.film", "10", "--speed.precision", "fp32", "--data", text_file]
    for name, processes in (("one", 0), ("two", 2)):
        how = [] if name == "one" else ["--speed.parallel", parallel]
        done = tenfold("train", "demo", "--name", name, *options, *how, processes=processes)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (films(tmp_path / "runs" / name) for name in ("one", "two"))
    assert list(one) == list(two) == [0, 20]
    for step in one:
        for a, b in zip(one[step][0] + one[step][1], two[step][0] + two[step][1], strict=True):
            np.testing.assert_allclose(a, b, atol=0.15 if a.ndim > 1 else 1e-3)  # a level of the largest, or a loss


def test_what_hinders_a_snapshot_is_told_once_and_training_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs/tiny").mkdir(parents=True)
    recorded(Path("runs/tiny"))
    told = Recorder()
    done = train(run, display=told)
    assert (done.step, done.code) == (20, 0)
    (said,) = [r["message"] for r in told.records if r.get("event") == "not filmed"]
    assert "film.json is the film of another model or of other texts; move" in said
    assert said.endswith("training goes on, and each next one is tried")
    shutil.rmtree(done.path)
    monkeypatch.setattr(film, "attention_map", lambda q, k: attention.attention_map(q, k).roll(1, -2))
    told = Recorder()
    assert train(run, display=told).step == 20
    assert ["kernel's output" in r["message"] for r in told.records if r.get("event") == "not filmed"] == [True]


def test_a_full_disk_is_told_and_training_goes_on(
    run: Run, small_disk: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told once; what was written before is whole, and with room again the film goes on."""
    monkeypatch.chdir(small_disk(8))

    class Filler(Recorder):
        def record(self, record: dict[str, Any]) -> None:
            super().record(record)
            if record.get("film") == "film/step-000002.bin":
                with contextlib.suppress(OSError), Path("filler").open("wb", buffering=0) as file:
                    while file.write(bytes(1 << 12)):
                        pass
            if record["step"] == 11:
                Path("filler").unlink(missing_ok=True)

    told = Filler()
    done = train(replace(run, cadence=replace(run.cadence, save=0)), display=told)
    assert (done.step, done.code) == (20, 0)
    assert list(films(done.path)) == [0, 1, 2, 12, 20]
    (said,) = [r["message"] for r in told.records if r.get("event") == "not filmed"]
    assert "No space left on device" in said


# Afterwards


def test_a_film_is_made_from_the_checkpoints(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    done = train(replace(run, cadence=replace(run.cadence, save=5, keep=10)))
    filmed = films(done.path)
    shutil.rmtree(done.path / "film")
    assert call(["film", "tiny"]) == 0
    out, err = capsys.readouterr()
    assert "tiny: a film of 4 snapshots is in runs/tiny/film" in out
    assert re.search(r"watch it:  .*tenfold watch$", out.strip())
    assert "passage" not in err
    again = films(done.path)
    assert list(again) == [5, 10, 15, 20]
    for got, want in zip(again[20][0] + again[20][1], filmed[20][0] + filmed[20][1], strict=True):
        np.testing.assert_array_equal(got, want)
    shutil.rmtree(done.path / "checkpoints/step-000010")
    assert call(["film", "tiny"]) == 0
    assert "tiny: a film of 4 snapshots is in runs/tiny/film" in capsys.readouterr().out


def test_a_damaged_checkpoint_is_left_out_and_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    done = train(replace(run, cadence=replace(run.cadence, film=0)))
    (done.path / "checkpoints/step-000010/model.safetensors").write_bytes(b"")
    assert call(["film", "tiny"]) == 0
    assert "the film goes on without it" in " ".join(capsys.readouterr().err.split())
    assert filmfile.steps(done.path) == [20]


def test_without_the_runs_data_a_passage_is_filmed_and_that_is_told(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    done = train(replace(run, cadence=replace(run.cadence, film=0)))
    saved = rundir.read_run(done.path)
    rundir.write_run(done.path, {**saved, "data": "moved"})
    assert call(["film", "tiny"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "not filmed on the run's validation split: moved is no prepared data" in said
    assert "filmed on a passage of its own; --text gives another" in said
    assert "".join(filmfile.read_film(done.path)["texts"][0]["tokens"]) == film.PASSAGE[:32]


def test_a_finished_model_becomes_a_run_with_a_film(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_huggingface(tmp_path / "theirs")
    assert call(["film", "theirs", "--text", "ba ke lo " * 9]) == 0
    told = filmfile.read_film(Path("runs/theirs"))
    assert "".join(told["texts"][0]["tokens"]).startswith("ba ke lo")
    assert filmfile.steps(Path("runs/theirs")) == [0]
    assert call(["film", "theirs"]) == 0  # now a run with a film
    assert filmfile.read_film(Path("runs/theirs")) == told
    with pytest.raises(CheckpointError, match="is the film of another model or of other texts; move"):
        call(["film", "theirs", "--text", "mi nu ra " * 9])
    with pytest.raises(ConfigError, match="runs/theirs exists; give another --name"):
        call(["film", "theirs", "--name", "theirs"])
    assert call(["film", "theirs", "--name", "other"]) == 0
    assert "filmed on a passage of its own; --text gives another" in capsys.readouterr().err
    assert len(filmfile.read_film(Path("runs/other"))["texts"][0]["ids"]) == 32


def test_what_cannot_be_filmed_says_why(run: Run) -> None:
    done = train(replace(run, cadence=replace(run.cadence, film=0)))
    with pytest.raises(CheckpointError, match="no weights 'nobody'"):
        call(["film", "nobody"])
    with pytest.raises(DataError, match="needs a text and a context of at least 4 tokens, not 3"):
        call(["film", "tiny", "--text", "abc"])
    recorded(done.path)
    told = {**filmfile.read_film(done.path), "layers": 3}
    (done.path / "film/film.json").write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match="runs/tiny/film holds the film of another model; move it away"):
        call(["film", "tiny"])
    shutil.rmtree(done.path / "checkpoints")
    with pytest.raises(CheckpointError, match="has no whole checkpoint to film; train it further"):
        call(["film", "tiny"])
    with rundir.locked(done.path), pytest.raises(ConfigError, match="is being trained by another process"):
        call(["film", "tiny"])
