"""An explanation as a page: every token in the shade of its last layer, a slider over layers."""

from collections.abc import Iterator

from toprune.inspection.explain.explanation import (
    Explained,
    Explanation,
    Piece,
    Token,
    Window,
    in_words,
    verdict,
)
from toprune.inspection.explain.look import SCRIPT, STYLE
from toprune.report.html.shell import escape, page
from toprune.tasks import TASKS

SHADES = 5  # from what leaves at once to what stays
PAIR_ROLES = "first text", "second text"  # of a task that has no names for them
BAR = 40  # height of the first layer's column


def explain_page(found: Explained) -> str:
    """One document with all texts."""
    body = [
        "<h1>Which tokens left, and where</h1>",
        f"<p>What <code>{escape(found.bundle)}</code> (task {escape(found.task)}) drops on its way "
        f"through {found.layers} layers{_ranked_by(found)}. <em>Dense</em> is "
        f"{escape(found.dense)}.</p>",
        controls(found),
        *(article(found, i) for i in range(len(found.texts))),
        '<div id="tip" role="tooltip" hidden></div>',
    ]
    title = f"Tokens that {found.bundle} drops"
    return page(title, "\n".join(body), script=SCRIPT, style=STYLE)


def _ranked_by(found: Explained) -> str:
    told = {
        "probe": "; a fitted vector ranks them once",
        "probes": "; a fitted vector of its own ranks them anew at every step",
        "received": "; the attention that they receive ranks them anew at every step",
        "accumulated": "; the attention that they have received so far ranks them",
        "random": "; by chance",
        "predicted": "; a small network at every step says who stays",
        "pooled": "; neighbours are merged, nobody is ranked",
    }
    return told.get(found.score, "") if found.drops else ": none, all tokens stay"


def controls(found: Explained) -> str:
    keys = [("s0", "left at once"), ("s2", "halfway"), (f"s{SHADES - 1}", "stays to the end")]
    legend = "".join(f'<span><span class="{kind}">word</span> {name}</span>' for kind, name in keys)
    if TASKS[found.task].FINDS_SPANS:
        legend += '<span><span class="t answer">word</span> what the pruned model answers</span>'
    return (
        '<div class="bar"><div class="slide"><label for="layer">What enters layer</label>'
        f'<input id="layer" type="range" min="1" max="{found.layers}" value="1" step="1">'
        f'<output id="told" for="layer">1 of {found.layers}</output></div>'
        f'<div class="key" aria-hidden="true">{legend}</div></div>'
    )


def article(found: Explained, i: int) -> str:
    text, number = found.texts[i], i + 1
    told, same = verdict(text)
    kind = {True: " same", False: " other", None: ""}[same]
    windows = "".join(
        f"<h3>Window {w} of {len(text.windows)}</h3>" * (len(text.windows) > 1)
        + _tokens(found, text, window, number)
        + _steps(window)
        for w, window in enumerate(text.windows, 1)
    )
    return (
        f'<article aria-labelledby="text-{number}"><div class="top">'
        f'<h2 id="text-{number}">Text {number}</h2>'
        f'<span class="verdict{kind}">dense and pruned: {escape(told)}</span></div>'
        f'<dl class="said"><div><dt>dense</dt><dd>{escape(in_words(text.dense))}</dd></div>'
        f"<div><dt>pruned</dt><dd>{escape(in_words(text.pruned))}</dd></div></dl>"
        f"{windows}</article>"
    )


def _tokens(found: Explained, text: Explanation, window: Window, number: int) -> str:
    roles = (TASKS[found.task].PAIR_ROLES or PAIR_ROLES) if len(text.parts) > 1 else ()
    paragraphs: list[str] = []
    for part, pieces in enumerate(_by_part(text, window)):
        role = f'<span class="role">{roles[part]}</span>' if roles else ""
        shown = "".join(_piece(found, text, window, piece) for piece in pieces)
        paragraphs.append(f"<p>{role}{shown.lstrip()}</p>")
    first = '<span tabindex="-1"'  # one stop for the tab key, then the arrow keys
    inner = "".join(paragraphs).replace(first, '<span tabindex="0"', 1)
    return (
        f'<div class="tokens" role="group" aria-label="Tokens of text {number}; '
        f'arrow keys go from one to the next">{inner}</div>'
    )


def _by_part(text: Explanation, window: Window) -> Iterator[list[Piece]]:
    """The pieces of each part, with the tokenizer's own tokens before it, or behind the last."""
    pieces: list[Piece] = []
    part = 0
    for piece in text.pieces(window):
        token = None if piece.token is None else window.tokens[piece.token]
        if token is not None and token.part is not None and token.part != part:
            yield pieces
            pieces, part = [], token.part
        pieces.append(piece)
    yield pieces


def _piece(found: Explained, text: Explanation, window: Window, piece: Piece) -> str:
    if piece.token is None:
        return escape(piece.text)
    token = window.tokens[piece.token]
    kinds = ["t", f"s{shade(token.last, found.layers)}"]
    kinds += ["own"] if token.part is None else []
    kinds += ["merged"] if token.into is not None else []
    kinds += ["answer"] if _is_answer(text, token) else []
    gap = " " if token.part is None else ""
    return (
        f'{gap}<span tabindex="-1" role="button" class="{" ".join(kinds)}" '
        f'data-last="{token.last}" data-tip="{escape(tip(found, window, piece))}">'
        f"{escape(piece.text)}</span>{gap}"
    )


def shade(last: int, layers: int) -> int:
    """0 for the first layer, the deepest for the last one alone."""
    return SHADES - 1 if last >= layers - 1 else last * (SHADES - 1) // max(layers - 1, 1)


def _is_answer(text: Explanation, token: Token) -> bool:
    start, end = text.pruned.get("start", -1), text.pruned.get("end", -1)
    return token.part == 1 and token.start < end and token.end > start >= 0


def tip(found: Explained, window: Window, piece: Piece) -> str:
    """What is told of a token when it is pointed at: a line for each thing."""
    assert piece.token is not None
    token = window.tokens[piece.token]
    lines = [f"“{token.name}”"]
    if token.into is not None:
        lines.append(f"merged in layer {token.last + 1} into “{window.tokens[token.into].name}”")
    elif token.last == found.layers - 1:
        lines.append("stays to the end")
    else:
        lines.append(f"left in layer {token.last + 1}")
    if token.protected:
        lines.append("protected: stays whatever its score")
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
