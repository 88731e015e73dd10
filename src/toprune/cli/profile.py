"""The command `toprune profile`: what a model's parts take on this machine."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from toprune.cli import options as o
from toprune.cli import parse
from toprune.cli.console import hush, print_result
from toprune.errors import UserError
from toprune.io.atomic import write_text
from toprune.report.times import profiled


def profile(
    model: Annotated[Path, typer.Argument(help="Directory of a model or bundle.")],
    data: Annotated[
        str | None, typer.Option(help="Texts whose lengths count (default: --lengths).")
    ] = None,
    split: o.Split = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    task: o.ForeignTask = None,
    max_length: o.MaxLength = None,
    lengths: Annotated[
        str | None, typer.Option(help="Lengths in tokens, like 64,128 (default: 128).")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the model.")] = 1,
    precision: Annotated[
        Literal["fp32", "int8"], typer.Option(help="Which file to time.")
    ] = "fp32",
    score: Annotated[
        Literal["probe", "probes", "received"],
        typer.Option(help="How tokens will be ranked: the score of prune."),
    ] = "probes",
    out: Annotated[
        Path | None, typer.Option(help="Write the curve to this file, for prune --profile.")
    ] = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Measure what a model's parts take on this machine, for a budget in milliseconds.

    Example: **toprune profile dense --data reviews.csv --out curve.json**
    """
    hush(debug)
    from toprune.export.milliseconds import profile as measure

    if data is not None and lengths is not None:
        raise UserError("give --data or --lengths, not both")
    report = measure(
        model,
        read=None
        if data is None
        else lambda name: parse.texts_of(
            model, name, data, parse.columns(text, pair, None), split, skip_bad_rows
        ),
        lengths=parse.numbers("--lengths", lengths or "128", "64,128"),
        task=task,
        max_length=max_length,
        threads=threads,
        precision=precision,
        score=score,
        say=partial(typer.echo, err=True),
    )
    last = ""
    if out is not None:
        write_text(out, json.dumps(report["curve"], indent=1) + "\n")
        last = f"The curve is in {out}."
    print_result(report, as_json, profiled(report), last)
