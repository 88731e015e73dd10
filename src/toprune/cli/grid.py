"""The TOML file of a sweep. Errors name the key, and come before any work."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from toprune.cli import parse
from toprune.errors import UserError
from toprune.plan.budget import Budget, Count

if TYPE_CHECKING:  # what follows brings torch
    from toprune.compare.runs import Subject
    from toprune.compare.sweep import Grid


class Rule(NamedTuple):
    """What a value must be: for messages, and as a test."""

    description: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(map(fits, value))  # pyright: ignore[reportUnknownArgumentType]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


TEXT = Rule("a text in quotes", _is_text)
TEXTS = Rule('a list of texts, like ["2x", "3x"]', _list_of(_is_text))
NUMBER = Rule("a number from 0 on", _is_number)
NUMBERS = Rule("a list of numbers from 0 on, like [0, 1e-2]", _list_of(_is_number))
WHOLE = Rule("a whole number from 0 on", _is_whole)
WHOLES = Rule("a list of whole numbers, like [0, 1]", _list_of(_is_whole))
COUNT = Rule("a whole number from 1 on", lambda value: _is_whole(value) and value > 0)
COUNTED = Rule(" or ".join(get_args(Count)), lambda value: value in get_args(Count))
FLAG = Rule("true or false", lambda value: isinstance(value, bool))
TABLE = Rule("a table, like [tasks.mrpc]", lambda value: isinstance(value, dict) and bool(value))

GRID = {
    "budgets": TEXTS,
    "methods": TEXTS,
    "seeds": WHOLES,
    "weights": NUMBERS,
    "epochs": NUMBER,
    "soft_steps": WHOLE,
    "lr": NUMBER,
    "batch_size": COUNT,
    "bf16": FLAG,
    "count": COUNTED,
    "tasks": TABLE,
}
TASK = {
    "model": TEXT,
    "data": TEXT,
    "task": TEXT,
    "text": TEXT,
    "pair": TEXT,
    "label": TEXT,
    "max_length": COUNT,
    "skip_bad_rows": FLAG,
    "stride": WHOLE,
    "no_answer": FLAG,
    "pooling": TEXT,
    "dropped": TEXT,
    "protect_first": FLAG,
}


def read_grid(path: Path) -> "Grid":
    """Read and check the file. Paths in it are relative to its directory."""
    from toprune.compare.runs import parse_method
    from toprune.compare.sweep import Grid
    from toprune.training.settings import Training

    content = _read(path)
    _check(path, "", content, GRID, ("budgets", "methods", "tasks"))
    for name, table in content["tasks"].items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise UserError(
                f"{path}: tasks.{name!r} cannot name a directory; choose a name like mrpc"
            )
        if not isinstance(table, dict):
            raise UserError(f"{path}: tasks.{name} must be {TABLE.description}")
        _check(path, f"tasks.{name}.", table, TASK, ("model",))
    for key, check in (("budgets", Budget.parse), ("methods", parse_method)):
        with _naming(path, key):
            for value in content[key]:
                check(value)
    training = Training(
        epochs=content.get("epochs", Training.epochs),
        soft_steps=content.get("soft_steps", Training.soft_steps),
        lr=content.get("lr", Training.lr),
        batch_size=content.get("batch_size", Training.batch_size),
        bf16=content.get("bf16", Training.bf16),
    )
    count = content.get("count", "executed")
    tasks = {
        name: replace(_subject(path, name, table, training), count=count)
        for name, table in content["tasks"].items()
    }
    return Grid(
        tasks,
        methods=content["methods"],
        budgets=content["budgets"],
        seeds=content.get("seeds", [0]),
        weights=content.get("weights", []),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); give a TOML file") from error
    except ValueError as error:  # not TOML, or not even text
        raise UserError(f"{path} is not TOML: {error}") from error


def _check(
    path: Path,
    at: str,
    content: Mapping[str, Any],
    rules: Mapping[str, Rule],
    needed: tuple[str, ...],
) -> None:
    for key, value in content.items():
        if key not in rules:
            raise UserError(f"{path}: there is no key {at}{key}; there are: {', '.join(rules)}")
        if not rules[key].fits(value):
            raise UserError(f"{path}: {at}{key} must be {rules[key].description}, not {value!r}")
    for key in needed:
        if key not in content:
            raise UserError(f"{path}: {at}{key} is missing; it is {rules[key].description}")


@contextmanager
def _naming(path: Path, key: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {key}: {error}") from error


def _subject(path: Path, name: str, table: Mapping[str, Any], training: Any) -> "Subject":
    """The subject of one task. The data are read here only so that errors in them come now, not
    hours later."""
    from toprune.compare.runs import Subject
    from toprune.data.presets import find_preset
    from toprune.data.sets import load_sets
    from toprune.models.families import family_named
    from toprune.models.load import read_config
    from toprune.tasks import make_task

    model, task_name = _relative(path, table["model"]), table.get("task", "classify")
    with _naming(path, f"tasks.{name}.model"):
        images = family_named(read_config(model)).images
    with _naming(path, f"tasks.{name}.task"):
        preset = find_preset(task_name)
        if preset is None:
            make_task(task_name)
        names = ("stride", "no_answer", "pooling", "dropped")
        task = parse.task(task_name, model, **{key: table.get(key) for key in names})
    data = parse.data(
        _relative(path, table["data"]) if "data" in table else None,
        *(table.get(key) for key in ("text", "pair", "label", "max_length")),
        skip_bad_rows=table.get("skip_bad_rows", False),
    )
    with _naming(path, f"tasks.{name}.data"):
        load_sets(
            data.source,
            reads=make_task(task_name if preset is None else preset.task).READS,
            preset=preset,
            columns=replace(data.columns, images=images),
            skip_bad_rows=data.skip_bad_rows,
        )
    return Subject(model, data, task, training, table.get("protect_first"))


def _relative(path: Path, name: str) -> str:
    """A path relative to the file's directory, if it exists; anything else is a name on the hub."""
    local = path.parent / Path(name).expanduser()
    return str(local) if local.exists() else name
