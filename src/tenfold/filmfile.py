"""A film on the disk: what was seen of every attention head through training, in film/ of a run folder. No torch here.

    film.json        format, layers L, heads H, and the texts, all of T tokens: name, ids, and tokens as text
    step-000123.bin  a snapshot after 123 updates, compressed by zlib (RFC 1950): for each text the maps of all heads,
                     and then for each text the losses of its T tokens in nats, float32, the first of them NaN
    scores.jsonl     a line a snapshot: its step and, in thousandths, the scores of every head, by their names lists of
                     L lists of H whole numbers; films of before have them as "scores", fractions of one

A map is for each layer, for each head, the lower triangle row by row, T (T + 1) / 2 probabilities p. Each is 4 bits,
round(15 sqrt(p)), whose steps are finest where most of the probabilities lie; two go to a byte, the first into its low
half, and each text begins at a byte."""

import contextlib
import json
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tenfold.errors import CheckpointError
from tenfold.files import content_of, from_json, write_atomically
from tenfold.rundir import FORMAT, append_line, read_json

FOLDER, FILM, SCORES = "film", "film.json", "scores.jsonl"
NAME = re.compile(r"step-(\d{6,})\.bin")
LEVELS = 15  # the largest number of 4 bits
LARGEST = 1 << 28  # numbers in the maps of a snapshot; a film.json that says more is damaged

Floats = npt.NDArray[np.float32]


def described(layers: int, heads: int, texts: Sequence[tuple[str, list[int], list[str]]]) -> dict[str, Any]:
    """What film.json says: the model's shape, and each text's name, ids and tokens as text."""
    return {
        "format": FORMAT,
        "layers": layers,
        "heads": heads,
        "texts": [{"name": name, "ids": ids, "tokens": tokens} for name, ids, tokens in texts],
    }


def begin(run: Path, film: dict[str, Any]) -> None:
    """See that a run's film is this one: write its film.json, or find it there. CheckpointError if there is another."""
    path = run / FOLDER / FILM
    if path.exists():
        if read_film(run) != film:
            raise CheckpointError(f"{path} is the film of another model or of other texts; move {path.parent} away")
        return
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, json.dumps(film) + "\n")


def write(
    run: Path, step: int, maps: Sequence[Floats], losses: Sequence[Floats], scores: dict[str, list[list[float]]]
) -> Path:
    """Write the snapshot of a step, and its scores, from 0 to 1; where it is. maps, for each text: (L, H, T, T);
    losses: (T,)."""
    path = run / FOLDER / f"step-{step:06d}.bin"
    write_atomically(path, pack(maps, losses))
    whole = {name: [[round(1000 * score) for score in row] for row in heads] for name, heads in scores.items()}
    append_line(run / FOLDER / SCORES, json.dumps({"step": step, "thousandths": whole}, separators=(",", ":")))
    return path


def pack(maps: Sequence[Floats], losses: Sequence[Floats]) -> bytes:
    """A snapshot's bytes."""
    parts = []
    for one in maps:
        rows, columns = np.tril_indices(one.shape[-1])
        levels = np.rint(LEVELS * np.sqrt(one[..., rows, columns])).astype(np.uint8).ravel()
        low, high = levels[::2], np.zeros((len(levels) + 1) // 2, np.uint8)
        high[: len(levels) // 2] = levels[1::2]
        parts.append((low | high << 4).tobytes())
    # Z_FILTERED: maps hardly repeat themselves, so that codes by frequency pack them better than references to before
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_FILTERED)
    raw = b"".join([*parts, *(one.astype("<f4").tobytes() for one in losses)])
    return packer.compress(raw) + packer.flush()


def unpack(content: bytes, film: dict[str, Any]) -> tuple[list[Floats], list[Floats]]:
    """The maps, (L, H, T, T), and the losses, (T,), of each text from a snapshot's bytes. The square roots of the
    probabilities are within 1/30 of what they were, so that large ones are within 1/15 and small ones far closer.
    ValueError if the bytes are not a snapshot of this film."""
    lengths = [len(text["ids"]) for text in film["texts"]]
    shape = film["layers"], film["heads"]
    counts = [shape[0] * shape[1] * (length * (length + 1) // 2) for length in lengths]
    expected = sum((count + 1) // 2 for count in counts) + 4 * sum(lengths)
    reader = zlib.decompressobj()
    try:
        raw = reader.decompress(content, expected + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(raw) != expected or not reader.eof:
        raise ValueError(f"it should hold {expected:,} bytes")
    maps, losses, at = [], [], 0
    for length, count in zip(lengths, counts, strict=True):
        packed = np.frombuffer(raw, np.uint8, (count + 1) // 2, at)
        levels = np.stack((packed & LEVELS, packed >> 4), 1).ravel()[:count].reshape(*shape, -1)
        one = np.zeros((*shape, length, length), np.float32)
        rows, columns = np.tril_indices(length)
        one[..., rows, columns] = (levels / np.float32(LEVELS)) ** 2
        maps.append(one)
        at += len(packed)
    for length in lengths:
        losses.append(np.frombuffer(raw, "<f4", length, at))
        at += 4 * length
    return maps, losses


def read(path: Path, film: dict[str, Any]) -> tuple[list[Floats], list[Floats]]:
    """The maps and the losses of a snapshot's file, as `unpack` gives them; CheckpointError if it is damaged."""
    try:
        return unpack(content_of(path), film)
    except OSError as error:
        raise CheckpointError(f"snapshot {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"snapshot {path} is damaged ({error}); remove it") from None


def read_film(run: Path) -> dict[str, Any]:
    """What film.json of a run folder says, checked; CheckpointError if there is none, or it is damaged."""
    path = run / FOLDER / FILM
    film = read_json(path, "film")
    try:
        (length,) = {len(text["ids"]) for text in film["texts"]}
        counts = film["layers"], film["heads"], length
        sound = all(type(count) is int and count > 0 for count in counts)
        sound = sound and length > 1 and film["layers"] * film["heads"] * len(film["texts"]) * length**2 < LARGEST
        for text in film["texts"]:
            sound = sound and isinstance(text["name"], str) and len(text["tokens"]) == len(text["ids"])
            sound = sound and all(type(one) is int and 0 <= one < 1 << 32 for one in text["ids"])
            sound = sound and all(isinstance(one, str) for one in text["tokens"])
    except (KeyError, TypeError, ValueError):  # ValueError: no text, or texts of several lengths
        sound = False
    if not sound:
        raise CheckpointError(f"film {path} is damaged (its shape or its texts); move {path.parent} away")
    return film


def steps(run: Path, reached: float = math.inf) -> list[int]:
    """The steps of a run's snapshots in order, up to the one that the run has `reached`: later ones are left of a part
    of the training that was taken back, until it comes by again."""
    found = (int(m[1]) for path in (run / FOLDER).glob("step-*.bin") if (m := NAME.fullmatch(path.name)))
    return sorted(step for step in found if step <= reached)


def read_scores(run: Path) -> dict[int, dict[str, list[list[float]]]]:
    """The scores of every head by step, of a later line for the same step; half-written lines are passed over."""
    try:
        lines = content_of(run / FOLDER / SCORES).decode(errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):
            record = from_json(line)
            scores = record["scores"] if "scores" in record else of_one(record["thousandths"])
            if type(record["step"]) is int and isinstance(scores, dict):
                found[record["step"]] = scores
    return dict(sorted(found.items()))


def of_one(thousandths: dict[str, list[list[int]]]) -> dict[str, list[list[float]]]:
    """Scores as fractions of one."""
    return {name: [[score / 1000 for score in row] for row in heads] for name, heads in thousandths.items()}
