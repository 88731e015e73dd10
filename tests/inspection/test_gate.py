"""The gate on models whose answers are known word by word: bundles that were made worse on purpose
fail with the right line, and good ones pass."""

import json
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from support.commands import call, refused, save_model
from support.executions import TASKS, as_rows, make_examples
from support.models import SPECIAL, WORDS, make_model, make_tokenizer
from support.refusals import one_line_error
from support.tables import write_rows
from support.toy_bundle import LABELS, make_bundle
from toprune import Bundle, Data, GateResult, Plan, gate
from toprune.export.export import export
from toprune.inspection.gate.answers import open_file, side_by_side, text_numbers, tokens_of
from toprune.inspection.gate.checks import Check, bands, check_all, check_group
from toprune.inspection.gate.gate import FILLED
from toprune.plan.plan import Step
from toprune.run.manifest import OPENVINO_INT8, PLACE
from toprune.tasks.intervals import cautious_difference, level_of

IDS = {word: i for i, word in enumerate(SPECIAL + WORDS)}
SIGNS = ("w0", "w1", "w2")  # of the three classes
LONG = "w50"  # in every text of more than fifteen words
FAMILY = "roberta"  # without segments, which would add to the answers


def table(**words: tuple[float, float, float]) -> np.ndarray:
    """Logits of each word: its class for a sign, nothing for others, but for `words`."""
    logits = np.zeros((len(IDS), 3), np.float32)
    for i, sign in enumerate(SIGNS):
        logits[IDS[sign], i] = 1
    for word, row in words.items():
        logits[IDS[{"unknown": "[UNK]"}.get(word, word)]] = row
    return logits


def rows(number: int, shares: tuple[float, ...] = (0.4, 0.4, 0.2)) -> list[dict[str, Any]]:
    """Texts with one sign each; every twentieth of the first two classes has a wrong label."""
    rng = np.random.default_rng(0)
    made: list[dict[str, Any]] = []
    for i in range(number):
        sign = int(np.searchsorted(np.cumsum(shares), (i + 0.5) / number))
        words = [f"w{j}" for j in rng.integers(10, 50, rng.integers(2, 18))]
        words[rng.integers(len(words))] = SIGNS[sign]
        if len(words) > 15:
            words.append(LONG)
        label = 1 - sign if i % 20 == 7 and sign < 2 else sign
        made.append({"text": " ".join(words), "label": LABELS[label]})
    return made


DATA = rows(1000)


def bundle(folder: Path, fp32: np.ndarray | None = None, int8: np.ndarray | None = None) -> Path:
    good = 2 * table()  # other logits, the same answers
    int8 = (good if fp32 is None else fp32) if int8 is None else int8
    return make_bundle(
        folder, family=FAMILY, word_table=good if fp32 is None else fp32, int8_table=int8
    )


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("dense"), family=FAMILY, word_table=table())


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle(tmp_path_factory.mktemp("good"))


def failed(result: GateResult) -> list[tuple[str, str, str]]:
    """(file, what, which texts) of each check that does not pass."""
    return [(one.file, one.name, one.group) for one in result.checks if one.status != "pass"]


# -- good and bad bundles --------------------------------------------------------------------------


def test_a_good_bundle_passes(good: Path, dense: Path):
    limits: Any = {"max_loss": 0.5, "min_agreement": "98%", "keep": 0.99}
    result = gate(good, DATA, dense=dense, **limits)
    assert result.passed
    assert failed(result) == []
    names = {(one.file, one.name, one.group) for one in result.checks}
    for file in ("fp32", "int8"):
        for name in ("loss", "agreement", "keep"):
            assert (file, name, "all texts") in names
        for group in (*(f"class {label}" for label in LABELS), "with filler"):
            assert (file, "loss", group) in names
    lengths = {one.group for one in result.checks if "tokens" in one.group}
    assert len(lengths) == 4
    assert sum(one.n for one in result.checks if one.group in lengths) == 2 * 2 * len(DATA)
    assert result.about["keeps"]["fp32"]["reaches"] == {"99%": True, "99.9%": True}
    assert result.about["metric"] == "accuracy"
    assert result.about["keeps"]["int8"]["dense"] == pytest.approx(96)


