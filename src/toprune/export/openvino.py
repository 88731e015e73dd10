"""Static int8 for OpenVINO: NNCF quantises weights and activations, with ranges from real texts.

ONNX Runtime's int8 file (`quantize.py`) measures the range of activations at run time. Here it is
fixed, so OpenVINO keeps whole chains of layers in int8.
"""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from toprune.errors import UserError
from toprune.run.engines import OnnxRuntime, OpenVino

CALIBRATED = 128  # texts that the ranges come from, at most
COMPARED = 32  # of these, for the record

Feeds = dict[str, np.ndarray]  # (B, S) each


def sample(texts: Sequence[Any]) -> list[Any]:
    """The texts to calibrate with, drawn from all; the same in every run."""
    order = np.random.default_rng(0).permutation(len(texts))[:CALIBRATED]
    return [texts[i] for i in order]


def quantize_openvino(source: Path, target: Path, feeds: Sequence[Feeds]) -> None:
    """Write the static int8 twin of an fp32 graph, its metadata included.

    Args:
        source: the ONNX file.
        target: the .xml file; the weights go beside it, into a .bin file.
        feeds: what calls of the graph get, to calibrate with.
    """
    # NNCF reports its use to its authors unless this is set before the import; texts stay here.
    os.environ.setdefault("NNCF_CI", "1")
    try:
        with redirect_stdout(sys.stderr):
            import nncf  # pyright: ignore[reportMissingImports]
            import openvino  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as problem:
        raise UserError(
            f"int8 for OpenVINO needs {problem.name}; install it with: pip install 'toprune[nncf]'"
        ) from problem
    if not feeds:
        raise UserError("int8 for OpenVINO is calibrated on texts; give at least one")
    nncf.set_log_level(logging.ERROR)
    model = openvino.Core().read_model(str(source))
    with redirect_stdout(sys.stderr):  # its progress bars
        quantized = nncf.quantize(
            model,
            nncf.Dataset(list(feeds)),
            model_type=nncf.ModelType.TRANSFORMER,
            target_device=nncf.TargetDevice.CPU,
            subset_size=len(feeds),
        )
    openvino.save_model(quantized, str(target), compress_to_fp16=False)


def difference(source: Path, target: Path, feeds: Sequence[Feeds]) -> float:
    """The largest difference from fp32 on texts of the calibration, for the record; refuses a file
    that gives no numbers. `export --data` measures its effect on a metric."""
    exact, rounded = OnnxRuntime(source), OpenVino(target)
    worst = 0.0
    for feed in feeds[:COMPARED]:
        outputs = rounded.run(feed)
        if not np.isfinite(outputs).all():
            raise UserError("the int8 file for OpenVINO gives NaN; leave --int8-openvino out")
        worst = max(worst, float(np.abs(outputs - exact.run(feed)).max()))
    return worst
