import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cosine
from scipy.stats import pearsonr, spearmanr
from transformers import BertConfig

from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.tasks.embed import Embed
from toprune.tasks.tokenize import Row

MASK = torch.ones(1, 1)  # no function of vectors reads it


def rows(count: int) -> list[Row]:
    return [Row(np.zeros(3, np.int64), None, text) for text in range(count)]


def pairs(labels: list[float] | None) -> Examples:
    count = len(labels or [0])
    return Examples(["a"] * count, ["b"] * count, labels)


def test_settings():
    assert Embed().reads_all
    assert not Embed("cls").reads_all
    wrong: Any = "max"
    with pytest.raises(UserError, match="pooling 'max' is not known; use mean or cls"):
        Embed(wrong)


def test_fine_tuning_is_refused():
    with pytest.raises(UserError, match="not fine-tuned"):
        Embed().num_outputs(pairs([1.0]))
    with pytest.raises(UserError, match="not fine-tuned"):
        Embed().label_loss(torch.randn(2, 3), torch.zeros(2), MASK)


def test_any_encoder_will_do():
    assert Embed().head(pairs([1.0])) == {}
    Embed().check_head(BertConfig(), pairs([1.0]))


def test_distill_loss_by_hand():
    student = torch.tensor([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    teacher = torch.tensor([[1.0, 0.0], [0.0, -9.0], [1.0, 0.0]])
    expected = (0 + 2 + 1 - 0.5**0.5) / 3
    assert Embed().distill_loss(student, teacher, MASK).item() == pytest.approx(expected)
    scaled = Embed().distill_loss(5 * student, teacher, MASK)
    assert scaled.item() == pytest.approx(expected)  # only the direction counts


def test_margin_is_linear_the_same_every_time_and_not_the_length():
    one, other = torch.randn(2, 4, 16)
    margin = Embed().margin(one, MASK)
    assert margin.shape == (4,)
    torch.testing.assert_close(Embed("cls").margin(one, MASK), margin)
    both = Embed().margin(one + 2 * other, MASK)
    torch.testing.assert_close(both, margin + 2 * Embed().margin(other, MASK))

    leaf = torch.randn(1, 16, requires_grad=True)
    (slope,) = torch.autograd.grad(Embed().margin(leaf, MASK).sum(), leaf)
    assert slope.norm().item() == pytest.approx(1)
    assert (slope != 0).all()


def test_statistics_by_hand():
    vectors = [[1, 0], [1, 1], [0, 0], [0, 3], [2, 0], [1, 0]]  # first texts, then second ones
    outputs = list(np.array(vectors, np.float32))
    stats = Embed().statistics(outputs, rows(6), pairs([0.0, 3.5, 5.0]))
    np.testing.assert_allclose(stats, [[0, 0], [0.5**0.5, 3.5], [0, 5]], atol=1e-12)


def test_a_mean_whose_length_counts_is_not_shortened_by_zeros():
    assert (Embed().restore, Embed(normalize=False).restore) == ("zero", "last")


def test_statistics_need_pairs_with_labels():
    vectors = [np.ones(2)] * 2
    for examples in (pairs(None), Examples(["a", "b"], labels=[1.0, 2.0])):
        with pytest.raises(UserError, match="need pairs"):
            Embed().statistics(vectors, rows(2), examples)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 40), st.integers(0, 999))
def test_metrics_equal_scipy(count: int, seed: int):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(2 * count, 4))
    labels = (rng.permutation(count) // 2 / 2).tolist()  # ties, as in STS-B
    stats = Embed().statistics(list(vectors), rows(2 * count), pairs(labels))
    cosines = [1 - cosine(vectors[i], vectors[count + i]) for i in range(count)]
    np.testing.assert_allclose(stats[:, 0], cosines, atol=1e-6)
    found = Embed().metrics(stats)
    assert list(found) == list(Embed.METRICS)
    assert found["spearman"] == pytest.approx(spearmanr(stats[:, 0], labels)[0])
    assert found["pearson"] == pytest.approx(pearsonr(cosines, labels)[0], abs=1e-5)


def test_metrics_of_constant_cosines_are_zero():
    stats = np.array([[0.3, 1.0], [0.3, 2.0]])
    assert Embed().metrics(stats) == {"spearman": 0, "pearson": 0}


def test_agreement():
    one = [np.array([1.0, 0.0]), np.array([0.0, 2.0])]
    other = [np.array([7.0, 0.0]), np.array([1.0, 0.0])]
    plain = Examples(["a", "b"])
    assert Embed().agreement(one, one, rows(2), plain) == pytest.approx(1)
    assert Embed().agreement(one, other, rows(2), plain) == pytest.approx(0.5)
    assert Embed().agreement(one, other, rows(2), pairs([4.0])) == pytest.approx(0.5)


def test_answers():
    outputs = [np.array([3.0, 4.0], np.float32), np.zeros(2, np.float32)]
    found = Embed().predictions(outputs, rows(2), ["a", "b"], None)
    assert found[0]["vector"] == pytest.approx([0.6, 0.8])
    assert found[1]["vector"] == [0, 0]
    assert json.loads(json.dumps(found)) == found
    raw = Embed(normalize=False).predictions(outputs, rows(2), ["a", "b"], None)
    assert raw[0] == {"vector": [3.0, 4.0]}
