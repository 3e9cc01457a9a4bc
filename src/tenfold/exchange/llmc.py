"""llm.c's model files: a header of 256 integers, then every tensor in one fixed order, fp32 (version 3) or bf16 (5).

The header holds magic, version, context, vocabulary, layers, heads, width and the vocabulary's padded rows; matrices
lie as (out, in), and what blocks have lies together for all layers.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tenfold.errors import CheckpointError
from tenfold.exchange.weights import GPT2_PADDED, GPT2_VOCAB, Source, beyond_gpt2, shapes
from tenfold.model.config import ModelConfig

MAGIC, TOKENS_MAGIC, HEADER = 20240326, 20240520, 256
DTYPES = {3: torch.float32, 5: torch.bfloat16}
OF_A_BLOCK = [
    f"{part}.{kind}"
    for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    for kind in ("weight", "bias")
]


def order(layers: int) -> list[str]:
    """Our names in the order in which the file has them."""
    blocks = [f"h.{layer}.{name}" for name in OF_A_BLOCK for layer in range(layers)]
    return ["wte.weight", "wpe.weight", *blocks, "ln_f.weight", "ln_f.bias"]


def llmc_source(path: Path) -> Source:
    """The model in a file of llm.c; CheckpointError if it is of another version or has another size than it says."""
    header = np.fromfile(path, "<i4", HEADER)
    if len(header) < HEADER or header[0] != MAGIC:
        raise CheckpointError(f"{path} is no model of llm.c (magic {MAGIC}), or only a piece of one; get it again")
    version, context, vocab, layers, heads, width, rows = map(int, header[1:8])
    if version not in DTYPES:
        raise CheckpointError(
            f"{path} has version {version} of llm.c's format; versions 3 (fp32) and 5 (bf16) are read"
        )
    if rows < vocab:
        raise CheckpointError(f"{path} says {rows} rows for {vocab} token ids; its header is damaged, get it again")
    notes = beyond_gpt2(vocab, str(path))
    model = ModelConfig(layers, heads, width, context, GPT2_VOCAB, GPT2_PADDED)
    lying = {**shapes(model), "wte.weight": torch.Size((rows, width))}
    dtype, count = DTYPES[version], sum(map(math.prod, lying.values()))
    needed, size = 4 * HEADER + count * dtype.itemsize, path.stat().st_size
    if size != needed:
        raise CheckpointError(f"{path} has {size:,} bytes, its header needs {needed:,}; get the file again, whole")

    def tensors() -> Iterator[tuple[str, Tensor]]:
        body = torch.from_file(str(path), size=size, dtype=torch.uint8)[4 * HEADER :].view(dtype)
        at = 0
        for name in order(layers):
            length = math.prod(lying[name])
            yield name, body[at : at + length].view(lying[name])
            at += length

    return Source(
        said=f"llm.c's model {path}",
        model=model,
        vocabulary={"name": "gpt2"},
        files=(path,),
        read=lambda: dict(tensors()),
        notes=notes,
    )
