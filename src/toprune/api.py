"""The public face: finetune, prune, evaluate. Paths, hub ids or objects; one clear line for bad
input, found before the work begins wherever it can be."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from toprune.bundle.bundle import Bundle, read_report
from toprune.bundle.workdir import (
    check_out,
    check_settings,
    is_done,
    publish,
    run_id,
    work_directory,
)
from toprune.data.examples import Examples
from toprune.data.presets import (
    Schedule,
    preset_of,
    preset_settings,
    recipe_of,
    with_preset,
)
from toprune.data.sets import load_labelled
from toprune.errors import UserError
from toprune.methods import make_method
from toprune.models.families import sizes_of
from toprune.models.heads import auto_class, restore_of
from toprune.models.load import Source, config_of, fingerprint, load_model
from toprune.plan.budget import Budget
from toprune.plan.plan import Plan, Score
from toprune.pruning.attach import attach, detach
from toprune.report.build import Execution, evaluation_report, prune_report
from toprune.request import (
    Data,
    data_of,
    encoded,
    limit_of,
    named,
    protected_ids,
    reading,
    score_of,
    sets_of,
    task_of,
    tokenizer_of,
    told_length,
)
from toprune.tasks import Task
from toprune.tasks import settings_of as task_settings
from toprune.tasks.classify import all_class_names
from toprune.tasks.side_by_side import SideBySide
from toprune.training.batches import Collate, in_batches
from toprune.training.distributed import processes, share_of
from toprune.training.evaluation import (
    collect_outputs,
    entering,
    load_outputs,
    save_outputs,
)
from toprune.training.features import lengths, rows_of
from toprune.training.job import Job, Method, dense_plan, settings_of
from toprune.training.learner import Learner
from toprune.training.settings import FINETUNE, Training
from toprune.training.stages import check_reach, run
from toprune.training.trainer import train

TUNED = 1000  # training questions that choose a threshold


def finetune(
    model: Source,
    data: Data | Any,
    *,
    task: str | Task = "classify",
    out: str | Path,
    tokenizer: Any = None,
    schedule: Schedule | None = None,
    training: Training | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Fine-tune an encoder on labels, ready for `prune`; returns the report of its evaluation.

    task: a name of `tasks.TASKS`, one of these with settings (`Answer(stride=64)`), or a task of
    GLUE by name, with which come columns, class names, a maximum length, a `schedule` (`short` or
    `paper`; `training` wins over it) and, where `data` is None, the hub's copy.
    """
    recipe = recipe_of(task if isinstance(task, str) else task.NAME, schedule)
    training = training or replace(FINETUNE, **recipe.finetune)
    share_of(training.batch_size)  # or one line, before any work
    kind, preset = task_of(task, model)
    kind.check_finetune()
    config = config_of(model)
    auto_class(kind, config)  # or one line that says what can be asked
    data = data_of(data, config)
    check_out(Path(out), overwrite=overwrite or resume)
    train_set, held_out = sets_of(data, kind, preset, training.seed)
    if train_set.labels is None:
        raise UserError("fine-tuning needs labels; name their column with --label")
    kind = kind.sized(lambda: kind.num_outputs(train_set))
    torch.manual_seed(training.seed)  # of a new head
    dense = load_model(model, kind, train_set, new_head=True)
    tokenizer = tokenizer_of(model, tokenizer)
    limit = limit_of(dense, kind, data, preset)
    features, tests = (encoded(dense, tokenizer, kind, e, limit) for e in (train_set, held_out))
    collate = Collate(tokenizer)
    learner = Learner(dense, kind, label_weight=1.0, dropout=training.dropout is not False)
    settings = {
        "finetune": kind.NAME,
        "max_length": limit,
        "task_settings": task_settings(kind),
        "training": training.settings(),
        "examples": len(features),
        "weights": fingerprint(dense),
    } | preset_settings(preset, schedule)
    if resume and not overwrite and is_done(Path(out), settings):
        return read_report(Path(out))
    check_out(Path(out), overwrite=overwrite)
    with work_directory(Path(out), resume=resume) as work:
        check_settings(work, settings)
        attach(dense, dense_plan(dense, restore_of(kind, dense.config)))
        try:
            train(
                learner,
                features,
                collate,
                training,
                epochs=training.hard_epochs,
                out=work / "checkpoints",
                label="fine-tuning",
                resume=resume,
            )
        finally:
            detach(dense)
        said = collect_outputs(dense, kind, tests, collate)
        kind = _tuned(dense, kind, tokenizer, train_set, limit)
        report = with_preset(evaluation_report(kind, said, rows_of(tests), held_out), preset)
        made = {"settings": settings, "run": run_id(settings)}
        told = {"max_length": limit, "provenance": made}
        publish(work, Bundle(dense, tokenizer, None, report | told))
    return report


