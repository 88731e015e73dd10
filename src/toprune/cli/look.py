"""Commands that show something: reports, explanations of texts, methods, families, plans."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table

from toprune.cli import options as o
from toprune.cli import parse
from toprune.cli.console import hush, print_result
from toprune.errors import UserError
from toprune.plan import dial
from toprune.plan.dial import Dial
from toprune.plan.plan import Plan
from toprune.report import terminal as tables


def explain(
    bundle: o.Bundle,
    texts: Annotated[
        list[str] | None, typer.Argument(help="One or more texts, questions or queries.")
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            help="Second text of each, like a context or a document. With --data: its column."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help=f"Texts from a file: {o.FORMATS}")] = None,
    split: o.Split = None,
    text: o.TextColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    rows: Annotated[int, typer.Option(min=1, help="Number of rows of --data to read.")] = 10,
    dense: Annotated[
        Path | None,
        typer.Option(
            help="Dense model to compare with (default: the pruned weights with all tokens)."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write an HTML page, with a slider over layers and the scores of tokens."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page.")] = False,
    budget: o.AtBudget = None,
    device: o.Device = "auto",
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Show in which layer each token of a text is dropped, and whether the answer changes.

    Example: **toprune explain small "A dull film with one great scene." --html explain.html**

    Pairs: **toprune explain small "Where is the Louvre?" --pair "The Louvre is in Paris."**

    On a terminal tokens fade by the layer that dropped them; elsewhere the text is printed once for
    every layer that drops tokens.
    """
    hush(debug)
    from toprune.bundle.bundle import read_report
    from toprune.inspection.explain.explain import explain as look
    from toprune.inspection.explain.page import explain_page
    from toprune.inspection.explain.terminal import explain_text

    if html is not None and html.exists() and not overwrite:
        raise UserError(f"{html} exists; choose another --html or add --overwrite")
    if data is None:
        inputs = parse.texts(texts, pair)
    else:
        if texts or len(pair or ()) > 1:
            raise UserError("give texts or --data, not both; with --data, --pair names one column")
        columns = parse.columns(text, next(iter(pair or ()), None), None)
        task = read_report(bundle).get("task", "classify")
        inputs = parse.texts_of(bundle, task, data, columns, split, skip_bad_rows)[:rows]
    explanation = look(bundle, inputs, dense=dense, budget=budget, device=device)
    if html is not None:
        html.write_text(explain_page(explanation), encoding="utf-8")
    shown = explain_text(explanation, Console()) if html is None else f"The page is in {html}."
    print_result(explanation.to_dict(), as_json, shown)


