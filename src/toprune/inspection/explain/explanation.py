"""What a bundle does with every token of a text, as plain data: for a terminal, a page, or JSON.

Layers and ranks count from zero here; people read them from one.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Ranking:
    """The rank of a token among those that were alive in a layer."""

    layer: int
    score: float
    rank: int  # 0 is best; the first token and protected ones come before all others


@dataclass(frozen=True)
class Token:
    name: str  # as the tokenizer writes it
    part: int | None  # 0: the text, 1: the second text; None: added by the tokenizer
    start: int  # its characters in that part, from `start` up to `end`
    end: int
    last: int  # the last layer that it entered
    protected: bool  # kept whatever its score
    rankings: tuple[Ranking, ...] = ()
    into: int | None = None  # index of the token that it is merged into


@dataclass(frozen=True)
class Piece:
    """Some characters of a text and their token; None: between tokens."""

    text: str
    token: int | None = None


@dataclass(frozen=True)
class Window:
    """What the model reads in one piece."""

    tokens: tuple[Token, ...]
    entering: tuple[int, ...]  # tokens that enter each layer


@dataclass(frozen=True)
class Explanation:
    """One text: its parts (two for a pair), its windows (one if it fits), and the predictions."""

    parts: tuple[str, ...]
    windows: tuple[Window, ...]
    pruned: dict[str, Any]
    dense: dict[str, Any]
    cosine: float | None = None  # of the two vectors, where the task predicts vectors
    fell: bool | None = None  # the dense model answers; None: the bundle has no fallback

    def pieces(self, window: Window) -> Iterator[Piece]:
        """Everything in the window, in order: special tokens by their names, the characters of
        other tokens, and what is between them. An ellipsis stands for what is outside."""
        at: dict[int, int] = {}  # part -> characters that are shown already
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
            # Tokens of one character, as with bytes, are shown as the one that stays longest.
            same = [
                j
                for j, other in enumerate(window.tokens[i:], i)
                if (other.part, other.start, other.end) == (token.part, token.start, token.end)
            ]
            shown.update(same)
            longest = max(same, key=lambda j: window.tokens[j].last)
            yield Piece(text[max(token.start, start or 0) : token.end], longest)
            at[token.part] = max(token.end, start or 0)
        yield from self._rest(window, len(window.tokens), at)

    def _rest(self, window: Window, i: int, at: dict[int, int]) -> Iterator[Piece]:
        """The rest of a part behind its last token in this window, which is the one before i."""
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
    drops: tuple[int, ...]  # layers that drop tokens
    dense: str  # a phrase: which model is the dense one here
    texts: tuple[Explanation, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Speed:
    """Pruned over dense on one text, both in torch and in turns, with its 95 % interval."""

    value: float
    low: float
    high: float
    rounds: int


def prediction_text(prediction: dict[str, Any]) -> str:
    """A prediction of any task as a phrase."""
    if "label" in prediction:
        return f"{prediction['label']} ({prediction['score']:.1%})"
    if "labels" in prediction:
        return ", ".join(map(str, prediction["labels"])) or "no label"
    if "answer" in prediction:
        answer = f"“{prediction['answer']}”" if prediction["answer"] else "no answer"
        return f"{answer} ({prediction['score']:.1%})"
    if "entities" in prediction:
        entities = [f"{entity['text']} ({entity['type']})" for entity in prediction["entities"]]
        return ", ".join(entities) or "no entity"
    if "tags" in prediction:
        return " ".join(map(str, prediction["tags"]))
    if "vector" in prediction:
        return f"a vector of {len(prediction['vector'])} numbers"
    return f"{prediction.get('value', prediction.get('score')):.4f}"


def fallback_text(text: Explanation) -> str:
    """Which model answers in a bundle with a fallback; empty: there is none."""
    if text.fell is None:
        return ""
    return "dense, because the margin is too small" if text.fell else "pruned"


def verdict(text: Explanation) -> tuple[str, bool | None]:
    """Compare the two predictions.

    Returns:
        A phrase, and whether both models decide the same; None where they predict numbers.
    """
    dense, pruned = text.dense, text.pruned
    if text.cosine is not None:
        return f"their cosine is {text.cosine:.4f}", None
    if "tags" in dense:
        count = sum(a != b for a, b in zip(dense["tags"], pruned["tags"], strict=True))
        if count:
            return f"{count} of {len(dense['tags'])} words have another tag", False
        return "the same tags", True
    for key in ("label", "labels", "answer"):
        if key in dense:
            same = dense[key] == pruned[key]
            return f"{'the same' if same else 'another'} {key}", same
    gaps = (dense[key] - pruned[key] for key in ("value", "score") if key in dense)
    return f"{abs(next(gaps)):.4f} apart", None
