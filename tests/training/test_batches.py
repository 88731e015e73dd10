"""Batches: padded on the right, of like lengths, every text once, the same for seed and epoch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.models import FAMILIES, make_model, make_tokenizer
from support.strategies import random_text
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.tasks import Classify, Regress
from toprune.training.batches import POOL, Buckets, Collate, in_batches
from toprune.training.features import encode
from toprune.training.learner import Learner
from toprune.training.settings import Training
from toprune.training.trainer import train

CLASSIFY, REGRESS = Classify(), Regress()
TEXTS = Examples(["w1 w2 w3", "w4", "w5 w6"], labels=[0, 1, 1])
PAIRS = Examples(["w1 w2", "w3"], pairs=["w4", "w5 w6 w7"], labels=[0.5, 2.0])
CLS, PAD, SEP = 0, 1, 2


def batches(sampler: Buckets, size: int) -> list[list[int]]:
    order = list(sampler)
    return [order[i : i + size] for i in range(0, len(order), size)]


@given(
    lengths=st.lists(st.integers(1, 99), min_size=1, max_size=300),
    size=st.integers(1, 9),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 3),
)
@settings(deadline=None, max_examples=50)
def test_every_text_once_in_order_of_seed_and_epoch(
    lengths: list[int], size: int, seed: int, epoch: int
) -> None:
    one, other = Buckets(lengths, size, seed), Buckets(lengths, size, seed)
    one.set_epoch(epoch)
    other.set_epoch(epoch)
    assert sorted(one) == list(range(len(lengths)))
    assert list(one) == list(other)
    assert len(one) == len(lengths)


def test_epochs_and_seeds_differ() -> None:
    lengths = np.random.default_rng(0).integers(5, 50, 200)
    sampler = Buckets(lengths.tolist(), 8, 0)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(Buckets(lengths.tolist(), 8, 1)) != first


def test_batches_hold_like_lengths_in_random_order() -> None:
    size = 8
    lengths = np.random.default_rng(0).integers(5, 300, POOL * size * 2 + 3)
    sampler = Buckets(lengths.tolist(), size, 0)
    result = batches(sampler, size)
    padded = sum(len(b) * lengths[b].max() for b in result)
    assert padded < 1.05 * lengths.sum()  # a random order pays 1.7
    longest = np.array([lengths[b].max() for b in result[:-1]])
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3
    assert len(result[-1]) == 3  # the short one last: the others stay aligned


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    size=st.integers(1, 9),
)
@settings(deadline=None, max_examples=25)
def test_in_batches_gives_every_row_once_from_long_to_short(lengths: list[int], size: int) -> None:
    features = [{"input_ids": random_text(n, i), "index": i} for i, n in enumerate(lengths)]
    seen: list[int] = []
    for rows, batch in in_batches(features, Collate(make_tokenizer()), size):
        assert len(rows) == len(batch["input_ids"]) <= size
        for row, ids, mask in zip(rows, batch["input_ids"], batch["attention_mask"], strict=True):
            assert ids[mask.bool()].tolist() == features[row]["input_ids"]
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(lengths)))
    ordered = [lengths[i] for i in seen]
    assert ordered == sorted(ordered, reverse=True)


class Noting(Collate):
    """Writes down which texts came, in order."""

    def __init__(self, tokenizer: Any):
        super().__init__(tokenizer)
        self.seen: list[int] = []

    def __call__(self, features: Any) -> dict[str, torch.Tensor]:
        self.seen += [f["index"] for f in features]
        return super().__call__(features)


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_moves_the_epoch(tmp_path: Path) -> None:
    """It sees just the batches of `Buckets`, other ones in every epoch."""
    features = [
        {"input_ids": random_text(5 + i % 9, i), "label": i % 2, "index": i} for i in range(30)
    ]
    collate = Noting(make_tokenizer())
    learner = Learner(make_model("bert"), Classify(), label_weight=1.0)
    training = Training(batch_size=4, seed=3)
    train(learner, features, collate, training, epochs=2, out=tmp_path / "out", label="test")
    expected: list[int] = []
    sampler = Buckets([len(f["input_ids"]) for f in features], 4, 3)
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        expected += list(sampler)
    assert collate.seen == expected


# Padding


def test_collate_pads_on_the_right_to_the_longest(tokenizer):
    batch = Collate(tokenizer)(encode(tokenizer, CLASSIFY, TEXTS, 16)[1:])
    assert batch["input_ids"].tolist() == [[CLS, 8, SEP, PAD], [CLS, 9, 10, SEP]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0] * 4, [0] * 4]
    assert batch["labels"].tolist() == [1, 1]
    assert {t.dtype for t in batch.values()} == {torch.int64}


def test_collate_of_numbers_and_of_no_labels(tokenizer):
    collate = Collate(tokenizer)
    assert collate(encode(tokenizer, REGRESS, PAIRS, 16))["labels"].dtype == torch.float32
    assert "labels" not in collate(encode(tokenizer, CLASSIFY, Examples(["w1"]), 16))


def test_collate_asks_for_extras(tokenizer):
    def extras(rows, length):
        return {"teacher": torch.tensor([[row, length] for row in rows])}

    batch = Collate(tokenizer, extras)(encode(tokenizer, CLASSIFY, TEXTS, 16)[::-1])
    assert batch["teacher"].tolist() == [[2, 5], [1, 5], [0, 5]]


def test_collate_needs_a_pad_token(tokenizer):
    tokenizer.pad_token = None
    with pytest.raises(UserError, match="no pad token"):
        Collate(tokenizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_our_batches(family: str):
    tokenizer, model = make_tokenizer(family), make_model(family, num_labels=3)
    features = encode(tokenizer, CLASSIFY, Examples(PAIRS.texts, PAIRS.pairs), 64, positions=64)
    with torch.no_grad():
        together = model(**Collate(tokenizer)(features)).logits
        alone = [model(**Collate(tokenizer)([feature])).logits for feature in features]
    assert together.shape == (2, 3)
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        together, make_model(family, 3)(**Collate(tokenizer)(features)).logits
    )
