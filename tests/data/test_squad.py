import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.data.examples import Examples, load
from toprune.data.squad import is_squad, read_squad, unanswerable
from toprune.errors import UserError
from toprune.tasks.answer import Answer

ROME, TROY, NOON = "Rome burned in July.", "Troy burned, too.", "It was noon."


def question(text: str, *answers: tuple[str, int], **fields: Any) -> dict[str, Any]:
    spans = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": text, "question": text, "answers": spans} | fields


def article(title: str | None, **paragraphs: list[dict[str, Any]]) -> dict[str, Any]:
    texts = {"rome": ROME, "troy": TROY, "noon": NOON}
    parts = [{"context": texts[name], "qas": qas} for name, qas in paragraphs.items()]
    return {"title": title, "paragraphs": parts} if title else {"paragraphs": parts}


V1 = [
    article(
        "Fires",
        rome=[question("Where?", ("Rome", 0), ("Rome", 0)), question("When?", ("July", 15))],
        troy=[question("What?", ("Troy", 0))],
    ),
    article("Hours", noon=[question("When was it?", ("noon", 7))]),
]
V2 = [
    article(
        None,
        rome=[
            question("Where?", ("Rome", 0), is_impossible=False),
            question("Why?", is_impossible=True, plausible_answers=[{"text": "x"}]),
        ],
    )
]


def write_squad(path: Path, data: list[Any], **fields: Any) -> Path:
    text = json.dumps(fields | {"data": data}, indent=1).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["train-v1.1.json", "mine.json.gz"])
def test_v1(name: str, tmp_path: Path):
    path = write_squad(tmp_path / name, V1, version="1.1")
    expected = Examples(
        ["Where?", "When?", "What?", "When was it?"],
        [ROME, ROME, TROY, NOON],
        [[("Rome", 0), ("Rome", 0)], [("July", 15)], [("Troy", 0)], [("noon", 7)]],
        articles=["Fires", "Fires", "Fires", "Hours"],
    )
    assert is_squad(path)
    assert read_squad(path, reads=Answer.READS) == expected
    assert load(path, reads=Answer.READS) == {"train": expected}


def test_v2(tmp_path: Path):
    result = read_squad(write_squad(tmp_path / "dev-v2.0.json", V2), reads=Answer.READS)
    assert result.labels == [[("Rome", 0)], []]
    assert result.articles == [0, 0]


def test_folder_of_official_files(tmp_path: Path):
    write_squad(tmp_path / "train-v1.1.json", V1)
    write_squad(tmp_path / "dev-v1.1.json.gz", V2)
    write_squad(tmp_path / "half-dev-v2.0.json", V2)
    sets = load(tmp_path, reads=Answer.READS)
    assert {name: len(examples) for name, examples in sets.items()} == {
        "train": 4,
        "validation": 2,
    }
    write_squad(tmp_path / "train-v2.0.json", V2)
    with pytest.raises(UserError, match=r"two train sets: train-v1.1.json, train-v2.0.json; keep"):
        load(tmp_path, reads=Answer.READS)


def test_questions_alone(tmp_path: Path):
    unlabelled = question("Where?")
    del unlabelled["answers"]
    path = write_squad(tmp_path / "test.json", [article("A", rome=[unlabelled])])
    assert read_squad(path, reads=Answer.READS).labels is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.json", '[{"question": "a", "context": "b"}]'),
        ("row.json", '{"data": [1]}'),
        ("lines.json", '{"data": []}\n{"data": []}'),
        ("rows.jsonl", '{"data": [{"paragraphs": []}]}'),
    ],
)
def test_other_files(name: str, content: str, tmp_path: Path):
    (tmp_path / name).write_text(content)
    assert not is_squad(tmp_path / name)
    with pytest.raises(UserError, match="is not a SQuAD file"):
        read_squad(tmp_path / name, reads=Answer.READS)


