"""The errors that users meet. Each is told in one line: what was given, what is possible, what to do."""

import difflib
from collections.abc import Iterable


class TenfoldError(Exception):
    """A user's mistake or a limit of the machine; the command line prints it in one line and exits with `code`."""

    code = 2


class ConfigError(TenfoldError):
    """An option or a combination of options that cannot be."""


class DataError(TenfoldError):
    """Text, shards or a vocabulary that are missing, foreign or damaged."""


class CheckpointError(TenfoldError):
    """A run folder or checkpoint that is missing, damaged or of another model."""


class HardwareError(TenfoldError):
    """Something this machine, or this build of torch, cannot do."""


def did_you_mean(given: str, possible: Iterable[str]) -> str:
    """', did you mean X?' for the nearest possible word, or nothing."""
    near = difflib.get_close_matches(given, list(possible), n=1)
    return f", did you mean {near[0]!r}?" if near else ""
