"""A task's facts live in its file, a method's in its file, GLUE's in `data/`. The source is parsed:
a new task or method must not need a change anywhere else."""

import ast
from collections.abc import Callable, Iterator

from support.source_tree import MODULES, folder_of
from toprune.methods import METHODS
from toprune.tasks import TASKS

# Names of tasks that are ordinary words in these modules, and what they mean there.
ORDINARY = {
    ("toprune.models.heads", "answer"): "a kind of head",
    ("toprune.models.heads", "tokens"): "a kind of head",
    ("toprune.models.families.support", "answer"): "a kind of head",
    ("toprune.models.families.support", "tokens"): "a kind of head",
    ("toprune.data.formats", "tokens"): "a usual name of a column",
    ("toprune.inspection.explain.explanation", "answer"): "a field of a prediction",
    ("toprune.inspection.explain.page", "answer"): "a field of a prediction",
    ("toprune.integrations.transformers", "answer"): "a field of a prediction",
    ("toprune.inspection.scores", "tokens"): "a number of tokens in a report",
    ("toprune.report.build", "tokens"): "a number of tokens in a report",
    ("toprune.compare.bench", "tokens"): "a number of tokens in a report",
    ("toprune.pruning.execution", "tokens"): "a field of the execution",
    ("toprune.training.learner", "rank"): "a term of the loss",
}
TASK_CLASSES = {task.__name__ for task in TASKS.values()}
METHOD_CLASSES = {method.__name__ for method in METHODS.values()}


def offences(
    rule: Callable[[ast.AST], Iterator[tuple[ast.AST, str]]], *allowed: str
) -> dict[str, str]:
    """What breaks a rule outside the allowed folders: the name by its place."""
    return {
        f"{module}:{getattr(node, 'lineno', 0)}": name
        for module, path in MODULES.items()
        if folder_of(module) not in allowed
        for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for node, name in rule(statement)
        if (module, name) not in ORDINARY
    }


def strings(node: ast.AST | None) -> Iterator[tuple[ast.AST, str]]:
    """The strings of an expression, also inside a tuple, a list or a set."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node, node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for item in node.elts:
            yield from strings(item)


def decided_by(node: ast.AST) -> Iterator[ast.AST | None]:
    """The parts of a comparison, of a table's keys or of a `match`: what a decision goes by."""
    if isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.Dict):
        yield from node.keys
    elif isinstance(node, ast.MatchValue):
        yield node.value


def task_names(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for part in decided_by(node):
        yield from ((at, text) for at, text in strings(part) if text in TASKS)


def heads(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for part in decided_by(node):
        if isinstance(part, ast.Attribute) and part.attr == "HEAD":
            yield part, "HEAD"


def task_classes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Tests of an object's class, such as `isinstance(task, Answer)`."""
    tests = "isinstance", "issubclass"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in tests:
        names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
        yield from ((node, name) for name in names & TASK_CLASSES)


def method_imports(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toprune.methods"):
        yield from ((node, item.name) for item in node.names if item.name in METHOD_CLASSES)


def glue(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Names and texts that have `glue` in them; comments are not parsed."""
    words = {
        ast.Constant: "value",
        ast.Name: "id",
        ast.Attribute: "attr",
        ast.arg: "arg",
        ast.keyword: "arg",
        ast.alias: "name",
        ast.ImportFrom: "module",
        ast.FunctionDef: "name",
        ast.ClassDef: "name",
    }
    word = getattr(node, words.get(type(node), ""), None)
    if isinstance(word, str) and "glue" in word.lower():
        yield node, word


def test_no_decision_goes_by_a_tasks_name():
    assert offences(task_names, "tasks") == {}


def test_no_decision_goes_by_a_tasks_head():
    assert offences(heads, "tasks") == {}


def test_no_decision_goes_by_a_tasks_class():
    assert offences(task_classes, "tasks") == {}


def test_no_method_is_imported_by_its_class():
    assert offences(method_imports, "methods") == {}


def test_glue_is_named_by_data_api_and_the_commands_alone():
    # `reproduce` is about the tables of a paper, and most of these are about GLUE
    assert offences(glue, "data", "api", "cli", "reproduce") == {}


def test_the_rules_see_what_they_forbid():
    """Each rule on a line that breaks it, so that an empty list means something."""
    broken = {
        'task == "rank"': task_names,
        'name in ("classify", "regress")': task_names,
        'LIMITS = {"answer": 384}': task_names,
        'task.HEAD != "encoder"': heads,
        "isinstance(task, Answer | Embed)": task_classes,
        "from toprune.methods.top import Top": method_imports,
        "import toprune.data.glue": glue,
        'report["glue"]': glue,
    }
    for line, rule in broken.items():
        assert [hit for node in ast.walk(ast.parse(line)) for hit in rule(node)], line


def test_no_ordinary_word_is_excused_in_vain():
    used = {
        (module, name)
        for module, path in MODULES.items()
        for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for _, name in task_names(statement)
    }
    assert ORDINARY.keys() <= used
