"""Tenfold trains GPT-2 from scratch: fast on whatever hardware there is, provably right, and visible while it learns.

import tenfold

run = tenfold.preset("demo")             # a Run: model, recipe, speed, cadence; change it by dataclasses.replace
done = tenfold.train(run)                # trains, or goes on; done.path is the run folder
model = tenfold.load(done.path)          # the newest checkpoint with its tokenizer
print(model.generate("def ", tokens=100, temperature=0.8))
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenfold.api import Trained, load, train
    from tenfold.run import Run, preset

__all__ = ["Run", "Trained", "load", "preset", "train"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: torch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'tenfold' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("tenfold.run" if name in ("Run", "preset") else "tenfold.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
