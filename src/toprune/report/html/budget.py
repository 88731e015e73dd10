"""What was asked for, what the masks promised, what runs: never one reduction without its name."""

from typing import Any

from toprune.errors import UserError
from toprune.plan.budget import Budget
from toprune.report.html.charts import Group, Mark, bars
from toprune.report.html.parts import block, figure, figures, number, paragraph, steps, words


def budget(report: dict[str, Any]) -> str:
    if "budget" not in report:
        return ""
    found, length = report["budget"], report.get("max_length")
    executed = found["executed"]
    padded = f"padded to {length} tokens" if length else "padded"
    told = [
        ("unpadded", "unpadded", "against the same inputs without padding: the real one"),
        (padded, "padded", "against dense inputs that are all padded, as papers print it"),
        ("by the paper", "paper", "without padding, counted by ToP's formula (its eq. 4)"),
    ]
    rows = [("asked for", words(found["asked"]), "of the real FLOPs")]
    groups: list[Group] = []
    if (asked := _asked(found["asked"])) is not None:
        groups.append(Group("asked for", [Mark("asked", asked)]))
    if found.get("expected") is not None:
        groups.append(Group("expected by the learned masks", [Mark("asked", found["expected"])]))
        expected = number(report, "budget", "expected", unit="x")
        rows.append(("expected", expected, "by the learned masks, before they became a plan"))
    for name, key, why in told:
        if executed.get(key) is not None:
            kind = "pruned" if key == "unpadded" else "dense"
            groups.append(Group(f"executed, {name}", [Mark(kind, executed[key])]))
            value = number(report, "budget", "executed", key, unit="x")
            rows.append((f"executed, {name}", value, why))
    says = "; ".join(f"{g.name}: {g.marks[0].value:.2f} times fewer FLOPs" for g in groups)
    about = paragraph(
        "The reduction that counts is against the same inputs without padding. The others are "
        "named because papers print them; they look larger where texts are short."
    )
    title = "Times fewer FLOPs than dense"
    return figures(
        block(about, steps(rows)), figure("budget", title, f"{says}.", bars(groups, level=1.0))
    )


def _asked(asked: str) -> float | None:
    try:
        return Budget.parse(asked).reduction
    except UserError:
        return None
