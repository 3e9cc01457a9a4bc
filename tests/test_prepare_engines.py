"""Who encodes does not matter: the same bytes from this process, from any number of processes, and from Ray. A worker
that dies ends the job at once with the document named, and memory depends on nobody's speed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from conftest import environment
from preparing import contents, jsonl, parquet_file, shards, story
from tenfold.errors import DataError
from tenfold.prepare import prepare_text
from tenfold.prepare.encode import Coder
from tenfold.prepare.sources import Row
from tenfold.prepare.workers import Batch, ordered, processes


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 3 MB of rows, with everything that counts differently."""
    texts = [story(100, i % 400) if i % 50 else None for i in range(5000)]
    return parquet_file(tmp_path_factory.mktemp("rows") / "rows.parquet", texts, 700)


@pytest.fixture(scope="module")
def alone(rows: Path) -> Path:
    """What one process makes of them."""
    prepare_text(rows, rows.parent / "alone", engine="inline", dedup=True, shuffle=5, shard_tokens=100_000)
    return rows.parent / "alone"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_processes_gives_the_same_bytes(rows: Path, alone: Path, tmp_path: Path, workers: int) -> None:
    out = tmp_path / "out"
    how = {"dedup": True, "shuffle": 5, "shard_tokens": 100_000}
    prepare_text(rows, out, engine="processes", workers=workers, **how)
    assert contents(out) == contents(alone)


PLAIN = """
import sys
from pathlib import Path
from tenfold.prepare import prepare_text
prepare_text(Path(sys.argv[1]), Path(sys.argv[2]), engine="processes", workers=2, **eval(sys.argv[3]))
"""


@pytest.mark.timeout(120)
def test_a_program_without_a_main_guard_may_start_processes(rows: Path, alone: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PLAIN)  # T25: no `if __name__ == "__main__"`
    how = "dict(dedup=True, shuffle=5, shard_tokens=100_000)"
    command = [sys.executable, str(tmp_path / "program.py"), str(rows), str(tmp_path / "out"), how]
    subprocess.run(command, check=True, timeout=100)
    assert contents(tmp_path / "out") == contents(alone)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ray_gives_the_same_bytes(rows: Path, alone: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    command = PLAIN.replace('"processes"', '"ray"')
    how = "dict(dedup=True, shuffle=5, shard_tokens=100_000)"
    done = subprocess.run(
        [sys.executable, "-c", command, str(rows), str(tmp_path / "out"), how],
        env={**environment(), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert contents(tmp_path / "out") == contents(alone)


# A worker that dies


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_a_worker_that_is_killed_ends_the_job_in_seconds_with_the_document_named(tmp_path: Path) -> None:
    source, out = jsonl(tmp_path / "rows.jsonl", [story(2000, i % 50) for i in range(600)]), tmp_path / "out"
    how = "dict(shard_tokens=1_000_000, commit_tokens=200_000, check=True)"  # which takes its time
    command = [sys.executable, "-c", PLAIN, str(source), str(out), how]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as job:
        deadline = time.monotonic() + 60
        while not list(out.glob("train_*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        victim = next(child for child in children(job.pid) if b"serve" in Path(f"/proc/{child}/cmdline").read_bytes())
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        _, said = job.communicate(timeout=30)
        assert time.monotonic() - killed < 10
    last = said.strip().splitlines()[-1]
    assert "DataError" in last
    assert f"{source}, line " in last
    assert "ended the process that worked on it (SIGKILL); if memory ran out, give fewer --workers" in last
    prepare_text(source, out, shard_tokens=1_000_000, commit_tokens=200_000, check=True)  # and it goes on
    whole = prepare_text(source, tmp_path / "whole", shard_tokens=1_000_000, check=True)
    assert shards(out) == shards(tmp_path / "whole")
    assert json.loads((out / "manifest.json").read_text()) == whole


class Deadly(Coder):
    """Ends its process at a certain document, as an error in a library's own code would."""

    def text(self, lines: bool, data: bytes | None) -> tuple[str | None, bool]:
        if data == b"poison":
            os.write(2, b"something terrible\n")
            os._exit(7)
        return super().text(lines, data)


@pytest.mark.timeout(60)
def test_the_document_that_ends_a_worker_is_the_one_that_is_named() -> None:
    batches = [(False, [Row(0, 0, i, 0, b"fine") for i in range(5)])] * 3
    batches.append((False, [Row(0, 0, i, 0, b"poison" if i == 3 else b"fine") for i in range(5)]))
    results = list(processes(Deadly({"name": "bytes"}, "text", "strict"), batches, 2))
    assert [len(encoded.documents) for _, encoded in results[:3]] == [5, 5, 5]
    problem = results[3][1].problem
    assert problem is not None
    assert problem[0] == 3
    assert problem[1].startswith("ended the process that worked on it (exit code 7: something terrible)")


@pytest.mark.timeout(60)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "rows.jsonl", [story(2000, i % 50) for i in range(400)])
    command = [sys.executable, "-c", PLAIN, str(source), str(tmp_path / "out"), "dict(check=True)"]
    with subprocess.Popen(command, env=environment()) as job:
        deadline, workers = time.monotonic() + 40, list[int]()
        while len(workers) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
            workers = [pid for pid in children(job.pid) if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        job.kill()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


# Memory


@pytest.mark.timeout(30)
def test_the_reader_is_never_further_ahead_than_a_bound() -> None:
    taken, read = count(), [0]

    def endless() -> Iterator[Batch]:
        for number in range(1000):
            read[0] = number + 1
            yield False, [Row(0, 0, number, 0, b"x")]

    coder = Coder({"name": "bytes"}, "text", "strict")
    for rows, encoded in ordered(endless(), 4, lambda batch: batch, lambda batch: coder.encode(False, [b"x"])):
        number = next(taken)
        assert rows[0].row == number  # in order
        assert len(encoded.ids) == 1
        assert read[0] - number <= 5


MEASURE = """
import resource, sys
from pathlib import Path
from tenfold.prepare import prepare_text
prepare_text(Path(sys.argv[1]), Path(sys.argv[2]), "gpt2", engine="processes", workers=2)
status = Path("/proc/self/status").read_text().splitlines()
print(next(line for line in status if line.startswith("VmHWM")).split()[1])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts kilobytes as Linux does")
def test_memory_does_not_grow_with_a_source(tmp_path: Path) -> None:
    used, texts = [], [story(1000, i) for i in range(300)]  # about 1.5 MB
    for name, times in (("small", 10), ("large", 60)):
        source = parquet_file(tmp_path / f"{name}.parquet", texts * times, 500)
        seen = []
        for i in range(3):  # how much is under way at once is a matter of luck: 168 to 186 MB were seen of either
            command = [sys.executable, "-c", MEASURE, str(source), str(tmp_path / f"{name}-{i}")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            seen.append([int(size) // 1024 for size in done.stdout.split()])
        used.append([min(sizes) for sizes in zip(*seen, strict=True)])
    assert used[1][0] - used[0][0] < 20, used  # MB: what is under way is the same
    assert used[1][1] - used[0][1] < 20, used


def test_an_unreadable_row_ends_the_job_whoever_encodes(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "rows.jsonl", ["fine"] * 20)
    with source.open("ab") as file:
        file.write(b'{"text": 1}\n')
    for engine in ("inline", "processes"):
        with pytest.raises(DataError, match=r"rows.jsonl, line 21 has 1 in its field 'text'"):
            prepare_text(source, tmp_path / engine, "bytes", engine=engine, workers=2)
