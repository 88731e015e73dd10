from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.data.examples import Examples
from toprune.data.splits import split_validation
from toprune.errors import UserError
from toprune.tasks import TASKS
from toprune.tasks.embed import Embed


def numbered(cells: list[int] | list[float] | None, count: int = 0) -> Examples:
    return Examples([str(i) for i in range(count or len(cells or []))], labels=cells)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=4, max_size=200),
    st.floats(0.05, 0.5),
    st.integers(0, 2**32 - 1),
)
def test_split_is_seeded_stratified_and_whole(cells: list[int], share: float, seed: int):
    counts = Counter(cells)
    if max(counts.values()) == 1:
        return
    examples = numbered(cells)
    train, validation = split_validation(examples, share, seed)
    assert sorted(train.texts + validation.texts) == sorted(examples.texts)
    assert split_validation(examples, share, seed) == (train, validation)
    assert set(train.labels or []) == set(cells)
    pool = sum(count for count in counts.values() if count > 1)
    taken = Counter(validation.labels)
    for label, count in counts.items():
        fair = len(validation) * count / pool if count > 1 else 0
        assert abs(taken[label] - fair) < 1 or (count == 1 and taken[label] == 0)


def test_split_sizes_and_seeds():
    examples = numbered([0] * 90 + [1] * 10)
    train, validation = split_validation(examples, 0.2, seed=1)
    assert Counter(validation.labels) == {0: 18, 1: 2}
    assert validation != split_validation(examples, 0.2, seed=2)[1]
    assert len(train) == 80


@pytest.mark.parametrize("cells", [None, [i / 7 for i in range(50)]])
def test_split_without_classes(cells: list[float] | None):
    examples = numbered(cells, 50)
    train, validation = split_validation(examples, 0.1, seed=3)
    assert (len(train), len(validation)) == (45, 5)
    assert validation != split_validation(examples, 0.1, seed=4)[1]


@pytest.mark.parametrize("share", [0, -0.1, 0.6, 1])
def test_split_share(share: float):
    with pytest.raises(UserError, match="validation share"):
        split_validation(numbered([0, 1, 0, 1]), share, seed=0)


@pytest.mark.parametrize("cells", [[0], [0, 1, 2]])
def test_split_of_too_few(cells: list[int]):
    with pytest.raises(UserError, match="too few examples"):
        split_validation(numbered(cells), 0.2, seed=0)


@pytest.mark.parametrize("task", ["rank", "answer"])
@settings(max_examples=100, deadline=None)
@given(
    groups=st.lists(st.integers(0, 9), min_size=2, max_size=60),
    share=st.floats(0.05, 0.5),
    seed=st.integers(0, 2**32 - 1),
)
def test_split_keeps_groups_whole(task: str, groups: list[int], share: float, seed: int):
    rows, names = [str(i) for i in range(len(groups))], [f"g{group}" for group in groups]
    texts, pairs = (names, rows) if task == "rank" else (rows, names)
    examples = Examples(texts, pairs, [0.0] * len(rows))
    if len(set(groups)) == 1:
        with pytest.raises(UserError, match="give a validation set"):
            split_validation(examples, share, seed, reads=TASKS[task].READS)
        return
    parts = split_validation(examples, share, seed, reads=TASKS[task].READS)
    assert parts == split_validation(examples, share, seed, reads=TASKS[task].READS)
    kept, aside = [part.texts if task == "rank" else part.pairs for part in parts]
    assert kept
    assert aside
    assert Counter([*kept, *aside]) == Counter(names)
    assert set(kept).isdisjoint(aside)
    # One group more or less would not have been nearer.
    largest = max(Counter(names).values())
    assert abs(len(aside) - share * len(names)) <= largest


@pytest.mark.parametrize(
    "examples",
    [
        Examples([["a"]] * 20, labels=[[0]] * 20),
        Examples(["a"] * 20, labels=[[0, 1], []] * 10),
        Examples(["a"] * 20, ["b"] * 20, [0.5] * 20),
    ],
)
def test_split_of_the_other_tasks(examples: Examples):
    assert [len(part) for part in split_validation(examples, 0.1, 0, reads=Embed.READS)] == [18, 2]
