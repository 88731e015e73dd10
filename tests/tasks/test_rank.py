import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score
from transformers import BertConfig

from support.models import make_model, make_tokenizer
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.tasks.rank import Rank, ranking
from toprune.tasks.tokenize import Row

TASK = Rank()
NONE: Any = None  # this task reads no mask


def rows(count: int) -> list[Row]:
    return [Row(np.zeros(3, np.int64), None, text=i) for i in range(count)]


def pairs(queries: list[str], labels: list[float] | None = None) -> Examples:
    return Examples(queries, [f"d{i}" for i in range(len(queries))], labels)


def head(**fields: Any) -> BertConfig:
    return BertConfig(**fields)


def outputs(scores: Any) -> list[np.ndarray]:
    return [np.array([score], np.float32) for score in scores]


def statistics_of(scores: Any, labels: Any, queries: list[str] | None = None) -> np.ndarray:
    examples = pairs(queries or ["q"] * len(labels), [float(label) for label in labels])
    return TASK.statistics(outputs(scores), rows(len(labels)), examples)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=40).filter(any), st.randoms())
def test_metrics_equal_scikit_learn(labels: list[int], random: Any):
    scores = list(range(len(labels)))
    random.shuffle(scores)
    relevance = np.array(labels)
    found = TASK.metrics(statistics_of(scores, labels))
    assert list(found) == list(TASK.METRICS)
    ndcg = ndcg_score([2.0**relevance - 1], [scores], k=10, ignore_ties=True)
    assert found["ndcg@10"] == pytest.approx(ndcg)
    assert found["map"] == pytest.approx(average_precision_score(relevance > 0, scores))


def test_metrics_by_hand():
    # Found in the order: relevance 0, 2, 0, 1.
    ndcg, reciprocal, precision = statistics_of([0.1, 4, 3, 2], [1, 0, 2, 0])[0]
    gained = 3 / np.log2(3) + 1 / np.log2(5)
    assert ndcg == pytest.approx(gained / (3 / np.log2(2) + 1 / np.log2(3)))
    assert reciprocal == 1 / 2
    assert precision == (1 / 2 + 2 / 4) / 2


def test_what_is_beyond_the_tenth_place_counts_for_map_alone():
    labels = [0] * 10 + [1, 0]
    found = TASK.metrics(statistics_of(range(12, 0, -1), labels))
    assert found == {"ndcg@10": 0, "mrr@10": 0, "map": pytest.approx(1 / 11)}
    assert statistics_of(range(12, 0, -1), [0] * 9 + [1, 0, 0])[0, 1] == 1 / 10


def test_equal_scores_do_not_help():
    assert statistics_of([1, 1, 1], [0, 0, 1])[0, 1] == 1 / 3
    assert statistics_of([1, 1, 1], [1, 0, 0])[0, 1] == 1 / 3
    assert statistics_of([0, 1, 1, 1], [2, 0, 1, 0])[0].tolist() == pytest.approx(
        statistics_of([0, 3, 1, 2], [2, 0, 1, 0])[0].tolist()
    )


def test_a_ranking_keeps_equal_scores_in_order():
    many = ranking(
        np.zeros(100), ["q"] * 100
    )  # numpy's default sort is stable for short lists only
    assert many == [("q", list(range(100)))]


def test_one_row_for_each_query_wherever_its_candidates_are():
    queries = ["b", "a", "b", "a"]
    stats = statistics_of([1, 5, 2, 4], [1, 1, 0, 0], queries)
    assert stats[:, 1].tolist() == [1 / 2, 1]  # b came first
    assert TASK.metrics(stats)["mrr@10"] == 3 / 4


def test_queries_without_a_relevant_candidate_are_left_out():
    queries = ["a", "a", "b", "b", "c"]
    stats = statistics_of([1, 2, 3, 4, 5], [1, 0, 0, 0, 1], queries)
    assert stats.shape == (2, 3)
    assert stats[:, 1].tolist() == [1 / 2, 1]
    with pytest.raises(UserError, match="no query has a relevant document"):
        statistics_of([1, 2], [0, 0])


def test_scores_that_are_no_numbers_are_not_hidden():
    queries = ["a", "a", "b", "b", "c", "c"]
    stats = statistics_of([np.nan, 1, 2, 1, np.nan, 1], [0, 1, 1, 0, 0, 0], queries)
    assert stats.shape == (
        2,
        3,
    )  # as many as for any other scores: models are compared row by row
    assert np.isnan(stats[0]).all()
    assert np.isnan(list(TASK.metrics(stats).values())).all()


