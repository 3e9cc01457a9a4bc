"""The files that say where tenfold runs: scripts run for real, with processes as nodes; the other files are checked by
the tools that own their formats, where these are installed."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import ROOT, TINY_OPTIONS, environment
from tenfold import rundir
from tenfold.data.shards import Corpus
from tenfold.run import PRESETS
from tenfold.training import checkpoint

DEPLOY = ROOT / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
BIN = Path(sys.executable).parent
NEVER = ["--recipe.steps", "1000000", "--cadence.eval", "0"]  # a training that ends when it is told to


def tool(name: str) -> str:
    """The path of a checker; the test is skipped where there is none."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def documents(name: str) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_scripts_are_sound(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", path], timeout=20).returncode == 0
    done = subprocess.run([tool("shellcheck"), path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_dockerfile_is_sound() -> None:
    done = subprocess.run([tool("hadolint"), DEPLOY / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_image_gets_what_it_is_made_of_and_nothing_else() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert ignored.index("*") < ignored.index("!src")
    assert all((ROOT / name).exists() for name in copied)
    user = [line.split()[1] for line in lines if line.startswith("USER ")][-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)  # by number, so that Kubernetes can see that it is not root


def test_the_kubernetes_jobs_fit_together() -> None:
    claim, preparing = documents("kubernetes-data.yaml")
    (job,) = documents("pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] == 1
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    pod = replicas["Master"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"  # the operator's rule
    assert container["resources"]["limits"]["nvidia.com/gpu"] == job["spec"]["nprocPerNode"]
    assert container["command"][:4] == ["torchrun", "-m", "tenfold", "train"]
    assert container["command"][4] in PRESETS
    (patience,) = [int(e["value"]) for e in container["env"] if e["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    assert patience < pod["terminationGracePeriodSeconds"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert volumes["training"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    before = preparing["spec"]["template"]["spec"]
    (maker,) = before["containers"]
    assert maker["command"][:3] == ["tenfold", "prepare", "fineweb-edu"]
    assert before["volumes"] == [volumes["training"]]
    for same in ("image", "workingDir", "securityContext"):
        assert maker[same] == container[same]  # so that what one writes the other finds, and may read
    assert before["securityContext"] == pod["securityContext"]
    assert f"job/{preparing['metadata']['name']}" in (DEPLOY / "pytorchjob.yaml").read_text()


def test_the_pods_are_what_kubectl_reads() -> None:
    """Read into kubectl's own types, which need no cluster, nothing is lost; a misspelt field would be."""
    replica = documents("pytorchjob.yaml")[0]["spec"]["pytorchReplicaSpecs"]["Master"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": replica["template"]["spec"]}
    for given in (documents("kubernetes-data.yaml")[1], pod):
        command = [tool("kubectl"), "set", "image", "--local", "--filename", "-", "*=x", "--output", "json"]
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert [where.partition("containers")[2] for where in lost(given, json.loads(done.stdout))] == [".0.image"]


def lost(given: Any, read: Any, path: str = "") -> list[str]:
    """Where a value differs from what was read of it, or is missing there."""
    if isinstance(given, dict | list):
        parts = given.items() if isinstance(given, dict) else enumerate(given)
        there = dict(enumerate(read)) if isinstance(read, list) else read or {}
        return [where for key, value in parts for where in lost(value, there.get(key), f"{path}.{key}")]
    return [] if given == read else [path]


def test_the_kubernetes_job_is_what_kubeflow_reads() -> None:
    """Read into the typed models of Kubeflow's own package and written again, nothing is lost or changed."""
    models = pytest.importorskip("kubeflow.training.models", reason="kubeflow-training is not installed")
    client = pytest.importorskip("kubernetes.client")
    for name in dir(models):
        if name.startswith("KubeflowOrg"):
            setattr(client.models, name, getattr(models, name))  # where the client looks for a type by its name
    (job,) = documents("pytorchjob.yaml")
    api = client.ApiClient()
    read = api.deserialize(SimpleNamespace(data=json.dumps(job)), "KubeflowOrgV1PyTorchJob")
    assert api.sanitize_for_serialization(read) == job


def test_the_skypilot_tasks_fit_together() -> None:
    head, prepare, train = documents("skypilot.yaml")
    assert head.keys() == {"name"}
    assert prepare["file_mounts"] == train["file_mounts"]
    assert train["file_mounts"]["/bucket"]["mode"] == "MOUNT_CACHED"  # the only one that can append and rename
    assert train["resources"]["use_spot"] is True
    for task in (prepare, train):  # a line that fails must end the setup, whose last one would hide it
        assert task["setup"].startswith("set -e\n")
        assert "make setup PYTHON=~/python/bin/python\n" in task["setup"]  # theirs is older than what tenfold needs
    data = re.search(r"--out (\S+)", prepare["run"])
    assert data is not None
    assert f"--data {data[1]}" in train["run"]
    script, preset = re.search(r"(deploy/\S+) (\S+)", train["run"]).groups()  # type: ignore[union-attr]
    assert (ROOT / script).is_file()
    assert preset in PRESETS


def test_the_page_names_every_file_and_what_was_not_run() -> None:
    page = (ROOT / "docs/scale.md").read_text()
    for path in DEPLOY.iterdir():
        text = path.read_text()
        assert f"deploy/{path.name}" in page, path.name
        assert re.search(r"[Nn]ot (run|built)", text) or path.suffix == ".dockerignore", path.name
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        if re.search(r"deploy/\w+\.(sh|yaml)", section.split("\n")[0]):
            assert "Not run on" in section, section.split("\n")[0]


def load_lock() -> Any:
    """scripts/lock.py as a module."""
    spec = spec_from_file_location("lock", ROOT / "scripts/lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_the_locks_are_what_constraints_pin(name: str) -> None:
    """Remade by scripts/lock.py whenever constraints.txt or pyproject.toml changes."""
    lock, text = load_lock(), (ROOT / name).read_text()
    entries = [entry.split(" \\\n") for entry in re.split(r"\n(?=\S)", text.strip()) if not entry.startswith("#")]
    locked = {head.partition("==")[0]: head.partition("==")[2] for head, *_ in entries}
    assert "torch" not in locked
    assert all(hashes and all(re.search(r"--hash=sha256:[0-9a-f]{64}$", h) for h in hashes) for _, *hashes in entries)
    pinned = {package: line.partition("==")[2] for package, line in lock.pins().items()}
    assert {package: of for package, of in locked.items() if pinned.get(package, of) != of} == {}
    assert locked.keys() == lock.needed(lock.LOCKS[name]) - lock.APART


@pytest.fixture
def tiny(corpus: Corpus) -> list[str]:
    """Arguments of a training that goes on until it is stopped, and saves every 10 steps."""
    return ["demo", "--data", str(corpus.path), *TINY_OPTIONS, *NEVER, "--speed.precision", "fp32"]


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Starts a script of deploy/ in an empty folder, as two processes if it is not told else; whatever still lives at
    the end is killed."""
    groups: list[subprocess.Popen[str]] = []

    def call(name: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        clean = {"PATH": f"{tmp_path / 'bin'}:{BIN}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "lo", "PROCESSES": "2"}
        with (tmp_path / f"log-{len(groups)}").open("w") as log:
            process = subprocess.Popen(
                ["bash", DEPLOY / name, *arguments],
                cwd=tmp_path,
                env={**environment(), **clean, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        groups.append(process)
        return process

    yield call
    for process in groups:
        end(process)


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a process that `start` gave, and whatever it started."""
    family = [process.pid]
    for member in family:
        family += children(member)
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    process.wait(timeout=20)


def until(what: Callable[[], Any], seconds: float, told: Path) -> Any:
    """Waits until `what` is true, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(told.glob("log-*")))
    raise AssertionError(f"not within {seconds} s:\n{logs}")


def children(process: int) -> list[int]:
    """Processes that a process started, in their order."""
    done = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, timeout=20)
    return [int(line) for line in done.stdout.split()]


def events(folder: Path) -> list[tuple[str, int]]:
    """What happened to the run of a folder and at which step, but for saving; also what a later resume took back."""
    path = folder / "runs/demo/metrics.jsonl"
    records = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    return [(r["event"], r["step"]) for r in records if r.get("event", "save") != "save"]


def steps(folder: Path) -> int:
    """The newest step in the metrics, or 0."""
    return max((r["step"] for r in rundir.read_metrics(folder / "runs/demo")), default=0)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_node_goes_on_after_a_process_died_and_saves_when_told(start: Any, tiny: list[str], tmp_path: Path) -> None:
    torchrun = start("one_node.sh", *tiny)
    until(lambda: steps(tmp_path) > 15, 60, tmp_path)
    os.kill(children(torchrun.pid)[-1], signal.SIGKILL)
    resumed = until(lambda: [at for event, at in events(tmp_path) if event == "resume"], 60, tmp_path)
    assert resumed[0] % 10 == 0
    assert resumed[0] >= 10
    until(lambda: steps(tmp_path) > resumed[0] + 10, 60, tmp_path)
    torchrun.send_signal(signal.SIGTERM)
    torchrun.wait(timeout=60)
    event, at = events(tmp_path)[-1]
    assert event == "stopped"
    assert at == max(checkpoint.saved_steps(tmp_path / "runs/demo/checkpoints"))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nodes_die_and_come_back(start: Any, tiny: list[str], tmp_path: Path) -> None:
    """Two torchruns of one process each: one dies with its process, the other goes on alone at the newest checkpoint;
    another one comes, and both go on where the one was."""
    import socket

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    variables = {"HOST": "localhost", "PORT": port, "NODES": "1:2", "PROCESSES": "1"}
    alone, together = "(1 x 1 x 8 rows)", "(1 x 2 x 4 rows)"

    def seen(what: str) -> int:
        return sum(path.read_text().count(what) for path in tmp_path.glob("log-*"))

    start("several_nodes.sh", *tiny, **variables)
    time.sleep(4)  # the others meet at the first, so the second is the one that may die
    second = start("several_nodes.sh", *tiny, **variables)
    until(lambda: seen(together) and steps(tmp_path) > 15, 90, tmp_path)
    end(second)
    until(lambda: seen(alone), 120, tmp_path)
    begun = steps(tmp_path)
    until(lambda: steps(tmp_path) > begun, 60, tmp_path)
    start("several_nodes.sh", *tiny, **variables)
    until(lambda: seen(together) == 2 and len(events(tmp_path)) >= 4, 120, tmp_path)
    assert [event for event, _ in events(tmp_path)] == ["start", "resume", "stopped", "resume"]
    (_, _), (_, first), (_, left), (_, again) = events(tmp_path)
    assert first % 10 == 0
    assert left == again


STAND_INS = {  # for Slurm's commands, as far as the script needs them: two tasks, and a note of what was asked for
    "srun": 'shift; echo "$SRUN_CPUS_PER_TASK" > cpus\n'
    'pids=; for i in 0 1; do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & pids="$pids $!"; done\n'
    "worst=0; for pid in $pids; do wait $pid; code=$?; [ $code -gt $worst ] && worst=$code; done; exit $worst",
    "scontrol": 'case $1 in show) echo "$3";; *) echo "$@" >> asked;; esac',
}


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Variables of a job of two tasks; Slurm's commands are stand-ins on the PATH that `start` gives."""
    (tmp_path / "bin").mkdir()
    for name, body in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "localhost"}
    return {**job, "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_CPUS_PER_TASK": "4"}


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_slurm_job_that_gets_sigterm_saves_and_is_queued_again(
    start: Any, slurm: dict[str, str], tiny: list[str], tmp_path: Path
) -> None:
    job = start("slurm.sh", *tiny, **slurm)
    until(lambda: steps(tmp_path) > 15, 90, tmp_path)
    (srun,) = children(job.pid)
    for task in children(srun):
        os.kill(task, signal.SIGTERM)
    assert job.wait(timeout=60) == 75
    assert (tmp_path / "asked").read_text() == f"requeue {slurm['SLURM_JOB_ID']}\n"
    assert events(tmp_path)[-1][0] == "stopped"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_slurm_job_ends_after_a_mistake_and_an_array_trains_seeds(
    start: Any, slurm: dict[str, str], tiny: list[str], tmp_path: Path
) -> None:
    assert start("slurm.sh", "demo", "--data", "nowhere", **slurm).wait(timeout=60) == 2
    assert (tmp_path / "cpus").read_text() == "4\n"  # which srun does not take from sbatch by itself
    assert not (tmp_path / "asked").exists()
    done = start("slurm.sh", *tiny, "--stop-at", "2", **slurm, SLURM_ARRAY_TASK_ID="3")
    assert done.wait(timeout=60) == 0
    assert rundir.read_run(tmp_path / "runs/demo-seed-3")["recipe"]["seed"] == 3
