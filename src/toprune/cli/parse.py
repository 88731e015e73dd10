"""From the words of a command line to the library's settings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import typer

import toprune
from toprune.cli.options import is_set, without_set
from toprune.data.recipes import Recipe
from toprune.errors import UserError
from toprune.training.settings import Training

WEIGHT, AUTO = "distill_weight", "auto"  # the setting that trial runs can choose, and how

# -- data and task ---------------------------------------------------------------------------------


def data(
    source: str | None,
    text: str | None,
    pair: str | None,
    label: str | None,
    max_length: int | None,
    skip_bad_rows: bool,
    unlabelled: Sequence[str] = (),
    lengths_of: str | None = None,
) -> Any:
    """The data options of a command as `Data`."""

    from toprune.api import Data

    named = columns(text, pair, label)
    return Data(source, named, max_length, skip_bad_rows, tuple(unlabelled), lengths_of)


def columns(text: str | None, pair: str | None, label: str | None) -> Any:
    """The column options of a command as `Columns`."""

    from toprune.data.columns import Columns

    return Columns(text, pair, label)


def task(name: str, model: str, **settings: Any) -> Any:
    """The task with its settings; its name if there are none: then the model's files decide."""
    from toprune.request import task_with

    settings = {key: value for key, value in settings.items() if value is not None}
    return task_with(name, model, settings) if settings else name


def texts(first: list[str] | None, second: list[str] | None) -> list[Any]:
    """Texts from the command line, or pairs of them."""
    if not first:
        raise UserError('give a text, like: toprune explain small "some text"; or --data FILE')
    if not second:
        return list(first)
    if len(second) != len(first):
        raise UserError(
            f"there are {len(first)} texts but {len(second)} --pair; give one --pair for each text"
        )
    return list(zip(first, second, strict=True))


def texts_of(
    bundle: Path, task: str, data: str, columns: Any, split: str | None, skip_bad_rows: bool
) -> list[Any]:
    """Texts from a file, as the bundle's task reads them."""
    from toprune.data.presets import preset_in
    from toprune.data.sets import load_texts
    from toprune.tasks import TASKS

    return load_texts(
        data,
        reads=TASKS[task].READS,
        preset=preset_in(bundle),
        columns=columns,
        split=split,
        skip_bad_rows=skip_bad_rows,
    )


# -- method and training ---------------------------------------------------------------------------


def budget(asked: str, threads: int | None, precision: Any, count: Any) -> Any:
    """The budget, or several for a dial, with what is requested beside its text."""
    if threads is None and precision is None and count == "executed":
        return asked
    more: dict[str, Any] = {"threads": threads or 1, "precision": precision or "fp32"}
    return [toprune.Budget(one, count=count, **more) for one in several(asked)]


def method(name: str, pairs: Sequence[str], recipe: Mapping[str, Any]) -> tuple[Any, bool]:
    """Make a method with the settings of a recipe and, over these, of `--set key=value`.

    Returns:
        The method, and whether trial runs are to choose the weight of its ranking distillation.
    """
    from toprune.methods import METHODS, make_method

    make_method(name)  # refuses an unknown name
    known = {field.name: field for field in fields(METHODS[name])}
    settings, is_auto = dict(recipe), False
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if key not in known or not equals:
            names = ", ".join(known) or "none"
            raise UserError(
                f"--set {pair}: the method {name} has no such setting; give key=value, the keys of "
                f"{name} are: {names}"
            )
        if key == WEIGHT:
            is_auto = text == AUTO
        try:
            is_default = key == WEIGHT and is_auto
            settings[key] = known[key].default if is_default else _value(text, known[key])
        except ValueError:
            raise UserError(f"--set {pair}: {key} must be {describe(known[key])}") from None
    return make_method(name, settings), is_auto


def _value(text: str, setting: Any) -> Any:
    """Read a value by the type of a setting; ValueError if it does not fit."""
    kinds = get_args(setting.type) if isinstance(setting.type, UnionType) else (setting.type,)
    if text == "none" and NoneType in kinds:
        return None
    kind = kinds[0]
    if get_origin(kind) is Literal:
        choices = {choice: choice for choice in get_args(kind)}
    elif kind is bool:
        choices = {"true": True, "false": False}
    else:
        value = kind(text)  # int or float
        if not (math.isfinite(value) and value >= setting.metadata["minimum"]):
            raise ValueError(text)
        return value
    if text not in choices:
        raise ValueError(text)
    return choices[text]


def describe(setting: Any) -> str:
    """What a value of this setting must be, for messages and `toprune methods`."""
    kinds = get_args(setting.type) if isinstance(setting.type, UnionType) else (setting.type,)
    least = f"{setting.metadata['minimum']:g}"
    if get_origin(kinds[0]) is Literal:
        words = list(get_args(kinds[0]))
    elif kinds[0] is bool:
        words = ["true", "false"]
    else:
        words = [f"a {'whole ' * (kinds[0] is int)}number of at least {least}"]
    words += [AUTO] * (setting.name == WEIGHT) + ["none"] * (NoneType in kinds)
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def training(
    ctx: typer.Context, base: Training, recipe: Mapping[str, Any], **changes: Any
) -> Training:
    """`base` with the options of the command line and, where the user set none, of a recipe."""
    names = {field.name for field in fields(Training)} & ctx.params.keys()
    options = {name: ctx.params[name] for name in names}
    return replace(base, **options | changes | without_set(ctx, recipe))


def stages(
    ctx: typer.Context, recipe: Recipe, epochs: float, soft_epochs: float | None
) -> dict[str, float]:
    """Fields of `Training` for both stages: masks are learned for the requested epochs or steps, or
    for the recipe's share of the epochs."""
    by_steps = is_set(ctx, "soft_steps")
    if by_steps and soft_epochs is not None:
        raise UserError("--soft-epochs and --soft-steps set the same stage; give one of them")
    if soft_epochs is None and recipe.soft is not None and not by_steps:
        soft_epochs = epochs * recipe.soft
    if not 0 <= (soft_epochs or 0) <= epochs:
        raise UserError(
            f"--epochs {epochs:g} must be 0 or more, and --soft-epochs must not be more than that"
        )
    if soft_epochs is None:
        return {"epochs": epochs}
    return {"epochs": epochs, "soft_epochs": soft_epochs, "hard_epochs": epochs - soft_epochs}


# -- others ----------------------------------------------------------------------------------------


def engine(name: str, address: str | None, workers: int | None, debug: bool) -> Any:
    """The executor of a comparison's runs."""
    from toprune.compare.executors import in_turn, on_ray

    if name == "local" and (address or workers):
        raise UserError("--address and --workers need --engine ray; add it")
    if address and workers:
        raise UserError("a running cluster has a fixed number of cores; leave --workers out")
    return in_turn if name == "local" else on_ray(address, workers, debug=debug)


def several(text: str) -> list[str]:
    """Split a list at its commas: `2x,3x` gives `["2x", "3x"]`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(option: str, text: str, example: str) -> list[int]:
    """Split a list of whole numbers at its commas, or refuse it."""
    parts = several(text)
    if not parts or not all(part.isdecimal() for part in parts):
        raise UserError(f"{option} {text!r} is not a list of whole numbers like {example}")
    return [int(part) for part in parts]
