"""Training: a dense model from labels, and a faster one from a dense model."""

from typing import Annotated, Literal

import typer

import toprune
from toprune.cli import options as o
from toprune.cli import parse
from toprune.cli.console import hush, print_result
from toprune.errors import UserError
from toprune.report import terminal as tables
from toprune.training.settings import FINETUNE, Training


def finetune(
    ctx: typer.Context,
    *,
    model: o.Model,
    data: o.TaskSource = None,
    task: o.Task = "classify",
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    epochs: Annotated[float, typer.Option(help="Passes over the training set.")] = FINETUNE.epochs,
    out: o.Out,
    max_length: o.MaxLength = None,
    stride: o.Stride = None,
    no_answer: o.NoAnswer = None,
    skip_bad_rows: o.SkipBadRows = False,
    lr: o.Lr = FINETUNE.lr,
    batch_size: o.BatchSize = FINETUNE.batch_size,
    accumulation: o.Accumulation = FINETUNE.accumulation,
    schedule: o.Schedule = None,
    no_dropout: Annotated[
        bool,
        typer.Option(
            "--no-dropout",
            help="Train without dropout: faster on long texts.",
            rich_help_panel=o.TRAINING,
        ),
    ] = False,
    bf16: o.Bf16 = FINETUNE.bf16,
    device: o.Device = "auto",
    seed: o.Seed = FINETUNE.seed,
    resume: o.Resume = False,
    overwrite: o.Overwrite = False,
    report_to: o.ReportTo = FINETUNE.report_to,
    save_steps: o.SaveSteps = FINETUNE.save_steps,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Train a dense model on labels, so that it can be pruned.

    Example: **toprune finetune --model sentence-transformers/all-MiniLM-L6-v2 --data reviews.csv
    --text review --label verdict --out dense**
    """
    hush(debug)
    from toprune.data.presets import recipe_of

    if epochs <= 0:
        raise UserError(f"--epochs {epochs:g} trains nothing; give 1 or more")
    dropout = False if no_dropout else None
    recipe = recipe_of(task, schedule).finetune
    report = toprune.finetune(
        model,
        parse.data(data, text, pair, label, max_length, skip_bad_rows),
        task=parse.task(task, model, stride=stride, no_answer=no_answer),
        out=out,
        schedule=schedule,
        training=parse.training(ctx, FINETUNE, recipe, hard_epochs=epochs, dropout=dropout),
        device=device,
        resume=resume,
        overwrite=overwrite,
    )
    last = f"The model is in {out}."
    print_result(report | {"out": str(out)}, as_json, tables.evaluated(report), last)


def prune(
    ctx: typer.Context,
    *,
    model: o.Model,
    data: o.TaskSource = None,
    task: o.Task = "classify",
    text: o.TextColumn = None,
    pair: o.PairColumn = None,
    label: o.LabelColumn = None,
    budget: Annotated[
        str,
        typer.Option(
            help="4x for a quarter of the real FLOPs, or 75% to remove that share. Several, like "
            "2x,3x,5x, give one bundle with a dial; the first is its default. 12ms for the median "
            "time of a text on this machine, p95:30ms for that of long texts; 12ms,8ms for a dial."
        ),
    ],
    count: o.Count = "executed",
    method: o.Method = "top",
    epochs: Annotated[
        float,
        typer.Option(help="Epochs in all, for masks and weights. 0: no training."),
    ] = Training.epochs,
    out: o.Out,
    max_length: o.MaxLength = None,
    stride: o.Stride = None,
    no_answer: o.NoAnswer = None,
    pooling: o.Pooling = None,
    dropped: o.Dropped = None,
    unlabelled: Annotated[
        list[str] | None,
        typer.Option(
            help="More texts to learn from, in any format that --data reads; labels are ignored "
            "(repeatable).",
            rich_help_panel=o.DATA,
        ),
    ] = None,
    lengths_of: Annotated[
        str | None,
        typer.Option(
            help="Texts as long as those that you will serve, in any format that --data reads: the "
            "budget is for their lengths (default: for those of the training texts).",
            rich_help_panel=o.BUDGET,
        ),
    ] = None,
    skip_bad_rows: o.SkipBadRows = False,
    score: Annotated[
        Literal["probe", "probes", "received"] | None,
        typer.Option(
            help="Rank tokens once by a fitted vector (probe), at every step by another one "
            "(probes), or by the attention they receive (received, as ToP does).",
            rich_help_panel=o.BUDGET,
        ),
    ] = None,
    min_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Tokens of a text that every layer keeps.", rich_help_panel=o.BUDGET
        ),
    ] = 2,
    protect: Annotated[
        list[str] | None,
        typer.Option(help="A token that is never dropped (repeatable).", rich_help_panel=o.BUDGET),
    ] = None,
    protect_first: o.ProtectFirst = None,
    fallback: Annotated[
        str | None,
        typer.Option(
            help="Keep the dense model for texts that the pruned one is not sure of, so that this "
            "share of the answers equals dense, like 99%. The budget counts both.",
            rich_help_panel=o.BUDGET,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads of the model, for a budget in ms (default: 1).",
            rich_help_panel=o.BUDGET,
        ),
    ] = None,
    precision: Annotated[
        Literal["fp32", "int8"] | None,
        typer.Option(
            help="File that a budget in ms is for (default: fp32).", rich_help_panel=o.BUDGET
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Curve that toprune profile wrote, for a budget in ms (default: measure it).",
            rich_help_panel=o.BUDGET,
        ),
    ] = None,
    lr: o.Lr = Training.lr,
    batch_size: o.BatchSize = Training.batch_size,
    accumulation: o.Accumulation = Training.accumulation,
    schedule: o.Schedule = None,
    label_weight: o.LabelWeight = Training.label_weight,
    token_states: o.TokenStates = Training.token_states,
    bf16: o.Bf16 = Training.bf16,
    device: o.Device = "auto",
    seed: o.Seed = Training.seed,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the method, like bins=20 (repeatable). **toprune methods top** "
            "lists those of top.",
            rich_help_panel=o.METHOD,
        ),
    ] = None,
    masks: Annotated[
        Literal["auto", "learn"],
        typer.Option(
            help="Method top: learn gates and rank masks also where the head reads every token "
            "(default: there, the best schedule for the dense model).",
            rich_help_panel=o.METHOD,
        ),
    ] = "auto",
    soft_epochs: o.SoftEpochs = Training.soft_epochs,
    soft_steps: o.SoftSteps = Training.soft_steps,
    mask_lr: o.MaskLr = Training.mask_lr,
    sparsity_warmup: o.SparsityWarmup = Training.sparsity_warmup,
    resume: o.Resume = False,
    overwrite: o.Overwrite = False,
    report_to: o.ReportTo = Training.report_to,
    save_steps: o.SaveSteps = Training.save_steps,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Make a fine-tuned model faster: drop tokens until it meets a budget.

    Example: **toprune prune --model dense --data reviews.csv --budget 4x --out small**

    Labels are optional: the model learns from the answers of the dense one, and labels only
    measure it.
    """
    hush(debug)
    from toprune.data.presets import recipe_of

    recipe = recipe_of(task, schedule)
    epochs = epochs if o.is_set(ctx, "epochs") else recipe.epochs
    stages = parse.stages(ctx, recipe, epochs, soft_epochs)
    pairs = [*(settings or ()), *([f"masks={masks}"] if masks != "auto" else [])]
    made, is_auto = parse.method(method, pairs, recipe.methods.get(method, {}))
    bundle = toprune.prune(
        model,
        parse.data(
            data, text, pair, label, max_length, skip_bad_rows, unlabelled or (), lengths_of
        ),
        parse.budget(budget, threads, precision, count),
        task=parse.task(
            task, model, stride=stride, no_answer=no_answer, pooling=pooling, dropped=dropped
        ),
        out=out,
        schedule=schedule,
        method=made,
        score=score,
        training=parse.training(ctx, Training(), recipe.training, **stages),
        protect=tuple(protect or ()),
        protect_first=protect_first,
        min_tokens=min_tokens,
        fallback=fallback,
        auto_weight=is_auto,
        device=device,
        profile=profile,
        resume=resume,
        overwrite=overwrite,
    )
    report, last = bundle.report, f"The bundle is in {out}."
    print_result(report | {"out": str(out)}, as_json, tables.pruned(report), last)
