"""What there is to see: what becomes of a text, families, plans."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from toprune import options as o
from toprune import tables
from toprune.cli import given
from toprune.errors import UserError
from toprune.plan import Plan
from toprune.terminal import hush, tell


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
    from toprune.explain import explain as look
    from toprune.fading import faded
    from toprune.pages.explain import explain_page

    if html is not None and html.exists() and not overwrite:
        raise UserError(f"{html} is there already; choose another --html or say --overwrite")
    if data is None:
        read = given.texts(texts, pair)
    else:
        if texts or len(pair or ()) > 1:
            raise UserError("give texts or --data, not both; with --data, --pair is one column")
        columns = given.columns(text, next(iter(pair or ()), None), None)
        read = given.texts_of(bundle, data, columns, split, skip_bad_rows)[:rows]
    found = look(bundle, read, dense=dense)
    if html is not None:
        html.write_text(explain_page(found), encoding="utf-8")
    told = faded(found, Console()) if html is None else f"The page is in {html}."
    tell(found.to_dict(), as_json, told)


def supported(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Which architectures toprune knows, for which tasks, since when."""
    hush(debug)
    from toprune.support import everything

    found = {"families": [one.to_dict() for one in everything()]}
    tell(found, as_json, tables.families(found), "Another one: docs/add-a-family.md says how.")


def show(
    file: Annotated[Path, typer.Argument(help="A plan.json.")],
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Which layers drop tokens and how many stay; people count layers from one."""
    plan = Plan.load(file)
    typer.echo(json.dumps(json.loads(plan.to_json())) if as_json else plan.summary())


def check(
    file: Annotated[Path, typer.Argument(help="A plan.json.")],
    model: Annotated[str | None, typer.Option(help="Is it for this model, too?")] = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Is the plan sound, and does it belong to the model?"""
    plan = Plan.load(file)
    if model is not None:
        hush(debug)
        from toprune.families import FAMILIES
        from toprune.models import read_config

        config = read_config(model)
        sizes = FAMILIES[config.model_type].sizes(config)
        plan.check_model(config.model_type, sizes.layers, sizes.width)
    found = {"file": str(file), "model": model, "steps": len(plan.steps), "sound": True}
    belongs = "" if model is None else f" and belongs to {model}"
    typer.echo(json.dumps(found) if as_json else f"{file} is sound{belongs}.")
