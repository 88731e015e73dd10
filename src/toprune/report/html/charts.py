"""Charts as SVG for our pages: narrow, so that their words stay readable on a phone, and coloured
by classes, so that they follow the page into the dark.

Here are the drawings alone; `parts.figure` puts words and the numbers beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from toprune.report.svg import Line, Scale, tag, ticks

WIDTH = 420
SERIES = 6  # colours; more lines than that begin anew

STYLE = """
:root {
  --s0: #0a62c4; --s1: #b34700; --s2: #00735a; --s3: #8d3b8d; --s4: #7a6000; --s5: #3d6f95;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --s0: #62aeff; --s1: #ff9d5c; --s2: #4fcfae; --s3: #e39be0; --s4: #dcc24d; --s5: #9cc7e6;
  }
}
svg text { fill: var(--ink); font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg .faint { fill: var(--soft); }
svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--rule); }
svg .axis { stroke: var(--soft); }
svg .level { stroke: var(--ink); stroke-dasharray: 4 3; }
svg .whisker { stroke: var(--ink); stroke-width: 1.5; }
svg .join { stroke: var(--rule); stroke-width: 3; }
.dense { fill: var(--dense); stroke: var(--dense); background: var(--dense); }
.pruned { fill: var(--pruned); stroke: var(--pruned); background: var(--pruned); }
.asked { fill: var(--tint); stroke: var(--pruned); background: var(--tint); }
.s0 { stroke: var(--s0); fill: var(--s0); background: var(--s0); border-color: var(--s0); }
.s1 { stroke: var(--s1); fill: var(--s1); background: var(--s1); border-color: var(--s1); }
.s2 { stroke: var(--s2); fill: var(--s2); background: var(--s2); border-color: var(--s2); }
.s3 { stroke: var(--s3); fill: var(--s3); background: var(--s3); border-color: var(--s3); }
.s4 { stroke: var(--s4); fill: var(--s4); background: var(--s4); border-color: var(--s4); }
.s5 { stroke: var(--s5); fill: var(--s5); background: var(--s5); border-color: var(--s5); }
svg rect[class] { stroke: none; }
svg .ground { fill: var(--panel); }
svg rect.asked[class] { stroke: var(--pruned); }
svg polyline[class] { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg circle.ring { fill: var(--ground); stroke-width: 2; }
i.ring { background: var(--ground); }
svg .s1 { stroke-dasharray: 7 3; }
svg .s2 { stroke-dasharray: 2 3; }
svg .s3 { stroke-dasharray: 9 3 2 3; }
svg circle[class] { stroke-dasharray: none; }
"""


@dataclass(frozen=True)
class Drawing:
    """What is inside of an SVG that is WIDTH wide."""

    height: int
    inner: str


@dataclass(frozen=True)
class Mark:
    """A number, with its interval where one is known. `kind` is how it looks: a class of STYLE."""

    kind: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Group:
    """Marks that belong together, one below the other."""

    name: str
    marks: Sequence[Mark]


def bars(groups: Sequence[Group], *, unit: str = "x", level: float | None = None) -> Drawing:
    """From zero to the right, the name above each; `level`: a line across all of them."""
    all_marks = [mark for group in groups for mark in group.marks]
    most = max(m.high if m.high is not None else m.value for m in all_marks)
    px = Scale([0.0, max(most, level or 0.0) or 1.0], 2, WIDTH - 62)
    top = 18 if level is not None else 2
    parts, y = list[str](), float(top)
    for group in groups:
        parts.append(_words(2, y + 13, group.name, 62))
        y += 19
        for mark in group.marks:
            parts.append(
                tag("rect", x=px(0), y=y, width=px(mark.value) - px(0), height=13, class_=mark.kind)
            )
            if level is not None:
                parts.append(_line(px(level), y - 2, px(level), y + 15, "level"))
            parts += _whisker(px, mark, y + 6.5)
            end = max(px(mark.value), px(mark.high) if mark.high is not None else 0)
            parts.append(_text(end + 6, y + 11, f"{mark.value:.2f}{unit}"))
            y += 17
        y += 8
    if level is not None:
        parts.append(_text(px(level), 11, f"{level:g}{unit}", "faint middle"))
    return _drawing(parts, y)


def ranges(groups: Sequence[Group], *, zoom: bool = True) -> Drawing:
    """Dots with their intervals along one axis; those without lie on one line, joined. zoom: the
    axis begins where the numbers do, else at zero."""
    marks = [mark for group in groups for mark in group.marks]
    values = [v for m in marks for v in (m.value, m.low, m.high) if v is not None]
    values += [] if zoom else [0.0]
    left, right = 128.0, WIDTH - 14.0
    px = Scale(ticks(min(values), max(values), 5), left, right)
    parts, y = list[str](), 4.0
    for group in groups:
        apart = any(mark.low is not None for mark in group.marks)
        height = 15.0 * len(group.marks) + 8 if apart else 23.0
        parts.append(_words(left - 12, y + height / 2 + 4, group.name, 17, "end"))
        if not apart and len(group.marks) > 1:
            ends = [px(mark.value) for mark in group.marks]
            parts.append(_line(min(ends), y + height / 2, max(ends), y + height / 2, "join"))
        for i, mark in enumerate(group.marks):
            at = y + (11.5 + 15 * i if apart else height / 2)
            parts += _whisker(px, mark, at)
            parts.append(tag("circle", cx=px(mark.value), cy=at, r=4.5, class_=mark.kind))
        y += height
    grid = [_line(px(tick), 4, px(tick), y, "grid") for tick in px.ticks]
    axis = [_text(px(tick), y + 16, f"{tick:g}", "faint middle") for tick in px.ticks]
    return _drawing([*grid, *parts, *axis], y + 24)


def columns(values: Sequence[float], *, x: str) -> Drawing:
    """Upright bars, one for each layer from one on, with their numbers on top."""
    bottom, step = 170.0, (WIDTH - 8) / len(values)
    py = Scale([0.0, max(values) or 1.0], bottom, 18)
    every = 1 if step >= 22 else 2
    parts: list[str] = []
    for i, value in enumerate(values):
        left, middle = 4 + i * step, 4 + (i + 0.5) * step
        size = {"width": step * 0.78, "height": bottom - py(value)}
        parts.append(tag("rect", x=left + step * 0.11, y=py(value), class_="pruned", **size))
        if i % every == 0:
            parts.append(_text(middle, py(value) - 5, f"{value:g}", "middle"))
            parts.append(_text(middle, bottom + 16, str(i + 1), "faint middle"))
    parts.append(_line(4, bottom, WIDTH - 4, bottom, "axis"))
    parts.append(_text(WIDTH / 2, bottom + 34, x, "faint middle"))
    return _drawing(parts, bottom + 40)


def lines(
    found: Sequence[Line],
    *,
    x: str,
    y: str,
    start: float | None = None,
    floor: float | None = None,
    level: float | None = None,
    dots: bool = False,
) -> Drawing:
    """Points joined in the order of x. start, floor: shown at least from there on x, on y; level: a
    value to hold them against."""
    points = [p for line in found for p in line.points]
    widths = [p.x for p in points] + ([] if start is None else [start])
    heights = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    heights += [v for v in (floor, level) if v is not None]
    px = Scale(ticks(min(widths), max(widths), 6), 46, WIDTH - 14)
    py = Scale(ticks(min(heights), max(heights), 5), 196, 22)
    parts = [_text(4, 10, y, "faint"), _text(WIDTH - 14, 228, x, "faint end")]
    for tick in py.ticks:
        parts.append(_line(46, py(tick), WIDTH - 14, py(tick), "grid"))
        parts.append(_text(40, py(tick) + 4, f"{tick:g}", "faint end"))
    parts += [_text(px(tick), 212, f"{tick:g}", "faint middle") for tick in px.ticks]
    if level is not None:
        parts.append(_line(46, py(level), WIDTH - 14, py(level), "level"))
    for number, line in enumerate(found):
        parts += _series(line, px, py, series(number), dots)
    return _drawing(parts, 234)


def series(number: int) -> str:
    """The class of the n-th line; rings when the colours come round again."""
    return f"s{number % SERIES}" + (" ring" if number // SERIES % 2 else "")


def _series(line: Line, px: Scale, py: Scale, kind: str, dots: bool) -> list[str]:
    ordered = sorted(line.points, key=lambda p: p.x)
    way = " ".join(f"{px(p.x):.1f},{py(p.y):.1f}" for p in ordered)
    parts = [tag("polyline", points=way, class_=kind)]
    for p in ordered:
        if p.low is not None and p.high is not None:
            parts.append(_line(px(p.x), py(p.low), px(p.x), py(p.high), kind))
        if dots:
            parts.append(tag("circle", cx=px(p.x), cy=py(p.y), r=4, class_=kind))
    return parts


def heat(rows: Sequence[tuple[str, Sequence[float]]], *, ends: tuple[str, str]) -> Drawing:
    """Numbers from zero to one as the strength of a colour, time from left to right."""
    left, height = 60.0, min(20.0, max(10.0, 200 / len(rows)))
    step = (WIDTH - 4 - left) / max(len(values) for _, values in rows)
    bottom = height * len(rows)
    parts = [tag("rect", x=left, y=0, width=WIDTH - 4 - left, height=bottom, class_="ground")]
    for number, (name, values) in enumerate(rows):
        y = height * number
        parts.append(_words(left - 6, y + height / 2 + 4, name, 9, "faint end"))
        for i, value in enumerate(values):
            shade = f"{min(1.0, max(0.0, value)):.2f}" if isfinite(value) else "0"
            size = {"width": step + 0.3, "height": height - 1}
            at = {"x": left + i * step, "y": y}
            parts.append(tag("rect", class_="pruned", fill_opacity=shade, **at, **size))
    parts.append(_text(left, bottom + 16, ends[0], "faint"))
    parts.append(_text(WIDTH - 4, bottom + 16, ends[1], "faint end"))
    return _drawing(parts, bottom + 22)


def _whisker(px: Scale, mark: Mark, y: float) -> list[str]:
    if mark.low is None or mark.high is None:
        return []
    low, high = px(mark.low), px(mark.high)
    ends = [_line(x, y - 4, x, y + 4, "whisker") for x in (low, high)]
    return [_line(low, y, high, y, "whisker"), *ends]


def _words(x: float, y: float, words: str, most: int, kind: str = "") -> str:
    """A name that may be long: cut here, whole in the table below."""
    return _text(x, y, words if len(words) <= most else f"{words[: most - 1]}\u2026", kind)


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return tag("text", words, x=x, y=y, **({"class_": kind} if kind else {}))


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _drawing(parts: Sequence[str], height: float) -> Drawing:
    return Drawing(round(height), "".join(parts))
