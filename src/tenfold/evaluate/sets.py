"""Where the sets of the tasks come from: a folder or file that is given, the cache, or their publishers. None of them
is part of this package.

What a set is, is told by the SHA-256 of the fields that tasks read of its records, so it is the same whether they come
from the original file or from the Hub's copy in another form. Nothing is kept in the cache whose count or hash is not
the known one.
"""

import hashlib
import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.data.fetch import cache_folder
from tenfold.data.web import Trouble, blocks, persistently, request
from tenfold.errors import DataError
from tenfold.files import from_json, write_atomically

Record = dict[str, Any]
Keep = Callable[[Record], Record]

TIMEOUT, DEADLINE, TRIES = 20.0, 300.0, 3  # seconds without a byte, seconds for an address in all, and tries of it
HUB = "https://huggingface.co"  # unless HF_ENDPOINT names another server


@dataclass(frozen=True)
class Set:
    """A row of SETS."""

    file: str
    """Its place in a folder of sets: .jsonl, or .raw for running text, whose records are its lines."""
    count: int
    """Records."""
    sha256: str
    """As `digest` computes it; empty where it is not known, and then only the count is checked."""
    urls: tuple[str, ...]
    """Where it is offered, the best place first; {hub} stands for the Hub."""
    keep: Keep
    """The fields that tasks read, the same from every form in which the set is offered."""
    original: str = ""
    """The SHA-256 of the published file, for whoever looks for it elsewhere."""


@dataclass(frozen=True)
class Loaded:
    """A set's records, and what they are."""

    records: list[Record]
    verdict: str
    """Empty if they are the published set; else how they differ from it, or what could not be checked."""


def hub(repo: str, config: str, split: str) -> str:
    """The address of a split in the form to which the Hub converts every set."""
    return f"{{hub}}/datasets/{repo}/resolve/refs%2Fconvert%2Fparquet/{config}/{split}/0000.parquet"


def fields(*names: str) -> Callable[[Record], Record]:
    """Keeps these fields as they are."""
    return lambda record: {name: record[name] for name in names}


def story(record: Record) -> Record:
    """A record of HellaSwag. Labels are numbers in the original file and text on the Hub."""
    kept = fields("activity_label", "ctx", "ctx_a", "ctx_b", "endings")(record)
    return {**kept, "endings": list(kept["endings"]), "label": int(record["label"])}


def lettered(question: str) -> Callable[[Record], Record]:
    """Keeps a question, its choices, and as `gold` the number from 0 of the right one, which the Hub gives by its
    label, a letter or a figure."""

    def keep(record: Record) -> Record:
        choices, gold = record["choices"], record.get("gold")
        if gold is None:
            gold, choices = list(choices["label"]).index(record["answerKey"].strip()), choices["text"]
        return {"question": record[question], "choices": list(choices), "gold": gold}

    return keep


def line(record: Record) -> Record:
    """A line of running text without its end. On the Hub a line without words is empty, in the file it is a space."""
    text = record["text"].removesuffix("\n")
    return {"text": text if text.strip() else ""}


SETS: dict[str, Set] = {
    "hellaswag": Set(
        "hellaswag_val.jsonl",
        10_042,
        "8f397059ded78e18ce97b3deb217cbbd68b733fc74df262c4ed134e2ff745783",
        (hub("Rowan/hellaswag", "default", "validation"),),
        story,
        "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588",
    ),
    "lambada": Set(
        "lambada_test.jsonl",
        5_153,
        "9acdcb12e8c2ef4eb3d0958b547a8c7076488df2d6ff460377881ab3841f3d97",
        (
            "https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl",
            hub("EleutherAI/lambada_openai", "default", "test"),
        ),
        fields("text"),
        "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226",
    ),
    "wikitext2": Set(
        "wikitext2.test.raw",
        4_358,
        "dc456ee56346df862c2e9979f9d2f61b197062168491799f03a2de89efcccb5b",
        (hub("Salesforce/wikitext", "wikitext-2-raw-v1", "test"),),
        line,
        "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08",
    ),
    "wikitext103": Set(
        "wikitext103.test.raw", 4_358, "", (hub("Salesforce/wikitext", "wikitext-103-raw-v1", "test"),), line
    ),
    "arc_easy": Set(
        "arc_easy/arc_easy_test.jsonl", 2_376, "", (hub("allenai/ai2_arc", "ARC-Easy", "test"),), lettered("question")
    ),
    "arc_challenge": Set(
        "arc_challenge/arc_challenge_test.jsonl",
        1_172,
        "",
        (hub("allenai/ai2_arc", "ARC-Challenge", "test"),),
        lettered("question"),
    ),
    "piqa": Set(
        "piqa/piqa_validation.jsonl",
        1_838,
        "c85e341b3fa35066f64f5e7838116fe1421484424e9ce20abb54496b69970ee2",
        (hub("ybisk/piqa", "plain_text", "validation"),),
        fields("goal", "sol1", "sol2", "label"),
    ),
    "winogrande": Set(
        "winogrande/winogrande_xl_validation.jsonl",
        1_267,
        "107b28ed11d47c6ef804585e5f1998f2bf88e8e44e2fbbd52a3a4c4afaadc482",
        (hub("allenai/winogrande", "winogrande_xl", "validation"),),
        fields("sentence", "option1", "option2", "answer"),
    ),
    "openbookqa": Set(
        "openbookqa/openbookqa_validation.jsonl",
        500,
        "ad9aa9f0a6bbe382cf826e6ea377e3df1bf671e16d04a8debb936aa1310d3b9b",
        (hub("allenai/openbookqa", "main", "validation"),),
        lettered("question_stem"),
    ),
    "sciq": Set(
        "sciq/sciq_validation.jsonl",
        1_000,
        "2f52881fb15324babf6459bcdb009d227d9bb07bb90258e8b8f02a981a51d685",
        (hub("allenai/sciq", "default", "validation"),),
        fields("question", "distractor1", "distractor2", "distractor3", "correct_answer", "support"),
    ),
    "boolq": Set(
        "boolq/boolq_validation.jsonl",
        3_270,
        "e8fb84fbf510b022e963cddf3a3aded04151afa0ea0ef1cc1bf22f260ddd2344",
        (hub("google/boolq", "default", "validation"),),
        fields("question", "passage", "answer"),
    ),
}


