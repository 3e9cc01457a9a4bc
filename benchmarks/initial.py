"""First steps of untrained models against what training/initial.py predicts: loss in its band, gradient norm and its
ratio to the prediction, over shapes and texts. Asked for: every loss inside, every ratio within NORM_FACTOR.

    python benchmarks/initial.py FOLDER... [--widest 768] [--precision fp32]

Each FOLDER holds token shards.
"""

import argparse
import gc
from pathlib import Path

import torch

from common import trainer
from tenfold.data.shards import open_corpus
from tenfold.data.statistics import statistics
from tenfold.model.config import ModelConfig
from tenfold.recipe import Recipe
from tenfold.run import Run
from tenfold.training.initial import NORM_FACTOR, first_loss, first_norm
from tenfold.training.speed import Speed

SHAPES = [  # layers, heads, width, length, rows
    (1, 2, 32, 32, 32),
    (2, 2, 64, 64, 16),
    (12, 4, 64, 64, 16),
    (4, 4, 128, 128, 16),
    (4, 4, 256, 1024, 1),
    (24, 4, 256, 64, 16),
    (8, 8, 512, 256, 4),
    (12, 12, 768, 32, 32),
    (12, 12, 768, 1024, 1),
    (24, 16, 1024, 256, 4),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--widest", type=int, default=768)
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    print("| text | layers, width | rows x length | loss predicted | measured | norm predicted | measured | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    ratios = []
    for folder in options.folders:
        corpus = open_corpus(folder)
        known, vocab = statistics(corpus), corpus.tokenizer.vocab
        for layers, heads, width, length, rows in SHAPES:
            if width > options.widest:
                continue
            padded = 50304 if vocab == 50257 else 0
            model = ModelConfig(layers, heads, width, context=length, vocab=vocab, padded_vocab=padded)
            speed = Speed(device="cpu", precision=options.precision, rows=max(1, min(rows, 1024 // length)))
            one = trainer(Run(model=model, recipe=Recipe(rows=rows, length=length), speed=speed), corpus)
            loss, norm, _ = one.step()
            one.batches.close()
            low, high = first_loss(model, known, rows * length)
            want = first_norm(model, known, rows * length)
            ratios.append(norm.item() / want)
            outside = "" if low <= loss.item() <= high else " OUTSIDE"
            print(
                f"| {folder.name} | {layers}, {width} | {rows} x {length} | {low:.2f} to {high:.2f} | {loss.item():.3f}"
                f"{outside} | {want:.2f} | {norm.item():.2f} | {ratios[-1]:.2f} |",
                flush=True,
            )
            del one
            gc.collect()
    print(f"\nratios from {min(ratios):.2f} to {max(ratios):.2f}; asked for: {1 / NORM_FACTOR:.2f} to {NORM_FACTOR}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
