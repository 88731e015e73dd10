"""What all doors share: a Runner behind the arguments of another library."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from toprune.errors import UserError
from toprune.io.progress import bar
from toprune.run.dial import Asked
from toprune.run.manifest import Precision
from toprune.run.runner import Runner

NOTHING = (None, False, (), {}, [])  # values by which an argument of another library asks nothing


def open_bundle(
    bundle: str | Path,
    *,
    precision: Precision,
    backend: str,
    threads: int | None,
    max_length: int | None,
    budget: Asked,
    device: Any,
) -> Runner:
    """Open a bundle for a class that imitates another library's.

    Args:
        bundle: the directory; names of the hub are not downloaded.
        precision, threads, max_length, budget: as for `Runner`.
        backend: "onnx" or "openvino", the name that sentence-transformers has for `runtime`.
        device: None or "cpu"; a bundle's file is for CPUs here.
    """
    if backend not in ("onnx", "openvino"):
        raise UserError(f"backend={backend!r}: a bundle's file runs in onnx or openvino")
    if device is not None and str(device) != "cpu":
        raise UserError(f"device={str(device)!r} is not supported here; leave it out, or use 'cpu'")
    return Runner(
        bundle,
        precision=precision,
        runtime=backend,
        threads=threads,
        max_length=max_length,
        budget=budget,
    )


def refuse(where: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that ask for something that is not supported here."""
    for name, value in arguments.items():
        if name == "device" and str(value) == "cpu":
            continue
        if not any(value is nothing or value == nothing for nothing in NOTHING):
            raise UserError(f"{where} does not support {name}={value!r}; leave {name} out")


def by_text(
    run: Runner, texts: Sequence[Any], *, batch_size: int | None, show_progress_bar: bool | None
) -> np.ndarray:
    """(N, C): logits or vectors in the order of the texts.

    Args:
        run: the bundle.
        texts: texts or pairs.
        batch_size: texts of a call, at most; None: as many as fit `Runner.batch_tokens`. The
            answers do not depend on it.
        show_progress_bar: show one on a terminal.
    """
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; use 1 or more, or leave it out")
    outputs = np.zeros((len(texts), run.outputs), np.float32)
    with bar("texts", len(texts)) if show_progress_bar else nullcontext(_nothing) as advance:
        if batch_size is None:
            for i, output in enumerate(run.stream(texts)):
                outputs[i] = output
                advance(1)
            return outputs
        order = sorted(range(len(texts)), key=lambda i: -_length(texts[i]))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            outputs[chosen] = run([texts[i] for i in chosen])
            advance(len(chosen))
    return outputs


def as_list(texts: Iterable[Any]) -> list[Any]:
    """Texts or pairs as a list; numpy arrays and columns of tables hold them, too."""
    return texts.tolist() if isinstance(texts, np.ndarray) else list(texts)


def to_torch(values: np.ndarray) -> Any:
    """The same numbers as a tensor, for callers that have torch."""
    try:
        import torch
    except ModuleNotFoundError as problem:
        raise UserError(
            "tensors need torch, which is not installed; use convert_to_numpy=True"
        ) from problem
    return torch.from_numpy(np.ascontiguousarray(values))


def converted(values: np.ndarray, *, convert_to_numpy: bool, convert_to_tensor: bool) -> Any:
    """An array, one tensor, or a list of tensors, as the two arguments of the other library ask."""
    if convert_to_tensor:
        return to_torch(values)
    return values if convert_to_numpy else list(to_torch(values))


def apply(function: Callable[[Any], Any], logits: np.ndarray) -> np.ndarray:
    """Call an activation function, of numpy arrays or a module of torch, on logits (N, C)."""
    is_torch = type(function).__module__.partition(".")[0] == "torch" or hasattr(
        function, "named_parameters"
    )
    scores = function(to_torch(logits)).detach().numpy() if is_torch else function(logits)
    return np.asarray(scores, np.float32)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """(N, C) -> (N, C), without overflow."""
    return np.exp(-np.logaddexp(0, -logits.astype(np.float64)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    weights = np.exp(logits - logits.max(-1, keepdims=True), dtype=np.float64)
    return weights / weights.sum(-1, keepdims=True)


def identity(logits: np.ndarray) -> np.ndarray:
    return logits


def _nothing(count: int = 1) -> None:
    pass


def _length(text: Any) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))
