"""`tenfold import` and `tenfold export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tyro

from tenfold.cli.common import command, parse


@dataclass(frozen=True)
class ImportOptions:
    """Take in the weights of a GPT-2 as a run that can be evaluated, sampled and trained on."""

    source: tyro.conf.Positional[str]
    """gpt2, gpt2-medium, gpt2-large or gpt2-xl, another owner/name on the Hub, a folder that holds config.json and
    weights, a file of llm.c or nanoGPT, or a run."""
    name: str = ""
    """Name of the run's folder in runs/; empty for the source's own."""


@dataclass(frozen=True)
class ExportOptions:
    """Write a run's model for other programs: a folder that transformers loads, or a GGUF file for llama.cpp."""

    run: tyro.conf.Positional[str]
    """Run by its name in runs/ or its path, or a checkpoint folder."""
    out: tyro.conf.Positional[str]
    """Folder, or GGUF file, to write; it must not be there."""
    format: Literal["hf", "gguf"] = "hf"
    """hf (transformers) or gguf (llama.cpp)."""
    step: int | None = None
    """Step of the checkpoint; by default the newest."""
    push: str = ""
    """Repository on the Hub, owner/name, that the folder is sent to as well."""


def import_(arguments: Sequence[str]) -> int:
    """take in GPT-2 weights from the Hub, a folder or a file, as a run"""
    options: ImportOptions = parse(ImportOptions, arguments, "import")
    from pathlib import Path

    from tenfold import api
    from tenfold.console import Terminal

    name = options.name or Path(options.source).stem
    with Terminal() as shown:
        folder = api.import_run(options.source, name, shown.say)
    print(f"{name}: everything is in {folder}")
    print(f"sample it:     {command()} sample {name} --prompt TEXT")
    print(f"fine-tune it:  {command()} train finetune --name {name} --data SHARDS")
    return 0


def export(arguments: Sequence[str]) -> int:
    """write a run's model for transformers or llama.cpp"""
    options: ExportOptions = parse(ExportOptions, arguments, "export")
    from tenfold import api
    from tenfold.console import Terminal

    with Terminal() as shown:
        api.export(options.run, options.out, options.format, options.step, options.push, shown)
    return 0
