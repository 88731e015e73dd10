"""Which texts run next together: by cost, in an order that nobody waits for ever in."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprune.plan.cost import executed_macs
from toprune.plan.plan import Plan, Step
from toprune.run.encoded import Encoded
from toprune.serve.cost import BatchCost, Macs, RowCost
from toprune.serve.queue import STRETCH, WASTE, Full, Job, Queue
from toprune.tasks.tokenize import Row

PLAN = Plan("bert", 4, 128, "received", (Step(1, Fraction(1, 2)),))
COST = RowCost(PLAN)
LONG = 512


class Fake:
    """An engine that is never run here."""

    def __init__(self, name: str = "a", tokens: int = LONG):
        self.name = name
        self.batch_macs = sum(COST.count(tokens))

    def run(self, texts: Any, level: int, /) -> list[Any]:
        raise NotImplementedError

    def executed(self, texts: Any, answers: Any, level: int, /) -> int:
        raise NotImplementedError


ENGINE = Fake()


def push(queue: Queue, *lengths: int, now: float = 0.0, engine: Fake = ENGINE) -> Job:
    job = Job(engine, [Encoded(n, ()) for n in lengths], lambda job: None)
    queue.push(job, [((COST.count(n),),) for n in lengths], now)
    return job


def taken(queue: Queue) -> list[int]:
    batch = queue.take()
    return [] if batch is None else [item.text.text for item in batch.items]


def test_the_cost_of_a_row_is_what_the_plan_executes():
    sizes = COST._sizes  # pyright: ignore[reportPrivateUsage]
    for n in (1, 2, 77, 512):
        assert sum(COST.count(n)) == executed_macs(sizes, PLAN, n)
    assert sum(COST.count(512)) > 4 * sum(COST.count(128))  # attention grows by the square


def test_a_tighter_budget_packs_more_texts():
    tight = RowCost(Plan("bert", 4, 128, "received", (Step(0, Fraction(1, 8)),)))
    batches: list[int] = []
    for level in (0, 1):
        queue = Queue(1e9, 1)
        job = Job(ENGINE, [Encoded(100, ())] * 40, lambda job: None)
        queue.push(job, [((COST.count(100),), (tight.count(100),))] * 40, 0.0)
        fill = queue.batches
        batch = queue.take(level)
        assert batch is not None
        assert batch.macs <= ENGINE.batch_macs
        assert fill == pytest.approx(40 * sum(COST.count(100)) / ENGINE.batch_macs)
        batches.append(len(batch.items))
    assert batches[0] < batches[1]


def test_protected_tokens_cost_more():
    plan = Plan("bert", 4, 128, "received", (Step(0, Fraction(1, 4)),), protect_until=9)
    row = Row(np.array([0, *[5] * 30, 9, *[6] * 30]), None)
    free = Row(np.array([0, 9, *[6] * 60]), None)
    assert len(row) == len(free)
    assert sum(RowCost(plan)(row)) > sum(RowCost(plan)(free))


@given(st.lists(st.integers(1, LONG), min_size=1, max_size=20))
def test_a_batch_pays_for_attention_as_if_all_rows_were_the_longest(lengths: list[int]):
    rows = [COST.count(n) for n in lengths]
    batch = BatchCost().with_rows(rows)
    longest = max(row.attention for row in rows)
    assert batch.macs == sum(row.linear for row in rows) + len(rows) * longest
    one_by_one = BatchCost()
    for row in rows:
        one_by_one = one_by_one.with_rows([row])
    assert one_by_one.macs == batch.macs >= sum(map(sum, rows))


@given(st.lists(st.integers(1, LONG), min_size=1, max_size=60))
def test_every_text_runs_once_and_no_batch_exceeds_the_target(lengths: list[int]):
    queue = Queue(1e9, 1)
    push(queue, *lengths)
    seen: list[int] = []
    while batch := queue.take():
        assert len(batch.items) == 1 or batch.macs <= ENGINE.batch_macs
        alone = sum(item.macs[0] for item in batch.items)
        assert batch.macs <= WASTE * alone
        seen += [item.index for item in batch.items]
    assert sorted(seen) == list(range(len(lengths)))
    assert queue.batches == 0


def test_short_texts_share_a_batch_and_long_ones_run_alone():
    queue = Queue(100, 1)
    push(queue, 16, 16, LONG, 16)
    assert taken(queue) == [16, 16, 16]
    assert taken(queue) == [LONG]
    assert taken(queue) == []


def test_short_texts_overtake_long_ones_but_not_for_ever():
    queue = Queue(1e9, 1, seconds_per_batch=1.0)
    push(queue, LONG, LONG, now=0.0)
    end = 2 * STRETCH  # two batches, so many seconds
    for now in (1.0, end - 0.1):
        push(queue, 8, now=now)
        assert taken(queue) == [8]
    push(queue, 8, now=end + 0.1)
    assert taken(queue) == [LONG]


def test_a_short_queue_is_shared_by_the_workers():
    queue = Queue(100, workers=2)
    push(queue, *[16] * 8)
    sizes: list[int] = []
    while texts := taken(queue):
        sizes.append(len(texts))
    assert sizes[0] == 4  # half of what waits
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 8


def test_equal_texts_keep_their_order():
    queue = Queue(100, 1)
    jobs = [push(queue, LONG, now=0.0) for _ in range(3)]
    assert [queue.take().items[0].job for _ in jobs] == jobs  # pyright: ignore[reportOptionalMemberAccess]


def test_bundles_are_not_mixed():
    queue, other = Queue(100, 1), Fake("b")
    push(queue, 16)
    push(queue, 16, engine=other)
    push(queue, 16)
    first, second = queue.take(), queue.take()
    assert first is not None
    assert second is not None
    assert (len(first.items), first.engine) == (2, ENGINE)
    assert (len(second.items), second.engine) == (1, other)


def test_a_full_queue_refuses_and_names_the_time():
    queue = Queue(3, workers=2, seconds_per_batch=2.0)
    push(queue, LONG, LONG)
    push(queue, *[LONG] * 5)  # there was room, so the request is taken whole
    with pytest.raises(Full) as caught:
        push(queue, 1)
    assert caught.value.retry_after == 7  # 7 batches of 2 s for two workers
    assert len(queue) == 7
    while queue.batches >= 3:
        queue.take()
    push(queue, 1)


def test_dropped_requests_leave_no_trace():
    queue = Queue(100, 1)
    gone, stays = push(queue, 16, LONG, 16), push(queue, 16)
    assert queue.drop(gone) == 3
    assert gone.is_over
    assert [item.job for item in queue.take().items] == [stays]  # pyright: ignore[reportOptionalMemberAccess]
    assert queue.batches == 0


def test_the_pace_follows_the_measured_one():
    queue = Queue(1e9, 1, seconds_per_batch=1.0)
    for _ in range(80):
        push(queue, LONG)
        batch = queue.take()
        assert batch is not None
        queue.learn(batch.engine, batch.macs, 0.2)
    assert queue.seconds_per_batch == pytest.approx(0.2, rel=0.01)


def test_windows_of_a_text_stay_together():
    queue = Queue(100, 1)
    job = Job(ENGINE, [Encoded("long", ())], lambda job: None)
    queue.push(job, [((Macs(1, 1), Macs(1, 4)),)], 0.0)
    batch = queue.take()
    assert batch is not None
    assert batch.macs == 2 + 2 * 4
