"""The plan: exact counts, strict JSON, one clear line for every mistake."""

import json
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.errors import UserError
from toprune.plan.plan import Plan, Score, Step, held_tokens

GOLDEN = """\
{
  "schema": 1,
  "family": "bert",
  "n_layers": 4,
  "width": 3,
  "score": "probe",
  "steps": [{"layer": 0, "keep": "37/50"}, {"layer": 2, "keep": "1/3"}],
  "probe": [0.1, -2.0, 1e-07],
  "protect": [101, 102],
  "protect_until": 102,
  "min_tokens": 3,
  "restore": "last",
  "provenance": {"method": "top", "seed": 7}
}
"""
GOLDEN_PLAN = Plan(
    family="bert",
    n_layers=4,
    width=3,
    score="probe",
    steps=(Step(0, Fraction(37, 50)), Step(2, Fraction(1, 3))),
    probe=(0.1, -2.0, 1e-7),
    protect=(101, 102),
    protect_until=102,
    min_tokens=3,
    restore="last",
    provenance={"method": "top", "seed": 7},
)
PLAIN = Plan("bert", 4, 3, "received", (Step(0, Fraction(1, 2)),))

ratios = st.fractions(min_value=Fraction(1, 10_000), max_value=1, max_denominator=10_000)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    n_layers = draw(st.integers(1, 24))
    possible = range(n_layers - 1)
    layers = sorted(draw(st.sets(st.sampled_from(possible)))) if possible else []
    keeps = sorted((draw(ratios) for _ in layers), reverse=True)
    width = draw(st.integers(1, 8))
    score: Score = draw(st.sampled_from(get_args(Score)))
    numbers = st.floats(-1e30, 1e30)
    many = {"probe": width, "probes": width * len(layers)}.get(score)
    probe = None if many is None else draw(st.lists(numbers, min_size=many, max_size=many))
    return Plan(
        family=draw(st.text(min_size=1)),
        n_layers=n_layers,
        width=width,
        score=score,
        steps=tuple(map(Step, layers, keeps)),
        probe=None if probe is None else tuple(probe),
        predictor=draw(st.integers(1, 4096)) if score == "predicted" else None,
        protect=tuple(draw(st.lists(st.integers(0, 2**31)))),
        protect_until=draw(st.none() | st.integers(0, 2**31)),
        min_tokens=draw(st.integers(1, 5)),
        restore=draw(st.sampled_from(["none", "last", "zero"])),
        provenance=draw(st.dictionaries(st.text(), st.integers() | st.text() | st.none())),
    )


def test_golden_text() -> None:
    assert GOLDEN_PLAN.to_json() == GOLDEN
    assert Plan.from_json(GOLDEN) == GOLDEN_PLAN


def test_optional_fields_have_defaults() -> None:
    required = ("schema", "family", "n_layers", "width", "score", "steps")
    whole = json.loads(PLAIN.to_json())
    assert Plan.from_json(json.dumps({key: whole[key] for key in required})) == PLAIN
    assert PLAIN.protect_until is None


