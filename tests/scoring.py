"""What tests/test_scorer.py starts on one and three processes: scores of pairs and of a toy HellaSwag, and whether all
processes have the same of them."""

import json
import tempfile
from pathlib import Path

import torch

from tenfold import world as worlds
from tenfold.cli import finish
from tenfold.data.tokenizer import Bytes
from tenfold.evaluate.evaluation import evaluate
from tenfold.evaluate.scorer import Scorer
from test_generate import lively
from test_scorer import some_pairs
from test_tasks import stories, write


def main() -> None:
    torch.set_num_threads(1)
    world, model = worlds.join("cpu"), lively()
    forwards = [0]
    model.register_forward_hook(lambda *_: forwards.__setitem__(0, forwards[0] + 1))
    sums = [Scorer(model, world, tokens=tokens)(some_pairs(25, 3)).sums.tolist() for tokens in (0, 40, 10_000)]
    sums.append(Scorer(model, world)(some_pairs(1, 1)).sums.tolist())  # one batch: the others have nothing
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "stories.jsonl", stories())
        results = evaluate(model, Bytes(), ["hellaswag"], world, data=Path(folder) / "stories.jsonl")
    figures = {name: (figure.value, figure.error) for name, figure in results["hellaswag"].figures.items()}
    told = {"sums": sums, "figures": figures}
    agree = {"results agree": world.agree(told), "forwards agree": world.agree(forwards)}
    if world.lead:
        print(json.dumps({**told, **agree}))
    finish(0)


if __name__ == "__main__":
    main()
