"""What the caller asked for, as a run needs it: the task and its settings, sets of examples,
lengths, what ranks tokens and which of them stay. One clear line for what cannot be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toprune.bundle.bundle import read_report
from toprune.data.columns import Columns
from toprune.data.examples import Examples
from toprune.data.images import Images
from toprune.data.presets import PRESET_NAMES, find_preset
from toprune.data.recipes import Preset, Recipe
from toprune.data.sets import held_out_order, load_sets
from toprune.data.splits import split_validation
from toprune.errors import UserError
from toprune.models.families import family_named, family_of, has_segments, max_positions
from toprune.models.load import Source, check_images, config_of, load_tokenizer
from toprune.plan.plan import Score
from toprune.tasks import TASKS, Task, make_task
from toprune.tasks.classify import class_names
from toprune.training.features import encode, token_ids
from toprune.training.job import Method

HELD_OUT = 0.1  # share of train that is set aside when there is no validation set


@dataclass(frozen=True)
class Data:
    """Where the examples are and how long they may get."""

    source: Any  # None: the hub's copy of a preset
    columns: Columns = field(default_factory=Columns)
    max_length: int | None = None  # None: the preset's, else what the model can take
    skip_bad_rows: bool = False  # leave them out and say so, instead of refusing the data


def task_of(task: str | Task, model: Source) -> tuple[Task, Preset | None]:
    """What is to be told about a text, and the preset if it is one. By its name alone it has the
    settings that the model's own directory says."""
    if not isinstance(task, str):
        return task, None
    preset = find_preset(task)
    if preset is not None:
        return make_task(preset.task), preset
    if task not in TASKS:
        raise UserError(
            f"task '{task}' is not known; there are: {', '.join(TASKS)}, and of {PRESET_NAMES}"
        )
    return settle_task(task, model, {}), None


def settle_task(name: str, model: Source, settings: Mapping[str, Any]) -> Task:
    """The task with these settings, and for the others those that the model's directory says."""
    if find_preset(name) is not None:
        raise UserError(f"{name} takes no settings of its task; leave out: {', '.join(settings)}")
    return make_task(name, _told(name, model) | dict(settings))


def _told(task: str, model: Source) -> dict[str, Any]:
    """Settings that a directory gives for a task: ours, or those of sentence-transformers."""
    if not isinstance(model, str | Path) or not Path(model).is_dir():
        return {}
    report = read_report(Path(model))
    return dict(report.get("task_settings", {})) if report.get("task") == task else {}


def data_of(data: Any, config: Any) -> Data:
    """Of texts or of images, as the model wants them."""
    told = data if isinstance(data, Data) else Data(data)
    return replace(told, columns=replace(told.columns, images=family_named(config).images))


def named(model: Source, data: Data, protect: Sequence[str]) -> dict[str, Any]:
    """Model, data, columns and words as the caller named them; what came as an object has no
    name."""
    columns = {name: getattr(data.columns, name) for name in ("text", "pair", "label")}
    given = {"model": model, "data": data.source} | columns
    named = {name: str(what) for name, what in given.items() if isinstance(what, str | Path)}
    return named | ({"protect": list(protect)} if protect else {})


def tokenizer_of(model: Source, given: Any) -> Any:
    """The given one, or that of the model; of images, what prepares them."""
    config = config_of(model)
    if given is None:
        return load_tokenizer(model)
    if not family_named(config).images:
        return given
    images = given if isinstance(given, Images) else Images(given.to_dict(), max_positions(config))
    return check_images(images, config)


def reading(data: Data, kind: Task, preset: Preset | None, config: Any) -> dict[str, Any]:
    """How data are read; by the names of the model's classes where a config is given."""
    named = config is not None and kind.HAS_LABEL_NAMES
    return {
        "source": data.source,
        "reads": kind.READS,
        "preset": preset,
        "columns": data.columns,
        "label_names": class_names(config) if named else None,
        "skip_bad_rows": data.skip_bad_rows,
    }


def sets_of(
    data: Data, kind: Task, preset: Preset | None, seed: int, config: Any = None
) -> tuple[Examples, Examples]:
    """(train, held out): the sets that the source has, or a seeded split of its only one. Held out
    is test before validation, but for a preset validation (`held_out_order`)."""
    sets = load_sets(**reading(data, kind, preset, config))
    train_set = sets.get("train") or next(iter(sets.values()))
    others = [
        sets[name]
        for name in held_out_order(preset)
        if name in sets and sets[name] is not train_set
    ]
    if not others:
        return split_validation(train_set, HELD_OUT, seed, reads=kind.READS)
    return train_set, next((e for e in others if e.labels is not None), others[-1])


def encoded(
    model: Any, tokenizer: Any, task: Task, examples: Examples, limit: int
) -> list[dict[str, Any]]:
    config = model.config
    return encode(
        tokenizer,
        task,
        examples,
        limit,
        positions=max_positions(config),
        segments=has_segments(config),
    )


def told_length(model: Source, preset: Preset | None) -> int | None:
    """The length that a model was fine-tuned for, as its directory says."""
    if preset is not None or not isinstance(model, str | Path) or not Path(model).is_dir():
        return None
    return read_report(Path(model)).get("max_length")


def limit_of(
    model: Any, task: Task, data: Data, preset: Preset | None, told: int | None = None
) -> int:
    """The asked length; else what the model's directory tells, or what is usual for the task, if
    the model can take as much."""
    most = max_positions(model.config)
    if family_of(model).images and data.max_length is not None:
        raise UserError(f"every image has {most} tokens, one for a patch; leave --max-length out")
    usual = (task.MAX_LENGTH or most) if preset is None else preset.max_length
    return data.max_length or min(most, told or usual)


def protected_ids(
    tokenizer: Any, task: Task, words: tuple[str, ...], first: bool | None
) -> tuple[tuple[int, ...], int | None]:
    """(ids that stay, the id up to which everything stays)"""
    if isinstance(tokenizer, Images):
        if words or first:
            raise UserError("images have no words to protect; leave --protect out")
        return (), None
    ids = token_ids(tokenizer, words)
    if not (task.KEEPS_FIRST if first is None else first):
        return tuple(sorted(ids)), None
    until = tokenizer.sep_token_id
    if until is None:
        raise UserError(
            "the tokenizer has no separator to tell the first text by; give protect_first=False "
            "(--no-protect-first)"
        )
    return tuple(sorted({*ids, until})), until


def score_of(method: Method, asked: Score | None, recipe: Recipe, task: Task) -> Score:
    """The score that ranks tokens: the requested one, or the method's default for the task."""
    if asked is None:
        return method.default_score(task, recipe)
    if asked not in method.SCORES:
        raise UserError(
            f"the method {method.NAME} ranks tokens by {' or '.join(method.SCORES)}, not {asked}"
        )
    return asked