def load(name: str, data: Path | None = None) -> Loaded:
    """The records of a set: from `data`, a folder that has the set's file or that file itself, or else from the cache,
    into which they are downloaded if need be.

    Raises:
        DataError: there is no such file, it is damaged, or the cache or every publisher has something else.
    """
    row = SETS[name]
    path = (cache_folder() / "eval" if data is None else data) / row.file
    if data is not None and not data.is_dir():
        path = data
    if data is not None and not path.is_file():
        raise DataError(f"{path} does not exist; give the folder that has {row.file}, or that file")
    if not path.is_file():
        download(name, path)
    try:
        records = parse(path.read_bytes(), str(path), row.keep)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if not records:
        raise DataError(f"{path} is empty; get it again")
    verdict = compare(row, records)
    if data is None and row.sha256 and verdict:
        raise DataError(f"{path} is not the set {name}: {verdict}; delete it and run the same command again")
    return Loaded(records, verdict)


def parse(content: bytes, name: str, keep: Keep) -> list[Record]:
    """The records of a file or an answer, whose name or address tells its form by its ending.

    Raises:
        DataError: it is not what its name says, or a record lacks something.
    """
    raw: list[Any]
    if name.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        try:
            raw = pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
        except pyarrow.ArrowException:
            raise DataError(f"{name} is not parquet, but begins with {content[:20]!r}; get it again") from None
    else:
        try:
            lines = content.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{name} is not UTF-8 at byte {error.start:,}; get it again") from None
        raw = [{"text": line} for line in lines] if name.endswith(".raw") else [line for line in lines if line.strip()]
    records = []
    for number, record in enumerate(raw, 1):
        try:
            records.append(keep(from_json(record) if isinstance(record, str) else record))
        except KeyError as error:
            raise DataError(f"{name}, record {number}, has no {error}; this task cannot read it") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{name} is damaged in record {number} ({error}); get it again") from None
    return records


def written(records: list[Record], file: str) -> bytes:
    """The content of a set's file."""
    if file.endswith(".raw"):
        return "".join((record["text"] or " ") + "\n" for record in records).encode()
    return "".join(json.dumps(record, ensure_ascii=False, sort_keys=True) + "\n" for record in records).encode()


def digest(records: list[Record]) -> str:
    """The SHA-256 of records as JSON, one a line, with sorted keys."""
    return hashlib.sha256(written(records, ".jsonl")).hexdigest()


def compare(row: Set, records: list[Record]) -> str:
    """Nothing if these are the records of the published set, else in a few words what they are."""
    if len(records) != row.count:
        return f"{len(records):,} records, where the published set has {row.count:,}"
    if not row.sha256:
        return f"{row.count:,} records like the published set, whose hash is not known"
    got = digest(records)
    return "" if got == row.sha256 else f"records with sha256 {got}, where the published set has {row.sha256}"


def download(name: str, path: Path) -> None:
    """Bring a set to `path` from the first of its publishers that has it; DataError if none has."""
    row, failed = SETS[name], []
    for template in row.urls:
        url = template.format(hub=(os.environ.get("HF_ENDPOINT") or HUB).rstrip("/"))
        end = time.monotonic() + DEADLINE
        try:
            content, kind = persistently(lambda url=url, end=end: receive(url, end), TRIES, end)  # type: ignore[misc]
            records = parse(content, url, row.keep)
        except (Trouble, DataError) as error:
            failed.append(f"{url}: {error}" if isinstance(error, Trouble) else str(error))
            continue
        verdict = compare(row, records)
        if not verdict or (not row.sha256 and len(records) == row.count):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, written(records, row.file))
            return
        failed.append(f"{url}: the server sent {len(content):,} bytes of {kind}, {verdict}; not kept")
    which = f"{path.name} (sha256 {row.original})" if row.original else path.name
    raise DataError(
        f"cannot download the set {name}: {'; '.join(failed)}; get {which} some other way and save it as {path}, or "
        "give its place with --data"
    )


def receive(url: str, end: float) -> tuple[bytes, str]:
    """What a server sends and of what type it is; Trouble if that fails, or it is a page for people."""
    with request(url, TIMEOUT) as answer:
        kind, content = answer.headers.get_content_type(), b"".join(blocks(answer, end))
        if kind == "text/html":
            raise Trouble(f"the server answered {answer.status} with {len(content):,} bytes of an HTML page; not kept")
        return content, kind
