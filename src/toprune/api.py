"""The public face: finetune, prune, evaluate. Paths, hub ids or objects; one clear line for bad
input, found before the work begins wherever it can be."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import torch

from toprune.attachment import attach, detach
from toprune.budget import Budget
from toprune.bundle import Bundle
from toprune.cost import reduction
from toprune.data import Columns, Examples, split_validation
from toprune.encode import Collate, encode, lengths
from toprune.errors import UserError
from toprune.evaluation import logits_of
from toprune.families import has_segments, max_positions, sizes_of
from toprune.fit import Learner, Training, train
from toprune.glue import (
    GLUE,
    Glue,
    Schedule,
    as_reported,
    find,
    glue_of,
    load_labelled,
    load_sets,
    recipe_of,
)
from toprune.methods.top import Top
from toprune.models import Source, config_of, fingerprint, load_model, load_tokenizer
from toprune.plan import Score
from toprune.processes import processes
from toprune.report import evaluation_report, prune_report
from toprune.stages import Job, Outcome, check_reach, run, settings_of
from toprune.tasks import TASKS
from toprune.tasks.classify import class_names
from toprune.workplace import check_out, publish, settle, workplace

HELD_OUT = 0.1  # share of train that is set aside when there is no validation set
FINETUNE = {"soft_epochs": 0, "hard_epochs": 3, "lr": 5e-5, "label_weight": 1.0}  # of Training


@dataclass(frozen=True)
class Data:
    """Where the examples are and how long they may get."""

    source: Any  # None: the hub's copy of a GLUE task
    columns: Columns = field(default_factory=Columns)
    max_length: int | None = None  # None: the paper's for a GLUE task, else what the model can take


def finetune(
    model: Source,
    data: Data | Any,
    *,
    task: str = "classify",
    out: str | Path,
    tokenizer: Any = None,
    schedule: Schedule | None = None,
    training: Training | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Fine-tune an encoder on labels, ready for `prune`; returns the report of its evaluation.

    task: `classify`, `regress`, or a task of GLUE by name, with which come columns, class names,
    a maximum length, a `schedule` (`short` or `paper`; `training` wins over it) and, where `data`
    is None, the hub's copy.
    """
    recipe = recipe_of(task, schedule)
    training = training or Training(**FINETUNE | dict(recipe.finetune))
    kind, glue = _task(task)
    data = _data(data)
    check_out(Path(out), overwrite=overwrite)
    train_set, held_out = _sets(data, kind, glue, training.seed)
    if train_set.labels is None:
        raise UserError("fine-tuning needs labels; name their column with --label")
    torch.manual_seed(training.seed)  # of a new head
    dense = load_model(model, kind, train_set, new_head=True)
    tokenizer = tokenizer or load_tokenizer(model)
    limit = _limit(dense, data, glue)
    features, tests = (_encode(dense, tokenizer, e, limit) for e in (train_set, held_out))
    collate = Collate(tokenizer)
    learner = Learner(dense, kind, label_weight=1.0)
    settings = {
        "finetune": kind.NAME,
        "training": training.settings(),
        "examples": len(features),
        "weights": fingerprint(dense),
    } | _chosen(glue, schedule)
    with workplace(Path(out), resume=resume) as work:
        settle(work, settings)
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
        report = evaluation_report(kind, logits_of(dense, tests, collate), held_out)
        report = as_reported(report, glue)
        told = {"max_length": limit, "provenance": {"settings": settings}}
        publish(work, Bundle(dense, tokenizer, None, report | told))
    return report


