"""`tenfold report`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from tenfold.cli.common import parse
from tenfold.errors import ConfigError


@dataclass(frozen=True)
class ReportOptions:
    """Put all that the page shows of a run into one HTML file, to send or to lay beside a model card: it needs no
    server and loads nothing."""

    run: tyro.conf.Positional[str]
    """Run by its name in runs/ or its path."""
    out: str = ""
    """HTML file; empty for report.html in the run's folder. One that no report wrote is not replaced."""
    film_megabytes: float = 8
    """Size that the film's snapshots may take in it: of more the first, the last and those between them are kept that
    are evenly apart in the log of the step. 0 leaves out the film."""
    png: bool = False
    """Also draw losses and learning rate, for a README, as a picture beside it."""


def report(arguments: Sequence[str]) -> int:
    """put a run's page into one HTML file, to send; with a picture of its curves"""
    options: ReportOptions = parse(ReportOptions, arguments, "report")
    if not 0 <= options.film_megabytes < math.inf:
        raise ConfigError(f"--film-megabytes {options.film_megabytes}: give 0 or more")
    from tenfold import rundir
    from tenfold.watch.picture import png
    from tenfold.watch.report import MEGABYTE, gathered, megabytes, page, refuse, write

    folder = rundir.find(options.run)
    out = Path(options.out) if options.out else folder / "report.html"
    picture = out.with_suffix(".png")
    refuse(out, ".html")
    if options.png:
        refuse(picture, ".png")
    told, content = gathered(folder, round(options.film_megabytes * MEGABYTE))
    ((name, detail),) = content["run"].items()
    drawn = png(detail, content["series"][name]) if options.png else b""
    write(out, page(content))
    print(f"{out}: {megabytes(out.stat().st_size)} MB, {told}")
    if options.png:
        write(picture, drawn)
        print(f"{picture}: its curves")
    return 0
