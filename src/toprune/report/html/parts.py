"""Pieces of HTML that our pages are made of.

Every number carries its place in the JSON, so that a test can compare page and report, and a
program can read the page: `<data value="0.92" data-at="/dense/f1/value">92.0</data>`.
"""

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
    """The number at that place of the report, for people; a dash where there is none.

    Args:
        path: keys and indices that lead to the number.
        form: format specification.
        unit: written behind the number.
        times: factor, 100 for points.
        least: smaller numbers are shown as `< least`.
    """
    value = _at(report, path)
    if value is None or not isfinite(value):
        return '<span aria-label="not known">\u2013</span>'
    at = "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in path)
    shown = f"{value * times:{form}}{unit}".replace("-", "\u2212")
    shown = f"< {least:g}" if least is not None and value < least else shown
    return f'<data value="{json.dumps(value)}" data-at="{escape(at)}">{escape(shown)}</data>'


def interval(
    report: Any, *path: str | int, form: str = ".2f", unit: str = "", times: float = 1
) -> Cell:
    """A figure {value, low, high} as `92.0 [91.1, 92.9]`."""
    figure = _at(report, path)
    value = number(report, *path, "value", form=form, unit=unit, times=times)
    if "low" not in figure or "high" not in figure:
        return value
    ends = (number(report, *path, end, form=form, times=times) for end in ("low", "high"))
    return f'{value} <span class="soft range">[{", ".join(ends)}]</span>'


def _at(report: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        report = report[key]
    return report


def user_text(text: Any) -> Cell:
    """Text from elsewhere, as HTML: its writing direction must not change that of our text."""
    return f'<bdi dir="auto">{escape(str(text))}</bdi>'


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table whose first column names the row and whose others hold numbers.

    Args:
        caption, header: plain text.
        rows: cells of HTML.
    """
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
    """The legend of a chart. keys: class (of report.css) and name of each colour."""
    spans = (f'<span><i class="{style}"></i>{user_text(name)}</span>' for style, name in keys)
    return f'<p class="legend" aria-hidden="true">{"".join(spans)}</p>'


def figure(
    name: str, title: str, description: str, drawing: Drawing, numbers: str = "", keys: str = ""
) -> str:
    """A chart with its title and its numbers.

    Args:
        name: an id, once on the page.
        description: for those who do not see the chart.
        numbers: HTML of a table, folded away below the chart.
        keys: HTML of the legend.
    """
    return (
        f'<figure id="{name}"><figcaption>{escape(title)}</figcaption>{keys}'
        f'<svg viewBox="0 0 {PAGE_WIDTH} {drawing.height}" role="img" '
        f'aria-labelledby="{name}-title {name}-description">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-description">{escape(description)}</desc>{drawing.content}</svg>'
        + (f"<details><summary>The numbers</summary>{numbers}</details>" if numbers else "")
        + "</figure>"
    )


def section(title: str, *parts: str) -> str:
    """A section of the page; nothing if all its parts are empty."""
    inner = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>\n{inner}\n</section>" if inner else ""


def figures(*parts: str) -> str:
    """Figures and blocks, side by side where there is room."""
    inner = "".join(part for part in parts if part)
    return f'<div class="figures">{inner}</div>' if inner else ""


def block(*parts: str) -> str:
    """Text or tables that stand beside a figure."""
    return f'<div class="block">{"".join(parts)}</div>'


def facts(rows: Iterable[tuple[str, Cell]]) -> str:
    """A list of names (text) and their values (HTML)."""
    inner = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="facts">{inner}</dl>' if inner else ""


def steps(rows: Iterable[tuple[str, Cell, str]]) -> str:
    """A list of names (text), each with a number (HTML) and its meaning (text)."""
    inner = "".join(
        f"<div><dt>{escape(name)} <b>{value}</b></dt><dd>{escape(meaning)}</dd></div>"
        for name, value, meaning in rows
    )
    return f'<dl class="steps">{inner}</dl>'


def command(*options: str) -> str:
    """A command for a shell, broken between its options only."""
    parts = " ".join(f'<span class="whole">{escape(option)}</span>' for option in options)
    return f"<pre><code>{parts}</code></pre>"


def paragraph(*parts: str, soft: bool = False) -> str:
    """A paragraph of HTML parts; nothing if all are empty."""
    inner = " ".join(part for part in parts if part)
    return f"<p{' class=soft' if soft else ''}>{inner}</p>" if inner else ""
