"""The processes that train together. A process group always exists, also for one process alone, so nobody asks whether
there is one; ask for the lead only where the console, the metrics file and the checkpoint are written."""

import hashlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from tenfold.errors import ConfigError

TIMEOUT = timedelta(minutes=30)  # of an exchange; who gives no sign of life is named sooner
PATIENCE = timedelta(days=7)  # while the lead prepares or fetches data


@dataclass(frozen=True)
class World:
    """This process among `size`; `device` is the one it computes on."""

    rank: int
    size: int
    device: torch.device
    patient: dist.ProcessGroup | None = None
    """The same processes, where they wait for the lead."""

    @property
    def lead(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes, on every one of them."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def most(self, value: int, group: dist.ProcessGroup | None = None) -> int:
        """The largest of all processes' integers; a wait for the others, but not for the device."""
        if self.size == 1:
            return value
        box = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX, group=group)
        return int(box.item())

    def least(self, value: int) -> int:
        """The smallest of all processes' integers."""
        return -self.most(-value)

    def agree(self, what: object) -> bool:
        """Whether all processes have a value that looks the same in print."""
        number = int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:7], "big")
        return self.least(number) == self.most(number)

    @contextmanager
    def lead_first(self) -> Iterator[bool]:
        """The lead does the block while the others wait, then they do it. If it fails on one process, every one ends:
        that one with its error, the others without a word."""

        def nobody_failed() -> None:
            if self.most(0, self.patient):
                raise SystemExit(2)

        if not self.lead:
            nobody_failed()  # the lead, in its turn
        try:
            yield self.lead
        except BaseException:
            self.most(1, self.patient)
            raise
        if self.lead:
            nobody_failed()
        nobody_failed()  # the others, in theirs


def launched() -> bool:
    """Whether torchrun, or another launcher that sets its variables, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def join(kind: str) -> World:
    """Enter the process group, or stay in the one that exists; device kind: cpu, cuda, cuda:N, mps or xpu.

    Under a launcher every process takes the device of its local rank. What processes of one node exchange stays on
    loopback; the stores by which they find each other, torchrun's and their own, listen everywhere.
    """
    if not dist.is_initialized():
        if int(os.environ.get("LOCAL_WORLD_SIZE", 1)) == int(os.environ.get("WORLD_SIZE", 1)):
            loopback = "lo0" if sys.platform == "darwin" else "lo"
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, loopback)
        backend = {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}.get(kind.split(":")[0], "gloo")
        rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")) if launched() else (0, 1)
        store = meeting(rank, size) if launched() else dist.HashStore()
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    size = dist.get_world_size()
    patient = dist.new_group(timeout=PATIENCE, backend="gloo") if size > 1 else None
    device = torch.device(kind)
    if device.index is not None and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        raise ConfigError(
            f"speed.device {kind}: several processes on this machine each take their own; give {device.type}"
        )
    if device.type in ("cuda", "xpu") and device.index is None:
        device = torch.device(device.type, own_index(torch.get_device_module(device).device_count()))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return World(dist.get_rank(), size, device, patient)


def own_index(count: int) -> int:
    """Which of the `count` devices that this process sees is its own."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    if local >= count > 1 or (local >= count and "TORCHELASTIC_RUN_ID" in os.environ):
        raise ConfigError(
            f"process {local + 1} of this machine has no device: {count} can be seen; start at most {count} processes"
        )
    return min(local, count - 1)  # where a scheduler shows each process its own device only, it is the first


def meeting(rank: int, size: int) -> dist.Store | None:
    """A store that no earlier attempt of these processes wrote to, where torchrun's own outlives them, else None.

    By default torchrun of torch 2.13 gives all attempts one store, without telling them apart: those that begin again
    find the addresses of the dead ones and cannot connect. The first process therefore opens a store and says in
    torchrun's where it is; the address that an earlier one left there leads to nobody.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or size == 1:
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    launcher = dist.TCPStore(address, port, is_master=False, timeout=TIMEOUT)
    if rank == 0:
        store = dist.TCPStore("localhost", 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
        with socket.create_connection((address, port)) as way:
            mine = way.getsockname()[0]  # by which the others, who reach the launcher, reach this machine
        launcher.set("tenfold", f"{mine} {store.port}")
        return store
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while True:
        host, _, port_there = launcher.get("tenfold").decode().partition(" ")
        try:
            with socket.create_connection((host, int(port_there)), timeout=2):
                pass
            return dist.TCPStore(host, int(port_there), is_master=False, timeout=TIMEOUT)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def shares_launchers_store() -> bool:
    """Whether several nodes meet in a way of torchrun's by which one that comes back waits in vain for the others."""
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1))
    return nodes > 1 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def leave() -> None:
    """Wait for the others and end the process group."""
    if dist.is_initialized():
        if dist.get_world_size() > 1:
            dist.barrier()
        dist.destroy_process_group()
