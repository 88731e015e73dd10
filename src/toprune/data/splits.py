"""Which examples train a model and which evaluate it."""

from collections.abc import Sequence

import numpy as np

from toprune.data.examples import Examples
from toprune.data.reads import Reads
from toprune.errors import UserError


def split_validation(
    examples: Examples, share: float, seed: int, *, reads: Reads | None = None
) -> tuple[Examples, Examples]:
    """Set a share of the examples aside for validation.

    Classes keep their shares to within one example. Every class stays in train, even one with a
    single example: a class that only validation has would not fit the head. Rows that belong
    together (`Reads.together`) stay in one set, such as a query's documents; the share is then met
    as nearly as whole groups allow.

    Args:
        share: of the examples, in (0, 0.5].
        reads: what the task reads; None: no rows belong together.

    Returns:
        (train, validation)
    """
    if not 0 < share <= 0.5:
        raise UserError(f"a validation share of {share} is not in (0, 0.5]; 0.1 is usual")
    order = np.random.default_rng(seed).permutation(len(examples))
    if reads and reads.together:
        groups = getattr(examples, reads.together)
        return _divide(examples, _whole_groups(groups, order, share))
    labels = examples.labels
    if labels and isinstance(labels[0], int):
        ids = np.asarray(labels)
        order = order[np.argsort(ids[order], kind="stable")]
        order = order[np.bincount(ids)[ids[order]] > 1]
    if len(order) < 2:
        raise UserError("too few examples to set some aside; give a validation set")
    # Every (1 / share)-th along the classes laid end to end.
    count = min(max(1, round(share * len(examples))), len(order) // 2)
    chosen = order[(np.arange(count) * 2 + 1) * len(order) // (2 * count)]
    return _divide(examples, chosen)


def _whole_groups(groups: Sequence[str], order: np.ndarray, share: float) -> np.ndarray:
    """The rows of the first groups in this order, as many groups as come nearest to the share."""
    ids = {group: i for i, group in enumerate(dict.fromkeys(groups[i] for i in order))}
    if len(ids) < 2:
        raise UserError(
            "all examples have the same query or context, so that none can be set aside; give a "
            "validation set"
        )
    group_ids = np.array([ids[group] for group in groups])
    counts = np.cumsum(np.bincount(group_ids))[:-1]  # rows of the first, of the first two, ...
    return np.flatnonzero(group_ids <= np.argmin(np.abs(counts - share * len(groups))))


def _divide(examples: Examples, chosen: np.ndarray) -> tuple[Examples, Examples]:
    rest = np.setdiff1d(np.arange(len(examples)), chosen)
    return examples.take(rest), examples.take(np.sort(chosen))
