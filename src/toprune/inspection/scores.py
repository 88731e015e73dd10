"""Two looks at what tokens are ranked by, as the paper has them (ToP, KDD'23).

How unequal importance is, by layer and rank: where a few tokens receive most of the attention,
the others can go. And where an answer's own tokens stand in the first ranking, which is made in an
early layer that knows little: what ranks low there is lost, so training has to bring it up.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toprune.bundle.bundle import Bundle
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.inspection.explain.explain import Reading, check_plan, watch
from toprune.models.families import sizes_of
from toprune.models.heads import task_outputs
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import Protection, Record
from toprune.pruning.tokens import order, ranks
from toprune.report.svg import Line, Point, chart
from toprune.tasks import TASKS, texts_of

SHARES = tuple(i / 20 for i in range(1, 21))  # of a text's tokens, the best ones


def score_distributions(bundle: str | Path, texts: Sequence[Any]) -> dict[str, Any]:
    """Of each layer, with every token kept: the share of all attention that the best-ranked tokens
    receive together, over shares of a text's tokens; the mean over texts. Where all were equal,
    both would be the same."""
    own = Bundle.load(bundle)
    reading = Reading(own, texts)
    record = Record(
        range(sizes_of(own.model).layers),
        _received,
        scored=True,
        protection=Protection(restore="last"),  # all rows of the last layer, too
    )
    attach_policy(own.model.eval(), record)
    curves: list[np.ndarray] = []
    try:
        with torch.inference_mode():
            for batch in reading.batches("listening"):
                task_outputs(own.model, own.task, batch)
                curves.append(by_rank(torch.cat(record.values).numpy(force=True)))
    finally:
        detach(own.model)
    return {
        "bundle": str(bundle),
        "rows": len(reading.rows),
        "tokens": list(SHARES),
        "attention": np.mean(curves, 0).tolist(),  # (L, shares)
    }


def _received(_: int, __: Tensor, received: Tensor | None) -> Tensor:
    assert received is not None
    return received


def by_rank(received: np.ndarray) -> np.ndarray:
    """Scores (L, n) of one text -> (L, shares): what the best so many of its tokens have."""
    n = received.shape[1]
    best = -np.sort(-received, axis=1)  # (L, n)
    ends = [max(1, round(share * n)) for share in SHARES]
    return best.cumsum(1)[:, [end - 1 for end in ends]]


def score_chart(found: dict[str, Any]) -> str:
    """The distributions as SVG: a line for every layer."""
    lines = [
        Line(
            f"layer {layer}",
            [Point(100 * x, 100 * y) for x, y in zip(found["tokens"], curve, strict=True)],
        )
        for layer, curve in enumerate(found["attention"], 1)
    ]
    title = f"Attention received by the best-ranked tokens, {found['rows']} texts"
    return chart(lines, title=title, x="% of the tokens, the best", y="% of the attention", start=0)


def answer_ranks(
    bundle: str | Path, examples: Examples, *, dense: str | Path | None = None
) -> dict[str, Any]:
    """Where the tokens of right answers stand when the plan ranks for the first time, with the
    pruned model's weights and, where it is given, with those of the original model."""
    own = Bundle.load(bundle)
    if not own.task.FINDS_SPANS:
        spans = ", ".join(name for name, task in TASKS.items() if task.FINDS_SPANS)
        raise UserError(f"{bundle} is for the task {own.task.NAME}; answers have ranks in: {spans}")
    plan = check_plan(own, bundle)
    if not plan.steps or plan.score == "pooled":
        raise UserError(f"the plan of {bundle} ranks no tokens; there is no rank to tell")
    found = {"pruned": _ranks(own, plan, examples)}
    if dense is not None:
        found["dense"] = _ranks(Bundle.load(dense, own.task.NAME), plan, examples)
    return {"layer": plan.steps[0].layer, "score": plan.score} | found


def _ranks(bundle: Bundle, plan: Plan, examples: Examples) -> dict[str, Any]:
    task: Any = bundle.task
    reading = Reading(bundle, texts_of(task, examples))
    policy = watch(bundle.model, plan)
    places: list[int] = []
    rivals: list[int] = []
    kept: list[bool] = []
    try:
        with torch.inference_mode():
            for row, batch in zip(reading.rows, reading.batches("ranking"), strict=True):
                first, last = task.target(row, (examples.labels or [])[row.text])
                if last == 0:  # not in this window
                    continue
                task_outputs(bundle.model, task, batch)
                _, tokens, scores = policy.ranked[0]
                held = int(tokens.protected.sum())  # these are before all others
                place = ranks(order(scores, tokens))[0, first : last + 1]
                places += (place - held).tolist()
                rivals += [len(row) - held] * len(place)
                kept += (place < plan.keep(plan.steps[0], len(row), held)).tolist()
    finally:
        detach(bundle.model)
    if not places:
        raise UserError("none of these questions has an answer in its context; give labelled data")
    return {
        "tokens": len(places),
        "median_rank": median(places),
        "among": median(rivals),
        "kept": sum(kept) / len(kept),
    }
