"""Training: a dense model from labels, and a faster one from a dense model."""

from dataclasses import replace
from typing import Annotated, Literal

import typer

import toprune
from toprune.cli import options as o
from toprune.cli import parse as given
from toprune.cli.console import hush, tell
from toprune.errors import UserError
from toprune.report import terminal as tables


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
    bf16: o.Bf16 = False,
    no_dropout: Annotated[
        bool,
        typer.Option("--no-dropout", help="Train without dropout: faster on long texts."),
    ] = False,
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
    --text review --label verdict --out dense**
    """
    hush(debug)
    from toprune.data.presets import recipe_of
    from toprune.training.settings import Training

    if epochs <= 0:
        raise UserError(f"--epochs {epochs:g} trains nothing; ask for 1 or more")
    recipe = recipe_of(task, schedule)
    training = Training(
        soft_epochs=0,
        hard_epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        accumulation=accumulation,
        bf16=bf16,
        dropout=False if no_dropout else None,
        label_weight=1.0,
        seed=seed,
        report_to=report_to,
        save_steps=save_steps,
    )
    report = toprune.finetune(
        model,
        given.data(data, text, pair, label, max_length, skip_bad_rows),
        task=given.task(task, model, stride=stride, no_answer=no_answer),
        out=out,
        schedule=schedule,
        training=replace(training, **o.unsaid(ctx, recipe.finetune)),
        resume=resume,
        overwrite=overwrite,
    )
    tell(report | {"out": str(out)}, as_json, tables.evaluated(report), f"The model is in {out}.")


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
    dropped: o.Dropped = None,
    method: o.Method = "top",
    score: Annotated[
        Literal["probe", "probes", "received"] | None,
        typer.Option(
            help="How tokens are ranked: once by a fitted vector, anew at every step by one of its "
            "own, or by attention received (ToP)."
        ),
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
    bf16: o.Bf16 = False,
    label_weight: Annotated[
        float, typer.Option(min=0, help="Weight of the labels beside the dense model's answers.")
    ] = 0.0,
    token_states: Annotated[
        bool,
        typer.Option(
            "--token-states",
            help="Teach the dense model's states of all tokens that stay: slower, may lose less.",
        ),
    ] = False,
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
    min_tokens: Annotated[
        int, typer.Option(min=1, help="So many tokens of a text stay in every layer: a floor.")
    ] = 2,
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
    from toprune.data.presets import recipe_of
    from toprune.methods import make_method
    from toprune.methods.top import Top
    from toprune.training.settings import Training

    recipe = recipe_of(task, schedule)
    epochs = epochs if o.said(ctx, "epochs") else recipe.epochs
    soft = given.soft_share(epochs, soft_epochs, recipe.soft)
    is_auto = distill_weight == "auto"
    settings = {
        "bins": bins,
        "top_k": top_k,
        "first": first_layer,
        "gates": not no_gates,
        "constraint": constraint,
        "distill": distill,
        "distill_weight": Top().distill_weight if is_auto else given.number(distill_weight),
    }
    told = {key: value for key, value in settings.items() if o.said(ctx, o.OPTIONS.get(key, key))}
    scheduled = o.unsaid(ctx, recipe.methods.get(method, {}))
    training = Training(
        soft_epochs=soft,
        hard_epochs=epochs - soft,
        lr=lr,
        mask_lr=mask_lr,
        sparsity_warmup=sparsity_warmup,
        batch_size=batch_size,
        accumulation=accumulation,
        bf16=bf16,
        label_weight=label_weight,
        token_states=token_states,
        seed=seed,
        report_to=report_to,
        save_steps=save_steps,
    )
    bundle = toprune.prune(
        model,
        given.data(data, text, pair, label, max_length, skip_bad_rows),
        budget,
        task=given.task(
            task, model, stride=stride, no_answer=no_answer, pooling=pooling, dropped=dropped
        ),
        out=out,
        schedule=schedule,
        method=make_method(method, told | scheduled),
        score=score,
        training=replace(training, **o.unsaid(ctx, recipe.training)),
        protect=tuple(protect or ()),
        protect_first=protect_first,
        min_tokens=min_tokens,
        auto_weight=is_auto,
        resume=resume,
        overwrite=overwrite,
    )
    report = bundle.report
    tell(report | {"out": str(out)}, as_json, tables.pruned(report), f"The bundle is in {out}.")
