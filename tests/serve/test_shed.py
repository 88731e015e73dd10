"""A bundle with a dial behind the server: answers are those of Runner at the budget that runs."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from support.refusals import one_line_error
from support.resuming import ROWS
from support.toy_bundle import make_bundle
from toprune.api import prune
from toprune.export.export import export
from toprune.run.runner import Runner
from toprune.serve.server import make_app
from toprune.serve.settings import Settings
from toprune.training.settings import Training

TEXTS = [row["text"] for row in ROWS[:6]]
SHED = ("1.4x", "3x")


@pytest.fixture(scope="module")
def bundle(untrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained, so that answers at different budgets differ."""
    out = tmp_path_factory.mktemp("shed") / "dial"
    prune(untrained, ROWS, SHED, out=out, training=Training(soft_epochs=0, hard_epochs=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toprune.export.parity.TOLERANCE", 5e-4)  # random weights
        export(out)
    return out


@pytest.mark.parametrize("level", [0, 1])
def test_the_answers_are_those_of_the_budget(
    bundle: Path, level: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toprune.serve.shed.Shed.choose", lambda self, fill: level)
    app = make_app([str(bundle)], Settings(workers=1, shed=SHED))
    with TestClient(app, base_url="http://localhost") as client:
        reply = client.post("/predict", json={"inputs": [[text] for text in TEXTS]})
    assert reply.headers["x-toprune-budget"] == SHED[level]
    expected = Runner(bundle, budget=SHED[level], threads=1).predict(TEXTS)
    other = Runner(bundle, budget=SHED[1 - level], threads=1).predict(TEXTS)
    assert [scores[0]["score"] for scores in reply.json()] == [
        pytest.approx(one["score"], abs=1e-4) for one in expected
    ]
    assert [one["score"] for one in other] != [
        pytest.approx(one["score"], abs=1e-4) for one in expected
    ]


def test_a_bundle_without_a_dial_is_refused(tmp_path: Path):
    with one_line_error("no dial"):
        make_app([str(make_bundle(tmp_path / "one"))], Settings(shed=SHED))
