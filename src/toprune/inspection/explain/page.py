"""An explanation as a page: every token in the shade of its last layer, a slider over layers."""

from collections.abc import Iterator

from toprune.inspection.explain.explanation import (
    Explained,
    Explanation,
    Piece,
    Token,
    Window,
    fallback_text,
    prediction_text,
    verdict,
)
from toprune.report.html.shell import escape, page, read_asset
from toprune.tasks import TASKS, Task

SHADES = 5  # from tokens that are dropped at once to those that stay
BAR = 40  # height of the first layer's column
RANKED_BY = {  # the score of a plan
    "probe": "; a fitted vector ranks them once",
    "probes": "; a fitted vector ranks them again at every step",
    "received": "; the attention that they receive ranks them again at every step",
    "accumulated": "; the attention that they have received so far ranks them",
    "random": "; at random",
    "predicted": "; at every step a small network decides which stay",
    "pooled": "; neighbours are merged, none are ranked",
}


def explain_page(explained: Explained) -> str:
    """One HTML document with all texts."""
    ranked = RANKED_BY.get(explained.score, "") if explained.drops else ": none, all tokens stay"
    body = [
        "<h1>Which tokens are dropped, and where</h1>",
        f"<p>What <code>{escape(explained.bundle)}</code> (task {escape(explained.task)}) drops on "
        f"the way through {explained.layers} layers{ranked}. <em>Dense</em> is "
        f"{escape(explained.dense)}.</p>",
        explanations(explained),
    ]
    title = f"Tokens that {explained.bundle} drops"
    return page(title, "\n".join(body), script=script(), style=style())


def style() -> str:
    """The style of `explanations`."""
    return read_asset(__package__, "explain.css")


def script() -> str:
    """The script of `explanations`."""
    return read_asset(__package__, "explain.js")


def explanations(explained: Explained) -> str:
    """The slider over layers and all texts, as HTML."""
    articles = [_article(explained, i) for i in range(len(explained.texts))]
    tip = '<div id="tip" role="tooltip" hidden></div>'
    return "\n".join([_controls(explained), *articles, tip])


def _controls(explained: Explained) -> str:
    keys = [("s0", "dropped at once"), ("s2", "halfway"), (f"s{SHADES - 1}", "stays to the end")]
    legend = "".join(f'<span><span class="{kind}">word</span> {name}</span>' for kind, name in keys)
    if any("answer" in text.pruned for text in explained.texts):
        legend += '<span><span class="t answer">word</span> answer of the pruned model</span>'
    return (
        '<div class="bar"><div class="slide"><label for="layer">What enters layer</label>'
        f'<input id="layer" type="range" min="1" max="{explained.layers}" value="1" step="1">'
        f'<output id="shown" for="layer">1 of {explained.layers}</output></div>'
        f'<div class="key" aria-hidden="true">{legend}</div></div>'
    )


def _article(explained: Explained, i: int) -> str:
    text, number = explained.texts[i], i + 1
    phrase, same = verdict(text)
    kind = {True: " same", False: " other", None: ""}[same]
    windows = "".join(
        f"<h3>Window {w} of {len(text.windows)}</h3>" * (len(text.windows) > 1)
        + _tokens(explained, text, window, number)
        + _steps(window)
        for w, window in enumerate(text.windows, 1)
    )
    dense, pruned = (escape(prediction_text(one)) for one in (text.dense, text.pruned))
    answered = escape(fallback_text(text))
    return (
        f'<article aria-labelledby="text-{number}"><div class="top">'
        f'<h2 id="text-{number}">Text {number}</h2>'
        f'<span class="verdict{kind}">dense and pruned: {escape(phrase)}</span></div>'
        f'<dl class="predictions"><div><dt>dense</dt><dd>{dense}</dd></div>'
        f"<div><dt>pruned</dt><dd>{pruned}</dd></div>"
        + (f"<div><dt>answered by</dt><dd>{answered}</dd></div>" if answered else "")
        + "</dl>"
        f"{windows}</article>"
    )


