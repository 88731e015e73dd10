"""Storeys: a folder imports only from itself and from the folders below it, and the folders of the
runtime start without torch. The rules read the source, so a lazy or a type-only import counts."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import toprune

ROOT = Path(toprune.__file__).parent
# From the lowest to the highest; names in one entry share a storey.
STOREYS = (
    ("errors",),
    ("io",),
    ("plan",),
    ("data",),
    ("tasks",),
    ("models",),
    ("pruning",),
    ("training",),
    ("methods",),
    ("report",),
    ("run",),
    ("bundle",),
    ("export",),
    ("api", "request"),
    ("compare",),
    ("inspection",),
    ("__init__",),  # the public names, which the command line calls
    ("cli",),
    ("__main__",),
)
LEVELS = {name: level for level, names in enumerate(STOREYS) for name in names}
# Importing a module of these loads nothing of HEAVY, directly or through other modules.
TORCH_FREE = ("errors", "io", "plan", "data", "tasks", "report", "run", "__init__", "cli")
TORCH_FREE += ("__main__", "bundle.bundle", "compare.timing", "models.sentence_transformers")
HEAVY = {"torch", "transformers", "onnx", "ray", "sklearn", "scipy", "pandas", "pyarrow"}
HEAVY |= {"datasets", "safetensors", "accelerate"}
MODULES = {
    ".".join(("toprune", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(ROOT.rglob("*.py"))
}


def folder_of(module: str) -> str:
    """The entry of STOREYS that a module of toprune belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def imported_names(nodes: Iterator[ast.AST], module: str) -> Iterator[str]:
    """The modules that import statements name; of toprune's own, the most exact one."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            base = node.module or ""
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if name in MODULES else base


def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: none in functions, none for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from at_import_time(child)


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def loads(module: str) -> tuple[str, ...]:
    """What importing a module imports directly: `a.b.c` also runs `a` and `a.b`."""
    names = [*imported_names(at_import_time(tree_of(module)), module), module]
    parents = [
        ".".join(parts[:count])
        for parts in (name.split(".") for name in names)
        for count in range(1, len(parts) + 1)
    ]
    return tuple(dict.fromkeys(name for name in parents if name != module))


def way_to_heavy(module: str) -> list[str]:
    """The chain of imports from a module to a package that it must not load; empty if none."""
    ways, seen = [[module]], {module}
    for way in ways:
        for name in loads(way[-1]):
            if name in HEAVY:
                return [*way, name]
            if name in MODULES and name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


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
    assert [" -> ".join(way) for module in modules if (way := way_to_heavy(module))] == []


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
    assert len([path for path in entries if path.is_dir()]) <= 17


def test_no_module_is_long():
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > 400} == {}
