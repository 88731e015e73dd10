"""The command `toprune bench`: dense against pruned on this machine."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from toprune.cli import options as o
from toprune.cli import parse
from toprune.cli.console import hush, print_result
from toprune.report import terminal as tables


def bench(
    bundle: o.Bundle,
    data: Annotated[
        str | None, typer.Option(help="Texts to time (default: random tokens).")
    ] = None,
    split: o.Split = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    lengths: Annotated[
        str | None, typer.Option(help="Lengths of random texts, in tokens, like 128,256,512.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each model.")] = 1,
    rounds: Annotated[int, typer.Option(min=5, help="Rounds; every model runs once in each.")] = 20,
    batch: Annotated[int, typer.Option(min=1, help="Also time calls with this many texts.")] = 1,
    fp32: Annotated[bool, typer.Option("--fp32", help="Do not time the int8 files.")] = False,
    dense_onnx: Annotated[
        Path | None,
        typer.Option(help="Also time this ONNX file of the dense model, by another exporter."),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option(help="What runs the files; cuda needs onnxruntime-gpu, and times no int8."),
    ] = "cpu",
    save: Annotated[
        bool, typer.Option("--save", help="Add the times to report.json and report.html.")
    ] = False,
    budget: o.AtBudget = None,
    seed: o.Seed = 0,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Time dense against pruned on this machine, as ratios, and say whether pruning is worth it.

    Example: **toprune bench small --data test.csv --threads 2**
    """
    hush(debug)
    from toprune.compare.bench import bench as race
    from toprune.run.manifest import Manifest

    texts = None
    if data is not None:
        manifest = Manifest.load(bundle)
        columns = replace(parse.columns(text, pair, None), images=manifest.images)
        texts = parse.texts_of(bundle, manifest.task, data, columns, split, skip_bad_rows)
    report = race(
        bundle,
        texts=texts,
        lengths=None if lengths is None else parse.numbers("--lengths", lengths, "128,256,512"),
        threads=threads,
        rounds=rounds,
        int8=not fp32,
        batch=batch,
        budget=budget,
        seed=seed,
        device=device,
        dense_onnx=dense_onnx,
        say=partial(typer.echo, err=True),
    )
    last = ""
    if save:
        from toprune.report.html.files import save_timings

        last = f"The times are also in {save_timings(bundle, report)}."
    print_result(report, as_json, tables.bench(report), last)
