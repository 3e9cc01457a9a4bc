"""Checkpoints: a folder of safetensors by canonical parameter name plus JSON, whole or absent, never pickled. Saving
stops training for the copy off the device only; a thread writes."""

import errno
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from tenfold.errors import CheckpointError
from tenfold.files import sha256_of, sync
from tenfold.model.config import ModelConfig
from tenfold.run import typed
from tenfold.rundir import FORMAT, read_json
from tenfold.training.trainer import Trainer

WEIGHTS, MOMENTS, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Snapshot:
    """A training's state in host memory, detached from the training."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    state: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        return sum(t.nbytes for tensors in (self.weights, self.moments) for t in tensors.values())


def snapshot(trainer: Trainer) -> Snapshot:
    """Copy the state off the device. Every process takes part; only the lead's has the tensors."""
    whole_no_more(trainer)
    weights: dict[str, Tensor] = {}
    moments: dict[str, Tensor] = {}

    def keep(into: dict[str, Tensor], name: str, tensor: Tensor) -> None:
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if trainer.world.lead:
            into[name] = full.detach().to("cpu", copy=True).contiguous()

    for name, parameter in trainer.module.named_parameters():
        keep(weights, name, parameter)
        for key, value in trainer.optimizer.state.get(parameter, {}).items():
            keep(moments, f"{key}.{name}", value)
    state = {
        "format": FORMAT,
        "position": trainer.position,
        "scale": trainer.scale.state(),
        "skipped": list(trainer.batches.skipped),
        "model": asdict(trainer.module.config),
        "recipe": asdict(trainer.recipe),
    }
    return Snapshot(weights, moments, state)


def whole_no_more(trainer: Trainer) -> None:
    """Let FSDP2 give its own parameters back, to which the optimizer's moments belong: after a forward without
    gradients, as in a validation, those outside the blocks stay gathered."""
    if isinstance(trainer.module, FSDPModule):
        trainer.module.reshard()


def write(folder: Path, saved: Snapshot) -> None:
    """Write a snapshot as the checkpoint folder `folder`: under a temporary name, synced, renamed. CheckpointError if
    it does not fit the disk; nothing but whole checkpoints is ever left under a checkpoint's name."""
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if told := shortage(folder.parent, saved):
            raise OSError(errno.ENOSPC, told)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        save_file(saved.weights, partial / WEIGHTS)
        save_file(saved.moments, partial / MOMENTS)
        hashes = {name: sha256_of(partial / name) for name in (WEIGHTS, MOMENTS)} | {STATE: digest(saved.state)}
        (partial / STATE).write_text(json.dumps({**saved.state, "sha256": hashes}, indent=2) + "\n")
        for path in partial.iterdir():
            path.chmod((partial / STATE).stat().st_mode)  # safetensors lets nobody else read; the umask decides
            sync(path)
        sync(partial)
        if folder.exists():
            remove(folder)
        partial.rename(folder)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CheckpointError(
            f"checkpoint {folder} could not be saved ({reason}); free some space; earlier checkpoints are untouched"
        ) from None


def shortage(root: Path, saved: Snapshot) -> str | None:
    """What a snapshot needs and what is free, if the disk of `root` has too little room for it."""
    needed, free = saved.bytes + 2**20, shutil.disk_usage(root).free
    return f"{needed / 1e6:,.1f} MB are needed, {free / 1e6:,.1f} MB are free" if free < needed else None


def saved_steps(root: Path) -> dict[int, Path]:
    """Checkpoint folders below `root` by their step, oldest first."""
    found = {int(m[1]): path for path in root.glob("step-*") if (m := NAME.fullmatch(path.name)) and path.is_dir()}
    return dict(sorted(found.items()))


