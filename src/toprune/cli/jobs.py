"""Whole jobs in one command: the demo, methods side by side, and whole grids of them."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from toprune.cli import options as o
from toprune.cli import parse as given
from toprune.cli.console import hush, tell
from toprune.report import terminal as tables


def demo(
    out: Annotated[Path, typer.Option(help="Where the models go.")] = Path("toprune-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="About 3 minutes, less accurate.")] = False,
    overwrite: o.Overwrite = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Fine-tune, prune to a real 3x, evaluate, export and time: an embedded model, film reviews.

    Example: **toprune demo --quick**
    """
    hush(debug)
    from toprune.cli.demo import FULL, QUICK, run

    say = partial(typer.echo, err=True)
    report = run(QUICK if quick else FULL, out, overwrite=overwrite, say=say)
    last = f"The pruned model is in {out / 'pruned'}, the dense one in {out / 'dense'}."
    tell(report | {"out": str(out)}, as_json, tables.demo(report), last)


def compare(
    model: o.Model,
    budgets: Annotated[str, typer.Option(help="All of them, like 2x,3x,4x.")],
    out: Annotated[Path, typer.Option(help="Directory of a new comparison, or of this one.")],
    data: o.TaskSource = None,
    task: o.Task = "classify",
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    max_length: o.MaxLength = None,
    stride: o.Stride = None,
    no_answer: o.NoAnswer = None,
    pooling: o.Pooling = None,
    dropped: o.Dropped = None,
    methods: Annotated[
        str | None, typer.Option(help="Like top,top:received,top@0.01,random; all if not given.")
    ] = None,
    epochs: Annotated[float, typer.Option(help="In all, the same for every method.")] = 5,
    lr: o.Lr = 1e-4,
    batch_size: o.BatchSize = 32,
    protect_first: Annotated[
        bool | None,
        typer.Option("--protect-first/--no-protect-first", help="As toprune prune has it."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Every run once with each, like 0,1,2.")] = "0",
    timed: Annotated[
        bool, typer.Option("--time", help="Then export and time all; let nothing else run.")
    ] = False,
    engine: o.Engine = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Methods side by side: the same model, data, epochs and seeds; a table, a chart, and JSON.

    Example: **toprune compare --model dense --data reviews.csv --methods top,power_bert,random
    --budgets 2x,3x --out compared**

    What is in --out already is not done again: the same command goes on after a stop, and more
    methods, budgets and seeds may join later.
    """
    hush(debug)
    from toprune.compare.comparison import compare as run
    from toprune.methods import METHODS
    from toprune.training.settings import Training

    soft = given.soft_share(epochs, None)
    report = run(
        model,
        given.data(data, text, pair, label, max_length, skip_bad_rows),
        list(METHODS) if methods is None else given.several(methods),
        given.several(budgets),
        out=out,
        task=given.task(
            task, model, stride=stride, no_answer=no_answer, pooling=pooling, dropped=dropped
        ),
        training=Training(
            soft_epochs=soft, hard_epochs=epochs - soft, lr=lr, batch_size=batch_size
        ),
        seeds=given.numbers("--seeds", seeds, "0,1,2"),
        protect_first=protect_first,
        timed=timed,
        engine=given.engine(engine, address, workers, debug),
        say=partial(typer.echo, err=True),
    )
    last = f"The comparison is in {out}: compare.md, compare.svg, compare.json, and the runs."
    tell(report | {"out": str(out)}, as_json, tables.compared(report), last)


def sweep(
    grid: Annotated[Path, typer.Argument(help="TOML: tasks, budgets, methods, seeds, weights.")],
    out: Annotated[Path, typer.Option(help="Directory of a new sweep, or of this one.")],
    engine: o.Engine = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Tasks x budgets x methods x seeds x weights of the distillation: a table, a Pareto chart.

    Example: **toprune sweep grid.toml --out swept --engine ray**

    Every task has a directory in --out, as toprune compare writes it. What is there already is not
    done again: the same command goes on after a stop, and the file may grow.
    """
    hush(debug)
    from toprune.cli.grid import read_grid
    from toprune.compare.sweep import sweep as run
    from toprune.compare.sweep import sweep_table

    say, who = partial(typer.echo, err=True), given.engine(engine, address, workers, debug)
    report = run(read_grid(grid), out=out, engine=who, say=say)
    last = f"The sweep is in {out}: sweep.md, sweep.svg, sweep.json, and a comparison of each task."
    tell(report | {"out": str(out)}, as_json, sweep_table(report), last)
