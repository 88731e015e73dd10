"""One run of a comparison: a method at a budget with a seed. It writes the same bundle and returns
the same row, whether this process does it or one on another machine."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from toprune.api import Data, prune
from toprune.bundle.bundle import read_report
from toprune.data.presets import PRESET_KEY
from toprune.errors import OutOfReach, UserError
from toprune.io.devices import Device
from toprune.methods import make_method
from toprune.plan.budget import Budget, Count
from toprune.plan.plan import Score
from toprune.tasks import Task, settings_of
from toprune.training.job import Method
from toprune.training.settings import Training

RUNS = "runs"
TEACHER_CACHE = "known"  # outputs of the dense model, shared by the runs until all are done
OUT_OF_REACH = "out_of_reach"  # key of a row whose budget cannot be met: it is not tried again
WEIGHT = "distill_weight"  # the setting for the weight of the ranking distillation

Row = dict[str, Any]
Key = tuple[str, str, int]  # (name, budget, seed)


@dataclass(frozen=True)
class Run:
    """One method at one budget with one seed."""

    method: str
    score: Score | None  # None: the default of the method
    budget: str
    seed: int
    weight: float | None = None  # of the ranking distillation; None: the default of the method
    changes: tuple[tuple[str, Any], ...] = ()  # further settings of the method, for an ablation

    @property
    def name(self) -> str:
        """The method, as the user writes it, with what differs from it in an ablation."""
        scored = self.method if self.score is None else f"{self.method}:{self.score}"
        weighted = scored if self.weight is None else f"{scored}@{self.weight:.12g}"
        return weighted + "".join(f"+{key}={value}" for key, value in self.changes)

    @property
    def key(self) -> Key:
        return self.name, self.budget, self.seed

    @property
    def folder(self) -> str:
        return f"{RUNS}/{self.name}-{self.budget}-s{self.seed}".replace(":", "-")

    def row(self) -> Row:
        """The columns that identify the run in compare.json."""
        row = asdict(self) | {"name": self.name}
        unset = {"weight": self.weight is None, "changes": not self.changes}
        return {key: value for key, value in row.items() if not unset.get(key)}

    def configured_method(
        self, *, full_search: bool = False, shared: Mapping[str, Any] | None = None
    ) -> str | Method:
        """The method with its settings; a name alone where all of them are its defaults.

        Args:
            full_search: as new comparisons run it.
            shared: settings of the method in all runs of the comparison.
        """
        settings = dict(shared or {}) | self.settings
        method = make_method(self.method, settings)
        wanted = method.for_comparison() if full_search else method
        return self.method if not settings and wanted == method else wanted

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that differ from those of the other runs of the method."""
        return ({} if self.weight is None else {WEIGHT: self.weight}) | dict(self.changes)


@dataclass(frozen=True)
class Subject:
    """What all runs of a comparison share. Methods, budgets and seeds do not belong to it, because
    more of them may join later."""

    model: str | Path
    data: Data
    task: str | Task = "classify"
    training: Training = field(default_factory=Training)  # for all methods; runs set the seed
    protect_first: bool | None = None
    full_search: bool = True  # of every method (`Method.for_comparison`); older comparisons: not
    device: Device = "auto"  # a run may go on elsewhere, so the settings do not have it
    count: Count = "executed"  # how all budgets count FLOPs
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings, by method

    def budget(self, asked: str) -> str | Budget:
        """A budget of the comparison, with its count."""
        return asked if self.count == "executed" else Budget(asked, count=self.count)

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "model": _identify(self.model),
            "task": self.task if isinstance(self.task, str) else self.task.NAME,
            "task_settings": {} if isinstance(self.task, str) else settings_of(self.task),
            "data": asdict(self.data.columns)
            | {
                "source": _identify(self.data.source),
                "max_length": self.data.max_length,
                "skip_bad_rows": self.data.skip_bad_rows,
            },
            "training": {k: v for k, v in self.training.settings().items() if k != "seed"},
            "protect_first": self.protect_first,
        }
        if self.full_search:
            settings["full_search"] = True
        if self.count != "executed":
            settings["count"] = self.count
        if self.methods:
            settings["methods"] = {name: dict(shared) for name, shared in self.methods.items()}
        if self.data.unlabelled:
            settings["data"]["unlabelled"] = [_identify(source) for source in self.data.unlabelled]
        if self.data.lengths_of is not None:
            settings["data"]["lengths_of"] = _identify(self.data.lengths_of)
        return json.loads(json.dumps(settings))


