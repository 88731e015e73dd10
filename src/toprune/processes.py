"""Several processes of one run (`torchrun`, `accelerate launch`): who is first, and waiting."""

import os
from functools import cache

import torch
from accelerate import PartialState

ON_CPU = not torch.cuda.is_available()


def backend() -> str | None:
    """What processes talk through; None when there is only one, or when accelerate knows best."""
    return "gloo" if ON_CPU and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None


@cache
def processes() -> PartialState:
    """The state of this run's processes, made before the Trainer makes its own."""
    talk = backend()
    return PartialState(cpu=ON_CPU) if talk is None else PartialState(cpu=ON_CPU, backend=talk)