def prune(
    model: Source,
    data: Data | Any,
    budget: str | Budget,
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
    auto_weight: bool = False,
    known: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Bundle:
    """Learn which layers drop tokens and how many stay, under a budget; returns the bundle.

    It is also written to `out`; without one the work is done in a temporary place, not resumable.
    A model that is given as an object is changed: it holds the pruned weights afterwards.
    task, schedule: as in `finetune`; `method`, `score` and `training` win over the schedule.
    method: a name of `methods.METHODS`, or one of these with settings (`Top(bins=20)`).
    protect: tokens that are never dropped. protect_first: nor is anything of the first text of a
    pair; None: as is right for the task (a ranker keeps its query and the separators).
    min_tokens: so many stay at every step, of a text that has them.
    known: a directory that keeps what the dense model says, so that runs with other budgets or
    methods need not ask it again.
    """
    recipe = recipe_of(task if isinstance(task, str) else task.NAME, schedule)
    if isinstance(method, str):
        method = make_method(method, recipe.methods.get(method))
    kind, preset = task_of(task, model)
    score = score_of(method, score, recipe, kind)
    training = training or Training(
        soft_epochs=recipe.epochs * recipe.soft,
        hard_epochs=recipe.epochs * (1 - recipe.soft),
        **recipe.training,
    )
    share_of(training.batch_size)  # or one line, before any work
    asked = Budget.parse(budget)
    config = config_of(model)
    auto_class(kind, config)  # or one line that says what can be asked
    data = data_of(data, config)
    if out is not None:
        check_out(Path(out), overwrite=overwrite or resume)
    train_set, held_out = sets_of(data, kind, preset, training.seed, config)
    kind = kind.sized(lambda: config.num_labels)
    student = load_model(model, kind, train_set)
    kind.check_head(student.config, held_out)
    tokenizer = tokenizer_of(model, tokenizer)
    limit = limit_of(student, kind, data, preset, told_length(model, preset))
    features, tests = (encoded(student, tokenizer, kind, e, limit) for e in (train_set, held_out))
    ids, until = protected_ids(tokenizer, kind, protect, protect_first)
    job = Job(
        model=student,
        tokenizer=tokenizer,
        task=kind,
        features=features,
        lengths=lengths(features, ids, until),
        budget=asked,
        method=method,
        score=score,
        training=training,
        work=Path(),
        protect=ids,
        protect_until=until,
        min_tokens=min_tokens,
    )
    read, cut = tests, method.cut(job, train_set)
    if cut is not None:
        short, read = (encoded(student, tokenizer, kind, e, cut) for e in (train_set, held_out))
        job = replace(job, cut=cut, short=short)
    check_reach(job)
    started = {"auto_weight": auto_weight, "weights": fingerprint(student)}
    settings = settings_of(job) | started | preset_settings(preset, schedule)
    if out is not None:
        if resume and not overwrite and is_done(Path(out), settings):
            return Bundle.load(out)
        check_out(Path(out), overwrite=overwrite)
    with _place(out) as folder, work_directory(folder, resume=resume) as work:
        check_settings(work, settings)
        job = replace(job, work=work / "stages")
        if known is not None:
            about = {"weights": started["weights"], "tests": lengths(tests).to_json()}
            job = replace(job, known=_known(Path(known), job, about))
        dense = _dense_answers(job, tests)
        before = _tuned(student, kind, tokenizer, train_set, limit)
        if held_out.labels is not None:  # what cannot be measured is said now, not hours later
            before.statistics(dense, rows_of(tests), held_out)
        if auto_weight:
            job = replace(job, method=method.search(job, resume=resume))
        outcome = run(job, resume=resume)
        job = outcome.job
        attach(student, outcome.plan)
        pruned = collect_outputs(student, kind, read, Collate(tokenizer), "evaluating pruned")
        tuned = _tuned(student, kind, tokenizer, train_set, job.cut or limit)
        detach(student)
        said, counts = (dense, pruned), _counts(student, outcome.plan, read, tokenizer)
        names = all_class_names(student.config, held_out)
        report = prune_report(
            SideBySide((before, tuned), said, rows_of(tests), held_out, names),
            Execution(
                outcome.plan, sizes_of(student), job.lengths, limit, job.cut, job.before, counts
            ),
            settings=settings_of(job),
            expected=outcome.expected,
            log=outcome.log,
            extra=outcome.extra,
        )
        report = with_preset(report, preset)
        report["provenance"]["settings"] |= preset_settings(preset, schedule)
        report["provenance"]["run"] = run_id(settings)
        report["inputs"] = named(model, data, protect)
        plan = replace(outcome.plan, provenance=report["provenance"])
        bundle = Bundle(student, tokenizer, plan, report)
        publish(work, bundle)
    return bundle


def evaluate(
    bundle: str | Path | Bundle,
    data: Data | Any,
    *,
    split: str | None = None,
    task: str | None = None,
) -> dict[str, Any]:
    """Metrics of a bundle, or of any fine-tuned model directory, on labelled data. task: what a
    directory from elsewhere is for, where its head does not tell."""
    own = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle, task)
    data = data_of(data, own.model.config)
    kind, preset = own.task, preset_of(own.report)
    chosen = load_labelled(split=split, **reading(data, kind, preset, own.model.config))
    kind.check_head(own.model.config, chosen)
    limit = limit_of(own.model, kind, data, preset, own.report.get("max_length"))
    features = encoded(own.model, own.tokenizer, kind, chosen, limit)
    if own.plan is not None:
        attach(own.model, own.plan)
    try:
        said = collect_outputs(own.model, kind, features, Collate(own.tokenizer))
    finally:
        detach(own.model)
    report = evaluation_report(kind, said, rows_of(features), chosen)
    report = with_preset(report, preset) | {"max_length": limit}
    if own.plan is not None:
        found = lengths(features, own.plan.protect, own.plan.protect_until)
        counts = _counts(own.model, own.plan, features, own.tokenizer)
        ran = Execution(own.plan, sizes_of(own.model), found, limit, counts=counts)
        report |= {"executed": vars(ran.reduction()), "kept_per_layer": ran.kept_per_layer()}
    return report


