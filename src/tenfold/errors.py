"""The errors that users meet. Each is told in one line: what was given, what is possible, what to do. And no line, here
or in a file, tells what gives access to something."""

import difflib
import os
import re
from collections.abc import Iterable

SECRETS = (  # what gives access -> what is left of it: in an address, in its query (signatures too), in a header, alone
    (re.compile(r"(?<=://)[^\s/?#'\"]*@"), "***@"),
    (re.compile(r"(?<![^\s/?#'\"])[^\s/?#@'\"]{1,200}@(?=[\w.\[\]-]{1,200}:\d)"), "***@"),
    (
        re.compile(
            r"([?&#][\w.-]{0,50}(?:token|key|secret|sig|password|credential|auth)[\w.-]{0,50}=)[^&\s'\"\\#]+",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
    (re.compile(r"(\bauthorization['\"]?\s*[:=]\s*['\"]?(?:\w+\s+)?)[^\s'\",]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{16,}", re.IGNORECASE), r"\1***"),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "hf_***"),
)
SECRET_VARIABLE = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD)$")  # names of variables whose values are never told
LONGEST = 4_000  # characters of an error; of a longer one the middle is left out
SHORTEST = 16  # characters of such a value; a shorter one could be part of any word


def without_secrets(text: str) -> str:
    """Text without passwords, tokens, keys and signatures, for everything that is printed or kept in a file."""
    for name, value in os.environ.items():
        if len(value) >= SHORTEST and SECRET_VARIABLE.search(name):
            text = text.replace(value, "***")
    for pattern, left in SECRETS:
        text = pattern.sub(left, text)
    return text


class TenfoldError(Exception):
    """A user's mistake or a limit of the machine; the command line prints it in one line and exits with `code`. What it
    quotes of a file may hold anything: nothing of that breaks the line, commands the terminal or gives access."""

    code = 2

    def __init__(self, said: str) -> None:
        line = without_secrets("".join(c if c.isprintable() else "\ufffd" for c in said.replace("\n", " ")))
        super().__init__(line if len(line) < LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}")


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
