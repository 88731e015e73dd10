"""Options that several commands share. Options without a panel come first in --help.

Defaults and help of training options come from `Training`.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import toprune
from toprune.data.presets import PRESET_NAMES
from toprune.io import devices
from toprune.plan import budget
from toprune.tasks import TASKS
from toprune.training.settings import Training

DATA, BUDGET, TRAINING = "Data", "Budget and method", "Training"  # panels of --help
METHOD, OUTPUT, RAY = "Method details", "Output", "Ray"

# -- data ------------------------------------------------------------------------------------------

FORMATS = "CSV, TSV, JSONL or Parquet file, a directory, or a dataset on the hub."
Bundle = Annotated[Path, typer.Argument(help="Directory that prune or finetune wrote.")]
AtBudget = Annotated[
    str | None,
    typer.Option("--budget", help="A budget of the bundle's dial, or one between two of them."),
]
Model = Annotated[str, typer.Option(help="Model directory or hub id.")]
Source = Annotated[str, typer.Option("--data", help=FORMATS)]
TaskSource = Annotated[
    str | None,
    typer.Option("--data", help=f"{FORMATS} GLUE tasks default to the copy on the hub."),
]
Task = Annotated[
    str,
    typer.Option(help=f"{', '.join(TASKS)}; or a task of {PRESET_NAMES}."),
]
ForeignTask = Annotated[
    str | None,
    typer.Option(
        "--task", help="Task of a model that toprune did not write, if its head does not show it."
    ),
]
TextColumn = Annotated[
    str | None, typer.Option("--text", help="Column of the text (default: guessed).")
]
PairColumn = Annotated[str | None, typer.Option("--pair", help="Column of the second text.")]
LabelColumn = Annotated[
    str | None, typer.Option("--label", help="Column of the label (default: guessed).")
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Which set to read: train, validation or test; MNLI also has validation_mismatched.",
        rich_help_panel=DATA,
    ),
]
SkipBadRows = Annotated[
    bool,
    typer.Option(
        "--skip-bad-rows",
        help="Skip rows that cannot be read, and report how many.",
        rich_help_panel=DATA,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Cut texts to this many tokens (default: the limit of the task or the model).",
        rich_help_panel=DATA,
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Overlap of windows over long texts, in tokens; class scores are averaged.",
        rich_help_panel=DATA,
    ),
]
NoAnswer = Annotated[
    bool | None,
    typer.Option(
        "--no-answer",
        help="Task answer: some questions have no answer (SQuAD v2.0).",
        rich_help_panel=DATA,
    ),
]
Pooling = Annotated[
    Literal["mean", "cls"] | None,
    typer.Option(
        help="Task embed: how token states become a vector (default: as the model's files say).",
        rich_help_panel=DATA,
    ),
]
Dropped = Annotated[
    Literal["last", "zero"] | None,
    typer.Option(
        help="Tasks answer and embed: give dropped tokens back with their last state, or as zeros, "
        "which leaves more tokens within the budget.",
        rich_help_panel=DATA,
    ),
]

# -- budget and method -----------------------------------------------------------------------------

Schedule = Annotated[
    Literal["short", "paper"] | None,
    typer.Option(
        help="Training recipe of a GLUE task: short for a CPU, or that of the ToP paper. Other "
        "options override it.",
        rich_help_panel=TRAINING,
    ),
]


Count = Annotated[
    budget.Count,
    typer.Option(
        help="How budgets count FLOPs: as executed, without padding; by equation 4 of the ToP "
        "paper; or as its authors' code does, both against inputs padded to the maximum.",
        rich_help_panel=BUDGET,
    ),
]


def method_names() -> list[str]:
    """The names of all methods, read from their source files: to import them needs torch."""
    sources = sorted((Path(toprune.__file__).parent / "methods").rglob("*.py"))
    name = re.compile(r'^    NAME: ClassVar\[str\] = "(\w+)"$', re.M)
    return sorted(one for path in sources for one in name.findall(path.read_text(encoding="utf-8")))


Method = Annotated[
    str,
    typer.Option(
        help=f"How to find the plan: {', '.join(method_names())}. See toprune methods.",
        autocompletion=method_names,
    ),
]
_KEEP_FIRST = " and ".join(name for name, task in TASKS.items() if task.KEEPS_FIRST)
ProtectFirst = Annotated[
    bool | None,
    typer.Option(
        "--protect-first/--no-protect-first",
        help=f"Keep the first text of a pair whole (default: in the tasks {_KEEP_FIRST}).",
        rich_help_panel=BUDGET,
    ),
]

# -- training --------------------------------------------------------------------------------------

_HELP = {field.name: field.metadata["help"] for field in fields(Training)}


def _training(name: str, *flags: str, panel: str = TRAINING, **limits: float) -> Any:
    """An option for a field of `Training`, with the help of that field."""
    bounds: dict[str, Any] = limits
    return typer.Option(*flags, help=_HELP[name], rich_help_panel=panel, **bounds)


Lr = Annotated[float, _training("lr", min=0)]
BatchSize = Annotated[int, _training("batch_size", min=1)]
Accumulation = Annotated[int, _training("accumulation", min=1)]
Bf16 = Annotated[bool | None, _training("bf16", "--bf16/--no-bf16")]
LabelWeight = Annotated[float, _training("label_weight", min=0)]
TokenStates = Annotated[bool | None, _training("token_states", "--token-states/--no-token-states")]
SoftEpochs = Annotated[float | None, _training("soft_epochs", panel=METHOD, min=0)]
SoftSteps = Annotated[int, _training("soft_steps", panel=METHOD, min=0)]
MaskLr = Annotated[float | None, _training("mask_lr", panel=METHOD, min=0)]
SparsityWarmup = Annotated[float, _training("sparsity_warmup", panel=METHOD, min=0, max=1)]
Seed = Annotated[int, _training("seed", min=0)]
ReportTo = Annotated[str, _training("report_to", panel=OUTPUT)]
SaveSteps = Annotated[int | None, _training("save_steps", panel=OUTPUT, min=1)]

# -- where and how ---------------------------------------------------------------------------------

Device = Annotated[
    devices.Device,
    typer.Option(
        help="What runs the torch model; auto: a GPU if there is one (CUDA, then Apple's MPS).",
        rich_help_panel=TRAINING,
    ),
]
EvalDevice = Annotated[
    devices.Device,
    typer.Option(
        help="What runs the model: auto takes a GPU for torch, and the CPU for exported files, "
        "which need onnxruntime-gpu for cuda."
    ),
]
Out = Annotated[Path, typer.Option(help="Directory to write; it must be empty or absent.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume a stopped run.", rich_help_panel=OUTPUT)
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace what --out contains.", rich_help_panel=OUTPUT),
]
Engine = Annotated[
    Literal["local", "ray"],
    typer.Option(
        help="Do the runs here, one by one, or on a Ray cluster (needs toprune[ray]).",
        rich_help_panel=RAY,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of a Ray cluster, like host:6379 or auto (default: start one here).",
        rich_help_panel=RAY,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Workers of a locally started Ray (default: all cores).",
        rich_help_panel=RAY,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show tracebacks and the messages of libraries.",
        rich_help_panel=OUTPUT,
    ),
]

# Options of prune that are settings of a method now, with the setting and a flag's value.
RETIRED = {
    "--constraint": ("constraint", None),
    "--distill": ("distill", None),
    "--distill-weight": ("distill_weight", None),
    "--bins": ("bins", None),
    "--top-k": ("top_k", None),
    "--first-layer": ("first", None),
    "--no-gates": ("gates", "false"),
}


def is_set(ctx: typer.Context, option: str) -> bool:
    """Whether the user gave this option, so that its value is not the default."""
    source = ctx.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def without_set(ctx: typer.Context, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Training` that a recipe changes, without those that the user set."""
    options = {"hard_epochs": "epochs"}  # the option that sets a field of another name
    return {k: v for k, v in recipe.items() if not is_set(ctx, options.get(k, k))}
