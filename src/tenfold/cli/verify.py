"""`tenfold verify`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenfold.cli.common import parse, refuse_launcher
from tenfold.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from tenfold.verify.verdict import Result

LINE = "{:<12}  {:<7}  {:>16}  {:>7}  {}"  # claim, verdict, difference, bound, what was compared


@dataclass(frozen=True)
class VerifyOptions:
    """Prove on this machine, in minutes, that a training is what it is said to be: compare what must be equal, and
    print every difference beside its bound. Ends with exit code 1 if one is larger."""

    only: str = ""
    """Some of transformers, accumulation, processes, precision, compile, attention, resume, cache, export and head,
    with commas between; empty for all."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N, mps or xpu."""


def verify(arguments: Sequence[str]) -> int:
    """prove on this machine that training is exact, with figures"""
    refuse_launcher("verify")
    options: VerifyOptions = parse(VerifyOptions, arguments, "verify")
    from rich.console import Console

    from tenfold.hardware import detect
    from tenfold.verify import verdict

    names = [name.strip() for name in options.only.split(",") if name.strip()] or list(verdict.CLAIMS)
    for name in names:
        if name not in verdict.CLAIMS:
            near, possible = did_you_mean(name, verdict.CLAIMS), ", ".join(verdict.CLAIMS)
            raise ConfigError(f"--only {name!r} is no claim{near}; possible are {possible}")
    hardware = detect(options.device)
    console, start, results = Console(stderr=True, highlight=False), time.monotonic(), list["Result"]()
    spinner = console.status("")

    def told(what: str) -> None:
        if console.is_terminal:
            spinner.update(what)
            spinner.start()

    print(f"on {hardware.described}, torch {hardware.torch}\n")
    print(LINE.format("claim", "", "difference", "at most", "compared"), flush=True)
    try:
        for result in verdict.verify(names, options.device, told):
            spinner.stop()  # it would take what is printed for its own
            print(line(result), flush=True)
            results.append(result)
    finally:
        spinner.stop()
    seconds = time.monotonic() - start
    holds, fails, skipped = (sum(r.status == name for r in results) for name in ("holds", "fails", "skipped"))
    print(f"\n{holds} of {len(results)} comparisons hold, {fails} fail, {skipped} skipped; {seconds:.0f} s")
    return int(fails > 0)


def line(result: "Result") -> str:
    """A result as a line of the table."""
    apart = "" if result.apart is None else f"{result.apart:.2g} {result.unit}"
    bound = "" if result.bound is None else f"{result.bound:g}"
    what = f"{result.what}: {result.reason}" if result.reason else result.what
    return LINE.format(result.claim, result.status, apart, bound, what).rstrip()
