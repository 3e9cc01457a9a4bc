"""How long the first step of gpt2-124m takes with compiled blocks: at most 15 s with a warm compile cache, 50 s with an
empty one.

    python benchmarks/first_step.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CODE = """
import time
from step import tenfold_step
from tenfold.training.speed import Speed
step = tenfold_step(4, 512, Speed(device="cpu", precision="bf16", attention="{attention}", compile="{scope}", rows=4))
start = time.perf_counter()
step()
print(f"{{time.perf_counter() - start:.1f}}")
"""


def seconds(cache: str, scope: str, attention: str) -> str:
    """Seconds of the first step in a new process with this compile cache."""
    return subprocess.run(
        [sys.executable, "-c", CODE.format(scope=scope, attention=attention)],
        cwd=Path(__file__).parent,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def main() -> None:
    for scope, attention in (("none", "sdpa"), ("blocks", "sdpa"), ("blocks", "rows"), ("model", "sdpa")):
        with tempfile.TemporaryDirectory() as cache:
            empty, warm = (seconds(cache, scope, attention) for _ in range(2))
        print(f"compile {scope}, attention {attention}: {empty} s with an empty cache, {warm} s with a warm one")


if __name__ == "__main__":
    main()
