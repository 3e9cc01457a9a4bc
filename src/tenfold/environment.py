"""What is needed, besides its fields, to repeat a run: versions, revision and hardware."""

import platform
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tenfold.hardware import Hardware

PACKAGES = ("tenfold", "torch", "numpy", "safetensors", "gigatoken")


def environment(hardware: Hardware, processes: int) -> dict[str, Any]:
    """Versions, git revision, hardware, number of processes and the command's arguments, for run.json."""
    return {
        "versions": {"python": platform.python_version(), **{name: installed(name) for name in PACKAGES}},
        "revision": revision(),
        "hardware": asdict(hardware),
        "processes": processes,
        "platform": platform.platform(),
        "arguments": sys.argv[1:],
    }


def installed(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def revision() -> str | None:
    """Git revision of this package's source, with '+' if it was changed since; None if it lies in no checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return None  # an installed package inside somebody else's checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
