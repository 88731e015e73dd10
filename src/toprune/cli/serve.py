"""Commands that use a bundle: export it, evaluate it, check it, upload it."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import toprune
from toprune.cli import options as o
from toprune.cli import parse
from toprune.cli.console import hush, print_result, warn_in_one_line
from toprune.errors import UserError
from toprune.io.ray import Cluster
from toprune.report import terminal as tables


def export(
    bundle: o.Bundle,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also write onnx/model_int8.onnx, with int8 weights.")
    ] = False,
    int8_openvino: Annotated[
        str | None,
        typer.Option(
            metavar="TEXTS",
            help="Also write static int8 for OpenVINO, calibrated on these texts (toprune[nncf]).",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Labelled data to evaluate the exported files on.")
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
    """Write onnx/model.onnx, which really drops the tokens, and check it against torch.

    Example: **toprune export small --int8 --data test.csv**
    """
    hush(debug)
    from toprune.export.export import evaluate_files
    from toprune.export.export import export as write

    report = write(
        bundle,
        int8=int8,
        calibration=int8_openvino,
        columns=parse.columns(text, pair, None),
        skip_bad_rows=skip_bad_rows,
        task=task,
        say=partial(typer.echo, err=True),
    )
    if data is not None:
        report["measured"] = evaluate_files(
            bundle,
            data,
            columns=parse.columns(text, pair, label),
            split=split,
            skip_bad_rows=skip_bad_rows,
        )
    last = f"The files are in {bundle / 'onnx'}."
    print_result(report, as_json, tables.exported(report), last)


def push(
    bundle: o.Bundle,
    repo: Annotated[str, typer.Argument(help="Repository on the hub, as owner/name.")],
    private: Annotated[
        bool, typer.Option("--private", help="Make the repository private.")
    ] = False,
    examples: Annotated[
        bool,
        typer.Option("--examples", help="Also upload the texts of yours that the report shows."),
    ] = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Upload a bundle with its model card and report to the hub. Log in first: hf auth login

    Example: **toprune push small me/reviews-3x --private**
    """
    hush(debug)
    from toprune.bundle.hub import push as upload

    address = upload(bundle, repo, private=private, examples=examples)
    print_result({"address": address}, as_json, "", f"The bundle is at {address}")


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
        typer.Option(help="onnx and openvino run the exported file and need no torch."),
    ] = "torch",
    precision: Annotated[
        Literal["fp32", "int8"], typer.Option(help="Which of the exported files to run.")
    ] = "fp32",
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Threads of the exported file, or of each worker (default: all cores)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Bulk work: write the answer to every row to this .jsonl; needs no labels."
        ),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="Bulk work: in this process, or on Ray (needs toprune[ray]).",
            rich_help_panel=o.RAY,
        ),
    ] = "local",
    address: o.Address = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Workers of Ray, with one model each (default: as many as fit).",
            rich_help_panel=o.RAY,
        ),
    ] = None,
    unordered: Annotated[
        bool,
        typer.Option(
            "--unordered",
            help="Write rows as soon as they are done, in any order.",
            rich_help_panel=o.RAY,
        ),
    ] = False,
    device: o.EvalDevice = "auto",
    overwrite: o.Overwrite = False,
    budget: o.AtBudget = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Evaluate a bundle or any fine-tuned model on labelled data, or answer raw texts.

    Example: **toprune eval small --data test.csv --runtime onnx**

    Bulk work: **toprune eval small --data in.jsonl --out out.jsonl --runtime onnx**

    On several machines: add **--engine ray --address auto**
    """
    columns = parse.columns(text, pair, label)
    if task is not None and runtime != "torch":
        raise UserError("an exported file knows its task; pass --task to toprune export")
    if out is not None and (label is not None or split is not None):
        raise UserError("--out answers every row of a file; --label and --split are for metrics")
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} exists; choose another --out or add --overwrite")
    if engine == "local" and (address or workers or unordered):
        raise UserError("--address, --workers and --unordered need --engine ray; add it")
    if engine == "ray" and out is None:
        raise UserError("--engine ray is for bulk work; name a file for the answers with --out")
    if out is not None and runtime == "torch":
        raise UserError("--out needs an exported file; add --runtime onnx (after toprune export)")
    if runtime != "torch":
        if not debug:
            warn_in_one_line()
        how: dict[str, Any] = {
            "precision": precision,
            "threads": threads,
            "runtime": runtime,
            "max_length": max_length,
            "budget": budget,
            "device": "cpu" if device == "auto" else device,
        }
        if engine == "ray" and how.pop("device") != "cpu":
            raise UserError(f"workers of Ray run on CPUs; leave --device {device} out")
        if out is not None:
            cluster = Cluster(address, workers, not unordered, debug) if engine == "ray" else None
            reading = {"text": text, "pair": pair, "skip_bad_rows": skip_bad_rows}
            _score(bundle, data, out, cluster, how, reading, as_json)
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
        print_result(report, as_json, tables.evaluated(report))
        return
    if precision != "fp32" or threads is not None:
        raise UserError("--precision and --threads are for exported files; add --runtime onnx")
    hush(debug)
    source = parse.data(data, text, pair, label, max_length, skip_bad_rows)
    report = toprune.evaluate(bundle, source, split=split, task=task, budget=budget, device=device)
    print_result(report, as_json, tables.evaluated(report))


def _score(
    bundle: Path,
    data: str,
    out: Path,
    cluster: Cluster | None,
    how: dict[str, Any],
    reading: dict[str, Any],
    as_json: bool,
) -> None:
    """Answer the rows of a file.

    Args:
        how: settings of `Runner`.
        reading: the columns, and whether to skip bad rows.
    """
    from toprune.io.progress import bar

    with bar("scoring", None) as advance:
        if cluster is not None:
            from toprune.run.ray_bulk import score_file as score_by_workers

            count = score_by_workers(bundle, data, out, cluster, **how, **reading, progress=advance)
        else:
            from toprune.run.bulk import score_file
            from toprune.run.runner import Runner

            count = score_file(Runner(bundle, **how), data, out, **reading, progress=advance)
    print_result({"rows": count, "out": str(out)}, as_json, f"{count} answers are in {out}.")


def gate(
    bundle: o.Bundle,
    data: o.Source,
    dense: Annotated[
        str | None,
        typer.Option(help="The model that was pruned: a directory (exported: no torch) or hub id."),
    ] = None,
    max_loss: Annotated[
        float | None, typer.Option(help="Points of the metric that may be lost, like 0.5.")
    ] = None,
    min_agreement: Annotated[
        str | None, typer.Option(help="Share of the answers that must equal dense, like 98%.")
    ] = None,
    max_ms: Annotated[
        float | None,
        typer.Option(help="Median milliseconds of one text per call, on this machine."),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Share of the dense metric that must be kept, like 99%.")
    ] = None,
    group_factor: Annotated[
        float,
        typer.Option(
            help="A class, a range of lengths and texts with filler may lose this many times more."
        ),
    ] = 3.0,
    metric: Annotated[
        str | None, typer.Option(help="Metric that counts (default: the task's first one).")
    ] = None,
    precision: Annotated[
        Literal["fp32", "int8"] | None,
        typer.Option(help="Check this file only (default: every exported file)."),
    ] = None,
    runtime: Annotated[
        Literal["onnx", "openvino"],
        typer.Option(help="What executes the files; openvino has an int8 file of its own."),
    ] = "onnx",
    threads: Annotated[int, typer.Option(min=1, help="Threads of each model.")] = 1,
    rounds: Annotated[int, typer.Option(min=5, help="Rounds of the timing.")] = 20,
    filler: Annotated[
        Path | None,
        typer.Option(
            help="File with harmless sentences, one per line (default: a dozen in English)."
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Also write the result as JUnit XML to this file.")
    ] = None,
    split: o.Split = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens that the dense model reads (default: as its directory has it).",
            rich_help_panel=o.DATA,
        ),
    ] = None,
    seed: o.Seed = 0,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Check that a bundle is good enough: exit code 0 if it passes, 1 if it fails, 2 for bad input.

    Example: **toprune gate small --data test.csv --dense dense --max-loss 0.5 --min-agreement 98%**

    The far end of the interval must keep the limit, not the mean. Too few texts to tell is a
    failure, with the number that is needed. Classes, ranges of lengths and texts with filler fail
    if they are certainly worse than their wider limit.
    """
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UserError(f"--junit {junit}: there is no such directory; create it first")
    from toprune.data.sets import Data
    from toprune.inspection.gate.answers import is_exported

    if dense is None or is_exported(dense):
        if not debug:
            warn_in_one_line()
    else:
        hush(debug)
    result = toprune.gate(
        bundle,
        Data(data, parse.columns(text, pair, label), max_length, skip_bad_rows),
        dense=dense,
        max_loss=max_loss,
        min_agreement=min_agreement,
        max_ms=max_ms,
        keep=keep,
        group_factor=group_factor,
        metric=metric,
        precision=precision,
        runtime=runtime,
        split=split,
        filler=filler,
        threads=threads,
        rounds=rounds,
        seed=seed,
    )
    if junit is not None:
        junit.write_text(result.to_junit(), encoding="utf-8", newline="\n")
    report = result.to_dict()
    print_result(report, as_json, tables.gated(report))
    if not result.passed:
        raise typer.Exit(1)
