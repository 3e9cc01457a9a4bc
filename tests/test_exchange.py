"""Weights in and out: the same function as in the program they come from or go to, and one clear line for whatever is
no GPT-2 like ours."""

import json
import os
import pickle
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tenfold import api, rundir
from tenfold.data.tokenizer import Bytes, Chars, Gpt2, Tokenizer
from tenfold.errors import CheckpointError, ConfigError, TenfoldError
from tenfold.exchange import compare
from tenfold.exchange.exporting import export
from tenfold.exchange.huggingface import huggingface_source, whole_weights
from tenfold.exchange.llmc import order
from tenfold.exchange.sources import open_source
from tenfold.exchange.weights import GPT2_VOCAB, model_of, weights_of
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.training import checkpoint

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")

SMALL = ModelConfig(layers=2, heads=2, width=16, context=32)  # GPT-2's vocabulary, padded
VOCAB = GPT2_VOCAB


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers writes it, of a GPT-2 with random weights whose logits reach about ten."""
    folder = tmp_path_factory.mktemp("hf") / "model"
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=32, initializer_range=0.3)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # biases and norms that are not zeros and ones
                parameter += 0.1 * torch.randn_like(parameter)
            assert name
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers may not ask the network, whatever happens."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def copy(folder: Path, to: Path, weights: dict[str, Tensor] | None = None, **config: Any) -> Path:
    """A folder like another one, with other weights and with fields of its configuration changed."""
    to.mkdir()
    old = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**old, **config}))
    save_file(weights or load_file(folder / "model.safetensors"), to / "model.safetensors")
    return to


def theirs(folder: Path, ids: Tensor) -> Tensor:
    """What transformers computes, without a word about missing or unexpected weights."""
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    with torch.no_grad():
        logits: Tensor = model.eval()(ids).logits
    return logits


@torch.no_grad()
def ours(model: GPT, ids: Tensor) -> Tensor:
    return model(ids)


def apart(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def tokens(vocab: int = VOCAB) -> Tensor:
    return torch.randint(vocab, (3, 32), generator=torch.Generator().manual_seed(1))


def test_a_random_gpt2_goes_in_and_out_with_equal_logits(released: Path, here: Path) -> None:
    """T37: transformers -> ours -> a folder -> transformers."""
    told: list[str] = []
    folder = api.import_run(str(released), "taken", told.append)
    model = api.load("taken")
    ids = tokens()
    want = theirs(released, ids)
    assert want.abs().max() > 3  # so that the bound means something
    assert apart(ours(model.model, ids), want) < 1e-4
    assert model.model.wte.weight.shape == (50304, 16)
    assert not model.model.wte.weight[VOCAB:].any()
    assert any("transformers' own model: at most" in line for line in told)
    assert rundir.state(folder) == "new"
    api.export("taken", "out")
    assert apart(theirs(here / "out", ids), want) < 1e-4
    config = json.loads((here / "out/config.json").read_text())
    assert (config["tie_word_embeddings"], config["vocab_size"], config["dtype"]) == (True, VOCAB, "float32")
    written = load_file(here / "out/model.safetensors")
    assert written["transformer.wte.weight"].shape == (VOCAB, 16)
    assert "lm_head.weight" not in written
    assert written.keys() == load_file(released / "model.safetensors").keys()
    for name, tensor in load_file(released / "model.safetensors").items():
        assert torch.equal(written[name], tensor)
    ends = json.loads((here / "out/generation_config.json").read_text())
    assert ends == {"bos_token_id": 50256, "eos_token_id": 50256}
    again = api.load(here / "out")  # a folder of that form is loaded as it is, with its tokenizer
    assert torch.equal(ours(again.model, ids), ours(model.model, ids))
    assert isinstance(again.tokenizer, Gpt2)
    assert again.generate("Hello", tokens=3)


def dressed(weights: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The same weights as other versions of transformers wrote them."""
    bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    masks = {
        **{f"h.{i}.attn.bias": torch.ones(32, 32).tril()[None, None] for i in range(2)},
        **{f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)},
    }
    head = {"lm_head.weight": bare["wte.weight"].clone()}
    return {
        "bare": bare,
        "masks": {**bare, **masks},
        "prefixed masks": {f"transformer.{name}": tensor for name, tensor in {**bare, **masks}.items()},
        "head": {**weights, **head},
        "half": {name: tensor.half() for name, tensor in weights.items()},
    }[kind]


