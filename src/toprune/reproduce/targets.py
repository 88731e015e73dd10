"""The tables and figures of the ToP paper as data: what each shows, for which datasets, and which
runs it needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toprune.errors import UserError
from toprune.plan.budget import Count
from toprune.reproduce.paper import Kind, Published

Shape = Literal[
    "scores",
    "sparsities",
    "kept",
    "latency",
    "predictors",
    "data",
    "settings",
    "bands",
    "case",
]

GLUE = ("mrpc", "rte", "cola", "stsb", "sst2", "qnli", "mnli", "qqp")
LONG = ("20news", "squad")
SPARSITIES = (30, 40, 50, 60, 70)  # figure 4: % of the real FLOPs removed
FEW_SPARSITIES = ("40%", "60%")  # of these, at the scale tiny
TOP = "top:received"


@dataclass(frozen=True)
class Row:
    """A run of a table, and what the paper prints about it."""

    number: int
    name: str
    method: str  # as `compare` takes it
    budget: str
    count: Count
    model: Kind = "base"
    changes: tuple[tuple[str, Any], ...] = ()  # settings of the method, for an ablation
    paper: dict[str, float | None] = field(default_factory=dict[str, float | None])
    note: str = ""


Rows = Callable[[Published, Count], list[Row]]


@dataclass(frozen=True)
class Target:
    """A table or figure of the paper."""

    name: str
    title: str
    shape: Shape  # how its result is made and shown
    tasks: tuple[str, ...] = GLUE
    rows: Rows = lambda paper, count: []  # the runs that it needs


def _printed(paper: Published, *path: str | int) -> dict[str, float | None]:
    """Score and reduction of a row, beside the score of the dense model."""
    figures = {key: paper.figure(*path, key) for key in ("score", "reduction")}
    loss = paper.figure(*path, "loss")
    if loss is not None:
        figures["loss"] = loss
    return figures | {"dense": paper.figure("dense")}


def _times(reduction: float | None, paper: Published) -> str:
    if reduction is None:
        raise UserError(f"{paper.title} is not in this table of the paper")
    return f"{reduction:g}x"


def _top(paper: Published, count: Count, number: int, level: int, name: str) -> Row:
    """ToP at the first (low) or second (high) sparsity of tables 2 and 3."""
    budget = _times(paper.figure("top", level, "reduction"), paper)
    return Row(number, name, TOP, budget, count, paper=_printed(paper, "top", level))


def high(paper: Published, count: Count, number: int = 1, name: str = "ToP") -> Row:
    """ToP at the highest sparsity that the paper prints for this dataset."""
    level = 1 if paper.figure("top", 1, "reduction") is not None else 0
    return _top(paper, count, number, level, name)


def _rivals(paper: Published, count: Count, number: int) -> list[Row]:
    rows: list[Row] = []
    for method, name in (("ltp", "LTP"), ("transkimmer", "Transkimmer")):
        reduction = paper.figure(method, "reduction")
        if reduction is not None:
            budget, printed = _times(reduction, paper), _printed(paper, method)
            rows.append(Row(number + len(rows), name, method, budget, count, paper=printed))
    return rows


def _table_2(paper: Published, count: Count) -> list[Row]:
    real = paper.figure("roberta", "real")
    note = "the paper's factor, converted to unpadded inputs, is the budget of executed FLOPs"
    return [
        _top(paper, count, 1, 0, "ToP, low sparsity"),
        _top(paper, count, 2, 1, "ToP, high sparsity"),
        Row(3, "ToP, RoBERTa", TOP, _times(real, paper), "executed", "roberta", note=note),
        *_rivals(paper, count, 4),
    ]


def _table_3(paper: Published, count: Count) -> list[Row]:
    return [_top(paper, count, 1, 0, "ToP"), *_rivals(paper, count, 2)]


def _table_4(paper: Published, count: Count) -> list[Row]:
    """Methods with fewer weights save the same for every length, so their factor is a real one."""
    base, cofi = high(paper, count, 3), paper.figure("cofi", "reduction")
    distilled = _printed(paper, "distilbert")
    rows = [
        Row(1, "DistilBERT", "drop_layers", "2x", "executed", paper=distilled),
        Row(
            2,
            "CoFi",
            "cofi",
            "3x" if cofi is None else f"{cofi:g}x",
            "executed",
            paper=_printed(paper, "cofi"),
            note="" if cofi else "its factor is not in our copy of the paper; 3x here",
        ),
        base,
    ]
    six = paper.figure("six", "reduction")
    if six is not None:
        printed = _printed(paper, "six") | {"dense": None}
        rows.append(Row(4, "ToP, BERT with 6 layers", TOP, f"{six:g}x", count, "six", (), printed))
    return rows


def _table_5(paper: Published, count: Count) -> list[Row]:
    whole = high(paper, count, 1, "ToP")
    rows = [whole]
    for number, (key, name, changes) in enumerate(
        (
            ("gates", "without gates", (("gates", False),)),
            ("none", "without distillation", (("distill", "none"),)),
            ("mse", "MSE in place of LambdaLoss", (("distill", "mse"),)),
            ("ce", "CE in place of LambdaLoss", (("distill", "ce"),)),
        ),
        2,
    ):
        printed = whole.paper | {"score": paper.figure("ablation", key)}
        rows.append(Row(number, name, TOP, whole.budget, count, changes=changes, paper=printed))
    return rows


def _figure_4(paper: Published, count: Count) -> list[Row]:
    """Budgets are of executed FLOPs: the paper's sparsity is against unpadded inputs, too."""
    methods = ((TOP, "ToP"), ("ltp", "LTP"), ("transkimmer", "Transkimmer"))
    return [
        Row(number, name, method, f"{sparsity}%", "executed")
        for number, (method, name, sparsity) in enumerate(
            ((method, name, sparsity) for method, name in methods for sparsity in SPARSITIES), 1
        )
    ]


