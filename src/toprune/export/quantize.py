"""int8 weights for the linear layers, activations quantised as they come (ONNX Runtime's own)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from toprune.export.graph import INLINE, save_graph


def quantize(source: Path, target: Path) -> None:
    """Write the int8 twin of an fp32 graph, its metadata included.

    Seven of the eight bits, one scale a column: the instructions of CPUs without VNNI add pairs of
    products in 16 bits, which overflow with all eight. So one file is right on every CPU.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(source)
    del graph.graph.value_info[:]  # shapes that tracing noted trip the quantiser's own inference
    with TemporaryDirectory(prefix="toprune-", dir=target.parent) as folder, _quiet():
        plain, draft = Path(folder, "plain.onnx"), Path(folder, "int8.onnx")
        save_graph(graph, plain)
        quantize_dynamic(
            plain,
            draft,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=["MatMul", "Gemm"],
            use_external_data_format=graph.ByteSize() > INLINE,
            # a layer that is used twice has names that the quantiser's type inference loses
            extra_options={"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        done = onnx.load(draft)
        del done.metadata_props[:]
        done.metadata_props.extend(graph.metadata_props)
        save_graph(done, target)


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser recommends a preprocessing that this graph does not need."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
