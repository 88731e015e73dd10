"""The list of methods: what is in it is documented, and settings that are not there are refused."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.models import make_model, make_tokenizer
from toprune.api import prune
from toprune.cli import app
from toprune.errors import UserError
from toprune.methods import METHODS, make_method
from toprune.methods.top import Top
from toprune.training.settings import Training

DOCS = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_told_of(name: str) -> None:
    assert f"| `{name}` |" in DOCS.read_text()
    told = CliRunner().invoke(app, ["prune", "--help"], env={"COLUMNS": "300"}).output
    assert re.search(rf"\b{name}\b", told)


def test_the_docs_tell_of_no_other() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), re.M)) == set(METHODS)


def test_settings() -> None:
    assert make_method("top", {"bins": 7}) == Top(bins=7)
    with pytest.raises(UserError, match="method 'magic' is not known; there are: top, "):
        make_method("magic")
    with pytest.raises(UserError, match=r"spatten has no such setting \(bins\); it has: first"):
        make_method("spatten", {"bins": 7})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--method", "magic"), "method 'magic' is not known"),
        (("--method", "random", "--set", "bins=9"), "random has no such setting; give key=value"),
        (("--method", "truncate", "--set", "gates=false"), "the keys of truncate are: none"),
        (("--set", "bins"), "give key=value, the keys of top are: bins, first"),
        (("--set", "bins=0"), "bins must be a whole number of at least 1"),
        (("--set", "bins=1.5"), "bins must be a whole number"),
        (("--set", "gates=no"), "gates must be true or false"),
        (("--set", "distill=all"), "distill must be lambda, mse, ce or none"),
        (("--set", "distill_weight=nan"), "distill_weight must be a number of at least 0 or auto"),
        (("--method", "drop_layers", "--set", "layers=0"), "at least 1 or none"),
    ],
)
def test_the_command_refuses_what_a_method_does_not_know(
    words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    told = ("--model", str(tmp_path), "--budget", "2x", "--out", str(tmp_path / "out"))
    done = CliRunner().invoke(app, ["prune", *told, *words])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_no_masks_are_learned_for_heads_that_read_every_token(tmp_path: Path) -> None:
    """They cannot see the state with which a token leaves: all epochs go to the weights."""
    words = [" ".join(f"w{(i * 7 + j) % 60}" for j in range(20)) for i in range(32)]
    rows = [
        {"question": "w1 w2", "context": text, "answers": {"text": [text.split()[5]]}}
        for text in words
    ]
    report = prune(
        make_model(head="answer"),
        {"train": rows, "test": rows[:8]},
        "1.4x",
        task="answer",
        out=tmp_path / "out",
        tokenizer=make_tokenizer(),
        training=Training(soft_epochs=1, hard_epochs=1, batch_size=16),
    ).report
    assert report["budget"]["expected"] is None
    assert report["log"][-1]["step"] == 4  # two epochs of two batches, all with tokens truly gone
    assert not any("sparsity" in line for line in report["log"])


@pytest.mark.parametrize(
    ("stages", "soft", "hard"),
    [(("soft", "hard"), 1, 4), (("hard",), 0, 5), (("soft",), 5, 0), ((), 0, 0)],
)
def test_every_method_has_the_same_epochs(stages: Any, soft: float, hard: float) -> None:
    training = Training(soft_epochs=1, hard_epochs=4, lr=3e-5)
    wanted = replace(training, soft_epochs=soft, hard_epochs=hard)
    assert training.for_stages(stages) == wanted
