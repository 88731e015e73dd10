"""Timing without time: a machine whose clock we turn ourselves, with drift and noise at will."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from toprune.report.environment import describe_cpu
from toprune.run import timing as measure
from toprune.run.timing import LEAST, interleave, pinned, ratio


class Machine:
    """Work takes its cost times the mood of the hour; looking at the clock costs nothing."""

    def __init__(self, mood: Callable[[float], float] = lambda now: 1.0):
        self.now, self.mood = 0.0, mood
        self.done: list[str] = []

    def clock(self) -> float:
        return self.now

    def work(self, name: str, cost: float) -> Callable[[], None]:
        def run() -> None:
            self.done.append(name)
            self.now += cost * self.mood(self.now)

        return run

    def runs(self, **costs: float) -> dict[str, Callable[[], None]]:
        return {name: self.work(name, cost) for name, cost in costs.items()}


def in_rounds(done: list[str], size: int) -> list[list[str]]:
    return [done[i : i + size] for i in range(0, len(done), size)]


# -- interleave ------------------------------------------------------------------------------------


def test_known_times():
    machine = Machine()
    times = interleave(machine.runs(dense=3, pruned=1), rounds=7, clock=machine.clock)
    assert times["dense"] == pytest.approx([3] * 7)
    assert times["pruned"] == pytest.approx([1] * 7)


def test_everyone_once_a_round_in_changing_order():
    machine = Machine()
    names = dict.fromkeys("abcd", 1.0)
    interleave(machine.runs(**names), rounds=30, warmup=2, clock=machine.clock)
    rounds = in_rounds(machine.done, 4)
    assert len(rounds) == 32
    assert all(sorted(one) == list("abcd") for one in rounds)
    assert len({tuple(one) for one in rounds}) > 10
    assert {one[0] for one in rounds} == set("abcd")


def test_order_is_the_seeds():
    def order(seed: int) -> list[str]:
        machine = Machine()
        runs = machine.runs(a=1, b=1, c=1)
        interleave(runs, rounds=10, seed=seed, clock=machine.clock)
        return machine.done

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_warmup_is_not_counted():
    machine = Machine(mood=lambda now: 10.0 if now < 40 else 1.0)  # the first rounds are cold
    times = interleave(machine.runs(a=1, b=1), rounds=6, warmup=2, clock=machine.clock)
    assert times["a"] == pytest.approx([1] * 6)
    assert len(machine.done) == 2 * 8


def test_stops_when_time_is_up():
    machine = Machine()
    times = interleave(machine.runs(a=1, b=1), rounds=100, seconds=20, clock=machine.clock)
    assert len(times["a"]) == len(times["b"]) == 8  # ten rounds of two seconds, two to warm up


def test_never_too_few_rounds():
    machine = Machine()
    times = interleave(machine.runs(a=1, b=1), rounds=100, seconds=0, clock=machine.clock)
    assert len(times["a"]) == LEAST
    few = interleave(machine.runs(a=1, b=1), rounds=3, seconds=0, clock=machine.clock)
    assert len(few["a"]) == 3  # as asked


def test_drift_cancels():
    """The machine gets three times slower while we look, and the ratio does not notice."""
    machine = Machine(mood=lambda now: 1 + now / 60)
    times = interleave(machine.runs(dense=2, pruned=1), rounds=20, clock=machine.clock)
    assert times["dense"][-1] > 2 * times["dense"][0]
    found = ratio(times["dense"], times["pruned"])
    assert found["value"] == pytest.approx(2, rel=0.05)
    assert found["low"] <= 2 <= found["high"]
    assert found["high"] - found["low"] < 0.2


# -- ratio -----------------------------------------------------------------------------------------


def test_ratio_of_constants():
    found = ratio(np.full(9, 3.0), np.full(9, 0.75))
    assert found == {"value": 4, "low": 4, "high": 4}


def test_ratio_is_of_medians():
    found = ratio(np.array([2.0, 2.0, 90.0]), np.array([1.0, 50.0, 1.0]))
    assert found["value"] == 2


def test_rounds_stay_together():
    """A mood that hits both contenders of a round alike leaves no doubt about their ratio."""
    mood = np.random.default_rng(0).lognormal(0, 1, 25)
    assert ratio(3 * mood, mood) == pytest.approx({"value": 3, "low": 3, "high": 3})


def test_interval_covers():
    """Of 95 % intervals of noisy timings, about 95 % hold the truth."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        base, other = 2.5 * rng.lognormal(0, 0.1, 20), rng.lognormal(0, 0.1, 20)
        found = ratio(base, other, draws=300)
        assert found["low"] <= found["value"] <= found["high"]
        held += found["low"] <= 2.5 <= found["high"]
    assert 0.9 <= held / 200 <= 1


def test_ratio_is_the_seeds():
    rng = np.random.default_rng(0)
    base, other = rng.lognormal(0, 0.2, (2, 15))
    assert ratio(base, other, seed=1) == ratio(base, other, seed=1)
    assert ratio(base, other, seed=1) != ratio(base, other, seed=2)


# -- pinned ----------------------------------------------------------------------------------------


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The CPUs that the process was set to, last one first; four of them, no siblings known."""
    sets = [{0, 1, 2, 3}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(sets[0]), raising=False)
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda pid, cpus: sets.insert(0, set(cpus)), raising=False
    )
    monkeypatch.setattr(measure, "CPUS", Path("/nowhere"))
    return sets


def test_pins_and_restores(affinity: list[set[int]]):
    with pinned(2):
        assert affinity[0] == {0, 1}
    assert affinity[0] == {0, 1, 2, 3}


def test_restores_after_a_failure(affinity: list[set[int]]):
    with pytest.raises(ZeroDivisionError), pinned(1):
        _ = 1 / 0
    assert affinity[0] == {0, 1, 2, 3}


def test_more_threads_than_cores(affinity: list[set[int]]):
    with pinned(64):
        assert affinity[0] == {0, 1, 2, 3}


def test_two_threads_get_two_cores(
    affinity: list[set[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for cpu, siblings in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(measure, "CPUS", tmp_path)
    with pinned(2):
        assert affinity[0] == {0, 2}
    with pinned(3):
        assert affinity[0] == {0, 1, 2}


def test_elsewhere_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pinned(1):
        pass


def test_processors_of_one_name_are_told_apart() -> None:
    core = "processor\t: {}\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2 {}\n"
    both = [core.format(i, "avx512f avx512_vnni") for i in range(2)]
    assert describe_cpu("\n".join(both)) == "AMD EPYC, 2 cores, avx512_vnni"
    assert describe_cpu(core.format(0, "")) == "AMD EPYC, 1 cores, avx2"
    assert describe_cpu("processor\t: 0\nBogoMIPS\t: 50.00\n") == ""  # ARM gives no name
