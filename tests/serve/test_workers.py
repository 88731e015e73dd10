"""Workers: answers reach their requests, whatever fails, leaves or stops."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from toprune.errors import UserError
from toprune.run.encoded import Encoded
from toprune.serve.cost import Macs
from toprune.serve.metrics import Metrics
from toprune.serve.queue import Closed, Failed, Full, Job, Queue
from toprune.serve.shed import Shed, parse_shed
from toprune.serve.workers import Workers

COSTS = ((Macs(1, 0),), (Macs(1, 0),))  # at two budgets


class Echo:
    """Answers a text with itself; knows some that it cannot answer."""

    name, batch_macs = "echo", 4

    def __init__(self, error: type[Exception] = UserError):
        self.error = error
        self.batches: list[list[str]] = []

    def run(self, texts: Any, level: int = 0, /) -> list[Any]:
        words = [text.text for text in texts]
        self.batches.append(words)
        if "bad" in words:
            raise self.error("this text is bad")
        return words

    def executed(self, texts: Any, answers: Any, level: int, /) -> int:
        return len(texts)


class Desk:
    """Workers without threads: a test runs batch by batch, and sets the clock."""

    def __init__(self, engine: Any, max_batches: float = 100.0, shed: Shed | None = None):
        self.now, self.metrics = 0.0, Metrics()
        self.queue = Queue(max_batches, 1)
        self.workers = Workers(self.queue, 1, self.metrics, lambda: self.now, shed)
        self.engine = engine
        self.over: list[Job] = []

    def submit(self, *texts: str) -> Job:
        job = Job(self.engine, [Encoded(text, ()) for text in texts], self.over.append)
        self.workers.submit(job, [COSTS] * len(texts))
        return job

    def run_all(self) -> None:
        while self.workers.run_next():
            pass


def test_answers_reach_their_requests_in_order():
    desk = Desk(Echo())
    jobs = [desk.submit("a", "b", "c"), desk.submit("d"), desk.submit("e", "f")]
    desk.run_all()
    assert [job.answers for job in jobs] == [["a", "b", "c"], ["d"], ["e", "f"]]
    assert sorted(map(id, desk.over)) == sorted(map(id, jobs))
    assert max(map(len, desk.engine.batches)) == 4


def test_a_bad_text_spoils_nobody_elses_answer():
    desk = Desk(Echo())
    bad, good = desk.submit("a", "bad"), desk.submit("b")
    desk.run_all()
    assert good.answers == ["b"]
    assert isinstance(bad.error, UserError)
    assert len(desk.over) == 2


def test_a_crash_ends_its_requests_only():
    desk = Desk(Echo(RuntimeError))
    bad = desk.submit("bad", *"abcdefgh")
    desk.run_all()
    assert isinstance(bad.error, Failed)
    assert bad.error.reason == "RuntimeError"
    assert len(desk.queue) == 0
    later = desk.submit("x")
    desk.run_all()
    assert later.answers == ["x"]


def test_a_client_that_left_is_not_served():
    desk = Desk(Echo())
    gone = desk.submit(*"abcdefgh")
    desk.workers.run_next()
    assert desk.workers.cancel(gone) == 4
    stays = desk.submit("x")
    desk.run_all()
    assert (desk.over, stays.answers) == ([stays], ["x"])
    assert desk.engine.batches == [list("abcd"), ["x"]]


def test_full_then_room_again():
    desk = Desk(Echo(), max_batches=1)
    desk.submit(*"abcd")
    with pytest.raises(Full):
        desk.submit("e")
    desk.run_all()
    desk.submit("e")


def test_a_closed_desk_finishes_what_it_took():
    desk = Desk(Echo())
    job = desk.submit("a")
    desk.workers.close()
    with pytest.raises(Closed):
        desk.submit("b")
    desk.run_all()
    assert job.answers == ["a"]


def test_what_does_not_begin_in_time_is_refused():
    desk = Desk(Echo())
    job = desk.submit("a")
    desk.workers.stop(timeout=0)  # no thread was started: nothing can run
    assert isinstance(job.error, Closed)


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


def test_threads_finish_and_end(gate: threading.Event):
    class Slow(Echo):
        def run(self, texts: Any, level: int = 0, /) -> list[Any]:
            assert gate.wait(30)
            return super().run(texts, level)

    desk = Desk(Slow())
    desk.workers.start()
    jobs = [desk.submit(text) for text in "abcdefgh"]
    stopping = threading.Thread(target=desk.workers.stop, args=(30,))
    stopping.start()
    gate.set()
    stopping.join(30)
    assert [job.answers for job in jobs] == [[text] for text in "abcdefgh"]
    with pytest.raises(Closed):
        desk.workers.check_room()


def test_a_growing_queue_tightens_the_budget_and_relaxes_it_after():
    shed = Shed(["2x", "3x", "5x"])
    fills = [0.0, 0.3, 0.34, 0.6, 0.7, 1.2, 0.4, 0.3, 0.2, 0.1, 0.0]
    assert [shed.choose(fill) for fill in fills] == [0, 0, 1, 1, 2, 2, 2, 1, 1, 0, 0]
    assert shed.choose(1.0) == 2  # at once, where the queue fills at once


def test_requests_know_the_tightest_budget_that_they_got():
    desk = Desk(Echo(), max_batches=3, shed=Shed(["2x", "5x"]))
    large = desk.submit(*"abcdefghijkl")  # three batches: the queue is full
    levels = []
    while desk.workers.run_next():
        levels.append(desk.workers._shed.level)  # pyright: ignore[reportPrivateUsage]
    assert levels == [1, 1, 1]
    small = desk.submit("x")
    desk.run_all()
    assert (large.level, small.level) == (1, 0)
    text = desk.metrics.render()
    assert 'toprune_shed_texts_total{budget="5x"} 12\n' in text
    assert 'toprune_shed_texts_total{budget="2x"} 1\n' in text
    assert "toprune_shed_level 0\n" in text


@pytest.mark.parametrize("words", ["3x", "3x,2x", "2x,2x", "2x,fast", ""])
def test_budgets_that_do_not_tighten_are_refused(words: str):
    with pytest.raises(UserError):
        parse_shed(words)


def test_metrics_are_as_prometheus_reads_them():
    desk = Desk(Echo())
    desk.submit(*"abcdef")
    assert "toprune_queue_texts 6\n" in desk.metrics.render()
    desk.run_all()
    desk.metrics.request('/a"b', 200, 0.003)
    text = desk.metrics.render()
    assert 'toprune_executed_macs_total{model="echo"} 6\n' in text
    assert 'toprune_batch_texts_bucket{model="echo",le="2"} 1\n' in text
    assert 'toprune_batch_texts_bucket{model="echo",le="+Inf"} 2\n' in text
    assert 'toprune_batch_texts_sum{model="echo"} 6\n' in text
    assert 'toprune_requests_total{path="/a\\"b",status="200"} 1\n' in text
    assert "toprune_queue_texts 0\n" in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    check_lines(text, names.__contains__)


def check_lines(text: str, is_known: Callable[[str], bool]) -> None:
    """Every sample belongs to a metric that was announced, and has a number."""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, value = line.rpartition(" ")
        float(value)
        base = name.partition("{")[0]
        stems = [base, *(base.removesuffix(end) for end in ("_bucket", "_sum", "_count"))]
        assert any(map(is_known, stems)), line