def test_metrics_of_resampled_queries():
    stats = statistics_of([1, 2, 4, 3], [1, 0, 1, 0], ["a", "a", "b", "b"])
    assert TASK.metrics(stats[[1, 1, 0]])["mrr@10"] == pytest.approx((1 + 1 + 1 / 2) / 3)


def test_outputs_belong_to_the_text_of_their_row():
    examples = pairs(["q"] * 3, [0.0, 0.0, 1.0])
    order = [2, 0, 1]
    given_rows = [rows(3)[i] for i in order]
    assert TASK.statistics(outputs([9, 1, 2]), given_rows, examples)[0, 1] == 1


def test_ranking():
    assert ranking([0.1, 0.9, 0.5, 0.7], ["b", "a", "b", "a"]) == [("b", [2, 0]), ("a", [1, 3])]
    assert ranking([], []) == []
    with pytest.raises(UserError, match=r"2 queries.*one score"):
        ranking([0.1], ["a", "a"])
    with pytest.raises(UserError, match=r"one score for every pair"):
        ranking(np.zeros((2, 2)), ["a", "a"])


def test_agreement_is_the_share_of_queries_with_the_same_best_document():
    examples = pairs(["a", "a", "a", "b", "b"])
    one, other = outputs([3, 2, 1, 1, 2]), outputs([9, 1, 2, 2, 1])
    assert TASK.agreement(one, one, rows(5), examples) == 1
    assert TASK.agreement(one, other, rows(5), examples) == 0.5


def test_answers_are_probabilities_in_the_order_of_the_logits():
    logits = [-200, -30, 0, 20, 30]
    found = TASK.predictions(outputs(logits), rows(5), [("q", "d")] * 5, None)
    scores = [answer["score"] for answer in found]
    expected = torch.tensor(logits, dtype=torch.double).sigmoid().tolist()
    assert scores == pytest.approx(expected, rel=1e-12)
    assert scores == sorted(set(scores))  # 20 and 30 would be one number in float32
    assert json.loads(json.dumps(found)) == found


def test_losses():
    logits = torch.tensor([[0.0], [2.0], [-1.0]])
    labels = torch.tensor([0.5, 3.0, 0.0])
    chances = logits[:, 0].sigmoid()
    expected = -torch.stack(
        [
            0.5 * chances[0].log() + 0.5 * (1 - chances[0]).log(),
            chances[1].log(),  # a grade above 1 is relevant, no more
            (1 - chances[2]).log(),
        ]
    ).mean()
    torch.testing.assert_close(TASK.label_loss(logits, labels, NONE), expected)
    assert TASK.distill_loss(logits, logits + 3, NONE).item() == 9
    assert TASK.margin(logits, NONE).tolist() == [0, 2, -1]
    assert TASK.target(rows(1)[0], 2) == 2.0


def test_heads():
    assert TASK.num_outputs(pairs(["q"])) == 1
    TASK.check_head(head(num_labels=1), pairs(["q", "q"], [0.0, 3.0]))
    TASK.check_head(head(num_labels=1), pairs(["q"]))


@pytest.mark.parametrize(
    ("count", "examples", "message"),
    [
        (2, pairs(["q"]), "2 outputs.*num_labels=1"),
        (1, Examples(["q"]), "a query and a document.*name both columns"),
        (1, pairs(["q"] * 3, [0.0, -1.0, 1.0]), r"row 2 .* -1\.0, but it must be 0 or more"),
        (1, pairs(["q"] * 2, [0.0, float("nan")]), "row 2 .* nan"),
    ],
)
def test_heads_and_data_that_do_not_fit(count: int, examples: Examples, message: str):
    with pytest.raises(UserError, match=message):
        TASK.check_head(head(num_labels=count), examples)


def test_scores_are_those_of_a_cross_encoder(tmp_path: Path):
    encoders = pytest.importorskip("sentence_transformers")
    model, tokenizer = make_model(num_labels=1), make_tokenizer()
    model.config.update(TASK.head(pairs(["q"])))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = [("w0 w1", "w2 w3 w4"), ("w0 w1", "w5"), ("w7", "w9 w9")]
    with torch.no_grad():
        logits = [
            model(**tokenizer(*pair, return_tensors="pt")).logits[0].numpy() for pair in texts
        ]
    theirs = encoders.CrossEncoder(str(tmp_path), device="cpu").predict(texts)
    found = [answer["score"] for answer in TASK.predictions(logits, rows(3), texts, None)]
    assert found == pytest.approx(theirs.tolist(), abs=1e-5)
