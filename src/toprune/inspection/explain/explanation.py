"""What became of every token of a text, as plain data: for a terminal, a page, or JSON.

Layers and ranks count from zero here; people are told from one.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Ranking:
    """How a token stood when a layer ranked those that were still there."""

    layer: int
    score: float
    rank: int  # 0: the first to stay; the first token and protected ones come before all others


@dataclass(frozen=True)
class Token:
    name: str  # as the tokenizer writes it
    part: int | None  # 0: of the text, 1: of the second one; None: put there by the tokenizer
    start: int  # its characters in that part, from `start` up to `end`
    end: int
    last: int  # the last layer that it entered
    protected: bool  # stays whatever its score
    rankings: tuple[Ranking, ...] = ()
    into: int | None = None  # merged with its neighbours: the token that stands for all of them


@dataclass(frozen=True)
class Piece:
    """Some characters of a text, and the token that they are shown as; None: between tokens."""

    text: str
    token: int | None = None


@dataclass(frozen=True)
class Window:
    """What the model read in one piece."""

    tokens: tuple[Token, ...]
    entering: tuple[int, ...]  # how many tokens entered each layer


@dataclass(frozen=True)
class Explanation:
    """One text: parts (two of a pair), windows (one, where it fits), and what was predicted."""

    parts: tuple[str, ...]
    windows: tuple[Window, ...]
    pruned: dict[str, Any]
    dense: dict[str, Any]
    cosine: float | None = None  # of the two vectors, where vectors are what is predicted

    def pieces(self, window: Window) -> Iterator[Piece]:
        """All that the window shows, in order: special tokens by their names, the characters of
        others, and what is between these. What it leaves out of a part is an ellipsis."""
        at: dict[int, int] = {}  # part -> characters that have been shown
        shown: set[int] = set()
        for i, token in enumerate(window.tokens):
            if i in shown:
                continue
            if token.part is None:
                yield from self._rest(window, i, at)
                yield Piece(token.name, i)
                continue
            text = self.parts[token.part]
            start = at.get(token.part)
            if start is None and text[: token.start].strip():
                yield Piece("… ")
            elif start is not None and token.start > start:
                yield Piece(text[start : token.start])
            # Several tokens of one character, as with bytes, are shown as the one that lives on.
            same = [
                j
                for j, other in enumerate(window.tokens[i:], i)
                if (other.part, other.start, other.end) == (token.part, token.start, token.end)
            ]
            shown.update(same)
            stays = max(same, key=lambda j: window.tokens[j].last)
            yield Piece(text[max(token.start, start or 0) : token.end], stays)
            at[token.part] = max(token.end, start or 0)
        yield from self._rest(window, len(window.tokens), at)

    def _rest(self, window: Window, i: int, at: dict[int, int]) -> Iterator[Piece]:
        """What a part has left behind its last token in this window, which is the one before i."""
        part = window.tokens[i - 1].part if i else None
        if part is None:
            return
        rest = self.parts[part][at[part] :]
        yield Piece(" …" if rest.strip() else rest)


@dataclass(frozen=True)
class Explained:
    """What a bundle does with some texts."""

    bundle: str
    task: str
    layers: int
    score: str  # what the plan ranks tokens by
    drops: tuple[int, ...]  # layers in which tokens leave
    dense: str  # what is called dense here, in words
    texts: tuple[Explanation, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def in_words(predicted: dict[str, Any]) -> str:
    """A prediction of any task, for people."""
    if "label" in predicted:
        return f"{predicted['label']} ({predicted['score']:.1%})"
    if "labels" in predicted:
        return ", ".join(map(str, predicted["labels"])) or "no label"
    if "answer" in predicted:
        told = f"“{predicted['answer']}”" if predicted["answer"] else "no answer"
        return f"{told} ({predicted['score']:.1%})"
    if "entities" in predicted:
        found = [f"{entity['text']} ({entity['type']})" for entity in predicted["entities"]]
        return ", ".join(found) or "no entity"
    if "tags" in predicted:
        return " ".join(map(str, predicted["tags"]))
    if "vector" in predicted:
        return f"a vector of {len(predicted['vector'])} numbers"
    return f"{predicted.get('value', predicted.get('score')):.4f}"


def verdict(text: Explanation) -> tuple[str, bool | None]:
    """Did it matter? In the words of the task, and whether both decide the same; None where the
    answer is no decision but a number."""
    one, other = text.dense, text.pruned
    if text.cosine is not None:
        return f"their cosine is {text.cosine:.4f}", None
    if "tags" in one:
        count = sum(a != b for a, b in zip(one["tags"], other["tags"], strict=True))
        if count:
            return f"{count} of {len(one['tags'])} words tagged otherwise", False
        return "the same tags", True
    for decided in ("label", "labels", "answer"):
        if decided in one:
            same = one[decided] == other[decided]
            return f"{'the same' if same else 'another'} {decided}", same
    apart = (one[key] - other[key] for key in ("value", "score") if key in one)
    return f"{abs(next(apart)):.4f} apart", None
