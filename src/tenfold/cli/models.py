"""What looks at a model or a machine: `tenfold sample`, `runs` and `info`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from tenfold.cli.common import parse
from tenfold.errors import ConfigError


@dataclass(frozen=True)
class SampleOptions:
    """Write what a trained model makes of a beginning."""

    run: tyro.conf.Positional[str]
    """Run by its name in runs/ or its path, or a checkpoint folder."""
    prompt: str | None = None
    """Text that the samples begin with; by default the run's own."""
    samples: int = 1
    """Number of samples."""
    tokens: int = 200
    """Most tokens of a sample; it ends earlier at an end-of-text."""
    temperature: float = 0.8
    """0 always takes the most likely token; 1 samples as the model says."""
    top_k: int = 200
    """Only the k most likely tokens; 0 is all."""
    top_p: float = 1.0
    """Only the most likely tokens that have this probability together."""
    seed: int = 1337
    """Seed of the first sample; each further one counts up."""
    step: int | None = None
    """Step of the checkpoint; by default the newest."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N, mps or xpu."""


def sample(arguments: Sequence[str]) -> int:
    """write text with a trained model"""
    options: SampleOptions = parse(SampleOptions, arguments, "sample")
    from tenfold import api
    from tenfold.generate import check_options

    check_options(options.tokens, options.temperature, options.top_k, options.top_p, options.seed)
    if options.samples < 1:
        raise ConfigError(f"--samples {options.samples}: give at least 1")
    from tenfold.console import printable

    model = api.load(options.run, options.step, options.device)
    prompt = model.prompt if options.prompt is None else options.prompt
    model.tokenizer.encode(prompt)  # before it is printed, if it cannot be
    shown = printable if sys.stdout.isatty() else str  # a file gets exactly what the model wrote
    print(prompt, end="", flush=True)
    picking = (options.temperature, options.top_k, options.top_p, [options.seed + i for i in range(options.samples)])
    texts = [prompt] * options.samples
    for pieces in model.streams(prompt, options.tokens, *picking):
        print(shown(pieces[0]), end="", flush=True)  # the first as it comes, the others when all are there
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
    print()
    for text in texts[1:]:
        print(f"---\n{shown(text)}")
    return 0


def runs(arguments: Sequence[str]) -> int:
    """list the runs with their state"""
    from pathlib import Path

    from tenfold import rundir
    from tenfold.listing import run_table

    def options(folder: tyro.conf.Positional[Path] = rundir.RUNS) -> Path:
        """List the runs of a folder with their state.

        Args:
            folder: Folder of runs.
        """
        return folder

    folder = parse(options, arguments, "runs")
    if folder != rundir.RUNS and not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give one that holds run folders, or none for {rundir.RUNS}/")
    print(run_table(folder))
    return 0


def info(arguments: Sequence[str]) -> int:
    """tell what this machine is and what it supports"""

    def options(device: str = "auto") -> str:
        """Tell what this machine is and what it supports.

        Args:
            device: auto, cpu, cuda, cuda:N, mps or xpu.
        """
        return device

    device = parse(options, arguments, "info")
    from tenfold.hardware import look, reach
    from tenfold.listing import machine_table

    print(machine_table(look(reach(device))))
    return 0
