"""Run a table or a figure of the ToP paper, and put its figures beside ours."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from toprune.errors import UserError
from toprune.report.environment import environment
from toprune.reproduce import paper as printed
from toprune.reproduce.case import Case, Options, describe
from toprune.reproduce.facts import dataset, settings_rows
from toprune.reproduce.grid import run_rows
from toprune.reproduce.latency import padded_latency, predictor_cost
from toprune.reproduce.paper import ABSENT, published
from toprune.reproduce.probe import band_chart, bands, case_study
from toprune.reproduce.result import (
    COUNTED,
    EMPTY,
    Result,
    counting_note,
    done,
    kept_chart,
    kept_table,
    number,
    score_chart,
    score_table,
    sparsity_chart,
    with_interval,
)
from toprune.reproduce.targets import FEW_SPARSITIES, Row, Shape, Target, choose_rows, find_target
from toprune.training.settings import OPTIMISTIC

Content = dict[str, Any]
SETTINGS = ("scale", "recipe", "select", "count", "seed", "model", "masks")  # of a table's rows
TINY = "Random weights and made data: this shows that the target runs, and nothing about the paper."


def reproduce(name: str, task: str | None, options: Options, rows: Sequence[int] = ()) -> Result:
    """Run a target and write its files into `options.out`.

    Call it again to resume it; targets with the same `out` share their runs. Rows that the file of
    the target already has stay in it, if their settings were the same.

    Args:
        name: of the target, like `table2`.
        task: a dataset of the paper; None: the first that the target is about.
        options: how it is run.
        rows: numbers of a table's rows; none: all rows.
    """
    target = find_target(name)
    paper = published(task or target.tasks[0])
    if paper.name not in target.tasks:
        raise UserError(
            f"{target.name} is not about {paper.title}; it has: {', '.join(target.tasks)}"
        )
    chosen = choose_rows(target.rows(paper, options.count), rows)
    if target.shape == "sparsities" and options.scale == "tiny":
        chosen = [one for one in chosen if one.budget in FEW_SPARSITIES]
    case = Case(paper, options)
    content: Content = {
        "target": target.name,
        "title": target.title,
        "task": paper.name,
        "dataset": paper.title,
        "metric": paper.metric,
        "scale": options.scale,
        "recipe": options.recipe,
        "select": options.select,
        "count": options.count,
        "seed": case.seed,
        "model": None if options.model is None else describe(options.model),
        "masks": options.masks,
    }
    result = _MAKERS[target.shape](case, target, chosen, content)
    result.content["environment"] = environment()
    if chosen and (served := case.paper.content.get("lengths_of")):
        result.notes.append(f"Budgets and counts are for the lengths of the texts of {served}.")
    if options.scale == "tiny":
        result.notes.append(TINY)
    if options.select == "best-dev" and chosen:
        result.notes.append(OPTIMISTIC)
    shown = {"heading": result.title, "table": result.table, "names": result.names}
    result.content.update(shown, notes=result.notes)
    result.write(options.out)
    return result


def _with_earlier(
    case: Case, target: Target, rows: Sequence[Row], content: Content
) -> list[Content]:
    """The results of these rows, and of others that an earlier call left in the same file.

    An earlier row brings its environment, because it may be of another machine or commit.
    """
    results = run_rows(case, rows)
    path = case.options.out / f"{target.name}-{case.paper.name}.json"
    earlier: Content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if earlier and all(earlier.get(key, content[key]) == content[key] for key in SETTINGS):
        asked = {row.number for row in rows}
        origin = {"environment": earlier["environment"]}
        results += [origin | row for row in earlier["rows"] if row["row"] not in asked]
    return sorted(results, key=lambda row: row["row"])


def _scores(case: Case, target: Target, rows: Sequence[Row], content: Content) -> Result:
    """Tables 2 to 5."""
    results = _with_earlier(case, target, rows, content)
    content["rows"] = results
    notes = [_about_scores(case, results), counting_note(case.options.count)]
    notes += _best_thresholds(results)
    notes += [f"Row {row['row']}: {row['note']}." for row in results if row["note"]]
    title = f"{target.name}, {case.paper.title}"
    return Result(content, score_table(results), 2, notes, score_chart(results, title))


def _about_scores(case: Case, results: Sequence[dict[str, Any]]) -> str:
    found = done(results)
    if not found:
        return "No run succeeded."
    ours = found[0]["ours"]
    models = ", ".join(dict.fromkeys(row["ours"]["model"] for row in found))
    return (
        f"Scores are {case.paper.metric} in the paper and {ours['metric']} here, in points; ours "
        f"on {ours['examples']} examples, in parentheses the 95 % interval of the difference to "
        f"dense. Models: {models}. Inputs are padded to {ours['max_length']} tokens where a count "
        "is."
    )


def _best_thresholds(results: Sequence[dict[str, Any]]) -> list[str]:
    """A note where questions may have no answer: each model's score with its best threshold."""
    best = {
        row["name"]: row["ours"]["metrics"]["best_f1"]
        for row in done(results)
        if "best_f1" in row["ours"].get("metrics", {})  # files of before have one metric
    }
    if not best:
        return []
    scores = ", ".join(
        f"{name} {score:.1f} (dense {dense:.1f})" for name, (dense, score) in best.items()
    )
    return [
        "A threshold decides that there is no answer; it is chosen on training texts. With the one "
        f"that is best on these examples, as SQuAD's official script prints it: {scores}."
    ]


