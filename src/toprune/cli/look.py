"""What there is to see: the report, what becomes of a text, families, plans."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from toprune.cli import options as o
from toprune.cli import parse as given
from toprune.cli.console import hush, tell
from toprune.errors import UserError
from toprune.plan.plan import Plan
from toprune.report import terminal as tables


def explain(
    bundle: o.Bundle,
    texts: Annotated[
        list[str] | None, typer.Argument(help="One or more texts; questions, queries.")
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(help="The second text of each: a context, a document. With --data: a column."),
    ] = None,
    data: Annotated[str | None, typer.Option(help=f"Texts from a file: {o.DATA}")] = None,
    split: o.Split = None,
    text: o.TextColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    rows: Annotated[int, typer.Option(min=1, help="How many rows of --data, the first ones.")] = 10,
    dense: Annotated[
        Path | None,
        typer.Option(help="The original model; else the pruned weights, with every token kept."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page: a slider over layers, scores on hover.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page.")] = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Which tokens of a text leave in which layer, and whether it matters to the answer.

    Example: **toprune explain small "A dull film with one great scene." --html explain.html**

    Pairs: **toprune explain small "Where is the Louvre?" --pair "The Louvre is in Paris."**

    On a terminal tokens fade by the layer that dropped them; elsewhere the text is told again for
    every layer that sees less of it.
    """
    hush(debug)
    from toprune.bundle.bundle import read_report
    from toprune.inspection.explain.explain import explain as look
    from toprune.inspection.explain.page import explain_page
    from toprune.inspection.explain.terminal import explain_text

    if html is not None and html.exists() and not overwrite:
        raise UserError(f"{html} is there already; choose another --html or say --overwrite")
    if data is None:
        read = given.texts(texts, pair)
    else:
        if texts or len(pair or ()) > 1:
            raise UserError("give texts or --data, not both; with --data, --pair is one column")
        columns = given.columns(text, next(iter(pair or ()), None), None)
        task = read_report(bundle).get("task", "classify")
        read = given.texts_of(bundle, task, data, columns, split, skip_bad_rows)[:rows]
    found = look(bundle, read, dense=dense)
    if html is not None:
        html.write_text(explain_page(found), encoding="utf-8")
    told = explain_text(found, Console()) if html is None else f"The page is in {html}."
    tell(found.to_dict(), as_json, told)


def report(
    bundle: o.Bundle,
    compared: Annotated[
        Path | None,
        typer.Option(help="compare.json of toprune compare: adds the curve over budgets."),
    ] = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Make report.html anew from a bundle's report.json: one page, no requests, no torch.

    Example: **toprune report small**
    """
    from toprune.report.html.files import write_report_page

    page = write_report_page(bundle, compared)
    tell({"out": str(page)}, as_json, f"The page is in {page}.")


def scores(
    bundle: o.Bundle,
    data: o.Source,
    split: o.Split = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    rows: Annotated[int, typer.Option(min=1, help="How many rows, the first ones.")] = 200,
    dense: Annotated[
        Path | None,
        typer.Option(help="Task answer: the original model, for the ranks in its own states, too."),
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a chart, a line for each layer.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the chart.")] = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """How unequal tokens are: the attention that the best of them receive, layer by layer.

    Example: **toprune scores small --data test.csv --svg scores.svg**

    Of a bundle that answers questions also the rank of right answers' tokens when they are ranked
    first: **toprune scores small --data dev-v1.1.json --dense dense**
    """
    hush(debug)
    from toprune.bundle.bundle import read_report
    from toprune.data.sets import load_labelled
    from toprune.inspection.scores import answer_ranks, score_chart, score_distributions
    from toprune.tasks.answer import Answer

    if svg is not None and svg.exists() and not overwrite:
        raise UserError(f"{svg} is there already; choose another --svg or say --overwrite")
    task = read_report(bundle).get("task", "classify")
    if dense is not None and task != "answer":
        raise UserError(f"--dense is for the task answer, not for {task}; leave it out")
    columns = given.columns(text, pair, label)
    read = given.texts_of(bundle, task, data, columns, split, skip_bad_rows)[:rows]
    found = score_distributions(bundle, read)
    if task == "answer":
        how: Any = {"columns": columns, "split": split, "skip_bad_rows": skip_bad_rows}
        labelled = load_labelled(data, reads=Answer.READS, **how)
        some = labelled.take(range(min(rows, len(labelled))))
        found["answers"] = answer_ranks(bundle, some, dense=dense)
    if svg is not None:
        svg.write_text(score_chart(found), encoding="utf-8")
    tell(found, as_json, tables.scores(found), "" if svg is None else f"The chart is in {svg}.")


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
        typer.Option(help="Benign sentences, one in a line; else a dozen of our own, in English."),
    ] = None,
    of_class: Annotated[
        str | None,
        typer.Option("--class", help="Texts of this class, by label or else by dense answer."),
    ] = None,
    doses: Annotated[str, typer.Option(help="Filler, in lengths of the text.")] = "1,3",
    floors: Annotated[
        str,
        typer.Option(help="Tokens that are kept at least: plans to try beside its own; 0: none."),
    ] = "16,32,64",
    protect: Annotated[
        list[str] | None, typer.Option(help="A token to protect; may be given repeatedly.")
    ] = None,
    dense: Annotated[
        Path | None,
        typer.Option(help="The original model; else the pruned weights, with every token kept."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many texts.")] = 200,
    seed: o.Seed = 0,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Can benign filler push the tokens that matter out of a text, and what does protection cost?

    Example: **toprune stress small --data prompts.csv --class jailbreak --dense dense**

    Filler goes before, after, around and between the sentences of each text; of a pair, of its
    second one. Missed is what the dense model still sees and the pruned one no longer does.
    """
    hush(debug)
    from toprune.inspection.stress.stress import stress as measure

    found = measure(
        bundle,
        given.data(data, text, pair, label, None, skip_bad_rows),
        split=split,
        dense=dense,
        filler=filler,
        of_class=of_class,
        doses=given.numbers("--doses", doses, "1,3"),
        floors=given.numbers("--floors", floors, "16,32,64"),
        protect=protect or (),
        limit=limit,
        seed=seed,
    )
    tell(found, as_json, tables.stressed(found))


def ui(
    bundles: Annotated[
        list[Path], typer.Argument(help="What prune wrote; several, to switch between budgets.")
    ],
    host: Annotated[
        str, typer.Option(help="Who may ask: this machine alone, unless you say otherwise.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where it listens.")] = 8000,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """A small web app: type a text, see the prediction, the tokens that stay, and what is saved.

    Example: **toprune ui small smaller** (needs toprune[train,ui])
    """
    hush(debug)
    from toprune.inspection.ui import check_installed, serve

    check_installed()
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    told = f"Open {address} (Ctrl-C ends it)."
    serve(
        bundles, host=host, port=port, ready=lambda: tell({"address": address}, as_json, told, "")
    )


def supported(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Which architectures toprune knows, for which tasks, since when.

    Example: **toprune families**
    """
    hush(debug)
    from toprune.models.families.support import all_support

    found = {"families": [one.to_dict() for one in all_support()]}
    tell(found, as_json, tables.families(found), "Another one: docs/add-a-family.md says how.")


def show(
    file: Annotated[Path, typer.Argument(help="A plan.json.")],
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Which layers drop tokens and how many stay; people count layers from one.

    Example: **toprune plan show small/plan.json**
    """
    plan = Plan.load(file)
    typer.echo(json.dumps(json.loads(plan.to_json())) if as_json else plan.summary())


def check(
    file: Annotated[Path, typer.Argument(help="A plan.json.")],
    model: Annotated[str | None, typer.Option(help="Is it for this model, too?")] = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Is the plan sound, and does it belong to the model?

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
    found = {"file": str(file), "model": model, "steps": len(plan.steps), "sound": True}
    belongs = "" if model is None else f" and belongs to {model}"
    typer.echo(json.dumps(found) if as_json else f"{file} is sound{belongs}.")
