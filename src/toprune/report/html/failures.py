"""Who pays for the speed: recall class by class, and examples whose answer changed."""

from typing import Any

from toprune.report.html.charts import Group, Mark, ranges
from toprune.report.html.parts import (
    block,
    figure,
    figures,
    legend,
    number,
    paragraph,
    table,
    user_text,
)
from toprune.tasks import TASKS, Task

Report = dict[str, Any]
SHOWN = 20  # classes in the chart, those that changed most
OUTCOMES = {  # of an example: a class of report.css, and a word
    "lost": ("bad", "worse"),
    "won": ("good", "better"),
    "even": ("", "neither better nor worse"),
}
OPEN = 6  # examples that are not folded away
LONG = 40  # characters of an answer that gets its own line


def classes(report: Report) -> str:
    """The section about recall by class."""
    recalls = report.get("classes") or []
    if not recalls:
        return ""
    order = sorted(range(len(recalls)), key=lambda i: _moved(recalls[i]))
    known = [i for i in order if recalls[i]["dense"] is not None]
    rows = [
        [
            user_text(recalls[i]["name"]),
            number(report, "classes", i, "count", form=","),
            number(report, "classes", i, "dense", form=".1f", times=100),
            number(report, "classes", i, "pruned", form=".1f", times=100),
            _change(recalls[i]),
            number(report, "classes", i, "changed", form=","),
        ]
        for i in order
    ]
    header = ("", "count", "dense", "pruned", "change", "changed")
    numbers = table("Recall in points; the last column counts changed answers", header, rows)
    if not known:
        return numbers
    shown = sorted(known, key=lambda i: -abs(_moved(recalls[i])))[:SHOWN]
    groups = [
        Group(
            recalls[i]["name"],
            [Mark(model, 100 * recalls[i][model]) for model in ("dense", "pruned")],
        )
        for i in order
        if i in shown
    ]
    description = "; ".join(
        f"{g.name}: dense {g.marks[0].value:.1f}, pruned {g.marks[1].value:.1f}" for g in groups
    )
    subset = "" if len(groups) == len(recalls) else f", {len(groups)} classes that changed most"
    keys = legend([("dense", "dense"), ("pruned", "pruned")])
    chart = figure(
        "classes", f"Recall in points{subset}", f"{description}.", ranges(groups), keys=keys
    )
    if subset:
        numbers = f"<details><summary>All {len(recalls)} classes</summary>{numbers}</details>"
    about = paragraph("Recall is the share of the examples of a class that a model finds.")
    return about + figures(chart, block(numbers))


def _moved(row: dict[str, Any]) -> float:
    return 0.0 if row["dense"] is None else row["pruned"] - row["dense"]


def _change(row: dict[str, Any]) -> str:
    if row["dense"] is None:
        return "\u2013"
    return f"{100 * _moved(row):+.1f}".replace("-", "\u2212")


def examples(report: Report) -> str:
    """The section about examples whose answer changed."""
    changed = report.get("changed")
    if not changed:
        return ""
    if not changed["examples"]:
        return paragraph("Dense and pruned give the same answer to every example.")
    cases = [_case(report, i) for i in range(len(changed["examples"]))]
    more = cases[OPEN:]
    return (
        paragraph(_counted(report))
        + f'<ul class="cases">{"".join(cases[:OPEN])}</ul>'
        + (f"<details><summary>{len(more)} more</summary>" if more else "")
        + (f'<ul class="cases">{"".join(more)}</ul></details>' if more else "")
    )


def _counted(report: Report) -> str:
    changed, shown = report["changed"], len(report["changed"]["examples"])
    if changed["count"] is None:
        return f"These are the {shown} examples for which dense and pruned differ most."
    unit = TASKS.get(report.get("task", ""), Task).UNIT
    text = f"{number(report, 'changed', 'count', form=',')} {unit} have another answer than before."
    if "lost" in changed:
        text += (
            f" {number(report, 'changed', 'lost', form=',')} answers are worse, "
            f"{number(report, 'changed', 'won', form=',')} are better."
        )
    return text if shown == changed["count"] else f"{text} Here are {shown} of them."


def _case(report: Report, at: int) -> str:
    case = report["changed"]["examples"][at]
    style, verdict = OUTCOMES.get(case.get("outcome", ""), ("", ""))
    lines = [f"<blockquote>{user_text(case['text'])}</blockquote>"]
    if "pair" in case:
        lines.append(f"<blockquote>{user_text(case['pair'])}</blockquote>")
    answers: list[tuple[str, str]] = []
    pruned = "pruned" if "dense" in case else "cosine of the two vectors"  # of single texts
    names = {"dense": "dense", "pruned": pruned}
    for key, name in (names | {"label": "label"}).items():
        if key in case:
            answers.append((name, _answer(report, at, key)))
    pairs = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in answers)
    if verdict:
        pairs += f'<div><dt>result</dt><dd class="verdict">{verdict}</dd></div>'
    is_long = any(len(str(case.get(key, ""))) > LONG for key in ("dense", "pruned", "label"))
    shape = ' class="long"' if is_long else ""
    return f'<li class="{style}">{"".join(lines)}<dl{shape}>{pairs}</dl></li>'


def _answer(report: Report, at: int, key: str) -> str:
    value = report["changed"]["examples"][at][key]
    if isinstance(value, int | float):
        return number(report, "changed", "examples", at, key, form=".3f")
    return user_text(value) if str(value) else '<span class="soft">no answer</span>'
