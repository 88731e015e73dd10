"""The ONNX file is the model: every family, score and head, any batch, any length."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForTokenClassification

from support.models import CONFIGS, FAMILIES, make_model, make_tokenizer
from toprune.bundle.bundle import Bundle
from toprune.errors import UserError
from toprune.export import parity
from toprune.export.export import export
from toprune.export.graph import PLAN, input_names, write_onnx
from toprune.export.parity import check, draw, protected_ids, shapes
from toprune.export.quantize import quantize
from toprune.plan.plan import Plan, Score, Step
from toprune.pruning.attach import attach, detach
from toprune.run.engines import OnnxRuntime, OpenVino
from toprune.run.manifest import Manifest
from toprune.run.runner import Runner
from toprune.training.job import dense_plan

pytestmark = pytest.mark.usefixtures("rough_parity")

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "protect": {"protect": (5, 9)},
    "pair": {"protect": (5,), "protect_until": 2},
    "restore": {"restore": "last"},
    "restored pair": {"restore": "last", "protect_until": 2},
    "zeros": {"restore": "zero"},
}
STEPS = (Step(0, Fraction(3, 5)), Step(1, Fraction(2, 5)), Step(2, Fraction(1, 5)))
LIMIT = 64


def make_plan(family: str, score: Score, **fields: Any) -> Plan:
    many = {"probe": 1, "probes": len(STEPS)}.get(score)
    probe = None if many is None else np.random.default_rng(1).normal(size=32 * many)
    fields = {"probe": None if probe is None else tuple(probe.tolist())} | fields
    return Plan(family, 4, 32, score, STEPS, **fields)


def token_model(family: str) -> Any:
    torch.manual_seed(0)
    config = CONFIGS[family](vocab_size=len(make_tokenizer()), num_labels=3, pad_token_id=1)
    return AutoModelForTokenClassification.from_config(config).eval()


@cache
def exported(family: str, score: Score, kind: str) -> tuple[Any, Plan, Any]:
    """(model, plan, its file running); made once, for many batches."""
    plan = make_plan(family, score, **KINDS[kind])
    model = token_model(family) if plan.restore != "none" else make_model(family)
    path = Path(mkdtemp(prefix="toprune-test-")) / "model.onnx"
    write_onnx(model, plan, path)
    return model, plan, Running(path)


class Running:
    """A file in ONNX Runtime; token logits (B, S, C) too, which the Runner does not serve yet."""

    def __init__(self, path: Path):
        self.path = path
        self.session = onnxruntime.InferenceSession(str(path))

    def run(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(self.session.run(["logits"], feeds)[0])


@pytest.mark.parametrize("kind", ["plain", "protect", "pair"])
@pytest.mark.parametrize("score", ["received", "probe", "probes"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_file_gives_the_logits_of_torch(
    family: str, score: Score, kind: str, data: st.DataObject
) -> None:
    model, plan, engine = exported(family, score, kind)
    lengths = data.draw(st.lists(st.integers(1, LIMIT), min_size=1, max_size=5))
    padded = data.draw(st.integers(max(lengths), LIMIT))
    seed = data.draw(st.integers(0, 1000))
    result = check(model, plan, engine.run, LIMIT, seed=seed, cases=[(lengths, padded)])
    assert result.worst <= 1


def test_a_case_that_is_all_rounding_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case is drawn again if torch itself is unsure; if it is not, the file is wrong."""
    model, plan, engine = exported("bert", "probe", "plain")
    wrong = iter([1.0])

    def once(feeds: dict[str, np.ndarray]) -> np.ndarray:
        return engine.run(feeds) + next(wrong, 0)

    with pytest.raises(UserError, match="differs from torch by"):
        check(model, plan, once, LIMIT, cases=[([9], 9)])
    monkeypatch.setattr(parity, "_float64_outputs", lambda *_: np.full((1, 2), 7.0))
    wrong = iter([1.0])
    assert check(model, plan, once, LIMIT, cases=[([9], 9)]).redrawn == 1
    wrong = iter([1.0] * parity.DRAWS)
    with pytest.raises(UserError, match="differs from torch by"):
        check(model, plan, once, LIMIT, cases=[([9], 9)])


