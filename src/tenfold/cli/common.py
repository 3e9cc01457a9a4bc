"""What the verbs share: parsing, and what their arguments begin with."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tyro

from tenfold.errors import ConfigError
from tenfold.run import PRESETS, Run, preset


def parse(kind: Callable[..., Any], arguments: Sequence[str], verb: str, **options: Any) -> Any:
    """The verb's options from the command line; prints help, or a box that names the nearest option, and exits."""
    return tyro.cli(kind, args=list(arguments), prog=f"tenfold {verb}", **options)


def command() -> str:
    """How the user can call this program again from the current folder."""
    import shutil
    from pathlib import Path

    if shutil.which("tenfold"):
        return "tenfold"
    script = sys.argv[0] if Path(sys.argv[0]).name == "tenfold" else sys.executable
    shortest = min(str(Path(script).absolute()), os.path.relpath(script), key=len)
    return shortest if script == sys.argv[0] else f"{shortest} -m tenfold"


def value_of(option: str, arguments: Sequence[str]) -> str:
    """What an option is given on the command line, before it is parsed properly."""
    value = ""  # the last one counts, as for the parser
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            value = arguments[i + 1]
        if argument.startswith(option + "="):
            value = argument.partition("=")[2]
    return value


def preset_first(verb: str, arguments: Sequence[str]) -> tuple[Run, Sequence[str], str]:
    """The preset that a verb's arguments begin with, the other arguments, and what help calls the verb."""
    given = next((a for a in arguments[:1] if not a.startswith("-")), None)
    if given is None and not {"-h", "--help"} & set(arguments):
        raise ConfigError(f"{verb} needs a preset first: tenfold {verb} PRESET; possible are {', '.join(PRESETS)}")
    base = preset(given) if given else Run()
    return base, arguments[1:] if given else arguments, f"{verb} {given or 'PRESET'}"


def refuse_launcher(verb: str) -> None:
    """ConfigError under torchrun: the verb starts the processes that it measures by itself."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ConfigError(f"{verb} starts its own processes; run it without torchrun, and without RANK and WORLD_SIZE")


def with_vocabulary(run: Run) -> Run:
    """A run whose model has a vocabulary, where a preset takes it from the data: that of bytes."""
    return run if run.model.vocab else replace(run, model=replace(run.model, vocab=257))
