"""Who pays: classes and examples whose answer changed, worked out by hand."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.report_case import make_sides
from toprune.data.examples import Examples
from toprune.data.images import Picture
from toprune.plan.budget import Lengths
from toprune.plan.cost import Sizes
from toprune.plan.plan import Plan, Step
from toprune.report.build import POINTS, Execution, thin_masks
from toprune.report.differences import CUT, differences
from toprune.tasks import TASKS, make_task
from toprune.tasks.side_by_side import SideBySide
from toprune.tasks.tokenize import Row

PLAN = Plan("bert", 4, 32, "received", (Step(0, Fraction(1, 2)),))
SIZES = Sizes(layers=4, width=32, inner=64, heads=4)


def execution(lengths: list[int], held: list[int] | None = None, **more: Any) -> Execution:
    return Execution(PLAN, SIZES, Lengths.of(lengths, held), 64, **more)


def side_by_side(
    task: str,
    texts: list[Any],
    dense: list[Any],
    pruned: list[Any],
    labels: list[Any] | None = None,
    *,
    pairs: list[str] | None = None,
    names: list[str] | None = None,
    places: Any = None,
) -> SideBySide:
    task_object = make_task(task, {"classes": 2} if task == "multilabel" else None)
    count = len(texts) * (2 if task == "embed" and pairs else 1)
    where = None if places is None else np.array(places)
    rows = [Row(np.arange(3), None, i, where) for i in range(count)]
    outputs = [[np.array(one, float) for one in part] for part in (dense, pruned)]
    return SideBySide(
        (task_object, task_object),
        (outputs[0], outputs[1]),
        rows,
        Examples(texts, pairs, labels),
        names,
    )


def test_classes_by_hand():
    """Four texts: kept right, lost, won, and wrong in another way."""
    result = differences(
        side_by_side(
            "classify",
            ["a", "b", "c", "d"],
            [[1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]],
            [[2, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]],
            [0, 0, 1, 0],
            names=["no", "yes", "maybe"],
        )
    )
    names = "name", "count", "dense", "pruned", "changed", "lost", "won"
    assert [tuple(row[name] for name in names) for row in result["classes"]] == [
        ("no", 3, 2 / 3, 1 / 3, 2, 1, 0),
        ("yes", 1, 0.0, 1.0, 1, 0, 1),
        ("maybe", 0, None, None, 0, 0, 0),
    ]
    changed = result["changed"]
    assert (changed["count"], changed["lost"], changed["won"]) == (3, 1, 1)
    assert changed["examples"] == [
        {"text": "b", "dense": "no", "pruned": "yes", "label": "no", "outcome": "lost"},
        {"text": "d", "dense": "yes", "pruned": "maybe", "label": "no", "outcome": "even"},
        {"text": "c", "dense": "no", "pruned": "yes", "label": "yes", "outcome": "won"},
    ]


def test_without_labels_nothing_is_lost():
    result = differences(side_by_side("classify", ["a", "b"], [[1, 0], [1, 0]], [[0, 1], [1, 0]]))
    assert result == {
        "changed": {"count": 1, "examples": [{"text": "a", "dense": "0", "pruned": "1"}]}
    }


def test_several_labels():
    result = differences(
        side_by_side(
            "multilabel",
            ["a", "b"],
            [[1, -1], [1, 1]],
            [[1, 1], [1, 1]],
            [[0], []],
            names=["x", "y"],
        )
    )
    assert [(row["name"], row["count"], row["changed"]) for row in result["classes"]] == [
        ("x", 1, 0),
        ("y", 0, 1),
    ]
    assert result["changed"]["examples"] == [
        {"text": "a", "dense": "x", "pruned": "x, y", "label": "x", "outcome": "lost"}
    ]


def test_tags_tell_the_words_that_changed():
    result = differences(
        side_by_side(
            "tokens",
            [["Ada", "wrote"]],
            [[[0, 0], [0, 1], [1, 0]]],
            [[[0, 0], [1, 0], [1, 0]]],
            [[1, 0]],
            names=["O", "PER"],
            places=[[-1, -1], [0, 0], [1, 0]],
        )
    )
    assert result["changed"]["examples"] == [
        {
            "text": "Ada wrote",
            "dense": "Ada: PER",
            "pruned": "Ada: O",
            "label": "Ada: PER",
            "outcome": "lost",
        }
    ]
    assert [row["changed"] for row in result["classes"]] == [0, 1]
    assert [row["pruned"] for row in result["classes"]] == [1.0, 0.0]


def test_answers_show_the_context_around_them():
    context = "x" * 500 + " here " + "y" * 500
    places = [[-1, -1], [501, 505], [506, 600]]
    result = differences(
        side_by_side(
            "answer",
            ["where?"],
            [[[0, 0], [5, 5], [0, 0]]],
            [[[0, 0], [0, 0], [5, 5]]],
            [[("here", 501)]],
            pairs=[context],
            places=places,
        )
    )
    (case,) = result["changed"]["examples"]
    assert (case["dense"], case["label"], case["outcome"]) == ("here", "here", "lost")
    assert " here " in case["pair"]
    assert len(case["pair"]) == CUT + 6


def test_ranking_is_by_the_first_document():
    result = differences(
        side_by_side(
            "rank",
            ["q", "q", "r", "r"],
            [[2], [1], [2], [1]],
            [[1], [2], [3], [1]],
            [1.0, 0.0, 0.0, 1.0],
            pairs=["right", "wrong", "c", "d"],
        )
    )
    assert result["changed"] == {
        "count": 1,
        "lost": 1,
        "won": 0,
        "examples": [{"text": "q", "dense": "right", "pruned": "wrong", "outcome": "lost"}],
    }


def test_numbers_are_told_by_how_far_they_are_apart():
    result = differences(
        side_by_side("regress", [*"abc"], [[1], [2], [3]], [[1.5], [0], [3.25]], [1.0, 0.0, 3.0])
    )
    assert result["changed"]["count"] is None
    shown = [(c["text"], c["pruned"], c["outcome"]) for c in result["changed"]["examples"]]
    assert shown == [("b", 0.0, "won"), ("a", 1.5, "lost"), ("c", 3.25, "lost")]


def test_vectors_of_pairs_and_alone():
    dense, pruned = [[1, 0], [1, 0], [1, 0], [0, 1]], [[1, 0], [1, 0], [0, 1], [0, 1]]
    result = differences(side_by_side("embed", ["a", "b"], dense, pruned, pairs=["c", "d"]))
    assert result["changed"]["examples"][0] == {
        "text": "a",
        "pair": "c",
        "dense": 1.0,
        "pruned": 0.0,
    }
    alone = differences(side_by_side("embed", ["a", "b"], dense[:2], [[1, 0], [0, 2]]))
    assert alone["changed"]["examples"][0] == {"text": "b", "pruned": 0.0}


def test_images_are_named():
    sides = side_by_side("classify", ["/home/me/cats/1.png", b"bytes"], [[1, 0]] * 2, [[0, 1]] * 2)
    sides = replace(
        sides, rows=[Picture(text, 5, i) for i, text in enumerate(sides.examples.texts)]
    )
    shown = {case["text"] for case in differences(sides)["changed"]["examples"]}
    assert shown == {str(Path("cats/1.png")), "image 2"}


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("task", TASKS)
def test_few_and_short(task: str, labelled: bool):
    sides = make_sides(task, 400, labelled=labelled)
    sides.examples.texts[:] = [
        [f"{'w' * 400}{i}", "b"] if task == "tokens" else f"{i // 4}{'w' * 400}" for i in range(400)
    ]
    result = differences(sides)["changed"]
    assert len(result["examples"]) == 20
    assert all(len(case["text"]) <= CUT + 3 for case in result["examples"])
    assert ("lost" in result) == (labelled and task not in ("regress", "embed"))
    if result["count"] is not None and task not in ("rank", "tokens"):
        share = sides.tasks[0].agreement(*sides.outputs, sides.rows, sides.examples)
        assert result["count"] == round(400 * (1 - share))


def test_kept_by_length_by_hand():
    """Ten texts of ten tokens, ninety of twenty; half of them stay, and never fewer than held."""
    rows = execution([10] * 10 + [20] * 90).kept_by_length()
    assert [(row["share"], row["tokens"], row["kept"]) for row in rows] == [
        (0.1, 10, [10, 5, 5, 5]),
        (0.5, 20, [20, 10, 10, 10]),
        (0.9, 20, [20, 10, 10, 10]),
        (1.0, 20, [20, 10, 10, 10]),
    ]
    held = execution([10] * 4, [8, 8, 8, 8]).kept_by_length()
    assert held[0]["kept"] == [10, 8, 8, 8]


def test_kept_by_length_as_counted():
    counts = np.stack([np.arange(1, 101), np.arange(1, 101) // 2], 1)
    rows = execution([1], counts=counts).kept_by_length()
    assert [row["tokens"] for row in rows] == [10, 50, 90, 98]  # means of 6..15 and so on
    assert [row["kept"][1] for row in rows] == [5, 25, 45, 49]


def test_kept_by_length_of_few_texts():
    """Six of them, as many as a small file holds out: the last tenth begins behind the last one."""
    counts = np.stack([np.arange(1, 7), np.arange(1, 7) // 2], 1)
    rows = execution([1], counts=counts).kept_by_length()
    assert [row["tokens"] for row in rows] == [1, 4, 6, 6]


def test_the_masks_are_thinned_and_the_rest_stays():
    log = [{"step": i, "loss": 1.0, "gate_0": 0.5, "kept_0": 0.5} for i in range(200)]
    log += [{"step": 0, "loss": 2.0}]
    result = thin_masks(log)
    masked = [line["step"] for line in result if "gate_0" in line]
    assert len(masked) == POINTS
    assert (masked[0], masked[-1]) == (0, 199)
    assert [line["loss"] for line in result] == [line["loss"] for line in log]
    assert not any("kept_0" in line for line in result if "gate_0" not in line)
    assert thin_masks(log[:50]) == log[:50]
