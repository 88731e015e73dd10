"""What there is to see: families, plans."""

import json
from pathlib import Path
from typing import Annotated

import typer

from toprune import options as o
from toprune import tables
from toprune.plan import Plan
from toprune.terminal import hush, tell


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
