"""The examples run, say what is true, and stay short enough to be read."""

import re
import runpy
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from support.models import make_model, make_tokenizer
from support.tables import write_rows
from toprune import Bundle, Plan, Runner
from toprune.api import evaluate
from toprune.export.export import export
from toprune.plan.plan import Step
from toprune.run.evaluate import evaluate as evaluate_onnx

pytestmark = pytest.mark.usefixtures("rough_parity")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LIMIT = 24  # tokens; some documents are longer
QUERIES, DOCUMENTS = 6, 12
LINE = re.compile(r"(\w+ \w+(?:, \w+ \w+)?) +(\d\.\d{4}) +(\d+\.\d\d)  (.+)")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)

    def text(longest: int) -> str:
        return " ".join(f"w{i}" for i in rng.integers(0, 60, rng.integers(3, longest)))

    rows = [
        {"query": f"w{q} w{q + 9}", "document": text(40), "label": int(rng.integers(0, 3))}
        for q in range(QUERIES)
        for _ in range(DOCUMENTS)
    ]
    path = tmp_path / "pairs.jsonl"
    write_rows(path, rows)
    return path


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """As others save a cross-encoder: nothing of ours in it, and a limit of its own."""
    folder = tmp_path / "dense"
    make_model(num_labels=1, seed=1).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def pruned(tmp_path: Path) -> Path:
    steps = Step(0, Fraction(7, 10)), Step(2, Fraction(4, 10))
    plan = Plan("bert", 4, 32, "received", steps, protect=(2,), protect_until=2)
    output = {"task": "rank", "max_length": LIMIT}
    Bundle(make_model(num_labels=1), make_tokenizer(), plan, output).save(tmp_path / "pruned")
    export(tmp_path / "pruned")
    return tmp_path / "pruned"


def test_rerank(
    dense: Path,
    pruned: Path,
    pairs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    files = sorted(dense.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["rerank.py", str(dense), str(pruned), str(pairs)])
    runpy.run_path(str(EXAMPLES / "rerank.py"))
    output = capsys.readouterr().out
    table = {name: (float(ndcg), best) for name, ndcg, _, best in LINE.findall(output)}
    assert list(table) == [
        "dense CrossEncoder",
        "pruned CrossEncoder, no plan",
        "pruned CrossEncoder",
        "dense ONNX",
        "pruned ONNX",
    ], output
    assert table["dense ONNX"] == table["dense CrossEncoder"]
    assert table["pruned ONNX"] == table["pruned CrossEncoder"]
    assert table["pruned ONNX"] != table["pruned CrossEncoder, no plan"]
    for report in (evaluate(pruned, pairs), evaluate_onnx(Runner(pruned), pairs)):
        expected = report["metrics"]["ndcg@10"]["value"]
        assert table["pruned ONNX"][0] == pytest.approx(expected, abs=1e-4)
    for kind in ("CrossEncoder", "ONNX"):
        assert re.search(rf"^pruned {kind} is [\d.]+x as fast as dense {kind} \(", output, re.M)
    assert sorted(dense.rglob("*")) == files  # the user's own, not written into


def test_says_how_it_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["rerank.py"])
    with pytest.raises(SystemExit, match=r"python examples/rerank\.py"):
        runpy.run_path(str(EXAMPLES / "rerank.py"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_is_short(path: Path):
    assert len(path.read_text().splitlines()) <= 60
