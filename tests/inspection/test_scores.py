"""The paper's two looks at scores: how unequal they are, and where answers stand."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from support.explain_case import TEXT, make_bundle, make_plan
from support.models import make_model, make_tokenizer
from support.tables import write_rows
from toprune.bundle.bundle import Bundle
from toprune.cli import app
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.inspection.scores import (
    SHARES,
    answer_ranks,
    by_rank,
    score_chart,
    score_distributions,
)
from toprune.plan.plan import Plan, Step

CONTEXT = [f"w{i}" for i in range(20, 32)]
QUESTIONS = Examples(
    texts=["w1 w2", "w3", "w4"],
    pairs=[" ".join(CONTEXT)] * 3,
    labels=[[("w22 w23", 8)], [("w31", 44)], []],  # the last one has no answer
)


def test_shares_by_hand():
    scores = np.array([[0.1, 0.6, 0.0, 0.3], [0.25, 0.25, 0.25, 0.25]])
    result = dict(zip(SHARES, by_rank(scores).T.tolist(), strict=True))
    assert result[0.05] == pytest.approx([0.6, 0.25])  # one token at least
    assert result[0.5] == pytest.approx([0.9, 0.5])
    assert result[0.75] == pytest.approx([1.0, 0.75])
    assert result[1.0] == pytest.approx([1.0, 1.0])


def test_attention_is_that_of_transformers(tmp_path: Path):
    result = score_distributions(make_bundle(tmp_path / "small", make_plan()), [TEXT, "w1 w2"])
    model = make_model()
    model.set_attn_implementation("eager")
    curves = []
    for text in (TEXT, "w1 w2"):
        with torch.inference_mode():
            out = model(**make_tokenizer()(text, return_tensors="pt"), output_attentions=True)
        received = torch.cat([p.mean((1, 2)) for p in out.attentions])  # (L, n)
        curves.append(by_rank(received.numpy()))
    assert result["rows"] == 2
    np.testing.assert_allclose(result["attention"], np.mean(curves, 0), atol=1e-5)


def test_chart_has_a_line_for_each_layer(tmp_path: Path):
    result = score_distributions(make_bundle(tmp_path / "small", make_plan()), [TEXT])
    chart = score_chart(result)
    assert chart.count("<polyline") == 4
    assert "layer 4" in chart


def answering(folder: Path, plan: Plan | None, seed: int = 0) -> Path:
    report = {"task": "answer", "max_length": 40}
    Bundle(make_model(head="answer", seed=seed), make_tokenizer(), plan, report).save(folder)
    return folder


PLAN = make_plan("random", (Step(1, Fraction(1, 2)),), restore="last", protect_until=2)


def test_ranks_of_answers_by_hand(tmp_path: Path):
    """The random score is a known number for every place; the question stays and is not ranked."""
    result = answer_ranks(answering(tmp_path / "small", PLAN), QUESTIONS)
    places, kept = [], []
    for question, answer in (("w1 w2", (2, 3)), ("w3", (11,))):
        held = len(question.split()) + 2  # [CLS] question [SEP]
        n = held + len(CONTEXT) + 1
        score = {i: (i + 12345) ** 3 % 65519 for i in range(held, n)}
        best = sorted(score, key=lambda i: -score[i])
        places += [best.index(held + i) for i in answer]
        kept += [best.index(held + i) < -(-n // 2) - held for i in answer]
    assert result["pruned"]["tokens"] == 3
    assert result["pruned"]["median_rank"] == sorted(places)[1]
    assert result["pruned"]["among"] == 13
    assert result["pruned"]["kept"] == pytest.approx(sum(kept) / 3)
    assert (result["layer"], result["score"]) == (1, "random")
    assert "dense" not in result


def test_ranks_are_of_the_weights(tmp_path: Path):
    plan = make_plan(steps=(Step(1, Fraction(1, 2)),), restore="last")
    small = answering(tmp_path / "small", plan)
    other = answering(tmp_path / "other", None, seed=3)
    result = answer_ranks(small, QUESTIONS, dense=other)
    assert (
        result["dense"]
        == answer_ranks(answering(tmp_path / "pruned", plan, seed=3), QUESTIONS)["pruned"]
    )
    assert result["dense"] != result["pruned"]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda f: make_bundle(f, make_plan()), "task classify"),
        (lambda f: answering(f, None), r"no plan\.json"),
        (lambda f: answering(f, make_plan("pooled", restore="last")), "ranks no tokens"),
    ],
)
def test_refused(make: Any, names: str, tmp_path: Path):
    with pytest.raises(UserError, match=names):
        answer_ranks(make(tmp_path / "small"), QUESTIONS)


def test_nothing_to_rank(tmp_path: Path):
    folder = answering(tmp_path / "small", PLAN)
    with pytest.raises(UserError, match="give labelled data"):
        answer_ranks(folder, QUESTIONS.take([2]))


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["scores", *map(str, arguments)])


def test_command(tmp_path: Path):
    small = answering(tmp_path / "small", PLAN)
    data = tmp_path / "qa.jsonl"
    rows = [
        {
            "question": question,
            "context": context,
            "answers": {"text": [t for t, _ in spans], "answer_start": [at for _, at in spans]},
        }
        for question, context, spans in zip(
            QUESTIONS.texts, QUESTIONS.pairs or [], QUESTIONS.labels or [], strict=True
        )
    ]
    write_rows(data, rows)
    arguments = (small, "--data", data)
    output = json.loads(call(*arguments, "--json").stdout)
    assert output["answers"] == answer_ranks(small, QUESTIONS)
    svg = tmp_path / "scores.svg"
    done = call(*arguments, "--dense", answering(tmp_path / "dense", None), "--svg", svg)
    assert done.exit_code == 0, done.output
    assert "dense: the median rank of 3 tokens" in done.stdout
    assert svg.read_text().startswith("<svg")
    done = call(*arguments, "--svg", svg)
    assert "--overwrite" in done.stderr
    done = call(make_bundle(tmp_path / "classes", make_plan()), "--data", data, "--dense", small)
    assert "--dense is for question answering" in done.stderr
