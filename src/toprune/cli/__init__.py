"""The command line: thin. Options become the library's settings, reports become tables.

Nothing here imports torch before a command needs it: `--help` and `plan` answer at once.
"""

from typing import Annotated

import typer

import toprune
from toprune.cli import jobs, look, serve
from toprune.cli.console import OneLine
from toprune.cli.parse import SOFT_SHARE, soft_share
from toprune.cli.train import finetune, prune

__all__ = ["SOFT_SHARE", "app", "finetune", "main", "prune", "soft_share"]

app = typer.Typer(
    cls=OneLine,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
plan_app = typer.Typer(help="Look at a plan.json, or check it.")
for command in (jobs.demo, finetune, prune, serve.export):
    app.command()(command)
app.command("eval")(serve.evaluate)
for command in (
    serve.bench,
    look.report,
    look.explain,
    look.scores,
    look.stress,
    look.ui,
    jobs.compare,
    jobs.sweep,
    serve.push,
):
    app.command()(command)
app.command("families")(look.supported)
app.add_typer(plan_app, name="plan")
for command in (look.show, look.check):
    plan_app.command()(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(toprune.__version__)
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Token pruning for transformer encoders: a model, data and a budget in; a faster model out.

    First taste, no training: **toprune prune --model M --data reviews.csv --budget 3x --epochs 0
    --out small**

    Then for good: the same without --epochs 0, and **toprune eval small --data test.csv**
    """


def main() -> None:
    app()
