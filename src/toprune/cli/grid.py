"""The TOML file of a sweep. What is wrong with it is told by its key, before any work."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from toprune.cli import parse as given
from toprune.errors import UserError

if TYPE_CHECKING:  # what follows brings torch
    from toprune.compare.runs import Subject
    from toprune.compare.sweep import Grid


class Kind(NamedTuple):
    """What a key must be, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(map(fits, value))  # pyright: ignore[reportUnknownArgumentType]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


TEXT = Kind("a text in quotes", _is_text)
TEXTS = Kind('a list of texts, like ["2x", "3x"]', _list_of(_is_text))
NUMBER = Kind("a number from 0 on", _is_number)
NUMBERS = Kind("a list of numbers from 0 on, like [0, 1e-2]", _list_of(_is_number))
WHOLE = Kind("a whole number from 0 on", _is_whole)
WHOLES = Kind("a list of whole numbers, like [0, 1]", _list_of(_is_whole))
COUNT = Kind("a whole number from 1 on", lambda value: _is_whole(value) and value > 0)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TABLE = Kind("a table, like [tasks.mrpc]", lambda value: isinstance(value, dict) and bool(value))

GRID = {
    "budgets": TEXTS,
    "methods": TEXTS,
    "seeds": WHOLES,
    "weights": NUMBERS,
    "epochs": NUMBER,
    "lr": NUMBER,
    "batch_size": COUNT,
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
    """Paths in it are from where the file is."""
    from toprune.compare.runs import parse_method
    from toprune.compare.sweep import Grid
    from toprune.plan.budget import Budget
    from toprune.training.settings import Training

    told = _read(path)
    _check(path, "", told, GRID, ("budgets", "methods", "tasks"))
    for name, own in told["tasks"].items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise UserError(f"{path}: tasks.{name!r} is to be a directory; name it like mrpc")
        if not isinstance(own, dict):
            raise UserError(f"{path}: tasks.{name} must be {TABLE.words}")
        _check(path, f"tasks.{name}.", own, TASK, ("model",))
    for key, check in (("budgets", Budget.parse), ("methods", parse_method)):
        with _told_by(path, key):
            for one in told[key]:
                check(one)
    epochs = told.get("epochs", 5)
    soft = given.soft_share(epochs, None)
    training = Training(
        soft_epochs=soft,
        hard_epochs=epochs - soft,
        lr=told.get("lr", Training.lr),
        batch_size=told.get("batch_size", Training.batch_size),
    )
    return Grid(
        {name: _subject(path, name, own, training) for name, own in told["tasks"].items()},
        methods=told["methods"],
        budgets=told["budgets"],
        seeds=told.get("seeds", [0]),
        weights=told.get("weights", []),
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
    told: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    needed: tuple[str, ...],
) -> None:
    for key, value in told.items():
        if key not in kinds:
            raise UserError(f"{path}: there is no key {at}{key}; there are: {', '.join(kinds)}")
        if not kinds[key].fits(value):
            raise UserError(f"{path}: {at}{key} must be {kinds[key].words}, not {value!r}")
    for key in needed:
        if key not in told:
            raise UserError(f"{path}: {at}{key} is missing; it is {kinds[key].words}")


@contextmanager
def _told_by(path: Path, key: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {key}: {error}") from error


def _subject(path: Path, name: str, own: Mapping[str, Any], training: Any) -> "Subject":
    """Data are read once for nothing: what is wrong with them must not come out hours later."""
    from toprune.compare.runs import Subject
    from toprune.data.presets import find_preset
    from toprune.data.sets import load_sets
    from toprune.models.families import family_named
    from toprune.models.load import read_config
    from toprune.tasks import make_task

    model, kind = _from(path, own["model"]), own.get("task", "classify")
    with _told_by(path, f"tasks.{name}.model"):
        images = family_named(read_config(model)).images
    with _told_by(path, f"tasks.{name}.task"):
        preset = find_preset(kind)
        if preset is None:
            make_task(kind)
        settings = ("stride", "no_answer", "pooling", "dropped")
        how = {key: own.get(key) for key in settings}
        task = given.task(kind, model, **how)
    data = given.data(
        _from(path, own["data"]) if "data" in own else None,
        *(own.get(key) for key in ("text", "pair", "label", "max_length")),
        skip_bad_rows=own.get("skip_bad_rows", False),
    )
    with _told_by(path, f"tasks.{name}.data"):
        load_sets(
            data.source,
            reads=make_task(kind if preset is None else preset.task).READS,
            preset=preset,
            columns=replace(data.columns, images=images),
            skip_bad_rows=data.skip_bad_rows,
        )
    return Subject(model, data, task, training, own.get("protect_first"))


def _from(path: Path, name: str) -> str:
    """A path that is there, seen from the file's directory; anything else is a name on the hub."""
    here = path.parent / Path(name).expanduser()
    return str(here) if here.exists() else name
