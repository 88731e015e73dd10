"""Padded batches, and an order of texts that makes them short: a CPU pays for every padded row."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from toprune.data.images import Images
from toprune.errors import UserError
from toprune.training.features import tokens_in

NO_TAG = -100  # label that torch's losses skip
POOL = 50  # batches that are sorted together: like lengths inside a batch, random batches outside


class Collate:
    """Pads a batch to its longest row, on the right. Images, which all have one length, are decoded
    here.

    extras: `(indices of the batch, padded length) -> tensors`: the teacher's outputs.
    """

    def __init__(
        self,
        tokenizer: Any,
        extras: Callable[[Sequence[int], int], dict[str, Tensor]] | None = None,
    ):
        self.images = tokenizer if isinstance(tokenizer, Images) else None
        self.fill = _fill(tokenizer) if self.images is None else {}
        self.extras = extras

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        counts = torch.tensor([tokens_in(feature) for feature in features])  # (B,)
        length = int(counts.max())
        batch = {
            name: torch.tensor(
                [_pad(feature[name], length, fill) for feature in features]
            )  # (B, S)
            for name, fill in self.fill.items()
            if name in features[0]
        }
        if self.images is not None:
            pixels = self.images.batch([feature["row"] for feature in features])
            batch |= {name: torch.from_numpy(x) for name, x in pixels.items()}  # (B, 3, H, W)
        batch["attention_mask"] = (torch.arange(length) < counts[:, None]).long()  # (B, S)
        if "tags" in batch:
            batch["labels"] = batch.pop("tags")
        if "label" in features[0]:  # int64 for classes and places, float32 for numbers
            batch["labels"] = torch.tensor([feature["label"] for feature in features])  # (B, ...)
        if self.extras is not None:
            batch |= self.extras([feature["index"] for feature in features], length)
        return batch


def _fill(tokenizer: Any) -> dict[str, int]:
    if tokenizer.pad_token_id is None:
        raise UserError("the tokenizer has no pad token; set tokenizer.pad_token")
    return {
        "input_ids": tokenizer.pad_token_id,
        "token_type_ids": tokenizer.pad_token_type_id,
        "tags": NO_TAG,
    }


def _pad(ids: list[int], length: int, fill: int) -> list[int]:
    return ids + [fill] * (length - len(ids))


class Buckets(Sampler[int]):
    """A random order in which neighbours have similar lengths. It depends on seed and epoch only: a
    resumed run sees the batches that the uninterrupted run would have seen."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        self.lengths = np.asarray(lengths)
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng((self.seed, self.epoch))
        order = rng.permutation(len(self.lengths))
        pool = POOL * self.batch_size
        batches: list[np.ndarray] = []
        for start in range(0, len(order), pool):
            part = order[start : start + pool]
            part = part[np.argsort(-self.lengths[part], kind="stable")]
            batches += [part[i : i + self.batch_size] for i in range(0, len(part), self.batch_size)]
        ragged = [b for b in batches if len(b) < self.batch_size]  # the short one goes last
        whole = [b for b in batches if len(b) == self.batch_size]
        mixed = [whole[i] for i in rng.permutation(len(whole))] + ragged
        yield from (int(i) for batch in mixed for i in batch)


def in_batches(
    features: Sequence[dict[str, Any]], collate: Collate, batch_size: int = 32
) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """(row numbers, batch) from the longest to the shortest text: neighbours have similar lengths,
    and memory peaks at the first batch."""
    order = np.argsort([-tokens_in(feature) for feature in features], kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield rows, collate([features[i] for i in rows])
