"""The command line: thin. Options become the library's settings, reports become tables.

Nothing here imports torch before a command needs it: `--help` and `plan` answer at once.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import toprune
from toprune import options as o
from toprune import tables
from toprune.errors import UserError
from toprune.plan import Plan
from toprune.terminal import OneLine, hush, tell, warn_in_one_line

SOFT_SHARE = 0.2  # of the epochs in which masks are learned

app = typer.Typer(
    cls=OneLine, rich_markup_mode="markdown", pretty_exceptions_enable=False, add_completion=False
)
plan_app = typer.Typer(help="Look at a plan.json, or check it.")
app.add_typer(plan_app, name="plan")


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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the models go.")] = Path("toprune-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="About 3 minutes, less accurate.")] = False,
    overwrite: o.Overwrite = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Fine-tune, prune to a real 3x, evaluate, export and time: an embedded model, film reviews."""
    hush(debug)
    from toprune.demo import FULL, QUICK, run

    say = partial(typer.echo, err=True)
    report = run(QUICK if quick else FULL, out, overwrite=overwrite, say=say)
    last = f"The pruned model is in {out / 'pruned'}, the dense one in {out / 'dense'}."
    tell(report | {"out": str(out)}, as_json, tables.demo(report), last)


@app.command()
def finetune(
    ctx: typer.Context,
    model: o.Model,
    out: o.Out,
    data: o.TaskSource = None,
    task: o.Task = "classify",
    schedule: o.Schedule = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    max_length: o.MaxLength = None,
    stride: o.Stride = None,
    no_answer: o.NoAnswer = None,
    epochs: Annotated[float, typer.Option(help="Passes over the training set.")] = 3,
    lr: o.Lr = 5e-5,
    batch_size: o.BatchSize = 32,
    accumulation: o.Accumulation = 1,
    seed: o.Seed = 0,
    resume: o.Resume = False,
    overwrite: o.Overwrite = False,
    report_to: o.ReportTo = "none",
    save_steps: o.SaveSteps = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Train a dense model on labels, ready to be pruned.

    Example: **toprune finetune --model sentence-transformers/all-MiniLM-L6-v2 --data reviews.csv
    --text review --label stars --out dense**
    """
    hush(debug)
    from toprune.fit import Training
    from toprune.glue import recipe_of

    if epochs <= 0:
        raise UserError(f"--epochs {epochs:g} trains nothing; ask for 1 or more")
    recipe = recipe_of(task, schedule)
    training = Training(
        soft_epochs=0,
        hard_epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        accumulation=accumulation,
        label_weight=1.0,
        seed=seed,
        report_to=report_to,
        save_steps=save_steps,
    )
    report = toprune.finetune(
        model,
        _data(data, text, pair, label, max_length, skip_bad_rows),
        task=_task(task, model, stride=stride, no_answer=no_answer),
        out=out,
        schedule=schedule,
        training=replace(training, **o.unsaid(ctx, recipe.finetune)),
        resume=resume,
        overwrite=overwrite,
    )
    tell(report | {"out": str(out)}, as_json, tables.evaluated(report), f"The model is in {out}.")


@app.command()
def prune(
    ctx: typer.Context,
    model: o.Model,
    budget: Annotated[str, typer.Option(help="4x fewer real FLOPs, or 75% of them gone.")],
    out: o.Out,
    data: o.TaskSource = None,
    task: o.Task = "classify",
    schedule: o.Schedule = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    skip_bad_rows: o.SkipBadRows = False,
    max_length: o.MaxLength = None,
    stride: o.Stride = None,
    no_answer: o.NoAnswer = None,
    pooling: o.Pooling = None,
    method: Annotated[
        str,
        typer.Option(
            help="top, power_bert, ltp, lat, spatten, calibrate, random, truncate, pool or "
            "drop_layers."
        ),
    ] = "top",
    score: Annotated[
        Literal["probe", "received"] | None,
        typer.Option(help="How tokens are ranked: a fitted vector, or attention received (ToP)."),
    ] = None,
    epochs: Annotated[
        float,
        typer.Option(help="In all: the first fifth learns masks, the rest weights. 0: no training"),
    ] = 5,
    soft_epochs: Annotated[
        float | None, typer.Option(min=0, help="Epochs that learn masks, instead of a fifth.")
    ] = None,
    lr: o.Lr = 1e-4,
    mask_lr: Annotated[
        float | None, typer.Option(min=0, help="Learning rate of the masks; by their steps.")
    ] = None,
    sparsity_warmup: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the mask epochs that reach the budget.")
    ] = 0.7,
    batch_size: o.BatchSize = 32,
    accumulation: o.Accumulation = 1,
    label_weight: Annotated[
        float, typer.Option(min=0, help="Weight of the labels beside the dense model's answers.")
    ] = 0.0,
    constraint: Annotated[
        Literal["projection", "lagrangian"], typer.Option(help="How masks are held to the budget.")
    ] = "projection",
    distill: Annotated[
        Literal["lambda", "mse", "ce", "none"], typer.Option(help="Loss of the token ranking.")
    ] = "lambda",
    distill_weight: Annotated[
        str, typer.Option(help="Weight of that loss; auto: 3 trial runs choose it.")
    ] = "1.0",
    bins: Annotated[int, typer.Option(min=1, help="Rank masks of a layer.")] = 50,
    top_k: Annotated[
        int, typer.Option(min=1, help="Tokens that the ranking loss calls relevant.")
    ] = 20,
    first_layer: Annotated[
        int, typer.Option(min=0, help="First layer that may prune, counted from zero.")
    ] = 0,
    no_gates: Annotated[
        bool, typer.Option("--no-gates", help="Prune in every layer from the first on.")
    ] = False,
    protect: Annotated[
        list[str] | None, typer.Option(help="A token that must stay; may be given repeatedly.")
    ] = None,
    protect_first: Annotated[
        bool | None,
        typer.Option(
            "--protect-first/--no-protect-first",
            help="Keep the whole first text of a pair; rank and answer do so.",
        ),
    ] = None,
    seed: o.Seed = 0,
    resume: o.Resume = False,
    overwrite: o.Overwrite = False,
    report_to: o.ReportTo = "none",
    save_steps: o.SaveSteps = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Make a fine-tuned model faster by dropping tokens, to a budget that is met.

    Example: **toprune prune --model dense --data reviews.csv --budget 4x --out small**

    Labels are not needed, only used to measure: the dense model's own answers are learned from.
    """
    hush(debug)
    from toprune.fit import Training
    from toprune.glue import recipe_of
    from toprune.methods import make_method
    from toprune.methods.top import Top

    recipe = recipe_of(task, schedule)
    epochs = epochs if o.said(ctx, "epochs") else recipe.epochs
    soft = soft_share(epochs, soft_epochs, recipe.soft)
    is_auto = distill_weight == "auto"
    settings = {
        "bins": bins,
        "top_k": top_k,
        "first": first_layer,
        "gates": not no_gates,
        "constraint": constraint,
        "distill": distill,
        "distill_weight": Top().distill_weight if is_auto else _number(distill_weight),
    }
    told = {key: value for key, value in settings.items() if o.said(ctx, o.OPTIONS.get(key, key))}
    scheduled = o.unsaid(ctx, recipe.top) if method == Top.NAME else {}
    training = Training(
        soft_epochs=soft,
        hard_epochs=epochs - soft,
        lr=lr,
        mask_lr=mask_lr,
        sparsity_warmup=sparsity_warmup,
        batch_size=batch_size,
        accumulation=accumulation,
        label_weight=label_weight,
        seed=seed,
        report_to=report_to,
        save_steps=save_steps,
    )
    bundle = toprune.prune(
        model,
        _data(data, text, pair, label, max_length, skip_bad_rows),
        budget,
        task=_task(task, model, stride=stride, no_answer=no_answer, pooling=pooling),
        out=out,
        schedule=schedule,
        method=make_method(method, told | scheduled),
        score=score,
        training=replace(training, **o.unsaid(ctx, recipe.training)),
        protect=tuple(protect or ()),
        protect_first=protect_first,
        auto_weight=is_auto,
        resume=resume,
        overwrite=overwrite,
    )
    report = bundle.report
    tell(report | {"out": str(out)}, as_json, tables.pruned(report), f"The bundle is in {out}.")


@app.command()
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
    methods: Annotated[
        str | None, typer.Option(help="Like top,top:received,random; all if not given.")
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
    from toprune.compare import compare as run
    from toprune.fit import Training
    from toprune.methods import METHODS

    soft = soft_share(epochs, None)
    report = run(
        model,
        _data(data, text, pair, label, max_length, skip_bad_rows),
        list(METHODS) if methods is None else _several(methods),
        _several(budgets),
        out=out,
        task=_task(task, model, stride=stride, no_answer=no_answer, pooling=pooling),
        training=Training(
            soft_epochs=soft, hard_epochs=epochs - soft, lr=lr, batch_size=batch_size
        ),
        seeds=_numbers("--seeds", seeds, "0,1,2"),
        protect_first=protect_first,
        timed=timed,
        say=partial(typer.echo, err=True),
    )
    last = f"The comparison is in {out}: compare.md, compare.svg, compare.json, and the runs."
    tell(report | {"out": str(out)}, as_json, tables.compared(report), last)


@app.command()
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
    from toprune.export import export as write
    from toprune.export import measured

    report = write(bundle, int8=int8, task=task, say=partial(typer.echo, err=True))
    if data is not None:
        report["measured"] = measured(
            bundle,
            data,
            columns=_columns(text, pair, label),
            split=split,
            skip_bad_rows=skip_bad_rows,
        )
    tell(report, as_json, tables.exported(report), f"The files are in {bundle / 'onnx'}.")


@app.command("eval")
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
        int | None, typer.Option(min=1, help="Of the exported file; every core if not given.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Bulk work: answers to every row go to this .jsonl; no labels needed."),
    ] = None,
    overwrite: o.Overwrite = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Metrics of a bundle, or of any fine-tuned model, on labelled data; or answers to raw texts.

    Example: **toprune eval small --data test.csv --runtime onnx**

    Bulk work: **toprune eval small --data in.jsonl --out out.jsonl --runtime onnx**
    """
    columns = _columns(text, pair, label)
    if task is not None and runtime != "torch":
        raise UserError("an exported file knows its task; say --task to toprune export")
    if out is not None and (label is not None or split is not None):
        raise UserError("--out answers every row of a file; --label and --split are for metrics")
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} is there already; choose another --out or say --overwrite")
    if runtime != "torch":
        from toprune.run.runner import Runner

        if not debug:
            warn_in_one_line()
        runner = Runner(
            bundle, precision=precision, threads=threads, runtime=runtime, max_length=max_length
        )
        if out is None:
            from toprune.glue import glue_in
            from toprune.run.evaluate import evaluate as measure

            report = measure(
                runner,
                data,
                glue=glue_in(bundle),
                columns=columns,
                split=split,
                skip_bad_rows=skip_bad_rows,
            )
            tell(report, as_json, tables.evaluated(report))
            return
        from toprune.progress import bar
        from toprune.run.bulk import score_file

        with bar("scoring", None) as advance:
            count = score_file(
                runner,
                data,
                out,
                text=text,
                pair=pair,
                skip_bad_rows=skip_bad_rows,
                progress=advance,
            )
        tell({"rows": count, "out": str(out)}, as_json, f"{count} answers are in {out}.")
        return
    if out is not None:
        raise UserError("--out needs an exported file; say --runtime onnx (after toprune export)")
    if precision != "fp32" or threads is not None:
        raise UserError("--precision and --threads are for exported files; say --runtime onnx, too")
    hush(debug)
    asked = _data(data, text, pair, label, max_length, skip_bad_rows)
    report = toprune.evaluate(bundle, asked, split=split, task=task)
    tell(report, as_json, tables.evaluated(report))


@app.command()
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
    seed: o.Seed = 0,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Dense and pruned side by side on this machine, as ratios; says so when it is not worth it.

    Example: **toprune bench small --data test.csv --threads 2**
    """
    hush(debug)
    from toprune.bench import bench as race
    from toprune.glue import glue_in, load_texts
    from toprune.run.sheet import Sheet

    texts = None
    if data is not None:
        sheet = Sheet.load(bundle)
        columns = replace(_columns(text, pair, None), images=sheet.images)
        texts = load_texts(
            data,
            task=sheet.task,
            glue=glue_in(bundle),
            columns=columns,
            split=split,
            skip_bad_rows=skip_bad_rows,
        )
    report = race(
        bundle,
        texts=texts,
        lengths=None if lengths is None else _numbers("--lengths", lengths, "128,256,512"),
        threads=threads,
        rounds=rounds,
        int8=not fp32,
        batch=batch,
        seed=seed,
        say=partial(typer.echo, err=True),
    )
    tell(report, as_json, tables.bench(report))


@app.command("families")
def supported(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Which architectures toprune knows, for which tasks, since when."""
    hush(debug)
    from toprune.support import everything

    found = {"families": [one.to_dict() for one in everything()]}
    tell(found, as_json, tables.families(found), "Another one: docs/add-a-family.md says how.")


@plan_app.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A plan.json.")],
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Which layers drop tokens and how many stay; people count layers from one."""
    plan = Plan.load(file)
    typer.echo(json.dumps(json.loads(plan.to_json())) if as_json else plan.summary())


@plan_app.command("check")
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


def _data(
    source: str | None,
    text: str | None,
    pair: str | None,
    label: str | None,
    max_length: int | None,
    skip_bad_rows: bool,
) -> Any:
    from toprune.api import Data

    return Data(source, _columns(text, pair, label), max_length, skip_bad_rows)


def _task(name: str, model: str, **settings: Any) -> Any:
    """The task, by its name where nothing is set: then the model's directory says how."""
    from toprune.api import settle_task

    given = {key: value for key, value in settings.items() if value is not None}
    return settle_task(name, model, given) if given else name


def _columns(text: str | None, pair: str | None, label: str | None) -> Any:
    from toprune.columns import Columns

    return Columns(text, pair, label)


def _several(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(option: str, text: str, like: str) -> list[int]:
    parts = _several(text)
    if not parts or not all(part.isdecimal() for part in parts):
        raise UserError(f"{option} {text!r} is not like {like}")
    return [int(part) for part in parts]


def soft_share(epochs: float, asked: float | None, share: float = SOFT_SHARE) -> float:
    """Epochs that learn masks: a share of all, and one at least when there are two or more."""
    soft = asked if asked is not None else epochs * share
    if asked is None and epochs >= 2 and share < 1:
        soft = max(1.0, round(soft))
    if not 0 <= soft <= epochs:
        raise UserError(f"--epochs {epochs:g} must be 0 or more, and --soft-epochs at most that")
    return soft


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--distill-weight {text!r} is not a number; say one, or auto") from None


def main() -> None:
    app()


if __name__ == "__main__":
    main()
