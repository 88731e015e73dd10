"""The device of a run, and runs of several processes (`torchrun`, `accelerate launch`): their state
and their batches."""

import os
from functools import cache

import torch
from accelerate import PartialState

from toprune.errors import UserError
from toprune.io.devices import Device
from toprune.models.device import CPU, find_device

_chosen: dict[str, torch.device] = {}  # global, as the state of accelerate is


def use_device(name: Device = "auto") -> torch.device:
    """Choose the device of a run. Call it first: how processes talk to each other depends on it.

    Returns:
        The device; one of its own for each process, where there are several and several GPUs.
    """
    device = find_device(name)
    rank = os.environ.get("LOCAL_RANK")
    if device.type == "cuda" and rank is not None:
        device = torch.device("cuda", int(rank) % torch.cuda.device_count())
    _chosen["device"] = device
    return device


def run_device() -> torch.device:
    """The device of this run: what `use_device` chose last."""
    return _chosen["device"] if _chosen else use_device()


def backend() -> str | None:
    """The backend between processes; None: there is only one process, or accelerate chooses."""
    on_cpu = run_device() == CPU
    return "gloo" if on_cpu and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None


@cache
def processes() -> PartialState:
    """The state of this run's processes, made before the Trainer makes its own."""
    name, cpu = backend(), run_device() == CPU
    return PartialState(cpu=cpu) if name is None else PartialState(cpu=cpu, backend=name)


def share_of(batch_size: int) -> int:
    """Texts per step and process. A step has the same texts whatever the number of processes: so
    the result is the same, and another number of them can go on from a checkpoint."""
    count = processes().num_processes
    if batch_size % count:
        raise UserError(
            f"a batch of {batch_size} cannot be shared by {count} processes; "
            f"use --batch-size {count * -(-batch_size // count)}, or another number of processes"
        )
    return batch_size // count