def report(
    bundle: o.Bundle,
    compared: Annotated[
        Path | None,
        typer.Option(help="compare.json of toprune compare, to add its curve over budgets."),
    ] = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Rebuild report.html from report.json: one page that loads nothing else; needs no torch.

    Example: **toprune report small**
    """
    from toprune.report.html.files import write_report_page

    page = write_report_page(bundle, compared)
    print_result({"out": str(page)}, as_json, f"The page is in {page}.")


def scores(
    bundle: o.Bundle,
    data: o.Source,
    split: o.Split = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    rows: Annotated[int, typer.Option(min=1, help="Number of rows to read.")] = 200,
    dense: Annotated[
        Path | None,
        typer.Option(help="Task answer: dense model whose states also rank the tokens of answers."),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Write a chart with a line for each layer.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the chart.")] = False,
    device: o.Device = "auto",
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Show how unequal tokens are: the attention that the best of them receive in each layer.

    Example: **toprune scores small --data test.csv --svg scores.svg**

    For a bundle that answers questions, also the rank of the tokens of right answers at the first
    ranking: **toprune scores small --data dev-v1.1.json --dense dense**
    """
    hush(debug)
    from toprune.bundle.bundle import read_report
    from toprune.data.sets import load_labelled
    from toprune.inspection.scores import answer_ranks, score_chart, score_distributions
    from toprune.tasks import TASKS

    if svg is not None and svg.exists() and not overwrite:
        raise UserError(f"{svg} exists; choose another --svg or add --overwrite")
    name = read_report(bundle).get("task", "classify")
    task = TASKS[name]
    if dense is not None and not task.FINDS_SPANS:
        raise UserError(f"--dense is for question answering, not for the task {name}; leave it out")
    columns = parse.columns(text, pair, label)
    texts = parse.texts_of(bundle, name, data, columns, split, skip_bad_rows)[:rows]
    report = score_distributions(bundle, texts, device=device)
    if task.FINDS_SPANS:
        how: Any = {"columns": columns, "split": split, "skip_bad_rows": skip_bad_rows}
        labelled = load_labelled(data, reads=task.READS, **how)
        labelled = labelled.take(range(min(rows, len(labelled))))
        report["answers"] = answer_ranks(bundle, labelled, dense=dense, device=device)
    if svg is not None:
        svg.write_text(score_chart(report), encoding="utf-8")
    last = "" if svg is None else f"The chart is in {svg}."
    print_result(report, as_json, tables.scores(report), last)


def stress(
    bundle: o.Bundle,
    data: o.Source,
    split: o.Split = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    filler: Annotated[
        Path | None,
        typer.Option(
            help="File with harmless sentences, one per line (default: a dozen in English)."
        ),
    ] = None,
    of_class: Annotated[
        str | None,
        typer.Option(
            "--class", help="Use texts of this class, by their labels or by the dense model."
        ),
    ] = None,
    doses: Annotated[str, typer.Option(help="Amounts of filler, in lengths of the text.")] = "1,3",
    floors: Annotated[
        str,
        typer.Option(
            help="Smallest numbers of kept tokens, each tried in a further plan; 0: none."
        ),
    ] = "16,32,64",
    protect: Annotated[
        list[str] | None, typer.Option(help="A token to protect in a further plan (repeatable).")
    ] = None,
    dense: Annotated[
        Path | None,
        typer.Option(
            help="Dense model to compare with (default: the pruned weights with all tokens)."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of texts.")] = 200,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Test whether harmless filler pushes out the tokens that matter, and what protection costs.

    Example: **toprune stress small --data prompts.csv --class jailbreak --dense dense**

    Filler goes before, after, around and between the sentences of each text, or of the second text
    of a pair. A text is missed if the dense model still recognises it and the pruned one does not.
    """
    hush(debug)
    from toprune.inspection.stress.stress import stress as measure

    report = measure(
        bundle,
        parse.data(data, text, pair, label, None, skip_bad_rows),
        split=split,
        dense=dense,
        filler=filler,
        of_class=of_class,
        doses=parse.numbers("--doses", doses, "1,3"),
        floors=parse.numbers("--floors", floors, "16,32,64"),
        protect=protect or (),
        limit=limit,
        seed=seed,
        device=device,
    )
    print_result(report, as_json, tables.stressed(report))


def supported(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """List the supported architectures, with their tasks and since when they are supported.

    Example: **toprune families**
    """
    hush(debug)
    from toprune.models.families.support import all_support

    report = {"families": [family.to_dict() for family in all_support()]}
    last = "docs/add-a-family.md shows how to add another one."
    print_result(report, as_json, tables.families(report), last)


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show the settings of this method.", autocompletion=o.method_names, metavar="NAME"
        ),
    ] = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """List the methods of prune, or show the settings of one, for **toprune prune --set**.

    Example: **toprune methods top**
    """
    hush(debug)
    from toprune.methods import METHODS, make_method

    if name is None:
        report: dict[str, Any] = {"methods": [_summary(one) for one in METHODS.values()]}
        rows = [(one["name"], one["summary"]) for one in report["methods"]]
        last = "toprune methods NAME shows the settings of one; docs/methods.md helps to choose."
        print_result(report, as_json, _table(("method", "how it finds a plan"), rows), last)
        return
    make_method(name)  # refuses an unknown name
    report = _summary(METHODS[name])
    report["settings"] = [
        {
            "name": one.name,
            "default": one.default,
            "values": parse.describe(one),
            "help": one.metadata["help"],
        }
        for one in fields(METHODS[name])
    ]
    header = ("setting", "default", "values", "what it does")
    rows = [
        (one["name"], _text(one["default"]), one["values"], one["help"])
        for one in report["settings"]
    ]
    parts: list[Any] = [f"{name}: {report['summary']}"]
    if len(report["scores"]) > 1:
        parts.append(f"It ranks tokens by --score: {', '.join(report['scores'])}.")
    parts.append(_table(header, rows) if rows else "It has no settings.")
    last = f"Example: --method {name} --set {rows[0][0]}={rows[0][1]}" if rows else ""
    print_result(report, as_json, Group(*parts), last)


def _text(default: Any) -> str:
    """A default as it is written after `--set key=`."""
    return default if isinstance(default, str) else str(default).lower()


def _summary(method: Any) -> dict[str, Any]:
    """The first sentence of the method's docstring, and its scores."""
    text = " ".join((inspect.getdoc(method) or "").split())
    summary = text.split(". ")[0].rstrip(".") + "."
    return {"name": method.NAME, "summary": summary, "scores": list(method.SCORES)}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*header, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    return table


def show(
    file: Annotated[Path, typer.Argument(help="A plan.json.")],
    budget: o.AtBudget = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Show which layers drop tokens and how many tokens stay; layers count from one.

    Example: **toprune plan show small/plan.json**
    """
    plan = Plan.load(file)
    if budget is not None:
        plan = Dial.load(file.with_name(dial.FILE), plan).plan(budget)
    typer.echo(json.dumps(json.loads(plan.to_json())) if as_json else plan.summary())


def check(
    file: Annotated[Path, typer.Argument(help="A plan.json.")],
    model: Annotated[
        str | None, typer.Option(help="Also check that the plan fits this model.")
    ] = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Check that a plan is valid and, with --model, that it fits the model.

    Example: **toprune plan check small/plan.json --model dense**
    """
    plan = Plan.load(file)
    if model is not None:
        hush(debug)
        from toprune.models.families import FAMILIES
        from toprune.models.load import read_config

        config = read_config(model)
        sizes = FAMILIES[config.model_type].sizes(config)
        plan.check_model(config.model_type, sizes.layers, sizes.width)
    result = {"file": str(file), "model": model, "steps": len(plan.steps), "sound": True}
    fits = "" if model is None else f" and fits {model}"
    typer.echo(json.dumps(result) if as_json else f"{file} is valid{fits}.")
