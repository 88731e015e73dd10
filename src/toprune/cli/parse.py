"""From words on a command line to the library's settings."""

from pathlib import Path
from typing import Any

from toprune.errors import UserError

SOFT_SHARE = 0.2  # of the epochs in which masks are learned


def data(
    source: str | None,
    text: str | None,
    pair: str | None,
    label: str | None,
    max_length: int | None,
    skip_bad_rows: bool,
) -> Any:
    from toprune.api import Data

    return Data(source, columns(text, pair, label), max_length, skip_bad_rows)


def task(name: str, model: str, **settings: Any) -> Any:
    """The task, by its name where nothing is set: then the model's directory says how."""
    from toprune.request import task_with

    given = {key: value for key, value in settings.items() if value is not None}
    return task_with(name, model, given) if given else name


def engine(name: str, address: str | None, workers: int | None, debug: bool) -> Any:
    """Who does the runs of a comparison."""
    from toprune.compare.executors import in_turn, on_ray

    if name == "local" and (address or workers):
        raise UserError("--address and --workers are of --engine ray; say that, too")
    if address and workers:
        raise UserError("a cluster that is there has its own cores; leave --workers out")
    return in_turn if name == "local" else on_ray(address, workers, debug=debug)


def columns(text: str | None, pair: str | None, label: str | None) -> Any:
    from toprune.data.columns import Columns

    return Columns(text, pair, label)


def texts(said: list[str] | None, pairs: list[str] | None) -> list[Any]:
    """Texts of a command line; tuples where each has a second one."""
    if not said:
        raise UserError('give a text, like: toprune explain small "some text"; or --data FILE')
    if not pairs:
        return list(said)
    if len(pairs) != len(said):
        raise UserError(f"{len(said)} texts but {len(pairs)} times --pair; give one for each text")
    return list(zip(said, pairs, strict=True))


def texts_of(
    bundle: Path, task: str, data: str, columns: Any, split: str | None, skip_bad_rows: bool
) -> list[Any]:
    """Texts of a file, as the bundle's task reads them."""
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


def several(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(option: str, text: str, like: str) -> list[int]:
    parts = several(text)
    if not parts or not all(part.isdecimal() for part in parts):
        raise UserError(f"{option} {text!r} is not like {like}")
    return [int(part) for part in parts]


def soft_share(epochs: float, asked: float | None, share: float = SOFT_SHARE) -> float:
    """Epochs that learn masks: a share of all, and one at least when there are two or more."""
    soft = asked if asked is not None else epochs * share
    if asked is None and epochs >= 2 and share < 1:
        soft = max(1.0, round(soft))
    if not 0 <= soft <= epochs:
        raise UserError(f"--epochs {epochs:g} must be 0 or more, and --soft-epochs at most that")
    return soft


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--distill-weight {text!r} is not a number; say one, or auto") from None
