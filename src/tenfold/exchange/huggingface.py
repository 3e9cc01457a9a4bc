"""Hugging Face's folders: config.json, weights and tokenizer files. transformers keeps the matrices of GPT-2's blocks
as (in, out), so they are transposed on the way in and out."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tenfold.data.tokenizer import Tokenizer, from_spec
from tenfold.errors import CheckpointError, DataError
from tenfold.exchange.pickled import load_pickle
from tenfold.exchange.tokens import write_tokenizer
from tenfold.exchange.weights import GPT2_PADDED, GPT2_VOCAB, HEAD, PREFIX, Source, beyond_gpt2, kind_of
from tenfold.files import content_of, from_json
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the safe format first; large models list pieces in an index
TURNED = re.compile(r"\.(?:c_attn|c_proj|c_fc)\.weight$")
SAME = {  # config.json's field -> the values with which it is the function that we compute, transformers' default first
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
SIZES = {"layers": "n_layer", "heads": "n_head", "width": "n_embd", "context": "n_positions", "vocab": "vocab_size"}
GPT2_IDS = "71cca498f566a6fce90612118ffe70ec265ffdc746e7e6743a2253d346af4d30"  # SHA-256 of its sorted (token, id)


def huggingface_source(folder: Path, called: str = "", revision: str = "") -> Source:
    """The GPT-2 in a folder; CheckpointError if it is another architecture or variant, or half a folder."""
    said = called or f"folder {folder}"
    config = read_json(folder / "config.json")
    require(config, SAME, said)
    sizes: dict[str, int] = {ours: config.get(theirs, 0) for ours, theirs in SIZES.items()}
    if bad := [SIZES[ours] for ours, size in sizes.items() if type(size) is not int or size < 1]:
        raise CheckpointError(f"{said}: config.json has no usable {', '.join(bad)}; get the folder again")
    require(config, {"n_inner": (None, 4 * sizes["width"])}, said)
    spec, (vocab, padded), notes = vocabulary(folder, sizes["vocab"], said)
    files = weight_files(folder, said)

    def read() -> dict[str, Tensor]:
        found = {PREFIX.sub("", name): tensor for path in files for name, tensor in read_tensors(path).items()}
        if HEAD not in found and not config.get("tie_word_embeddings", True):
            raise CheckpointError(f"{said}: its head is not tied to the embedding and {HEAD} is missing; get it again")
        return {name: turned(name, tensor) for name, tensor in found.items()}

    return Source(
        said=said,
        model=ModelConfig(sizes["layers"], sizes["heads"], sizes["width"], sizes["context"], vocab, padded),
        vocabulary=spec,
        files=files,
        read=read,
        revision=revision,
        notes=notes,
        folder=folder,
    )


def require(config: dict[str, Any], fields: dict[str, tuple[Any, ...]], said: str) -> None:
    """CheckpointError if a field of config.json has a value with which the model is another function than ours."""
    for field, possible in fields.items():
        value = config.get(field, None if field == "model_type" else possible[0])
        if value not in possible:
            have = " or ".join(map(str, possible))
            raise CheckpointError(f"{said}: {field} is {value!r}, this model has {have}; it is another function")


def turned(name: str, tensor: Tensor) -> Tensor:
    """A tensor with its two sides exchanged, where transformers keeps it the other way round."""
    return tensor.t() if TURNED.search(name) and tensor.dim() == 2 else tensor


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of such a folder."""
    try:
        content = from_json(content_of(path))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); a folder needs config.json and {' or '.join(WEIGHTS)}"
        ) from None
    except ValueError:
        raise CheckpointError(f"{path} is no JSON: {kind_of(path)}; get the file again") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is no JSON object; get the file again")
    return content


def weight_files(folder: Path, said: str) -> tuple[Path, ...]:
    """The files of a folder that hold its weights, all of them there."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return (folder / name,)
        index = folder / f"{name}.index.json"
        if index.is_file():
            listed = read_json(index).get("weight_map")
            names = sorted({Path(str(part)).name for part in listed.values()}) if isinstance(listed, dict) else []
            missing = [part for part in names if not (folder / part).is_file()] or ([] if names else ["every piece"])
            if missing:
                raise CheckpointError(f"{said} is half downloaded: {index.name} lists {missing[0]}, which is missing")
            return tuple(folder / part for part in names)
    raise CheckpointError(f"{said} has no weights: {' or '.join(WEIGHTS)} is missing; get the folder again, whole")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file of weights."""
    if path.suffix != ".safetensors":
        content = load_pickle(path)
        if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
            raise CheckpointError(f"{path} holds more than weights by name; use model.safetensors")
        return content
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}; {kind_of(path)}); remove it, get it again") from None


