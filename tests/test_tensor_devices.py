"""Where the source makes tensors without a device: the source is parsed, and every place that may
do so has a reason here. Elsewhere a tensor would be left on the CPU, and raise where it meets a
model on a GPU (`tests/test_devices.py` runs it)."""

import ast
from collections.abc import Iterator

from support.source_tree import MODULES, folder_of

FACTORIES = (
    *("zeros", "ones", "full", "empty", "eye", "tensor", "as_tensor", "scalar_tensor", "arange"),
    *("linspace", "logspace", "rand", "randn", "randint", "randperm", "normal", "tril_indices"),
)
TRACED = "a graph is traced on the CPU (`graph.write_onnx`)"
MADE = "made before training; the Trainer moves it with the rest of the module"
BATCH = "a batch: `to_device` and the Trainer move it"
ALLOWED = {
    ("toprune.export.packed", "begin"): TRACED,
    ("toprune.export.packed", "__post_init__"): TRACED,
    ("toprune.export.packed", "_drop_by_attention"): TRACED,
    ("toprune.export.packed", "_merge"): TRACED,
    ("toprune.export.layout", "up_to"): TRACED,
    ("toprune.export.graph", "_sample"): TRACED,
    ("toprune.training.batches", "__call__"): BATCH,
    ("toprune.pruning.policies", "__init__"): "the probes of a plan; `by_probe` moves them",
    ("toprune.methods.common", "__init__"): MADE,
    ("toprune.methods.common", "sparsity"): "a tensor already, but for the type checker",
    ("toprune.methods.top", "__init__"): MADE,
    ("toprune.methods.top", "_slopes"): MADE,
    ("toprune.methods.top", "_sparsity"): "a tensor already, but for the type checker",
    ("toprune.methods.adapler", "__init__"): MADE,
    ("toprune.methods.power_bert", "__init__"): MADE,
    ("toprune.methods.ltp", "__init__"): MADE,
    ("toprune.methods.cofi.cofi", "__init__"): MADE,
    ("toprune.methods.lat", "drawn"): "becomes a list of numbers at once",
    ("toprune.models.slim", "cut"): "indices; `_select` moves them",
}


def made_without_device(tree: ast.AST, function: str = "") -> Iterator[tuple[str, int]]:
    """(function, line) of every call that makes a tensor and does not name a device."""
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        inside = node.name if is_function else function
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            named = {keyword.arg for keyword in node.keywords}
            if is_torch and node.func.attr in FACTORIES and "device" not in named:
                yield function, node.lineno
        yield from made_without_device(node, inside)


def found() -> Iterator[tuple[tuple[str, str], int]]:
    for module, path in MODULES.items():
        for function, line in made_without_device(ast.parse(path.read_text(encoding="utf-8"))):
            yield (module, function), line


def test_tensors_name_their_device() -> None:
    assert [f"{at[0]}:{line} ({at[1]})" for at, line in found() if at not in ALLOWED] == []


def test_every_exception_is_needed() -> None:
    assert set(ALLOWED) == {at for at, _ in found()}


def test_the_rule_finds_one() -> None:
    source = "def f(x):\n    return torch.zeros(2), torch.ones(2, device=x.device), x.new_zeros(2)"
    assert list(made_without_device(ast.parse(source))) == [("f", 2)]


def test_the_modules_are_those_of_the_source() -> None:
    assert {"pruning", "training", "methods", "models"} <= {folder_of(one) for one in MODULES}