def _identify(source: Any) -> str | None:
    """The absolute path of a file, the name of a hub dataset, or a hash of rows in memory."""
    if source is None:
        return None
    if isinstance(source, str | Path):
        return str(Path(source).resolve()) if Path(source).exists() else str(source)
    text = json.dumps(source, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class WorkItem:
    """A run with everything that another process needs to do it."""

    directory: Path  # of the comparison
    subject: Subject
    run: Run


# -- which runs there are --------------------------------------------------------------------------


def plan_runs(methods: Sequence[str], budgets: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """List every run once, budget by budget. Raises UserError for bad names before any work."""
    if not (methods and budgets and seeds):
        raise UserError("a comparison needs at least one method, one budget and one seed")
    parsed = dict.fromkeys(parse_method(name) for name in methods)
    for budget in budgets:
        Budget.parse(budget)
    grid = product(dict.fromkeys(budgets), parsed, dict.fromkeys(seeds))
    return [
        Run(method, score, budget, seed, weight) for budget, (method, score, weight), seed in grid
    ]


def parse_method(name: str) -> tuple[str, Score | None, float | None]:
    """Split a name into method, score and weight: `top:received` ranks by attention received,
    `top@0.01` sets the weight of the ranking distillation."""
    scored, at, number = name.partition("@")
    method, colon, score = scored.partition(":")
    scores: dict[str, Score] = {score: score for score in make_method(method).SCORES}
    if colon and score not in scores:
        raise UserError(f"the method {method} ranks tokens by {' or '.join(scores)}: {name!r}")
    return method, scores.get(score), _parse_weight(method, number) if at else None


def _parse_weight(method: str, number: str) -> float:
    if not has_weight(method):
        raise UserError(f"the method {method} distils no ranking; leave out @{number}")
    try:
        weight = float(number)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise UserError(
            f"{method}@{number}: the weight must be a number of at least 0, as in {method}@0.01"
        )
    return weight


def has_weight(method: str) -> bool:
    """Whether the method has a ranking distillation, and so a weight for it."""
    settings: Any = make_method(method)
    return WEIGHT in {setting.name for setting in fields(settings)}


# -- one run ---------------------------------------------------------------------------------------


def execute(item: WorkItem) -> Row:
    """Prune, or resume a stopped run. Bad input becomes a row with an error."""
    run, subject, out = item.run, item.subject, item.directory / item.run.folder
    is_resumed = out.with_name(f"{out.name}.partial").exists()
    started = time.monotonic()
    try:
        bundle = prune(
            subject.model,
            subject.data,
            subject.budget(run.budget),
            task=subject.task,
            protect_first=subject.protect_first,
            out=out,
            method=run.configured_method(
                full_search=subject.full_search, shared=subject.methods.get(run.method)
            ),
            score=run.score,
            training=replace(subject.training, seed=run.seed),
            known=item.directory / TEACHER_CACHE / f"seed-{run.seed}",
            device=subject.device,
            resume=True,
        )
    except OutOfReach as error:
        return run.row() | {"error": str(error), OUT_OF_REACH: True}
    except UserError as error:
        return run.row() | {"error": str(error)}
    # The total time of a resumed run is not known.
    minutes = None if is_resumed else (time.monotonic() - started) / 60
    return _row(run, bundle.report) | {"minutes": minutes}


def finished_row(item: WorkItem, old: Row) -> Row | None:
    """The row of a run that need not be done again, or None.

    Args:
        old: the row of this run in compare.json; empty if there is none.
    """
    run, folder = item.run, item.directory / item.run.folder
    if not folder.exists():
        return old if OUT_OF_REACH in old else None
    report = read_report(folder)
    stored = report.get("provenance", {}).get("settings", {})
    count = None if item.subject.count == "executed" else item.subject.count
    wanted = {"method": run.method, "budget": run.budget, "score": run.score or stored.get("score")}
    wanted |= {"count": count}
    is_same = wanted == {key: stored.get(key) for key in wanted}
    is_same = is_same and run.settings.items() <= stored.get("method_settings", {}).items()
    if not is_same or stored["training"]["seed"] != run.seed:
        raise UserError(f"{folder} holds the bundle of another run; move it away")
    return _row(run, report) | {k: old[k] for k in ("minutes", "latency") if k in old}


def _row(run: Run, report: Mapping[str, Any]) -> Row:
    row = run.row() | {
        "score": report["provenance"]["settings"]["score"],
        "bundle": run.folder,
        "examples": report["examples"],
        "max_length": report["max_length"],
        "task": report["task"],
        "agreement": report["agreement"],
        "executed": report["budget"]["executed"],
        "kept_per_layer": report["kept_per_layer"],
        "minutes": None,
    }
    if "time" in report:  # a budget in milliseconds
        row["milliseconds"] = report["time"]["measured"]
    kept = (PRESET_KEY, "dense", "pruned", "difference")
    return row | {key: report[key] for key in kept if key in report}