def _tokens(explained: Explained, text: Explanation, window: Window, number: int) -> str:
    roles = pair_roles(explained.task) if len(text.parts) > 1 else ()
    paragraphs: list[str] = []
    for part, pieces in enumerate(_by_part(text, window)):
        role = f'<span class="role">{roles[part]}</span>' if roles else ""
        shown = "".join(_piece(explained, text, window, piece) for piece in pieces)
        paragraphs.append(f"<p>{role}{shown.lstrip()}</p>")
    first = '<span tabindex="-1"'  # one stop for the tab key, then the arrow keys
    inner = "".join(paragraphs).replace(first, '<span tabindex="0"', 1)
    return (
        f'<div class="tokens" role="group" aria-label="Tokens of text {number}; '
        f'arrow keys go from one to the next">{inner}</div>'
    )


def pair_roles(task: str) -> tuple[str, str]:
    """What the two texts of a pair are called."""
    return TASKS.get(task, Task).PAIR_ROLES or ("first text", "second text")


def _by_part(text: Explanation, window: Window) -> Iterator[list[Piece]]:
    """The pieces of each part, with the special tokens before it, or behind the last."""
    pieces: list[Piece] = []
    part = 0
    for piece in text.pieces(window):
        token = None if piece.token is None else window.tokens[piece.token]
        if token is not None and token.part is not None and token.part != part:
            yield pieces
            pieces, part = [], token.part
        pieces.append(piece)
    yield pieces


def _piece(explained: Explained, text: Explanation, window: Window, piece: Piece) -> str:
    if piece.token is None:
        return escape(piece.text)
    token = window.tokens[piece.token]
    classes = ["t", f"s{shade(token.last, explained.layers)}"]
    classes += ["special"] if token.part is None else []
    classes += ["merged"] if token.into is not None else []
    classes += ["answer"] if _is_answer(text, token) else []
    gap = " " if token.part is None else ""
    return (
        f'{gap}<span tabindex="-1" role="button" class="{" ".join(classes)}" '
        f'data-last="{token.last}" data-tip="{escape(_tip(explained, window, piece))}">'
        f"{escape(piece.text)}</span>{gap}"
    )


def shade(last: int, layers: int) -> int:
    """0 for the first layer, the deepest for the last one alone."""
    return SHADES - 1 if last >= layers - 1 else last * (SHADES - 1) // max(layers - 1, 1)


def _is_answer(text: Explanation, token: Token) -> bool:
    start, end = text.pruned.get("start", -1), text.pruned.get("end", -1)
    return token.part == 1 and token.start < end and token.end > start >= 0


def _tip(explained: Explained, window: Window, piece: Piece) -> str:
    """The lines of a token's tooltip."""
    assert piece.token is not None
    token = window.tokens[piece.token]
    lines = [f"“{token.name}”"]
    if token.into is not None:
        lines.append(f"merged in layer {token.last + 1} into “{window.tokens[token.into].name}”")
    elif token.last == explained.layers - 1:
        lines.append("stays to the end")
    else:
        lines.append(f"dropped in layer {token.last + 1}")
    if token.protected:
        lines.append("protected: kept whatever its score")
    lines += [
        f"layer {ranked.layer + 1}: rank {ranked.rank + 1} of {window.entering[ranked.layer]}, "
        f"score {ranked.score:.4g}"
        for ranked in token.rankings
    ]
    return "\n".join(lines)


def _steps(window: Window) -> str:
    """Tokens that enter each layer, as columns."""
    most = max(window.entering)
    columns = "".join(
        f'<li data-layer="{layer}"><svg viewBox="0 0 10 {BAR}" preserveAspectRatio="none" '
        f'aria-hidden="true"><rect width="10" y="{BAR * (1 - count / most):.1f}" '
        f'height="{BAR * count / most:.1f}"/></svg><b>{count}</b><i>{layer + 1}</i></li>'
        for layer, count in enumerate(window.entering)
    )
    caption = f"Tokens that enter layers 1 to {len(window.entering)}"
    return (
        f'<p class="caption">{caption}</p><ol class="steps" aria-label="{caption}">{columns}</ol>'
    )
