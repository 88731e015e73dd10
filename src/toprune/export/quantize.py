"""int8 weights for the linear layers; ONNX Runtime quantises activations at run time."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx.numpy_helper

from toprune.export.graph import INLINE, save_graph


def quantize(source: Path, target: Path) -> None:
    """Write the int8 twin of an fp32 graph, its metadata included.

    It uses seven of the eight bits, and one scale for each column: CPUs without VNNI add pairs of
    products in 16 bits, which overflow with eight. So one file is right on every CPU.

    Args:
        source: the fp32 file.
        target: the int8 file.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(source)
    del graph.graph.value_info[:]  # shapes from tracing break the quantiser's shape inference
    _plain_products(graph)
    with TemporaryDirectory(prefix="toprune-", dir=target.parent) as folder, _quiet():
        plain, quantized = Path(folder, "plain.onnx"), Path(folder, "int8.onnx")
        save_graph(graph, plain)
        quantize_dynamic(
            plain,
            quantized,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=["MatMul", "Gemm"],
            use_external_data_format=graph.ByteSize() > INLINE,
            extra_options={"MatMulConstBOnly": True},
        )
        result = onnx.load(quantized)
        del result.metadata_props[:]
        result.metadata_props.extend(graph.metadata_props)
        save_graph(result, target)


def _plain_products(graph: onnx.ModelProto) -> None:
    """Replace Gemm by MatMul and Add. The quantiser does that too, but transposes a weight once for
    every use: a layer at several depths would get it transposed back."""
    weights = {w.name: w for w in graph.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.graph.node:
        transposed = any(a.name == "transB" and a.i == 1 for a in node.attribute)
        if node.op_type != "Gemm" or not transposed or node.input[1] not in weights:
            nodes.append(node)
            continue
        x, weight, *bias = node.input
        name = f"{weight}_turned"
        if name not in weights:
            flat = onnx.numpy_helper.to_array(weights[weight]).T
            weights[name] = onnx.numpy_helper.from_array(np.ascontiguousarray(flat), name)
        out = node.output[0]
        product = f"{out}_product" if bias else out
        nodes.append(onnx.helper.make_node("MatMul", [x, name], [product], f"{node.name}_product"))
        if bias:
            nodes.append(onnx.helper.make_node("Add", [product, *bias], [out], node.name))
    used = {name for node in nodes for name in node.input}
    del graph.graph.node[:], graph.graph.initializer[:]
    graph.graph.node.extend(nodes)
    graph.graph.initializer.extend(w for name, w in weights.items() if name in used)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantiser, which recommends a preprocessing that this graph does not need."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
