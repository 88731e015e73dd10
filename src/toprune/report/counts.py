"""Reductions in reports: none of them without the name of how it was counted."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from toprune.plan.budget import Count
from toprune.plan.counts import KEYS, MEANINGS


def named_reductions(executed: Mapping[str, float], max_length: int) -> dict[str, str]:
    """The reductions of a report by name; reports of before have fewer of them."""
    names = {
        "unpadded": "executed, against unpadded inputs (real)",
        "padded": f"executed, against inputs padded to the maximum ({max_length})",
        "paper_padded": "by equation 4 of the paper, against padded inputs",
        "authors_padded": "as ToP's code counts, against padded inputs",
    }
    return {name: f"{executed[key]:.2f}x" for key, name in names.items() if key in executed}


def count_of(mean: Mapping[str, Any]) -> Count:
    """How the budget of a run was counted."""
    return mean.get("count", "executed")


def reduction_of(mean: Mapping[str, Any]) -> float:
    """The reduction of a run, counted as its budget."""
    return mean["executed"][KEYS[count_of(mean)]]


def about_budgets(means: Sequence[Mapping[str, Any]], max_length: int) -> str:
    """What the budgets of a comparison count, and what they are in the other way."""
    count = count_of(means[0])
    if count == "executed":
        return (
            f"Budgets count {MEANINGS[count]}. Against inputs padded to the maximum "
            f"({max_length}) they are about {medians(means)}."
        )
    return (
        f"Budgets count {MEANINGS[count]} ({max_length}). Executed, against unpadded inputs "
        f"(real), they are about {medians(means, 'unpadded')}."
    )


def medians(means: Sequence[Mapping[str, Any]], key: str = "padded") -> str:
    """The budgets as they are counted otherwise: the median over the methods."""
    reductions: dict[str, list[float]] = {}
    for mean in means:
        reductions.setdefault(mean["budget"], []).append(mean["executed"][key])
    return ", ".join(f"{median(x):.2f}x for {name}" for name, x in reductions.items())
