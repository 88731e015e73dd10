"""The list of methods: what is in it is documented, and settings that are not there are refused."""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from support.models import make_model, make_tokenizer
from toprune.api import prune
from toprune.cli import app
from toprune.errors import UserError
from toprune.methods import METHODS, make_method
from toprune.methods.top import Top
from toprune.plan.plan import Score
from toprune.training.job import Job, Method, Outcome
from toprune.training.settings import Stage, Training, setting

DOCS = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_documented(name: str) -> None:
    assert f"| `{name}` |" in DOCS.read_text()
    output = CliRunner().invoke(app, ["prune", "--help"], env={"COLUMNS": "300"}).output
    assert re.search(rf"\b{name}\b", output)


def test_the_docs_have_no_other() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), re.M)) == set(METHODS)


def test_settings() -> None:
    assert make_method("top", {"bins": 7}) == Top(bins=7)
    with pytest.raises(UserError, match="method 'magic' is not known; there are: top, "):
        make_method("magic")
    with pytest.raises(UserError, match=r"spatten has no such setting \(bins\); it has: first"):
        make_method("spatten", {"bins": 7})


@pytest.mark.parametrize(
    ("options", "message"),
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
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    arguments = ("--model", str(tmp_path), "--budget", "2x", "--out", str(tmp_path / "out"))
    done = CliRunner().invoke(app, ["prune", *arguments, *options])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_no_masks_are_learned_for_heads_that_read_every_token(tmp_path: Path) -> None:
    """They cannot see the state with which a token leaves: all epochs go to the weights."""
    texts = [" ".join(f"w{(i * 7 + j) % 60}" for j in range(20)) for i in range(32)]
    rows = [
        {"question": "w1 w2", "context": text, "answers": {"text": [text.split()[5]]}}
        for text in texts
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
    assert report["log"][-1]["step"] == 4  # two epochs of two batches, with dropped tokens
    assert not any("sparsity" in line for line in report["log"])


@pytest.mark.parametrize(
    ("stages", "soft", "hard"),
    [(("soft", "hard"), 1, 4), (("hard",), 0, 5), (("soft",), 5, 0), ((), 0, 0)],
)
def test_every_method_has_the_same_epochs(stages: Any, soft: float, hard: float) -> None:
    training = Training(soft_epochs=1, hard_epochs=4, lr=3e-5)
    expected = replace(training, soft_epochs=soft, hard_epochs=hard)
    assert training.for_stages(stages) == expected


@pytest.mark.parametrize("settings", [*METHODS.values(), Training])
def test_every_setting_is_described(settings: Any) -> None:
    """In one phrase, for `toprune methods NAME` and for --help."""
    for field in fields(settings):
        assert field.metadata["help"].endswith("."), field.name


@dataclass(frozen=True)
class OneCut(Method):
    """All that must go leaves at one layer: a method of a few lines, known to nobody else."""

    layer: int = setting(1, "Layer that drops tokens.")

    NAME: ClassVar[str] = "one_cut"
    SCORES: ClassVar[tuple[Score, ...]] = ("received",)
    STAGES: ClassVar[tuple[Stage, ...]] = ()

    def learn(self, job: Job, *, resume: bool) -> Outcome:
        return Outcome(job, job.geometric(self.layer, self.layer), extra={"cut_at": self.layer})


def test_a_new_method_needs_its_class_only(tmp_path: Path) -> None:
    rows = [
        {"text": " ".join(f"w{(i + j) % 60}" for j in range(20)), "label": i % 2} for i in range(24)
    ]
    options: dict[str, Any] = {"tokenizer": make_tokenizer(), "method": OneCut()}
    bundle = prune(make_model(), rows, "1.3x", out=tmp_path / "out", **options)
    assert bundle.plan is not None
    assert [step.layer for step in bundle.plan.steps] == [1]
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(1.3, rel=0.05)
    assert bundle.report["cut_at"] == 1
    settings = bundle.report["provenance"]["settings"]
    assert (settings["method"], settings["method_settings"]) == ("one_cut", {"layer": 1})
    with pytest.raises(UserError, match="one_cut distils no ranking"):
        prune(make_model(), rows, "1.3x", auto_weight=True, **options)