def _sparsities(case: Case, target: Target, rows: Sequence[Row], content: Content) -> Result:
    """Figure 4."""
    results = _with_earlier(case, target, rows, content)
    content["rows"] = results
    header = ["run", "FLOPs sparsity", "dense", "score", *COUNTED.values()]
    table = [header]
    for row in results:
        ours = row["ours"]
        if "error" in ours:
            table.append([row["name"], row["budget"], f"none: {ours['error']}", *[EMPTY] * 5])
            continue
        counts = [number(ours["reductions"][key], ".2f", "x") for key in COUNTED]
        dense = number(ours["dense"]["value"])
        table.append([row["name"], row["budget"], dense, with_interval(ours), *counts])
    notes = [
        _about_scores(case, results),
        f"The paper's curves as numbers: {ABSENT}; its points for ToP are in table 2 or 3.",
    ]
    title = f"figure4, {case.paper.title}"
    return Result(content, table, 2, notes, sparsity_chart(results, title))


def _kept(case: Case, target: Target, rows: Sequence[Row], content: Content) -> Result:
    """Figure 5."""
    results = _with_earlier(case, target, rows, content)
    content["rows"] = results
    notes = [
        "Tokens that enter each layer, for a text of mean length.",
        f"The paper's curves as numbers: {ABSENT}.",
        counting_note(case.options.count),
    ]
    svg = kept_chart(results, f"figure5, {case.paper.title}")
    return Result(content, kept_table(results), 1, notes, svg)


def _latency(case: Case, target: Target, rows: Sequence[Row], content: Content) -> Result:
    """Table 6."""
    (row,) = run_rows(case, rows)
    ours = row["ours"]
    if "error" in ours:
        raise UserError(ours["error"])
    times = padded_latency(case, Path(ours["bundle"]))
    faster = case.paper.figure("latency", "faster")
    milliseconds = case.paper.figure("latency", "milliseconds")
    content |= {"rows": [row], "latency": times}
    content["paper"] = {"faster": faster, "milliseconds": milliseconds}
    header = ["inputs", "tokens", "paper: faster than padded", "paper: ms"]
    header += ["ours: faster than padded", "ours: faster than unpadded", "ours: ms", "score"]
    table = [header]
    for i, timed in enumerate(times["rows"]):
        first = i == 0  # the paper's figure is for texts of the data
        table.append(
            [
                timed["name"],
                number(timed["length"]),
                number(faster if first else None, ".1f", "x"),
                number(milliseconds if first else None),
                *(_ratio(timed[part]) for part in ("padded", "unpadded")),
                number(timed["milliseconds"]["pruned fp32"], ".2f"),
                number(ours["score"]["value"]) if first else EMPTY,
            ]
        )
    counts = ", ".join(f"{ours['reductions'][k]:.2f}x {name}" for k, name in COUNTED.items())
    notes = [
        f"One text a call, {times['threads']} thread here; the paper: 8 cores of a Xeon. Padded "
        f"inputs have {times['max_length']} tokens.",
        f"The learned plan: {counts}; dense scores {ours['dense']['value']:.1f}.",
        f"GPU: the paper prints 1.2x to 1.24x at batch 1. An empty cell of the paper: {ABSENT}.",
    ]
    return Result(content, table, 1, notes)


def _ratio(one: dict[str, float]) -> str:
    return f"{one['value']:.2f}x ({one['low']:.2f} to {one['high']:.2f})"