def test_a_forgotten_class_is_named(dense: Path, tmp_path: Path):
    """Ten texts of a thousand: the mean hardly shows it."""
    worse = bundle(tmp_path / "worse", table(w2=(1, 0, 0)))
    result = gate(worse, rows(1000, (0.5, 0.49, 0.01)), dense=dense, max_loss=3)
    assert {one[:2] for one in failed(result)} == {("fp32", "loss"), ("int8", "loss")}
    assert {one[2] for one in failed(result)} == {"class maybe"}
    assert result.about["not_checked"] == []
    line = next(one.line for one in result.checks if one.status == "fail")
    assert line.startswith("fp32, class maybe: loss ")
    assert line.endswith("at most 9 points")


def test_broken_long_texts_are_named(dense: Path, tmp_path: Path):
    worse = bundle(tmp_path / "worse", table(**{LONG: (0, 0, 2)}))
    result = gate(worse, DATA, dense=dense, max_loss=15, group_factor=2, precision="fp32")
    ranges = {one.group for one in result.checks if "tokens" in one.group}
    longest = max(ranges, key=lambda name: int(name.split()[-2]))
    assert failed(result) == [("fp32", "loss", longest)]
    assert [one.status for one in result.checks if one.group == "all texts"] == ["pass"]


def test_a_broken_int8_file_is_named(dense: Path, tmp_path: Path):
    worse = bundle(tmp_path / "worse", int8=table(w0=(0, 1, 0)))
    result = gate(worse, DATA, dense=dense, max_loss=0.5, min_agreement="98%")
    assert {one[0] for one in failed(result)} == {"int8"}
    assert ("int8", "loss", "all texts") in failed(result)
    assert ("int8", "agreement", "all texts") in failed(result)
    assert ("int8", "loss", "class no") in failed(result)
    only = [one for one in DATA if one["label"] != "maybe"]
    result = gate(worse, only, dense=dense, max_loss=0.6, precision="fp32")
    assert result.passed
    assert result.about["not_checked"] == [
        {"what": "some classes", "why": "the data have none of: maybe"}
    ]


def test_a_broken_file_for_openvino_is_named(dense: Path, tmp_path: Path):
    openvino = pytest.importorskip("openvino")
    folder, worse = bundle(tmp_path / "good"), bundle(tmp_path / "worse", table(w0=(0, 1, 0)))
    graph = openvino.Core().read_model(str(worse / "onnx" / "model.onnx"))
    openvino.save_model(graph, str(folder / OPENVINO_INT8), compress_to_fp16=False)
    path = folder / PLACE
    manifest = json.loads(path.read_text())
    for suffix in (".xml", ".bin"):
        name = Path(OPENVINO_INT8).with_suffix(suffix).as_posix()
        manifest["files"][name] = sha256((folder / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))
    result = gate(folder, DATA, dense=dense, max_loss=0.5)
    assert result.passed
    assert [one["what"] for one in result.about["not_checked"]] == ["the int8 file for OpenVINO"]
    result = gate(folder, DATA, dense=dense, max_loss=0.5, max_ms=1e6, runtime="openvino", rounds=5)
    assert {one[0] for one in failed(result)} == {"int8"}
    assert ("int8", "loss", "class no") in failed(result)
    assert ("int8", "time", "all texts") not in failed(result)


def test_filler_that_hides_the_sign_is_named(dense: Path, tmp_path: Path):
    """The words of the filler are unknown to this model; only the worse one minds."""
    worse = bundle(tmp_path / "worse", table(unknown=(0, 0, 1)))
    result = gate(worse, DATA, dense=dense, max_loss=0.5, min_agreement="98%", precision="fp32")
    names = {one[1:] for one in failed(result)}
    assert names == {("loss", "with filler"), ("agreement", "with filler")}
    known = tmp_path / "filler.txt"
    known.write_text("w20 w21 w22.\nw23 w24 w25.\n".replace(".", ""))
    result = gate(worse, DATA, dense=dense, max_loss=0.5, filler=known)
    assert result.passed
    padded = next(one for one in result.checks if one.group == "with filler")
    assert padded.n == FILLED


