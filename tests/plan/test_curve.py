"""Curves: times in place of MACs, with the same schedules, and gradients by interpolation."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.errors import OutOfReach, UserError
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, dense_cost, expected_share, plan_cost
from toprune.plan.curve import Curve, Line
from toprune.plan.plan import Plan, Step
from toprune.plan.schedule import geometric, largest_reduction, repair

MINILM = Sizes(layers=6, width=384, heads=12, inner=1536)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128)


def curve_of(**parts: list[float]) -> Curve:
    """A curve of straight lines, but for the given parts."""
    slopes = {"entry": 0.01, "attend": 0.03, "feed": 0.05, "head": 0.02, "step": 0.002}
    return Curve(
        counts=TOKENS,
        milliseconds={
            name: tuple(parts.get(name, [0.1 + slope * t for t in TOKENS]))
            for name, slope in slopes.items()
        },
        shape={"family": "bert", "layers": 6, "width": 384},
        score="probe",
        restore="none",
        threads=1,
        precision="fp32",
        environment={"machine": "a machine"},
    )


def measured(curve: Curve, steps: int) -> dict[str, list[float]]:
    """What a clock sees of a machine that has exactly this curve."""
    ms, layers = {k: np.array(v) for k, v in curve.milliseconds.items()}, curve.layers
    shallow = ms["entry"] + ms["head"]
    dense = shallow + (layers - 1) * (ms["attend"] + ms["feed"])
    times = {
        "shallow": shallow,
        "dense": dense,
        "steps": dense + steps * ms["step"],
        "feed": layers * ms["feed"],
    }
    return {name: values.tolist() for name, values in times.items()}


def test_a_plan_by_hand() -> None:
    curve = curve_of()
    plan = Plan("bert", 6, 384, "probe", (Step(1, Fraction(1, 4)),), probe=(0.0,) * 384)
    entry, whole = 0.1 + 0.01 * 64, (0.1 + 0.03 * 64) + (0.1 + 0.05 * 64)
    half = (0.1 + 0.03 * 64) + (0.1 + 0.05 * 16) + (0.1 + 0.002 * 64)  # the step is in this layer
    rest, head = 3 * (0.2 + 0.08 * 16), 0.1 + 0.02 * 16
    lengths = Lengths.of([64])
    assert plan_cost(curve, plan, lengths) == pytest.approx(entry + whole + half + rest + head)
    dense = entry + 5 * whole + 0.1 + 0.02 * 64
    assert dense_cost(curve, lengths, "none") == pytest.approx(dense)
    after = replace(plan, restore="last")  # tokens leave after the FFN
    assert plan_cost(curve, after, lengths) - plan_cost(curve, plan, lengths) == pytest.approx(
        0.05 * 48
    )


@given(st.lists(st.floats(0, 5), min_size=8, max_size=8), st.floats(0, 200))
def test_a_line_is_interpolation(rises: list[float], t: float) -> None:
    """Scalars, arrays and tensors agree with numpy's interpolation, and with its slope."""
    values = np.cumsum(rises)
    line, inside = Line.of(TOKENS, values.tolist()), min(t, 128.0)
    expected = float(np.interp(inside, [0, *TOKENS], [0, *values]))
    tensor = torch.tensor(inside, dtype=torch.float64, requires_grad=True)
    results = (line(inside), line(np.array([inside]))[0], float(line(tensor).detach()))
    assert results == pytest.approx((expected,) * 3)
    line(tensor).backward()
    ahead = float(line(inside + 1e-6) - line(inside)) / 1e-6
    assert float(tensor.grad or 0) == pytest.approx(ahead, abs=1e-4)
    assert line(0) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(8, 128), st.floats(1.3, 4), st.integers(0, 3))
def test_schedules_meet_a_time(n: int, times: float, first: int) -> None:
    """Whatever is asked in milliseconds, the plan takes it on the curve, or it is out of reach."""
    curve, lengths = curve_of(), Lengths.of([n])
    dense = dense_cost(curve, lengths, "none")
    budget = Budget(f"{dense / times:.6f}ms").against(dense)
    probe = (0.0,) * 384
    most = largest_reduction(curve, lengths, first, 2, "none", "probe")
    try:
        plan = geometric(
            MINILM,
            lengths,
            budget,
            family="bert",
            first=first,
            score="probe",
            probe=probe,
            cost=curve,
        )
    except OutOfReach:
        assert most < times * 1.2  # its steps in every layer cost more than the one of `most`
        return
    token = 5 * 0.08  # in every layer
    assert plan_cost(curve, plan, lengths) == pytest.approx(dense / times, rel=0.01, abs=token)