def _figure_5(paper: Published, count: Count) -> list[Row]:
    if paper.figure("top", 1, "reduction") is None:
        return [_top(paper, count, 1, 0, "the paper's sparsity")]
    return [
        _top(paper, count, 1, 0, "low sparsity"),
        _top(paper, count, 2, 1, "high sparsity"),
    ]


def _table_6(paper: Published, count: Count) -> list[Row]:
    return [high(paper, count)]


def _table_9(paper: Published, count: Count) -> list[Row]:
    whole = high(paper, count, 1, "with distillation")
    changes = (("distill", "none"),)
    without = Row(2, "without distillation", TOP, whole.budget, count, changes=changes)
    return [whole, without]


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("table1", "What the networks that predict tokens cost", "predictors"),
        Target("table2", "GLUE", "scores", rows=_table_2),
        Target("table3", "SQuAD v2.0 and 20News", "scores", LONG, _table_3),
        Target(
            "table4",
            "Against DistilBERT and CoFi",
            "scores",
            ("mrpc", "20news", "cola", "mnli"),
            _table_4,
        ),
        Target("table5", "Ablations: gates and ranking distillation", "scores", rows=_table_5),
        Target(
            "table6",
            "Latency on padded inputs",
            "latency",
            ("mrpc", "rte", "squad", "20news"),
            _table_6,
        ),
        Target("table7", "The datasets", "data", (*GLUE, *LONG)),
        Target("table8", "Settings", "settings", (*GLUE, *LONG)),
        Target("table9", "A question and the rank of its answer", "case", ("squad",), _table_9),
        Target("figure1", "Attention by rank", "bands", (*GLUE, *LONG, "imdb")),
        Target(
            "figure4",
            "Score over sparsity: ToP, LTP, Transkimmer",
            "sparsities",
            ("sst2", "qqp", "mnli", "20news", "mrpc", "rte", "cola", "stsb", "qnli", "imdb"),
            _figure_4,
        ),
        Target("figure5", "Tokens that enter each layer", "kept", (*GLUE, *LONG), _figure_5),
    )
}


def find_target(name: str) -> Target:
    """The target of that name, also written as `Table 2`."""
    key = name.lower().replace(" ", "").replace("_", "")
    if key not in TARGETS:
        raise UserError(f"there is no target {name!r}; there are: {', '.join(TARGETS)}")
    return TARGETS[key]


def choose_rows(rows: Sequence[Row], numbers: Sequence[int] = ()) -> list[Row]:
    """The rows with these numbers; all of them if none is named."""
    unknown = {*numbers} - {row.number for row in rows}
    if unknown:
        known = ", ".join(f"{row.number} ({row.name})" for row in rows)
        raise UserError(f"there is no row {min(unknown)} here; there are: {known or 'none'}")
    return [row for row in rows if not numbers or row.number in numbers]
