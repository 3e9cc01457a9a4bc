"""GGUF, the one-file format of llama.cpp, written by its own library (the extra `gguf`): architecture gpt2, fp32."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tenfold.data.tokenizer import Gpt2, Tokenizer, find_vocabulary
from tenfold.errors import CheckpointError, ConfigError
from tenfold.exchange.huggingface import whole_weights
from tenfold.model.gpt import GPT


def write_gguf(model: GPT, tokenizer: Tokenizer, path: Path) -> str:
    """Write a model with GPT-2's tokenizer as a GGUF file and read it back; what was compared, in words.

    The head is tied: llama.cpp takes the embedding where there is no output tensor. ConfigError if the library is
    missing or the tokenizer is another one; CheckpointError if the file read back is not what was written.
    """
    if not isinstance(tokenizer, Gpt2):
        raise ConfigError(
            f"this run's tokenizer is {tokenizer.name}, which llama.cpp does not have; --format hf writes it as well"
        )
    if find_spec("gguf") is None:
        raise ConfigError("--format gguf needs the library gguf; install it by `pip install 'tenfold[gguf]'`")
    from gguf import MODEL_ARCH, GGUFReader, GGUFWriter, LlamaFileType, TokenType, get_tensor_name_map

    config, kinds = model.config, (".weight", ".bias")
    names = get_tensor_name_map(MODEL_ARCH.GPT2, config.layers)
    tensors = {str(names.get_name(name, kinds)): tensor.numpy() for name, tensor in whole_weights(model).items()}
    files = find_vocabulary(tokenizer.vocabulary)
    ids = json.loads(files["encoder.json"].read_text(encoding="utf-8"))
    tokens = sorted(ids, key=ids.__getitem__)

    writer = GGUFWriter(path, "gpt2")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(4 * config.width)
    writer.add_head_count(config.heads)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * tokenizer.eot + [TokenType.CONTROL])
    writer.add_token_merges(files["vocab.bpe"].read_text(encoding="utf-8").splitlines()[1:])
    writer.add_bos_token_id(tokenizer.eot)
    writer.add_eos_token_id(tokenizer.eot)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    read = {tensor.name: tensor.data for tensor in GGUFReader(path).tensors}
    if read.keys() != tensors.keys() or not all(np.array_equal(read[name], tensors[name]) for name in tensors):
        raise CheckpointError(f"{path} read back is not what was written; the disk or the library gguf is at fault")
    return f"all {len(tensors)} tensors read back by the library gguf are what was written"