@pytest.mark.parametrize("kind", ["bare", "masks", "prefixed masks", "head", "half"])
@pytest.mark.parametrize("form", ["safetensors", "bin", "pieces"])
def test_every_way_in_which_gpt2_was_saved(released: Path, here: Path, kind: str, form: str) -> None:
    plain = load_file(released / "model.safetensors")
    weights = dressed(plain, kind)
    folder = copy(released, here / "model", weights)
    if form == "bin":
        (folder / "model.safetensors").unlink()
        torch.save(weights, folder / "pytorch_model.bin")
    if form == "pieces":
        (folder / "model.safetensors").unlink()
        names = sorted(weights)
        parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for part, of in parts.items():
            save_file({name: weights[name] for name in of}, folder / part)
        listed = {name: part for part, of in parts.items() for name in of}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    got, want = weights_of(huggingface_source(folder)), weights_of(huggingface_source(released))
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor.half().float() if kind == "half" else tensor)
        assert got[name].dtype == torch.float32


@pytest.mark.parametrize("tokenizer", [Gpt2(), Bytes(), Chars("\n !?Habcdelorw\u00e9\u4e2d")])
@pytest.mark.parametrize("bias", [True, False])
def test_any_run_goes_out_with_its_tokenizer(here: Path, tokenizer: Tokenizer, bias: bool) -> None:
    shape = ModelConfig(2, 2, 16, 32, tokenizer.vocab, 50304, bias)
    model = GPT(shape).initialise(3).eval()
    told: list[str] = []
    export(model, tokenizer, here / "out", "hf", "card", told.append)
    assert any("zeros are written" in line for line in told) is not bias
    ids = tokens(tokenizer.vocab)
    assert apart(theirs(here / "out", ids), ours(model, ids)) < 1e-4
    source = huggingface_source(here / "out")
    assert source.vocabulary == tokenizer.spec()
    assert apart(ours(model_of(source), ids), ours(model, ids)) < 1e-5
    auto = transformers.AutoTokenizer.from_pretrained(here / "out")
    texts = ["Hello, I'm a language model,", " two  spaces\n\n and\ttabs", "\u00e9\u4e2d\U0001f600", ""]
    for text in texts if tokenizer.name != "chars" else ["Hello w\u00e9\u4e2d!\n", " bad ", ""]:
        mine = tokenizer.encode(text).tolist()
        assert auto(text)["input_ids"] == mine
        assert auto.decode(mine) == text
    assert (auto.eos_token_id, auto.bos_token_id) == (tokenizer.eot, tokenizer.eot)
    assert auto("<|endoftext|>")["input_ids"] == [tokenizer.eot]
    assert auto.model_max_length == 32


def llmc_file(path: Path, weights: dict[str, Tensor], version: int = 3, **header: int) -> Path:
    """A model as llm.c writes it: written from the description of its format."""
    fields = {"magic": 20240326, "version": version, "T": 32, "V": VOCAB, "L": 2, "H": 2, "C": 16, "P": 50304, **header}
    body = b"".join(
        weights[name]
        .to(torch.bfloat16 if version == 5 else torch.float32)
        .contiguous()
        .view(torch.uint8)
        .numpy()
        .tobytes()
        for name in order(2)
    )
    path.write_bytes(np.array([*fields.values(), *[0] * 248], "<i4").tobytes() + body)
    return path


def test_the_order_of_llmc() -> None:
    """wte, wpe, then each kind of tensor for all layers, as llm.c's ParameterTensors has them."""
    assert order(2)[:6] == [
        "wte.weight",
        "wpe.weight",
        "h.0.ln_1.weight",
        "h.1.ln_1.weight",
        "h.0.ln_1.bias",
        "h.1.ln_1.bias",
    ]
    assert [name.removeprefix("h.0.") for name in order(1)[4:]] == [
        "attn.c_attn.weight",
        "attn.c_attn.bias",
        "attn.c_proj.weight",
        "attn.c_proj.bias",
        "ln_2.weight",
        "ln_2.bias",
        "mlp.c_fc.weight",
        "mlp.c_fc.bias",
        "mlp.c_proj.weight",
        "mlp.c_proj.bias",
        "ln_f.weight",
        "ln_f.bias",
    ]


