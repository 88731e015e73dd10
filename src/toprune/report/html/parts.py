"""Pieces of HTML that our pages are put together from. Every number knows where in the JSON it is
from: `<data value="0.92" data-at="/dense/f1/value">92.0</data>`, so that a test can hold them
together and a program can read the page."""

import json
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from toprune.report.html.shell import escape
from toprune.report.svg import PAGE_WIDTH, Drawing

Cell = str  # HTML


def number(
    report: Any,
    *path: str | int,
    form: str = ".2f",
    unit: str = "",
    times: float = 1,
    least: float | None = None,
) -> Cell:
    """The number at that place of the report, as people read it; a dash where there is none.
    least: smaller ones are only said to be smaller."""
    value = _at(report, path)
    if value is None or not isfinite(value):
        return '<span aria-label="not known">\u2013</span>'
    at = "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in path)
    told = f"{value * times:{form}}{unit}".replace("-", "\u2212")
    told = f"< {least:g}" if least is not None and value < least else told
    return f'<data value="{json.dumps(value)}" data-at="{escape(at)}">{escape(told)}</data>'


def interval(
    report: Any, *path: str | int, form: str = ".2f", unit: str = "", times: float = 1
) -> Cell:
    """A figure {value, low, high} as `92.0 [91.1, 92.9]`."""
    found = _at(report, path)
    told = number(report, *path, "value", form=form, unit=unit, times=times)
    if "low" not in found or "high" not in found:
        return told
    ends = (number(report, *path, end, form=form, times=times) for end in ("low", "high"))
    return f'{told} <span class="soft range">[{", ".join(ends)}]</span>'


def _at(report: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        report = report[key]
    return report


def words(text: Any) -> Cell:
    """Words of others: their direction must not turn ours around."""
    return f'<bdi dir="auto">{escape(str(text))}</bdi>'


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """The first column names the row, the others hold numbers. `header` and `caption` are text."""
    first, *others = header
    names = [f'<th scope="col">{escape(first)}</th>']
    names += [f'<th scope="col" class="number">{escape(name)}</th>' for name in others]
    lines = [
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f'<td class="number">{cell}</td>' for cell in row[1:])
        + "</tr>"
        for row in rows
    ]
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{''.join(names)}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def legend(keys: Iterable[tuple[str, str]]) -> str:
    """Class and name of each colour."""
    spans = (f'<span><i class="{kind}"></i>{words(name)}</span>' for kind, name in keys)
    return f'<p class="legend" aria-hidden="true">{"".join(spans)}</p>'


def figure(
    name: str, title: str, says: str, drawing: Drawing, numbers: str = "", keys: str = ""
) -> str:
    """A chart, what it says for those who do not see it, and its numbers. `name`: for the ids."""
    return (
        f'<figure id="{name}"><figcaption>{escape(title)}</figcaption>{keys}'
        f'<svg viewBox="0 0 {PAGE_WIDTH} {drawing.height}" role="img" '
        f'aria-labelledby="{name}-title {name}-says"><title id="{name}-title">{escape(title)}'
        f'</title><desc id="{name}-says">{escape(says)}</desc>{drawing.content}</svg>'
        + (f"<details><summary>The numbers</summary>{numbers}</details>" if numbers else "")
        + "</figure>"
    )


def section(title: str, *parts: str) -> str:
    """Nothing where there is nothing to say."""
    inner = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>\n{inner}\n</section>" if inner else ""


def figures(*parts: str) -> str:
    """Side by side where there is room."""
    inner = "".join(part for part in parts if part)
    return f'<div class="figures">{inner}</div>' if inner else ""


def block(*parts: str) -> str:
    """Words that stand beside a figure."""
    return f'<div class="block">{"".join(parts)}</div>'


def facts(rows: Iterable[tuple[str, Cell]]) -> str:
    """Names (text) and what there is to say of them."""
    inner = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="facts">{inner}</dl>' if inner else ""


def steps(rows: Iterable[tuple[str, Cell, str]]) -> str:
    """Names, a number each, and what it is; names and explanations are text."""
    inner = "".join(
        f"<div><dt>{escape(name)} <b>{value}</b></dt><dd>{escape(why)}</dd></div>"
        for name, value, why in rows
    )
    return f'<dl class="steps">{inner}</dl>'


def command(*options: str) -> str:
    """A line for a shell, broken between its options only."""
    parts = " ".join(f'<span class="whole">{escape(option)}</span>' for option in options)
    return f"<pre><code>{parts}</code></pre>"


def paragraph(*parts: str, soft: bool = False) -> str:
    """Of HTML."""
    inner = " ".join(part for part in parts if part)
    return f"<p{' class=soft' if soft else ''}>{inner}</p>" if inner else ""
