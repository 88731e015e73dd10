"""The demo's draws; that it runs through is in test_cli."""

from toprune.cli.demo import FULL, QUICK, split

REVIEWS = [{"text": f"review {i}", "label": i // 5000} for i in range(10_000)]


def test_draws_are_balanced_mixed_and_apart():
    for size in (FULL, QUICK):
        sets = split(REVIEWS, size.train, size.unlabelled, size.test)
        assert len(sets["train"]) == size.train
        assert len(sets["unlabelled"]) == size.unlabelled
        assert len(sets["test"]) == size.test
        for rows in sets.values():
            assert sum(row["label"] for row in rows) == len(rows) / 2
            assert 0.3 < sum(row["label"] for row in rows[:200]) / 200 < 0.7  # a glance shows both
        texts = [row["text"] for rows in sets.values() for row in rows]
        assert len(set(texts)) == len(texts)
    assert split(REVIEWS, 100, 80, 50) == split(REVIEWS, 100, 80, 50)
