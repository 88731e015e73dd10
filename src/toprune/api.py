"""The public functions: finetune, prune, evaluate. They take paths, hub ids or objects, and refuse
bad input with one clear line, before the work begins wherever that is possible."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toprune.bundle.bundle import Bundle, read_report
from toprune.bundle.workdir import (
    check_out,
    check_settings,
    is_done,
    output_folder,
    publish,
    read_settings,
    run_id,
    shared_folder,
    stopped_settings,
    work_directory,
)
from toprune.data.presets import Schedule, preset_settings, with_preset
from toprune.export.milliseconds import meet_time, with_curve
from toprune.io.devices import Device
from toprune.models.device import placed
from toprune.models.families import sizes_of
from toprune.models.heads import restore_of
from toprune.models.load import Source, fingerprint
from toprune.plan.budget import Budget
from toprune.plan.dial import Dial, parse_budgets
from toprune.plan.plan import Plan, Score
from toprune.pruning.attach import attach, detach
from toprune.report.build import Execution, evaluation_report, prune_report
from toprune.report.dial import dial_row
from toprune.request import (
    Data,
    Request,
    input_entries,
    resolve_evaluate,
    resolve_finetune,
    resolve_prune,
)
from toprune.tasks import Task
from toprune.tasks import settings_of as task_settings
from toprune.tasks.classify import all_class_names
from toprune.tasks.fallback import counted, parse_fallback
from toprune.tasks.side_by_side import SideBySide
from toprune.training.batches import Collate, in_batches
from toprune.training.distributed import use_device
from toprune.training.evaluation import entering, stored_outputs
from toprune.training.features import lengths, rows_of
from toprune.training.job import Method, Outcome, dense_plan, settings_of
from toprune.training.learner import Learner
from toprune.training.safety_net import Net, answer_again, find_net
from toprune.training.settings import Training
from toprune.training.stages import run
from toprune.training.trainer import train


def finetune(
    model: Source,
    data: Data | Any,
    *,
    task: str | Task = "classify",
    out: str | Path,
    tokenizer: Any = None,
    schedule: Schedule | None = None,
    training: Training | None = None,
    device: Device = "auto",
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Fine-tune an encoder on labels, ready for `prune`.

    Args:
        model: a directory, a hub id, or a model object.
        data: a `Data`, or its source: a file, a directory, a hub name, or rows in memory. None: the
            hub's copy of a task of GLUE.
        task: a name in `tasks.TASKS`, a task with settings (`Answer(stride=64)`), or a task of GLUE
            by name, which brings columns, class names, a maximum length and schedules.
        out: the directory to write.
        tokenizer: the model's own if None.
        schedule: of a task of GLUE: `short` or `paper`. `training` takes precedence.
        training: epochs, learning rate and so on.
        device: what to train on: "auto" (a GPU if there is one), "cpu", "cuda" or "mps".
            Afterwards the model is where it was before.
        resume: continue where a stopped run was.
        overwrite: replace what is in `out`.

    Returns:
        The report of the evaluation on the held-out examples.
    """
    out, torch_device = Path(out), use_device(device)
    check_out(out, overwrite=overwrite or resume)
    request = resolve_finetune(
        model,
        data,
        task=task,
        tokenizer=tokenizer,
        schedule=schedule,
        training=training,
        before=stopped_settings(out) if resume else {},
    )
    features, tests = request.encode(request.train), request.encode(request.held_out)
    training = request.training
    settings = {
        "finetune": request.task.NAME,
        "max_length": request.limit,
        "task_settings": task_settings(request.task),
        "training": training.settings(),
        "examples": len(features),
        "weights": fingerprint(request.model),
    } | preset_settings(request.preset, schedule)
    if resume and not overwrite and is_done(out, settings):
        return read_report(out)
    check_out(out, overwrite=overwrite)
    with work_directory(out, resume=resume) as work:
        check_settings(work, settings)
        dense, dropout = request.model, training.dropout is not False
        attach(dense, dense_plan(dense, restore_of(request.task, dense.config)))
        with placed(dense, torch_device):
            try:
                train(
                    Learner(dense, request.task, label_weight=1.0, dropout=dropout),
                    features,
                    Collate(request.tokenizer),
                    training,
                    epochs=training.stage_epochs[1],
                    out=work / "checkpoints",
                    label="fine-tuning",
                    resume=resume,
                )
            finally:
                detach(dense)
            outputs, tuned = request.outputs(tests), request.tuned_task()
        report = evaluation_report(tuned, outputs, rows_of(tests), request.held_out)
        report = with_preset(report, request.preset)
        provenance = {"settings": settings, "run": run_id(settings)}
        more = {"max_length": request.limit, "provenance": provenance}
        publish(work, Bundle(dense, request.tokenizer, None, report | more))
    return report


