"""The public face: finetune, prune, evaluate. Paths, hub ids or objects; one clear line for bad
input, found before the work begins wherever it can be."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from toprune.attachment import attach, detach
from toprune.batching import in_batches
from toprune.budget import Budget
from toprune.bundle import Bundle, read_report
from toprune.columns import Columns
from toprune.cost import measured_reduction, reduction
from toprune.data import Examples, split_validation
from toprune.encode import Collate, encode, lengths, rows_of, token_ids
from toprune.errors import UserError
from toprune.evaluation import (
    answers_of,
    distance,
    entering,
    load_answers,
    said_to,
    save_answers,
)
from toprune.families import family_named, family_of, has_segments, max_positions, sizes_of
from toprune.fit import Learner, Training, train
from toprune.glue import (
    GLUE,
    Glue,
    Recipe,
    Schedule,
    as_reported,
    find,
    glue_of,
    load_labelled,
    load_sets,
    recipe_of,
)
from toprune.heads import loader
from toprune.images import Images
from toprune.methods import make_method
from toprune.methods.plain import Truncate, cut_for
from toprune.methods.top import Top
from toprune.models import (
    Source,
    config_of,
    fingerprint,
    fit_images,
    load_model,
    load_tokenizer,
)
from toprune.plan import Plan, Score
from toprune.processes import processes, share_of
from toprune.report import evaluation_report, kept_per_layer, prune_report
from toprune.stages import Job, Method, Outcome, check_reach, run, settings_of
from toprune.tasks import TASKS, Task, make_task
from toprune.tasks import settings_of as task_settings
from toprune.tasks.answer import Answer, best_threshold
from toprune.tasks.classify import class_names
from toprune.tasks.embed import BROUGHT
from toprune.tasks.multilabel import Multilabel
from toprune.workplace import check_out, is_done, publish, run_id, settle, workplace

LIMITS = {"answer": 384}  # tokens, where not all that fit are of use
RANKED_ANEW = ("answer",)  # tasks of which an early layer knows too little to rank once
QUERY_STAYS = ("rank", "answer")  # tasks whose first text is what the answer is about
TUNED = 1000  # training questions that choose a threshold
HELD_OUT = 0.1  # share of train that is set aside when there is no validation set
FINETUNE = {"soft_epochs": 0, "hard_epochs": 3, "lr": 5e-5, "label_weight": 1.0}  # of Training


@dataclass(frozen=True)
class Data:
    """Where the examples are and how long they may get."""

    source: Any  # None: the hub's copy of a GLUE task
    columns: Columns = field(default_factory=Columns)
    max_length: int | None = None  # None: the paper's for a GLUE task, else what the model can take
    skip_bad_rows: bool = False  # leave them out and say so, instead of refusing the data


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
    training = training or Training(**FINETUNE | dict(recipe.finetune))
    share_of(training.batch_size)  # or one line, before any work
    kind, glue = _task(task, model)
    if kind.HEAD == "encoder":
        raise UserError(BROUGHT)
    config = config_of(model)
    loader(kind, config)  # or one line that says what can be asked
    data = _data(data, config)
    check_out(Path(out), overwrite=overwrite or resume)
    train_set, held_out = _sets(data, kind, glue, training.seed)
    if train_set.labels is None:
        raise UserError("fine-tuning needs labels; name their column with --label")
    kind = _counted(kind, lambda: kind.num_outputs(train_set))
    torch.manual_seed(training.seed)  # of a new head
    dense = load_model(model, kind, train_set, new_head=True)
    tokenizer = _tokenizer(model, tokenizer)
    limit = _limit(dense, kind, data, glue)
    features, tests = (_encode(dense, tokenizer, kind, e, limit) for e in (train_set, held_out))
    collate = Collate(tokenizer)
    learner = Learner(dense, kind, label_weight=1.0, dropout=training.dropout is not False)
    settings = {
        "finetune": kind.NAME,
        "max_length": limit,
        "task_settings": task_settings(kind),
        "training": training.settings(),
        "examples": len(features),
        "weights": fingerprint(dense),
    } | _chosen(glue, schedule)
    if resume and not overwrite and is_done(Path(out), settings):
        return read_report(Path(out))
    check_out(Path(out), overwrite=overwrite)
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
        said = answers_of(dense, kind, tests, collate)
        kind = _tuned(dense, kind, tokenizer, train_set, limit)
        report = as_reported(evaluation_report(kind, said, rows_of(tests), held_out), glue)
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
        method = make_method(method, recipe.top if method == Top.NAME else None)
    score = _score(method, score, recipe, task if isinstance(task, str) else task.NAME)
    training = training or Training(
        soft_epochs=recipe.epochs * recipe.soft,
        hard_epochs=recipe.epochs * (1 - recipe.soft),
        **recipe.training,
    )
    share_of(training.batch_size)  # or one line, before any work
    asked = Budget.parse(budget)
    kind, glue = _task(task, model)
    config = config_of(model)
    loader(kind, config)  # or one line that says what can be asked
    data = _data(data, config)
    if out is not None:
        check_out(Path(out), overwrite=overwrite or resume)
    train_set, held_out = _sets(data, kind, glue, training.seed, config)
    kind = _counted(kind, lambda: config.num_labels)
    student = load_model(model, kind, train_set)
    kind.check_head(student.config, held_out)
    tokenizer = _tokenizer(model, tokenizer)
    limit = _limit(student, kind, data, glue, _told_length(model, glue))
    features, tests = (_encode(student, tokenizer, kind, e, limit) for e in (train_set, held_out))
    ids, until = _protected(tokenizer, kind, protect, protect_first)
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
    read = tests
    if isinstance(method, Truncate):
        read = _cut(job, train_set, held_out)
    check_reach(job)
    started = {"auto_weight": auto_weight, "weights": fingerprint(student)}
    settings = settings_of(job) | started | _chosen(glue, schedule)
    if out is not None:
        if resume and not overwrite and is_done(Path(out), settings):
            return Bundle.load(out)
        check_out(Path(out), overwrite=overwrite)
    with _place(out) as folder, workplace(folder, resume=resume) as work:
        settle(work, settings)
        job.work = work / "stages"
        if known is not None:
            about = {"weights": started["weights"], "tests": lengths(tests).to_json()}
            job.known = _known(Path(known), job, about)
        dense = _dense_answers(job, tests)
        before = _tuned(student, kind, tokenizer, train_set, limit)
        if held_out.labels is not None:  # what cannot be measured is said now, not hours later
            before.judge(dense, rows_of(tests), held_out)
        if auto_weight:
            job.method = _search_weight(job, resume=resume)
        outcome = run(job, resume=resume)
        attach(student, outcome.plan)
        pruned = answers_of(student, kind, read, Collate(tokenizer), "evaluating pruned")
        tuned = _tuned(student, kind, tokenizer, train_set, job.cut or limit)
        detach(student)
        said, counts = (dense, pruned), _counts(student, outcome.plan, read, tokenizer)
        report = prune_report(
            job, (before, tuned), outcome, held_out, rows_of(tests), said, limit, counts
        )
        report = as_reported(report, glue)
        report["provenance"]["settings"] |= _chosen(glue, schedule)
        report["provenance"]["run"] = run_id(settings)
        report["inputs"] = _inputs(model, data, protect)
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
    data = _data(data, own.model.config)
    kind, glue = own.task, glue_of(own.report)
    chosen = load_labelled(split=split, **_reading(data, kind, glue, own.model.config))
    kind.check_head(own.model.config, chosen)
    limit = _limit(own.model, kind, data, glue, own.report.get("max_length"))
    features = _encode(own.model, own.tokenizer, kind, chosen, limit)
    if own.plan is not None:
        attach(own.model, own.plan)
    try:
        said = answers_of(own.model, kind, features, Collate(own.tokenizer))
    finally:
        detach(own.model)
    report = evaluation_report(kind, said, rows_of(features), chosen)
    report = as_reported(report, glue) | {"max_length": limit}
    if own.plan is not None:
        found = lengths(features, own.plan.protect, own.plan.protect_until)
        counts = _counts(own.model, own.plan, features, own.tokenizer)
        sizes = sizes_of(own.model)
        if counts is None:
            done = reduction(sizes, own.plan, found, max_length=limit)
        else:
            done = measured_reduction(sizes, own.plan, counts, max_length=limit)
        kept = kept_per_layer(own.plan, found, counts)
        report |= {"executed": vars(done), "kept_per_layer": kept}
    return report


@contextmanager
def _place(out: str | Path | None) -> Iterator[Path]:
    """Where the bundle goes: as told, or somewhere that does not last."""
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="toprune-") as folder:
        yield Path(folder) / "bundle"


def _task(task: str | Task, model: Source) -> tuple[Task, Glue | None]:
    """What is to be told about a text, and the GLUE task if it is one. By its name alone it has the
    settings that the model's own directory says."""
    if not isinstance(task, str):
        return task, None
    glue = find(task)
    if glue is not None:
        return make_task(glue.kind), glue
    if task not in TASKS:
        raise UserError(
            f"task '{task}' is not known; there are: {', '.join(TASKS)}, "
            f"and of GLUE: {', '.join(GLUE)}"
        )
    return settle_task(task, model, {}), None


