"""Benign text put before, behind, around or between what a text says: how somebody pads it who does
not want it read. Remembers where every character of the text has gone."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from toprune.errors import UserError
from toprune.io.untrusted import read_text

PLACES = ("before", "after", "around", "scattered")
PLAIN = (
    "The meeting has been moved to the small room on the second floor.",
    "A bus leaves from the station every twenty minutes until late in the evening.",
    "She put the kettle on and looked for the blue cup.",
    "The report lists the rainfall of each month since the year 1990.",
    "Our office is open from nine to five, and closed on public holidays.",
    "He painted the fence on Saturday and the gate on Sunday.",
    "The recipe needs two eggs, some flour and a glass of milk.",
    "There is a map of the town beside the entrance of the library.",
    "The river is about forty metres wide at the old bridge.",
    "They planted three apple trees behind the house last autumn.",
    "The second chapter describes how paper is made from wood.",
    "A package arrived this morning and is waiting at the front desk.",
)
_ENDS = re.compile(r"(?<=[.!?…。！？])\s+|\n\s*")  # noqa: RUF001  of a sentence


@dataclass(frozen=True)
class Padded:
    text: str
    moved: tuple[tuple[int, int], ...]  # where a piece of the original began, and how far it moved

    def where(self, character: int) -> int:
        """The place of a character of the original."""
        piece = bisect_right(self.moved, character, key=lambda one: one[0]) - 1
        return character + self.moved[piece][1]


def read_sentences(path: str | Path) -> list[str]:
    lines = [line.strip() for line in read_text(path, "give a text file").splitlines()]
    found = [line for line in lines if line]
    if not found:
        raise UserError(f"--filler {path} is empty; give a text file with a sentence in each line")
    return found


class Filler:
    """Sentences in a random order, again and again, up to as many tokens as are asked for."""

    def __init__(self, sentences: Sequence[str], tokenizer: Tokenizer):
        self.sentences, self._tokenizer = sentences, tokenizer
        self._tokens = [len(self._offsets(sentence)) for sentence in sentences]
        if not any(self._tokens):
            raise UserError("the tokenizer finds no token in the filler; give other sentences")

    def _offsets(self, text: str) -> list[tuple[int, int]]:
        return self._tokenizer.encode(text, add_special_tokens=False).offsets

    def pad(self, text: str, place: str, count: int, seed: tuple[int, ...]) -> Padded:
        """The text with `count` tokens of filler, less what would be half a word. The same seed is
        the same filler, at every place, and the beginning of a longer one."""
        begins = [0, *(m.end() for m in _ENDS.finditer(text) if 0 < m.end() < len(text))]
        last = len(begins)
        gaps = {"before": (0,), "after": (last,), "around": (0, last)}.get(place, range(last + 1))
        parts = dict(zip(gaps, self._parts(count, len(gaps), seed), strict=True))
        made, moved = "", list[tuple[int, int]]()
        for i, (begin, end) in enumerate(pairwise([*begins, len(text)])):
            if part := parts.get(i):
                made += f"{part} "
            moved.append((begin, len(made) - begin))
            made += text[begin:end]
            if parts.get(i + 1) and not made[-1:].isspace():
                made += " "
        return Padded(made + parts.get(last, ""), tuple(moved))

    def _parts(self, count: int, gaps: int, seed: tuple[int, ...]) -> list[str]:
        """One filler in as many parts of like length."""
        order = np.random.default_rng(seed).permutation(len(self.sentences))
        rounds = -(-count // sum(self._tokens)) + 1  # one more: tokens may join where sentences do
        stream = " ".join([self.sentences[int(i)] for i in order] * rounds)
        offsets = self._offsets(stream)
        marks = [0]
        for part in range(1, gaps + 1):
            tokens = min(count * part // gaps, len(offsets))
            end = offsets[tokens - 1][1] if tokens else 0
            marks.append(max(marks[-1], _whole_words(stream, end)))
        return [stream[start:end].strip() for start, end in pairwise(marks)]


def _whole_words(text: str, end: int) -> int:
    """The end of the last word that is whole; where no blank tells words apart, as it was."""
    if end == len(text) or text[end].isspace():
        return end
    return max(text.rfind(" ", 0, end), 0) or end


class Padding:
    """Texts with filler in them that are read to their end."""

    def __init__(self, tokenizer: Any, sentences: Sequence[str], room: int, seed: int):
        """room: tokens that the model reads. tokenizer: of transformers; this one is its own."""
        self._tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._filler, self.room, self._seed = Filler(sentences, self._tokenizer), room, seed

    def length(self, text: Any) -> int:
        """Tokens of a text or pair, special ones included."""
        first, second = (text, None) if isinstance(text, str) else map(_encodable, text)
        return len(self._tokenizer.encode(_encodable(first), second).ids)

    def own_length(self, text: Any) -> int:
        """Of the text that gets the filler: of a pair the second one."""
        own = _encodable(last_of(text))
        return len(self._tokenizer.encode(own, add_special_tokens=False).ids)

    def fits(self, text: Any, dose: int) -> bool:
        return 0 < dose * self.own_length(text) <= self.room - self.length(text)

    def reached(self, texts: Sequence[Any], padded: Sequence[Any]) -> np.ndarray:
        """(N,): filler that is there, in lengths of the text."""
        every = zip(texts, padded, strict=True)
        return np.array([(self.length(b) - self.length(a)) / self.own_length(a) for a, b in every])

    def pad(self, texts: Sequence[Any], place: str, dose: int) -> list[Padded]:
        return [self._pad(text, place, dose, i) for i, text in enumerate(texts)]

    def _pad(self, text: Any, place: str, dose: int, number: int) -> Padded:
        count = min(dose * self.own_length(text), self.room - self.length(text))
        while True:  # tokens may join or part where filler and text meet
            made = self._filler.pad(last_of(text), place, count, (self._seed, number))
            over = self.length(with_last(text, made.text)) - self.room
            if over <= 0 or count == 0:
                return made
            count = max(0, count - over)


def _encodable(text: str) -> str:
    """As the model's reader has it (`run/texts.py`): half a surrogate pair is no character."""
    return text.encode("utf-8", "replace").decode("utf-8")


def last_of(text: Any) -> str:
    return text if isinstance(text, str) else text[-1]


def with_last(text: Any, last: str) -> Any:
    return last if isinstance(text, str) else (*text[:-1], last)