def prune(
    model: Source,
    data: Data | Any,
    budget: str | Budget | Sequence[str | Budget],
    *,
    task: str | Task = "classify",
    out: str | Path | None = None,
    tokenizer: Any = None,
    schedule: Schedule | None = None,
    method: str | Method = "top",
    score: Score | None = None,
    training: Training | None = None,
    protect: tuple[str, ...] = (),
    protect_first: bool | None = None,
    min_tokens: int = 2,
    fallback: str | float | None = None,
    auto_weight: bool = False,
    known: str | Path | None = None,
    profile: str | Path | None = None,
    device: Device = "auto",
    resume: bool = False,
    overwrite: bool = False,
) -> Bundle:
    """Learn which layers drop tokens and how many stay, under a budget.

    A model that is passed as an object is changed: it holds the pruned weights afterwards.

    Args:
        model, data, task, tokenizer, schedule: as in `finetune`; `method`, `score` and `training`
            take precedence over the schedule. The data need no labels.
        budget: `4x` for a quarter of the real FLOPs, or `75%` of them removed. Several (`2x,3x,5x`
            or a list) give a dial: one set of weights for these and all between them; the first is
            the default. `12ms`, `p95:30ms`: the time of one text here, see `Budget`.
        out: the directory to write; None: work in a temporary place, which cannot be resumed.
        method: a name in `methods.METHODS`, or a method with settings (`Top(bins=20)`).
        score: what ranks tokens; None: the method's default for the task.
        training: epochs, learning rate and so on.
        protect: tokens that are never dropped.
        protect_first: never drop a token of a pair's first text; None: the task's default.
        min_tokens: the number of tokens that stay at every step, if a text has as many.
        fallback: `99%`: the bundle keeps the dense model, too, which answers the texts that the
            pruned one is not sure of, so that this share of the answers equals dense. The budget
            counts both models. Training leaves out some texts, which choose the threshold.
        auto_weight: let trial runs choose the weight of the ranking distillation.
        known: a directory that stores the dense model's outputs, for runs with other budgets.
        profile: for a budget in milliseconds, a curve by `toprune profile`; None: measure it now.
        device, resume, overwrite: as in `finetune`.

    Returns:
        The bundle, which is also in `out`.
    """
    torch_device = use_device(device)
    requested = None if fallback is None else parse_fallback(fallback)
    before: dict[str, Any] = {}
    if known is not None:
        before["training"] = {"bf16": read_settings(Path(known)).get("bf16")}
    if out is not None:
        check_out(Path(out), overwrite=overwrite or resume)
        before |= stopped_settings(Path(out)) if resume else {}
    request, job = resolve_prune(
        model,
        data,
        budget,
        task=task,
        tokenizer=tokenizer,
        schedule=schedule,
        method=method,
        score=score,
        training=training,
        protect=protect,
        protect_first=protect_first,
        min_tokens=min_tokens,
        before=before,
        fallback=requested is not None,
    )
    tests = request.encode(request.held_out)
    weights, preset = fingerprint(request.model), preset_settings(request.preset, schedule)
    settings = settings_of(job) | {"auto_weight": auto_weight, "weights": weights} | preset
    if requested is not None:
        settings |= {"fallback": requested}
    if out is not None:
        if resume and not overwrite and is_done(Path(out), settings):
            return Bundle.load(out)
        check_out(Path(out), overwrite=overwrite)
    with output_folder(out) as folder, work_directory(folder, resume=resume) as work:
        check_settings(work, settings)
        job = replace(job, work=work / "stages")
        if known is not None:
            about = {"weights": weights, "tests": lengths(tests).to_json()}
            job = replace(job, shared=shared_folder(Path(known), job, about))
        dense_copy = None if requested is None else copy.deepcopy(request.model)
        with placed(request.model, torch_device):
            job = with_curve(job, profile)
            stored = job.teacher_folder / "dense.npz"
            dense = stored_outputs(stored, lambda: request.outputs(tests, "evaluating dense"))
            dense_task = request.tuned_task()
            if request.held_out.labels is not None:  # what cannot be measured must fail now
                dense_task.statistics(dense, rows_of(tests), request.held_out)
            calibration = None if requested is None else request.calibrate()
            if auto_weight:
                job = replace(job, method=job.method.search(job, resume=resume))
            outcome = meet_time(run(job, resume=resume), job.work / "times.json")
            net = None
            if requested is not None and calibration is not None:
                cost = 1 / _execution(request, outcome, tests).reduction().unpadded
                goal = requested, parse_budgets(budget)[0]
                net = find_net(outcome, cost, calibration, dense_task, *goal)
                outcome = replace(outcome, plan=net.plan)
            report = _prune_report(request, outcome, dense_task, dense, tests, net)
        report["provenance"]["settings"] |= preset
        report["provenance"]["run"] = run_id(settings)
        report |= input_entries(model, request.data, protect)
        plan = replace(outcome.plan, provenance=report["provenance"])
        dial = None if outcome.dial is None else replace(outcome.dial, default=plan)
        bundle = Bundle(request.model, request.tokenizer, plan, report, dial)
        if net is not None:
            about = {"task": request.task.NAME, "task_settings": task_settings(dense_task)}
            about = with_preset(about, request.preset) | {"max_length": request.limit}
            dense_bundle = Bundle(dense_copy, request.tokenizer, None, about)
            bundle = replace(bundle, fallback=net.fallback, dense=dense_bundle)
        publish(work, bundle)
    return bundle


