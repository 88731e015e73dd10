"""Texts without labels beside a training set: which are added, and which are refused."""

from typing import Any

import pytest

from toprune.data.columns import Columns
from toprune.data.examples import Examples
from toprune.data.sets import with_unlabelled
from toprune.errors import UserError
from toprune.tasks import TASKS

CLASSIFY, EMBED, TAGS = (TASKS[name].READS for name in ("classify", "embed", "tokens"))
TRAIN = Examples(["a b", "c d"], labels=[0, 1])
HELD_OUT = Examples(["e f"], labels=[1])


def rows(*texts: str) -> list[dict[str, Any]]:
    return [{"text": text} for text in texts]


def test_texts_of_every_source_are_added_once():
    sources = [rows("g", "a b", "g"), rows("h", "g")]
    examples = with_unlabelled(TRAIN, HELD_OUT, sources, reads=CLASSIFY)
    assert examples == Examples(["a b", "c d", "g", "h"])


def test_labels_of_unlabelled_data_are_not_read():
    source = [{"text": "g", "label": "no such class"}, {"text": "h", "label": ""}]
    examples = with_unlabelled(TRAIN, HELD_OUT, [source], reads=CLASSIFY)
    assert examples.texts == ["a b", "c d", "g", "h"]
    assert examples.labels is None


def test_the_training_split_is_read():
    source = {"train": rows("g"), "test": rows("h")}
    assert with_unlabelled(TRAIN, HELD_OUT, [source], reads=CLASSIFY).texts[2:] == ["g"]


def test_a_reported_text_is_refused():
    with pytest.raises(UserError, match=r"^1 unlabelled text.*--skip-bad-rows"):
        with_unlabelled(TRAIN, HELD_OUT, [rows("g", "e f")], reads=CLASSIFY)


def test_a_reported_text_can_be_left_out():
    with pytest.warns(UserWarning, match="1 unlabelled"):
        examples = with_unlabelled(
            TRAIN, HELD_OUT, [rows("g", "e f")], reads=CLASSIFY, skip_bad_rows=True
        )
    assert examples.texts == ["a b", "c d", "g"]


def test_a_pair_is_reported_only_as_a_whole():
    train, held_out = Examples(["a"], ["b"], [0]), Examples(["c"], ["d"], [1])
    source = [{"text": "c", "text_pair": "x"}, {"text": "d", "text_pair": "c"}]
    examples = with_unlabelled(train, held_out, [source], reads=CLASSIFY)
    assert examples == Examples(["a", "c", "d"], ["b", "x", "c"])
    with pytest.raises(UserError, match="unlabelled"):
        with_unlabelled(train, held_out, [[{"text": "c", "text_pair": "d"}]], reads=CLASSIFY)


def test_pairs_and_single_texts_do_not_mix():
    pairs = [{"text": "g", "text_pair": "h"}]
    with pytest.raises(UserError, match=r"single texts.*pairs"):
        with_unlabelled(TRAIN, HELD_OUT, [pairs], reads=CLASSIFY)


def test_vectors_learn_from_single_sentences():
    """Both texts of a labelled pair are read alone, so a single sentence is as good."""
    train, held_out = Examples(["a"], ["b"], [0.5]), Examples(["c"], ["d"], [0.1])
    source = [{"text": "g", "text_pair": "h"}]
    for columns, more in ((None, ["g", "h"]), (Columns(text="text"), ["g"])):
        examples = with_unlabelled(train, held_out, [source], reads=EMBED, columns=columns)
        assert examples == Examples(["a", "b", *more])
    with pytest.raises(UserError, match="held out"):
        with_unlabelled(train, held_out, [[{"text": "d", "text_pair": "g"}]], reads=EMBED)


def test_lists_of_words():
    train, held_out = Examples([["a", "b"]], labels=[[0, 1]]), Examples([["c"]], labels=[[0]])
    source = [{"tokens": ["g"]}, {"tokens": ["a", "b"]}]
    assert with_unlabelled(train, held_out, [source], reads=TAGS).texts == [["a", "b"], ["g"]]
    with pytest.raises(UserError, match="held out"):
        with_unlabelled(train, held_out, [[{"tokens": ["c"]}]], reads=TAGS)
