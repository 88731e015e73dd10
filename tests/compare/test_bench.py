"""The benchmark on engines that take the time we say; once on real ones, whose time is not judged.

The fakes take a millisecond for every token that they are told is alive when dense, half of it when
pruned, a quarter less in int8. So every ratio that a report must hold is known.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from hashlib import sha256
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from support.models import make_model, make_tokenizer
from toprune.bundle.bundle import Bundle
from toprune.compare import bench as module
from toprune.compare import graphs
from toprune.compare.bench import TIMED, bench
from toprune.compare.verdict import verdict
from toprune.errors import UserError
from toprune.export import openvino
from toprune.export.export import export
from toprune.models.families import family_of, sizes_of
from toprune.models.slim import Kept, cut
from toprune.plan.budget import Lengths
from toprune.plan.cost import Sizes, reduction
from toprune.plan.plan import Plan, Step
from toprune.report import terminal as tables
from toprune.run.manifest import OPENVINO_INT8, PLACE
from toprune.run.timing import interleave

LONGEST = 64
PROTECTED = 7  # an ordinary word that always stays
PLAN = Plan(
    "bert",
    4,
    32,
    "received",
    (Step(0, Fraction(1, 2)), Step(2, Fraction(1, 10))),
    protect=(PROTECTED,),
)
WHOLE = sizes_of(make_model())
TEXTS = ["w1 " * count for count in range(1, 61)]  # 3 to 62 tokens


def write_bundle(
    folder: Path, *, int8: bool = False, plan: Plan | None = PLAN, model: Any = None
) -> Path:
    Bundle(model or make_model(), make_tokenizer(), plan, {"max_length": LONGEST}).save(folder)
    export(folder, int8=int8)
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("fp32") / "bundle")


@pytest.fixture(scope="module")
def with_int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("int8") / "bundle", int8=True)


class Fakes:
    """Stand in for exporter, quantiser, engine and clock."""

    def __init__(self):
        self.now = 0.0
        self.written: list[tuple[Plan, Path]] = []
        self.sizes: list[Sizes] = []
        self.quantized: list[tuple[Path, Path]] = []
        self.opened: list[tuple[Path, int]] = []
        self.fed: list[tuple[Path, dict[str, np.ndarray]]] = []

    def write_onnx(
        self, model: Any, plan: Plan, path: Path, names: list[str], outputs: tuple[str, ...]
    ) -> None:
        assert names == ["input_ids", "attention_mask", "token_type_ids"]
        assert outputs == ("logits",)
        assert path.parent.is_dir()
        self.written.append((plan, path))
        self.sizes.append(sizes_of(model))

    def quantize(self, source: Path, target: Path) -> None:
        assert target.parent.is_dir()
        self.quantized.append((source, target))

    def engine(self, path: Path, *, threads: int, providers: Sequence[str]) -> "FakeEngine":
        assert providers == ["CPUExecutionProvider"]
        self.opened.append((path, threads))
        return FakeEngine(self, path)

    def quantize_openvino(self, source: Path, target: Path, feeds: list[Any]) -> None:
        assert feeds
        self.quantized.append((source, target))

    def openvino(self, path: Path, *, threads: int) -> "FakeEngine":
        self.opened.append((path, threads))
        return FakeEngine(self, path)

    def shapes(self) -> set[tuple[int, ...]]:
        return {feeds["input_ids"].shape for _, feeds in self.fed}


class FakeEngine:
    inputs = ("input_ids", "attention_mask")
    names = ("logits",)

    def __init__(self, fakes: Fakes, path: Path):
        self.fakes, self.path = fakes, path

    def run(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        assert len({rows.shape for rows in feeds.values()}) == 1
        self.fakes.fed.append((self.path, feeds))
        cost = 0.001 * float(feeds["attention_mask"].sum())
        cost *= 1 if "dense" in str(self.path.parent.name) else 0.5
        cost *= 0.75 if "int8" in str(self.path) else 1
        self.fakes.now += cost
        return np.zeros((len(feeds["input_ids"]), 2))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    fakes = Fakes()
    # by sys.modules: `toprune.export.quantize` is the function
    monkeypatch.setattr(sys.modules["toprune.export.graph"], "write_onnx", fakes.write_onnx)
    monkeypatch.setattr(sys.modules["toprune.export.quantize"], "quantize", fakes.quantize)
    monkeypatch.setattr(openvino, "quantize_openvino", fakes.quantize_openvino)
    monkeypatch.setattr(module, "OnnxRuntime", fakes.engine)
    monkeypatch.setattr(graphs, "OpenVino", fakes.openvino)
    monkeypatch.setattr(module, "interleave", partial(interleave, clock=lambda: fakes.now))
    return fakes


def ratios(row: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(ratio["who"], ratio["over"]): ratio["value"] for ratio in row["ratios"]}


# -- what is measured ------------------------------------------------------------------------------


def test_known_ratios(bundle: Path, fakes: Fakes):
    report = bench(bundle, lengths=[16, 64], rounds=6, threads=2)
    short, long = report["rows"]
    alike = {
        ("pruned fp32", "dense fp32"): 2,
        ("pruned int8", "dense int8"): 2,
        ("pruned int8", "dense fp32"): 2 / 0.75,
        ("dense int8", "dense fp32"): 1 / 0.75,
    }
    padded = {("pruned fp32", "dense padded"): 8, ("dense fp32", "dense padded"): 4}
    assert ratios(short) == pytest.approx(alike | padded)
    assert ratios(long) == pytest.approx(alike)  # there is nothing to pad
    assert short["ms_per_text"]["dense fp32"] == pytest.approx(16)
    assert short["ms_per_text"]["dense padded"] == pytest.approx(64)
    assert [row["rounds"] for row in report["rows"]] == [6, 6]
    assert report["threads"] == 2
    assert {threads for _, threads in fakes.opened} == {2}
    assert report["environment"]["machine"]
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_share_of_the_flops(bundle: Path, fakes: Fakes):
    row = bench(bundle, lengths=[16], rounds=5)["rows"][0]
    flops = reduction(sizes_of(make_model()), PLAN, Lengths.of([16]), max_length=LONGEST)
    shares = {(r["who"], r["over"]): (r["flops"], r["realised"]) for r in row["ratios"]}
    real, padded = flops.unpadded, flops.padded
    assert shares["pruned fp32", "dense fp32"] == pytest.approx((real, 2 / real))
    assert shares["pruned int8", "dense int8"] == pytest.approx((real, 2 / real))
    assert shares["pruned fp32", "dense padded"] == pytest.approx((padded, 8 / padded))
    assert shares["pruned int8", "dense fp32"] == (None, None)
    assert row["flops"] == {"unpadded": real, "padded": padded}


def test_the_dense_partner_has_no_steps(bundle: Path, fakes: Fakes):
    bench(bundle, lengths=[16], rounds=1)
    ((plan, path),) = fakes.written
    assert plan == Plan(
        PLAN.family, PLAN.n_layers, PLAN.width, "received", (), restore=PLAN.restore
    )
    assert not path.is_relative_to(bundle)
    assert not path.parent.exists()
    assert [source.parent.name for source, _ in fakes.quantized] == ["dense fp32", "onnx"]


def half_of(model: Any) -> Any:
    """The model without every second head and FFN column."""
    config, layers = model.config, model.config.num_hidden_layers
    heads, inner = range(config.num_attention_heads // 2), range(config.intermediate_size // 2)
    hidden = range(config.hidden_size)
    cut(model, family_of(model), Kept(range(layers), hidden, [heads] * layers, [inner] * layers))
    return model


@pytest.fixture(params=[PLAN, replace(PLAN, steps=())], ids=["fewer tokens, too", "all tokens"])
def slim(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "slim", plan=request.param, model=half_of(make_model()))


def test_the_dense_partner_of_a_slim_model_has_all_weights(slim: Path, fakes: Fakes):
    """`joint` and `cofi` take weights away: what counts is the gain over the model before."""
    row = bench(slim, lengths=[16], rounds=5)["rows"][0]
    plan, after, before = Plan.load(slim / "plan.json"), sizes_of(half_of(make_model())), WHOLE
    assert fakes.sizes == [before]
    alone = reduction(after, plan, Lengths.of([16]), max_length=LONGEST)
    flops = reduction(after, plan, Lengths.of([16]), max_length=LONGEST, before=before)
    assert row["flops"] == {"unpadded": flops.unpadded, "padded": flops.padded}
    assert flops.unpadded > alone.unpadded


def test_int8_of_the_bundle(with_int8: Path, fakes: Fakes):
    bench(with_int8, lengths=[16], rounds=1)
    assert [target.parent.name for _, target in fakes.quantized] == ["dense int8"]
    assert with_int8 / "onnx" / "model_int8.onnx" in [path for path, _ in fakes.opened]


def test_int8_of_openvino(tmp_path: Path, fakes: Fakes):
    folder = write_bundle(tmp_path / "bundle")
    path = folder / PLACE
    manifest = json.loads(path.read_text())
    for suffix in (".xml", ".bin"):
        (folder / OPENVINO_INT8).with_suffix(suffix).write_bytes(b"graph")
        name = Path(OPENVINO_INT8).with_suffix(suffix).as_posix()
        manifest["files"][name] = sha256(b"graph").hexdigest()
    path.write_text(json.dumps(manifest))
    row = bench(folder, lengths=[LONGEST], rounds=1)["rows"][0]
    found = ratios(row)
    assert found["pruned int8 openvino", "dense int8 openvino"] == pytest.approx(2)
    assert found["pruned int8 openvino", "dense fp32"] == pytest.approx(2 / 0.75)
    assert found["dense int8 openvino", "dense int8"] == pytest.approx(1)
    assert fakes.quantized[-1][1].parent.name == "dense int8 openvino"
    assert "openvino" not in str(bench(folder, lengths=[LONGEST], rounds=1, int8=False)["rows"])


def test_a_dense_file_of_another_exporter(bundle: Path, tmp_path: Path, fakes: Fakes):
    path = tmp_path / "dense by others" / "model.onnx"
    with pytest.raises(UserError, match=r"--dense-onnx .*: there is no such file"):
        bench(bundle, dense_onnx=path)
    path.parent.mkdir()
    path.write_bytes(b"")
    report = bench(bundle, lengths=[LONGEST], rounds=1, dense_onnx=path)
    found = ratios(report["rows"][0])
    assert found["pruned fp32", "dense given"] == pytest.approx(2)
    assert found["dense fp32", "dense given"] == pytest.approx(1)
    assert report["dense_onnx"] == str(path)
    fed = [feeds for where, feeds in fakes.fed if where == path]
    assert {tuple(feeds) for feeds in fed} == {("input_ids", "attention_mask")}  # what it has


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ("scores",)}, "has the outputs scores, the bundle has logits"),
        ({"inputs": ("position_ids",)}, "needs position_ids, which the bundle has not"),
        (
            {"run": lambda *_: np.zeros(3)},
            r"answer of shape \(3,\), our dense file one of \(1, 2",
        ),
    ],
)
def test_a_dense_file_of_another_model(
    bundle: Path,
    tmp_path: Path,
    fakes: Fakes,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    message: str,
):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")

    def load(where: Path, **options: Any) -> Any:
        engine = FakeEngine(fakes, where)
        return type("Other", (FakeEngine,), change)(fakes, where) if where == path else engine

    monkeypatch.setattr(module, "OnnxRuntime", load)
    with pytest.raises(UserError, match=message):
        bench(bundle, lengths=[16], rounds=1, dense_onnx=path)


def test_without_int8(with_int8: Path, fakes: Fakes):
    row = bench(with_int8, lengths=[16], rounds=1, int8=False)["rows"][0]
    assert row["ms_per_text"].keys() == {"pruned fp32", "dense fp32", "dense padded"}
    assert not fakes.quantized


def test_lengths_that_fit(bundle: Path, fakes: Fakes):
    assert [row["name"] for row in bench(bundle, rounds=1)["rows"]] == [f"length {LONGEST}"]


def test_random_ids_are_ordinary(bundle: Path, fakes: Fakes):
    tokenizer = make_tokenizer()
    bench(bundle, lengths=[LONGEST], rounds=1)
    ids = fakes.fed[0][1]["input_ids"][0]
    assert all((feeds["input_ids"] == ids).all() for _, feeds in fakes.fed)
    assert ids[0] == tokenizer.cls_token_id
    assert set(ids[1:].tolist()).isdisjoint({*tokenizer.all_special_ids, PROTECTED})
    assert len(set(ids.tolist())) > 20


def test_batches_of_a_length(bundle: Path, fakes: Fakes):
    report = bench(bundle, lengths=[16], rounds=1, batch=3)
    assert [row["name"] for row in report["rows"]] == ["length 16", "3 x length 16"]
    assert report["rows"][1]["texts"] == 3
    assert fakes.shapes() == {(1, 16), (1, 64), (3, 16), (3, 64)}


def test_own_texts(bundle: Path, fakes: Fakes):
    """From the shortest to the longest, each by itself, none of them padded."""
    report = bench(bundle, texts=TEXTS, rounds=1, int8=False)
    (row,) = report["rows"]
    assert (row["name"], row["texts"], row["batch"]) == (f"{TIMED} texts", TIMED, 1)
    timed = [feeds for path, feeds in fakes.fed if path.is_relative_to(bundle)][:TIMED]
    lengths = [feeds["input_ids"].shape[1] for feeds in timed]
    assert (lengths[0], lengths[-1]) == (3, 62)
    assert {b - a for a, b in pairwise(lengths)} <= {3, 4, 5}
    assert all(feeds["attention_mask"].all() for feeds in timed)
    assert row["tokens"] == pytest.approx(np.mean(lengths))


def test_own_texts_in_batches(bundle: Path, fakes: Fakes):
    report = bench(bundle, texts=TEXTS, rounds=1, batch=5, int8=False)
    assert [row["name"] for row in report["rows"]] == ["15 texts", "15 texts, 5 a call"]
    sizes = {shape[0] for shape in fakes.shapes()}
    assert sizes == {1, 5}
    assert ratios(report["rows"][1])["pruned fp32", "dense fp32"] == pytest.approx(2)


def test_says_how_far_it_is(bundle: Path, fakes: Fakes):
    lines: list[str] = []
    bench(bundle, lengths=[16, 32], rounds=1, say=lines.append)
    assert lines == ["writing the dense partner", "timing length 16", "timing length 32"]


def test_time_budget(bundle: Path, fakes: Fakes):
    row = bench(bundle, lengths=[16], rounds=50, seconds=0)["rows"][0]
    assert row["rounds"] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [65]}, "lengths must be 1 to 64"),
        ({"lengths": [0]}, "lengths must be 1 to 64"),
        ({"lengths": [16], "texts": ["w1"]}, "not both"),
        ({"texts": []}, "no texts"),
        ({"texts": "w1"}, "texts must be a list"),
        ({"texts": ["w1"], "batch": 2}, "do not fill a batch of 2"),
        ({"threads": 0}, "1 or more"),
        ({"rounds": 0}, "1 or more"),
    ],
)
def test_bad_input(bundle: Path, fakes: Fakes, options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        bench(bundle, **options)


def test_needs_a_plan_that_drops(tmp_path: Path):
    with pytest.raises(UserError, match="drops no tokens"):
        bench(write_bundle(tmp_path / "dense", plan=None))


def test_needs_an_export(tmp_path: Path):
    Bundle(make_model(), make_tokenizer(), PLAN, {}).save(tmp_path)
    with pytest.raises(UserError, match="export"):
        bench(tmp_path)


def test_missing_extra_says_what_to_install(bundle: Path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from toprune.compare.bench import bench\n"
        f"try: bench({str(bundle)!r})\n"
        "except ValueError as problem: print(problem)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs torch; install it with: pip install 'toprune[train]'" in done.stdout, done.stderr


# -- what is said ----------------------------------------------------------------------------------


def row_with(name: str, *, fp32: tuple[float, float], int8: tuple[float, float]) -> dict[str, Any]:
    def entry(precision: str, value: float, low: float) -> dict[str, Any]:
        names = {"who": f"pruned {precision}", "over": f"dense {precision}"}
        return names | {"value": value, "low": low, "high": value + 1}

    return {"name": name, "ratios": [entry("fp32", *fp32), entry("int8", *int8)]}


def test_worth_it():
    rows = [row_with("length 256", fp32=(2.4, 2.3), int8=(2.1, 2.0))]
    rows += [row_with("length 512", fp32=(2.6, 2.5), int8=(2.2, 2.1))]
    assert verdict({"rows": rows, "threads": 1}) == (
        "Pruning is worth it for length 256 and length 512: "
        "2.1x to 2.6x faster than dense, 1 thread."
    )


@pytest.mark.parametrize("low", [1.1, 0.9])
def test_not_worth_it(low: float):
    """An interval that touches 1.1 is enough, in whichever precision."""
    rows = [row_with("length 16", fp32=(3, 2.9), int8=(1.2, low))]
    assert verdict({"rows": rows, "threads": 1}) == (
        "Pruning is NOT worth it here: length 16 (1.20x, pruned int8); use the dense model."
    )


def test_texts_that_fall_back_take_the_time_of_both_models():
    rows = [row_with("length 256", fp32=(5, 4.9), int8=(5, 4.9))]
    assert verdict({"rows": rows, "threads": 1, "fallback": 0.05}) == (
        "Pruning is worth it for length 256: 4.0x faster than dense, 1 thread, "
        "with 5.0% of the texts answered by dense, too."
    )
    assert "NOT worth it" in verdict({"rows": rows, "threads": 1, "fallback": 0.8})


def test_worth_it_for_some():
    rows = [row_with("length 16", fp32=(1.05, 1), int8=(1.2, 1.15))]
    rows += [row_with("length 512", fp32=(2.5, 2.4), int8=(2.5, 2.4))]
    assert verdict({"rows": rows, "threads": 2}) == (
        "Pruning is worth it for length 512: 2.5x faster than dense, 2 threads; "
        "it is NOT for length 16 (1.05x, pruned fp32)."
    )


def test_table(bundle: Path, fakes: Fakes):
    report = bench(bundle, lengths=[16, 64], rounds=5)
    console = Console(width=100, record=True, file=StringIO())
    console.print(tables.bench(report))
    text = console.export_text()
    assert text.index("2.00x [2.00, 2.00]") < text.index("milliseconds per text")
    assert "8.00x [8.00, 8.00]" in text
    assert "dense padded" in text
    assert report["verdict"][:40] in text


# -- the real thing --------------------------------------------------------------------------------


def test_end_to_end(with_int8: Path):
    report = bench(with_int8, texts=TEXTS[:4], rounds=5, batch=2)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    for row in report["rows"]:
        assert row["ms_per_text"].keys() == {
            "dense fp32",
            "pruned fp32",
            "dense int8",
            "pruned int8",
            "dense padded",
        }
        assert all(ms > 0 for ms in row["ms_per_text"].values())
        assert all(r["low"] <= r["value"] <= r["high"] for r in row["ratios"])


# -- benchmarks/latency.py -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def latency() -> Any:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "latency.py"
    spec = importlib.util.spec_from_file_location("latency", path)
    assert spec is not None
    assert spec.loader is not None
    module_ = importlib.util.module_from_spec(spec)
    sys.modules["latency"] = module_  # its dataclass looks there
    spec.loader.exec_module(module_)
    return module_


BERT = (12, 768, 12, 3072)


@pytest.mark.parametrize("score", ["received", "probe"])
def test_schedules_are_the_ones_of_the_measurements(latency: Any, score: str):
    sizes = latency.Sizes(*BERT)
    mild, strong = (latency.scheduled(name, score, sizes) for name in ("mild", "strong"))
    assert strong.lengths(100) == [100, 40, 22, 12, 8, 6, 4, 3, 3, 3, 2, 2]
    assert mild.lengths(1000) == [1000, *[830] * 3, 520, 520, 260, 260, 150, 135, 106, 106]


def test_the_papers_factors_are_met(latency: Any):
    sizes = latency.Sizes(*BERT)
    for anchor in latency.PAPER:
        for length in (anchor.maximum, anchor.mean):
            plan = latency.as_in_the_paper(sizes, anchor, length)
            factor = latency.paper_factor(sizes, anchor, plan.lengths(length))
            assert factor == pytest.approx(anchor.flops, rel=0.01)


@pytest.mark.slow
def test_latency_runs(latency: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(latency, "PAPER", latency.PAPER[:1])
    monkeypatch.setattr(latency, "SCHEDULES", {"strong": latency.SCHEDULES["strong"]})
    words = ["--tiny", "--rounds", "1", "--lengths", "16", "--threads", "1", "--out", str(tmp_path)]
    latency.main(words)
    results = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert results.keys() == set(latency.FILES.values())
    (row,) = results["latency.json"]["rows"]
    assert len(row["ms_per_text"]) == 7
    assert row["base"] in latency.DENSE
    assert results["latency_paper.json"]["rows"][0]["paper"] == {"flops": 7.47, "latency": 2.9}
    assert results["latency_ragged.json"]["rows"][0]["lengths"][::7] == [128, 40]
    assert all(part["environment"]["machine"] for part in results.values())
