"""One of several processes that train together, started by `together`: trains as it is told, and the lead writes what
is kept of it.

    torchrun -m tenfold.verify.worker DEVICE PARALLEL SHARDS OUT
"""

import os
import sys
from pathlib import Path

from safetensors.torch import save_file

from tenfold import world as worlds
from tenfold.data.shards import open_corpus
from tenfold.verify.lab import evidence, trainer
from tenfold.verify.together import LAYOUTS


def main() -> None:
    device, parallel, shards, out = sys.argv[1:]
    world, tokens = worlds.join(device), open_corpus(shards).train
    found = [evidence(trainer(tokens, world, rows, held, parallel=parallel)) for rows, held in LAYOUTS]
    if world.lead:
        save_file({f"{i}.{name}": t for i, one in enumerate(found) for name, t in one._asdict().items()}, Path(out))
    worlds.leave()
    sys.stderr.flush()
    os._exit(0)  # everything is written; gloo's threads sometimes crash or hang in the interpreter's own shutdown


if __name__ == "__main__":
    main()
