"""Charts as SVG, drawn by hand: a plotting library would be the heaviest thing we need.

Here are the elements, and lines over a plane for two places: `chart` is a file, wide, with a title,
a legend, its colours and a white ground; `lines` is for a page, where report.css colours it. Other
drawings for pages are in `html/charts.py`. The same numbers give the same bytes, so that a file
under version control changes only with them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toprune.report.html.shell import escape

PAGE_WIDTH = 420  # narrow, so that text stays readable on a phone
WIDTH, HEIGHT = 760, 440  # of a file
LEFT, RIGHT, TOP, BOTTOM = 70, 560, 50, 380  # of its plane; the legend is on the right
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito
INK, FAINT = "#222222", "#dddddd"

Attributes = dict[str, float | str]
TEXT: Attributes = {"font_size": 13, "fill": INK}
DASHED: Attributes = {"stroke": INK, "stroke_dasharray": "6 4"}


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None  # interval around y, where it is known
    high: float | None = None
    name: str = ""  # written beside the point


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[Point]
    others: Sequence[Point] = ()  # shown, but not joined by the line


@dataclass(frozen=True)
class Drawing:
    """The content of an SVG element that is PAGE_WIDTH wide."""

    height: int
    content: str

    @classmethod
    def of(cls, parts: Sequence[str], height: float) -> "Drawing":
        return cls(round(height), "".join(parts))


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels: the first tick is at `start`, the last one at `end`."""

    ticks: Sequence[float]
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def ticks(low: float, high: float, about: int = 8) -> list[float]:
    """Round numbers, one, two or five of some power of ten apart, that reach around both ends."""
    raw = ((high - low) or abs(high) or 1.0) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(many * power for many in (1, 2, 5, 10) if many * power >= raw * (1 - 1e-9))
    first, last = math.floor(round(low / step, 9)), math.ceil(round(high / step, 9))
    if first == last:
        first, last = first - 1, last + 1
    return [float(f"{many * step:.12g}") for many in range(first, last + 1)]


def chart(
    lines: Sequence[Line],
    *,
    title: str,
    x: str,
    y: str,
    start: float,
    level: tuple[str, float] | None = None,
) -> str:
    """An SVG file: points joined in the order of x, their intervals as thin bars, a legend.

    Args:
        x, y: names of the axes.
        start: x is shown from here on at least; else the noise of close points fills the plane.
        level: a name and a value to compare the points with, drawn across.
    """
    values = (start,), () if level is None else (level[1],)
    plane = _Plane(_file_look, *_scales(lines, (LEFT, RIGHT, TOP, BOTTOM), (8, 8), *values))
    turned = f"translate(18 {(TOP + BOTTOM) / 2}) rotate(-90)"
    parts = [
        tag("rect", width=WIDTH, height=HEIGHT, fill="white"),
        text(LEFT, 28, title, font_size=15, fill=INK),
        text((LEFT + RIGHT) / 2, HEIGHT - 16, x, text_anchor="middle", **TEXT),
        text(0, 0, y, text_anchor="middle", transform=turned, **TEXT),
        *plane.axes(),
        line(LEFT, BOTTOM, RIGHT, BOTTOM, stroke=INK),
        line(LEFT, TOP, LEFT, BOTTOM, stroke=INK),
    ]
    rows = [TOP + 6 + 22 * i for i in range(len(lines) + 1)]  # of the legend
    if level is not None:
        row = rows.pop(0)
        parts.append(plane.level(level[1]))
        parts.append(line(RIGHT + 16, row, RIGHT + 44, row, **DASHED))
        parts.append(text(RIGHT + 52, row + 4, level[0], **TEXT))
    for i, series in enumerate(lines):
        row = rows[i]
        parts += plane.series(series, i)
        parts.append(line(RIGHT + 16, row, RIGHT + 44, row, **_file_look("key", i)))
        parts.append(circle(RIGHT + 30, row, **_file_look("dot", i)))
        parts.append(text(RIGHT + 52, row + 4, series.name, **TEXT))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" role="img">\n<title>{escape(title)}</title>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def lines(
    series: Sequence[Line],
    *,
    x: str,
    y: str,
    start: float | None = None,
    floor: float | None = None,
    level: float | None = None,
    markers: bool = False,
) -> Drawing:
    """Points joined in the order of x, for a page.

    Args:
        x, y: names of the axes.
        start, floor: x and y are shown from here on at least.
        level: a value to compare the points with, drawn across.
    """
    right, bottom = PAGE_WIDTH - 14.0, 196.0
    heights = [value for value in (floor, level) if value is not None]
    widths = () if start is None else (start,)
    scales = _scales(series, (46.0, right, 22.0, bottom), (6, 5), widths, heights)
    plane = _Plane(_page_look, *scales)
    parts = [
        text(4, 10, y, class_="faint"),
        text(right, bottom + 34, x, class_="faint end"),
        *plane.axes(),
        *([] if level is None else [plane.level(level)]),
    ]
    for number, one in enumerate(series):
        parts += plane.series(one, number, markers=markers)
    return Drawing.of(parts, bottom + 40)


