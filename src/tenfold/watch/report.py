"""A run's page as one file that needs no server and loads nothing: the page's own parts joined, and in it what the
server would answer. data.js tells the form."""

import contextlib
import math
import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Mapping
from datetime import date
from hashlib import sha256
from pathlib import Path

import numpy as np

from tenfold import filmfile
from tenfold.errors import CheckpointError, ConfigError
from tenfold.files import write_atomically
from tenfold.rundir import FORMAT
from tenfold.watch.runs import Record, Watched, encoded, own

PAGE = Path(__file__).parent / "page"
POINTS = 1200  # of a figure, as the page asks the server for
MEGABYTE = 10**6
FINEST = 2000  # steps between the first and the last snapshot that are tried at most
MARK = "tenfold report"  # by which a file is known as one of these
BEGINNING = 1024  # bytes of a file in which the mark stands
IMPORT = re.compile(r'^import [^;]* from "\./(.*)";\n', re.M)


def gathered(folder: Path, room: int) -> tuple[str, Record]:
    """What is told of a run's film, and what its report holds, in the form that data.js tells; of the film there are at
    most `room` bytes of snapshots.

    CheckpointError for a run that is damaged or has nothing to show yet, ConfigError if there is no room for the first
    and the last snapshot.
    """
    run = Watched(folder.resolve())
    name, detail, series = run.path.name, run.detail(), run.series(POINTS)
    texts = {step: texts for step in detail["samples"] if (texts := run.texts(step)) is not None}
    film = run.film() if own(run.path, run.path / filmfile.FOLDER / filmfile.FILM) else None
    found = {step: own(run.path, run.snapshot(step)) for step in film["steps"]} if film and room else {}
    frames = {step: path for step, path in found.items() if path}
    sizes = {step: inlined(path.stat().st_size) for step, path in frames.items()}
    if not (series["series"] or sizes):
        raise CheckpointError(f"{folder} has no figures yet, in metrics.jsonl or of a film; train it first")
    kept = thinned(sizes, room)
    snapshots = f"film: {len(kept):,} of {len(sizes):,} snapshots"
    content = {
        "format": FORMAT,
        "made": date.today().isoformat() + (f", {snapshots}" if len(kept) < len(sizes) else ""),
        "runs": {"runs": [detail["summary"]]},  # not the folder: it is nobody's business where the run lay
        "run": {name: {**detail, "samples": list(texts), "film": bool(kept)}},
        "series": {name: series},
        "samples": {name: texts},
        "film": {name: {**film, "steps": kept}} if film and kept else {},
        "frames": {name: {step: b64encode(frames[step].read_bytes()).decode() for step in kept}},
    }
    return f"{snapshots}, {megabytes(sum(sizes[step] for step in kept))} MB" if kept else "no film", content


def inlined(size: int) -> int:
    """Bytes that so many take as base64."""
    return 4 * -(-size // 3)


def megabytes(size: int) -> str:
    """Bytes in MB, rounded up to a tenth."""
    return f"{math.ceil(10 * size / MEGABYTE) / 10:g}"


def thinned(sizes: Mapping[int, int], room: int) -> list[int]:
    """The steps of snapshots to keep, of all with their sizes in bytes, as many as there is room for: the first, the
    last, and those nearest to even distances in the log of the step. ConfigError if the first and the last do not fit.
    """
    steps = np.array(sorted(sizes))
    places = np.log1p(steps)

    def chosen(count: int) -> list[int]:
        wanted = np.linspace(places[0], places[-1], count)
        return sorted(set(steps[np.abs(places[:, None] - wanted).argmin(0)].tolist()))

    def size(count: int) -> int:
        return sum(sizes[step] for step in chosen(count))

    if sum(sizes.values()) <= room:
        return steps.tolist()
    if size(2) > room:
        raise ConfigError(
            f"--film-megabytes {room / MEGABYTE:g}: the film's first and last snapshot take {megabytes(size(2))}; give "
            "at least that, or 0 for no film"
        )
    counts = range(2, FINEST)
    return chosen(counts[bisect_right(counts, room, key=size) - 1])


def page(content: Record) -> str:
    """The page as one file that holds its content. A browser may run its script and use its style, known by their
    hashes, and load nothing."""
    script, style = joined(PAGE), (PAGE / "style.css").read_text(encoding="utf-8")
    icon = b64encode((PAGE / "icon.svg").read_bytes()).decode()
    policy = (
        f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    index = re.sub(r"<(?:link|script) .*\n", "", (PAGE / "index.html").read_text(encoding="utf-8"))
    before, head, body = index.partition("<head>\n")
    middle, end_of_head, body = body.partition("</head>")
    body, end_of_body, after = body.partition("</body>")
    data = encoded(content).replace("<", r"\u003c")  # no text of the run ends the script that holds it
    parts = (
        before,
        head,
        f'<meta name="generator" content="{MARK}">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        middle,
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n',
        f"<style>{style}</style>\n",
        end_of_head,
        body,
        f'<script type="application/json" id="report">{data}</script>\n',
        f'<script type="module">{script}</script>\n',
        end_of_body,
        after,
    )
    return "".join(parts)


def hashed(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def joined(folder: Path) -> str:
    """The page's modules as one, each after those that it imports: a file opened from a disk may import none."""
    modules = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.js")}
    order: list[str] = []

    def visit(name: str) -> None:
        for needed in IMPORT.findall(modules[name]):
            if needed not in order:
                visit(needed)
        order.append(name)

    visit("main.js")
    return "\n".join(re.sub("^export ", "", IMPORT.sub("", modules[name]), flags=re.M) for name in order)


def refuse(path: Path, suffix: str) -> None:
    """ConfigError if a report's file is not to be written here: it has no such name, or something else is there."""
    if path.suffix != suffix:
        raise ConfigError(f"--out {path}: give a file that ends in {suffix}")
    if not path.parent.is_dir():
        raise ConfigError(f"--out {path}: {path.parent} is no folder; make it, or give another --out")
    if path.exists() and not (path.is_file() and is_ours(path)):
        raise ConfigError(f"{path} is there and no report; move it, or give another --out")


def is_ours(path: Path) -> bool:
    """Whether a file is a report, or a picture of one."""
    with path.open("rb") as file:
        return MARK.encode() in file.read(BEGINNING)


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole, or leave nothing; ConfigError if it cannot be written."""
    try:
        write_atomically(path, content)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.with_name(path.name + ".partial").unlink()
        raise ConfigError(f"{path} cannot be written: {error.strerror}; mend that, or give another --out") from None