def vocabulary(folder: Path, rows: int, said: str) -> tuple[dict[str, Any], tuple[int, int], tuple[str, ...]]:
    """The tokenizer's spec, the model's vocabulary and its padded rows, and what to say: what tenfold itself wrote into
    tokenizer_config.json, or else GPT-2's, which the tokenizer files must then have."""
    settings = folder / "tokenizer_config.json"
    if (spec := read_json(settings).get("tenfold") if settings.is_file() else None) is not None:
        try:
            ids = from_spec(spec).vocab
        except DataError as error:
            raise CheckpointError(f"{settings}: {error}") from None
        if ids > rows:
            raise CheckpointError(f"{said}: its tokenizer has {ids:,} ids, its model {rows:,}; they do not match")
        return spec, (rows, GPT2_PADDED if rows == GPT2_VOCAB else 0), ()
    known = token_ids(folder)
    if known is not None:
        real = sorted((token, number) for token, number in known.items() if number < GPT2_VOCAB)
        if hashlib.sha256(json.dumps(real).encode()).hexdigest() != GPT2_IDS:
            raise CheckpointError(
                f"{said} has another tokenizer than GPT-2's ({len(known):,} ids, model {rows:,}); its ids would stand "
                "for other text, so it cannot be taken in"
            )
    notes = () if known else ("it has no tokenizer files: GPT-2's are taken",)
    return {"name": "gpt2"}, (GPT2_VOCAB, GPT2_PADDED), (*beyond_gpt2(rows, said), *notes)


def token_ids(folder: Path) -> dict[str, int] | None:
    """The ids of the folder's tokenizer files, or None if it has none."""
    name = next((name for name in ("vocab.json", "tokenizer.json") if (folder / name).is_file()), None)
    if name is None:
        return None
    content = read_json(folder / name)
    try:
        if name == "tokenizer.json":
            added = {token["content"]: token["id"] for token in content.get("added_tokens", ())}
            content = {**content["model"]["vocab"], **added}
        if not all(type(number) is int for number in content.values()):
            raise TypeError
    except (KeyError, TypeError):
        raise CheckpointError(f"{folder / name} is of another form than GPT-2's; it cannot be taken in") from None
    return content


def write_folder(folder: Path, model: GPT, tokenizer: Tokenizer, card: str) -> None:
    """Fill an empty folder with what transformers loads: weights, configuration, tokenizer files and a card.

    The head is tied and written once, rows of padding are not written, and where the model has no biases zeros are
    written, which compute the same."""
    config = model.config
    tensors = {
        f"transformer.{name}": turned(name, tensor).contiguous() for name, tensor in whole_weights(model).items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    ends = {"bos_token_id": tokenizer.eot, "eos_token_id": tokenizer.eot}
    fields: dict[str, Any] = {field: possible[0] for field, possible in SAME.items()}
    fields |= {theirs: getattr(config, ours) for ours, theirs in SIZES.items()}
    fields |= {"n_inner": None, "n_ctx": config.context, "tie_word_embeddings": True, "dtype": "float32", **ends}
    fields |= {"architectures": ["GPT2LMHeadModel"], "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
    write_tokenizer(folder, tokenizer, config.context)
    (folder / "README.md").write_text(card, encoding="utf-8")
    for path in folder.iterdir():
        path.chmod((folder / "config.json").stat().st_mode)  # safetensors lets nobody else read; the umask decides


def whole_weights(model: GPT) -> dict[str, Tensor]:
    """A model's weights on the CPU without rows of padding, with biases of zero where it has none."""
    config, tensors = model.config, dict[str, Tensor]()
    for name, parameter in model.state_dict().items():
        weight = parameter.detach().cpu()
        tensors[name] = weight[: config.vocab] if name == "wte.weight" else weight
        if not config.bias and name not in ("wte.weight", "wpe.weight"):
            tensors[name.replace(".weight", ".bias")] = torch.zeros(weight.size(0))
    return tensors
