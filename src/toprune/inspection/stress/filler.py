"""Puts benign filler before, after, around or between the sentences of a text, as someone does who
wants to hide it. Remembers where every character of the text goes."""

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
from toprune.tasks import Task

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
        """The place of a character of the original in the padded text."""
        piece = bisect_right(self.moved, character, key=lambda one: one[0]) - 1
        return character + self.moved[piece][1]


def read_sentences(path: str | Path) -> list[str]:
    """The sentences of a filler file, one on each line."""
    lines = [line.strip() for line in read_text(path, "give a text file").splitlines()]
    sentences = [line for line in lines if line]
    if not sentences:
        raise UserError(f"--filler {path} is empty; give a text file with a sentence on each line")
    return sentences


class Filler:
    """Sentences in random order, repeated until there are enough tokens."""

    def __init__(self, sentences: Sequence[str], tokenizer: Tokenizer):
        self.sentences, self._tokenizer = sentences, tokenizer
        self._tokens = [len(self._offsets(sentence)) for sentence in sentences]
        if not any(self._tokens):
            raise UserError("the tokenizer finds no token in the filler; give other sentences")

    def _offsets(self, text: str) -> list[tuple[int, int]]:
        return self._tokenizer.encode(text, add_special_tokens=False).offsets

    def pad(self, text: str, place: str, count: int, seed: tuple[int, ...]) -> Padded:
        """The text with `count` tokens of filler, or fewer, so that no word is cut.

        The same seed gives the same filler at every place, and a longer filler begins with it.
        """
        begins = [0, *(m.end() for m in _ENDS.finditer(text) if 0 < m.end() < len(text))]
        last = len(begins)
        gaps = {"before": (0,), "after": (last,), "around": (0, last)}.get(place, range(last + 1))
        parts = dict(zip(gaps, self._parts(count, len(gaps), seed), strict=True))
        padded, moved = "", list[tuple[int, int]]()
        for i, (begin, end) in enumerate(pairwise([*begins, len(text)])):
            if part := parts.get(i):
                padded += f"{part} "
            moved.append((begin, len(padded) - begin))
            padded += text[begin:end]
            if parts.get(i + 1) and not padded[-1:].isspace():
                padded += " "
        return Padded(padded + parts.get(last, ""), tuple(moved))

    def _parts(self, count: int, gaps: int, seed: tuple[int, ...]) -> list[str]:
        """One filler, cut into as many parts of about the same length."""
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
    """The end of the last complete word before `end`; `end` itself where there are no blanks."""
    if end == len(text) or text[end].isspace():
        return end
    return max(text.rfind(" ", 0, end), 0) or end


class Padding:
    """Pads texts with filler without exceeding the length that the model reads."""

    def __init__(self, tokenizer: Tokenizer, sentences: Sequence[str], room: int, seed: int):
        """room: tokens that the model reads. tokenizer: it is copied."""
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._filler, self.room, self._seed = Filler(sentences, self._tokenizer), room, seed

    def length(self, text: Any) -> int:
        """Tokens of a text or pair, special ones included."""
        first, second = (text, None) if isinstance(text, str) else map(_encodable, text)
        return len(self._tokenizer.encode(_encodable(first), second).ids)

    def padded_length(self, text: Any) -> int:
        """Tokens of the text that gets the filler: the second one of a pair."""
        last = _encodable(last_of(text))
        return len(self._tokenizer.encode(last, add_special_tokens=False).ids)

    def fits(self, text: Any, dose: int) -> bool:
        """Is there room for filler of `dose` times the length of the text?"""
        return 0 < dose * self.padded_length(text) <= self.room - self.length(text)

    def reached(self, texts: Sequence[Any], padded: Sequence[Any]) -> np.ndarray:
        """(N,): the filler in padded texts, in lengths of the text."""
        pairs = zip(texts, padded, strict=True)
        return np.array(
            [(self.length(b) - self.length(a)) / self.padded_length(a) for a, b in pairs]
        )

    def pad(self, texts: Sequence[Any], place: str, dose: int) -> list[Padded]:
        """Pad every text; shorter where the room ends."""
        return [self._pad(text, place, dose, i) for i, text in enumerate(texts)]

    def _pad(self, text: Any, place: str, dose: int, number: int) -> Padded:
        count = min(dose * self.padded_length(text), self.room - self.length(text))
        while True:  # tokens may join or part where filler and text meet
            padded = self._filler.pad(last_of(text), place, count, (self._seed, number))
            over = self.length(with_last(text, padded.text)) - self.room
            if over <= 0 or count == 0:
                return padded
            count = max(0, count - over)


def takes_filler(task: type[Task] | Task) -> bool:
    """Is the answer a decision about the whole text, which filler should not change?"""
    return task.HAS_LABEL_NAMES and not task.BY_TOKEN


def _encodable(text: str) -> str:
    """As `tasks/tokenize.py` does: half a surrogate pair is no character."""
    return text.encode("utf-8", "replace").decode("utf-8")


def last_of(text: Any) -> str:
    """The text itself, or the second text of a pair."""
    return text if isinstance(text, str) else text[-1]


def with_last(text: Any, last: str) -> Any:
    """The text or pair with another last text."""
    return last if isinstance(text, str) else (*text[:-1], last)
