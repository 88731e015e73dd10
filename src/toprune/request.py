"""What the caller requested, resolved once, before any work: task, model, tokenizer, sets of
examples, lengths and, for `prune`, the job. Bad input is refused here with one clear line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toprune.bundle.bundle import Bundle, read_report
from toprune.data.examples import Examples
from toprune.data.images import Images
from toprune.data.presets import PRESET_NAMES, Schedule, find_preset, preset_of, recipe_of
from toprune.data.recipes import Preset
from toprune.data.sets import (
    Data,
    apart_from,
    held_out_order,
    load_labelled,
    load_sets,
    served_texts,
    with_unlabelled,
)
from toprune.data.splits import split_validation
from toprune.errors import UserError
from toprune.methods import make_method
from toprune.models.families import family_named, max_positions, sizes_of
from toprune.models.heads import auto_class
from toprune.models.load import Source, check_images, config_of, load_model, load_tokenizer
from toprune.plan.budget import Budget
from toprune.plan.counts import against_unpadded
from toprune.plan.dial import parse_budgets, tightness
from toprune.plan.plan import Score
from toprune.tasks import TASKS, Task, make_task
from toprune.tasks.classify import class_names
from toprune.training.batches import Collate
from toprune.training.bfloat16 import choose_bf16
from toprune.training.distributed import share_of
from toprune.training.evaluation import collect_outputs
from toprune.training.features import encode_for, lengths, protected_ids, rows_of
from toprune.training.job import Job, Method
from toprune.training.safety_net import Calibration, check_request, set_aside, trained_budget
from toprune.training.select import judged
from toprune.training.settings import FINETUNE, Training
from toprune.training.stages import check_reach

HELD_OUT = 0.1  # share of the training set that is held out when there is no validation set
TUNED = 1000  # training examples that choose a setting of the task, such as a threshold


@dataclass(frozen=True)
class Request:
    """What `finetune`, `prune` and `evaluate` work on. What only `prune` needs is in its `Job`."""

    task: Task
    preset: Preset | None
    data: Data
    model: Any
    tokenizer: Any  # `Images` for a model of images
    train: Examples  # empty for `evaluate`
    held_out: Examples  # the examples that are reported
    limit: int  # tokens of a text
    training: Training
    calibration: Examples | None = None  # for a fallback: neither trained on nor reported

    def encode(self, examples: Examples, limit: int | None = None) -> list[dict[str, Any]]:
        """Features of the examples, cut to the limit of the request or to a shorter one."""
        return encode_for(self.model, self.tokenizer, self.task, examples, limit or self.limit)

    def outputs(
        self, features: Sequence[dict[str, Any]], label: str = "evaluating"
    ) -> list[np.ndarray]:
        """The model's outputs for every feature, with whatever plan is attached to it."""
        return collect_outputs(self.model, self.task, features, Collate(self.tokenizer), label)

    def calibrate(self) -> Calibration | None:
        """The model's answers, as it is now, to the texts that choose a fallback."""
        if self.calibration is None:
            return None
        features = self.encode(self.calibration)
        outputs = self.outputs(features, "dense, texts that choose")
        return Calibration(self.calibration.inputs(self.task.READS), features, outputs)

    def tuned_task(self, limit: int | None = None) -> Task:
        """The task tuned to the model as it is now, on training examples: those that are reported
        must not choose a setting."""
        if not self.task.needs_tuning or self.train.labels is None:
            return self.task
        rows = np.random.default_rng(0).permutation(len(self.train))[:TUNED]
        examples = self.train.take(np.sort(rows))
        features = self.encode(examples, limit)
        outputs = self.outputs(features, "choosing a threshold")
        return self.task.tune(outputs, rows_of(features), examples)


