"""From texts to rows of token ids and padded numpy batches, with the `tokenizers` package alone.

Training reads texts through this module too (`training/features.py`), so what was measured while
pruning is what runs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from toprune.errors import UserError
from toprune.io.untrusted import user_errors
from toprune.tasks import Task

Text = str | tuple[str, str] | list[str]  # a text, a pair, or a list of words

CHUNK = 256  # texts per call: an encoding takes far more memory than the ids that are kept
FAILS, FIX = "the tokenizer fails", "use the file that was saved with the model"
QUESTION = 3  # a question may take 1 / 3 of the length; the rest of it is cut off


@dataclass(frozen=True, slots=True)
class Row:
    """What the model reads at once: a text or pair, or a window of one; not padded."""

    ids: np.ndarray  # (n,) int64
    segments: np.ndarray | None  # (n,) int64, if the model has segments
    text: int = 0  # number of the text that the row belongs to
    # (n, 2) int64, -1 for other tokens. Spans: first character in the context and the one after the
    # last; words: number of the word, and of the piece within it.
    places: np.ndarray | None = None
    cut: bool = False  # whether the text was too long and its rest is in no row

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
        """Set up a tokenizer, which belongs to this object from then on.

        Args:
            tokenizer: of the model.
            task: decides what a text is and whether long texts are read in windows.
            max_length: tokens of a row.
            inputs: names of the model's inputs.
            pad_token_id: the id that fills batches.
            side: where long texts are cut, "left" or "right"; None: as the tokenizer's file says,
                which transformers follows too.
        """
        self.inputs, self._pad = tuple(inputs), pad_token_id
        self._task, self._words = task, task.READS.words
        self._stride = task.overlap
        self._has_segments = "token_type_ids" in inputs
        self._takes_pairs = max_length >= _room(tokenizer, is_pair=True)
        least = _room(tokenizer, is_pair=task.FINDS_SPANS)
        if max_length < least:
            raise UserError(f"a maximum length of {max_length} leaves no room; use {least} or more")
        side = side or (tokenizer.truncation or {}).get("direction", "right")
        self._is_backwards = side == "left"  # windows come from the end of a text to its beginning
        self._max_length, self._frame = max_length, tokenizer.num_special_tokens_to_add(True)
        if self._words:
            tokenizer = spaced(tokenizer)
        # The overlap of windows must leave room for new tokens.
        stride = min(self._stride or 0, (max_length - least) // 3)
        cut: dict[str, Any] = {"max_length": max_length, "stride": stride, "direction": side}
        tokenizer.enable_truncation(**cut, strategy="longest_first")
        tokenizer.no_padding()
        self._tokenizer = self._second = self._uncut = tokenizer
        if (
            self._stride is not None and not self._words
        ):  # windows move over the second text of a pair
            self._second, self._uncut = (Tokenizer.from_str(tokenizer.to_str()) for _ in range(2))
            self._second.enable_truncation(**cut, strategy="only_second")
            self._uncut.no_truncation()
        self.first = _first(tokenizer)

    @classmethod
    def load(cls, path: Path, task: Task, **options: Any) -> "Texts":
        """Read a tokenizer.json; the options are those of `Texts`."""
        with user_errors(f"cannot read {path} ({{}}); copy it again or export the bundle again"):
            tokenizer = Tokenizer.from_file(str(path))
        return cls(tokenizer, task, **options)

    def encode(self, texts: Sequence[Any], first: int = 0) -> list[Row]:
        """Tokenize texts.

        Args:
            texts: texts, pairs or lists of words, as the task reads them.
            first: number of texts[0], for errors that name a text.

        Returns:
            One row for each text, or several if the task reads long texts in windows; their `text`
            counts from 0.
        """
        rows: list[Row] = []
        for start in range(0, len(texts), CHUNK):
            chunk = [
                self._read(t, first + i) for i, t in enumerate(texts[start : start + CHUNK], start)
            ]
            with user_errors(f"{FAILS} on texts[{first + start}] or soon after ({{}}); {FIX}"):
                encodings = self._encode(chunk)
            for i, encoding in enumerate(encodings, start):
                if not encoding.ids:
                    raise UserError(
                        f"texts[{first + i}]: the tokenizer finds no token in it; leave it out"
                    )
                windows = [encoding, *(encoding.overflowing if self._stride is not None else ())]
                starts: dict[int, Any] = {}
                if self._is_backwards:
                    windows.reverse()
                rows += [self._row(window, i, starts) for window in windows]
        return rows

    def batch(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Pad rows on the right to the longest one: the model's inputs (B, S), int64."""
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
        # encode_batch_fast would lose the segments of all windows but one.
        pairs = {i: self._shortened(text) for i, text in enumerate(chunk) if type(text) is tuple}
        others = {i: text for i, text in enumerate(chunk) if i not in pairs}
        encodings = dict(zip(pairs, self._second.encode_batch([*pairs.values()]), strict=True))
        encodings |= zip(others, self._tokenizer.encode_batch([*others.values()]), strict=True)
        return [encodings[i] for i in range(len(chunk))]

    def _row(self, encoding: Encoding, text: int, starts: dict[int, Any]) -> Row:
        places = None
        if self._task.FINDS_SPANS:
            part = np.array([-1 if s is None else s for s in encoding.sequence_ids])
            places = np.where(part[:, None] == 1, np.array(encoding.offsets, np.int64), -1)
        elif self._words:
            places = word_places(encoding, starts)
        types = np.array(encoding.type_ids, np.int64) if self._has_segments else None
        is_full = self._stride is None and len(encoding.ids) >= self._max_length
        cut = is_full and bool(encoding.overflowing)
        return Row(np.array(encoding.ids, np.int64), types, text, places, cut)

    def _shortened(self, pair: tuple[str, str]) -> tuple[str, str]:
        """Cut the end of a question (or first text) that would leave no room for its context."""
        question, context = pair
        encoding = self._uncut.encode(question, add_special_tokens=False)
        room = max(1, self._max_length // QUESTION)
        if len(encoding.ids) > room:
            rest = len(self._uncut.encode(context, add_special_tokens=False).ids)
            room = max(room, self._max_length - self._frame - rest)
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
        if isinstance(text, str) and not self._task.FINDS_SPANS:
            return _encodable(text)
        is_pair = isinstance(text, tuple | list) and len(text) == 2
        if not is_pair or not _are_strings(text):
            wanted = '"a text" or ("a", "pair")'
            if self._task.FINDS_SPANS and self._task.PAIR_ROLES:
                wanted = '("a {}", "its {}")'.format(*self._task.PAIR_ROLES)
            raise UserError(
                f"texts[{position}] is {_describe(text)}, not a text or a pair of texts; "
                f"give {wanted}"
            )
        if self._task.READS.alone:
            raise UserError(
                f"texts[{position}] is a pair; the task {self._task.NAME} reads one text at a time"
            )
        if not self._takes_pairs:
            raise UserError(f"texts[{position}]: the maximum length leaves no room for a pair")
        return _encodable(text[0]), _encodable(text[1])


def word_places(encoding: Encoding, starts: dict[int, Any]) -> np.ndarray:
    """(n, 2): word and piece. A window may begin inside a word; `starts` keeps the first token of
    each word, from one window of a text to the next."""
    places = np.full((len(encoding.ids), 2), -1, np.int64)
    word, piece = -1, 0
    for i, number in enumerate(encoding.word_ids):
        if number is None:
            continue
        if number != word:
            token = encoding.ids[i], encoding.offsets[i]  # bytes of one character: same offsets
            piece = int(starts.setdefault(number, token) != token)
        else:
            piece += 1
        word = number
        places[i] = word, piece
    return places


def spaced(tokenizer: Tokenizer) -> Tokenizer:
    """Byte-level tokenizers (RoBERTa's) know a word by the blank before it: add one to each."""
    spec = json.loads(tokenizer.to_str())
    outer = spec.get("pre_tokenizer") or {}
    for part in [outer, *outer.get("pretokenizers", [])]:
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    return Tokenizer.from_str(json.dumps(spec))


def _first(tokenizer: Tokenizer) -> int:
    """The id with which every text begins."""
    with user_errors(f"{FAILS} on the text 'a' ({{}}); {FIX}"):
        return tokenizer.encode("a").ids[0]


def _room(tokenizer: Tokenizer, *, is_pair: bool) -> int:
    """The least length that leaves a token of every part."""
    return tokenizer.num_special_tokens_to_add(is_pair) + 1 + is_pair


def _encodable(text: str) -> str:
    """Replace half a surrogate pair, which is not a character, by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _are_strings(parts: Sequence[Any]) -> bool:
    return all(isinstance(part, str) for part in parts)


def _describe(text: Any) -> str:
    if isinstance(text, tuple | list):
        return f"a {type(text).__name__} of {', '.join(type(part).__name__ for part in text[:4])}"
    return f"a {type(text).__name__}"
