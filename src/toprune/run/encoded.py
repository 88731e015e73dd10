"""Texts that are tokenized before they run: a server knows their cost while they wait."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A text with its rows; a Runner takes it wherever it takes a text, and reads it once only."""

    text: Any
    rows: tuple[Any, ...]  # one, or one for each window of a long text

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rows))


class Encoder(Protocol):
    """The part of a `Reader` that tokenizes."""

    def encode(self, texts: Sequence[Any], first: int = 0, /) -> list[Any]: ...


def encode(reader: Encoder, texts: Sequence[Any]) -> list[Encoded]:
    """Tokenize texts; each keeps its own rows."""
    rows: list[list[Any]] = [[] for _ in texts]
    for row in reader.encode(texts):
        rows[row.text].append(row)
    return [Encoded(text, tuple(own)) for text, own in zip(texts, rows, strict=True)]


def read_rows(reader: Encoder, texts: list[Any], first: int) -> tuple[list[Any], list[Any]]:
    """The plain texts and their rows; texts that are tokenized already are not read again.

    Args:
        reader: tokenizes the others.
        texts: plain or encoded ones, also mixed.
        first: number of texts[0], for errors that name a text.
    """
    if not any(isinstance(text, Encoded) for text in texts):
        return texts, reader.encode(texts, first)
    plain: list[Any] = []
    rows: list[Any] = []
    for i, text in enumerate(texts):
        own = text.rows if isinstance(text, Encoded) else reader.encode([text], first + i)
        rows += [replace(row, text=i) for row in own]
        plain.append(text.text if isinstance(text, Encoded) else text)
    return plain, rows