def test_repair_meets_a_time_closely() -> None:
    curve, lengths = curve_of(), Lengths.of([128])
    dense = dense_cost(curve, lengths, "none")
    budget = Budget("20ms").against(dense)
    steps = tuple(Step(i, Fraction(9 - i, 10)) for i in range(4))
    plan = Plan("bert", 6, 384, "received", steps)
    met = repair(curve, plan, lengths, budget)
    assert plan_cost(curve, met, lengths) == pytest.approx(20, rel=0.01)
    with pytest.raises(OutOfReach, match=r"this plan's layers reach \d+\.\d\d ms at least"):
        repair(curve, plan, lengths, Budget("5ms").against(dense))


def test_the_share_has_gradients() -> None:
    """The constraint's gradient is the curve's slope: finite differences agree."""
    curve, lengths = curve_of(), Lengths.of([100])
    ratios = torch.tensor([0.93, 0.7, 0.51, 0.33, 0.2], dtype=torch.float64, requires_grad=True)
    share: Any = expected_share(curve, list(ratios.unbind()), lengths)
    share.backward()
    numbers = ratios.detach().tolist()
    assert ratios.grad is not None
    for i in range(5):
        moved = [r + 1e-6 * (i == j) for j, r in enumerate(numbers)]
        slope = (expected_share(curve, moved, lengths) - share.item()) / 1e-6
        assert ratios.grad[i].item() == pytest.approx(slope, rel=1e-4)
    assert expected_share(curve, [1.0] * 5, lengths) == pytest.approx(1)


@pytest.mark.parametrize("restore", ["none", "last", "zero"])
def test_parts_are_found_in_whole_files(restore: Any) -> None:
    """Times of whole files, taken apart, add up to those of the files again."""
    whole = [0.2 + 0.08 * t for t in TOKENS]
    true = curve_of() if restore == "none" else curve_of(head=whole)
    fields: dict[str, Any] = {
        name: getattr(true, name) for name in ("score", "threads", "precision", "environment")
    }
    times = measured(true, steps=5)
    found = Curve.of(TOKENS, times, MINILM, family="bert", steps=5, restore=restore, **fields)
    for i, t in enumerate(TOKENS):
        total = found.total([t] * 6, [0] * 6, examples=1, restore=restore)
        assert total == pytest.approx(times["dense"][i])
        assert found.ranking("probe", [t] * 5) == pytest.approx(times["steps"][i] - total)
    assert found.milliseconds["feed"] == pytest.approx(true.milliseconds["feed"])
    assert found.milliseconds["attend"] == pytest.approx(true.milliseconds["attend"])


def test_noise_never_makes_more_tokens_faster() -> None:
    rng = np.random.default_rng(0)
    times = {
        name: (np.array(values) * rng.uniform(0.7, 1.3, len(values))).tolist()
        for name, values in measured(curve_of(), 5).items()
    }
    curve = Curve.of(
        TOKENS,
        times,
        MINILM,
        family="bert",
        steps=5,
        restore="none",
        score="probe",
        threads=1,
        precision="fp32",
        environment={},
    )
    for values in curve.milliseconds.values():
        assert (np.diff(values) >= 0).all()


def test_a_file_and_back(tmp_path: Path) -> None:
    curve = curve_of()
    curve.save(tmp_path / "curve.json")
    assert Curve.load(tmp_path / "curve.json") == curve


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "counts that fall": ({"counts": [2, 1]}, "rising"),
    "words": ({"counts": ["a"]}, "numbers"),
    "no times": ({"milliseconds": {}}, "must have"),
    "a time too few": (
        {"milliseconds": {name: [1.0] for name in curve_of().milliseconds}},
        "one time for each",
    ),
    "another schema": ({"schema": 9}, "schema 9"),
    "no shape": ({"shape": {}}, "layers"),
    "another field": ({"more": 1}, "unknown fields"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(name: str) -> None:
    change, message = BROKEN[name]
    with pytest.raises(UserError, match=message):
        Curve.from_json(json.dumps(curve_of().to_json() | change))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("machine", "another machine"),
        ("threads", 2),
        ("precision", "int8"),
        ("score", "received"),
        ("model", {"family": "bert", "layers": 12, "width": 768}),
    ],
)
def test_a_curve_of_something_else_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"of another {name} .*toprune profile"):
        curve_of().check({name: value}, longest=64)


def test_a_curve_must_be_long_enough() -> None:
    curve_of().check({"threads": 1}, longest=128)
    with pytest.raises(UserError, match="ends at 128 tokens, the budget is for 129"):
        curve_of().check({"threads": 1}, longest=129)