def settle_task(name: str, model: Source, settings: Mapping[str, Any]) -> Task:
    """The task with these settings, and for the others those that the model's directory says."""
    if find(name) is not None:
        raise UserError(
            f"{name} is read as GLUE has it, without settings; leave out: {', '.join(settings)}"
        )
    return make_task(name, _told(name, model) | dict(settings))


def _told(task: str, model: Source) -> dict[str, Any]:
    """Settings that a directory gives for a task: ours, or those of sentence-transformers."""
    if not isinstance(model, str | Path) or not Path(model).is_dir():
        return {}
    report = read_report(Path(model))
    return dict(report.get("task_settings", {})) if report.get("task") == task else {}


def _counted(kind: Task, outputs: Callable[[], int]) -> Task:
    """A task that must know how many classes there are."""
    if isinstance(kind, Multilabel) and not kind.classes:
        return replace(kind, classes=outputs())
    return kind


def _chosen(glue: Glue | None, schedule: str | None) -> dict[str, Any]:
    """For the settings of a run."""
    return {} if glue is None else {"glue": glue.name, "schedule": schedule or "short"}


def _data(data: Any, config: Any) -> Data:
    """Of texts or of images, as the model wants them."""
    told = data if isinstance(data, Data) else Data(data)
    return replace(told, columns=replace(told.columns, images=family_named(config).images))


