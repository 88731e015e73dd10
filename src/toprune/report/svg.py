"""A line chart as SVG, by hand: a plotting library would be the heaviest thing we need.

The same numbers give the same bytes, so that a chart under version control changes when its numbers
do. It brings its own white ground, and so is as readable on a dark page as on a light one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toprune.report.html.shell import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 560, 50, 380  # of the plane; the legend is at its right
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito
INK, FAINT = "#222222", "#dddddd"


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None  # of the interval around y, where one is known
    high: float | None = None
    name: str = ""  # written beside it


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[Point]
    others: Sequence[Point] = ()  # that the line passes by


@dataclass(frozen=True)
class Scale:
    """From values to pixels: the first tick is at `start`, the last one at `end`."""

    ticks: Sequence[float]
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def chart(
    lines: Sequence[Line],
    *,
    title: str,
    x: str,
    y: str,
    start: float,
    level: tuple[str, float] | None = None,
) -> str:
    """Points joined in the order of x, their intervals as thin bars.

    start: from where on x is shown at least; points that are close together would else fill the
    plane with their noise. level: a name and a value to hold the points against, drawn across.
    """
    points = [point for line in lines for point in (*line.points, *line.others)]
    heights = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    heights += [] if level is None else [level[1]]
    widths = [start, *(p.x for p in points)]
    px = Scale(ticks(min(widths), max(widths)), LEFT, RIGHT)
    py = Scale(ticks(min(heights), max(heights)), BOTTOM, TOP)
    turned = f"translate(18 {(TOP + BOTTOM) / 2}) rotate(-90)"
    parts = [
        tag("rect", width=WIDTH, height=HEIGHT, fill="white"),
        _text(LEFT, 28, title, font_size=15),
        _text((LEFT + RIGHT) / 2, HEIGHT - 16, x, text_anchor="middle"),
        _text(0, 0, y, text_anchor="middle", transform=turned),
        *_axes(px, py),
    ]
    keys = [TOP + 6 + 22 * i for i in range(len(lines) + 1)]  # rows of the legend
    if level is not None:
        at, row = py(level[1]), keys.pop(0)
        parts += [
            _stroke(LEFT, at, RIGHT, at, INK, stroke_dasharray="6 4", class_="level"),
            _stroke(RIGHT + 16, row, RIGHT + 44, row, INK, stroke_dasharray="6 4"),
            _text(RIGHT + 52, row + 4, level[0]),
        ]
    for i, line in enumerate(lines):
        parts += _series(line, px, py, i, keys[i])
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" role="img">\n<title>{escape(title)}</title>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _axes(px: Scale, py: Scale) -> list[str]:
    parts: list[str] = []
    for tick in px.ticks:
        parts.append(_stroke(px(tick), TOP, px(tick), BOTTOM, FAINT))
        parts.append(_text(px(tick), BOTTOM + 20, f"{tick:g}", text_anchor="middle"))
    for tick in py.ticks:
        parts.append(_stroke(LEFT, py(tick), RIGHT, py(tick), FAINT))
        parts.append(_text(LEFT - 8, py(tick) + 4, f"{tick:g}", text_anchor="end"))
    parts.append(_stroke(LEFT, BOTTOM, RIGHT, BOTTOM, INK))
    parts.append(_stroke(LEFT, TOP, LEFT, BOTTOM, INK))
    return parts


def _series(line: Line, px: Scale, py: Scale, number: int, row: float) -> list[str]:
    """A line, its bars and markers, and its row of the legend."""
    colour = COLOURS[number % len(COLOURS)]
    is_ring = number // len(COLOURS) % 2 == 1  # when the colours come round again
    look = {"r": 4, "fill": "white" if is_ring else colour, "stroke": colour, "stroke_width": 2}
    ordered = sorted(line.points, key=lambda p: p.x)
    way = " ".join(f"{px(p.x):.1f},{py(p.y):.1f}" for p in ordered)
    parts = [tag("polyline", points=way, fill="none", stroke=colour, stroke_width=2)]
    for p in ordered:
        if p.low is not None and p.high is not None:
            bar = (px(p.x), py(p.low), px(p.x), py(p.high))
            parts.append(_stroke(*bar, colour, class_="interval"))
    parts += [tag("circle", class_="marker", cx=px(p.x), cy=py(p.y), **look) for p in ordered]
    small = look | {"r": 2, "stroke_width": 1}
    parts += [tag("circle", class_="other", cx=px(p.x), cy=py(p.y), **small) for p in line.others]
    parts += [_text(px(p.x) + 6, py(p.y) - 6, p.name, font_size=11) for p in ordered if p.name]
    return [
        *parts,
        _stroke(RIGHT + 16, row, RIGHT + 44, row, colour, stroke_width=2),
        tag("circle", cx=RIGHT + 30, cy=row, **look),
        _text(RIGHT + 52, row + 4, line.name),
    ]


def ticks(low: float, high: float, about: int = 8) -> list[float]:
    """Round numbers, one, two or five of some power of ten apart, that reach around both ends."""
    raw = ((high - low) or abs(high) or 1.0) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(many * power for many in (1, 2, 5, 10) if many * power >= raw * (1 - 1e-9))
    first, last = math.floor(round(low / step, 9)), math.ceil(round(high / step, 9))
    if first == last:
        first, last = first - 1, last + 1
    return [float(f"{many * step:.12g}") for many in range(first, last + 1)]


def tag(name: str, text: str | None = None, /, **attributes: float | str) -> str:
    """An element. Names are written as Python can: `class_`, `stroke_width`."""
    told = {
        key.rstrip("_").replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else value
        for key, value in attributes.items()
    }
    inner = "".join(f' {key}="{escape(str(value))}"' for key, value in told.items())
    return f"<{name}{inner}/>" if text is None else f"<{name}{inner}>{escape(text)}</{name}>"


def _text(x: float, y: float, words: str, **attributes: float | str) -> str:
    return tag("text", words, x=x, y=y, **{"font_size": 13, "fill": INK} | attributes)


def _stroke(
    x1: float, y1: float, x2: float, y2: float, colour: str, **attributes: float | str
) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, **attributes)
