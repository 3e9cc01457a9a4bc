"""`tenfold film`."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from tenfold.cli.common import command, parse
from tenfold.errors import CheckpointError


@dataclass(frozen=True)
class FilmOptions:
    """Film what every attention head looks at: in a run, at each of its checkpoints, or in a finished model, which is
    taken in as a run of one checkpoint first. A training films itself, see --cadence.film."""

    run: tyro.conf.Positional[str]
    """Run by its name in runs/ or its path; or gpt2, another owner/name on the Hub, or whatever else `tenfold import`
    takes."""
    name: str = ""
    """Name in runs/ under which a model is taken in; empty for its own."""
    text: str = ""
    """Text whose first 64 tokens are looked at; by default the beginning of the run's validation split."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N, mps or xpu."""


def film(arguments: Sequence[str]) -> int:
    """film every attention head, through the checkpoints of a run or in a finished model"""
    options: FilmOptions = parse(FilmOptions, arguments, "film")
    from pathlib import Path

    from tenfold import api, rundir
    from tenfold.console import Terminal
    from tenfold.film import make

    with Terminal() as shown:
        folder = None
        if not options.name:
            with contextlib.suppress(CheckpointError):
                folder = rundir.find(options.run)
        folder = folder or api.import_run(options.run, options.name or Path(options.run).stem, shown.say)
        with rundir.locked(folder):
            count = make(folder, options.text, options.device, shown.say)
    where = "" if folder.parent == rundir.RUNS else f" {folder.parent}"
    print(f"{folder.name}: a film of {count:,} snapshot{'s' if count > 1 else ''} is in {folder / 'film'}")
    print(f"watch it:  {command()} watch{where}")
    return 0
