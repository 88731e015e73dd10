"""What becomes of a bundle: the fast file, its metrics, its times."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import toprune
from toprune.cli import options as o
from toprune.cli import parse as given
from toprune.cli.console import hush, tell, warn_in_one_line
from toprune.errors import UserError
from toprune.io.ray import Cluster
from toprune.report import terminal as tables


def export(
    bundle: o.Bundle,
    int8: Annotated[
        bool, typer.Option("--int8", help="A second file with int8 weights, onnx/model_int8.onnx.")
    ] = False,
    data: Annotated[
        str | None, typer.Option(help="Labelled data: measure what the files are worth on it.")
    ] = None,
    split: o.Split = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    task: o.ForeignTask = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Write the fast file: onnx/model.onnx, with the tokens really gone, checked against torch.

    Example: **toprune export small --int8 --data test.csv**
    """
    hush(debug)
    from toprune.export.export import evaluate_files
    from toprune.export.export import export as write

    report = write(bundle, int8=int8, task=task, say=partial(typer.echo, err=True))
    if data is not None:
        report["measured"] = evaluate_files(
            bundle,
            data,
            columns=given.columns(text, pair, label),
            split=split,
            skip_bad_rows=skip_bad_rows,
        )
    tell(report, as_json, tables.exported(report), f"The files are in {bundle / 'onnx'}.")


def push(
    bundle: o.Bundle,
    repo: Annotated[str, typer.Argument(help="Where to, as owner/name.")],
    private: Annotated[bool, typer.Option("--private", help="For your eyes alone.")] = False,
    examples: Annotated[
        bool, typer.Option("--examples", help="Also the texts of yours that its report shows.")
    ] = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Upload a bundle to the hub, with its model card and report. Log in first: hf auth login

    Example: **toprune push small me/reviews-3x --private**
    """
    hush(debug)
    from toprune.bundle.hub import push as upload

    address = upload(bundle, repo, private=private, examples=examples)
    tell({"address": address}, as_json, "", f"It is at {address}")


def evaluate(
    bundle: o.Bundle,
    data: o.Source,
    split: o.Split = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    task: o.ForeignTask = None,
    max_length: o.MaxLength = None,
    runtime: Annotated[
        Literal["torch", "onnx", "openvino"],
        typer.Option(help="onnx and openvino run the exported file; no torch is needed."),
    ] = "torch",
    precision: Annotated[
        Literal["fp32", "int8"], typer.Option(help="Which of the exported files.")
    ] = "fp32",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Of the exported file, or of each worker; else every core."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Bulk work: answers to every row go to this .jsonl; no labels needed."),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="Bulk work: in this process, or by Ray's, which is pip's toprune[ray]."),
    ] = "local",
    address: o.Address = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of --engine ray, one model each; as many as fit.")
    ] = None,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="With --engine ray: rows as they are done.")
    ] = False,
    overwrite: o.Overwrite = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Metrics of a bundle, or of any fine-tuned model, on labelled data; or answers to raw texts.

    Example: **toprune eval small --data test.csv --runtime onnx**

    Bulk work: **toprune eval small --data in.jsonl --out out.jsonl --runtime onnx**

    On several machines: the same with **--engine ray --address auto**
    """
    columns = given.columns(text, pair, label)
    if task is not None and runtime != "torch":
        raise UserError("an exported file knows its task; say --task to toprune export")
    if out is not None and (label is not None or split is not None):
        raise UserError("--out answers every row of a file; --label and --split are for metrics")
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} is there already; choose another --out or say --overwrite")
    if engine == "local" and (address or workers or unordered):
        raise UserError("--address, --workers and --unordered are of --engine ray; say that, too")
    if engine == "ray" and out is None:
        raise UserError("--engine ray is for bulk work; say where the answers go with --out")
    if out is not None and runtime == "torch":
        raise UserError("--out needs an exported file; say --runtime onnx (after toprune export)")
    if runtime != "torch":
        if not debug:
            warn_in_one_line()
        how: dict[str, Any] = {
            "precision": precision,
            "threads": threads,
            "runtime": runtime,
            "max_length": max_length,
        }
        if out is not None:
            where = Cluster(address, workers, not unordered, debug) if engine == "ray" else None
            read = {"text": text, "pair": pair, "skip_bad_rows": skip_bad_rows}
            _score(bundle, data, out, where, how, read, as_json)
            return
        from toprune.data.presets import preset_in
        from toprune.run.evaluate import evaluate as measure
        from toprune.run.runner import Runner

        report = measure(
            Runner(bundle, **how),
            data,
            preset=preset_in(bundle),
            columns=columns,
            split=split,
            skip_bad_rows=skip_bad_rows,
        )
        tell(report, as_json, tables.evaluated(report))
        return
    if precision != "fp32" or threads is not None:
        raise UserError("--precision and --threads are for exported files; say --runtime onnx, too")
    hush(debug)
    asked = given.data(data, text, pair, label, max_length, skip_bad_rows)
    report = toprune.evaluate(bundle, asked, split=split, task=task)
    tell(report, as_json, tables.evaluated(report))


def _score(
    bundle: Path,
    data: str,
    out: Path,
    where: Cluster | None,
    how: dict[str, Any],
    read: dict[str, Any],
    as_json: bool,
) -> None:
    """Answers to a file. how: a Runner's settings; read: which columns, and what of bad rows."""
    from toprune.io.progress import bar

    with bar("scoring", None) as advance:
        if where is not None:
            from toprune.run.ray_bulk import score_file as score_by_workers

            count = score_by_workers(bundle, data, out, where, **how, **read, progress=advance)
        else:
            from toprune.run.bulk import score_file
            from toprune.run.runner import Runner

            count = score_file(Runner(bundle, **how), data, out, **read, progress=advance)
    tell({"rows": count, "out": str(out)}, as_json, f"{count} answers are in {out}.")


def bench(
    bundle: o.Bundle,
    data: Annotated[
        str | None, typer.Option(help="Your own texts; random tokens when not given.")
    ] = None,
    split: o.Split = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    lengths: Annotated[
        str | None, typer.Option(help="Lengths of random texts in tokens, like 128,256,512.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="That a model may use.")] = 1,
    rounds: Annotated[int, typer.Option(min=5, help="Turns that every model takes.")] = 20,
    batch: Annotated[int, typer.Option(min=1, help="Also with so many texts a call.")] = 1,
    fp32: Annotated[bool, typer.Option("--fp32", help="Leave out the int8 files.")] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Put the times into report.json and report.html.")
    ] = False,
    seed: o.Seed = 0,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Dense and pruned side by side on this machine, as ratios; says so when it is not worth it.

    Example: **toprune bench small --data test.csv --threads 2**
    """
    hush(debug)
    from toprune.compare.bench import bench as race
    from toprune.run.manifest import Manifest

    texts = None
    if data is not None:
        manifest = Manifest.load(bundle)
        columns = replace(given.columns(text, pair, None), images=manifest.images)
        texts = given.texts_of(bundle, manifest.task, data, columns, split, skip_bad_rows)
    report = race(
        bundle,
        texts=texts,
        lengths=None if lengths is None else given.numbers("--lengths", lengths, "128,256,512"),
        threads=threads,
        rounds=rounds,
        int8=not fp32,
        batch=batch,
        seed=seed,
        say=partial(typer.echo, err=True),
    )
    last = ""
    if save:
        from toprune.report.html.files import save_timings

        last = f"The times are in {save_timings(bundle, report)}, too."
    tell(report, as_json, tables.bench(report), last)
