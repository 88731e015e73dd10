"""The command line: thin. Options become the library's settings, reports become tables.

Nothing here imports torch before a command needs it: `--help` and `plan` answer at once.
"""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import toprune
from toprune import options as o
from toprune import tables
from toprune.errors import UserError
from toprune.plan import Plan
from toprune.terminal import OneLine, hush, tell

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
    """Fine-tune, prune to a real 3x and evaluate, on an embedded model and film reviews."""
    hush(debug)
    from toprune.demo import FULL, QUICK, run

    say = partial(typer.echo, err=True)
    report = run(QUICK if quick else FULL, out, overwrite=overwrite, say=say)
    last = f"The pruned model is in {out / 'pruned'}, the dense one in {out / 'dense'}."
    tell(report | {"out": str(out)}, as_json, tables.pruned(report), last)


@app.command()
def finetune(
    model: o.Model,
    data: o.Source,
    out: o.Out,
    task: o.Task = "classify",
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    max_length: o.MaxLength = None,
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

    if epochs <= 0:
        raise UserError(f"--epochs {epochs:g} trains nothing; ask for 1 or more")
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
        _data(data, text, pair, label, max_length),
        task=task,
        out=out,
        training=training,
        resume=resume,
        overwrite=overwrite,
    )
    tell(report | {"out": str(out)}, as_json, tables.evaluated(report), f"The model is in {out}.")


@app.command()
def prune(
    model: o.Model,
    data: o.Source,
    budget: Annotated[str, typer.Option(help="4x fewer real FLOPs, or 75% of them gone.")],
    out: o.Out,
    task: o.Task = "classify",
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    max_length: o.MaxLength = None,
    score: Annotated[
        Literal["probe", "received"],
        typer.Option(help="How tokens are ranked: a fitted vector, or attention received (ToP)."),
    ] = "probe",
    epochs: Annotated[
        float,
        typer.Option(help="In all: the first fifth learns masks, the rest weights. 0: no training"),
    ] = 5,
    soft_epochs: Annotated[
        float | None, typer.Option(min=0, help="Epochs that learn masks, instead of a fifth.")
    ] = None,
    lr: o.Lr = 1e-4,
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
    first_layer: Annotated[
        int, typer.Option(min=0, help="First layer that may prune, counted from zero.")
    ] = 0,
    no_gates: Annotated[
        bool, typer.Option("--no-gates", help="Prune in every layer from the first on.")
    ] = False,
    protect: Annotated[
        list[str] | None, typer.Option(help="A token that must stay; may be given repeatedly.")
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
    from toprune.methods.top import Top

    soft = soft_share(epochs, soft_epochs)
    is_auto = distill_weight == "auto"
    top = Top(
        first=first_layer,
        gates=not no_gates,
        constraint=constraint,
        distill=distill,
        distill_weight=Top().distill_weight if is_auto else _number(distill_weight),
    )
    training = Training(
        soft_epochs=soft,
        hard_epochs=epochs - soft,
        lr=lr,
        batch_size=batch_size,
        accumulation=accumulation,
        label_weight=label_weight,
        seed=seed,
        report_to=report_to,
        save_steps=save_steps,
    )
    bundle = toprune.prune(
        model,
        _data(data, text, pair, label, max_length),
        budget,
        task=task,
        out=out,
        score=score,
        top=top,
        training=training,
        protect=tuple(protect or ()),
        auto_weight=is_auto,
        resume=resume,
        overwrite=overwrite,
    )
    report = bundle.report
    tell(report | {"out": str(out)}, as_json, tables.pruned(report), f"The bundle is in {out}.")


@app.command("eval")
def evaluate(
    bundle: Annotated[Path, typer.Argument(help="What prune or finetune wrote.")],
    data: o.Source,
    split: Annotated[str | None, typer.Option(help="train, validation or test.")] = None,
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    max_length: o.MaxLength = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Metrics of a bundle, or of any fine-tuned model, on labelled data.

    Example: **toprune eval small --data test.csv**
    """
    hush(debug)
    report = toprune.evaluate(bundle, _data(data, text, pair, label, max_length), split=split)
    tell(report, as_json, tables.evaluated(report))


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
    source: str, text: str | None, pair: str | None, label: str | None, max_length: int | None
) -> Any:
    from toprune.api import Data
    from toprune.data import Columns

    return Data(source, Columns(text, pair, label), max_length)


def soft_share(epochs: float, asked: float | None) -> float:
    """A fifth of the epochs learns masks, and one at least when there are two or more."""
    soft = asked if asked is not None else epochs * SOFT_SHARE
    if asked is None and epochs >= 2:
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
