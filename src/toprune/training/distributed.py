"""Runs of several processes (`torchrun`, `accelerate launch`): their state and their batches."""

import os
from functools import cache

import torch
from accelerate import PartialState

from toprune.errors import UserError

ON_CPU = not torch.cuda.is_available()


def backend() -> str | None:
    """The backend between processes; None: there is only one process, or accelerate chooses."""
    return "gloo" if ON_CPU and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None


@cache
def processes() -> PartialState:
    """The state of this run's processes, made before the Trainer makes its own."""
    name = backend()
    return PartialState(cpu=ON_CPU) if name is None else PartialState(cpu=ON_CPU, backend=name)


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