def test_wrong_spans_are_counted(tmp_path: Path):
    bad = [article("A", rome=[question("Where?", ("Rome", 9)), question("When?", ("July", 14))])]
    path = write_squad(tmp_path / "train.json", bad)
    with pytest.raises(UserError, match="1 bad row: the answer 'Rome' in row 1 of the train set"):
        read_squad(path, reads=Answer.READS)
    with pytest.warns(UserWarning, match="1 of 2 rows"):
        assert read_squad(path, reads=Answer.READS, skip_bad_rows=True).labels == [[("July", 15)]]


# Unanswerable questions


def test_hub_rows_have_articles_too():
    row = {"title": "Fires", "question": "Where?", "context": ROME}
    rows = [
        row | {"answers": {"text": ["Rome"], "answer_start": [0]}},
        row | {"answers": ["Troy"], "context": TROY},
    ]
    assert load(rows, reads=Answer.READS)["train"].articles == ["Fires", "Fires"]


def test_unanswerable_questions_are_of_the_same_article():
    examples = Examples(
        ["Where?", "When?", "What?", "Alone?"],
        [ROME, ROME, TROY, NOON],
        [[("Rome", 0)], [("July", 15)], [("burned", 5)], [("noon", 7)]],
        articles=["Fires", "Fires", "Fires", "Hours"],
    )
    # "burned" is in both paragraphs, and the article of "Alone?" has no other.
    with pytest.warns(UserWarning, match="only 2 unanswerable questions instead of 4"):
        result = unanswerable(examples, 1.0, seed=0)
    assert result.take(range(4)) == examples
    added = result.take(range(4, len(result)))
    assert sorted(added.texts) == ["When?", "Where?"]
    assert added.pairs == [TROY, TROY]
    assert added.labels == [[], []]
    assert added.articles == ["Fires", "Fires"]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=30),
    st.floats(0.1, 1),
    st.integers(0, 99),
)
@pytest.mark.filterwarnings("ignore:only")
def test_no_added_question_is_answered(places: list[tuple[int, int]], share: float, seed: int):
    contexts = [f"p{number} of a{place}" for place, number in places]
    examples = Examples(
        [str(i) for i in range(len(places))],
        contexts,
        [[(f"P{number}".lower(), 0)] if number else [] for _, number in places],
        articles=[place for place, _ in places],
    )
    result = unanswerable(examples, share, seed)
    assert result == unanswerable(examples, share, seed)
    assert result.take(range(len(examples))) == examples
    added = list(range(len(examples), len(result)))
    assert len(added) <= round(share * sum(number > 0 for _, number in places))
    rows = [int(result.texts[i]) for i in added]
    assert len(set(rows)) == len(rows)
    for i, row in zip(added, rows, strict=True):
        assert result.pairs is not None
        assert result.labels is not None
        assert result.articles is not None
        context = result.pairs[i]
        assert (result.labels[i], result.articles[i]) == ([], places[row][0])
        assert context in contexts
        assert context.endswith(f"a{places[row][0]}")
        assert f"p{places[row][1]}" not in context


def test_case_does_not_hide_an_answer():
    examples = Examples(["q"], [ROME], [[("BURNED", 5)]], articles=[0])
    two = Examples([*examples.texts, "r"], [ROME, TROY], [[("BURNED", 5)], []], articles=[0, 0])
    with pytest.warns(UserWarning, match="only 0"):
        assert unanswerable(two, 1.0, seed=0) == two


@pytest.mark.parametrize("share", [0, 1.5])
def test_shares_that_cannot_be(share: float):
    with pytest.raises(UserError, match="not in"):
        unanswerable(Examples(["q"], ["c"], [[]], articles=[0]), share, seed=0)


def test_articles_are_needed():
    with pytest.raises(UserError, match="whose articles are known"):
        unanswerable(Examples(["q"], ["c"], [[]]), 0.5, seed=0)
