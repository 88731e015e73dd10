"""From texts to token ids, and from rows of ids to padded batches."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from toprune.budget import Lengths
from toprune.data import Examples
from toprune.errors import UserError
from toprune.labels import name_rows

CHUNK = 1000  # texts per call: a fast tokenizer's encodings weigh far more than the ids we keep


def encode(
    tokenizer: Any,
    examples: Examples,
    max_length: int,
    *,
    positions: int | None = None,
    segments: bool = True,
) -> list[dict[str, Any]]:
    """Rows of `input_ids`, `token_type_ids` where the tokenizer has them, `label` and `index`.

    Not padded: that is for the batch. positions: how many tokens the model can place, if known;
    segments: whether it tells them apart (a BERT tokenizer may serve a model that does not).
    """
    _check(tokenizer, max_length, positions, is_pair=examples.pairs is not None)
    features: list[dict[str, Any]] = []
    empty: list[int] = []
    for start in range(0, len(examples), CHUNK):
        chunk = slice(start, start + CHUNK)
        encoded = tokenizer(
            examples.texts[chunk],
            None if examples.pairs is None else examples.pairs[chunk],
            truncation=True,
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_special_tokens_mask=True,
        )
        empty += [start + i for i, m in enumerate(encoded.pop("special_tokens_mask")) if all(m)]
        if not segments:
            encoded.pop("token_type_ids", None)
        features += [
            {**dict(zip(encoded, row, strict=True)), "index": start + i}
            for i, row in enumerate(zip(*encoded.values(), strict=True))
        ]
    if empty:
        raise UserError(f"the tokenizer finds no token in {name_rows(empty)}; drop these texts")
    if examples.labels is not None:
        for feature, label in zip(features, examples.labels, strict=True):
            feature["label"] = label
    return features


def lengths(features: Iterable[dict[str, Any]]) -> Lengths:
    """The histogram of live tokens, special ones included: what cost and budget are measured on."""
    return Lengths.of(len(feature["input_ids"]) for feature in features)


class Collate:
    """Pads a batch to its longest row, on the right, and adds what is known about its examples.

    extras: `(indices of the batch, padded length) -> tensors`: the teacher's words.
    """

    def __init__(
        self,
        tokenizer: Any,
        extras: Callable[[Sequence[int], int], dict[str, Tensor]] | None = None,
    ):
        if tokenizer.pad_token_id is None:
            raise UserError("the tokenizer has no pad token; set tokenizer.pad_token")
        self.fill = {
            "input_ids": tokenizer.pad_token_id,
            "token_type_ids": tokenizer.pad_token_type_id,
        }
        self.extras = extras

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        counts = torch.tensor([len(feature["input_ids"]) for feature in features])  # (B,)
        length = int(counts.max())
        batch = {
            name: torch.tensor(
                [_pad(feature[name], length, fill) for feature in features]
            )  # (B, S)
            for name, fill in self.fill.items()
            if name in features[0]
        }
        batch["attention_mask"] = (torch.arange(length) < counts[:, None]).long()  # (B, S)
        if "label" in features[0]:  # int64 for classes, float32 for numbers
            batch["labels"] = torch.tensor([feature["label"] for feature in features])  # (B,)
        if self.extras is not None:
            batch |= self.extras([feature["index"] for feature in features], length)
        return batch


def _pad(ids: list[int], length: int, fill: int) -> list[int]:
    return ids + [fill] * (length - len(ids))


def _check(tokenizer: Any, max_length: int, positions: int | None, *, is_pair: bool) -> None:
    if tokenizer.padding_side == "left":
        raise UserError(
            "the tokenizer pads on the left, but heads read the first token; "
            'set tokenizer.padding_side = "right" (a line of tokenizer_config.json)'
        )
    if positions is not None and max_length > positions:
        raise UserError(
            f"a maximum length of {max_length} is above the model's {positions} positions; "
            f"use {positions} or less"
        )
    room = tokenizer.num_special_tokens_to_add(pair=is_pair) + 1 + is_pair
    if max_length < room:
        raise UserError(f"a maximum length of {max_length} leaves no room; use {room} or more")
