"""From texts to rows of token ids and padded numpy batches, with the `tokenizers` package alone.

Training reads through this file too (`encode.py`): what was measured while pruning is what runs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from toprune.errors import UserError
from toprune.io.untrusted import whatever
from toprune.tasks import Task

Text = str | tuple[str, str] | list[str]  # a list: words that are to be told apart

CHUNK = 256  # texts per call: an encoding weighs far more than the ids we keep of it
FAILS, OWN = "the tokenizer fails", "use the file that was saved with the model"
QUESTION = 3  # a question may take one part in so many of the length; the rest is cut off


@dataclass(frozen=True, slots=True)
class Row:
    """What the model reads in one piece: a text or pair, or a window of one; not padded."""

    ids: np.ndarray  # (n,) int64
    segments: np.ndarray | None  # (n,) int64, where the model tells segments apart
    text: int = 0  # which of the given texts it is of
    # (n, 2) int64, -1 for other tokens. answer: first character in the context and the one past the
    # last; tokens: number of the word, and of the piece within it
    places: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)


class Texts:
    """A tokenizer that is set up once and never changed: many threads may use it at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        task: Task,
        *,
        max_length: int,
        inputs: Sequence[str],
        pad_token_id: int,
        side: str | None = None,
    ):
        """Takes the tokenizer over. side: where long texts are cut; None: as its file says, which
        is what transformers goes by, too."""
        self.inputs, self._pad = tuple(inputs), pad_token_id
        self._reads: str = task.HEAD
        self._stride: int | None = getattr(task, "stride", None)
        self._has_segments = "token_type_ids" in inputs
        self._takes_pairs = max_length >= _room(tokenizer, is_pair=True)
        least = _room(tokenizer, is_pair=self._reads == "answer")
        if max_length < least:
            raise UserError(f"a maximum length of {max_length} leaves no room; use {least} or more")
        side = side or (tokenizer.truncation or {}).get("direction", "right")
        self._is_backwards = side == "left"  # windows come from the end of a text to its beginning
        self._max_length, self._frame = max_length, tokenizer.num_special_tokens_to_add(True)
        self._words = self._reads == "tokens"
        if self._words:
            tokenizer = _spaced(tokenizer)
        # What a window shares with the one before it must leave room for something new.
        stride = min(self._stride or 0, (max_length - least) // 3)
        cut: dict[str, Any] = {"max_length": max_length, "stride": stride, "direction": side}
        tokenizer.enable_truncation(**cut, strategy="longest_first")
        tokenizer.no_padding()
        self._tokenizer = self._second = self._uncut = tokenizer
        if self._stride is not None and not self._words:  # windows of a pair are of its second text
            self._second, self._uncut = (Tokenizer.from_str(tokenizer.to_str()) for _ in range(2))
            self._second.enable_truncation(**cut, strategy="only_second")
            self._uncut.no_truncation()
        self.first = _first(tokenizer)

    @classmethod
    def load(cls, path: Path, task: Task, **how: Any) -> "Texts":
        with whatever(f"cannot read {path} ({{}}); copy it again or export the bundle again"):
            tokenizer = Tokenizer.from_file(str(path))
        return cls(tokenizer, task, **how)

    def encode(self, texts: Sequence[Any], first: int = 0) -> list[Row]:
        """One row for each text or pair, or several where the task reads on in windows; their
        `text` counts from 0. first: the position of texts[0] in what the user gave."""
        rows: list[Row] = []
        for start in range(0, len(texts), CHUNK):
            chunk = [
                self._read(t, first + i) for i, t in enumerate(texts[start : start + CHUNK], start)
            ]
            with whatever(f"{FAILS} on texts[{first + start}] or soon after ({{}}); {OWN}"):
                encodings = self._encode(chunk)
            for i, encoding in enumerate(encodings, start):
                if not encoding.ids:
                    where = first + i
                    raise UserError(f"texts[{where}]: the tokenizer finds no token in it; drop it")
                windows = [encoding, *(encoding.overflowing if self._stride is not None else ())]
                begun: dict[int, Any] = {}
                if self._is_backwards:
                    windows.reverse()
                rows += [self._row(window, i, begun) for window in windows]
        return rows

    def batch(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """The graph's inputs (B, S), int64, padded on the right to the longest row."""
        shape = len(rows), max(map(len, rows))
        ids = np.full(shape, self._pad, np.int64)
        mask = np.zeros(shape, np.int64)
        segments = np.zeros(shape, np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row.ids
            mask[i, : len(row)] = 1
            if row.segments is not None:
                segments[i, : len(row)] = row.segments
        batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        return {name: batch[name] for name in self.inputs}

    def _encode(self, chunk: Sequence[Any]) -> list[Encoding]:
        if self._words:
            return self._tokenizer.encode_batch(chunk, is_pretokenized=True)
        if self._stride is None:
            return self._tokenizer.encode_batch_fast(chunk)
        # In windows: the fast way would forget the segments of all of them but one.
        pairs = {i: self._shortened(text) for i, text in enumerate(chunk) if type(text) is tuple}
        others = {i: text for i, text in enumerate(chunk) if i not in pairs}
        found = dict(zip(pairs, self._second.encode_batch([*pairs.values()]), strict=True))
        found |= zip(others, self._tokenizer.encode_batch([*others.values()]), strict=True)
        return [found[i] for i in range(len(chunk))]

    def _row(self, encoding: Encoding, text: int, begun: dict[int, Any]) -> Row:
        places = None
        if self._reads == "answer":
            of = np.array([-1 if s is None else s for s in encoding.sequence_ids])
            places = np.where(of[:, None] == 1, np.array(encoding.offsets, np.int64), -1)
        elif self._words:
            places = _word_places(encoding, begun)
        types = np.array(encoding.type_ids, np.int64) if self._has_segments else None
        return Row(np.array(encoding.ids, np.int64), types, text, places)

    def _shortened(self, pair: tuple[str, str]) -> tuple[str, str]:
        """A question (or first text) that would leave no room for its context loses its end."""
        question, context = pair
        encoding = self._uncut.encode(question, add_special_tokens=False)
        room = max(1, self._max_length // QUESTION)
        if len(encoding.ids) > room:
            behind = len(self._uncut.encode(context, add_special_tokens=False).ids)
            room = max(room, self._max_length - self._frame - behind)
        if len(encoding.ids) <= room:
            return pair
        return question[: encoding.offsets[room][0]], context

    def _read(self, text: Any, position: int) -> Text:
        if self._words:
            if not isinstance(text, tuple | list) or not text or not _are_strings(text):
                raise UserError(
                    f"texts[{position}] is {_describe(text)}, not a list of words; "
                    'give ["a", "sentence", "in", "words"]'
                )
            return [_encodable(word) for word in text]
        if isinstance(text, str) and self._reads != "answer":
            return _encodable(text)
        is_pair = isinstance(text, tuple | list) and len(text) == 2
        if not is_pair or not _are_strings(text):
            wanted = (
                '("a question", "its context")'
                if self._reads == "answer"
                else '"a text" or ("a", "pair")'
            )
            raise UserError(
                f"texts[{position}] is {_describe(text)}, not a text or a pair of texts; "
                f"give {wanted}"
            )
        if self._reads == "encoder":
            raise UserError(f"texts[{position}] is a pair; an embedding is of one text")
        if not self._takes_pairs:
            raise UserError(f"texts[{position}]: the maximum length leaves no room for a pair")
        return _encodable(text[0]), _encodable(text[1])


def _word_places(encoding: Encoding, begun: dict[int, Any]) -> np.ndarray:
    """(n, 2): word and piece. A window may begin inside a word; `begun` remembers, from one window
    of a text to the next, with which token each word set out."""
    places = np.full((len(encoding.ids), 2), -1, np.int64)
    word, piece = -1, 0
    for i, number in enumerate(encoding.word_ids):
        if number is None:
            continue
        if number != word:
            token = encoding.ids[i], encoding.offsets[i]  # bytes of one character: same offsets
            piece = int(begun.setdefault(number, token) != token)
        else:
            piece += 1
        word = number
        places[i] = word, piece
    return places


def _spaced(tokenizer: Tokenizer) -> Tokenizer:
    """Tokenizers by bytes (RoBERTa's) tell a word by the blank before it: give every word one."""
    spec = json.loads(tokenizer.to_str())
    found = spec.get("pre_tokenizer") or {}
    for part in [found, *found.get("pretokenizers", [])]:
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    return Tokenizer.from_str(json.dumps(spec))


def _first(tokenizer: Tokenizer) -> int:
    """The id that every text begins with."""
    with whatever(f"{FAILS} on the text 'a' ({{}}); {OWN}"):
        return tokenizer.encode("a").ids[0]


def _room(tokenizer: Tokenizer, *, is_pair: bool) -> int:
    """The least length in which something of every part is left."""
    return tokenizer.num_special_tokens_to_add(is_pair) + 1 + is_pair


def _encodable(text: str) -> str:
    """Half a surrogate pair is no character: a "?" takes its place."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _are_strings(parts: Sequence[Any]) -> bool:
    return all(isinstance(part, str) for part in parts)


def _describe(text: Any) -> str:
    if isinstance(text, tuple | list):
        return f"a {type(text).__name__} of {', '.join(type(part).__name__ for part in text[:4])}"
    return f"a {type(text).__name__}"
