"""Whole jobs in one command: the demo, comparisons of methods, and sweeps over many of them."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from toprune.cli import options as o
from toprune.cli import parse
from toprune.cli.console import hush, print_result
from toprune.report import terminal as tables
from toprune.training.settings import Training


def demo(
    out: Annotated[Path, typer.Option(help="Directory for the models.")] = Path("toprune-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="About 3 minutes, less accurate.")] = False,
    overwrite: o.Overwrite = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Fine-tune an embedded model on film reviews, prune it to a real 3x, evaluate, export, time.

    Example: **toprune demo --quick**
    """
    hush(debug)
    from toprune.cli.demo import CHART, FULL, QUICK, run

    say = partial(typer.echo, err=True)
    report = run(QUICK if quick else FULL, out, overwrite=overwrite, say=say)
    last = (
        f"The pruned model is in {out / 'pruned'}, the dense one in {out / 'dense'}; "
        f"{out / CHART} shows accuracy against time."
    )
    print_result(report | {"out": str(out)}, as_json, tables.demo(report), last)


def compare(
    *,
    model: o.Model,
    data: o.TaskSource = None,
    task: o.Task = "classify",
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    budgets: Annotated[str, typer.Option(help="Budgets, like 2x,3x,4x.")],
    count: o.Count = "executed",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, like top,random (default: all). top:received also chooses the score, "
            "top@0.01 the weight of the ranking distillation."
        ),
    ] = None,
    epochs: Annotated[
        float, typer.Option(min=0, help="Epochs in all, for every method.")
    ] = Training.epochs,
    soft_steps: o.SoftSteps = Training.soft_steps,
    out: Annotated[
        Path, typer.Option(help="Directory of a new comparison, or of one to continue.")
    ],
    max_length: o.MaxLength = None,
    stride: o.Stride = None,
    no_answer: o.NoAnswer = None,
    pooling: o.Pooling = None,
    dropped: o.Dropped = None,
    skip_bad_rows: o.SkipBadRows = False,
    protect_first: o.ProtectFirst = None,
    lr: o.Lr = Training.lr,
    batch_size: o.BatchSize = Training.batch_size,
    bf16: o.Bf16 = Training.bf16,
    device: o.Device = "auto",
    seeds: Annotated[
        str,
        typer.Option(
            help="Seeds, like 0,1,2: every run is repeated with each.", rich_help_panel=o.TRAINING
        ),
    ] = "0",
    timed: Annotated[
        bool,
        typer.Option(
            "--time",
            help="Export and time all bundles at the end; nothing else should run then.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = False,
    engine: o.Engine = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Compare methods with the same model, data, epochs and seeds: a table, a chart, and JSON.

    Example: **toprune compare --model dense --data reviews.csv --methods top,power_bert,random
    --budgets 2x,3x --out compared**

    Runs that --out already contains are not repeated: the same command continues after a stop, and
    you can add methods, budgets and seeds later.
    """
    hush(debug)
    from toprune.compare.comparison import compare as run
    from toprune.methods import METHODS

    report = run(
        model,
        parse.data(data, text, pair, label, max_length, skip_bad_rows),
        list(METHODS) if methods is None else parse.several(methods),
        parse.several(budgets),
        out=out,
        task=parse.task(
            task, model, stride=stride, no_answer=no_answer, pooling=pooling, dropped=dropped
        ),
        training=Training(
            epochs=epochs, soft_steps=soft_steps, lr=lr, batch_size=batch_size, bf16=bf16
        ),
        seeds=parse.numbers("--seeds", seeds, "0,1,2"),
        protect_first=protect_first,
        timed=timed,
        engine=parse.engine(engine, address, workers, debug),
        device=device,
        count=count,
        say=partial(typer.echo, err=True),
    )
    last = f"The comparison is in {out}: compare.md, compare.svg, compare.json, and the runs."
    print_result(report | {"out": str(out)}, as_json, tables.compared(report), last)


def sweep(
    grid: Annotated[
        Path, typer.Argument(help="TOML file with tasks, budgets, methods, seeds and weights.")
    ],
    out: Annotated[Path, typer.Option(help="Directory of a new sweep, or of one to continue.")],
    device: o.Device = "auto",
    engine: o.Engine = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Compare methods over several tasks, budgets, seeds and weights: a table and a Pareto chart.

    Example: **toprune sweep grid.toml --out swept --engine ray**

    Every task gets a directory in --out, as toprune compare writes it. Runs that are already there
    are not repeated: the same command continues after a stop, and the file may grow.
    """
    hush(debug)
    from toprune.cli.grid import read_grid
    from toprune.compare.sweep import sweep as run
    from toprune.compare.sweep import sweep_table

    executor = parse.engine(engine, address, workers, debug)
    say = partial(typer.echo, err=True)
    report = run(read_grid(grid), out=out, engine=executor, device=device, say=say)
    last = f"The sweep is in {out}: sweep.md, sweep.svg, sweep.json, and a comparison of each task."
    print_result(report | {"out": str(out)}, as_json, sweep_table(report), last)
