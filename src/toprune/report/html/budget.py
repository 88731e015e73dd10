"""FLOPs: requested, expected by the masks, executed. No reduction is shown without its name."""

from typing import Any

from toprune.errors import UserError
from toprune.plan.budget import Budget
from toprune.plan.counts import MEANINGS
from toprune.report.counts import count_of
from toprune.report.html.charts import Group, Mark, bars
from toprune.report.html.parts import (
    block,
    figure,
    figures,
    number,
    paragraph,
    steps,
    table,
    user_text,
)
from toprune.report.html.shell import escape
from toprune.report.times import PARTS, time_rows


def budget(report: dict[str, Any]) -> str:
    """The section about FLOPs."""
    if "budget" not in report:
        return ""
    asked, executed = report["budget"]["asked"], report["budget"]["executed"]
    length = report.get("max_length")
    padded = f"padded to {length} tokens" if length else "padded"
    counts = [
        ("unpadded", "unpadded", "against the same inputs without padding: the real one"),
        (padded, "padded", "against dense inputs that are all padded"),
        ("by the paper", "paper", "without padding, counted by ToP's formula (its eq. 4)"),
        ("by the paper, padded", "paper_padded", f"by that formula, dense inputs {padded}"),
        (
            "by the authors, padded",
            "authors_padded",
            f"as ToP's code counts, dense inputs {padded}",
        ),
    ]
    timed = report.get("time")
    meaning = "time of one text" if timed else MEANINGS[count_of(report["budget"])]
    rows = [("requested", user_text(asked), meaning)]
    groups: list[Group] = []
    if (requested := _reduction(asked)) is not None:
        groups.append(Group("requested", [Mark("requested", requested)]))
    if (expected := report["budget"].get("expected")) is not None and not timed:
        groups.append(Group("expected by the learned masks", [Mark("requested", expected)]))
        value = number(report, "budget", "expected", unit="x")
        rows.append(("expected", value, "by the learned masks, before they became a plan"))
    for name, key, meaning in counts:
        if executed.get(key) is not None:
            colour = "pruned" if key == "unpadded" else "dense"
            groups.append(Group(f"executed, {name}", [Mark(colour, executed[key])]))
            value = number(report, "budget", "executed", key, unit="x")
            rows.append((f"executed, {name}", value, meaning))
    description = "; ".join(f"{g.name}: {g.marks[0].value:.2f} times fewer FLOPs" for g in groups)
    about = paragraph(
        "The reduction that counts is the one against the same inputs without padding. The others "
        "are here because papers print them; they look larger where texts are short."
    )
    chart = bars(groups, level=1.0)
    return figures(
        block(about, steps(rows)),
        figure("budget", "Times fewer FLOPs than dense", f"{description}.", chart),
    ) + (_times(timed) if timed else "")


def _times(timed: dict[str, Any]) -> str:
    """A budget in milliseconds: requested, predicted and measured, and the curve of the model."""
    title, rows = time_rows(timed)
    cells = [(escape(name), user_text(value)) for name, value in rows.items()]
    curve = timed["curve"]
    lines = [
        [str(n), *(f"{curve['milliseconds'][name][i]:.3f}" for name in PARTS)]
        for i, n in enumerate(curve["counts"])
    ]
    header = ["tokens", *(name.replace("\n", " ") for name in PARTS.values())]
    return (
        table(title, ["", "ms"], cells)
        + table("The curve: milliseconds of the parts of the model there", header, lines)
        + paragraph("These times hold for that machine alone; export measures them on another one.")
    )


def _reduction(asked: str) -> float | None:
    try:
        budget = Budget.parse(asked)
        return budget.reduction if budget.milliseconds is None else None
    except UserError:
        return None
