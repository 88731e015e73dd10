"""Charts whose pixels are worked out by hand: the plane is 490 wide and 330 high, at (70, 50)."""

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprune.report.svg import COLOURS, HEIGHT, WIDTH, Line, Point, chart, ticks

SVG = "{http://www.w3.org/2000/svg}"
TOP = Line("top", [Point(3, 80, 85, 95), Point(2, 90)])  # not in the order of x
OTHER = Line("random", [Point(1.5, 85)])


def drawn(*lines: Line, **more: object) -> ElementTree.Element:
    options = {
        "title": "a title",
        "x": "across",
        "y": "up",
        "start": 1.0,
        "level": ("dense", 100.0),
    }
    return ElementTree.fromstring(chart(lines, **options | more))  # pyright: ignore[reportArgumentType]


def named(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if element.get("class") == name]


def numbers(element: ElementTree.Element, *keys: str) -> tuple[float, ...]:
    return tuple(float(element.attrib[key]) for key in keys)


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_everything_is_where_its_number_is():
    """x from 1 to 3: 245 pixels for one. y from 80 to 100: 16.5 pixels for one."""
    root = drawn(TOP, OTHER)
    markers = [numbers(element, "cx", "cy") for element in named(root, "marker")]
    assert markers == [(315, 215), (560, 380), (192.5, 297.5)]
    (bar,) = named(root, "interval")
    assert numbers(bar, "x1", "y1", "x2", "y2") == (560, 297.5, 560, 132.5)
    (level,) = named(root, "level")
    assert numbers(level, "x1", "y1", "x2", "y2") == (70, 50, 560, 50)


def test_a_line_goes_from_left_to_right():
    first, second = (element.get("points") for element in drawn(TOP, OTHER).iter(f"{SVG}polyline"))
    assert first == "315.0,215.0 560.0,380.0"
    assert second == "192.5,297.5"


def test_axes_have_ticks_and_names():
    labels = texts(drawn(TOP, OTHER))
    assert labels[:3] == ["a title", "across", "up"]
    assert labels[3:8] == ["1", "1.5", "2", "2.5", "3"]
    assert labels[8:13] == ["80", "85", "90", "95", "100"]
    assert labels[13:] == ["dense", "top", "random"]  # the legend


def test_without_a_level_the_plane_is_around_the_points():
    root = drawn(TOP, OTHER, level=None)
    assert not named(root, "level")
    assert texts(root)[8:] == [
        "80",
        "82",
        "84",
        "86",
        "88",
        "90",
        "92",
        "94",
        "96",
        "top",
        "random",
    ]


def test_points_close_together_do_not_fill_the_plane():
    """Budgets are met to the percent: two methods at 2x are not far apart."""
    near = Line("one", [Point(1.998, 90)]), Line("other", [Point(2.001, 91)])
    left, right = (numbers(element, "cx")[0] for element in named(drawn(*near), "marker"))
    assert 0 < right - left < 2


def test_points_before_the_start_are_shown_too():
    slower = Line("slower", [Point(0.4, 90), Point(1.6, 90)])
    assert [numbers(m, "cx")[0] for m in named(drawn(slower), "marker")] == [70, 560]


def test_colours_come_round_as_rings():
    lines = [Line(f"m{i}", [Point(2, i)]) for i in range(8)]
    looks = [(m.get("stroke"), m.get("fill")) for m in named(drawn(*lines), "marker")]
    assert looks[:6] == [(colour, colour) for colour in COLOURS]
    assert looks[6:] == [(COLOURS[0], "white"), (COLOURS[1], "white")]
    assert len(set(looks)) == 8


def test_words_are_escaped():
    text = 'a < b & "c"'
    root = drawn(Line(text, [Point(2, 1)]), title=text, x=text, y=text)
    assert texts(root).count(text) == 4


def test_it_brings_a_white_ground():
    first = next(element for element in drawn(TOP) if element.tag != f"{SVG}title")
    assert first.attrib == {"width": str(WIDTH), "height": str(HEIGHT), "fill": "white"}


def test_the_same_numbers_give_the_same_bytes():
    one, two = (
        chart([TOP, OTHER], title="t", x="x", y="y", start=1.0, level=("dense", 90.0))
        for _ in range(2)
    )
    assert one == two
    assert one.endswith("</svg>\n")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 4, [1, 1.5, 2, 2.5, 3, 3.5, 4]),
        (88.3, 91.7, [88, 88.5, 89, 89.5, 90, 90.5, 91, 91.5, 92]),
        (-3, 14, [-5, 0, 5, 10, 15]),
        (0.1, 0.3, [0.1, 0.15, 0.2, 0.25, 0.3]),  # in floats 0.3 / 0.05 is not 6
        (50, 50, [40, 50, 60]),
        (0, 0, [-0.2, 0, 0.2]),
    ],
)
def test_ticks_by_hand(low: float, high: float, expected: list[float]):
    assert ticks(low, high) == expected


@given(st.floats(-1000, 1000), st.floats(1e-3, 1000))
def test_ticks_reach_around_both_ends_in_equal_steps(low: float, span: float):
    high = low + span
    result = ticks(low, high)
    steps = [b - a for a, b in pairwise(result)]
    assert result[0] <= low + 1e-6 * span
    assert result[-1] >= high - 1e-6 * span
    assert result[0] > low - steps[0]
    assert 3 <= len(result) <= 10
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