def resolve_finetune(
    model: Source,
    data: Data | Any,
    *,
    task: str | Task,
    tokenizer: Any,
    schedule: Schedule | None,
    training: Training | None,
    before: Mapping[str, Any],
) -> Request:
    """Resolve the arguments of `api.finetune`; `before`: the settings of a stopped run."""
    recipe = recipe_of(task if isinstance(task, str) else task.NAME, schedule)
    training = (training or replace(FINETUNE, **recipe.finetune)).continued(
        before.get("training", {})
    )
    training = replace(training, soft_epochs=training.soft_epochs or 0).resolved(0)
    share_of(training.batch_size)  # refuses a batch that the processes cannot share
    resolved, preset = task_of(task, model)
    resolved.check_finetune()
    config = config_of(model)
    auto_class(resolved, config)  # refuses a task that the model cannot do
    data = data_of(data, config)
    train, held_out = _load_sets(data, resolved, preset, training.seed)
    if train.labels is None:
        raise UserError("fine-tuning needs labels; name their column with --label")
    if data.unlabelled:
        raise UserError("fine-tuning cannot use unlabelled data; pass them to prune")
    resolved = resolved.sized(lambda: resolved.num_outputs(train))
    torch.manual_seed(training.seed)  # for the new head
    dense = load_model(model, resolved, train, new_head=True, config=config)
    tokenizer = _tokenizer(model, config, tokenizer)
    limit = _limit(config, resolved, data, preset)
    training = choose_bf16(training, sizes_of(dense).width)
    return Request(resolved, preset, data, dense, tokenizer, train, held_out, limit, training)


def resolve_prune(
    model: Source,
    data: Data | Any,
    budget: str | Budget | Sequence[str | Budget],
    *,
    task: str | Task,
    tokenizer: Any,
    schedule: Schedule | None,
    method: str | Method,
    score: Score | None,
    training: Training | None,
    protect: tuple[str, ...],
    protect_first: bool | None,
    min_tokens: int,
    before: Mapping[str, Any],
    fallback: bool = False,
) -> tuple[Request, Job]:
    """Resolve the arguments of `api.prune`; `before`: the settings of a stopped run. The job has no
    work directory yet. With a fallback, its budget is the deeper one that is trained."""
    recipe = recipe_of(task if isinstance(task, str) else task.NAME, schedule)
    if isinstance(method, str):
        method = make_method(method, recipe.methods.get(method))
    resolved, preset = task_of(task, model)
    if score is None and before.get("score") in method.SCORES:
        score = before["score"]  # the stopped run must end as it began
    score = method.choose_score(score, recipe)
    training = training or Training(
        soft_epochs=None if recipe.soft is None else recipe.epochs * recipe.soft,
        epochs=recipe.epochs,
        **recipe.training,
    )
    share_of(training.batch_size)  # refuses a batch that the processes cannot share
    budgets = parse_budgets(budget)
    method.check_budgets(budgets)
    budget = max(budgets, key=tightness)
    config = config_of(model)
    auto_class(resolved, config)  # refuses a task that the model cannot do
    data = data_of(data, config)
    train, held_out = _load_sets(data, resolved, preset, training.seed, config)
    calibration = None
    if fallback:
        check_request(resolved, budgets)
        train, calibration = set_aside(train, training.seed, resolved)
    resolved = resolved.sized(lambda: config.num_labels)
    student = load_model(model, resolved, train, config=config)
    resolved.check_head(student.config, held_out)
    tokenizer = _tokenizer(model, config, tokenizer)
    limit = _limit(config, resolved, data, preset, _saved_length(model, preset))
    request = Request(
        resolved, preset, data, student, tokenizer, train, held_out, limit, training, calibration
    )
    learned_from = _learned_from(request)
    features = request.encode(learned_from)
    served = served_texts(data, train, resolved.READS)
    served_features = features if learned_from is served else request.encode(served)
    training = training.continued(before.get("training", {})).resolved(len(features))
    trains = any(training.for_stages(method.STAGES).stage_epochs)
    training = choose_bf16(training, sizes_of(student).width, trains=trains)
    request = replace(request, training=training)
    ids, until = protected_ids(tokenizer, resolved, protect, protect_first)
    served_lengths = lengths(served_features, ids, until)
    job = Job(
        model=student,
        tokenizer=tokenizer,
        task=resolved,
        features=features,
        lengths=served_lengths,
        budget=against_unpadded(budget, sizes_of(student), served_lengths, limit),
        budgets=budgets if len(budgets) > 1 else (),
        method=method,
        score=score,
        training=training,
        work=Path(),
        protect=ids,
        protect_until=until,
        min_tokens=min_tokens,
    )
    if training.select == "best-dev":
        metric = (preset.metrics if preset else resolved.METRICS)[0]
        job = judged(job, request.encode(held_out), held_out, metric)
    cut = method.cut(job, learned_from)
    if cut is not None:
        job = replace(job, cut=cut, short=request.encode(learned_from, cut))
    if fallback:
        check_request(resolved, budgets, cut)
        job = replace(job, budget=trained_budget(job))
    check_reach(job)
    return request, job