@pytest.mark.parametrize("version", [3, 5])
def test_llmc_in(here: Path, version: int) -> None:
    model = GPT(SMALL).initialise(5).eval()
    path = llmc_file(here / "gpt2_124M.bin", model.state_dict(), version)
    api.import_run(str(path), "c", lambda _: None)
    got = api.load("c")
    for name, tensor in model.state_dict().items():
        assert torch.equal(got.model.state_dict()[name], tensor.bfloat16().float() if version == 5 else tensor)


def nanogpt_weights(model: GPT, prefix: str = "") -> dict[str, Tensor]:
    """A state dict under nanoGPT's names, head included, with all rows of the embedding."""
    named = {f"{prefix}transformer.{name}": tensor for name, tensor in model.state_dict().items()}
    return {**named, f"{prefix}lm_head.weight": model.wte.weight.detach()}


@pytest.mark.parametrize("rows", [VOCAB, 50304])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_nanogpt_in(here: Path, rows: int, bias: bool, prefix: str) -> None:
    model = GPT(replace(SMALL, padded_vocab=rows, bias=bias)).initialise(5).eval()
    shape = {
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 16,
        "block_size": 32,
        "bias": bias,
        "vocab_size": rows,
        "dropout": 0.0,
    }
    content = {
        "model": nanogpt_weights(model, prefix),
        "optimizer": {"state": {}, "param_groups": []},
        "model_args": shape,
        "iter_num": 7,
        "best_val_loss": torch.tensor(3.0),
        "config": {"out_dir": "out"},
    }
    torch.save(content, here / "ckpt.pt")
    told: list[str] = []
    api.import_run("ckpt.pt", "nano", told.append)
    got, ids = api.load("nano"), tokens()
    assert got.model.config == ModelConfig(2, 2, 16, 32, VOCAB, 50304, bias)
    assert torch.equal(ours(got.model, ids), ours(model, ids))
    assert any("47 rows" in line for line in told) == (rows == 50304)


@dataclass
class GPTConfig:
    """The class of build-nanogpt's train_gpt2.py, an instance of which it saves."""

    block_size: int = 32
    vocab_size: int = 50304
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 16


def test_build_nanogpt_in(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T12: a checkpoint with an instance of a class in it loads, without an unsafe flag and without that class."""
    monkeypatch.setattr(sys.modules["__main__"], "GPTConfig", GPTConfig, raising=False)
    monkeypatch.setattr(GPTConfig, "__module__", "__main__")  # pickled by this name, as when the file is run
    model = GPT(SMALL).initialise(5).eval()
    torch.save(
        {"model": nanogpt_weights(model), "config": GPTConfig(), "step": 19072, "val_loss": 3.07},
        here / "model_19072.pt",
    )
    monkeypatch.delattr(sys.modules["__main__"], "GPTConfig")
    ids = tokens()
    assert torch.equal(ours(model_of(open_source("model_19072.pt")), ids), ours(model, ids))


def test_nothing_asks_for_an_unsafe_read() -> None:
    source = Path(api.__file__).parent
    assert not any("weights_only=False" in path.read_text() for path in source.rglob("*.py"))
    assert not any("pickle.load" in path.read_text() for path in (source / "exchange").glob("*.py"))


class Evil:
    """What runs a command where a pickle is read without care."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch ran",)


