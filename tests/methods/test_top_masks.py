"""What `top` prints: heads that read every token get a schedule in place of masks, unless masks
are asked for; short texts lose less with `joint`."""

from typing import Any

import pytest

import toprune
from support.commands import call, save_model
from support.models import make_model, make_tokenizer
from support.tables import write_rows
from toprune.methods.top import NOT_LEARNED, Top
from toprune.plan.plan import Plan
from toprune.training import select
from toprune.training.settings import OPTIMISTIC, Training

SHORT = Training(soft_epochs=2, hard_epochs=0, batch_size=8)


def asked(count: int, seed: int) -> list[dict[str, Any]]:
    rows = []
    for i in range(count):
        words = [f"w{20 + (i * 7 + j * seed) % 30}" for j in range(12 + i % 8)]
        words[i % len(words)] = f"w{i % 10}"
        answers = {"text": [f"w{i % 10}"], "answer_start": [len(" ".join(words[: i % len(words)]))]}
        answers["answer_start"][0] += i % len(words) > 0
        rows.append({"question": f"w59 w{i % 10}", "context": " ".join(words), "answers": answers})
    return rows


DATA = {"train": asked(24, 3), "test": asked(8, 5)}


def pruned(method: Top, **more: Any) -> Any:
    return toprune.prune(
        make_model(head="answer"),
        DATA,
        "1.5x",
        task="answer",
        tokenizer=make_tokenizer(),
        method=method,
        score="received",
        training=more.pop("training", SHORT),
        **more,
    )


def test_the_default_takes_a_schedule_and_tells_so(capsys: pytest.CaptureFixture[str]) -> None:
    report = pruned(Top()).report
    assert report["budget"]["expected"] is None
    assert not any(key.startswith("gate_") for line in report["log"] for key in line)
    assert " ".join(capsys.readouterr().err.split()).count(NOT_LEARNED) == 1


def test_masks_are_learned_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = pruned(Top(masks="learn", constraint="lagrangian"))
    report = bundle.report
    assert report["budget"]["expected"] is not None
    assert any("gate_0" in line for line in report["log"])
    assert report["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.02)
    assert "no masks are learned" not in capsys.readouterr().err
    assert bundle.plan.restore == "last"


def test_the_command_has_the_option(tmp_path: Any) -> None:
    save_model(tmp_path / "model", make_model(head="answer"))
    write_rows(tmp_path / "data.jsonl", DATA["train"])
    words = ["prune", "--model", tmp_path / "model", "--data", tmp_path / "data.jsonl"]
    words += ["--task", "answer", "--budget", "1.5x", "--score", "received", "--epochs", 1]
    done = call(*words, "--masks", "learn", "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    refused = call(*words, "--method", "ltp", "--masks", "learn", "--out", tmp_path / "no")
    assert refused.exit_code == 2
    assert "the method ltp has no such setting" in refused.output


def test_best_dev_keeps_the_best_candidate(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge prefers the second of four epochs: its weights and its plan come out."""
    scores, seen = iter([0.2, 0.9, 0.5, 0.4, 0.1, 0.0]), list[tuple[float, Plan]]()

    def judged(job: Any, features: Any, examples: Any, metric: str) -> Any:
        def judge(plan: Plan) -> float:
            score = next(scores)
            seen.append((score, plan))
            weights.append(float(next(iter(job.model.classifier.parameters())).abs().sum()))
            return score

        weights: list[float] = []
        select_weights.append(weights)
        return select.replace(job, judge=judge)

    select_weights: list[list[float]] = []
    monkeypatch.setattr("toprune.request.judged", judged)
    rows = [{"text": f"w{i % 9} " * (8 + i % 9), "label": i % 2} for i in range(32)]
    bundle = toprune.prune(
        make_model(),
        {"train": rows, "test": rows[:8]},
        "2x",
        tokenizer=make_tokenizer(),
        method=Top(constraint="lagrangian"),
        score="received",
        training=Training(
            soft_epochs=4,
            hard_epochs=0,
            batch_size=8,
            lr=1e-2,
            sparsity_warmup=0.1,
            select="best-dev",
        ),
    )
    assert [score for score, _ in seen] == [0.2, 0.9, 0.5, 0.4]
    assert bundle.plan is not None
    assert bundle.plan.steps == seen[1][1].steps
    total = float(next(iter(bundle.model.classifier.parameters())).abs().sum())
    assert total == select_weights[0][1]
    assert select_weights[0][1] != select_weights[0][3]
    bundle.save(tmp_path / "pruned")
    for page in ("README.md", "report.html"):  # the card and the page warn, as the terminal does
        assert OPTIMISTIC in (tmp_path / "pruned" / page).read_text()


def test_best_dev_needs_labels_and_top() -> None:
    training = Training(soft_epochs=1, hard_epochs=0, select="best-dev")
    rows = [{"text": "w1 w2 w3 w4 w5 w6"}] * 8
    with pytest.raises(toprune.UserError, match="needs labels"):
        toprune.prune(make_model(), rows, "2x", tokenizer=make_tokenizer(), training=training)
    with pytest.raises(toprune.UserError, match="for the method top, not for ltp"):
        toprune.prune(
            make_model(), rows, "2x", tokenizer=make_tokenizer(), training=training, method="ltp"
        )


@pytest.mark.parametrize(
    ("family", "budget", "method", "words", "named"),
    [
        ("bert", "2x", "top", 12, True),
        ("bert", "1.5x", "top", 12, False),  # little to lose
        ("bert", "2x", "top", 50, False),  # enough tokens
        ("distilbert", "2x", "top", 12, False),  # weights that cannot be cut
        ("bert", "2x", "joint", 12, False),  # its second half is a run of `top`
    ],
)
def test_short_texts_are_pointed_to_joint(
    family: str,
    budget: str,
    method: str,
    words: int,
    named: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toprune.methods.top.SHORT", 40)  # the model reads 66 tokens
    texts = [" ".join(f"w{(i + j) % 60}" for j in range(words)) for i in range(12)]
    toprune.prune(
        make_model(family),
        {"train": [{"text": text} for text in texts]},
        budget,
        tokenizer=make_tokenizer(),
        method=method,
        training=Training(soft_epochs=0, hard_epochs=0),
    )
    assert ("--method joint" in " ".join(capsys.readouterr().err.split())) == named
