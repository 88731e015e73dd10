"""The source tree as a graph: its modules and storeys, what each imports, and which bring torch."""

import ast
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

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
    ("reproduce",),
    ("integrations",),
    ("serve",),
    ("__init__",),  # the public names, which the command line calls
    ("cli",),
    ("__main__",),
)
LEVELS = {name: level for level, names in enumerate(STOREYS) for name in names}
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


def way_to(packages: Collection[str], module: str) -> list[str]:
    """The chain of imports that loads one of these packages with a module; empty if none does."""
    ways, seen = [[module]], {module}
    for way in ways:
        for name in loads(way[-1]):
            if name in packages:
                return [*way, name]
            if name in MODULES and name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []
