"""Runtimes that execute the graph, behind one call: `engine.run(feeds) -> array`.

`Manifest.verify` checks the files before an engine opens them; it also refuses a graph that names
files outside the bundle.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import onnxruntime as ort

from toprune.errors import UserError
from toprune.io.devices import missing_device

PLAN = "toprune.plan"
# Providers of ONNX Runtime by device. Where CUDA lacks an operator, the CPU runs it.
PROVIDERS = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"],
}
INSTALL = "pip install onnxruntime-gpu in place of onnxruntime, or use --device cpu"


def providers_on(device: str) -> list[str]:
    """The providers of ONNX Runtime for a device; refuses one that is not installed."""
    if device not in PROVIDERS:
        raise UserError(f"--device {device}: exported files run on {' or '.join(PROVIDERS)}")
    if PROVIDERS[device][0] not in ort.get_available_providers():
        raise missing_device(device, f"onnxruntime {ort.__version__}", INSTALL)
    return PROVIDERS[device]


Runtime = Literal["onnx", "openvino"]


class Engine(Protocol):
    """A loaded graph. Any number of threads may call `run` at a time."""

    inputs: tuple[str, ...]
    names: tuple[str, ...]  # of the outputs
    outputs: int | None  # numbers per text or token; None: the graph does not define it
    plan: str | None  # the plan's JSON in the file's metadata
    overridable: tuple[str, ...]  # inputs that have a default

    def run(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """Inputs (B, S) -> (B, C) or (B, S, C); two outputs become two columns."""
        ...


class OnnxRuntime:
    """A session of ONNX Runtime, tuned for lengths that change from call to call."""

    def __init__(
        self, path: Path, *, threads: int | None = None, providers: Sequence[str] | None = None
    ):
        providers = list(providers or ["CPUExecutionProvider"])
        unknown = sorted(set(providers) - set(ort.get_available_providers()))
        if unknown:
            known = ", ".join(ort.get_available_providers())
            raise UserError(f"this onnxruntime has no provider {', '.join(unknown)}; use: {known}")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or 0  # 0: one for each core
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.enable_mem_pattern = False  # it would keep a plan for every shape
        # Idle threads would keep spinning after a call, on cores that another session needs.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 4  # errors are raised; do not log them too
        try:
            # A fallback would print several lines to stdout.
            session = ort.InferenceSession(
                str(path), options, providers=providers, enable_fallback=0
            )
            self._session, self._path = session, path
            self.inputs = tuple(item.name for item in session.get_inputs())
            self.names = tuple(item.name for item in session.get_outputs())
            defaults = session.get_overridable_initializers()
            self.overridable = tuple(item.name for item in defaults)
            self.outputs = _outputs([item.shape for item in session.get_outputs()])
            self.plan: str | None = session.get_modelmeta().custom_metadata_map.get(PLAN)
        except Exception as error:  # its exceptions have no other common parent
            raise _unreadable(path, "ONNX Runtime", error) from error
        if providers[0] not in session.get_providers():  # it goes on without a word
            raise UserError(f"onnxruntime could not start {providers[0]}; check driver and CUDA")

    def run(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """(B, C) or (B, S, C) of inputs (B, S); two outputs are two columns."""
        try:
            outputs = self._session.run(None, feeds)
        except Exception as error:  # as above
            raise _failed(self._path, "ONNX Runtime", error) from error
        return _joined([np.asarray(part) for part in outputs])


class OpenVino:
    """The same file in OpenVINO. A request belongs to one thread, so each thread makes one."""

    def __init__(self, path: Path, *, threads: int | None = None):
        try:
            import openvino  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise UserError(
                "the runtime openvino is not installed; pip install 'toprune[openvino]'"
            ) from error
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}  # not bf16
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        core = openvino.Core()
        try:
            model = core.read_model(str(path))
            self._compiled = core.compile_model(model, "CPU", settings)
        except Exception as error:  # RuntimeError today, from several layers of C++
            raise _unreadable(path, "OpenVINO", error) from error
        self._thread, self._path = threading.local(), path
        self.inputs = tuple(item.any_name for item in model.inputs)
        self.names = tuple(item.any_name for item in model.outputs)
        self.overridable: tuple[str, ...] = ()  # it makes constants of inputs with a default
        self.outputs = _outputs([_dimensions(item.partial_shape) for item in model.outputs])
        where = ["framework", PLAN]
        self.plan = str(model.get_rt_info(where).value) if model.has_rt_info(where) else None

    def run(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """(B, C) or (B, S, C) of inputs (B, S); two outputs are two columns."""
        if not hasattr(self._thread, "request"):
            self._thread.request = self._compiled.create_infer_request()
        try:
            outputs = self._thread.request.infer(feeds)
        except Exception as error:  # as above
            raise _failed(self._path, "OpenVINO", error) from error
        # Copies, because the next call overwrites the request's buffers.
        return _joined([np.array(outputs[name]) for name in self.names])


def open_engine(
    runtime: Runtime, path: Path, threads: int | None, providers: Sequence[str] | None
) -> Engine:
    """Load a graph into the runtime of that name."""
    if runtime == "onnx":
        return OnnxRuntime(path, threads=threads, providers=providers)
    if runtime != "openvino":
        raise UserError(f"runtime {runtime!r} is not known; use onnx or openvino")
    if providers is not None:
        raise UserError("only the runtime onnx has providers; leave them out with openvino")
    return OpenVino(path, threads=threads)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.stack(parts, -1)


def _outputs(shapes: Sequence[Sequence[Any]]) -> int | None:
    """The last dimension of the answer; two separate outputs count as two."""
    if len(shapes) > 1:
        return len(shapes)
    last = shapes[0][-1]
    return last if isinstance(last, int) else None


def _dimensions(shape: Any) -> list[int | None]:
    return [item.get_length() if item.is_static else None for item in shape]


def _unreadable(path: Path, runtime: str, error: Exception) -> UserError:
    return UserError(
        f"{runtime} cannot read {path} ({_why(error)}); copy it again or export the bundle again"
    )


def _failed(path: Path, runtime: str, error: Exception) -> UserError:
    """A graph that belongs to the tokenizer can run every input that a Reader makes."""
    return UserError(
        f"{runtime} cannot run {path} ({_why(error)}); does the tokenizer belong to the model? "
        "export the bundle again"
    )


def _why(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
