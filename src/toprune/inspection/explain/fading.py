"""An explanation in the terminal: tokens fade by the layer that they left in. Where there is no
colour, the text is told again for every layer that sees less of it."""

import os
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from toprune.inspection.explain.explanation import (
    Explained,
    Explanation,
    Window,
    in_words,
    verdict,
)

DARK, LIGHT = (80, 175), (200, 110)  # greys of what leaves first and last, by the ground
GAP = "…"
# What a text could tell the terminal to do: a sign stands for it.
COMMANDS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def faded(found: Explained, console: Console) -> Group:
    """All texts, with colours where the console has them."""
    parts: list[RenderableType] = []
    coloured = console.is_terminal and not console.no_color and console.color_system is not None
    for number, text in enumerate(found.texts, 1):
        if len(found.texts) > 1:
            parts.append(Text(f"text {number} of {len(found.texts)}", "bold" if coloured else ""))
        for window in text.windows:
            if coloured:
                shades = shades_of(found.layers, has_light_ground())
                parts += [_shaded(text, window, shades), Text(), _legend(window, shades)]
            else:
                parts.append(_by_layer(text, window))
        parts += [_predictions(text), Text()]
    return Group(*parts, Text(f"dense: {found.dense}"))


def shades_of(layers: int, light: bool) -> list[str]:
    """A style for each layer that may be a token's last; the first ones are nearest to the
    ground."""
    first, last = LIGHT if light else DARK
    steps = max(layers - 2, 1)
    greys = [round(first + (last - first) * i / steps) for i in range(layers - 1)]
    return [*(f"rgb({grey},{grey},{grey})" for grey in greys), "bold"]


def has_light_ground() -> bool:
    """As terminals tell it that tell it at all: the last of COLORFGBG's numbers, 7 or 15."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")


def _shaded(text: Explanation, window: Window, shades: list[str]) -> Text:
    shown = Text()
    for piece in text.pieces(window):
        token = None if piece.token is None else window.tokens[piece.token]
        if token is None:
            shown.append(clean(piece.text))
        elif token.part is not None:
            shown.append(clean(piece.text), shades[token.last])
        else:  # the tokenizer's own have no blanks around them
            shown.append(" " if shown else "").append(piece.text, shades[token.last]).append(" ")
    return shown


def _legend(window: Window, shades: list[str]) -> Text:
    """How many tokens enter each layer, in the shade of those that go no further."""
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
    """First and last of the layers that see the same tokens."""
    last = [token.last for token in window.tokens]
    first = 0
    for layer in range(len(window.entering)):
        if layer == len(window.entering) - 1 or layer in last:
            yield first, layer
            first = layer + 1


def seen_by(text: Explanation, window: Window, layer: int) -> str:
    """The text as it enters a layer: dots for those who have left, a plus between merged ones."""
    told, between = "", ""
    for piece in text.pieces(window):
        token = None if piece.token is None else window.tokens[piece.token]
        if token is None:
            between = between if GAP in between else between + piece.text
            continue
        is_merged = token.into is not None and token.last < layer
        if token.last < layer and not is_merged:
            between = f" {GAP} "
            continue
        if told and (token.part is None or _stands(window, piece.token, layer)):
            between = between or " "  # what stands for others is told apart from those before
        told += ("+" if is_merged else between) + piece.text
        between = " " if token.part is None else ""
    return clean((told + between).strip())


def _stands(window: Window, i: int | None, layer: int) -> bool:
    """Does the token stand for others that are merged with it?"""
    return any(token.into == i and token.last < layer for token in window.tokens)


def _predictions(text: Explanation) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("dense", Text(clean(in_words(text.dense))))
    table.add_row("pruned", Text(clean(in_words(text.pruned))), Text(verdict(text)[0]))
    return table


def clean(text: str) -> str:
    return text.translate(COMMANDS)
