"""One cell of a comparison: a method at a budget with a seed. Whoever does it, this process or one
on another machine, leaves the same bundle and says the same row."""

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
from toprune.errors import UserError
from toprune.methods import make_method
from toprune.plan.budget import Budget
from toprune.plan.plan import Score
from toprune.tasks import Task, settings_of
from toprune.training.learner import Training
from toprune.training.stages import Method

RUNS = "runs"
KNOWN = "known"  # what the dense model says, until all is done
OUT_OF_REACH = "is out of reach"  # how `prune` says that a budget cannot be met
WEIGHT = "distill_weight"  # of the ranking distillation: the setting of methods that have it

Row = dict[str, Any]
Key = tuple[str, str, int]  # the method's name, budget, seed


@dataclass(frozen=True)
class Run:
    """One method at one budget with one seed."""

    method: str
    score: Score | None  # None: the method's own
    budget: str
    seed: int
    weight: float | None = None  # of the ranking distillation; None: the method's own

    @property
    def name(self) -> str:
        """The method, as the user writes it."""
        scored = self.method if self.score is None else f"{self.method}:{self.score}"
        return scored if self.weight is None else f"{scored}@{self.weight:.12g}"

    @property
    def key(self) -> Key:
        return self.name, self.budget, self.seed

    @property
    def folder(self) -> str:
        return f"{RUNS}/{self.name.replace(':', '-')}-{self.budget}-s{self.seed}"

    def row(self) -> Row:
        told = asdict(self) | {"name": self.name}
        return told if self.weight is not None else {k: v for k, v in told.items() if k != "weight"}

    def chosen(self) -> str | Method:
        return self.method if self.weight is None else make_method(self.method, self.settings)

    @property
    def settings(self) -> dict[str, float]:
        """That are not the method's own."""
        return {} if self.weight is None else {WEIGHT: self.weight}


@dataclass(frozen=True)
class Subject:
    """What all runs of a comparison have in common. Methods, budgets and seeds are not of it: more
    may join."""

    model: str | Path
    data: Data
    task: str | Task = "classify"
    training: Training = field(default_factory=Training)  # for all methods alike, but for its seed
    protect_first: bool | None = None

    def settings(self) -> dict[str, Any]:
        settings = {
            "model": _whereabouts(self.model),
            "task": self.task if isinstance(self.task, str) else self.task.NAME,
            "task_settings": {} if isinstance(self.task, str) else settings_of(self.task),
            "data": asdict(self.data.columns)
            | {
                "source": _whereabouts(self.data.source),
                "max_length": self.data.max_length,
                "skip_bad_rows": self.data.skip_bad_rows,
            },
            "training": {k: v for k, v in self.training.settings().items() if k != "seed"},
            "protect_first": self.protect_first,
        }
        return json.loads(json.dumps(settings))


def _whereabouts(source: Any) -> str | None:
    """A path from wherever one is; a hub's name; of rows in memory, a hash of what they say."""
    if source is None:
        return None
    if isinstance(source, str | Path):
        return str(Path(source).resolve()) if Path(source).exists() else str(source)
    said = json.dumps(source, sort_keys=True, default=lambda thing: type(thing).__name__)
    return hashlib.sha256(said.encode()).hexdigest()


@dataclass(frozen=True)
class Cell:
    """A run, with all that is needed to do it elsewhere."""

    place: Path  # of the comparison
    subject: Subject
    run: Run


# -- which -----------------------------------------------------------------------------------------


def planned(methods: Sequence[str], budgets: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """Every run once, budget by budget; what cannot be is refused before any work."""
    if not (methods and budgets and seeds):
        raise UserError("a comparison needs one method, one budget and one seed at least")
    chosen = dict.fromkeys(chosen_method(name) for name in methods)
    for budget in budgets:
        Budget.parse(budget)
    grid = product(dict.fromkeys(budgets), chosen, dict.fromkeys(seeds))
    return [Run(*named[:2], budget, seed, named[2]) for budget, named, seed in grid]


def chosen_method(name: str) -> tuple[str, Score | None, float | None]:
    """A method's name, and what follows it: `top:received` ranks by that score, `top@0.01` has that
    weight of the ranking distillation."""
    rest, at, number = name.partition("@")
    method, colon, asked = rest.partition(":")
    scores: dict[str, Score] = {score: score for score in make_method(method).SCORES}
    if colon and asked not in scores:
        raise UserError(f"the method {method} ranks tokens by {' or '.join(scores)}: {name!r}")
    return method, scores.get(asked), _weight(method, number) if at else None


def _weight(method: str, number: str) -> float:
    if not has_weight(method):
        raise UserError(f"the method {method} distils no ranking: leave out @{number}")
    try:
        weight = float(number)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise UserError(f"{method}@{number}: a weight is a number from 0 on, as in {method}@0.01")
    return weight


def has_weight(method: str) -> bool:
    made: Any = make_method(method)
    return WEIGHT in {one.name for one in fields(made)}


# -- one -------------------------------------------------------------------------------------------


def do(cell: Cell) -> Row:
    """Prune, or go on where a process was stopped; bad input is a row with an error."""
    run, subject, out = cell.run, cell.subject, cell.place / cell.run.folder
    is_resumed = out.with_name(f"{out.name}.partial").exists()
    started = time.monotonic()
    try:
        bundle = prune(
            subject.model,
            subject.data,
            run.budget,
            task=subject.task,
            protect_first=subject.protect_first,
            out=out,
            method=run.chosen(),
            score=run.score,
            training=replace(subject.training, seed=run.seed),
            known=cell.place / KNOWN / f"seed-{run.seed}",
            resume=True,
        )
    except UserError as error:
        return run.row() | {"error": str(error)}
    # Of a resumed one nobody knows how long it took in all.
    minutes = None if is_resumed else (time.monotonic() - started) / 60
    return _row(run, bundle.report) | {"minutes": minutes}


def there(cell: Cell, old: Row) -> Row | None:
    """The row of a run that need not be done again; `old` is what was said of it."""
    run, folder = cell.run, cell.place / cell.run.folder
    if not folder.exists():
        return old if OUT_OF_REACH in old.get("error", "") else None
    report = read_report(folder)
    told = report.get("provenance", {}).get("settings", {})
    asked = {"method": run.method, "budget": run.budget, "score": run.score or told.get("score")}
    is_same = asked == {key: told.get(key) for key in asked}
    is_same = is_same and run.settings.items() <= told.get("method_settings", {}).items()
    if not is_same or told["training"]["seed"] != run.seed:
        raise UserError(f"{folder} is of another run; move it away")
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
    kept = (PRESET_KEY, "dense", "pruned", "difference")
    return row | {key: report[key] for key in kept if key in report}
