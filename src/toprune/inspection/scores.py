"""Two views of what ranks tokens, as in the paper (ToP, KDD'23).

How unequal importance is, by layer and rank: where a few tokens receive most of the attention, the
others can be dropped. And how the tokens of right answers rank at the first step, in an early layer
that knows little: what ranks low there is lost, so training has to move it up.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toprune.bundle.bundle import Bundle
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.inspection.explain.explain import Reading, attach_recorder, check_plan
from toprune.io.devices import Device
from toprune.models.families import sizes_of
from toprune.models.heads import task_outputs
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach_policy, detach
from toprune.pruning.policies import Protection, Record
from toprune.pruning.tokens import order, ranks
from toprune.report.svg import Line, Point, chart
from toprune.tasks.tokenize import Row

SHARES = tuple(i / 20 for i in range(1, 21))  # of a text's tokens, the best-ranked ones


def score_distributions(
    bundle: str | Path, texts: Sequence[Any], *, device: Device = "auto"
) -> dict[str, Any]:
    """The share of all attention that the best-ranked tokens receive, with every token kept.

    Args:
        bundle: the directory of a bundle.
        texts: texts or pairs, as `Runner` takes them.
        device: what runs the model; "auto": a GPU if there is one.

    Returns:
        `attention` (layers, shares): the mean over texts, for each share of a text's `tokens`.
        If all tokens were equal, the two would be the same.
    """
    curves = [
        by_rank(scores) for _, scores in received_scores(Bundle.load(bundle, device=device), texts)
    ]
    return {
        "bundle": str(bundle),
        "rows": len(curves),
        "tokens": list(SHARES),
        "attention": np.mean(curves, 0).tolist(),  # (L, shares)
    }


def received_scores(bundle: Bundle, texts: Sequence[Any]) -> Iterator[tuple[Row, np.ndarray]]:
    """Yield each text, or window of a text, and (L, n) the attention that its tokens receive in
    every layer, with every token kept."""
    reading = Reading(bundle, texts)
    record = Record(
        range(sizes_of(bundle.model).layers),
        _received,
        scored=True,
        protection=Protection(restore="last"),  # all rows of the last layer, too
    )
    attach_policy(bundle.model.eval(), record)
    try:
        with torch.inference_mode():
            for row, batch in zip(reading.rows, reading.batches("reading"), strict=True):
                task_outputs(bundle.model, bundle.task, batch)
                yield row, torch.cat(record.values).numpy(force=True)
    finally:
        detach(bundle.model)


def _received(_: int, __: Tensor, received: Tensor | None) -> Tensor:
    assert received is not None
    return received


def by_rank(received: np.ndarray) -> np.ndarray:
    """Scores (L, n) of one text -> (L, shares): the sum over that share of its best tokens."""
    n = received.shape[1]
    best = -np.sort(-received, axis=1)  # (L, n)
    ends = [max(1, round(share * n)) for share in SHARES]
    return best.cumsum(1)[:, [end - 1 for end in ends]]


def score_chart(scores: dict[str, Any]) -> str:
    """What `score_distributions` returns as an SVG file: a line for every layer."""
    lines = [
        Line(
            f"layer {layer}",
            [Point(100 * x, 100 * y) for x, y in zip(scores["tokens"], curve, strict=True)],
        )
        for layer, curve in enumerate(scores["attention"], 1)
    ]
    title = f"Attention received by the best-ranked tokens, {scores['rows']} texts"
    return chart(lines, title=title, x="% of the tokens, the best", y="% of the attention", start=0)


def answer_ranks(
    bundle: str | Path,
    examples: Examples,
    *,
    dense: str | Path | None = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """How the tokens of right answers rank when the plan ranks tokens for the first time.

    Args:
        bundle: the directory of a bundle whose answers are spans.
        examples: with labels.
        dense: the directory of the original model, to rank with its weights, too.
        device: what runs the models; "auto": a GPU if there is one.
    """
    loaded = Bundle.load(bundle, device=device)
    if not loaded.task.FINDS_SPANS:
        raise UserError(
            f"{bundle} is for the task {loaded.task.NAME}, whose answers are no spans of tokens; "
            "give a bundle of the task answer"
        )
    plan = check_plan(loaded, bundle)
    if not plan.steps or plan.score == "pooled":
        raise UserError(f"the plan of {bundle} ranks no tokens; give one that does")
    result = {"pruned": _ranks(loaded, plan, examples)}
    if dense is not None:
        original = Bundle.load(dense, loaded.task.NAME, device=device)
        result["dense"] = _ranks(original, plan, examples)
    return {"layer": plan.steps[0].layer, "score": plan.score} | result


def _ranks(bundle: Bundle, plan: Plan, examples: Examples) -> dict[str, Any]:
    task = bundle.task
    reading = Reading(bundle, examples.inputs(task.READS))
    recorder = attach_recorder(bundle.model, plan)
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
                _, tokens, scores = recorder.ranked[0]
                held = int(tokens.protected.sum())  # these come before all others
                place = ranks(order(scores, tokens))[0, first : last + 1]
                places += (place - held).tolist()
                rivals += [len(row) - held] * len(place)
                kept += (place < plan.keep(plan.steps[0], len(row), held)).tolist()
    finally:
        detach(bundle.model)
    if not places:
        raise UserError("no context holds the answer to its question; give labelled data")
    return {
        "tokens": len(places),
        "median_rank": median(places),
        "among": median(rivals),
        "kept": sum(kept) / len(kept),
    }