@pytest.mark.parametrize(("limit", "passes"), [(15, False), (25, True)])
def test_a_slow_bundle_is_named(good: Path, limit: float, passes: bool):
    """A clock on which every text takes 20 ms. The dense model is not needed."""
    result = gate(good, DATA[:30], max_ms=limit, clock=count(0, 0.02).__next__, rounds=7)
    assert [(one.file, one.name) for one in result.checks] == [("fp32", "time"), ("int8", "time")]
    assert result.passed == passes
    for one in result.checks:
        assert [one.value, one.low, one.high] == pytest.approx([20] * 3)
        assert one.n == 7
    assert {"machine", "threads", "environment"} <= result.to_dict().keys()


def test_too_few_texts_say_how_many_are_needed(good: Path, dense: Path):
    result = gate(good, DATA[::10], dense=dense, max_loss=0.5, min_agreement="98%")
    assert {one[2] for one in failed(result)} == {"all texts"}
    first = next(one for one in result.checks if one.status == "too few")
    assert [one.status for one in result.checks if one.group.startswith("class")] == ["pass"] * 6
    assert (first.n, first.value) == (100, 0)
    assert "100 are too few to tell, about 740 are needed" in first.line
    assert gate(good, DATA[: first.needed], dense=dense, max_loss=0.52).passed


def test_without_labels_the_answers_are_compared(good: Path, dense: Path):
    texts = [{"text": one["text"]} for one in DATA]
    assert gate(good, texts, dense=dense, min_agreement="99%").passed
    with one_line_error("no labels, which --max-loss"):
        gate(good, texts, dense=dense, max_loss=1)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("name", TASKS)
def test_every_task(name: str, tmp_path: Path):
    """The same file against itself: nothing is lost, and every text has the same answer."""
    task, _ = TASKS[name]
    folder = make_bundle(tmp_path / "bundle", task=task, labels=None)
    examples = make_examples(task, 60)
    result = gate(folder, as_rows(task, examples), dense=folder, precision="fp32", **WIDE)
    for one in result.checks:
        assert one.status == "pass", one.line
        assert one.value == pytest.approx(0 if one.name == "loss" else 100)
    groups = {one.group for one in result.checks}
    assert len([group for group in groups if "tokens" in group]) >= 2
    assert ("with filler" in groups) == (task.HAS_LABEL_NAMES and not task.BY_TOKEN)
    assert any("filler" in one["what"] for one in result.about["not_checked"]) == (
        "with filler" not in groups
    )


@pytest.mark.parametrize("name", TASKS)
def test_some_answers_equal_the_answers_to_some(name: str, tmp_path: Path):
    """To take a part of what was read is to read a part."""
    task, _ = TASKS[name]
    model = open_file(make_bundle(tmp_path / "bundle", task=task, labels=None), "fp32", threads=1)
    examples = make_examples(task, 32)
    chosen = np.array([9, 8, 31, *range(16, 24)])  # queries have four documents each
    part, every = model.answer(examples.take(chosen)), model.answer(examples)
    taken = every.take(text_numbers(examples, chosen, task))
    assert [row.text for row in taken.rows] == [row.text for row in part.rows]
    assert taken.tokens.tolist() == part.tokens.tolist()
    for a, b in zip(taken.outputs, part.outputs, strict=True):
        np.testing.assert_allclose(a, b)
    some = examples.take(chosen)
    one, other = (task.statistics(x.outputs, x.rows, some) for x in (taken, part))
    np.testing.assert_allclose(one, other)