def resolve_evaluate(bundle: Bundle, data: Data | Any, split: str | None) -> Request:
    """Resolve the arguments of `api.evaluate`."""
    config = bundle.model.config
    data, task, preset = data_of(data, config), bundle.task, preset_of(bundle.report)
    examples = load_labelled(split=split, **_reading(data, task, preset, config))
    task.check_head(config, examples)
    limit = _limit(config, task, data, preset, bundle.report.get("max_length"))
    return Request(
        task,
        preset,
        data,
        bundle.model,
        bundle.tokenizer,
        train=Examples([]),
        held_out=examples,
        limit=limit,
        training=Training(),
    )


def resolve_reference(
    model: Source, task: Task, examples: Examples, preset: Preset | None, max_length: int | None
) -> Request:
    """Resolve a dense model that a bundle is compared with on loaded examples.

    Args:
        model: a directory or a hub id.
        task: the bundle's. Its settings hold where the model's directory has none.
        examples: what both models read, with the bundle's class names.
        preset: the bundle's.
        max_length: tokens of a text; None: as in `evaluate`.
    """
    report = _saved_report(model)
    if report.get("task", task.NAME) != task.NAME:
        raise UserError(f"{model} is for the task {report['task']}, the bundle for {task.NAME}")
    if "task_settings" in report:
        task = make_task(task.NAME, report["task_settings"])
    config = config_of(model)
    auto_class(task, config)  # refuses a task that the model cannot do
    dense = load_model(model, task, examples, config=config).eval()
    data = Data(None, max_length=max_length)
    limit = _limit(config, task, data, preset, _saved_length(model, preset))
    tokenizer = _tokenizer(model, config, None)
    return Request(task, preset, data, dense, tokenizer, Examples([]), examples, limit, Training())


def task_of(task: str | Task, model: Source) -> tuple[Task, Preset | None]:
    """The task, and the preset if its name is one. A task that is requested by its name alone gets
    the settings that the model's directory has for it."""
    if not isinstance(task, str):
        return task, None
    preset = find_preset(task)
    if preset is not None:
        return make_task(preset.task), preset
    if task not in TASKS:
        raise UserError(
            f"task '{task}' is not known; there are: {', '.join(TASKS)}, and of {PRESET_NAMES}"
        )
    return task_with(task, model, {}), None


def task_with(name: str, model: Source, settings: Mapping[str, Any]) -> Task:
    """The task with these settings; the other settings are those of the model's directory."""
    if find_preset(name) is not None:
        raise UserError(f"{name} takes no settings of its task; leave out: {', '.join(settings)}")
    report = _saved_report(model)
    saved = dict(report.get("task_settings", {})) if report.get("task") == name else {}
    return make_task(name, saved | dict(settings))


def _saved_report(model: Source) -> dict[str, Any]:
    """The report in a model's directory: ours, or what sentence-transformers' files have of it."""
    is_directory = isinstance(model, str | Path) and Path(model).is_dir()
    return read_report(Path(model)) if is_directory else {}