@pytest.mark.parametrize("score", ["received", "probe"])
@pytest.mark.parametrize("family", FAMILIES)
def test_openvino_runs_the_same_file(family: str, score: Score) -> None:
    pytest.importorskip("openvino")
    model, plan, engine = exported(family, score, "pair")
    assert check(model, plan, OpenVino(engine.path, threads=1).run, LIMIT).worst <= 1


@pytest.mark.parametrize("kind", ["restore", "restored pair", "zeros"])
@pytest.mark.parametrize("score", ["received", "probe", "probes"])
@pytest.mark.parametrize("family", FAMILIES)
def test_file_gives_every_token_back(family: str, score: Score, kind: str) -> None:
    model, plan, engine = exported(family, score, kind)
    rng = np.random.default_rng(0)
    attach(model, plan)
    for lengths, padded in shapes(LIMIT):
        feeds = draw(model.config, rng, lengths, padded, special=protected_ids(plan))
        with torch.inference_mode():
            expected = model(**{k: torch.from_numpy(x) for k, x in feeds.items()}).logits.numpy()
        live = feeds["attention_mask"].astype(bool)
        scale = max(1.0, np.abs(expected[live]).max())
        assert np.abs(engine.run(feeds)[live] - expected[live]).max() / scale < parity.TOLERANCE
    detach(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_dense_file_is_the_stock_model(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    write_onnx(model, dense_plan(model), tmp_path / "dense.onnx")
    engine = OnnxRuntime(tmp_path / "dense.onnx", threads=1)
    feeds = draw(model.config, np.random.default_rng(0), [9, 4, 1], 12)
    with torch.inference_mode():
        expected = model(**{k: torch.from_numpy(x) for k, x in feeds.items()}).logits.numpy()
    assert np.allclose(engine.run(feeds), expected, atol=1e-4)


def test_padding_and_batch_mates_change_nothing() -> None:
    model, _, engine = exported("bert", "probe", "plain")
    feeds = draw(model.config, np.random.default_rng(3), [40, 7, 21, 3], 50)
    together = engine.run(feeds)
    for b, n in enumerate([40, 7, 21, 3]):
        alone = engine.run({name: x[b : b + 1, :n] for name, x in feeds.items()})
        assert np.abs(alone - together[b]).max() < 1e-5


def test_fp32_file_needs_nothing_special(tmp_path: Path) -> None:
    """Standard operators, dynamic batch and length, the plan inside."""
    model, plan = make_model("bert"), make_plan("bert", "received")
    write_onnx(model, plan, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx")
    assert {item.domain for item in graph.opset_import} == {""}
    assert {node.domain for node in graph.graph.node} == {""}
    assert [item.name for item in graph.graph.input] == input_names(model.config)
    for item in graph.graph.input:
        assert [d.dim_param for d in item.type.tensor_type.shape.dim] == ["batch", "length"]
    metadata = {entry.key: entry.value for entry in graph.metadata_props}
    assert Plan.from_json(metadata[PLAN]) == plan


@pytest.mark.parametrize(("score", "rankings"), [("received", 2), ("probes", 2), ("probe", 1)])
def test_a_step_that_drops_nothing_is_not_in_the_graph(
    score: Score, rankings: int, tmp_path: Path
) -> None:
    model = make_model("bert")
    same = replace(STEPS[2], keep=STEPS[1].keep)
    plan = replace(make_plan("bert", score), steps=(*STEPS[:2], same))
    write_onnx(model, plan, tmp_path / "model.onnx")
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    assert sum(node.op_type == "TopK" for node in nodes) == rankings
    assert check(model, plan, Running(tmp_path / "model.onnx").run, LIMIT).worst <= 1


def test_a_step_of_a_dial_stays_in_the_graph(tmp_path: Path) -> None:
    """Equal shares may differ at another budget."""
    same = replace(STEPS[2], keep=STEPS[1].keep)
    plan = replace(make_plan("bert", "received"), steps=(*STEPS[:2], same))
    write_onnx(make_model("bert"), plan, tmp_path / "model.onnx", dial=True)
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    assert sum(node.op_type == "TopK" for node in nodes) == 3


@pytest.mark.parametrize("score", ["received", "probes"])
def test_products_of_attention_read_heads_in_place(score: Score, tmp_path: Path) -> None:
    """ONNX Runtime fuses the transposition of queries, keys and values into the products."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4  # it warns that such a file is for this machine only
    _, _, engine = exported("bert", score, "plain")
    onnxruntime.InferenceSession(str(engine.path), options)
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    producers = {name: node.op_type for node in nodes for name in node.output}
    products = [node for node in nodes if node.op_type in ("MatMul", "FusedMatMul")]
    by_head = [node for node in products if len({*node.input} & {*producers}) == 2]
    assert sum(node.op_type == "FusedMatMul" for node in by_head) >= 2 * 4  # layers
    assert all(producers[name] != "Transpose" for node in by_head for name in node.input)


def test_export_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = make_model("bert")
    before = {name: t.clone() for name, t in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    write_onnx(model, make_plan("bert", "probe"), tmp_path / "model.onnx")
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert [type(module) for module in model.modules()] == kinds


Change = Callable[[np.ndarray, dict[str, np.ndarray]], np.ndarray]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda logits, feeds: logits + 3e-3, "differs"),
        (
            lambda logits, feeds: np.where(feeds["attention_mask"].sum(1)[:, None] == 7, 0, logits),
            "7",
        ),
        (lambda logits, feeds: logits[:, :1], "shape"),
        (lambda logits, feeds: logits * np.nan, "NaN"),
    ],
    ids=["a little off", "wrong at one length", "too few outputs", "NaN"],
)
def test_check_refuses_a_file_that_differs(change: Change, says: str) -> None:
    model, plan, engine = exported("bert", "received", "plain")
    with pytest.raises(UserError, match=says):
        check(model, plan, lambda feeds: change(engine.run(feeds), feeds), LIMIT)


def test_check_refuses_the_file_of_another_plan() -> None:
    model, _, engine = exported("bert", "received", "plain")
    with pytest.raises(UserError, match="differs"):
        check(model, make_plan("bert", "received", min_tokens=6), engine.run, LIMIT)


def test_check_tries_pairs_and_protected_ids() -> None:
    """Of a vocabulary of thousands no random text would have them; the file of a plan that does not
    protect must still be found out."""
    model, _, engine = exported("bert", "received", "plain")
    for protection in ({"protect_until": 2}, {"protect": (5, 9)}):
        with pytest.raises(UserError, match="differs"):
            check(model, make_plan("bert", "received", **protection), engine.run, LIMIT)
    model.config.vocab_size, vocabulary = 10**6, model.config.vocab_size
    try:
        feeds = draw(model.config, np.random.default_rng(0), [40, 40], 50, special=(2, 5))
    finally:
        model.config.vocab_size = vocabulary
    for token in (2, 5):
        assert 1 <= (feeds["input_ids"] == token).sum() <= 16
    assert (feeds["input_ids"][:, 40:] == 1).all()


def test_check_draws_again_when_a_choice_is_too_close() -> None:
    """A probe of zeros ranks nothing: no batch could prove anything."""
    model, engine = make_model("bert"), exported("bert", "probe", "plain")[2]
    plan = make_plan("bert", "probe", probe=(0.0,) * 32)
    with pytest.raises(UserError, match="almost equal for all tokens"):
        check(model, plan, engine.run, LIMIT)


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_is_near(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    write_onnx(model, dense_plan(model), tmp_path / "model.onnx")
    quantize(tmp_path / "model.onnx", tmp_path / "int8.onnx")
    graph = onnx.load(tmp_path / "int8.onnx")
    kinds = [node.op_type for node in graph.graph.node]
    assert kinds.count("MatMulInteger") >= 6 * 4  # every linear layer
    assert {e.key for e in graph.metadata_props} == {PLAN}
    feeds = draw(model.config, np.random.default_rng(0), [30, 12, 5, 40] * 10, 40)
    exact = OnnxRuntime(tmp_path / "model.onnx", threads=1).run(feeds)
    rounded = OnnxRuntime(tmp_path / "int8.onnx", threads=1).run(feeds)
    assert np.corrcoef(exact.ravel(), rounded.ravel())[0, 1] > 0.7  # random weights forgive nothing


def make_bundle(folder: Path, *, plan: Plan | None) -> Path:
    report = {"task": "classify", "max_length": 32}
    Bundle(make_model("bert"), make_tokenizer("bert"), plan, report).save(folder)
    return folder


def test_export_writes_a_bundle_that_belongs_together(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle", plan=make_plan("bert", "probe"))
    lines: list[str] = []
    report = export(folder, int8=True, say=lines.append)
    assert report["checked"]["fp32"]["worst"] <= 1
    assert len(lines) == 3
    manifest = Manifest.load(folder)
    for graph in ("onnx/model.onnx", "onnx/model_int8.onnx"):
        manifest.verify(folder, graph)
    assert (manifest.max_length, manifest.task, manifest.pad_token_id) == (32, "classify", 1)
    left = {p.name for p in folder.iterdir() if p.name.startswith(".")}
    assert left == set()


def test_export_replaces_the_whole_of_an_older_one(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle", plan=make_plan("bert", "probe"))
    export(folder, int8=True)
    export(folder)
    assert not (folder / "onnx" / "model_int8.onnx").exists()
    Manifest.load(folder).verify(folder)


def test_an_export_of_transformers_is_not_overwritten(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle", plan=make_plan("bert", "probe"))
    theirs = {"schema_version": 1, "export_format": "onnx", "components": {}}
    (folder / "onnx").mkdir()
    (folder / "onnx" / "export.json").write_text(json.dumps(theirs))
    with pytest.raises(UserError, match="holds an export of transformers"):
        export(folder)
    (folder / "onnx" / "export.json").write_text("{")  # ours, cut short: exported again
    export(folder)
    Manifest.load(folder).verify(folder)


def test_dense_directory_gets_a_plan_without_steps(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "dense", plan=None)
    export(folder)
    assert Plan.load(folder / "plan.json").steps == ()


def test_failed_check_leaves_the_older_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_bundle(tmp_path / "bundle", plan=make_plan("bert", "probe"))
    export(folder)
    before = (folder / "onnx" / "model.onnx").read_bytes()

    def refuse(*_: Any, **__: Any) -> None:
        raise UserError("the ONNX file differs")

    monkeypatch.setattr("toprune.export.export.check", refuse)
    with pytest.raises(UserError, match="differs"):
        export(folder, int8=True)
    assert (folder / "onnx" / "model.onnx").read_bytes() == before
    assert {p.name for p in (folder / "onnx").iterdir()} == {"model.onnx", "export.json"}
    assert not (folder / ".onnx.partial").exists()


def test_tokenizer_files_that_disagree(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle", plan=make_plan("bert", "probe"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation_side": "left"}))
    with pytest.raises(UserError, match="on the right"):
        export(folder)


def test_no_segments_where_the_tokenizer_tells_none(tmp_path: Path) -> None:
    """A BERT that was trained with a tokenizer that gives no token_type_ids knows zeros only."""
    model, tokenizer, plan = (
        make_model("bert"),
        make_tokenizer("roberta"),
        make_plan("bert", "probe"),
    )
    Bundle(model, tokenizer, plan, {"task": "classify", "max_length": 32}).save(tmp_path / "b")
    export(tmp_path / "b")
    assert Manifest.load(tmp_path / "b").inputs == ("input_ids", "attention_mask")
    pair = ("w1 w2 w3 w4", "w5 w6 w7")
    attach(model, plan)
    with torch.inference_mode():
        expected = model(**tokenizer(*pair, return_tensors="pt")).logits.numpy()
    assert np.abs(Runner(tmp_path / "b")([pair]) - expected).max() < 1e-3


def test_weights_beside_the_graph_when_they_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toprune.export.graph.INLINE", 1000)
    folder = make_bundle(tmp_path / "bundle", plan=make_plan("bert", "probe"))
    export(folder, int8=True)
    names = {p.name for p in (folder / "onnx").iterdir()}
    assert {"model.onnx.data", "model_int8.onnx.data"} <= names
    manifest = Manifest.load(folder)
    manifest.verify(folder, "onnx/model_int8.onnx")
    OnnxRuntime(folder / "onnx" / "model.onnx", threads=1)
