"""Storeys: a folder imports only from itself and from the folders below it, and the folders of the
runtime start without torch. The rules read the source, so a lazy or a type-only import counts."""

import ast
import subprocess
import sys

import pytest

from support.source_tree import LEVELS, MODULES, ROOT, folder_of, imported_names, tree_of, way_to

# Importing a module of these loads nothing of HEAVY, directly or through other modules.
TORCH_FREE = ("errors", "io", "plan", "data", "tasks", "report", "run", "serve", "__init__", "cli")
TORCH_FREE += ("integrations",)
TORCH_FREE += ("__main__", "bundle.bundle", "models.sentence_transformers")
TORCH_FREE += ("inspection.gate.gate",)
HEAVY = {"torch", "transformers", "onnx", "ray", "sklearn", "scipy", "pandas", "pyarrow"}
HEAVY |= {"datasets", "safetensors", "accelerate"}


def test_every_folder_has_a_storey():
    assert {folder_of(module) for module in MODULES} == set(LEVELS)


@pytest.mark.parametrize("folder", LEVELS)
def test_imports_point_downwards(folder: str):
    upward = [
        f"{module} -> {name}"
        for module in MODULES
        if folder_of(module) == folder
        for name in imported_names(ast.walk(tree_of(module)), module)
        if name.split(".")[0] == "toprune" and LEVELS[folder_of(name)] > LEVELS[folder]
    ]
    assert upward == []


@pytest.mark.parametrize("place", TORCH_FREE)
def test_starts_without_torch(place: str):
    modules = [
        module
        for module in MODULES
        if folder_of(module) == place or module.removeprefix("toprune.") == place
    ]
    assert modules
    assert [" -> ".join(way) for module in modules if (way := way_to(HEAVY, module))] == []


def test_the_runtime_starts_without_torch():
    """The rule above reads the source; this one looks at what Python has loaded."""
    code = (
        "import sys, toprune, toprune.cli, toprune.run.runner; "
        "toprune.Plan, toprune.Budget, toprune.Runner; "
        f"print({HEAVY} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")


def test_the_house_is_seen_at_a_glance():
    entries = [path for path in ROOT.iterdir() if path.name != "__pycache__"]
    assert len([path for path in entries if path.is_file()]) <= 6
    assert len([path for path in entries if path.is_dir()]) <= 18


def test_no_module_is_long():
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > 400} == {}