@contextmanager
def _place(out: str | Path | None) -> Iterator[Path]:
    """Where the bundle goes: as told, or somewhere that does not last."""
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="toprune-") as folder:
        yield Path(folder) / "bundle"


def _tuned(model: Any, kind: Task, tokenizer: Any, train_set: Examples, limit: int) -> Task:
    """Tune the task on training examples: those that are reported must not choose a setting."""
    if not kind.needs_tuning or train_set.labels is None:
        return kind
    some = np.random.default_rng(0).permutation(len(train_set))[:TUNED]
    chosen = train_set.take(np.sort(some))
    features = encoded(model, tokenizer, kind, chosen, limit)
    said = collect_outputs(model, kind, features, Collate(tokenizer), "choosing a threshold")
    return kind.tune(said, rows_of(features), chosen)


def _counts(
    model: Any, plan: Plan, features: Sequence[dict[str, Any]], tokenizer: Any
) -> np.ndarray | None:
    """(N, L) tokens that enter each layer, where a length does not tell."""
    if not plan.adaptive:
        return None
    return entering(model, plan, in_batches(features, Collate(tokenizer)))


def _known(folder: Path, job: Job, about: dict[str, Any]) -> Path:
    """Of this model, task and texts, or one clear line."""
    settings = settings_of(job)
    same = ("task", "task_settings", "examples", "lengths", "protect", "protect_until")
    about |= {name: settings[name] for name in same}
    about |= {"seed": job.training.seed, "bf16": job.training.bf16}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        check_settings(folder, about)
    except UserError as error:
        raise UserError(
            f"{folder} is of another model or of other texts, or made with another seed or "
            "another --bf16; choose another"
        ) from error
    return folder


def _dense_answers(job: Job, tests: Any) -> list[np.ndarray]:
    path = job.teacher_folder / "dense.npz"
    if path.exists():
        return load_outputs(path)
    dense = collect_outputs(job.model, job.task, tests, Collate(job.tokenizer), "evaluating dense")
    path.parent.mkdir(parents=True, exist_ok=True)
    if processes().is_main_process:
        save_outputs(path, dense)
    return dense