def test_documents_of_a_query_stay_in_one_range(tmp_path: Path):
    task, _ = TASKS["rank"]
    model = open_file(make_bundle(tmp_path / "bundle", task=task), "fp32", threads=1)
    examples = make_examples(task, 32)
    tokens = tokens_of(examples, model.answer(examples)).reshape(-1, 4)
    assert (tokens == tokens[:, :1]).all()
    assert len(np.unique(tokens)) > 4


def test_other_windows_are_refused(tmp_path: Path):
    task, _ = TASKS["answer"]
    model = open_file(make_bundle(tmp_path / "bundle", task=task), "fp32", threads=1)
    examples = make_examples(task, 8)
    whole = model.answer(examples)
    shorter = replace(whole, rows=whole.rows[1:], outputs=whole.outputs[1:])
    with one_line_error("--max-length"):
        side_by_side(shorter, whole, examples, None)


WIDE: Any = {"max_loss": 50, "min_agreement": "50%"}


# -- the rules -------------------------------------------------------------------------------------


def figure(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


@pytest.mark.parametrize(
    ("name", "ends", "status"),
    [
        ("loss", (0.1, -0.2, 0.4), "pass"),
        ("loss", (0.1, -0.2, 0.6), "too few"),
        ("loss", (0.6, 0.4, 0.8), "fail"),
        ("agreement", (99, 98.5, 99.5), "pass"),
        ("agreement", (99, 97, 99.5), "too few"),
        ("agreement", (97, 96, 99), "fail"),
        ("time", (9, 8, 10), "pass"),
        ("time", (9, 8, 12), "too few"),
        ("time", (11, 9, 12), "fail"),
    ],
)
def test_the_far_end_must_keep_the_limit(name: str, ends: tuple[float, float, float], status: str):
    limit = {"loss": 0.5, "agreement": 98, "time": 10}[name]
    check = check_all(name, "fp32", limit, figure(*ends), 1000)
    assert check.status == status
    assert (check.needed is not None) == (status == "too few")
    if check.needed is not None:
        assert check.needed > 1000


@pytest.mark.parametrize(
    ("name", "ends", "status"),
    [
        ("loss", (9, -2, 20), "pass"),
        ("loss", (9, 1.6, 20), "fail"),
        ("agreement", (80, 60, 95), "pass"),
        ("agreement", (80, 70, 93), "fail"),
    ],
)
def test_a_group_fails_by_its_near_end(name: str, ends: tuple[float, float, float], status: str):
    limit = {"loss": 1.5, "agreement": 94}[name]
    assert check_group(name, "class a", "int8", limit, figure(*ends), 9).status == status


def test_good_groups_rarely_fail_by_chance():
    """Twenty classes of twenty texts, of which 2 % are lost and 2 % won: 40 good models."""
    rng = np.random.default_rng(0)
    harmed = 0
    for lost, won in rng.binomial(20, 0.02, (40, 2, 20)):
        ends = [
            cautious_difference(int(a), int(b), 20, level=level_of(20))["high"]
            for a, b in zip(lost, np.minimum(won, 20 - lost), strict=True)
        ]
        harmed += any(100 * end < -1.5 for end in ends)
    assert harmed <= 2


def test_ranges_of_lengths():
    tokens = np.array([3, 3, 5, 8, 8, 9, 12, 12, 20, 40])
    ranges = bands(tokens, (0.1, 0.5, 0.9, 1.0))
    assert sorted(i for chosen in ranges.values() for i in chosen) == list(range(10))
    first, *_, last = ranges
    assert first == "up to 3 tokens"
    assert last.endswith("to 40 tokens")
    assert bands(np.full(9, 7), (0.1, 0.5, 0.9, 1.0)) == {}


# -- machines --------------------------------------------------------------------------------------


def test_junit_can_be_parsed():
    checks = (
        Check("loss", "class a<b>\x00&", "fp32", 0.5, 0.1, 0.0, 0.2, 10, "pass"),
        Check("time", "all texts", "int8", 9.0, 11.0, 10.0, 12.0, 20, "fail"),
        Check("agreement", "all texts", "int8", 98.0, 99.0, 97.0, 99.5, 9, "too few", 500),
    )
    about: dict[str, Any] = dict.fromkeys(
        ("bundle", "dense", "task", "metric", "examples", "machine", "threads")
    )
    suites = ElementTree.fromstring(GateResult(checks, about).to_junit())
    (suite,) = suites
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    cases = suite.findall("testcase")
    assert cases[0].get("name") == "loss: class a<b>?&"
    assert [case.find("failure") is None for case in cases] == [True, False, False]
    messages = [failure.get("message") or "" for failure in suite.iter("failure")]
    assert "at most 9 ms" in messages[0]
    assert "about 500 are needed" in messages[1]


def test_the_command(good: Path, dense: Path, tmp_path: Path):
    data = write_rows(tmp_path / "data.jsonl", DATA)
    words = ("gate", good, "--data", data, "--dense", dense, "--junit", tmp_path / "x.xml")
    done = call(*words, "--max-loss", "0.5", "--min-agreement", "98%", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["passed"]
    suites = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert suites.get("tests") == str(len(report["checks"]))
    worse = bundle(tmp_path / "worse", table(w0=(0, 1, 0)))
    done = call("gate", worse, *words[2:], "--max-loss", "0.5")
    assert done.exit_code == 1
    assert "FAIL" in done.stdout
    assert "fp32, class no: loss" in " ".join(done.stdout.split())
    assert ElementTree.parse(tmp_path / "x.xml").getroot().get("failures") != "0"


BAD: dict[str, tuple[str, str]] = {
    "no limit": ("", "--max-loss"),
    "no loss at all": ("--max-loss 0", "above 0"),
    "a share": ("--min-agreement 98", "like 98%"),
    "all of it": ("--keep 100%", "like 98%"),
    "a factor": ("--max-loss 1 --group-factor 0.5", "1 or more"),
    "a metric": ("--max-loss 1 --metric bleu", "accuracy, f1, matthews"),
    "no dense": ("--max-loss 1", "give --dense"),
    "a place": ("--max-loss 1 --junit {1}/none/x.xml", "create it first"),
    "filler": ("--max-loss 1 --filler {1}/none.txt", "none.txt"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, good: Path, dense: Path, tmp_path: Path):
    words, names = BAD[case]
    data = write_rows(tmp_path / "data.jsonl", DATA[:40])
    against = () if case == "no dense" else ("--dense", dense)
    words = words.format(good, tmp_path).split()
    refused(call("gate", good, "--data", data, *against, *words), names)


def test_another_task_or_other_classes_are_refused(good: Path, tmp_path: Path):
    other = make_bundle(tmp_path / "other", labels=("a", "b", "c"))
    with one_line_error("other classes"):
        gate(good, DATA[:40], dense=other, max_loss=1)


@pytest.mark.usefixtures("rough_parity", "few_draws")
def test_torch_and_the_exported_file_are_the_same_dense_model(tmp_path: Path):
    texts = [{"text": one["text"], "label": i % 2} for i, one in enumerate(DATA[:60])]
    plan = Plan("bert", 4, 32, "received", (Step(0, Fraction(1, 2)),))
    for name, used in (("dense", None), ("small", plan)):
        Bundle(make_model(), make_tokenizer(), used, {"max_length": 24}).save(tmp_path / name)
    export(tmp_path / "small")
    how: Any = {"max_loss": 50, "min_agreement": "50%", "dense": tmp_path / "dense"}
    by_torch = gate(tmp_path / "small", texts, **how)
    with one_line_error("--max-length"):
        export(tmp_path / "dense")
        gate(tmp_path / "small", Data(texts, max_length=20), **how)
    by_onnx = gate(tmp_path / "small", texts, **how)
    assert by_onnx.checks == by_torch.checks
    assert by_torch.about["max_length"] == {"dense": 24, "pruned": 24}


def test_a_model_with_a_plan_must_be_exported_to_be_compared_with(good: Path, tmp_path: Path):
    save_model(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with one_line_error("toprune export"):
        gate(good, DATA[:40], dense=tmp_path, max_loss=1)
