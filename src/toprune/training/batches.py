"""Batches of like length: on a CPU every padded row is paid for."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from toprune.training.features import Collate, tokens_in

POOL = 50  # batches that are sorted together: like lengths inside a batch, random batches outside


class Buckets(Sampler[int]):
    """Random order in which neighbours have like lengths; depends on seed and epoch only, so that a
    resumed run sees the batches that the uninterrupted one would have seen."""

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
) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """(row numbers, batch) from the longest to the shortest text: memory peaks at once, not late,
    and neighbours share their length."""
    order = np.argsort([-tokens_in(feature) for feature in features], kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield rows, collate([features[i] for i in rows])
