"""The page of an explanation, looked at in a browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from toprune.inspection.explain.explanation import Explained, Explanation, Ranking, Token, Window
from toprune.inspection.explain.page import SHADES, explain_page, shade

if TYPE_CHECKING:
    from support.browser import Open

pytest_plugins = ["support.browser"]

LAYERS = 4
FADED = "Promise.allSettled(document.getAnimations().map(a => a.finished)).then(() => null)"
NASTY = '</p><script>alert("x")</script> <img src=http://127.0.0.1/x onerror=alert(1)> & "q" \x00'


def window(parts: tuple[str, ...], lasts: list[int], into: dict[int, int] | None = None) -> Window:
    """Words of parts between [CLS] and [SEP]s; a ranking in layer 1 (zero-based 0) of each."""
    spelled: list[Any] = [("[CLS]", None, 0, 0)]
    for part, text in enumerate(parts):
        at = 0
        for word in text.split(" "):
            spelled.append((word, part, at, at + len(word)))
            at += len(word) + 1
        spelled.append(("[SEP]", None, 0, 0))
    tokens = [
        Token(
            *spell,
            last=last,
            protected=i == 0,
            rankings=(Ranking(0, 0.5 - i / 100, i),),
            into=(into or {}).get(i),
        )
        for i, (spell, last) in enumerate(zip(spelled, lasts, strict=True))
    ]
    entering = tuple(sum(last >= layer for last in lasts) for layer in range(LAYERS))
    return Window(tuple(tokens), entering)


def explained(task: str = "classify", **changes: Any) -> Explained:
    one = "a dull film with one great scene"
    texts = (
        Explanation(
            (one,),
            (window((one,), [3, 0, 3, 2, 0, 1, 3, 2, 0]),),
            pruned={"label": "bad", "score": 0.75},
            dense={"label": "bad", "score": 0.875},
        ),
        Explanation(
            (NASTY, "w1 w2"),
            (window((NASTY, "w1 w2"), [3] * (len(NASTY.split(" ")) + 5)),),
            pruned={"label": "<b>good</b>", "score": 0.5},
            dense={"label": "bad", "score": 0.625},
        ),
    )
    fields: dict[str, Any] = {
        "bundle": "small & <fast>",
        "task": task,
        "layers": LAYERS,
        "score": "received",
        "drops": (0, 1, 2),
        "dense": "the same weights with every token kept",
        "texts": texts,
    }
    return Explained(**fields | changes)


def save(explanations: Explained, folder: Path) -> Path:
    path = folder / "explain.html"
    path.write_text(explain_page(explanations), encoding="utf-8")
    return path


@pytest.mark.parametrize("size", ["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sound_on_every_screen(size: str, scheme: Any, visit: "Open", tmp_path: Path):
    seen = visit(save(explained(), tmp_path), size=size, scheme=scheme)
    seen.page.locator("#layer").fill("3")  # some are gone, some are there, of every shade
    seen.page.evaluate(FADED)
    assert seen.violations() == []
    assert seen.overflow() == 0
    assert seen.errors == []
    assert len(seen.requests) == 1


def gone(page: Any) -> list[str]:
    return page.locator("article:first-of-type .t.gone").all_inner_texts()


def test_slider_fades_tokens(visit: "Open", tmp_path: Path):
    page = visit(save(explained(), tmp_path)).page
    assert gone(page) == []
    colour = "e => getComputedStyle(e).color"
    word = page.locator(".t", has_text="dull")
    before, kept = word.evaluate(colour), page.locator(".t", has_text="film").evaluate(colour)
    assert before == kept
    slider = page.get_by_label("What enters layer")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert gone(page) == ["a", "with", "[SEP]"]
    page.keyboard.press("End")
    assert gone(page) == ["a", "film", "with", "one", "scene", "[SEP]"]
    assert slider.get_attribute("aria-valuetext") == "layer 4 of 4"
    assert page.locator("#shown").inner_text() == "4 of 4"
    page.evaluate(FADED)
    assert word.evaluate(colour) == kept  # dull stays
    assert page.locator(".t", has_text="film").evaluate(colour) != kept
    columns = page.locator("article:first-of-type .steps b").all_inner_texts()
    assert columns == ["9", "6", "5", "3"]
    assert page.locator("article:first-of-type .steps .now b").inner_text() == "3"
    page.keyboard.press("Home")
    assert gone(page) == []


def test_hover_and_keys_tell_scores(visit: "Open", tmp_path: Path):
    page = visit(save(explained(), tmp_path)).page
    tip = page.locator("#tip")
    assert not tip.is_visible()
    page.locator(".t", has_text="film").hover()
    assert tip.inner_text().split("\n") == [
        "“film”",
        "dropped in layer 3",
        "layer 1: rank 4 of 9, score 0.47",
    ]
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    page.get_by_label("What enters layer").focus()
    page.keyboard.press("Tab")  # one stop for all tokens of a text
    assert tip.inner_text().split("\n")[:3] == [
        "“[CLS]”",
        "stays to the end",
        "protected: kept whatever its score",
    ]
    page.keyboard.press("ArrowRight")
    assert tip.inner_text().startswith("“a”\ndropped in layer 1")
    described = page.evaluate("document.activeElement.getAttribute('aria-describedby')")
    assert described == "tip"
    page.keyboard.press("End")
    assert tip.inner_text().startswith("“[SEP]”")
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    page.keyboard.press("Tab")  # to the next text
    assert page.evaluate(
        "document.activeElement.closest('article').querySelector('h2').innerText"
    ) == ("Text 2")
    assert page.locator("[tabindex='0']").count() == 2


def test_predictions_side_by_side_and_texts_escaped(visit: "Open", tmp_path: Path):
    seen = visit(save(explained(), tmp_path))
    page = seen.page
    predictions = page.locator(".predictions dd").all_inner_texts()
    assert predictions == ["bad (87.5%)", "bad (75.0%)", "bad (62.5%)", "<b>good</b> (50.0%)"]
    verdicts = page.locator(".verdict").all_inner_texts()
    assert verdicts == ["dense and pruned: the same label", "dense and pruned: another label"]
    shown = page.locator("article:nth-of-type(2) .tokens p").first.inner_text()
    assert '</p><script>alert("x")</script>' in shown
    assert "onerror=alert(1)>" in shown
    assert page.locator("article script, article img, article b:not(.steps b)").count() == 0
    assert "small & <fast>" in page.locator("h1 + p").inner_text()
    assert seen.errors == []
    roles = page.locator("article:nth-of-type(2) .role").all_inner_texts()
    assert roles == ["first text", "second text"]


def test_answers_are_underlined(visit: "Open", tmp_path: Path):
    parts = ("who wrote", "it was Ada Lovelace in fact")
    lasts = [3] * (2 + 6 + 3)
    prediction = {"answer": "Ada Lovelace", "score": 0.5, "start": 7, "end": 19}
    text = Explanation(parts, (window(parts, lasts),), pruned=prediction, dense=prediction)
    page = visit(save(explained("answer", texts=(text,)), tmp_path)).page
    assert page.locator("article .t.answer").all_inner_texts() == ["Ada", "Lovelace"]
    assert page.locator(".role").all_inner_texts() == ["question", "context"]


def test_merged_tokens_are_told(visit: "Open", tmp_path: Path):
    text = Explanation(
        ("w1 w2 w3",),
        (window(("w1 w2 w3",), [3, 3, 1, 3, 3], into={2: 1}),),
        pruned={"value": 1.0},
        dense={"value": 1.25},
    )
    page = visit(save(explained("regress", score="pooled", texts=(text,)), tmp_path)).page
    page.locator("#layer").fill("4")
    assert page.locator(".t.gone.merged").all_inner_texts() == ["w2"]
    page.locator(".t", has_text="w2").hover()
    assert "merged in layer 2 into “w1”" in page.locator("#tip").inner_text()
    assert page.locator(".verdict").inner_text() == "dense and pruned: 0.2500 apart"


def test_windows_are_numbered():
    part = "w1 w2"
    one = window((part,), [3, 3, 3, 3])
    prediction = {"label": 0, "score": 1.0}
    text = Explanation((part,), (one, one), pruned=prediction, dense=prediction)
    page = explain_page(explained(texts=(text,)))
    assert "Window 2 of 2" in page


@pytest.mark.parametrize("layers", [1, 2, 4, 6, 12, 24])
def test_shades(layers: int):
    shades = [shade(last, layers) for last in range(layers)]
    assert shades == sorted(shades)
    assert shades.count(SHADES - 1) == 1  # the deepest is for those who stay
    assert layers == 1 or shades[0] == 0