def _predictors(case: Case, target: Target, rows: Sequence[Row], content: Content) -> Result:
    """Table 1."""
    ours, paper = predictor_cost(case), printed.predictors()
    content |= {"paper": paper, "ours": ours}
    cpu = ours["cpu"]
    table = [
        ["cost of the networks", "paper", "ours"],
        ["more FLOPs", number(paper["flops"], ".1f", " %"), number(ours["flops"], ".1f", " %")],
        [
            "more time on a CPU",
            number(paper["cpu"], ".0f", " %"),
            f"{cpu['value']:.0f} % ({cpu['low']:.0f} to {cpu['high']:.0f})",
        ],
        ["more time on a GPU", number(paper["gpu"], ".0f", " %"), EMPTY],
    ]
    notes = [
        f"Transkimmer's networks before every layer but the last, every token kept, against the "
        f"same model without them: {ours['layers']} layers, {ours['width']} wide, {ours['length']} "
        f"tokens, executed FLOPs, {ours['threads']} thread.",
        "toprune's ONNX files; a GPU is not timed here.",
    ]
    return Result(content, table, 1, notes)


def _data(case: Case, target: Target, rows: Sequence[Row], content: Content) -> Result:
    """Table 7."""
    ours, paper = dataset(case), case.paper
    content |= {"paper": {"mean": paper.mean_length, "max": paper.max_length}, "ours": ours}
    table = [["", "paper", *(f"ours: {name}" for name in ours["sets"])]]
    for name, key, form, value in (
        ("texts", "texts", "d", None),
        ("mean tokens", "mean", ".1f", paper.mean_length),
        ("mean tokens after the cut", "mean_cut", ".1f", None),
        ("longest text", "longest", "d", None),
    ):
        cells = (number(part[key], form) for part in ours["sets"].values())
        table.append([name, number(value), *cells])
    table.append(
        ["padded to", str(paper.max_length), *[str(ours["max_length"])] * len(ours["sets"])]
    )
    return Result(content, table, 1, [f"An empty cell of the paper: {ABSENT}."])


def _settings(case: Case, target: Target, rows: Sequence[Row], content: Content) -> Result:
    """Table 8."""
    found = settings_rows(case)
    content["settings"] = found
    names = list(dict.fromkeys(name for column in found.values() for name in column))
    scale = case.options.scale
    table = [["setting", "paper", "authors' code", f"here, scale {scale}"]]
    for name in names:
        table.append([name, *(_setting(column.get(name)) for column in found.values())])
    notes = [
        "Rates and weights are searched on a fifth of train at the scale paper, and not below it.",
        "Bins, relevant tokens and padded lengths are from the authors' code.",
    ]
    return Result(content, table, 1, notes)


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{one:g}" for one in value)
    return EMPTY if value is None else f"{value:g}"


def _bands(case: Case, target: Target, rows: Sequence[Row], content: Content) -> Result:
    """Figure 1."""
    found = bands(case)
    content["rows"] = found
    table = [["layer", "tokens of", "5 %", "median", "95 %"]]
    for row in found:
        cells = (f"{row[key]:.2g}" for key in ("q05", "q50", "q95"))
        table.append([str(row["layer"]), row["band"], *cells])
    notes = [
        "The attention that a token receives (mean over heads and live queries) in the dense "
        "model, for the tokens of each text that rank there; the first token is not ranked.",
        f"The paper's figure as numbers: {ABSENT}.",
    ]
    svg = band_chart(found, f"figure1, {case.paper.title}")
    return Result(content, table, 2, notes, svg)


def _case(case: Case, target: Target, rows: Sequence[Row], content: Content) -> Result:
    """Table 9."""
    results = run_rows(case, rows)
    content["rows"] = results
    bundles = {row["name"]: Path(row["ours"]["bundle"]) for row in done(results)}
    study = case_study(case, bundles)
    content["case"] = study
    table = [["model", "rank in layer 2", "rank in the last layer"]]
    for name, found in study["ranks"].items():
        cells = (", ".join(map(str, found[part])) for part in ("early", "last"))
        table.append([name, *cells])
    notes = [
        f"Question: {study['question']} Answer: {study['expected']} Context: ... "
        f"{study['context']} ... Ranks of the answer's tokens are among {study['among']}; 1 is the "
        "best.",
        f"The paper's own question and its ranks: {ABSENT}.",
        counting_note(case.options.count),
    ]
    for row in done(results):
        counts = ", ".join(
            f"{row['ours']['reductions'][key]:.2f}x {name}" for key, name in COUNTED.items()
        )
        notes.append(f"{row['name']}: {row['ours']['score']['value']:.1f}, {counts}.")
    return Result(content, table, 1, notes)


Maker = Callable[[Case, Target, Sequence[Row], Content], Result]
_MAKERS: dict[Shape, Maker] = {
    "scores": _scores,
    "sparsities": _sparsities,
    "kept": _kept,
    "latency": _latency,
    "predictors": _predictors,
    "data": _data,
    "settings": _settings,
    "bands": _bands,
    "case": _case,
}
