"""The graphs that `bench` times: those of the bundle, the missing ones, and one that is given."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from toprune.errors import UserError
from toprune.run.engines import OnnxRuntime, OpenVino
from toprune.run.manifest import GRAPHS, OPENVINO_INT8, Manifest

if TYPE_CHECKING:
    from toprune.bundle.bundle import Bundle

Feeds = dict[str, NDArray[Any]]  # (B, S) each: what one call of a graph gets
Load = Callable[[Path], OnnxRuntime]

GIVEN = "dense given"  # a file from another exporter
OPENVINO = "int8 openvino"  # static int8; the others run in ONNX Runtime
# Ratios of contenders that differ in more than the plan.
UNLIKE = (
    ("pruned int8", "dense fp32"),
    ("dense int8", "dense fp32"),
    (f"pruned {OPENVINO}", "dense fp32"),
    (f"dense {OPENVINO}", "dense fp32"),
    (f"pruned {OPENVINO}", "pruned int8"),
    (f"dense {OPENVINO}", "dense int8"),
    ("pruned fp32", GIVEN),
    ("dense fp32", GIVEN),
)


class Runs(Protocol):
    """What a contender must do."""

    def run(self, feeds: Feeds) -> Any: ...


class Given:
    """The dense model as another exporter wrote it."""

    def __init__(self, path: Path, load: Load, outputs: Sequence[str]):
        self._engine = load(path)
        names = self._engine.names
        if tuple(names) != tuple(outputs):
            raise UserError(
                f"--dense-onnx {path} has the outputs {', '.join(names)}, the bundle has "
                f"{', '.join(outputs)}; export the same model with the same head"
            )

    def run(self, feeds: Feeds) -> NDArray[Any]:
        return self._engine.run({name: feeds[name] for name in self._engine.inputs})

    def check(self, dense: Runs, feeds: Feeds) -> None:
        """Refuse a file that does not read or answer as our dense file does. Its weights may be
        others: pruning trains them."""
        unknown = [name for name in self._engine.inputs if name not in feeds]
        if unknown:
            raise UserError(f"--dense-onnx needs {', '.join(unknown)}, which the bundle has not")
        mine, theirs = dense.run(feeds), self.run(feeds)
        if mine.shape != theirs.shape:
            raise UserError(
                f"--dense-onnx gives an answer of shape {theirs.shape}, our dense file one of "
                f"{mine.shape}; export the same model with the same head"
            )


def exported_graphs(
    folder: Path, *, int8: bool, openvino: bool
) -> tuple[Manifest, dict[str, Path]]:
    """The manifest, and those of the bundle's graphs that are to be timed."""
    manifest = Manifest.load(folder)
    graphs = [("pruned fp32", GRAPHS["fp32"])]
    if int8 and GRAPHS["int8"] in manifest.files:
        graphs.append(("pruned int8", GRAPHS["int8"]))
    if openvino and OPENVINO_INT8 in manifest.files:
        graphs.append((f"pruned {OPENVINO}", OPENVINO_INT8))
    for _, graph in graphs:
        manifest.verify(folder, graph)
    return manifest, {name: folder / graph for name, graph in graphs}


def missing(problem: ModuleNotFoundError) -> Exception:
    """The error for a package that `bench` needs."""
    if (problem.name or "").startswith("toprune"):
        return problem
    return UserError(
        f"bench writes a dense partner, which needs {problem.name}; "
        "install it with: pip install 'toprune[train]'"
    )


def write_graphs(
    bundle: "Bundle",
    folder: Path,
    exported: Mapping[str, Path],
    feeds: Sequence[Feeds],
    *,
    int8: bool,
) -> dict[str, Path]:
    """Write the missing graphs, each into its own folder. The dense partner of a slim model has
    all weights of its layers, at random: they have no effect on time.

    Args:
        bundle: whose dense partner is written.
        folder: for the graphs.
        exported: the graphs of the bundle.
        feeds: what is timed; the dense int8 file of OpenVINO is calibrated on it, because ranges
            have no effect on time.
        int8: also the int8 files.

    Returns:
        The paths of all.
    """
    try:
        from toprune.export.graph import input_names, write_onnx
        from toprune.export.quantize import quantize
        from toprune.models.shape import shape_of, without_shape
        from toprune.training.job import dense_plan
    except ModuleNotFoundError as problem:
        raise missing(problem) from problem
    assert bundle.plan is not None
    paths = dict(exported)
    for name in ("dense fp32", "dense int8", "pruned int8") if int8 else ("dense fp32",):
        if name in paths:
            continue
        paths[name] = folder / name / "model.onnx"
        paths[name].parent.mkdir()
        if name == "dense fp32":
            model = bundle.model
            if shape_of(model.config) is not None:
                model = type(model)(without_shape(model.config)).eval()
            dense = dense_plan(model, bundle.plan.restore)
            names = input_names(model.config, bundle.tokenizer)
            write_onnx(model, dense, paths[name], names, bundle.task.OUTPUTS)
        else:
            quantize(paths[name.replace("int8", "fp32")], paths[name])
    if f"pruned {OPENVINO}" in paths:
        from toprune.export.openvino import quantize_openvino

        name = f"dense {OPENVINO}"
        paths[name] = folder / name / "model.xml"
        paths[name].parent.mkdir()
        quantize_openvino(paths["dense fp32"], paths[name], feeds)
    return paths


def open_graphs(paths: Mapping[str, Path], load: Load, threads: int) -> dict[str, Runs]:
    """Load all of them, each into its runtime."""
    return {
        name: OpenVino(path, threads=threads) if name.endswith(OPENVINO) else load(path)
        for name, path in paths.items()
    }
