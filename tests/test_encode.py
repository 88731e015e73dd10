import pytest
import torch

from conftest import FAMILIES, make_model, make_tokenizer
from toprune.data import Examples
from toprune.encode import CHUNK, Collate, encode, lengths
from toprune.errors import UserError

TEXTS = Examples(["w1 w2 w3", "w4", "w5 w6"], labels=[0, 1, 1])
PAIRS = Examples(["w1 w2", "w3"], pairs=["w4", "w5 w6 w7"], labels=[0.5, 2.0])
CLS, PAD, SEP = 0, 1, 2


def test_single_texts(tokenizer):
    features = encode(tokenizer, TEXTS, 16)
    assert [tokenizer.decode(f["input_ids"]) for f in features] == [
        "[CLS] w1 w2 w3 [SEP]",
        "[CLS] w4 [SEP]",
        "[CLS] w5 w6 [SEP]",
    ]
    assert [f["label"] for f in features] == [0, 1, 1]
    assert [f["index"] for f in features] == [0, 1, 2]
    assert features[0].keys() == {"input_ids", "token_type_ids", "label", "index"}


def test_pairs_have_segments(tokenizer):
    features = encode(tokenizer, PAIRS, 16)
    assert tokenizer.decode(features[1]["input_ids"]) == "[CLS] w3 [SEP] w5 w6 w7 [SEP]"
    assert features[1]["token_type_ids"] == [0, 0, 0, 1, 1, 1, 1]


def test_no_segments_and_no_labels():
    features = encode(make_tokenizer("roberta"), Examples(["w1"], pairs=["w2"]), 16)
    assert features[0].keys() == {"input_ids", "index"}


def test_truncation(tokenizer):
    features = encode(tokenizer, TEXTS, 4)
    assert [len(f["input_ids"]) for f in features] == [4, 3, 4]
    assert features[0]["input_ids"][-1] == SEP
    pair = encode(tokenizer, Examples(["w1"], pairs=["w2 w3 w4 w5"]), 6)[0]["input_ids"]
    assert tokenizer.decode(pair) == "[CLS] w1 [SEP] w2 w3 [SEP]"


def test_a_tokenizer_that_was_saved_with_padding_does_not_pad(tokenizer):
    tokenizer.backend_tokenizer.enable_padding(length=12, pad_id=PAD)  # as all-MiniLM's is
    assert [len(f["input_ids"]) for f in encode(tokenizer, TEXTS, 16)] == [5, 3, 4]


def test_more_texts_than_one_chunk(tokenizer):
    count = CHUNK + 3
    features = encode(tokenizer, Examples([f"w{i % 60}" for i in range(count)]), 8)
    assert [f["index"] for f in features] == list(range(count))
    assert tokenizer.decode(features[-1]["input_ids"]) == f"[CLS] w{(count - 1) % 60} [SEP]"


def test_lengths(tokenizer):
    found = lengths(encode(tokenizer, TEXTS, 16))
    assert found.counts == ((3, 1), (4, 1), (5, 1))


def test_zero_tokens_are_named(tokenizer):
    texts = Examples(["w1", "\u2028", "w2", "\u2029"])  # separators that the tokenizer drops
    with pytest.raises(UserError, match="no token in rows 2, 4"):
        encode(tokenizer, texts, 16)


def test_unknown_words_are_tokens(tokenizer):
    assert len(encode(tokenizer, Examples(["never seen"]), 16)[0]["input_ids"]) == 4


def test_left_padding_is_refused(tokenizer):
    tokenizer.padding_side = "left"
    with pytest.raises(UserError, match='padding_side = "right"'):
        encode(tokenizer, TEXTS, 16)


def test_length_above_positions_is_refused(tokenizer):
    encode(tokenizer, TEXTS, 64, positions=64)
    with pytest.raises(UserError, match="65 is above the model's 64 positions; use 64"):
        encode(tokenizer, TEXTS, 65, positions=64)


@pytest.mark.parametrize(("examples", "room"), [(TEXTS, 3), (PAIRS, 5)])
def test_length_without_room_is_refused(tokenizer, examples: Examples, room: int):
    encode(tokenizer, examples, room)
    with pytest.raises(UserError, match=f"use {room} or more"):
        encode(tokenizer, examples, room - 1)


def test_collate_pads_on_the_right_to_the_longest(tokenizer):
    batch = Collate(tokenizer)(encode(tokenizer, TEXTS, 16)[1:])
    assert batch["input_ids"].tolist() == [[CLS, 8, SEP, PAD], [CLS, 9, 10, SEP]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0] * 4, [0] * 4]
    assert batch["labels"].tolist() == [1, 1]
    assert {t.dtype for t in batch.values()} == {torch.int64}


def test_collate_of_numbers_and_of_no_labels(tokenizer):
    collate = Collate(tokenizer)
    assert collate(encode(tokenizer, PAIRS, 16))["labels"].dtype == torch.float32
    assert "labels" not in collate(encode(tokenizer, Examples(["w1"]), 16))


def test_collate_asks_for_extras(tokenizer):
    def extras(rows, length):
        return {"teacher": torch.tensor([[row, length] for row in rows])}

    batch = Collate(tokenizer, extras)(encode(tokenizer, TEXTS, 16)[::-1])
    assert batch["teacher"].tolist() == [[2, 5], [1, 5], [0, 5]]


def test_collate_needs_a_pad_token(tokenizer):
    tokenizer.pad_token = None
    with pytest.raises(UserError, match="no pad token"):
        Collate(tokenizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_our_batches(family: str):
    tokenizer, model = make_tokenizer(family), make_model(family, num_labels=3)
    features = encode(tokenizer, Examples(PAIRS.texts, PAIRS.pairs), 64, positions=64)
    with torch.no_grad():
        together = model(**Collate(tokenizer)(features)).logits
        alone = [model(**Collate(tokenizer)([feature])).logits for feature in features]
    assert together.shape == (2, 3)
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        together, make_model(family, 3)(**Collate(tokenizer)(features)).logits
    )