@settings(max_examples=50, deadline=None)
@given(plans())
def test_json_round_trip(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    assert hash(Plan.from_json(plan.to_json())) == hash(plan)


@settings(deadline=None)
@given(plans(), st.integers(1, 600), st.integers(0, 60))
def test_lengths_are_the_smallest_integers_that_satisfy_the_steps(
    plan: Plan, n: int, held: int
) -> None:
    entering = plan.lengths(n, held)
    assert held or entering == plan.lengths(n)
    assert len(entering) == plan.n_layers
    assert entering[0] == n
    assert entering == sorted(entering, reverse=True)
    share = {step.layer: step.keep for step in plan.steps}
    alive = n
    for layer, entered in enumerate(entering):
        assert entered == alive
        if layer in share:  # brute force: count up until there are enough
            least = min(n, max(plan.min_tokens, held))
            enough = (k for k in range(1, n + 1) if k >= least)
            alive = next(k for k in enough if k >= share[layer] * n)


@pytest.mark.parametrize(
    ("keep", "n", "kept"),
    [
        (Fraction(37, 50), 100, 74),  # exact, where ceil(0.74 * 100) in floats gives 74 by luck
        (Fraction(7, 25), 25, 7),  # ceil(0.28 * 25) in floats gives 8
        (Fraction(1, 2), 5, 3),
        (Fraction(1, 1000), 512, 2),  # min_tokens
        (Fraction(1, 1000), 1, 1),  # never more than there are
        (Fraction(1), 9, 9),
    ],
)
def test_keep(keep: Fraction, n: int, kept: int) -> None:
    assert PLAIN.keep(Step(0, keep), n) == kept


@pytest.mark.parametrize(("held", "kept"), [(0, 25), (25, 25), (26, 26), (50, 50), (51, 50)])
def test_keep_is_at_least_what_is_held(held: int, kept: int) -> None:
    assert PLAIN.keep(Step(0, Fraction(1, 2)), 50, held) == kept


@pytest.mark.parametrize(
    ("ids", "protect", "until", "held"),
    [
        ([1, 5, 6, 2, 7, 2], (), None, 1),  # the first token, always
        ([1, 5, 6, 2, 7, 2], (2,), None, 3),
        ([1, 5, 1, 2, 7, 2], (1,), None, 2),  # nothing counts twice
        ([1, 5, 6, 2, 7, 2], (), 2, 4),  # up to the first separator
        ([1, 5, 6, 2, 7, 2], (5, 7), 2, 5),
        ([1, 5, 6, 7], (7,), 2, 4),  # no separator: everything
        ([2, 5, 6, 7], (), 2, 1),
        ([1], (1,), 2, 1),
        (np.array([1, 5, 2, 7, 2]), (2,), 2, 4),
    ],
)
def test_held_tokens(ids: Any, protect: tuple[int, ...], until: int | None, held: int) -> None:
    assert held_tokens(ids, protect, until) == held


def test_no_steps_keep_everything() -> None:
    assert Plan("bert", 3, 8, "probe", ()).lengths(7) == [7, 7, 7]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": 2}, "upgrade"),
        ({"family": ""}, "family"),
        ({"n_layers": 0, "steps": ()}, "n_layers"),
        ({"width": 0}, "width"),
        ({"min_tokens": 0}, "min_tokens"),
        ({"score": "luck"}, "received, probe, probes, accumulated, random"),
        ({"restore": "first"}, "none, last or zero"),
        ({"protect": (-1,)}, "token ids"),
        ({"protect_until": -1}, "token id, not -1"),
        ({"steps": (Step(3, Fraction(1, 2)),)}, "layers 0 to 2"),
        ({"steps": (Step(-1, Fraction(1, 2)),)}, "layers 0 to 2"),
        ({"steps": (Step(1, Fraction(1, 2)), Step(0, Fraction(1, 2)))}, "must increase"),
        ({"steps": (Step(1, Fraction(1, 2)), Step(1, Fraction(1, 2)))}, "must increase"),
        ({"steps": (Step(0, Fraction(1, 3)), Step(1, Fraction(1, 2)))}, "must not grow: 1/3, 1/2"),
        ({"score": "probe"}, "needs a probe"),
        ({"probe": (1.0, 2.0, 3.0)}, "score is 'received'"),
        ({"score": "probe", "probe": (1.0, 2.0)}, "2 numbers, the model is 3 wide"),
        ({"score": "probes"}, "score probes needs a probe"),
        ({"score": "probes", "probe": (1.0,) * 6}, "6 numbers, the model is 3 wide"),
        (
            {
                "score": "probes",
                "probe": (1.0,) * 3,
                "steps": (Step(0, Fraction(1, 2)), Step(1, Fraction(1, 3))),
            },
            "3 numbers, the model is 3 wide and has 2 steps",
        ),
        ({"score": "probe", "probe": (1.0, float("nan"), 0.0)}, "not finite"),
        ({"score": "probe", "probe": (1.0, float("-inf"), 0.0)}, "not finite"),
        ({"provenance": {"when": object()}}, "plain JSON"),
        ({"provenance": {"loss": float("nan")}}, "plain JSON"),
    ],
)
def test_bad_plans_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        replace(PLAIN, **changes)
    _assert_one_line(caught.value, says.replace("grow:", "grow over the layers:"))


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        (Fraction(0), "above 0"),
        (Fraction(-1, 2), "above 0"),
        (Fraction(11, 10), "at most 1"),
        (Fraction(1, 10_001), "denominator"),
        (0.5, "Fraction(37, 50)"),
    ],
)
def test_bad_steps_are_refused(keep: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        Step(0, keep)
    _assert_one_line(caught.value, says)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("schema", 2, "schema 2"),
        ("schema", True, "schema True"),
        ("schema", None, "schema None"),
        ("family", 7, "family must be str"),
        ("n_layers", "4", "n_layers must be int"),
        ("n_layers", 4.0, "n_layers must be int"),
        ("width", True, "width must be int"),
        ("steps", {}, "steps must be list"),
        ("steps", [[0, "1/2"]], "a step must be a JSON object"),
        ("steps", [{"layer": 0}], "lacks the fields ['keep']"),
        ("steps", [{"layer": 0, "keep": "1/2", "why": 1}], "unknown fields ['why']"),
        ("steps", [{"layer": 0.0, "keep": "1/2"}], "layer must be int"),
        ("steps", [{"layer": 0, "keep": 0.5}], "keep must be str"),
        ("steps", [{"layer": 0, "keep": "half"}], 'like "37/50"'),
        ("steps", [{"layer": 0, "keep": "1/0"}], 'like "37/50"'),
        ("steps", [{"layer": 0, "keep": "1e-999999999"}], 'like "37/50"'),
        ("protect_until", "[SEP]", "protect_until must be int or NoneType"),
        ("protect_until", True, "protect_until must be int or NoneType"),
        ("protect_until", -3, "token id"),
        ("probe", "1,2,3", "probe must be list or NoneType"),
        ("probe", [1.0, None, 2.0], "probe must hold numbers"),
        ("probe", [True, 1.0, 2.0], "probe must hold numbers"),
        ("probe", [10**400, 1, 2], "not finite"),
        ("protect", [1.5], "protect must hold numbers"),
        ("min_tokens", None, "min_tokens must be int"),
        ("restore", 1, "restore must be str"),
        ("provenance", [], "provenance must be dict"),
        ("colour", "red", "unknown fields ['colour']"),
    ],
)
def test_bad_json_fields_are_refused(key: str, value: Any, says: str) -> None:
    data = json.loads(GOLDEN) | {key: value}
    with pytest.raises(UserError) as caught:
        Plan.from_json(json.dumps(data))
    _assert_one_line(caught.value, says)


