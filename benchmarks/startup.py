"""How long `import tenfold` and `tenfold --help` take; under 0.5 s is asked.

python benchmarks/startup.py
"""

import statistics
import subprocess
import sys
import time


def seconds(*command: str) -> float:
    """Median of seven runs after one to warm the file cache."""
    times = []
    for _ in range(8):
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    bare = seconds("-c", "pass")
    for name, command in {
        "import tenfold": ("-c", "import tenfold"),
        "tenfold --help": ("-m", "tenfold", "--help"),
        "tenfold train demo --help": ("-m", "tenfold", "train", "demo", "--help"),
    }.items():
        print(f"{name:26s} {seconds(*command):.3f} s (Python alone {bare:.3f} s)")


if __name__ == "__main__":
    main()
