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
    words,
)
from toprune.tasks import TASKS, Task

Report = dict[str, Any]
SHOWN = 20  # classes in the chart, those that moved most
OUTCOMES = {  # of an example: a class of the style, and words
    "lost": ("bad", "got worse"),
    "won": ("good", "got better"),
    "even": ("", "is neither better nor worse"),
}
OPEN = 6  # examples that are seen at once
LONG = 40  # characters of an answer that gets a line of its own


def classes(report: Report) -> str:
    found = report.get("classes") or []
    if not found:
        return ""
    order = sorted(range(len(found)), key=lambda i: _moved(found[i]))
    known = [i for i in order if found[i]["dense"] is not None]
    rows = [
        [
            words(found[i]["name"]),
            number(report, "classes", i, "count", form=","),
            number(report, "classes", i, "dense", form=".1f", times=100),
            number(report, "classes", i, "pruned", form=".1f", times=100),
            _change(found[i]),
            number(report, "classes", i, "changed", form=","),
        ]
        for i in order
    ]
    header = ("", "count", "dense", "pruned", "change", "changed")
    numbers = table("Recall in points; the last column counts changed answers", header, rows)
    if not known:
        return numbers
    worst = sorted(known, key=lambda i: -abs(_moved(found[i])))[:SHOWN]
    groups = [
        Group(found[i]["name"], [Mark(kind, 100 * found[i][kind]) for kind in ("dense", "pruned")])
        for i in order
        if i in worst
    ]
    says = "; ".join(
        f"{g.name}: dense {g.marks[0].value:.1f}, pruned {g.marks[1].value:.1f}" for g in groups
    )
    some = "" if len(groups) == len(found) else f", {len(groups)} classes that moved most"
    keys = legend([("dense", "dense"), ("pruned", "pruned")])
    chart = figure("classes", f"Recall in points{some}", f"{says}.", ranges(groups), keys=keys)
    if some:
        numbers = f"<details><summary>All {len(found)} classes</summary>{numbers}</details>"
    about = paragraph("Recall is the share of a class's own that a model finds.")
    return about + figures(chart, block(numbers))


def _moved(row: dict[str, Any]) -> float:
    return 0.0 if row["dense"] is None else row["pruned"] - row["dense"]


def _change(row: dict[str, Any]) -> str:
    if row["dense"] is None:
        return "\u2013"
    return f"{100 * _moved(row):+.1f}".replace("-", "\u2212")


def examples(report: Report) -> str:
    found = report.get("changed")
    if not found:
        return ""
    if not found["examples"]:
        return paragraph("Dense and pruned give the same answer to every example.")
    cases = [_case(report, i) for i in range(len(found["examples"]))]
    more = cases[OPEN:]
    return (
        paragraph(_counted(report))
        + f'<ul class="cases">{"".join(cases[:OPEN])}</ul>'
        + (f"<details><summary>{len(more)} more</summary>" if more else "")
        + (f'<ul class="cases">{"".join(more)}</ul></details>' if more else "")
    )


def _counted(report: Report) -> str:
    found, shown = report["changed"], len(report["changed"]["examples"])
    if found["count"] is None:
        return f"These {shown} are where dense and pruned are farthest apart."
    unit = TASKS.get(report.get("task", ""), Task).UNIT
    told = f"{number(report, 'changed', 'count', form=',')} {unit} get another answer than before."
    if "lost" in found:
        told += (
            f" Of these {number(report, 'changed', 'lost', form=',')} got worse, "
            f"{number(report, 'changed', 'won', form=',')} got better."
        )
    return told if shown == found["count"] else f"{told} Here are {shown} of them."


def _case(report: Report, at: int) -> str:
    case = report["changed"]["examples"][at]
    kind, verdict = OUTCOMES.get(case.get("outcome", ""), ("", ""))
    lines = [f"<blockquote>{words(case['text'])}</blockquote>"]
    if "pair" in case:
        lines.append(f"<blockquote>{words(case['pair'])}</blockquote>")
    told: list[tuple[str, str]] = []
    pruned = "pruned" if "dense" in case else "cosine of the two vectors"  # of single texts
    names = {"dense": "dense", "pruned": pruned}
    for key, name in (names | {"label": "label"}).items():
        if key in case:
            told.append((name, _answer(report, at, key)))
    pairs = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in told)
    if verdict:
        pairs += f'<div><dt>so it</dt><dd class="verdict">{verdict}</dd></div>'
    is_long = any(len(str(case.get(key, ""))) > LONG for key in ("dense", "pruned", "label"))
    shape = ' class="long"' if is_long else ""
    return f'<li class="{kind}">{"".join(lines)}<dl{shape}>{pairs}</dl></li>'


def _answer(report: Report, at: int, key: str) -> str:
    value = report["changed"]["examples"][at][key]
    if isinstance(value, int | float):
        return number(report, "changed", "examples", at, key, form=".3f")
    return words(value) if str(value) else '<span class="soft">no answer</span>'