def test_a_pickle_that_wants_to_run_code_does_not(released: Path, here: Path) -> None:
    torch.save({"model": Evil()}, here / "ckpt.pt")
    with pytest.raises(CheckpointError, match=r"ckpt\.pt was not read: it wants to run \w+\.system"):
        open_source("ckpt.pt")
    (here / "old.pt").write_bytes(pickle.dumps({"model": Evil()}, 2))
    with pytest.raises(CheckpointError, match=r"old\.pt"):
        open_source("old.pt")
    folder = copy(released, here / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"x": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin was not read: it wants to run"):
        weights_of(huggingface_source(folder))
    assert not (here / "ran").exists()


BAD = {
    "llama": ({"model_type": "llama"}, {}, r"model_type is 'llama', this model has gpt2"),
    "no type": ({"model_type": None}, {}, r"model_type is None"),
    "activation": ({"activation_function": "relu"}, {}, r"activation_function is 'relu', this model has gelu_new or"),
    "scaled by layer": ({"scale_attn_by_inverse_layer_idx": True}, {}, r"scale_attn_by_inverse_layer_idx is True"),
    "unscaled": ({"scale_attn_weights": False}, {}, r"scale_attn_weights is False"),
    "inner": ({"n_inner": 32}, {}, r"n_inner is 32, this model has None or 64"),
    "epsilon": ({"layer_norm_epsilon": 1e-6}, {}, r"layer_norm_epsilon is 1e-06"),
    "cross attention": ({"add_cross_attention": True}, {}, r"add_cross_attention is True"),
    "layers": ({"n_layer": 3}, {}, r"h\.2\.attn\.c_attn\.bias is missing and should be \(48,\), and 11 more"),
    "fewer layers": ({"n_layer": 1}, {}, r"h\.1\.attn\.c_attn\.bias is \(48,\) and should be absent, and 11 more"),
    "context": ({"n_positions": 64}, {}, r"wpe\.weight is \(32, 16\) and should be \(64, 16\)"),
    "no width": ({"n_embd": None}, {}, r"config\.json has no usable n_embd"),
    "no size": ({"n_layer": "two"}, {}, r"config\.json has no usable n_layer"),
    "width": ({"n_embd": 15, "n_inner": None}, {}, r"model\.width 15 is not divisible by model\.heads 2"),
    "vocabulary": ({"vocab_size": 21128}, {}, r"has 21,128 token ids, which are not GPT-2's 50,257"),
    "rows": ({}, {"transformer.wte.weight": torch.zeros(50000, 16)}, r"wte\.weight is \(50000, 16\) and should be"),
    "nan": ({}, {"transformer.ln_f.bias": torch.full((16,), torch.nan)}, r"ln_f\.bias has values that are not finite"),
    "head": ({}, {"lm_head.weight": torch.zeros(VOCAB, 16)}, r"its head \(lm_head\.weight\) is not its embedding"),
    "untied": ({"tie_word_embeddings": False}, {}, r"its head is not tied to the embedding and lm_head\.weight is"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_gpt2_like_ours_is_refused_in_one_line(released: Path, here: Path, case: str) -> None:
    config, weights, told = BAD[case]
    folder = copy(released, here / "model", {**load_file(released / "model.safetensors"), **weights}, **config)
    with pytest.raises(TenfoldError, match=told) as error:
        api.import_run(str(folder), "bad", lambda _: None)
    assert "\n" not in str(error.value)
    assert not (here / "runs/bad").exists()


def test_a_harmless_variant_is_taken(released: Path, here: Path) -> None:
    harmless = {"reorder_and_upcast_attn": True, "activation_function": "gelu_pytorch_tanh", "n_inner": 64}
    source = huggingface_source(copy(released, here / "model", **harmless))
    assert weights_of(source).keys() == weights_of(huggingface_source(released)).keys()


def broken(folder: Path, case: str) -> None:
    """Damage a folder."""
    weights, config = folder / "model.safetensors", folder / "config.json"
    if case == "half":
        weights.write_bytes(weights.read_bytes()[:100_000])
    elif case == "page":
        weights.write_text("<!DOCTYPE html><html>blocked</html>")
    elif case == "pointer":
        weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    elif case == "empty":
        weights.write_bytes(b"")
    elif case == "no weights":
        weights.unlink()
    elif case == "a piece":
        weights.rename(folder / "model-00001-of-00002.safetensors")
        listed = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    elif case == "config page":
        config.write_text("<html>")
    elif case == "config list":
        config.write_text("[]")
    elif case == "no config":
        config.unlink()
    elif case == "other tokenizer":
        (folder / "vocab.json").write_text(json.dumps({f"t{i}": i for i in range(VOCAB)}))
    else:
        (folder / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": [["a", 0]]}}')


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("half", r"model\.safetensors cannot be read \(.*remove it, get it again"),
        ("page", r"it is a web page, as a server sends instead of a file"),
        ("pointer", r"it is a pointer of Git LFS"),
        ("empty", r"it is empty"),
        ("no weights", r"model\.safetensors or pytorch_model\.bin is missing"),
        ("a piece", r"half downloaded: .*lists model-00002-of-00002\.safetensors, which is missing"),
        ("config page", r"config\.json is no JSON: it is a web page"),
        ("config list", r"config\.json is no JSON object"),
        ("no config", r"config\.json cannot be read \(No such file or directory\)"),
        ("other tokenizer", r"has another tokenizer than GPT-2's \(50,257 ids"),
        ("other kind of tokenizer", r"tokenizer\.json is of another form than GPT-2's"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(released: Path, here: Path, case: str, told: str) -> None:
    folder = copy(released, here / "model")
    broken(folder, case)
    with pytest.raises(CheckpointError, match=told) as error:
        weights_of(open_source("model"))
    assert "\n" not in str(error.value)


def test_a_damaged_file_is_refused_in_one_line(here: Path) -> None:
    weights = GPT(SMALL).initialise(1).state_dict()
    whole = llmc_file(here / "whole.bin", weights).read_bytes()
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 32, "vocab_size": 65}
    files = {
        "cut.bin": (whole[:-4], r"has [\d,]+ bytes, its header needs [\d,]+"),
        "long.bin": (whole + b"\0\0", r"has [\d,]+ bytes, its header needs [\d,]+"),
        "magic.bin": (struct.pack("<i", 20240327) + whole[4:], r"is no model of llm\.c \(magic 20240326\) or nanoGPT"),
        "tokens.bin": (struct.pack("<i", 20240520) + whole[4:], r"holds tokens of llm\.c, not a model"),
        "version.bin": (whole[:4] + struct.pack("<i", 1) + whole[8:], r"has version 1 of llm\.c's format"),
        "short.bin": (whole[:600], r"only a piece of one"),
        "page.pt": (b"<!doctype html>", r"it is a web page"),
        "empty.pt": (b"", r"it is empty"),
        "cut.pt": (b"PK\x03\x04rest", r"cut\.pt (cannot be|was not) read"),
        "a.safetensors": (b"\x10\0\0\0", r"give the folder that holds it"),
    }
    for name, (content, told) in files.items():
        (here / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=told) as error:
            open_source(name)
        assert "\n" not in str(error.value)
    for content, told in (
        ({"model": weights, "model_args": shape}, r"has 65 token ids, which are not GPT-2's 50,257, padded or not"),
        ({"model": weights, "model_args": {"n_layer": 2}}, r"does not say the model's shape"),
        ({"model": weights}, r"does not say the model's shape"),
        (weights, r"holds no nanoGPT checkpoint \(no 'model'\)"),
        ([1, 2], r"holds no nanoGPT checkpoint"),
    ):
        torch.save(content, here / "ckpt.pt")
        with pytest.raises(CheckpointError, match=told):
            open_source("ckpt.pt")
    with pytest.raises(CheckpointError, match=r"no weights 'gtp2': give a run, .*gpt2-xl, or owner/name on the Hub"):
        open_source("gtp2")


def test_names_that_are_taken_are_refused(released: Path, here: Path) -> None:
    api.import_run(str(released), "one", lambda _: None)
    with pytest.raises(ConfigError, match=r"runs/one exists; give another --name"):
        api.import_run(str(released), "one", lambda _: None)
    with pytest.raises(ConfigError, match=r"cannot name a run"):
        api.import_run(str(released), "a/b", lambda _: None)
    (here / "out").mkdir()
    with pytest.raises(ConfigError, match=r"out exists; give another place"):
        api.export("one", "out")
    with pytest.raises(ConfigError, match=r"--push sends a folder of --format hf, not gguf"):
        api.export("one", "x.gguf", "gguf", push="a/b")


def test_without_transformers_the_comparison_says_so(
    released: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "find_spec", lambda _: None)
    told: list[str] = []
    api.import_run(str(released), "one", told.append)
    assert any("a second reading of the source by tenfold: at most 0.0e+00" in line for line in told)
    model = api.load("one")
    export(model.model, model.tokenizer, here / "out", "hf", "card", told.append)
    assert "tenfold's own reading of what was written, without transformers" in told[-1]


def test_a_wrong_copy_is_found_and_not_kept(released: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison finds one matrix that was not turned, and nothing stays of what was written."""
    import tenfold.exchange.huggingface as module

    turned = module.turned
    square = "h.0.attn.c_proj.weight"  # of equal sides, so that no shape tells
    monkeypatch.setattr(module, "turned", lambda name, t: t if name.endswith(square) else turned(name, t))
    with pytest.raises(CheckpointError, match=r"the logits differ by .* from those of transformers' own model"):
        api.import_run(str(released), "one", lambda _: None)
    assert not (here / "runs/one").exists()
    model = GPT(SMALL).initialise(1).eval()
    with pytest.raises(CheckpointError, match=r"the logits differ by .* from those of transformers' model of what was"):
        export(model, Gpt2(), here / "out", "hf", "card", lambda _: None)
    assert not [path for path in here.iterdir() if path.name != "runs"]


def test_gguf_out(here: Path) -> None:
    """Under llama.cpp's names for gpt2, matrices as (out, in), the tied head left out, with GPT-2's tokenizer."""
    gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    model = GPT(replace(SMALL, bias=False)).initialise(2)
    told: list[str] = []
    export(model, Gpt2(), here / "m.gguf", "gguf", "", told.append)
    assert told[-1] == "all 28 tensors read back by the library gguf are what was written"
    reader = gguf.GGUFReader(here / "m.gguf")
    got = {tensor.name: torch.tensor(tensor.data) for tensor in reader.tensors}
    want = whole_weights(model)
    for theirs_, mine in {
        "token_embd.weight": "wte.weight",
        "position_embd.weight": "wpe.weight",
        "blk.1.attn_norm.bias": "h.1.ln_1.bias",
        "blk.1.attn_qkv.weight": "h.1.attn.c_attn.weight",
        "blk.0.attn_output.weight": "h.0.attn.c_proj.weight",
        "blk.1.ffn_norm.weight": "h.1.ln_2.weight",
        "blk.0.ffn_up.weight": "h.0.mlp.c_fc.weight",
        "blk.0.ffn_down.bias": "h.0.mlp.c_proj.bias",
        "output_norm.weight": "ln_f.weight",
    }.items():
        assert torch.equal(got[theirs_], want[mine])
    assert "output.weight" not in got
    fields = reader.fields
    names = ("general.architecture", "gpt2.block_count", "gpt2.context_length", "gpt2.attention.head_count")
    assert [fields[name].contents() for name in names] == ["gpt2", 2, 32, 2]
    assert fields["gpt2.attention.layer_norm_epsilon"].contents() == pytest.approx(1e-5)
    symbols = fields["tokenizer.ggml.tokens"]
    assert (symbols.contents(15496), symbols.contents(50256)) == ("Hello", "<|endoftext|>")
    assert len(fields["tokenizer.ggml.merges"].data) == 50000
    with pytest.raises(ConfigError, match=r"tokenizer is bytes, which llama\.cpp does not have"):
        export(GPT(replace(SMALL, vocab=257)).initialise(1), Bytes(), here / "b.gguf", "gguf", "", told.append)


def test_a_run_and_its_checkpoints_are_sources_too(released: Path, here: Path) -> None:
    folder = api.import_run(str(released), "one", lambda _: None)
    saved = folder / "checkpoints/step-000000"
    want = weights_of(huggingface_source(released))
    for given in ("one", "runs/one", str(saved)):
        got = weights_of(open_source(given))
        assert all(torch.equal(got[name], tensor) for name, tensor in want.items())
    assert checkpoint.damage(saved) is None
    with (saved / checkpoint.WEIGHTS).open("r+b") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match=r"checkpoint .* is damaged"):
        open_source(str(saved))
    with pytest.raises(CheckpointError, match=r"runs/one has no whole checkpoint"):
        open_source("one")


def test_the_card_says_what_the_run_says(released: Path, here: Path) -> None:
    api.import_run(str(released), "one", lambda _: None)
    api.export("one", "out")
    card = (here / "out/README.md").read_text()
    head = card.split("---")[1]
    assert "library_name: transformers" in head
    assert "\nlicense:" not in head
    assert "50,257 token ids" in card
    assert "taken in and not trained by Tenfold" in card
    assert "recipe" not in card
