"""A pretend GPU: finds tensors that are left behind, on a machine without one.

`Elsewhere` is a tensor that claims to be on another device (`cpu:1`, which no tensor of torch's own
ever has) and holds its numbers on the CPU. Where it meets a tensor of the CPU it raises, as CUDA
does. `pretend` makes that device the one that every run finds, that of `transformers.Trainer`
included: accelerate reads its name from the environment.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import training_args

from toprune.models import device
from toprune.models.device import CPU
from toprune.training import distributed
from toprune.training.trainer import StageTrainer

THERE = torch.device("cpu", 1)
MOVES = ("aten::copy_", "aten::_to_copy")  # these may read one device and write another
# Indices may be on the CPU, as in CUDA.
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class TwoDevices(RuntimeError):
    """What CUDA would call: expected all tensors to be on the same device."""


class Elsewhere(Tensor):
    """A tensor on the pretend device."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Elsewhere":
        return Tensor._make_wrapper_subclass(  # pyright: ignore
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=THERE,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner: Tensor):
        self.numbers = inner.detach()

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"Elsewhere({self.numbers})"

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        if not force:
            raise TwoDevices("numpy() of a tensor that is not on the CPU")
        return self.numbers.numpy(force=True)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator as a machine with two devices would."""
    name, target = func._schema.name, kwargs.get("device")
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    stays = any(map(there, tensors))
    if stays:
        _check(func, name, args, tensors)
    elif target is None or torch.device(target) != THERE:
        return func(*args, **kwargs)
    if target is not None:
        stays = torch.device(target) == THERE
        kwargs = kwargs | {"device": torch.device("cpu")}
    out = func(*tree_map(_unwrap, args), **tree_map(_unwrap, kwargs))
    if name.endswith("_") and isinstance(args[0], Tensor):  # in place
        return args[0]
    return tree_map(_wrap, out) if stays else out


def _check(func: Any, name: str, args: Any, tensors: list[Tensor]) -> None:
    """Refuse tensors of two devices, but for what CUDA allows."""
    if name in MOVES:
        return
    here = [x for x in tensors if not there(x)]
    if name in INDEXED and there(args[0]):
        values = [x for x in args[2:] if isinstance(x, Tensor)]
        here = [x for x in values if not there(x) and x.dim() > 0]
    elif torch.Tag.pointwise in func.tags and (not name.endswith("_") or there(args[0])):
        here = [x for x in here if x.dim() > 0]  # numbers may travel
    if here:
        shapes = [tuple(x.shape) for x in here]
        raise TwoDevices(f"{name}: two devices meet; on the CPU are tensors of the shapes {shapes}")


def there(x: Any) -> bool:
    """Is it a tensor on the pretend device?"""
    return isinstance(x, Elsewhere)


def _wrap(x: Any) -> Any:
    return Elsewhere(x) if isinstance(x, Tensor) and not isinstance(x, Elsewhere) else x


def _unwrap(x: Any) -> Any:
    return x.numbers if isinstance(x, Elsewhere) else x


class _Operators(TorchDispatchMode):
    """Also sees operators that make a tensor there, or move one there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


class _FromNumbers(TorchFunctionMode):
    """torch makes tensors from Python's numbers without an operator that has a device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor:
            target = kwargs.pop("device", None)
            made = func(*args, **kwargs)
            return made if target is None else made.to(target)
        if func is Tensor.new_tensor:
            return func(*args, **kwargs).to(args[0].device)
        return func(*args, **kwargs)


@contextmanager
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run on the pretend device: it is what `auto` finds."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", str(THERE))

    def find(name: str = "auto") -> torch.device:
        return CPU if name == "cpu" else THERE

    monkeypatch.setattr(device, "find_device", find)
    monkeypatch.setattr(distributed, "find_device", find)
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # it refuses views of wrappers
    monkeypatch.setattr(training_args, "is_torch_bf16_gpu_available", lambda: True)
    # Checkpoints are the business of the Trainer, and files have no wrapper tensors.
    monkeypatch.setattr(StageTrainer, "_save_checkpoint", lambda *_: None)
    distributed.processes.cache_clear()
    chosen = dict(distributed._chosen)  # pyright: ignore[reportPrivateUsage]
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a wrapper has no `.data`
    try:
        with _FromNumbers(), _Operators():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
        distributed._chosen.clear()  # pyright: ignore[reportPrivateUsage]
        distributed._chosen.update(chosen)  # pyright: ignore[reportPrivateUsage]
        distributed.processes.cache_clear()