def _saved_length(model: Source, preset: Preset | None) -> int | None:
    """The length that a model was fine-tuned for, from its directory."""
    return None if preset is not None else _saved_report(model).get("max_length")


def data_of(data: Data | Any, config: Any) -> Data:
    """The data as `Data`, of texts or of images as the model needs them."""
    data = data if isinstance(data, Data) else Data(data)
    return replace(data, columns=replace(data.columns, images=family_named(config).images))


def input_entries(model: Source, data: Data, protect: Sequence[str]) -> dict[str, Any]:
    """Entries of the report: model, data, columns and protected words as the caller named them, and
    the prompts in the model's directory. What the caller passed as an object has no name."""
    columns = {name: getattr(data.columns, name) for name in ("text", "pair", "label")}
    inputs = {"model": model, "data": data.source, "lengths_of": data.lengths_of} | columns
    names: dict[str, Any] = {
        name: str(value) for name, value in inputs.items() if isinstance(value, str | Path)
    }
    lists = {
        "unlabelled": [str(source) for source in data.unlabelled if isinstance(source, str | Path)],
        "protect": list(protect),
    }
    names |= {name: values for name, values in lists.items() if values}
    prompts = _saved_report(model).get("prompts")
    return {"inputs": names} | ({"prompts": prompts} if prompts else {})


def _tokenizer(model: Source, config: Any, tokenizer: Any) -> Any:
    """The requested tokenizer, or the model's; for images, what prepares them."""
    if tokenizer is None:
        return load_tokenizer(model, config)
    if not family_named(config).images:
        return tokenizer
    if not isinstance(tokenizer, Images):
        tokenizer = Images(tokenizer.to_dict(), max_positions(config))
    return check_images(tokenizer, config)


def _reading(data: Data, task: Task, preset: Preset | None, config: Any) -> dict[str, Any]:
    """Arguments that load the data; with a config, labels get the ids of the model's classes."""
    has_names = config is not None and task.HAS_LABEL_NAMES
    return {
        "source": data.source,
        "reads": task.READS,
        "preset": preset,
        "columns": data.columns,
        "label_names": class_names(config) if has_names else None,
        "skip_bad_rows": data.skip_bad_rows,
    }


def _load_sets(
    data: Data, task: Task, preset: Preset | None, seed: int, config: Any = None
) -> tuple[Examples, Examples]:
    """(train, held out): the sets of the source, or a seeded split of its only one. Test is held
    out before validation, but for a preset validation comes first (`held_out_order`)."""
    sets = load_sets(**_reading(data, task, preset, config))
    train = sets.get("train") or next(iter(sets.values()))
    others = [
        sets[name] for name in held_out_order(preset) if name in sets and sets[name] is not train
    ]
    if not others:
        return split_validation(train, HELD_OUT, seed, reads=task.READS)
    return train, next((e for e in others if e.labels is not None), others[-1])


def _limit(
    config: Any, task: Task, data: Data, preset: Preset | None, saved: int | None = None
) -> int:
    """The requested length; else that of the model's directory, or the usual one of the task, as
    far as the model can take it."""
    most = max_positions(config)
    if family_named(config).images and data.max_length is not None:
        raise UserError(f"every image has {most} tokens, one for a patch; leave --max-length out")
    usual = (task.MAX_LENGTH or most) if preset is None else preset.max_length
    return data.max_length or min(most, saved or usual)


def _learned_from(request: Request) -> Examples:
    """The training set, with the unlabelled texts if there are any, but without those that choose a
    fallback."""
    data, calibration = request.data, request.calibration
    if not data.unlabelled:
        return request.train
    if request.training.label_weight > 0:
        raise UserError("--label-weight needs a label for every text; leave --unlabelled out")
    learned_from = with_unlabelled(
        request.train,
        request.held_out,
        data.unlabelled,
        reads=request.task.READS,
        columns=data.columns,
        skip_bad_rows=data.skip_bad_rows,
    )
    if calibration is None:
        return learned_from
    return apart_from(learned_from, calibration, request.task.READS)
