"""Features: what the model reads, row by row, and its training target."""

import numpy as np
import pytest
import torch

from support.models import make_tokenizer
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.tasks import Answer, Classify, Embed, Multilabel, Regress, Tags
from toprune.tasks.tokenize import CHUNK
from toprune.training.batches import NO_TAG, Collate
from toprune.training.features import encode, lengths, rows_of

CLASSIFY, REGRESS = Classify(), Regress()

TEXTS = Examples(["w1 w2 w3", "w4", "w5 w6"], labels=[0, 1, 1])
PAIRS = Examples(["w1 w2", "w3"], pairs=["w4", "w5 w6 w7"], labels=[0.5, 2.0])
PAD, SEP = 1, 2


def test_single_texts(tokenizer):
    features = encode(tokenizer, CLASSIFY, TEXTS, 16)
    assert [tokenizer.decode(f["input_ids"]) for f in features] == [
        "[CLS] w1 w2 w3 [SEP]",
        "[CLS] w4 [SEP]",
        "[CLS] w5 w6 [SEP]",
    ]
    assert [f["label"] for f in features] == [0, 1, 1]
    assert [f["index"] for f in features] == [0, 1, 2]
    assert features[0].keys() == {"input_ids", "token_type_ids", "label", "index", "row"}
    for i, (row, feature) in enumerate(zip(rows_of(features), features, strict=True)):
        assert row.text == i
        assert row.ids.tolist() == feature["input_ids"]


def test_pairs_have_segments(tokenizer):
    features = encode(tokenizer, REGRESS, PAIRS, 16)
    assert tokenizer.decode(features[1]["input_ids"]) == "[CLS] w3 [SEP] w5 w6 w7 [SEP]"
    assert features[1]["token_type_ids"] == [0, 0, 0, 1, 1, 1, 1]


def test_no_segments_and_no_labels():
    features = encode(make_tokenizer("roberta"), CLASSIFY, Examples(["w1"], pairs=["w2"]), 16)
    assert features[0].keys() == {"input_ids", "index", "row"}


def test_a_tokenizer_with_segments_may_serve_a_model_without(tokenizer):
    (feature,) = encode(tokenizer, CLASSIFY, Examples(["w1"], pairs=["w2"]), 16, segments=False)
    assert feature.keys() == {"input_ids", "index", "row"}


def test_the_tokenizer_is_left_as_it_was(tokenizer):
    before = tokenizer.backend_tokenizer.to_str()
    encode(tokenizer, Classify(stride=1), TEXTS, 8)
    assert tokenizer.backend_tokenizer.to_str() == before


def test_the_side_that_is_cut_is_the_tokenizers(tokenizer):
    tokenizer.truncation_side = "left"
    (feature,) = encode(tokenizer, CLASSIFY, Examples(["w1 w2 w3"]), 4)
    assert tokenizer.decode(feature["input_ids"]) == "[CLS] w2 w3 [SEP]"


# Rows of the tasks


def test_windows_have_the_label_of_their_text(tokenizer):
    examples = Examples(["w1", "w2 w3 w4 w5 w6", "w7"], labels=[0, 1, 0])
    features = encode(tokenizer, Classify(stride=1), examples, 6)
    assert [f["label"] for f in features] == [0, 1, 1, 0]
    assert [f["index"] for f in features] == [0, 1, 2, 3]
    assert [row.text for row in rows_of(features)] == [0, 1, 1, 2]


def test_classes_of_many_are_zeros_and_ones(tokenizer):
    features = encode(
        tokenizer, Multilabel(classes=3), Examples(["w1", "w2"], labels=[[0, 2], []]), 8
    )
    labels = Collate(tokenizer)(features)["labels"]
    assert labels.tolist() == [[1, 0, 1], [0, 0, 0]]


def test_answers_are_places_in_their_window(tokenizer):
    """Context of 7 words, 4 a window: w14 is in the second one alone, and then there is none."""
    context = "w10 w11 w12 w13 w14 w15 w16"
    examples = Examples(["w1", "w2"], [context] * 2, [[("w14 w15", 16)], []])
    features = encode(tokenizer, Answer(stride=0), examples, 8)
    assert [row.text for row in rows_of(features)] == [0, 0, 1, 1]
    assert [f["label"] for f in features] == [[0, 0], [3, 4], [0, 0], [0, 0]]
    result = features[1]["input_ids"][3:5]
    assert tokenizer.decode(result) == "w14 w15"
    labels = Collate(tokenizer)(features)["labels"]
    assert labels.shape == (4, 2)
    assert labels.dtype == torch.int64