def prune(
    model: Source,
    data: Data | Any,
    budget: str | Budget,
    *,
    task: str = "classify",
    out: str | Path | None = None,
    tokenizer: Any = None,
    schedule: Schedule | None = None,
    score: Score | None = None,
    top: Top | None = None,
    training: Training | None = None,
    protect: tuple[str, ...] = (),
    auto_weight: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> Bundle:
    """Learn which layers drop tokens and how many stay, under a budget; returns the bundle.

    It is also written to `out`; without one the work is done in a temporary place, not resumable.
    A model that is given as an object is changed: it holds the pruned weights afterwards.
    task, schedule: as in `finetune`; `score`, `top` and `training` win over the schedule.
    """
    recipe = recipe_of(task, schedule)
    top = top or Top(**recipe.top)
    training = training or Training(
        soft_epochs=recipe.epochs * recipe.soft,
        hard_epochs=recipe.epochs * (1 - recipe.soft),
        **recipe.training,
    )
    asked = Budget.parse(budget)
    kind, glue = _task(task)
    data = _data(data)
    if out is not None:
        check_out(Path(out), overwrite=overwrite)
    names = class_names(config_of(model))
    train_set, held_out = _sets(data, kind, glue, training.seed, names)
    student = load_model(model, kind, train_set)
    tokenizer = tokenizer or load_tokenizer(model)
    limit = _limit(student, data, glue)
    features, tests = (_encode(student, tokenizer, e, limit) for e in (train_set, held_out))
    ids = _protected(tokenizer, protect)
    job = Job(
        model=student,
        tokenizer=tokenizer,
        task=kind,
        features=features,
        lengths=lengths(features),
        budget=asked,
        score=score or recipe.score,
        top=top,
        training=training,
        work=Path(),
        protect=ids,
        min_tokens=max([2, *(_specials(f, ids) for f in features)]) if ids else 2,
    )
    check_reach(job)
    started = {"auto_weight": auto_weight, "weights": fingerprint(student)}
    with _place(out) as folder, workplace(folder, resume=resume) as work:
        settle(work, settings_of(job) | started | _chosen(glue, schedule))
        job.work = work / "stages"
        dense = _dense_logits(job, tests)
        if auto_weight:
            job.top = _search_weight(job, resume=resume)
        outcome = run(job, resume=resume)
        attach(student, outcome.plan)
        pruned = logits_of(student, tests, Collate(tokenizer), "evaluating pruned")
        detach(student)
        report = as_reported(prune_report(job, outcome, held_out, dense, pruned, limit), glue)
        report["provenance"]["settings"] |= _chosen(glue, schedule)
        plan = replace(outcome.plan, provenance=report["provenance"])
        bundle = Bundle(student, tokenizer, plan, report)
        publish(work, bundle)
    return bundle


def evaluate(
    bundle: str | Path | Bundle,
    data: Data | Any,
    *,
    split: str | None = None,
) -> dict[str, Any]:
    """Metrics of a bundle, or of any fine-tuned model directory, on labelled data."""
    own = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
    data = _data(data)
    task = own.report.get("task", "regress" if own.model.config.num_labels == 1 else "classify")
    (kind, _), glue = _task(task), glue_of(own.report)
    chosen = load_labelled(
        data.source,
        task=task,
        glue=glue,
        columns=data.columns,
        split=split,
        label_names=class_names(own.model.config),
    )
    kind.check_head(own.model.config, chosen)
    limit = data.max_length or own.report.get("max_length") or _limit(own.model, data, glue)
    features = _encode(own.model, own.tokenizer, chosen, limit)
    if own.plan is not None:
        attach(own.model, own.plan)
    try:
        logits = logits_of(own.model, features, Collate(own.tokenizer))
    finally:
        detach(own.model)
    report = as_reported(evaluation_report(kind, logits, chosen), glue) | {"max_length": limit}
    if own.plan is not None:
        found = lengths(features)
        done = reduction(sizes_of(own.model), own.plan, found, max_length=limit)
        report |= {"executed": vars(done), "kept_per_layer": own.plan.lengths(round(found.mean))}
    return report


@contextmanager
def _place(out: str | Path | None) -> Iterator[Path]:
    """Where the bundle goes: as told, or somewhere that does not last."""
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="toprune-") as folder:
        yield Path(folder) / "bundle"


def _task(name: str) -> tuple[ModuleType, Glue | None]:
    """What is to be told about a text, and the GLUE task if it is one."""
    glue = find(name)
    if glue is not None:
        return TASKS[glue.kind], glue
    if name not in TASKS:
        raise UserError(
            f"task '{name}' is not known; there are: {', '.join(TASKS)}, "
            f"and of GLUE: {', '.join(GLUE)}"
        )
    return TASKS[name], None


