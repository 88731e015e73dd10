"""Runs of a target: comparisons in a work folder, which all targets share and any can continue.

A run that two targets need (ToP at the high sparsity is a row of table 2, table 5 and figure 5) is
done once. What a comparison is, and how it resumes or runs on Ray, is in `compare/`.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toprune.api import Data
from toprune.compare.comparison import Comparison, finish, metric_of
from toprune.compare.runs import Row as Result
from toprune.compare.runs import Run, Subject, parse_method
from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.reproduce import paper as printed
from toprune.reproduce.case import Case, describe
from toprune.reproduce.paper import Kind
from toprune.reproduce.sample import PLAIN, as_rows, columns_of
from toprune.reproduce.settings import method_settings, prune_training, rival_training
from toprune.reproduce.targets import TOP, Row
from toprune.training.distributed import use_device
from toprune.training.settings import Training

COUNTS = ("paper_padded", "authors_padded", "padded", "unpadded")  # of a `Reduction`


def run_rows(case: Case, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Do the runs of all rows; returns each with the paper's figures and ours.

    A row that its model cannot do has an `error`.
    """
    use_device(case.options.device)  # refuses one that is not here
    runs: dict[Path, list[Run]] = {}
    subjects: dict[Path, Subject] = {}
    places: list[tuple[Path, Run] | str] = []
    for row in rows:
        try:
            folder, subject = _subject(case, row)
        except UserError as error:
            places.append(str(error))
            continue
        method, score, weight = parse_method(row.method)
        run = Run(method, score, row.budget, case.seed, weight, row.changes)
        runs.setdefault(folder, []).append(run)
        subjects[folder] = subject
        places.append((folder, run))
    if not runs:
        raise UserError(str(places[0]))
    comparisons = {
        folder: Comparison(folder, subjects[folder], runs[folder], f"{case.paper.title}, ")
        for folder in runs
    }
    finish(list(comparisons.values()), case.options.engine, case.options.say)
    results: list[dict[str, Any]] = []
    for row, place in zip(rows, places, strict=True):
        if isinstance(place, str):
            results.append(_about(row) | {"ours": {"error": place}})
        else:
            folder, run = place
            results.append(_result(case, row, comparisons[folder].rows[run.key], folder))
    return results


def _subject(case: Case, row: Row) -> tuple[Path, Subject]:
    """The folder of the comparison that a row belongs to, and what its runs share."""
    options, is_top = case.options, row.method == TOP
    dense = case.dense(row.model)
    lr, weight = _searched(case, row.model, dense) if is_top else (None, None)
    training = _training(case, lr)
    subject = Subject(
        dense,
        case.data,
        case.task,
        training if is_top else rival_training(training),
        device=options.device,
        count=row.count,
        methods=_methods(case, row.model, weight),
    )
    kind = "top" if is_top else "others"
    return case.work / f"{case.paper.name}-{row.model}-{row.count}-{kind}", subject


def _training(case: Case, lr: float | None) -> Training:
    options = case.options
    return prune_training(
        options.scale,
        case.paper,
        texts=len(case.sets["train"]),
        recipe=options.recipe,
        seed=case.seed,
        select=options.select,
        lr=lr,
    )


def _methods(case: Case, kind: Kind, weight: float | None) -> dict[str, Any]:
    options = case.options
    return method_settings(
        options.scale, case.paper, layers=case.layers(kind), masks=options.masks, weight=weight
    )


def _about(row: Row) -> dict[str, Any]:
    """What was asked for, and what the paper prints."""
    return {
        "row": row.number,
        "name": row.name,
        "method": row.method,
        "changes": dict(row.changes),
        "budget": row.budget,
        "count": row.count,
        "paper": row.paper,
        "note": row.note,
    }


def _result(case: Case, row: Row, result: Result, folder: Path) -> dict[str, Any]:
    """A row with its figures, in points."""
    if "error" in result:
        return _about(row) | {"ours": {"error": result["error"]}}
    metric = metric_of(result)
    ours = {
        "model": describe(case.model(row.model)),
        "metric": metric,
        "examples": result["examples"],
        "max_length": result["max_length"],
        "reductions": {key: result["executed"][key] for key in COUNTS},
        "kept_per_layer": result["kept_per_layer"],
        "bundle": str(folder / result["bundle"]),
        "minutes": result["minutes"],
    }
    for name, part in (("dense", "dense"), ("score", "pruned"), ("difference", "difference")):
        figure = result[part][metric]
        ours[name] = {key: 100 * figure[key] for key in ("value", "low", "high") if key in figure}
    ours["metrics"] = {  # every metric of the task: dense, score
        name: [100 * result[part][name]["value"] for part in ("dense", "pruned")]
        for name in result["pruned"]
    }
    return _about(row) | {"ours": ours}


# -- the search of the paper -----------------------------------------------------------------------


def _searched(case: Case, kind: Kind, dense: Path) -> tuple[float | None, float | None]:
    """The learning rate and the weight of the ranking distillation that do best on a fifth of the
    training texts, after training on the others; nothing is searched below the scale `paper`."""
    if case.options.scale != "paper":
        return None, None
    path = case.work / f"{case.paper.name}-{kind}-search" / "choice.json"
    if not path.exists():
        chosen = _search(case, kind, dense, path.parent)
        write_text(path, json.dumps(chosen, indent=1) + "\n")
    chosen = json.loads(path.read_text(encoding="utf-8"))
    return chosen["lr"], chosen["weight"]


def _search(case: Case, kind: Kind, dense: Path, folder: Path) -> dict[str, Any]:
    grid, paper = printed.settings(), case.paper
    rates = [paper.content["lr"]] if "lr" in paper.content else grid["learning_rates"]
    level = 1 if paper.figure("top", 1, "reduction") is not None else 0
    reduction = paper.figure("top", level, "reduction")
    budget = "50%" if reduction is None else f"{reduction:g}x"
    count = "executed" if reduction is None else case.options.count
    data = _split(case, grid["held_out"])
    runs = [
        Run("top", "received", budget, case.seed, weight) for weight in grid["weights"]
    ]  # a weight of a run stands above that of the subject
    comparisons = {
        rate: Comparison(
            folder / f"lr-{rate:g}",
            Subject(
                dense,
                data,
                case.task if case.preset is None else case.task_name,  # the files are not its own
                replace(_training(case, rate), select="last"),
                device=case.options.device,
                count=count,
                methods=_methods(case, kind, None),
            ),
            runs,
            f"{paper.title}, search, rate {rate:g}, ",
        )
        for rate in rates
    }
    finish(list(comparisons.values()), case.options.engine, case.options.say)
    trials = [
        {"lr": rate, "weight": run.weight, "score": row["pruned"][metric_of(row)]["value"]}
        for rate, comparison in comparisons.items()
        for run in runs
        if "error" not in (row := comparison.rows[run.key])
    ]
    if not trials:
        raise UserError("no run of the search succeeded; see its lines above")
    best = max(trials, key=lambda trial: trial["score"])
    return best | {"trials": trials}


def _split(case: Case, share: float) -> Data:
    """The training set in two parts: most of it to train on, a share to judge by."""
    train = case.sets["train"]
    order = np.random.default_rng(case.seed).permutation(len(train))
    cut = max(1, round(share * len(train)))
    parts = {"train": np.sort(order[cut:]), "test": np.sort(order[:cut])}
    sets = {name: as_rows(train.take(rows), PLAIN) for name, rows in parts.items()}
    return replace(case.data, source=sets, columns=columns_of(train))
