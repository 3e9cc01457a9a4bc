"""Our tokenizers as the files that transformers' AutoTokenizer reads, made of the building blocks of its tokenizers
library: the same ids for every text, except that there the words <|endoftext|> in a text become end-of-text."""

import json
import shutil
from pathlib import Path
from typing import Any

from tenfold.data.tokenizer import Bytes, Chars, Gpt2, Tokenizer, find_vocabulary

END = "<|endoftext|>"


def byte_symbols() -> list[str]:
    """The printable character by which byte-level vocabularies write each byte: itself where it is one in Latin-1, else
    the next one from U+0100 on (Radford et al. 2019, the released code)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


# The building block that turns text into those characters, word by word, and back.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def bpe(ids: dict[str, int], merges: list[str]) -> dict[str, Any]:
    """A byte-pair model."""
    return {"type": "BPE", "vocab": ids, "merges": [merge.split(" ") for merge in merges]}


def gpt2(tokenizer: Gpt2) -> dict[str, Any]:
    files = find_vocabulary(tokenizer.vocabulary)
    ids = json.loads(files["encoder.json"].read_text(encoding="utf-8"))
    merges = files["vocab.bpe"].read_text(encoding="utf-8").splitlines()[1:]  # the first line names the format
    return {"pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL, "model": bpe(ids, merges)}


def plain_bytes(tokenizer: Bytes) -> dict[str, Any]:
    ids = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    return {"pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL, "model": bpe(ids, [])}


def chars(tokenizer: Chars) -> dict[str, Any]:
    ids = {symbol: number for number, symbol in enumerate(tokenizer.symbols)}
    each = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
    # Without an unknown token in its vocabulary the model refuses other characters, as ours does.
    model = {"type": "WordLevel", "vocab": ids, "unk_token": ""}
    return {"pre_tokenizer": each, "decoder": {"type": "Fuse"}, "model": model}


BLOCKS = {"gpt2": gpt2, "bytes": plain_bytes, "chars": chars}  # tokenizer -> its parts of tokenizer.json
CLASSES = {"gpt2": "GPT2Tokenizer"}  # of transformers; the others are read from tokenizer.json alone


def write_tokenizer(folder: Path, tokenizer: Tokenizer, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json into a folder, and vocab.json and merges.txt for GPT-2's."""
    special = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": tokenizer.eot, "content": END, **special, "special": True}
    parts: dict[str, Any] = BLOCKS[tokenizer.name](tokenizer)  # type: ignore[operator]
    whole = {"version": "1.0", "added_tokens": [end], "normalizer": None, "post_processor": None, **parts}
    settings = {
        "tokenizer_class": CLASSES.get(tokenizer.name, "PreTrainedTokenizerFast"),
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "bos_token": END,
        "eos_token": END,
        "tenfold": tokenizer.spec(),
    }
    if isinstance(tokenizer, Gpt2):
        settings |= {"unk_token": END, "add_prefix_space": False}
        files = find_vocabulary(tokenizer.vocabulary)
        shutil.copyfile(files["encoder.json"], folder / "vocab.json")
        shutil.copyfile(files["vocab.bpe"], folder / "merges.txt")
    (folder / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
