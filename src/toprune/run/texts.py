"""From texts to padded numpy batches, with the `tokenizers` package alone.

Gives the very ids that `toprune.encode` gives through transformers: what was measured while pruning
is what runs here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from toprune.errors import UserError

Text = str | tuple[str, str]

CHUNK = 256  # texts per call: an encoding weighs far more than the ids we keep of it


@dataclass(frozen=True, slots=True)
class Row:
    """One text or pair as the model reads it, not padded."""

    ids: np.ndarray  # (n,) int64
    segments: np.ndarray | None  # (n,) int64, where the model tells segments apart

    def __len__(self) -> int:
        return len(self.ids)


class Texts:
    """A tokenizer that is set up once and never changed: many threads may use it at a time."""

    def __init__(self, path: Path, *, max_length: int, inputs: Sequence[str], pad_token_id: int):
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception, whatever is wrong
            raise UserError(
                f"cannot read {path} ({error}); copy it again or export anew"
            ) from error
        self.inputs, self._pad = tuple(inputs), pad_token_id
        self._has_segments = "token_type_ids" in inputs
        self._takes_pairs = max_length >= _room(tokenizer, is_pair=True)
        if max_length < _room(tokenizer, is_pair=False):
            raise UserError(
                f"a maximum length of {max_length} leaves no room; "
                f"use {_room(tokenizer, is_pair=False)} or more"
            )
        # transformers, too, takes the side to cut from the file; its "truncation=True" is this.
        side = (tokenizer.truncation or {}).get("direction", "right")
        tokenizer.enable_truncation(max_length, strategy="longest_first", direction=side)
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[Any], first: int = 0) -> list[Row]:
        """One row for each text or pair. first: the position of texts[0] in what the user gave."""
        rows: list[Row] = []
        for start in range(0, len(texts), CHUNK):
            chunk = [
                self._read(t, first + i) for i, t in enumerate(texts[start : start + CHUNK], start)
            ]
            for encoding in self._tokenizer.encode_batch_fast(chunk):
                ids = np.array(encoding.ids, np.int64)
                if not len(ids):
                    where = first + len(rows)
                    raise UserError(f"texts[{where}]: the tokenizer finds no token in it; drop it")
                types = np.array(encoding.type_ids, np.int64) if self._has_segments else None
                rows.append(Row(ids, types))
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

    def _read(self, text: Any, position: int) -> Text:
        if isinstance(text, str):
            return _encodable(text)
        is_pair = isinstance(text, tuple | list) and len(text) == 2
        if not is_pair or not all(isinstance(part, str) for part in text):
            raise UserError(
                f"texts[{position}] is {_describe(text)}, not a text or a pair of texts; "
                'give "a text" or ("a", "pair")'
            )
        if not self._takes_pairs:
            raise UserError(f"texts[{position}]: the maximum length leaves no room for a pair")
        return _encodable(text[0]), _encodable(text[1])


def _room(tokenizer: Tokenizer, *, is_pair: bool) -> int:
    """The least length in which something of every part is left."""
    return tokenizer.num_special_tokens_to_add(is_pair) + 1 + is_pair


def _encodable(text: str) -> str:
    """Half a surrogate pair is no character: a "?" takes its place."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _describe(text: Any) -> str:
    if isinstance(text, tuple | list):
        return f"a {type(text).__name__} of {', '.join(type(part).__name__ for part in text[:4])}"
    return f"a {type(text).__name__}"