def folder_at(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"step-{step:06d}"


def prune(root: Path, keep: int, keep_every: int) -> None:
    """Remove old checkpoints: the newest `keep`, the best by validation loss and multiples of `keep_every` stay."""
    steps = saved_steps(root)
    losses = {step: loss for step, path in steps.items() if (loss := val_loss(path)) is not None}
    stay = {*list(steps)[-keep:], *([min(losses, key=losses.__getitem__)] if losses else [])}
    for step, path in steps.items():
        if step not in stay and not (keep_every and step % keep_every == 0):
            remove(path)


def remove(folder: Path) -> None:
    """Remove a checkpoint; readers, also after a kill, see it whole or not at all."""
    gone = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def val_loss(folder: Path) -> float | None:
    """Validation loss of a checkpoint, if it was computed at its step, is finite and can be read."""
    try:
        loss = read_state(folder).get("val_loss")
    except CheckpointError:
        return None
    return loss if isinstance(loss, float) and math.isfinite(loss) else None


class Saver:
    """Writes checkpoints in a thread, one at a time, and prunes after each. After one that failed every next one is
    tried; `changed` gets the step of the first that failed, with the reason, and of the first that is whole again."""

    def __init__(
        self, root: Path, keep: int, keep_every: int, changed: Callable[[int, CheckpointError | None], None]
    ) -> None:
        self.root, self.keep, self.keep_every, self.changed = root, keep, keep_every, changed
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.writing: tuple[int, Future[None]] | None = None
        self.paused = False

    def save(self, saved: Snapshot) -> None:
        """Begin to write; waits for the one before. For want of room it fails at once, and is told now, not when the
        next one is due."""
        self.settle()
        self.writing = (saved.state["position"], self.thread.submit(self.write, saved))
        if shortage(self.root if self.root.exists() else self.root.parent, saved):
            self.settle()

    def write(self, saved: Snapshot) -> None:
        write(folder_at(self.root, saved.state["position"]), saved)
        try:
            prune(self.root, self.keep, self.keep_every)
        except OSError as error:
            raise CheckpointError(f"old checkpoints in {self.root} could not be removed ({error.strerror})") from None

    def settle(self) -> bool:
        """Wait until the last one is written; false if it failed."""
        if self.writing is not None:
            (step, writing), self.writing = self.writing, None
            failed = None
            try:
                writing.result()
            except CheckpointError as error:
                failed = error
            was, self.paused = self.paused, failed is not None
            if was != self.paused:
                self.changed(step, failed)
        return not self.paused


def clear(root: Path) -> None:
    """Remove what a killed process left half-written or half-removed."""
    for left in (*root.glob(".*.partial"), *root.glob(".*.removed")):
        shutil.rmtree(left, ignore_errors=True)


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint."""
    return read_json(folder / STATE, "checkpoint")


def digest(state: dict[str, Any]) -> str:
    """SHA-256 of what state.json says beside the hashes."""
    content = {name: value for name, value in state.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def damage(folder: Path) -> str | None:
    """None if the files of a checkpoint have the hashes that it states, else what is wrong."""
    try:
        state = read_state(folder)
        hashes = state["sha256"]
        if hashes.get(STATE, digest(state)) != digest(state):  # earlier ones have no hash of it
            return f"{STATE} does not have the SHA-256 that it states"
        if bad := [n for n in (state["position"], *state.get("skipped", ())) if type(n) is not int or n < 0]:
            return f"{STATE} has the position {bad[0]!r}"
        if (named := NAME.fullmatch(folder.name)) and int(named[1]) != state["position"]:
            return f"{STATE} is of step {state['position']}, the folder's name of another"
        for name in (WEIGHTS, MOMENTS):
            if sha256_of(folder / name) != hashes[name]:
                return f"{name} does not have the SHA-256 that {STATE} states"
    except CheckpointError as error:
        return str(error).removeprefix(f"checkpoint {folder}/").partition(";")[0]  # what is done instead, others say
    except (OSError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def newest(root: Path, said: Callable[[str], None]) -> Path | None:
    """The newest undamaged checkpoint; damaged ones are passed over and told. None if there is none."""
    left = list(saved_steps(root).values())
    while left:
        folder = left.pop()
        if (wrong := damage(folder)) is None:
            return folder
        said(f"checkpoint {folder} is damaged ({wrong}); {'the one before is used' if left else 'no other is left'}")
    return None


def set_aside(root: Path, after: int) -> None:
    """Rename whatever has a checkpoint's name and a later step, so that it never counts as one again."""
    for step, folder in saved_steps(root).items():
        if step > after:
            aside = folder.with_name(f"{folder.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)


def tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); use another checkpoint") from None


def model_config(folder: Path) -> ModelConfig:
    """The configuration that is stored with a checkpoint's weights."""
    model: ModelConfig = typed(ModelConfig, read_state(folder).get("model"), f"checkpoint {folder}", "model.")
    numbers = model.parameters + (model.embedding_rows - model.vocab) * model.width
    if 4 * numbers > (folder / WEIGHTS).stat().st_size:  # before anything is built of that size
        raise CheckpointError(f"checkpoint {folder} is damaged (its model is larger than its weights); use another one")
    return model


def load_weights(model: torch.nn.Module, folder: Path) -> None:
    """Fill a model that is not yet sharded; CheckpointError unless names and shapes are exactly the checkpoint's."""
    weights = tensors(folder / WEIGHTS)
    mine = model.state_dict()
    wrong = [
        f"{name} is {tuple(weights[name].shape) if name in weights else 'missing'}, "
        f"the model has {tuple(mine[name].shape) if name in mine else 'none'}"
        for name in sorted(mine.keys() | weights.keys())
        if name not in mine or name not in weights or mine[name].shape != weights[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise CheckpointError(
            f"checkpoint {folder} is of another model: {wrong[0]}{more}; give the model it was made with"
        )
    model.load_state_dict(weights)


def restore(trainer: Trainer, folder: Path) -> None:
    """Set optimizer, loss scale and position from a checkpoint; the weights are loaded before the model is prepared.
    An imported checkpoint has no moments: the optimizer begins with fresh ones."""
    state, moments = read_state(folder), tensors(folder / MOMENTS)
    names = {parameter: name for name, parameter in trainer.module.named_parameters()}
    order = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    content = trainer.optimizer.state_dict()
    found = {i: dict(moments_of(names[p], p, moments)) for i, p in enumerate(order)}
    content["state"] = {i: of_one for i, of_one in found.items() if of_one}
    trainer.optimizer.load_state_dict(content)
    trainer.scale.restore(state["scale"])
    trainer.batches.skip(state.get("skipped", ()))
    trainer.position = state["position"]


def take_back(trainer: Trainer, folder: Path) -> None:
    """Set a training in progress, its weights too, to a checkpoint of its own. Every process takes part."""
    weights = tensors(folder / WEIGHTS)
    whole_no_more(trainer)
    with torch.no_grad():
        for name, parameter in trainer.module.named_parameters():
            parameter.copy_(sharded_as(parameter, weights[name]))
    restore(trainer, folder)


def moments_of(name: str, parameter: Tensor, moments: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The optimizer's tensors of one parameter, sharded as it is."""
    for full_name, value in moments.items():
        key, _, of = full_name.partition(".")
        if of == name:
            if value.shape not in (parameter.shape, ()):
                raise CheckpointError(
                    f"{MOMENTS}: {full_name} is {tuple(value.shape)}, its parameter {tuple(parameter.shape)}; use "
                    "another checkpoint"
                )
            yield key, sharded_as(parameter, value) if value.shape == parameter.shape else value


def sharded_as(parameter: Tensor, value: Tensor) -> Tensor:
    """A whole tensor as its parameter is: sharded over the processes, or whole."""
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