def test_a_newer_schema_is_named_before_its_unknown_fields() -> None:
    with pytest.raises(UserError, match="schema 2 is not known"):
        Plan.from_json('{"schema": 2, "stages": []}')


@pytest.mark.parametrize("key", ["schema", "family", "n_layers", "width", "score", "steps"])
def test_missing_fields_are_refused(key: str) -> None:
    data = json.loads(GOLDEN)
    del data[key]
    with pytest.raises(UserError, match=key):
        Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '"plan"'])
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^plan: "):
        Plan.from_json(text)


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    GOLDEN_PLAN.save(path)
    assert path.read_bytes() == GOLDEN.encode()
    assert Plan.load(str(path)) == GOLDEN_PLAN
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    PLAIN.save(path)

    def write_half(draft: Path, text: str, **_: Any) -> int:
        draft.write_bytes(text.encode()[:20])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(OSError, match="disk full"):
        GOLDEN_PLAN.save(path)
    assert Plan.load(path) == PLAIN
    assert list(tmp_path.iterdir()) == [path]


def test_load_names_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.json"):
        Plan.load(tmp_path / "nowhere.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"binary\.json"):
        Plan.load(tmp_path / "binary.json")


def test_a_plan_does_not_change_under_its_owner() -> None:
    provenance = {"runs": [1]}
    plan = replace(PLAIN, provenance=provenance)
    provenance["runs"].append(2)
    assert plan.provenance == {"runs": [1]}
    with pytest.raises(FrozenInstanceError):
        plan.width = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_numpy_probes_can_be_saved() -> None:
    probe: Any = tuple(np.array([0.5, -1.0, 2.0], dtype=np.float32))
    plan = replace(PLAIN, score="probe", probe=probe)
    assert Plan.from_json(plan.to_json()).probe == (0.5, -1.0, 2.0)


@pytest.mark.parametrize("other", [("roberta", 4, 3), ("bert", 6, 3), ("bert", 4, 384)])
def test_another_model_is_refused(other: tuple[str, int, int]) -> None:
    PLAIN.check_model("bert", 4, 3)
    with pytest.raises(UserError, match="plan is for another model") as caught:
        PLAIN.check_model(*other)
    _assert_one_line(caught.value, "{} with {} layers of width {}".format(*other))


def test_summary_counts_layers_from_one() -> None:
    text = GOLDEN_PLAN.summary()
    assert "layer  1 keeps  74.0%" in text
    assert "layer  3 keeps  33.3%" in text
    assert "first text stays: all up to the first token 102" in text
    assert "first text" not in PLAIN.summary()
    assert "every token stays" in replace(PLAIN, steps=()).summary()


def _assert_one_line(error: UserError, says: str) -> None:
    assert says in str(error)
    assert "\n" not in str(error)
