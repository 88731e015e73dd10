"""An explanation in the terminal: a token is the fainter the earlier it was dropped. Without
colours, the text is printed once for every layer that sees less of it."""

import os
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from toprune.inspection.explain.explanation import (
    Explained,
    Explanation,
    Window,
    fallback_text,
    prediction_text,
    verdict,
)

DARK, LIGHT = (80, 175), (200, 110)  # greys of what is dropped first and last, by background
GAP = "…"
# Control characters, by which a text could give orders to the terminal, become a sign.
CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def explain_text(explained: Explained, console: Console) -> Group:
    """Render all texts, with colours where the console has them."""
    parts: list[RenderableType] = []
    coloured = console.is_terminal and not console.no_color and console.color_system is not None
    for number, text in enumerate(explained.texts, 1):
        if len(explained.texts) > 1:
            parts.append(
                Text(f"text {number} of {len(explained.texts)}", "bold" if coloured else "")
            )
        for window in text.windows:
            if coloured:
                shades = shades_of(explained.layers, has_light_background())
                parts += [_shaded(text, window, shades), Text(), _legend(window, shades)]
            else:
                parts.append(_by_layer(text, window))
        parts += [_predictions(text), Text()]
    return Group(*parts, Text(f"dense: {explained.dense}"))


def shades_of(layers: int, light: bool) -> list[str]:
    """A style for each layer that may be a token's last; the earliest are nearest to the
    background. light: is that background light?"""
    first, last = LIGHT if light else DARK
    steps = max(layers - 2, 1)
    greys = [round(first + (last - first) * i / steps) for i in range(layers - 1)]
    return [*(f"rgb({grey},{grey},{grey})" for grey in greys), "bold"]


def has_light_background() -> bool:
    """Some terminals set COLORFGBG; its last number is 7 or 15 on a light background."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")


def _shaded(text: Explanation, window: Window, shades: list[str]) -> Text:
    shown = Text()
    for piece in text.pieces(window):
        token = None if piece.token is None else window.tokens[piece.token]
        if token is None:
            shown.append(clean(piece.text))
        elif token.part is not None:
            shown.append(clean(piece.text), shades[token.last])
        else:  # the tokenizer's special tokens have no blanks around them
            shown.append(" " if shown else "").append(piece.text, shades[token.last]).append(" ")
    return shown


def _legend(window: Window, shades: list[str]) -> Text:
    """How many tokens enter each layer, in the shade of those that leave there."""
    legend = Text("layer (tokens): ")
    for layer, count in enumerate(window.entering):
        legend.append(f"{layer + 1} ({count})", shades[layer]).append("  ")
    return legend


def _by_layer(text: Explanation, window: Window) -> Table:
    table = Table.grid(padding=(0, 2))
    for name in ("layer", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    table.add_row("layer", "tokens", "what it sees")
    for first, last in _stretches(window):
        layers = f"{first + 1}" if first == last else f"{first + 1}-{last + 1}"
        table.add_row(layers, str(window.entering[first]), Text(seen_by(text, window, first)))
    return table


def _stretches(window: Window) -> Iterator[tuple[int, int]]:
    """The first and the last layer of each run of layers that see the same tokens."""
    last = [token.last for token in window.tokens]
    first = 0
    for layer in range(len(window.entering)):
        if layer == len(window.entering) - 1 or layer in last:
            yield first, layer
            first = layer + 1


def seen_by(text: Explanation, window: Window, layer: int) -> str:
    """The text as it enters a layer: an ellipsis for dropped tokens, a plus before merged ones."""
    seen, between = "", ""
    for piece in text.pieces(window):
        token = None if piece.token is None else window.tokens[piece.token]
        if token is None:
            between = between if GAP in between else between + piece.text
            continue
        is_merged = token.into is not None and token.last < layer
        if token.last < layer and not is_merged:
            between = f" {GAP} "
            continue
        if seen and (token.part is None or _has_merged(window, piece.token, layer)):
            between = between or " "  # a merged group begins with a blank
        seen += ("+" if is_merged else between) + piece.text
        between = " " if token.part is None else ""
    return clean((seen + between).strip())


def _has_merged(window: Window, i: int | None, layer: int) -> bool:
    """Are other tokens merged into this one?"""
    return any(token.into == i and token.last < layer for token in window.tokens)


def _predictions(text: Explanation) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("dense", Text(clean(prediction_text(text.dense))))
    table.add_row("pruned", Text(clean(prediction_text(text.pruned))), Text(verdict(text)[0]))
    if answered := fallback_text(text):
        table.add_row("answered by", Text(answered))
    return table


def clean(text: str) -> str:
    """Replace control characters."""
    return text.translate(CONTROLS)