def _inputs(model: Source, data: Data, protect: Sequence[str]) -> dict[str, Any]:
    """Model, data, columns and words as the caller named them; what came as an object has no
    name."""
    columns = {name: getattr(data.columns, name) for name in ("text", "pair", "label")}
    given = {"model": model, "data": data.source} | columns
    named = {name: str(what) for name, what in given.items() if isinstance(what, str | Path)}
    return named | ({"protect": list(protect)} if protect else {})


def _tokenizer(model: Source, given: Any) -> Any:
    """The given one, or that of the model; of images, what prepares them."""
    config = config_of(model)
    if given is None:
        return load_tokenizer(model)
    if not family_named(config).images:
        return given
    images = given if isinstance(given, Images) else Images(given.to_dict(), max_positions(config))
    return fit_images(images, config)


def _reading(data: Data, kind: Task, glue: Glue | None, config: Any) -> dict[str, Any]:
    """How data are read; by the names of the model's classes where a config is given."""
    named = config is not None and kind.HEAD in ("sequence", "tokens")
    return {
        "source": data.source,
        "task": kind.NAME,
        "glue": glue,
        "columns": data.columns,
        "label_names": class_names(config) if named else None,
        "skip_bad_rows": data.skip_bad_rows,
    }


def _sets(
    data: Data, kind: Task, glue: Glue | None, seed: int, config: Any = None
) -> tuple[Examples, Examples]:
    """(train, held out): the sets that the source has, or a seeded split of its only one. Held out
    is test before validation, but for GLUE validation, which is what everyone reports."""
    sets = load_sets(**_reading(data, kind, glue, config))
    train_set = sets.get("train") or next(iter(sets.values()))
    order = ("test", "validation") if glue is None else ("validation", "test")
    others = [sets[name] for name in order if name in sets and sets[name] is not train_set]
    if not others:
        return split_validation(train_set, HELD_OUT, seed, task=kind.NAME)
    return train_set, next((e for e in others if e.labels is not None), others[-1])