def test_tags_are_padded_with_what_no_loss_counts(tokenizer):
    examples = Examples([["w1", "w2", "w3"], ["w4"]], labels=[[1, 0, 2], [2]])
    features = encode(tokenizer, Tags(), examples, 16)
    assert features[0].keys() == {"input_ids", "token_type_ids", "tags", "index", "row"}
    batch = Collate(tokenizer)(features)
    assert batch["labels"].tolist() == [
        [NO_TAG, 1, 0, 2, NO_TAG],
        [NO_TAG, 2, NO_TAG, NO_TAG, NO_TAG],
    ]
    assert "tags" not in batch
    loss = torch.nn.functional.cross_entropy(torch.zeros(10, 3), batch["labels"].flatten())
    assert loss.item() == pytest.approx(np.log(3))


def test_both_texts_of_a_pair_get_a_vector(tokenizer):
    features = encode(tokenizer, Embed(), PAIRS, 16)
    assert [tokenizer.decode(f["input_ids"][1:-1]) for f in features] == [
        "w1 w2",
        "w3",
        "w4",
        "w5 w6 w7",
    ]
    assert not any("label" in feature for feature in features)
    with pytest.raises(UserError, match="no token in row 2"):
        encode(tokenizer, Embed(), Examples(["w1", "w2"], pairs=["w3", "\u2028"]), 16)


# What is counted, what is refused


def test_truncation(tokenizer):
    features = encode(tokenizer, CLASSIFY, TEXTS, 4)
    assert [len(f["input_ids"]) for f in features] == [4, 3, 4]
    assert features[0]["input_ids"][-1] == SEP
    pair = encode(tokenizer, CLASSIFY, Examples(["w1"], pairs=["w2 w3 w4 w5"]), 6)[0]["input_ids"]
    assert tokenizer.decode(pair) == "[CLS] w1 [SEP] w2 w3 [SEP]"


def test_a_tokenizer_that_was_saved_with_padding_does_not_pad(tokenizer):
    tokenizer.backend_tokenizer.enable_padding(length=12, pad_id=PAD)  # as all-MiniLM's is
    assert [len(f["input_ids"]) for f in encode(tokenizer, CLASSIFY, TEXTS, 16)] == [5, 3, 4]


def test_more_texts_than_one_chunk(tokenizer):
    count = CHUNK + 3
    features = encode(tokenizer, CLASSIFY, Examples([f"w{i % 60}" for i in range(count)]), 8)
    assert [f["index"] for f in features] == list(range(count))
    assert tokenizer.decode(features[-1]["input_ids"]) == f"[CLS] w{(count - 1) % 60} [SEP]"


def test_lengths(tokenizer):
    result = lengths(encode(tokenizer, CLASSIFY, TEXTS, 16))
    assert result.counts == ((3, 1), (4, 1), (5, 1))


@pytest.mark.parametrize(
    ("protect", "until", "held"),
    [((), None, (0, 0)), ((5, 8), None, (3, 1)), ((), SEP, (4, 3)), ((5, 8), SEP, (5, 3))],
)
def test_lengths_count_what_must_stay(
    tokenizer, protect: tuple[int, ...], until: int | None, held: tuple[int, int]
):
    """[CLS] w1 w2 [SEP] w4 [SEP] and [CLS] w3 [SEP] w5 w6 w7 [SEP]; w1 is 5, w4 is 8."""
    result = lengths(encode(tokenizer, REGRESS, PAIRS, 16), protect, until)
    assert result.rows == ((6, held[0], 1), (7, held[1], 1))


def test_zero_tokens_are_named(tokenizer):
    texts = Examples(["w1", "\u2028", "w2", "\u2029"])  # separators that the tokenizer drops
    with pytest.raises(UserError, match="no token in rows 2, 4"):
        encode(tokenizer, CLASSIFY, texts, 16)


def test_unknown_words_are_tokens(tokenizer):
    assert len(encode(tokenizer, CLASSIFY, Examples(["never seen"]), 16)[0]["input_ids"]) == 4


def test_left_padding_is_refused(tokenizer):
    tokenizer.padding_side = "left"
    with pytest.raises(UserError, match='padding_side = "right"'):
        encode(tokenizer, CLASSIFY, TEXTS, 16)


def test_length_above_positions_is_refused(tokenizer):
    encode(tokenizer, CLASSIFY, TEXTS, 64, positions=64)
    with pytest.raises(UserError, match="65 is above the model's 64 positions; use 64"):
        encode(tokenizer, CLASSIFY, TEXTS, 65, positions=64)


@pytest.mark.parametrize(("examples", "room"), [(TEXTS, 3), (PAIRS, 5)])
def test_length_without_room_is_refused(tokenizer, examples: Examples, room: int):
    encode(tokenizer, CLASSIFY, examples, room)
    with pytest.raises(UserError, match=f"use {room} or more"):
        encode(tokenizer, CLASSIFY, examples, room - 1)
