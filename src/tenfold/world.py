"""The processes that train together. A process group always exists, also for one process alone, so nobody asks whether
there is one; ask for the lead only where the console, the metrics file and the checkpoint are written."""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from tenfold.errors import ConfigError

TIMEOUT = timedelta(minutes=30)  # the lead may prepare data for long; who gives no sign of life is named sooner


@dataclass(frozen=True)
class World:
    """This process among `size`; `device` is the one it computes on."""

    rank: int
    size: int
    device: torch.device

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

    def most(self, value: int) -> int:
        """The largest of all processes' integers; a wait for the others, but not for the device."""
        if self.size == 1:
            return value
        box = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX)
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
        if not self.lead and self.most(0):
            raise SystemExit(2)
        failed, someone = 1, 0
        try:
            yield self.lead
            failed = 0
        finally:
            lead_failed = self.lead and self.most(failed)
            if not lead_failed:
                someone = self.most(failed)
        if someone:
            raise SystemExit(2)


def launched() -> bool:
    """Whether torchrun, or another launcher that sets its variables, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def join(kind: str) -> World:
    """Enter the process group, or stay in the one that exists; device kind: cpu, cuda, cuda:N, mps or xpu.

    Under a launcher every process takes the device of its local rank. What processes of one node exchange stays on
    loopback; torchrun's own store, by which they find each other, listens everywhere.
    """
    if not dist.is_initialized():
        if int(os.environ.get("LOCAL_WORLD_SIZE", 1)) == int(os.environ.get("WORLD_SIZE", 1)):
            loopback = "lo0" if sys.platform == "darwin" else "lo"
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, loopback)
        backend = {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}.get(kind.split(":")[0], "gloo")
        if launched():
            dist.init_process_group(backend, timeout=TIMEOUT)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT)
    device = torch.device(kind)
    if device.index is not None and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        raise ConfigError(
            f"speed.device {kind}: several processes on this machine each take their own; give {device.type}"
        )
    if device.type in ("cuda", "xpu") and device.index is None:
        device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", 0)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return World(dist.get_rank(), dist.get_world_size(), device)


def leave() -> None:
    """Wait for the others and end the process group."""
    if dist.is_initialized():
        if dist.get_world_size() > 1:
            dist.barrier()
        dist.destroy_process_group()