def series_class(number: int) -> str:
    """The class of the n-th line in report.css; rings when the colours come round again."""
    return f"s{number % len(COLOURS)}" + (" ring" if number // len(COLOURS) % 2 else "")


def _page_look(part: str, number: int) -> Attributes:
    fixed = {"x tick": "faint middle", "y tick": "faint end"}
    if part in ("path", "interval", "marker", "other"):
        radius = {"marker": {"r": 4}, "other": {"r": 2}}.get(part, {})
        return {**radius, "class_": series_class(number)}
    return {"class_": fixed.get(part, part)}


def _file_look(part: str, number: int) -> Attributes:
    colour = COLOURS[number % len(COLOURS)]
    is_ring = number // len(COLOURS) % 2 == 1  # when the colours come round again
    dot: Attributes = {"fill": "white" if is_ring else colour, "stroke": colour}
    looks: dict[str, Attributes] = {
        "grid": {"stroke": FAINT},
        "level": DASHED | {"class_": "level"},
        "x tick": TEXT | {"text_anchor": "middle"},
        "y tick": TEXT | {"text_anchor": "end"},
        "path": {"fill": "none", "stroke": colour, "stroke_width": 2},
        "interval": {"stroke": colour, "class_": "interval"},
        "marker": {"r": 4, "stroke_width": 2, "class_": "marker"} | dot,
        "other": {"r": 2, "stroke_width": 1, "class_": "other"} | dot,
        "name": TEXT | {"font_size": 11},
        "key": {"stroke": colour, "stroke_width": 2},
        "dot": {"r": 4, "stroke_width": 2} | dot,
    }
    return looks[part]


@dataclass(frozen=True)
class _Plane:
    """Where lines are drawn, and how its parts look."""

    look: Callable[[str, int], Attributes]  # attributes of a part; the number is the series'
    x: Scale
    y: Scale

    def axes(self) -> list[str]:
        """Ticks and grid."""
        grid, x_tick, y_tick = (self.look(part, 0) for part in ("grid", "x tick", "y tick"))
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts: list[str] = []
        for tick in self.x.ticks:
            parts.append(line(self.x(tick), top, self.x(tick), bottom, **grid))
            parts.append(text(self.x(tick), bottom + 18, f"{tick:g}", **x_tick))
        for tick in self.y.ticks:
            parts.append(line(left, self.y(tick), right, self.y(tick), **grid))
            parts.append(text(left - 7, self.y(tick) + 4, f"{tick:g}", **y_tick))
        return parts

    def level(self, value: float) -> str:
        """A line across at this value."""
        return line(self.x.start, self.y(value), self.x.end, self.y(value), **self.look("level", 0))

    def series(self, series: Line, number: int, *, markers: bool = True) -> list[str]:
        """A line with the intervals and the markers of its points."""
        ordered = sorted(series.points, key=lambda p: p.x)
        path = " ".join(f"{self.x(p.x):.1f},{self.y(p.y):.1f}" for p in ordered)
        parts = [tag("polyline", points=path, **self.look("path", number))]
        for p in ordered:
            if p.low is not None and p.high is not None:
                ends = self.x(p.x), self.y(p.low), self.x(p.x), self.y(p.high)
                parts.append(line(*ends, **self.look("interval", number)))
        shown = [("marker", p) for p in ordered if markers] + [("other", p) for p in series.others]
        parts += [circle(self.x(p.x), self.y(p.y), **self.look(part, number)) for part, p in shown]
        named = [p for p in ordered if p.name]
        look = self.look("name", number)
        return parts + [text(self.x(p.x) + 6, self.y(p.y) - 6, p.name, **look) for p in named]


def _scales(
    series: Sequence[Line],
    box: tuple[float, float, float, float],
    about: tuple[int, int],
    widths: Sequence[float],
    heights: Sequence[float],
) -> tuple[Scale, Scale]:
    """Scales that hold all points. box: left, right, top, bottom; about: ticks across and up;
    widths, heights: values to hold besides the points."""
    points = [point for one in series for point in (*one.points, *one.others)]
    across = [*widths, *(p.x for p in points)]
    up = [*heights, *(v for p in points for v in (p.y, p.low, p.high) if v is not None)]
    left, right, top, bottom = box
    return (
        Scale(ticks(min(across), max(across), about[0]), left, right),
        Scale(ticks(min(up), max(up), about[1]), bottom, top),
    )


def tag(name: str, text: str | None = None, /, **attributes: float | str) -> str:
    """An SVG element. Attributes are written as Python can: `class_`, `stroke_width`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}/>" if text is None else f"<{name}{written}>{escape(text)}</{name}>"


def _value(value: float | str) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def text(x: float, y: float, content: str, **attributes: float | str) -> str:
    """A text at a point."""
    return tag("text", content, x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: float | str) -> str:
    """A straight line between two points."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def circle(x: float, y: float, **attributes: float | str) -> str:
    """A circle around a point."""
    return tag("circle", cx=x, cy=y, **attributes)
