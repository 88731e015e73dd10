"""The command line: turns options into the library's settings, and reports into tables.

Nothing here imports torch before a command needs it, so `--help` and `plan` are fast.
"""

from typing import Annotated

import typer

import toprune
from toprune.cli import bench, jobs, look, profile, reproduce, serve, server
from toprune.cli.console import OneLine
from toprune.cli.train import finetune, prune

__all__ = ["app", "finetune", "main", "prune"]

app = typer.Typer(
    cls=OneLine,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
plan_app = typer.Typer(help="Show or check a plan.json.")
for command in (jobs.demo, finetune, prune, serve.export):
    app.command()(command)
app.command("eval")(serve.evaluate)
for command in (
    profile.profile,
    bench.bench,
    serve.gate,
    server.serve,
    look.report,
    look.explain,
    look.scores,
    look.stress,
    server.ui,
    jobs.compare,
    jobs.sweep,
    reproduce.reproduce,
    serve.push,
):
    app.command()(command)
app.command("families")(look.supported)
app.command()(look.methods)
app.add_typer(plan_app, name="plan")
for command in (look.show, look.check):
    plan_app.command()(command)


def _show_version(is_set: bool) -> None:
    if is_set:
        typer.echo(toprune.__version__)
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Token pruning for transformer encoders: from a model, data and a budget to a faster model.

    A first try without training: **toprune prune --model M --data reviews.csv --budget 3x --epochs
    0 --out small**

    With training: the same without --epochs 0, then **toprune eval small --data test.csv**
    """


def main() -> None:
    app()
