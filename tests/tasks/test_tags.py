import json
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_fscore_support
from transformers import BertConfig

from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.tasks.tags import Entity, Tags, entities, has_prefixes, parse
from toprune.tasks.tokenize import Row

IOB = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
IOBES = ["O", "B-X", "I-X", "E-X", "S-X", "I-Y", "E-Y"]
FRAME = (-1, -1)  # the place of [CLS] and [SEP]


def find(*tags: str) -> list[Entity]:
    names = sorted({*tags, "O", "I-never"})
    parsed = parse(names)
    return entities([parsed[names.index(tag)] for tag in tags])


def slowly(tags: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Every stretch of words that hang together and hang on to nothing beside them."""

    def joined(i: int) -> bool:  # word i with the one before it
        if not 0 < i < len(tags) or "O" in (tags[i], tags[i - 1]):
            return False
        (last, kind), (place, other) = tags[i - 1].split("-"), tags[i].split("-")
        return kind == other and last not in ("E", "S") and place not in ("B", "S")

    return [
        (tags[first].split("-")[1], first, last)
        for first in range(len(tags))
        for last in range(first, len(tags))
        if "O" not in tags[first : last + 1]
        and all(joined(i) for i in range(first + 1, last + 1))
        and not joined(first)
        and not joined(last + 1)
    ]


def make_row(places: list[tuple[int, int]], text: int = 0) -> Row:
    framed = np.array([FRAME, *places, FRAME], np.int64)
    return Row(np.zeros(len(framed), np.int64), None, text, framed)


def whole_words(count: int, text: int = 0) -> Row:
    return make_row([(word, 0) for word in range(count)], text)


def say(tags: list[int], classes: int) -> np.ndarray:
    """Logits (n, C) for [CLS], tokens, [SEP]; the frame votes for the last tag, unheard."""
    return np.eye(classes, dtype=np.float32)[[classes - 1, *tags, classes - 1]]


def sentences(labels: list[list[int]], names: list[str] | None = None) -> Examples:
    texts: Any = [[f"w{i}" for i in range(len(tags))] for tags in labels]
    tags: Any = labels
    return Examples(texts, labels=tags, label_names=names)


def score(guesses: list[list[str]], truths: list[list[str]], names: list[str]) -> dict[str, float]:
    guessed = [[names.index(tag) for tag in tags] for tags in guesses]
    examples = sentences([[names.index(tag) for tag in tags] for tags in truths], names)
    outputs = [say(tags, len(names)) for tags in guessed]
    rows = [whole_words(len(tags), text) for text, tags in enumerate(guesses)]
    found = Tags().metrics(Tags().statistics(outputs, rows, examples))
    assert list(found) == list(Tags.METRICS)
    return found


# Entities


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("O O", []),
        ("I-PER I-PER O", [("PER", 0, 1)]),  # no B-: starts all the same
        ("O I-PER B-PER", [("PER", 1, 1), ("PER", 2, 2)]),
        ("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),  # another type: another entity
        ("I-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)]),
        ("B-X I-X E-X S-X", [("X", 0, 2), ("X", 3, 3)]),
        ("B-X E-X I-X", [("X", 0, 1), ("X", 2, 2)]),
        ("E-X E-X", [("X", 0, 0), ("X", 1, 1)]),
        ("S-X I-X", [("X", 0, 0), ("X", 1, 1)]),
        ("B-X I-X L-X U-X", [("X", 0, 2), ("X", 3, 3)]),
        ("B-A-B I-A-B", [("A-B", 0, 1)]),
        ("B I O I", [("_", 0, 1), ("_", 3, 3)]),
    ],
)
def test_entities_by_hand(tags: str, expected: list[tuple[str, int, int]]):
    assert find(*tags.split()) == expected


def test_entities_equal_a_slow_search():
    for length in range(5):
        for tags in product(IOBES, repeat=length):
            assert find(*tags) == slowly(tags)


def test_which_tags_have_prefixes():
    assert has_prefixes(IOB)
    assert has_prefixes(["I-PER", "O"])
    assert has_prefixes(["B", "I", "O"])
    assert not has_prefixes(["NOUN", "VERB"])
    assert not has_prefixes(["O", "PER", "LOC"])
    assert not has_prefixes(["O"])
    assert not has_prefixes([*IOB, "X-PER"])


# Scores


def test_scores_of_seqevals_own_example():
    truths = [["O", "O", "O", "B-M", "I-M", "I-M", "O"], ["B-P", "I-P", "O"]]
    guesses = [["O", "O", "B-M", "I-M", "I-M", "I-M", "O"], ["B-P", "I-P", "O"]]
    found = score(guesses, truths, ["O", "B-M", "I-M", "B-P", "I-P"])
    assert found == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": 0.8}


def test_precision_and_recall_are_not_mixed_up():
    found = score([["B-PER", "O", "O", "O"]], [["B-PER", "O", "B-LOC", "B-PER"]], IOB)
    assert found["precision"] == 1
    assert found["recall"] == pytest.approx(1 / 3)
    assert found["f1"] == 0.5
    assert found["accuracy"] == 0.5


def test_the_type_counts_and_a_broken_start_does_not():
    assert score([["B-LOC"]], [["B-PER"]], IOB)["f1"] == 0
    found = score([["I-PER", "I-PER"]], [["B-PER", "I-PER"]], IOB)
    assert found["f1"] == 1
    assert found["accuracy"] == 0.5


def test_nothing_over_nothing_is_zero():
    found = score([["O", "O"]], [["O", "O"]], IOB)
    assert found == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 1}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_flat_tags_are_scored_by_word(pairs: list[tuple[int, int]]):
    guesses, truths = (list(side) for side in zip(*pairs, strict=True))
    for names, counted in ((["A", "B", "C", "D"], [0, 1, 2, 3]), (["O", "A", "B", "C"], [1, 2, 3])):
        found = score([[names[i] for i in guesses]], [[names[i] for i in truths]], names)
        kind: dict[str, Any] = {"average": "micro", "labels": counted, "zero_division": 0}
        precision, recall, f1, _ = precision_recall_fscore_support(truths, guesses, **kind)
        assert found["precision"] == pytest.approx(precision)
        assert found["recall"] == pytest.approx(recall)
        assert found["f1"] == pytest.approx(f1)
        assert found["accuracy"] == np.mean(np.equal(guesses, truths))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(*[st.sampled_from(IOB)] * 2), min_size=1), min_size=1))
def test_scores_equal_the_slow_search(pairs: list[list[tuple[str, str]]]):
    guesses, truths = ([[pair[side] for pair in words] for words in pairs] for side in (0, 1))
    predicted, wanted = (
        {(text, *entity) for text, tags in enumerate(side) for entity in slowly(tuple(tags))}
        for side in (guesses, truths)
    )
    right = len(predicted & wanted)
    found = score(guesses, truths, IOB)
    assert found["precision"] == (right / len(predicted) if predicted else 0)
    assert found["recall"] == (right / len(wanted) if wanted else 0)
    assert found["f1"] == (2 * right / (len(predicted) + len(wanted)) if predicted or wanted else 0)


def test_statistics_count_by_sentence():
    outputs = [say([1, 2, 0], 5), say([0, 3], 5)]
    rows = [whole_words(3, 0), whole_words(2, 1)]
    stats = Tags().statistics(outputs, rows, sentences([[1, 2, 3], [3, 4]], IOB))
    assert stats.tolist() == [[1, 1, 2, 2, 3], [0, 1, 1, 0, 2]]


def test_ids_without_names_are_flat_tags():
    stats = Tags().statistics([say([1, 0], 2)], [whole_words(2)], sentences([[1, 1]]))
    assert stats.tolist() == [[1, 2, 2, 1, 2]]
    with pytest.raises(UserError, match="need labels"):
        Tags().statistics([], [], Examples([]))


# Words, pieces and windows


def tags_of(outputs: list[np.ndarray], rows: list[Row], words: int) -> list[int]:
    return Tags().predictions(outputs, rows, [["w"] * words], None)[0]["tags"]


def test_a_word_has_the_tag_of_its_first_piece():
    row = make_row([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)])
    assert tags_of([say([1, 2, 3, 0, 0], 4)], [row], 2) == [1, 3]


def test_a_word_is_read_where_it_has_most_context():
    first = make_row([(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)])
    second = make_row([(2, 0), (3, 0), (4, 0), (5, 0), (6, 0)])
    ones, twos = say([1] * 5, 4), say([2] * 5, 4)
    # Word 3 stands in the middle between the two windows' ends: the first window given has it.
    assert tags_of([ones, twos], [first, second], 7) == [1, 1, 1, 1, 2, 2, 2]
    assert tags_of([twos, ones], [second, first], 7) == [1, 1, 1, 2, 2, 2, 2]


def test_a_window_that_begins_inside_a_word():
    rows = [make_row([(0, 0), (1, 0)]), make_row([(1, 1), (1, 2), (2, 0)])]
    assert tags_of([say([1, 2], 4), say([0, 0, 3], 4)], rows, 3) == [1, 2, 3]


def test_a_word_that_no_window_holds_is_outside():
    row = make_row([(0, 0), (2, 0)])
    assert tags_of([say([1, 1], 3)], [row], 4) == [1, 0, 1, 0]
    names = ("B-X", "I-X", "O")
    found = Tags().predictions([say([0, 1], 3)], [row], [list("abcd")], names)
    assert found[0]["tags"] == ["B-X", "O", "I-X", "O"]
    stats = Tags().statistics([say([0, 1], 3)], [row], sentences([[0, 2, 2, 2]], list(names)))
    assert stats.tolist() == [[1, 2, 1, 3, 4]]


def test_windows_of_several_texts():
    rows = [whole_words(1, 0), make_row([(0, 0)], 1), make_row([(1, 0)], 1), whole_words(2, 2)]
    outputs = [say([1], 3), say([0], 3), say([2], 3), say([2, 1], 3)]
    texts = [["a"], ["b", "c"], ["d", "e"]]
    found = Tags().predictions(outputs, rows, texts, None)
    assert [answer["tags"] for answer in found] == [[1], [0, 2], [2, 1]]


def test_agreement_counts_words_once():
    rows = [make_row([(0, 0), (0, 1), (1, 0)]), make_row([(2, 0), (2, 1), (3, 0)])]
    one = [say([0, 1, 1], 3), say([1, 1, 1], 3)]
    other = [say([0, 2, 2], 3), say([1, 2, 1], 3)]
    examples = sentences([[0, 0, 0, 0]])
    assert Tags().agreement(one, one, rows, examples) == 1
    assert Tags().agreement(one, other, rows, examples) == 0.75


# Answers


def test_answers():
    texts = [["Ada", "King", "saw", "London"], ["no", "one"]]
    outputs = [say([1, 2, 0, 3], 5), say([0, 0], 5)]
    found = Tags().predictions(outputs, [whole_words(4), whole_words(2, 1)], texts, tuple(IOB))
    assert found == [
        {
            "tags": ["B-PER", "I-PER", "O", "B-LOC"],
            "entities": [
                {"type": "PER", "first": 0, "last": 1, "text": "Ada King"},
                {"type": "LOC", "first": 3, "last": 3, "text": "London"},
            ],
        },
        {"tags": ["O", "O"], "entities": []},
    ]
    assert json.loads(json.dumps(found)) == found


def test_answers_of_flat_tags_have_no_entities():
    found = Tags().predictions([say([1, 0], 2)], [whole_words(2)], [["I", "go"]], ("VERB", "PRON"))
    assert found == [{"tags": ["PRON", "VERB"]}]


# Heads


def test_settings():
    assert Tags().reads_all
    assert Tags().head(sentences([[0]])) == {}
    with pytest.raises(UserError, match="overlap by -1"):
        Tags(stride=-1)


def test_num_outputs():
    assert Tags().num_outputs(sentences([[0]], IOB)) == 5
    assert Tags().num_outputs(sentences([[0, 3], [1]])) == 4
    with pytest.raises(UserError, match="needs labels"):
        Tags().num_outputs(Examples([]))


def head(**fields: Any) -> BertConfig:
    return BertConfig(**fields)


def named(names: list[str]) -> BertConfig:
    return head(id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)})


def test_heads_that_fit():
    Tags().check_head(named(IOB), sentences([[4]], IOB))
    Tags().check_head(named([name.lower() for name in IOB]), sentences([[4]], IOB))
    Tags().check_head(head(num_labels=5), sentences([[4]], IOB))
    Tags().check_head(named(IOB), sentences([[2]]))
    Tags().check_head(named(IOB), Examples([]))


@pytest.mark.parametrize(
    ("config", "labels", "names", "message"),
    [
        (head(num_labels=7), [[0]], IOB, "5 tags.*head 7.*label_names"),
        (head(num_labels=3), [[0, 3]], None, "up to 3.*head has 3.*finetune"),
        (named(IOB), [[0]], [*IOB[1:], "O"], "I-LOC, O, the model's O, B-PER.*label_names"),
        (named(IOB), [[0]], [*IOB[:3], "B-ORG", "I-ORG"], "B-ORG, I-ORG, the model's"),
    ],
)
def test_heads_that_do_not_fit(
    config: BertConfig, labels: list[list[int]], names: list[str] | None, message: str
):
    with pytest.raises(UserError, match=message):
        Tags().check_head(config, sentences(labels, names))


# Losses


def test_target():
    row = make_row([(0, 0), (0, 1), (1, 0)])
    assert Tags().target(row, [3, 4]) == [-100, 3, -100, 4, -100]
    window = make_row([(1, 1), (2, 0)])
    assert Tags().target(window, [3, 4, 2]) == [-100, -100, 2, -100]


def test_margin_by_hand():
    logits = torch.tensor([[[3.0, 1.0, 0.0], [0.0, 5.0, 4.5]], [[1.0, 2.0, 9.0], [7.0, 0.0, 0.0]]])
    mask = torch.tensor([[1, 1], [1, 0]])
    assert Tags().margin(logits, mask).tolist() == [2.5, 7.0]


def test_distill_loss_is_kl_at_temperature_two_over_live_tokens():
    student, teacher = torch.randn(2, 2, 3, 4, dtype=torch.double)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    p, q = (teacher / 2).softmax(-1), (student / 2).softmax(-1)
    expected = 4 * ((p * (p / q).log()).sum(-1) * mask).sum() / 5
    torch.testing.assert_close(Tags().distill_loss(student, teacher, mask), expected)


def test_label_loss_is_over_first_pieces():
    logits = torch.randn(2, 3, 4)
    labels = torch.tensor([[-100, 2, 1], [-100, 3, -100]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])  # the 1 is in the padding
    expected = -logits.log_softmax(-1)[[0, 1], [1, 1], [2, 3]].mean()
    torch.testing.assert_close(Tags().label_loss(logits, labels, mask), expected)
    nothing = torch.full_like(labels, -100)
    assert Tags().label_loss(logits, nothing, mask).item() == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 999))
def test_padding_changes_no_loss(length: int, extra: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, 1, length + extra, 3, generator=generator)
    labels = torch.randint(0, 3, (1, length + extra), generator=generator)
    mask = (torch.arange(length + extra) < length).long()[None]

    def losses(n: int) -> list[float]:
        parts = student[:, :n], teacher[:, :n], labels[:, :n], mask[:, :n]
        found = [
            Tags().margin(parts[0], parts[3]).sum(),
            Tags().distill_loss(parts[0], parts[1], parts[3]),
            Tags().label_loss(parts[0], parts[2], parts[3]),
        ]
        return [float(value) for value in found]

    assert losses(length + extra) == pytest.approx(losses(length), abs=1e-5)
