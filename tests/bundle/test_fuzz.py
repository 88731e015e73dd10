"""A few hundred spoiled bundles, always the same: one line or a finite answer, nothing touched
outside. `benchmarks/fuzz.py` runs ten thousand."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from support.fuzz_case import Watch, make_victim, outcome, run_case
from support.fuzzing import KINDS
from toprune.cli.console import hush
from toprune.errors import LONGEST, UserError

WATCH = Watch()  # an audit hook is for good
CHEAP, DEAR = 20, 5  # cases of a kind that the runtime alone reads, and of one that torch reads


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hush(debug=False)
    return make_victim(tmp_path_factory.mktemp("fuzz") / "victim")


@pytest.mark.parametrize("kind", KINDS)
def test_spoiled_bundles(victim: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toprune.tasks.intervals.DRAWS", 20)
    for number in range(DEAR if KINDS[kind][1] else CHEAP):
        rng = np.random.default_rng((1, number))
        for case in run_case(victim, kind, rng, WATCH):
            assert case.outcome in ("worked", "refused"), (number, case)


def test_the_watch_hears_what_is_opened(tmp_path: Path):
    """Else the test above could not fail."""
    (tmp_path / "inside").mkdir()
    outside = tmp_path / "outside"
    with WATCH.looking(tmp_path / "inside") as seen:
        outside.write_text("x")
        list(tmp_path.iterdir())
        (tmp_path / "inside" / "own").write_text("x")
    assert [event.split()[0] for event in seen] == ["open", "os.listdir"]


def test_what_an_outcome_is():
    def panics() -> None:
        raise type("PanicException", (BaseException,), {})("of Rust")

    def refuses() -> None:
        raise UserError("no; do that")

    assert outcome(refuses) == ("refused", "no; do that")
    assert outcome(panics) == ("traceback", "PanicException: of Rust")
    assert outcome(lambda: [{"x": 1.0}])[0] == "worked"
    assert outcome(lambda: [{"x": (float("nan"),)}])[0] == "not finite"


def test_one_line_whatever_is_quoted():
    error = UserError("a\nb\r\n\tc \x1b[31m \u202e \ud800 d")
    assert str(error) == "a b c [31m d"
    long = str(UserError("what is wrong: " + "x" * 10**7 + "; do that"))
    assert long.startswith("what is wrong: ")
    assert long.endswith("; do that")
    assert len(long) <= LONGEST + len(" ... ")
    assert pickle.loads(pickle.dumps(error)).args == error.args


def test_a_report_of_half_a_gigabyte_is_not_read(victim: Path, tmp_path: Path):
    from toprune.bundle.bundle import read_report

    with (tmp_path / "report.json").open("wb") as file:
        file.truncate(500 << 20)  # sparse: it costs nothing
    with pytest.raises(UserError, match="larger than 16 MB"):
        read_report(tmp_path)


def test_a_plan_of_a_million_steps(tmp_path: Path):
    from toprune.plan.plan import Plan

    plan = json.loads(Plan("bert", 4, 8, "received", ()).to_json())
    plan["steps"] = [{"layer": i, "keep": "1/2"} for i in range(10**5)]
    for layers in (4, 10**9):
        with pytest.raises(UserError) as caught:
            Plan.from_json(json.dumps(plan | {"n_layers": layers}))
        assert len(str(caught.value)) < 2 * LONGEST