def evaluate(
    bundle: str | Path | Bundle,
    data: Data | Any,
    *,
    split: str | None = None,
    task: str | None = None,
    budget: str | Budget | None = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """Measure a bundle, or any fine-tuned model directory, on labelled data.

    Args:
        bundle: a directory or a `Bundle`.
        data: as in `finetune`.
        split: train, validation or test; None: the one furthest from training.
        task: the task of a directory from elsewhere whose head fits several.
        budget: of a bundle with a dial; None: its default.
        device: as in `finetune`.

    Returns:
        The report: metrics with intervals, and what a plan executed.
    """
    torch_device = use_device(device)
    bundle = (bundle if isinstance(bundle, Bundle) else Bundle.load(bundle, task)).at(budget)
    request = resolve_evaluate(bundle, data, split)
    features, plan = request.encode(request.held_out), bundle.plan
    counts, fallen = None, None
    with placed(request.model, torch_device):
        if plan is not None:
            attach(request.model, plan)
        try:
            outputs = request.outputs(features)
        finally:
            detach(request.model)
        if bundle.fallback is not None and bundle.dense is not None:
            dense, count = replace(request, model=bundle.dense.model), len(request.held_out)
            fell = bundle.fallback.below(request.task, outputs, rows_of(features), count)
            outputs, fallen = answer_again(outputs, features, fell, dense.outputs), int(fell.sum())
        if plan is not None:
            counts = _counts(request, plan, features)
    report = evaluation_report(request.task, outputs, rows_of(features), request.held_out)
    report = with_preset(report, request.preset) | {"max_length": request.limit}
    if fallen is not None:
        report["fallback"] = counted(fallen, len(request.held_out))
    if plan is not None:
        execution = Execution(
            plan,
            sizes_of(request.model),
            lengths(features, plan.protect, plan.protect_until),
            request.limit,
            counts=counts,
        )
        report["executed"] = vars(execution.reduction())
        report["kept_per_layer"] = execution.kept_per_layer()
    return report


def _prune_report(
    request: Request,
    outcome: Outcome,
    dense_task: Task,
    dense: Sequence[np.ndarray],
    tests: Sequence[dict[str, Any]],
    net: Net | None,
) -> dict[str, Any]:
    """Evaluate the pruned model beside the dense one's outputs, with its net if there is one. Both
    models decide by the dense model's settings then."""
    job, plan, held_out, dial = outcome.job, outcome.plan, request.held_out, outcome.dial
    features = tests if job.cut is None else request.encode(held_out, job.cut)
    attach(request.model, plan)
    pruned = request.outputs(features, "evaluating pruned")
    tasks = dense_task, dense_task if net is not None else request.tuned_task(job.cut)
    detach(request.model)
    rows = rows_of(tests)
    fell = None if net is None else net.fallback.below(dense_task, pruned, rows, len(held_out))
    if fell is not None:
        pruned = [d if fell[row.text] else p for p, d, row in zip(pruned, dense, rows, strict=True)]
    names = all_class_names(request.model.config, held_out)
    sides = SideBySide(tasks, (dense, pruned), rows, held_out, names)
    execution = _execution(request, outcome, tests)
    asked = job.asked if dial is None else dial.default_budget.asked
    report = prune_report(
        sides,
        execution,
        asked=asked if net is None else net.budget.asked,
        settings=settings_of(job),
        expected=outcome.expected and outcome.expected * job.budget.padding,
        log=outcome.log,
        extra=outcome.extra,
    )
    if dial is not None:
        report["dial"] = list(_dial_rows(request, dial, sides, execution, tests))
    if net is not None and fell is not None:
        report = net.add_to(report, fell)
    return with_preset(report, request.preset)


def _execution(request: Request, outcome: Outcome, tests: Sequence[dict[str, Any]]) -> Execution:
    """What the pruned model runs; it has no plan attached."""
    job, plan = outcome.job, outcome.plan
    features = tests if job.cut is None else request.encode(request.held_out, job.cut)
    counts = _counts(request, plan, features)
    sizes = sizes_of(request.model)
    return Execution(plan, sizes, job.lengths, request.limit, job.cut, job.before, counts)


def _dial_rows(
    request: Request,
    dial: Dial,
    sides: SideBySide,
    execution: Execution,
    tests: Sequence[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Evaluate every budget of a dial; `sides` and `execution` are those of the default one, whose
    settings of the task serve all."""
    for asked, plan in dial.plans().items():
        outputs = sides.outputs[1]
        if plan != dial.default:
            attach(request.model, plan)
            outputs = request.outputs(tests, f"evaluating {asked}")
            detach(request.model)
        both = replace(sides, outputs=(sides.outputs[0], outputs))
        yield dial_row(asked, both, replace(execution, plan=plan))


def _counts(request: Request, plan: Plan, features: Sequence[dict[str, Any]]) -> np.ndarray | None:
    """(N, L) tokens that enter each layer, measured where they do not follow from the length."""
    if not plan.adaptive:
        return None
    return entering(request.model, plan, in_batches(features, Collate(request.tokenizer)))