def _encode(
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


def _tuned(model: Any, kind: Task, tokenizer: Any, train_set: Examples, limit: int) -> Task:
    """With the threshold for "no answer" that serves this model best on training questions: the
    reported ones must not choose it."""
    if not (isinstance(kind, Answer) and kind.no_answer) or train_set.labels is None:
        return kind
    some = np.random.default_rng(0).permutation(len(train_set))[:TUNED]
    chosen = train_set.take(np.sort(some))
    features = _encode(model, tokenizer, kind, chosen, limit)
    said = answers_of(model, kind, features, Collate(tokenizer), "choosing a threshold")
    return replace(kind, threshold=best_threshold(kind.judge(said, rows_of(features), chosen)))


def _told_length(model: Source, glue: Glue | None) -> int | None:
    """The length that a model was fine-tuned for, as its directory says."""
    if glue is not None or not isinstance(model, str | Path) or not Path(model).is_dir():
        return None
    return read_report(Path(model)).get("max_length")


def _limit(model: Any, task: Task, data: Data, glue: Glue | None, told: int | None = None) -> int:
    """The asked length; else what the model's directory tells, or what is usual for the task, if
    the model can take as much."""
    most = max_positions(model.config)
    if family_of(model).images and data.max_length is not None:
        raise UserError(f"every image has {most} tokens, one for a patch; leave --max-length out")
    usual = LIMITS.get(task.NAME, most) if glue is None else glue.max_length
    return data.max_length or min(most, told or usual)


def _protected(
    tokenizer: Any, task: Task, words: tuple[str, ...], first: bool | None
) -> tuple[tuple[int, ...], int | None]:
    """(ids that stay, the id up to which everything stays)"""
    if isinstance(tokenizer, Images):
        if words or first:
            raise UserError("images have no words to protect; leave --protect out")
        return (), None
    ids = token_ids(tokenizer, words)
    if not (task.NAME in QUERY_STAYS if first is None else first):
        return tuple(sorted(ids)), None
    until = tokenizer.sep_token_id
    if until is None:
        raise UserError(
            "the tokenizer has no separator to tell the first text by; give protect_first=False "
            "(--no-protect-first)"
        )
    return tuple(sorted({*ids, until})), until


def _score(method: Method, asked: Score | None, recipe: Recipe, task: str) -> Score:
    """What tokens are ranked by: as asked, as is right for the task or in the schedule, or the
    method's own."""
    if asked is None and isinstance(method, Top):
        return "probes" if task in RANKED_ANEW else recipe.score
    if asked is None:
        return method.SCORES[0]
    if asked not in method.SCORES:
        raise UserError(
            f"the method {method.NAME} ranks tokens by {' or '.join(method.SCORES)}, not {asked}"
        )
    return asked


def _cut(job: Job, train_set: Examples, held_out: Examples) -> Sequence[dict[str, Any]]:
    """Give the job its short texts; returns the held-out ones as short."""
    if job.task.whole or len(job.features) != len(train_set):
        raise UserError("truncation leaves tokens without an answer; it is for one answer a text")
    job.cut = cut_for(sizes_of(job.model), job.blank(), job.lengths, job.budget)
    job.short, short = (
        _encode(job.model, job.tokenizer, job.task, e, job.cut) for e in (train_set, held_out)
    )
    return short


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
    about |= {name: settings[name] for name in same} | {"seed": job.training.seed}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        settle(folder, about)
    except UserError as error:
        raise UserError(
            f"{folder} is of another model or of other texts; choose another"
        ) from error
    return folder


def _dense_answers(job: Job, tests: Any) -> list[np.ndarray]:
    path = job.words / "dense.npz"
    if path.exists():
        return load_answers(path)
    dense = answers_of(job.model, job.task, tests, Collate(job.tokenizer), "evaluating dense")
    path.parent.mkdir(parents=True, exist_ok=True)
    if processes().is_main_process:
        save_answers(path, dense)
    return dense


def _search_weight(job: Job, *, resume: bool) -> Top:
    """The paper's search of the distillation weight: three runs on 80 % of train, judged on the
    rest by what they are for, closeness to the dense model's answers."""
    if not isinstance(job.method, Top):
        raise UserError(f"{job.method.NAME} distils no ranking, so there is no weight to search")
    keep = {name: t.clone() for name, t in job.model.state_dict().items()}
    rows = np.random.default_rng(job.training.seed).permutation(len(job.features))
    cut = max(1, len(rows) // 5)
    held = [job.features[i] for i in rows[:cut]]
    rest = [job.features[i] | {"index": j} for j, i in enumerate(rows[cut:])]
    batches = [batch for _, batch in in_batches(held, Collate(job.tokenizer))]
    dense = said_to(job.model, job.task, batches)
    found: list[tuple[float, float]] = []
    for weight in (1e-2, 1e-3, 1e-4):
        trial = replace(
            job,
            features=rest,
            method=replace(job.method, distill_weight=weight),
            work=job.work / f"weight-{weight:g}",
            known=None,  # it is of all texts
        )
        outcome: Outcome = run(trial, resume=resume)
        said = said_to(job.model, job.task, batches, outcome.plan)
        found.append((distance(job.task, said, dense, batches), weight))
        job.model.load_state_dict(keep)
    return replace(job.method, distill_weight=min(found)[1])
