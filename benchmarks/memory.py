"""Anonymous memory of a process that reads batches from small and large corpora: it does not grow with the corpus.

python benchmarks/memory.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from common import random_corpus

READ = """
import sys, torch
from tenfold.data.batches import Batches
from tenfold.data.shards import open_corpus
from tenfold.data.split import split
tokens = open_corpus(sys.argv[1]).train
tokens.check(50257)
batches = Batches(tokens, split(64, 1024, 1, 64), 1, 0, torch.device("cpu"))
for position in range(max(50, min(2000, batches.available // 64))):
    batches.take(position, 0)
status = dict(line.split(":") for line in open("/proc/self/status"))
print(int(status["RssAnon"].split()[0]) / 1e3, int(status["RssFile"].split()[0]) / 1e3)
"""


def main() -> None:
    for millions in (1, 10, 100, 500):
        with tempfile.TemporaryDirectory() as folder:
            random_corpus(millions * 1_000_000, Path(folder))
            done = subprocess.run([sys.executable, "-c", READ, folder], capture_output=True, text=True, check=True)
        anonymous, mapped = map(float, done.stdout.split())
        print(f"{millions:4d} M tokens: anonymous {anonymous:6.1f} MB, mapped files {mapped:7.1f} MB")


if __name__ == "__main__":
    main()
