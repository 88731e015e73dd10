"""Who knows which fact: a task's name is compared in tasks/ only, methods are imported by methods/
only, and GLUE is named where its data is read and where the user names it."""

import ast
import re
from collections.abc import Iterator

from support.source_tree import MODULES, folder_of, tree_of
from toprune.methods import METHODS
from toprune.tasks import TASKS

NAMES_GLUE = {"data", "api", "cli"}


def compared(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings that a value is compared with: by `==`, by `in`, or as a case of a match. A string
    before `in` is a key of a mapping."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            looked_up = isinstance(node.ops[0], ast.In | ast.NotIn)
            parts: list[ast.AST] = [*([] if looked_up else [node.left]), *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        else:
            continue
        for part in parts:
            members = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
            for member in members:
                if isinstance(member, ast.Constant) and isinstance(member.value, str):
                    yield member.lineno, member.value


def test_no_task_name_is_compared_outside_tasks():
    places = [
        f"{module}:{line} {name!r}"
        for module in MODULES
        if folder_of(module) != "tasks"
        for line, name in compared(tree_of(module))
        if name in TASKS
    ]
    assert places == []


def test_no_method_is_imported_outside_methods():
    classes = {method.__name__ for method in METHODS.values()}
    places = [
        f"{module}:{node.lineno} {alias.name}"
        for module in MODULES
        if folder_of(module) != "methods"
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toprune.methods")
        for alias in node.names
        if alias.name in classes or node.module != "toprune.methods"
    ]
    assert places == []


def test_glue_is_named_where_it_belongs():
    places = [
        f"{module}:{number} {line.strip()}"
        for module, path in MODULES.items()
        if folder_of(module) not in NAMES_GLUE
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"glue", line, re.IGNORECASE)
    ]
    assert places == []
