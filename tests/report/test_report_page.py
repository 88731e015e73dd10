"""report.html in a real browser: it says what report.json says, asks for nothing, is readable on
every screen and by everyone, and others' words stay words."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.report_case import LATENCY, make_compared, make_report, make_times
from toprune.errors import UserError
from toprune.report.html.compared import compare_page
from toprune.report.html.files import save_timings, write_report, write_report_page
from toprune.report.html.report import report_page
from toprune.report.html.shell import escape, page
from toprune.tasks import TASKS

if TYPE_CHECKING:
    from support.browser import Open

pytest_plugins = ["support.browser"]

NASTY = [
    "<script>document.title = 'hacked'</script>",
    '"><img src=x onerror="document.title=\'hacked\'">',
    "</script></style><h1>mine</h1>",
    "\u202eright to left \u05d0\u05d1\u05d2",
    "\ud800 alone, \x00 and \x1b[31m",
    "{words} %s &amp; 'quotes'",
]
READ = """[...document.querySelectorAll('data')].map(one => [
  one.closest('[data-file]') ? 'compare.json' : 'report.json',
  one.dataset.at, one.getAttribute('value'), one.textContent
])"""


def write_page(
    tmp_path: Path, report: dict[str, Any], compared: dict[str, Any] | None = None
) -> Path:
    path = tmp_path / "report.html"
    path.write_text(report_page(report, compared), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("size", "scheme"),
    [(size, scheme) for size in ("phone", "desktop") for scheme in ("light", "dark")],
)
def test_opens_quietly_fits_and_can_be_read(visit: "Open", tmp_path: Path, size: str, scheme: str):
    path = write_page(tmp_path, make_report(), make_compared())
    visited = visit(path, size=size, scheme=scheme)
    assert visited.errors == []
    assert visited.requests == [path.as_uri()]
    assert visited.overflow() == 0
    visited.open_details()
    assert visited.overflow() == 0
    assert visited.violations() == []


def test_numbers_are_those_of_the_report(visit: "Open", tmp_path: Path):
    """Every number says where it is from; what people read is that number, rounded."""
    files = {"report.json": make_report(), "compare.json": make_compared()}
    visited = visit(write_page(tmp_path, files["report.json"], files["compare.json"]))
    numbers = visited.page.evaluate(READ)
    assert len(numbers) > 150
    for file, at, value, text in numbers:
        wanted: Any = files[file]
        for key in at.split("/")[1:]:
            wanted = wanted[int(key) if isinstance(wanted, list) else key]
        assert json.loads(value) == wanted, at
        shown = text.replace("\u2212", "-").replace(",", "").strip("x<% ")
        near = 0.501 * 10 ** -len(shown.partition(".")[2])
        assert any(abs(float(shown) - wanted * times) < near for times in (1, 100)), (at, text)
    by_place = {at: text for file, at, _, text in numbers if file == "report.json"}
    assert by_place["/budget/executed/unpadded"] == "3.01x"
    assert by_place["/budget/executed/padded"] == "6.25x"
    assert by_place["/budget/executed/paper"] == "2.50x"
    assert by_place["/budget/expected"] == "3.00x"
    assert by_place["/dense/accuracy/value"] == "81.2"
    assert by_place["/difference/accuracy/low"] == "\u22123.1"
    assert by_place["/latency/rows/0/ratios/1/value"] == "2.62x"
    assert by_place["/latency/rows/0/ms_per_text/dense padded"] == "8.25"
    assert by_place["/kept_per_layer/3"] == "7"
    assert by_place["/dial/2/executed/unpadded"] == "5.00x"
    assert by_place["/fallback/agreement"] == "99.2 %"
    assert by_place["/fallback/curves/0/points/0/1"] == "90.0"
    assert by_place["/fallback/held_out/share/high"] == "31.2"
    assert by_place["/kept_by_length/3/kept/0"] == "64"
    assert by_place["/log/5/gate_2"] == "60"
    assert by_place["/changed/count"] == str(files["report.json"]["changed"]["count"])
    assert by_place["/classes/1/count"] == str(files["report.json"]["classes"][1]["count"])


def test_the_chosen_point_is_drawn(visit: "Open", tmp_path: Path):
    """The curve of each plan, and the point that was chosen, with its lower bound in words."""
    visited = visit(write_page(tmp_path, make_report()))
    text = visited.page.locator("body").inner_text()
    for words in ("plan 5.00x", "plan 4.00x", "chosen", "6.2 % of which the dense model answers"):
        assert words in text
    described = visited.page.content()
    assert "Chosen: 99.2 % of the answers equal dense at 31.2 % of its FLOPs." in described


@pytest.mark.parametrize("budgets", [("12ms",), ("12ms", "8ms")])
def test_a_page_with_times(visit: "Open", tmp_path: Path, budgets: tuple[str, ...]):
    path = write_page(tmp_path, make_report() | {"time": make_times(*budgets)})
    visited = visit(path, size="phone")
    assert visited.errors == []
    assert visited.overflow() == 0
    text = visited.page.locator("body").inner_text()
    assert "13.20 [12.00, 14.40]" in text
    assert ("measured at 8ms, p50, 33 tokens" in text) == (len(budgets) > 1)
    assert "These times hold for that machine alone" in text


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_page(visit: "Open", tmp_path: Path, task: str, labelled: bool):
    report = make_report(task, labelled=labelled)
    visited = visit(write_page(tmp_path, report), size="phone")
    assert visited.errors == []
    assert visited.overflow() == 0
    headings = visited.page.locator("h2").all_inner_texts()
    assert "Where it fails" in headings
    has_classes = labelled and task in ("classify", "multilabel", "tokens")
    assert ("Class by class" in headings) == has_classes
    cases = visited.page.locator(".cases > li").count()
    assert cases == len(report["changed"]["examples"]) > 0


def test_others_words_stay_words(visit: "Open", tmp_path: Path):
    report = make_report()
    report["changed"]["examples"] = [
        {"text": one, "pair": one, "dense": one, "pruned": one, "label": one, "outcome": "lost"}
        for one in NASTY
    ]
    report["classes"] = [
        {"name": one, "count": 3, "dense": 0.5, "pruned": 0.25, "changed": 1} for one in NASTY
    ]
    report["glue"] = report["budget"]["asked"] = report["latency"]["verdict"] = NASTY[1]
    report["provenance"] |= {
        "method": NASTY[2],
        "machine": NASTY[0],
        "versions": dict.fromkeys(NASTY, NASTY[1]),
    }
    report["provenance"]["settings"] |= {"budget": NASTY[1], "method": NASTY[0]}
    report["latency"]["rows"][0]["name"] = NASTY[1]
    for part in ("dense", "pruned", "difference"):
        report[part] = dict.fromkeys(NASTY, report[part]["accuracy"])
    compared: dict[str, Any] = make_compared() | {"metric": NASTY[1]}
    compared["means"][0]["name"] = NASTY[0]
    visited = visit(write_page(tmp_path, report, compared))
    assert visited.errors == []
    assert len(visited.requests) == 1
    assert "hacked" not in visited.page.title().replace(NASTY[1], "")
    assert visited.page.locator("script, img, iframe, object").count() == 0
    assert visited.page.locator("h1").count() == 1
    shown = visited.page.locator(".cases blockquote").all_text_contents()
    assert shown[0:6:2] == NASTY[:3]
    assert shown[8] == "\ufffd alone, \u2400 and \u241b[31m"
    assert visited.page.locator(".cases blockquote > bdi").count() == 2 * len(NASTY)


def test_little_to_say(visit: "Open", tmp_path: Path):
    """Reports of older bundles, of fine-tuned models and of nothing."""
    old = make_report()
    for key in ("kept_by_length", "classes", "changed", "latency", "onnx", "log"):
        del old[key]
    text = report_page(old)
    assert "toprune bench" in text
    assert "Class by class" not in text
    tuned = {"task": "classify", "examples": 9, "metrics": old["dense"], "max_length": 64}
    for report in (old, tuned, {}):
        visited = visit(write_page(tmp_path, report), size="phone")
        assert visited.errors == []
        assert visited.overflow() == 0


def test_numbers_that_are_none(visit: "Open", tmp_path: Path):
    report = make_report("regress")
    report["dense"]["pearson"] = {"value": float("nan"), "low": float("nan"), "high": 0.5}
    report["difference"]["pearson"]["value"] = float("nan")
    assert "nan" not in visit(write_page(tmp_path, report)).page.locator("body").inner_text()


def test_a_page_of_a_comparison(visit: "Open", tmp_path: Path):
    path = tmp_path / "compare.html"
    path.write_text(compare_page(make_compared()), encoding="utf-8")
    visited = visit(path, size="phone", scheme="dark")
    assert (visited.errors, visited.requests, visited.overflow()) == ([], [path.as_uri()], 0)
    assert visited.violations() == []
    assert "9x is out of reach" in visited.page.locator("main").inner_text()


def test_only_the_pages_own_script_runs(visit: "Open", tmp_path: Path):
    path = tmp_path / "page.html"
    body = '<p id="p" style="color: red" onclick="this.id=\'q\'">a</p><script>var bad = 1</script>'
    path.write_text(page("a title", body, script="document.title += ' of mine'"))
    visited = visit(path)
    visited.page.click("p")
    assert visited.page.title() == "a title of mine"
    assert visited.page.evaluate("[typeof bad, document.querySelector('p').id]") == [
        "undefined",
        "p",
    ]
    assert len(visited.errors) == 3  # the style, the script in the body, the click


@pytest.mark.parametrize("text", ["a</script>", "a</STYLE >", "<!-- a"])
def test_a_script_cannot_end_itself(text: str):
    with pytest.raises(ValueError, match="would end"):
        page("t", "b", script=text)
    with pytest.raises(ValueError, match="would end"):
        page("t", "b", style=text)


def test_escape():
    assert escape("<a href=\"x\" b='y'>&") == "&lt;a href=&quot;x&quot; b=&#x27;y&#x27;&gt;&amp;"
    assert escape("a\r\nb\rc\td\x7f\ufffe") == "a\nb\nc\td\ufffd\ufffd"
    escape("".join(map(chr, range(0x11000)))).encode()  # no character that cannot be written


# -- files -----------------------------------------------------------------------------------------


def test_timings_go_into_the_report_and_its_page(tmp_path: Path):
    report = make_report()
    del report["latency"]
    write_report(tmp_path, report)
    assert "toprune bench" in (tmp_path / "report.html").read_text()
    assert save_timings(tmp_path, LATENCY) == tmp_path / "report.html"
    saved = json.loads((tmp_path / "report.json").read_text())
    date = saved["latency"].pop("date")
    assert date.endswith("+00:00")
    assert saved == report | {"latency": LATENCY}
    text = (tmp_path / "report.html").read_text()
    assert "toprune bench" not in text
    assert '<data value="2.625" data-at="/latency/rows/0/ratios/1/value">2.62x</data>' in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_a_page_anew(tmp_path: Path):
    write_report(tmp_path, make_report())
    before = (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    assert write_report_page(tmp_path).read_text() == before
    other = tmp_path / "compare.json"
    other.write_text(json.dumps(make_compared()))
    assert "Accuracy against FLOPs" in write_report_page(tmp_path, other).read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read .*; give the directory that prune wrote"),
        ("{", "not valid JSON"),
        ("[]", "a JSON object is expected"),
        ('{"budget": 3}', "not one that toprune wrote"),
        ('{"task": "classify", "kept_per_layer": ["a"]}', "not one that toprune wrote"),
    ],
)
def test_a_report_of_nonsense(tmp_path: Path, text: str | None, message: str):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(UserError, match=message):
        write_report_page(tmp_path)
    assert not (tmp_path / "report.html").exists()
