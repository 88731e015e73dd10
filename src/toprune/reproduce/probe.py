"""Targets that look at scores: figure 1 (attention by rank) and table 9 (the rank of an answer)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toprune.bundle.bundle import Bundle
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.inspection.scores import received_scores
from toprune.report.svg import Line, Point, chart
from toprune.reproduce.case import Case

BANDS = {"rank 1 to 3": (0, 3), "rank 10 to 15": (9, 15), "rank 20 to 25": (19, 25)}
QUANTILES = (0.05, 0.5, 0.95)
TEXTS = {"tiny": 8, "cpu": 256, "paper": 1000}  # that are read
EARLY = 1  # the layer of table 9, from zero
CANDIDATES = 200  # questions among which table 9 chooses


def paper_layers(layers: int) -> list[int]:
    """Layers 1, 2, 9 and 12 of figure 1, from one; of other depths those in the same places."""
    return sorted({1, 2, max(1, round(layers * 9 / 12)), layers})


def bands(case: Case) -> list[dict[str, Any]]:
    """Quantiles of the attention that tokens of a band of ranks receive, layer by layer.

    Bands that no text reaches are left out.
    """
    bundle = Bundle.load(case.dense(), case.task_name, device=case.options.device)
    inputs = held_out(case).inputs(bundle.task.READS)
    order = np.random.default_rng(case.seed).permutation(len(inputs))
    texts = [inputs[i] for i in order[: TEXTS[case.options.scale]]]
    found: dict[tuple[int, str], list[np.ndarray]] = {}
    for _, scores in received_scores(bundle, texts):
        best = -np.sort(-scores[:, 1:], axis=1)  # (L, n - 1): the first token is never ranked
        for layer in paper_layers(len(best)):
            for name, (start, end) in BANDS.items():
                if best.shape[1] >= end:
                    found.setdefault((layer, name), []).append(best[layer - 1, start:end])
    return [
        {"layer": layer, "band": name, "count": sum(map(len, parts))}
        | {
            f"q{round(100 * q):02d}": float(np.quantile(np.concatenate(parts), q))
            for q in QUANTILES
        }
        for (layer, name), parts in sorted(found.items())
    ]


def band_chart(rows: Sequence[dict[str, Any]], title: str) -> str | None:
    """Figure 1: a line for each band over the layers, on a logarithmic axis."""
    lines = [Line(name, [_point(row) for row in rows if row["band"] == name]) for name in BANDS]
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    y = "log10 of the attention received (median; 5 to 95 %)"
    return chart(lines, title=title, x="layer", y=y, start=1.0)


def _point(row: dict[str, Any]) -> Point:
    middle, low, high = (float(np.log10(max(1e-9, row[q]))) for q in ("q50", "q05", "q95"))
    return Point(row["layer"], middle, low, high)


def held_out(case: Case) -> Examples:
    """The examples that are reported."""
    if "dev" not in case.sets:
        raise UserError(f"the data of {case.paper.title} have no labelled set beside train")
    return case.sets["dev"]


def case_study(case: Case, bundles: dict[str, Path]) -> dict[str, Any]:
    """One question: how the tokens of its answer rank, in layer 2 and in the last one.

    The question is the first whose answer ranks low in layer 2 of the dense model and high in its
    last layer: what the ranking distillation is for.

    Args:
        bundles: pruned models by name, each with weights of its own.
    """
    examples = held_out(case)
    dense = Bundle.load(case.dense(), case.task_name, device=case.options.device)
    rows = [i for i, answers in enumerate(examples.labels or []) if answers][:CANDIDATES]
    few = examples.take(rows[: 4 * TEXTS["tiny"] if case.options.scale == "tiny" else CANDIDATES])
    ranked, lengths = _answer_ranks(dense, few)
    if not ranked:
        raise UserError("no context holds the answer to its question; give labelled data")
    chosen = max(ranked, key=lambda i: float(np.mean(ranked[i][EARLY]) - np.mean(ranked[i][-1])))
    one = few.take([chosen])
    question, context = one.texts[0], (one.pairs or [""])[0]
    answer, start = (one.labels or [])[0][0]
    models = {"dense": ranked[chosen]}
    for name, path in bundles.items():
        pruned = Bundle.load(path, case.task_name, device=case.options.device)
        models[name] = _answer_ranks(pruned, one)[0][0]
    return {
        "question": question,
        "expected": answer,
        "context": " ".join(context[max(0, start - 80) : start + len(answer) + 80].split()),
        "among": lengths[chosen],
        "ranks": {
            name: {"early": found[EARLY].tolist(), "last": found[-1].tolist()}
            for name, found in models.items()
        },
    }


def _answer_ranks(
    bundle: Bundle, examples: Examples
) -> tuple[dict[int, np.ndarray], dict[int, int]]:
    """By example: (L, answer's tokens) the rank, from one, of each token of its answer, and the
    number of tokens that are ranked."""
    task, found, lengths = bundle.task, dict[int, np.ndarray](), dict[int, int]()
    for row, scores in received_scores(bundle, examples.inputs(task.READS)):
        first, last = task.target(row, (examples.labels or [])[row.text])
        if last == 0 or row.text in found:  # not in this window, or found in another
            continue
        places = np.argsort(np.argsort(-scores[:, 1:], axis=1, kind="stable"), axis=1)
        found[row.text], lengths[row.text] = places[:, first - 1 : last] + 1, places.shape[1]
    return found, lengths
