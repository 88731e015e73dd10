"""Several processes of one run (`torchrun`, `accelerate launch`): who is first, and waiting."""

import os
from functools import cache

import torch
from accelerate import PartialState

from toprune.errors import UserError

ON_CPU = not torch.cuda.is_available()


def backend() -> str | None:
    """What processes talk through; None when there is only one, or when accelerate knows best."""
    return "gloo" if ON_CPU and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None


@cache
def processes() -> PartialState:
    """The state of this run's processes, made before the Trainer makes its own."""
    talk = backend()
    return PartialState(cpu=ON_CPU) if talk is None else PartialState(cpu=ON_CPU, backend=talk)


def share_of(batch_size: int) -> int:
    """Texts of a step for each process: the step is the same however many there are, and so are the
    result and what a checkpoint means to another number of them."""
    count = processes().num_processes
    if batch_size % count:
        raise UserError(
            f"a batch of {batch_size} cannot be shared by {count} processes; "
            f"say --batch-size {count * -(-batch_size // count)}, or start another number of them"
        )
    return batch_size // count
