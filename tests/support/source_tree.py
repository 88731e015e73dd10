"""The source tree as a graph: its modules, what each imports, and which of them bring torch."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = "toprune"
# Low to high: a module imports from its own storey and from those before it.
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
    ("request", "api"),
    ("compare",),
    ("inspection",),
    ("cli",),
)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package is named by its folder."""
    found: dict[str, Path] = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


def imports(name: str, *, at_load: bool = False) -> set[str]:
    """The dotted names that a module imports, other packages included.

    Args:
        name: A module of `modules()`.
        at_load: Only what runs when the module is loaded: no imports inside functions or under
            `if TYPE_CHECKING`.

    Returns:
        Modules of this package by their full name, others as they are written.
    """
    nodes = _loaded(tree(name)) if at_load else ast.walk(tree(name))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in modules() else node.module)
    return found


def _loaded(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is loaded."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _loaded(child)


@cache
def loads(name: str) -> frozenset[str]:
    """The top-level packages that loading a module brings, through every module it loads."""
    seen, left, packages = set[str](), [name], set[str]()
    while left:
        module = left.pop()
        parents = [module.rpartition(".")[0]] if "." in module else []
        for other in (*imports(module, at_load=True), *parents):
            root = other.partition(".")[0]
            if root != PACKAGE:
                packages.add(root)
            elif other in modules() and other not in seen:
                seen.add(other)
                left.append(other)
    return frozenset(packages)


def storey(name: str) -> int:
    """The number of the storey that a module stands on; -1 for the package's own front."""
    folder = name.split(".")[1] if "." in name else ""
    return next((i for i, names in enumerate(STOREYS) if folder in names), -1)
