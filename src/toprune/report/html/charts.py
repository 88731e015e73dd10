"""Drawings for our pages besides lines: bars, ranges, columns and heat strips. report.css colours
them; `parts.figure` puts a title and the numbers beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toprune.report.svg import (
    PAGE_WIDTH,
    Attributes,
    Drawing,
    Scale,
    circle,
    line,
    tag,
    text,
    ticks,
)


@dataclass(frozen=True)
class Mark:
    """A number, with its interval where it is known. `colour` is a class of report.css."""

    colour: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Group:
    """Marks that belong together, one below the other."""

    name: str
    marks: Sequence[Mark]


def bars(groups: Sequence[Group], *, unit: str = "x", level: float | None = None) -> Drawing:
    """Bars from zero to the right, with names above them.

    Args:
        unit: written behind every number.
        level: a value to compare the bars with, drawn across all of them.
    """
    marks = [mark for group in groups for mark in group.marks]
    most = max(m.high if m.high is not None else m.value for m in marks)
    px = Scale([0.0, max(most, level or 0.0) or 1.0], 2, PAGE_WIDTH - 62)
    parts, y = list[str](), 18.0 if level is not None else 2.0
    for group in groups:
        parts.append(_name(2, y + 13, group.name, 62))
        y += 19
        for mark in group.marks:
            size: Attributes = {"width": px(mark.value) - px(0), "height": 13}
            parts.append(tag("rect", x=px(0), y=y, class_=mark.colour, **size))
            if level is not None:
                parts.append(line(px(level), y - 2, px(level), y + 15, class_="level"))
            parts += _whisker(px, mark, y + 6.5)
            end = max(px(mark.value), px(mark.high) if mark.high is not None else 0)
            parts.append(text(end + 6, y + 11, f"{mark.value:.2f}{unit}"))
            y += 17
        y += 8
    if level is not None:
        parts.append(text(px(level), 11, f"{level:g}{unit}", class_="faint middle"))
    return Drawing.of(parts, y)


def ranges(groups: Sequence[Group]) -> Drawing:
    """Dots along one axis: below each other with their intervals, or else on one joined line."""
    marks = [mark for group in groups for mark in group.marks]
    values = [v for m in marks for v in (m.value, m.low, m.high) if v is not None]
    left, right = 128.0, PAGE_WIDTH - 14.0
    px = Scale(ticks(min(values), max(values), 5), left, right)
    parts, y = list[str](), 4.0
    for group in groups:
        apart = any(mark.low is not None for mark in group.marks)
        height = 15.0 * len(group.marks) + 8 if apart else 23.0
        middle = y + height / 2
        parts.append(_name(left - 12, middle + 4, group.name, 17, class_="end"))
        if not apart and len(group.marks) > 1:
            ends = [px(mark.value) for mark in group.marks]
            parts.append(line(min(ends), middle, max(ends), middle, class_="join"))
        for i, mark in enumerate(group.marks):
            at = y + 11.5 + 15 * i if apart else middle
            parts += _whisker(px, mark, at)
            parts.append(circle(px(mark.value), at, r=4.5, class_=mark.colour))
        y += height
    grid = [line(px(tick), 4, px(tick), y, class_="grid") for tick in px.ticks]
    axis = [text(px(tick), y + 16, f"{tick:g}", class_="faint middle") for tick in px.ticks]
    return Drawing.of([*grid, *parts, *axis], y + 24)


def columns(values: Sequence[float], *, x: str) -> Drawing:
    """Upright bars, one for each layer from one on, with their numbers on top. x: the axis."""
    bottom, step = 170.0, (PAGE_WIDTH - 8) / len(values)
    py = Scale([0.0, max(values) or 1.0], bottom, 18)
    every = 1 if step >= 22 else 2
    parts: list[str] = []
    for i, value in enumerate(values):
        middle = 4 + (i + 0.5) * step
        size: Attributes = {"width": step * 0.78, "height": bottom - py(value)}
        parts.append(tag("rect", x=middle - step * 0.39, y=py(value), class_="pruned", **size))
        if i % every == 0:
            parts.append(text(middle, py(value) - 5, f"{value:g}", class_="middle"))
            parts.append(text(middle, bottom + 16, str(i + 1), class_="faint middle"))
    parts.append(line(4, bottom, PAGE_WIDTH - 4, bottom, class_="axis"))
    parts.append(text(PAGE_WIDTH / 2, bottom + 34, x, class_="faint middle"))
    return Drawing.of(parts, bottom + 40)


def heat(rows: Sequence[tuple[str, Sequence[float]]], *, ends: tuple[str, str]) -> Drawing:
    """Numbers from zero to one as the strength of a colour, time from left to right.

    Args:
        rows: the name of each row and its numbers.
        ends: what is written below the first and the last column.
    """
    left, right, height = 60.0, PAGE_WIDTH - 4.0, min(20.0, max(10.0, 200 / len(rows)))
    step = (right - left) / max(len(values) for _, values in rows)
    bottom = height * len(rows)
    parts = [tag("rect", x=left, y=0, width=right - left, height=bottom, class_="ground")]
    for number, (name, values) in enumerate(rows):
        y = height * number
        parts.append(_name(left - 6, y + height / 2 + 4, name, 9, class_="faint end"))
        for i, value in enumerate(values):
            shade = f"{min(1.0, max(0.0, value)):.2f}" if math.isfinite(value) else "0"
            size: Attributes = {"width": step + 0.3, "height": height - 1, "fill_opacity": shade}
            parts.append(tag("rect", x=left + i * step, y=y, class_="pruned", **size))
    parts.append(text(left, bottom + 16, ends[0], class_="faint"))
    parts.append(text(right, bottom + 16, ends[1], class_="faint end"))
    return Drawing.of(parts, bottom + 22)


def _name(x: float, y: float, name: str, most: int, **attributes: float | str) -> str:
    """A name that may be long: shortened here, complete in the table below the chart."""
    return text(x, y, name if len(name) <= most else f"{name[: most - 1]}\u2026", **attributes)


def _whisker(px: Scale, mark: Mark, y: float) -> list[str]:
    if mark.low is None or mark.high is None:
        return []
    low, high = px(mark.low), px(mark.high)
    ends = [line(x, y - 4, x, y + 4, class_="whisker") for x in (low, high)]
    return [line(low, y, high, y, class_="whisker"), *ends]