def _chosen(glue: Glue | None, schedule: str | None) -> dict[str, Any]:
    """For the settings of a run."""
    return {} if glue is None else {"glue": glue.name, "schedule": schedule or "short"}


def _data(data: Any) -> Data:
    return data if isinstance(data, Data) else Data(data)


def _sets(
    data: Data, kind: ModuleType, glue: Glue | None, seed: int, names: list[str] | None = None
) -> tuple[Examples, Examples]:
    """(train, held out): the sets that the source has, or a seeded split of its only one. Held out
    is test before validation, but for GLUE validation, which is what everyone reports."""
    sets = load_sets(
        data.source, task=kind.NAME, glue=glue, columns=data.columns, label_names=names
    )
    train_set = sets.get("train") or next(iter(sets.values()))
    order = ("test", "validation") if glue is None else ("validation", "test")
    others = [sets[name] for name in order if name in sets and sets[name] is not train_set]
    if not others:
        return split_validation(train_set, HELD_OUT, seed)
    return train_set, next((e for e in others if e.labels is not None), others[-1])


def _encode(model: Any, tokenizer: Any, examples: Examples, limit: int) -> list[dict[str, Any]]:
    config = model.config
    return encode(
        tokenizer,
        examples,
        limit,
        positions=max_positions(config),
        segments=has_segments(config),
    )


def _limit(model: Any, data: Data, glue: Glue | None) -> int:
    most = max_positions(model.config)
    return data.max_length or (most if glue is None else min(most, glue.max_length))


def _protected(tokenizer: Any, words: tuple[str, ...]) -> tuple[int, ...]:
    known = tokenizer.get_vocab()
    for word in words:
        if word not in known:
            raise UserError(f"--protect '{word}' is not a token of this tokenizer")
    return tuple(sorted({known[word] for word in words}))


def _specials(feature: dict[str, Any], ids: tuple[int, ...]) -> int:
    """Tokens of an example that must stay: the first one and every protected id."""
    return 1 + sum(token in ids for token in feature["input_ids"][1:])


def _dense_logits(job: Job, tests: Any) -> np.ndarray:
    path = job.work / "dense.npy"
    if path.exists():
        return np.load(path)
    dense = logits_of(job.model, tests, Collate(job.tokenizer), "evaluating dense")
    job.work.mkdir(parents=True, exist_ok=True)
    if processes().is_main_process:
        draft = path.with_name(".dense.npy")
        np.save(draft, dense)
        draft.replace(path)
    return dense


def _search_weight(job: Job, *, resume: bool) -> Top:
    """The paper's search of the distillation weight: three runs on 80 % of train, judged on the
    rest by what they are for, closeness to the dense model's answers."""
    keep = {name: t.clone() for name, t in job.model.state_dict().items()}
    rows = np.random.default_rng(job.training.seed).permutation(len(job.features))
    cut = max(1, len(rows) // 5)
    held = [job.features[i] for i in rows[:cut]]
    rest = [job.features[i] | {"index": j} for j, i in enumerate(rows[cut:])]
    collate = Collate(job.tokenizer)
    dense = torch.from_numpy(logits_of(job.model, held, collate, "weight search: dense"))
    found: list[tuple[float, float]] = []
    for weight in (1e-2, 1e-3, 1e-4):
        trial = replace(
            job,
            features=rest,
            top=replace(job.top, distill_weight=weight),
            work=job.work / f"weight-{weight:g}",
        )
        outcome: Outcome = run(trial, resume=resume)
        attach(job.model, outcome.plan)
        logits = torch.from_numpy(logits_of(job.model, held, collate, f"weight {weight:g}"))
        detach(job.model)
        found.append((float(job.task.distill_loss(logits, dense)), weight))
        job.model.load_state_dict(keep)
    return replace(job.top, distill_weight=min(found)[1])
