"""Writes requirements.lock and requirements-dev.lock: those pins of constraints.txt that using tenfold and developing
it need, each with the SHA-256 of every file that the registry has of it. torch is left out: its CPU and CUDA builds
share a version but no file. Run it in the environment of `make test`, with uv on the PATH, after constraints.txt or
pyproject.toml changed."""

import re
import subprocess
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCKS = {"requirements.lock": "tenfold[offline,web]", "requirements-dev.lock": "tenfold[dev]"}
APART = {"tenfold", "torch"}


def pins() -> dict[str, str]:
    """The lines of constraints.txt by their package's canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(line.partition("==")[0]): line for line in lines if re.match(r"[\w.-]+==", line)}


def below(name: str) -> list[str]:
    """What a package requires by its metadata; of tenfold's, by pyproject.toml, which is what is building it, too."""
    if name != "tenfold":
        return requires(name) or []
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = content["project"]["optional-dependencies"].items()
    optional = [f"{each}; extra == '{extra}'" for extra, members in extras for each in members]
    return [*content["project"]["dependencies"], *content["build-system"]["requires"], *optional]


def needed(root: str) -> set[str]:
    """Canonical names of all packages that a requirement brings in this environment, its own among them."""
    found = set[tuple[str, str]]()  # package and extra; without an extra, the empty one
    todo = [Requirement(root)]
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        for extra in {"", *one.extras} - {known for package, known in found if package == name}:
            found.add((name, extra))
            members = map(Requirement, below(name))
            todo += [each for each in members if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def locked(names: set[str]) -> str:
    """The pins of these packages with hashes; KeyError names one that constraints.txt does not pin."""
    pinned = pins()
    command = ["uv", "pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "-"]
    lines = "\n".join(pinned[name] for name in sorted(names))
    return subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    for name, root in LOCKS.items():
        (ROOT / name).write_text(f"# By scripts/lock.py from constraints.txt.\n{locked(needed(root) - APART)}")
