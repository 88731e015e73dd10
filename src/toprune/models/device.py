"""The device that a model runs on: batches follow the model, and come from the CPU."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from toprune.io.devices import Device, missing_device

CPU = torch.device("cpu")


def find_device(name: Device = "auto") -> torch.device:
    """The device of this name; `auto`: a GPU of CUDA, else one of Apple (MPS), else the CPU."""
    usable: dict[Device, bool] = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(one for one, is_here in usable.items() if is_here)
    if not usable[name]:
        raise missing_device(name, f"torch {torch.__version__}", "use --device cpu or auto")
    return torch.device(name)


def device_of(model: Any) -> torch.device:
    """Where the weights of a model are."""
    return next(model.parameters()).device


def to_device(batch: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """The batch where the model is. Batches are made on the CPU, and every forward pass goes
    through this function: see `heads.task_outputs` and `heads.run_encoder`."""
    device = device_of(model)
    return {name: x.to(device) for name, x in batch.items()}


@contextmanager
def placed(model: Any, device: torch.device) -> Iterator[None]:
    """The model on this device for a while; afterwards it is where it was."""
    home = device_of(model)
    model.to(device)
    try:
        yield
    finally:
        model.to(home)


def autocast(device: torch.device, precision: str | None) -> AbstractContextManager[Any]:
    """Products in this precision (`Training.precision`); None: in that of the weights."""
    if precision is None:
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))
