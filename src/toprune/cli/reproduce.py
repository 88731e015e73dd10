"""The command `toprune reproduce`: the tables and figures of the ToP paper."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from toprune.cli import options as o
from toprune.cli import parse
from toprune.cli.console import hush, print_result
from toprune.errors import UserError


def reproduce(
    target: Annotated[
        str | None, typer.Argument(help="table1 to table9, figure1, figure4 or figure5.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the targets and the datasets of each.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(help="Dataset: a task of GLUE, squad, 20news or imdb (default: the first)."),
    ] = None,
    row: Annotated[
        list[int] | None, typer.Option(min=1, help="Only this row of the table (repeatable).")
    ] = None,
    scale: Annotated[
        Literal["tiny", "cpu", "paper"],
        typer.Option(
            help="paper: the published setting, for a GPU. cpu: the same method in what two cores "
            "do in under an hour. tiny: random weights and made data, in seconds."
        ),
    ] = "cpu",
    out: Annotated[
        Path, typer.Option(help="Directory of results and runs; targets in it share their runs.")
    ] = Path("reproduced"),
    model: Annotated[
        str | None,
        typer.Option(
            help="Pre-trained model, which is fine-tuned first, or one that toprune finetune wrote "
            "for the task (default: the paper's; at the scale cpu, the embedded MiniLM).",
            rich_help_panel=o.DATA,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help=f"{o.FORMATS} GLUE tasks default to the copy on the hub.", rich_help_panel=o.DATA
        ),
    ] = None,
    count: Annotated[
        Literal["authors", "paper", "executed"],
        typer.Option(
            help="How the paper's factors are counted when they become budgets; all counts are "
            "printed.",
            rich_help_panel=o.BUDGET,
        ),
    ] = "authors",
    recipe: Annotated[
        Literal["paper", "authors"],
        typer.Option(
            help="Epochs and warm-up at the scale paper: those of the paper's table 8, or of the "
            "authors' README.",
            rich_help_panel=o.TRAINING,
        ),
    ] = "paper",
    select: Annotated[
        Literal["last", "best-dev"],
        typer.Option(
            help="Weights to keep: the last, or the best on the reported examples, as the authors "
            "did, which is optimistic.",
            rich_help_panel=o.TRAINING,
        ),
    ] = "last",
    masks: Annotated[
        Literal["learn", "auto"],
        typer.Option(
            help="SQuAD: learn gates and rank masks as the paper does, or take the library's "
            "schedule.",
            rich_help_panel=o.TRAINING,
        ),
    ] = "learn",
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seed of training (default: 57 at the scale paper, else 0).",
            rich_help_panel=o.TRAINING,
        ),
    ] = None,
    device: o.Device = "auto",
    engine: o.Engine = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Run a table or a figure of the ToP paper, and print its figures beside ours.

    Example: **toprune reproduce table2 --task mrpc --row 2 --data GLUE/MRPC --out reproduced**

    Runs that --out already contains are not repeated: the same command continues after a stop.
    """
    hush(debug)
    if list_:
        print_result(*_listed(as_json))
        return
    if target is None:
        raise UserError("name a target, like table2; toprune reproduce --list shows all")
    from toprune.reproduce.case import Options
    from toprune.reproduce.reproduce import reproduce as run
    from toprune.reproduce.targets import find_target

    find_target(target)  # refuses an unknown name before anything else
    if model is None and scale == "cpu":
        from toprune.cli.demo import model_directory

        model = str(model_directory())
    options = Options(
        out=out,
        scale=scale,
        model=model,
        data=data,
        recipe=recipe,
        select=select,
        masks=masks,
        count=count,
        seed=seed,
        device=device,
        engine=parse.engine(engine, address, workers, debug),
        say=partial(typer.echo, err=True),
    )
    result = run(target, task, options, row or ())
    name = f"{result.content['target']}-{result.content['task']}"
    last = f"The result is in {out}: {name}.md, {name}.json" + (
        "." if result.svg is None else f", {name}.svg."
    )
    print_result(result.content | {"out": str(out)}, as_json, result.terminal(), last)


def _listed(as_json: bool) -> tuple[dict[str, Any], bool, Table]:
    """All targets: for programs and as a table."""
    from toprune.reproduce.targets import TARGETS

    table = Table(box=SIMPLE_HEAD)
    for name in ("target", "what it shows", "datasets, the default first"):
        table.add_column(name)
    for target in TARGETS.values():
        table.add_row(target.name, target.title, ", ".join(target.tasks))
    content = {
        target.name: {"title": target.title, "tasks": list(target.tasks)}
        for target in TARGETS.values()
    }
    return content, as_json, table
