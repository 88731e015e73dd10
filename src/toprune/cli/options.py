"""Options that several commands of the command line share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Bundle = Annotated[Path, typer.Argument(help="What prune or finetune wrote.")]
Split = Annotated[
    str | None, typer.Option(help="train, validation or test; of MNLI also validation_mismatched.")
]
Model = Annotated[str, typer.Option(help="Model directory or hub id.")]
Task = Annotated[
    str,
    typer.Option(
        help="classify, regress, multilabel, rank, answer, tokens or embed; or of GLUE: cola, "
        "sst2, mrpc, stsb, qqp, mnli, qnli, rte."
    ),
]
ForeignTask = Annotated[
    str | None,
    typer.Option("--task", help="Of a model from elsewhere, where its head does not tell: rank."),
]
Schedule = Annotated[
    Literal["short", "paper"] | None,
    typer.Option(help="Of a GLUE task: short for a CPU, or ToP's own. Other options win over it."),
]
# Names alone: `toprune.methods.METHODS` brings torch. A test holds them together.
METHODS = (
    "top",
    "power_bert",
    "ltp",
    "lat",
    "spatten",
    "transkimmer",
    "tr_bert",
    "cofi",
    "calibrate",
    "random",
    "truncate",
    "pool",
    "drop_layers",
)
Method = Annotated[
    str,
    typer.Option(
        help=f"How the plan is found: {', '.join(METHODS)}.", autocompletion=lambda: list(METHODS)
    ),
]
DATA = "CSV, TSV, JSONL, Parquet, a directory, or a hub name."
Source = Annotated[str, typer.Option("--data", help=DATA)]
TaskSource = Annotated[
    str | None, typer.Option("--data", help=f"{DATA} GLUE tasks: the hub's copy if not given.")
]
TextColumn = Annotated[str | None, typer.Option("--text", help="Column of the text; guessed.")]
PairColumn = Annotated[str | None, typer.Option("--pair", help="Column of the second text.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help="Column of the label; guessed.")]
MaxLength = Annotated[
    int | None, typer.Option(min=1, help="Cut texts to so many tokens; to what the model takes.")
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows that do not fit, and count them.")
]
Stride = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Read long texts in windows that share so many tokens; classes: the mean counts.",
    ),
]
Pooling = Annotated[
    Literal["mean", "cls"] | None,
    typer.Option(help="Task embed: how a vector is made; as the model's directory says."),
]
Dropped = Annotated[
    Literal["last", "zero"] | None,
    typer.Option(
        help="Tasks answer and embed: dropped tokens come back with their last state, or as "
        "zeros, which leaves room for more tokens."
    ),
]
NoAnswer = Annotated[
    bool | None,
    typer.Option("--no-answer", help="Task answer: a question may have none (SQuAD v2.0)."),
]
Out = Annotated[Path, typer.Option(help="Directory to write; must be empty or not there.")]
Lr = Annotated[float, typer.Option(min=0, help="Learning rate of the weights.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Texts per step, of all processes together.")]
Accumulation = Annotated[int, typer.Option(min=1, help="Steps per update of the weights.")]
Bf16 = Annotated[
    bool,
    typer.Option(
        "--bf16", help="Train with products in bfloat16: faster where the processor has them."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Of splits, shuffling, masks and dropout.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a stopped run was.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is in --out.")]
ReportTo = Annotated[str, typer.Option(help="tensorboard, wandb, ...: what transformers knows.")]
SaveSteps = Annotated[
    int | None, typer.Option(min=1, help="Steps between checkpoints; every epoch when not given.")
]
Engine = Annotated[
    Literal["local", "ray"],
    typer.Option(
        help="Here, one after the other; or on a Ray cluster, which is pip's toprune[ray]."
    ),
]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray cluster, as host:6379 or auto; else one starts here.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Of the Ray that starts here: so many at once; cores.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Tracebacks, and what libraries say.")]

# settings whose option has another name
OPTIONS = {"first": "first_layer", "gates": "no_gates", "hard_epochs": "epochs"}


def said(ctx: typer.Context, option: str) -> bool:
    """Did the user give this option, or is it the default?"""
    source = ctx.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def unsaid(ctx: typer.Context, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a schedule sets, without what the user said himself."""
    return {k: v for k, v in settings.items() if not said(ctx, OPTIONS.get(k, k))}
