"""Texts that are longer than the model reads are cut into windows; one answer comes of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from toprune.errors import UserError

if TYPE_CHECKING:
    from toprune.tasks.tokenize import Row


def by_text(outputs: Sequence[np.ndarray], rows: "Sequence[Row]", count: int) -> np.ndarray:
    """(count, C): the mean over the windows of each text, every window counting alike."""
    if not len(outputs):
        return np.zeros((0, 1), np.float32)
    found = np.asarray(outputs, np.float32)  # (rows, C)
    at = np.array([row.text for row in rows])
    if len(at) == count and (at == np.arange(count)).all():  # one window each
        return found
    total = np.zeros((count, found.shape[1]), np.float32)
    np.add.at(total, at, found)
    return total / np.bincount(at, minlength=count)[:, None].astype(np.float32)


def check_stride(stride: int | None) -> None:
    if stride is not None and (type(stride) is not int or stride < 0):
        raise UserError(f"windows cannot overlap by {stride} tokens; use 0 or more")
