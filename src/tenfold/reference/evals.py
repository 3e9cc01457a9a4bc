"""Published scores of GPT-2 and their protocols: rows of evals.json, each with its source."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def table() -> dict[str, Any]:
    """evals.json."""
    loaded: dict[str, Any] = json.loads((resources.files(__package__) / "evals.json").read_text(encoding="utf-8"))
    return loaded


def known(row: str) -> dict[str, dict[str, float]]:
    """Published figures of a row by model, such as {"gpt2-124m": {"acc": 0.2859}}."""
    return {model: figures for model, figures in table()[row].items() if isinstance(figures, dict)} if row else {}
