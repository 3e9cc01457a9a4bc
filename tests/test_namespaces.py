"""Two nodes whose network is cut in the middle of a training: two network namespaces on one machine, each with a name
of its own, joined by a virtual cable."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import TINY_OPTIONS, Tenfold, environment
from tenfold.data.shards import Corpus
from tenfold.rundir import read_metrics
from test_deploy import BIN, DEPLOY, end, until

LOST = 10  # seconds
STEPS = 300
OPTIONS = [*TINY_OPTIONS, "--recipe.steps", str(STEPS), "--cadence.lost", str(LOST), "--speed.precision", "fp32"]
SLOWLY = ["--cadence.eval", "1"]  # the whole validation split, so that a step takes a while
NODES = {"node-a": "10.213.0.1", "node-b": "10.213.0.2"}
INSIDE = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec bash "$@"'


def ip(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command of iproute2."""
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20)


def space(node: str) -> str:
    """A node's namespace, of this process alone."""
    return f"tenfold-{os.getpid()}-{node}"


@pytest.fixture
def cable() -> Iterator[Callable[[str], None]]:
    """Two namespaces and a cable between them; what it gives sets the second's end `up` or `down`."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("there is no ip, or no unshare")
    try:
        for node in NODES:
            if told := ip("netns", "add", space(node)).stderr:
                pytest.skip(f"no network namespace can be made here: {told.strip()}")
        first, second = (space(node) for node in NODES)
        if told := ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "eth0", "netns", second).stderr:
            pytest.skip(f"no virtual cable can be made here: {told.strip()}")
        for node, address in NODES.items():
            ip("-n", space(node), "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", space(node), "link", "set", device, "up")

        def put(state: str) -> None:
            done = ip("-n", second, "link", "set", "eth0", state)
            assert done.returncode == 0, done.stderr

        yield put
    finally:
        for node in NODES:
            ip("netns", "delete", space(node))  # the cable goes with them


Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(cable: Callable[[str], None], corpus: Corpus, tmp_path: Path) -> Iterator[Start]:
    """Starts deploy/several_nodes.sh on a node, for one or two nodes; its log is log-NODE, appended to."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {node}\n" for node, address in NODES.items()))
    variables = {"HOST": "node-a", "NODES": "1:2", "PROCESSES": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    running: list[subprocess.Popen[str]] = []

    def call(node: str) -> "subprocess.Popen[str]":
        enter = ["ip", "netns", "exec", space(node), "unshare", "--uts", "--mount", "bash", "-c", INSIDE]
        with (tmp_path / f"log-{node}").open("a") as log:
            process = subprocess.Popen(
                [*enter, node, hosts, DEPLOY / "several_nodes.sh", "demo", "--data", corpus.path, *OPTIONS, *SLOWLY],
                cwd=tmp_path,
                env={**environment(), **variables, "PATH": f"{BIN}:{os.environ['PATH']}"},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        running.append(process)
        return process

    yield call
    for process in running:
        end(process)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("again", [False, True], ids=["alone", "together again"])
def test_a_training_survives_that_the_network_is_cut(
    start: Start, cable: Callable[[str], None], tenfold: Tenfold, corpus: Corpus, tmp_path: Path, again: bool
) -> None:
    """Each side names the other within the limit and ends; the one with the meeting place goes on at the last
    checkpoint, alone or, once the cable is in again, with the other. The losses are those of an undisturbed run."""

    def log(node: str) -> str:
        return (tmp_path / f"log-{node}").read_text()

    def seen(what: str) -> int:
        return sum(log(node).count(what) for node in NODES)

    alone, together = "(1 x 1 x 8 rows)", "(1 x 2 x 4 rows)"
    run = tmp_path / "runs/demo"
    first = start("node-a")
    time.sleep(4)  # so that it does not miss the other
    second = start("node-b")
    until(lambda: seen(together) and newest(run) > 25, 120, tmp_path)
    cable("down")
    begun = time.monotonic()
    until(lambda: all("not heard of" in log(node) for node in NODES), 2 * LOST, tmp_path)
    assert time.monotonic() - begun > LOST / 2
    assert "on node-b (pid" in log("node-a")
    assert "on node-a (pid" in log("node-b")
    if again:
        end(second)
        cable("up")
        start("node-b")
        until(lambda: seen(together) > 1, 200, tmp_path)
    else:
        until(lambda: seen(alone), 200, tmp_path)
    assert first.wait(timeout=200) == 0, log("node-a")[-3000:]
    told = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    resumed = [record["step"] for record in told if record.get("event") == "resume"]
    assert resumed
    assert all(step % 10 == 0 and step > 0 for step in resumed)
    plain = tenfold("train", "demo", "--name", "plain", "--data", corpus.path, *OPTIONS, timeout=120)
    assert plain.returncode == 0, plain.stderr
    assert list(losses(run)) == list(range(STEPS))
    assert losses(run) == pytest.approx(losses(tmp_path / "runs/plain"), rel=1e-6)


def newest(run: Path) -> int:
    """The newest step in the metrics of a run, or 0."""
    return max((record["step"] for record in read_metrics(run)), default=0)


def losses(run: Path) -> dict[int, float]:
    """Loss by step, without what a resume took back."""
    return {record["step"]: record["loss"] for record in read_metrics(run) if "loss" in record}
