"""The teacher's words: the dense model's own, at the right rows, from memory and from disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.models import FAMILIES, make_model, make_tokenizer
from support.probing import states
from support.strategies import LAYERS, WIDTH, logits, pad, random_text
from toprune.pruning.attach import attached
from toprune.tasks import Answer, Classify, Embed, Tags
from toprune.tasks.pool import pool
from toprune.training import teacher as module
from toprune.training.batches import Collate
from toprune.training.teacher import Teacher, teach

TEXTS = [random_text(n, n) for n in (5, 24, 2, 9, 13, 9)] * 7  # more than one batch
FEATURES = [{"input_ids": text, "index": i, "label": i % 2} for i, text in enumerate(TEXTS)]
CLASSIFY = Classify()
PROBES = torch.from_numpy(np.random.default_rng(0).normal(size=(LAYERS - 1, WIDTH))).float()


def make_teacher(
    model: Any,
    probes: torch.Tensor | None = None,
    task: Any = CLASSIFY,
    *,
    precision: str | None = None,
) -> Teacher:
    return teach(
        model, task, FEATURES, Collate(make_tokenizer()), probes=probes, precision=precision
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_words_of_the_dense_model(family: str) -> None:
    """Logits, and the log of the attention received in the last layer, text by text."""
    model = make_model(family, num_labels=3)
    stored = make_teacher(model)
    model.set_attn_implementation("eager")
    assert stored.logits.shape == (len(TEXTS), 3)
    assert stored.scores.shape == (sum(map(len, TEXTS)), 1)
    for i, text in enumerate(TEXTS[:6]):
        np.testing.assert_allclose(stored.logits[i], logits(model, [text])[0], atol=1e-4)
        with torch.no_grad():
            out = model(**pad([text]), output_attentions=True, output_hidden_states=True)
        last = out.attentions[-1]  # (1, H, S, S)
        first = torch.stack([h[0, 0] for h in out.hidden_states[1:]])  # (L, D)
        np.testing.assert_allclose(stored.states[i], first, rtol=2e-3, atol=2e-3)  # half precision
        token_scores = stored.scores[stored.starts[i] : stored.starts[i + 1], 0]
        np.testing.assert_allclose(np.exp(token_scores), last[0].mean((0, 1)), atol=1e-5)
    # the texts repeat, so their words do; whatever batch they were in
    np.testing.assert_allclose(stored.logits[6:12], stored.logits[:6], atol=1e-4)


def test_words_of_the_probes() -> None:
    model = make_model("bert")
    stored = make_teacher(model, PROBES)
    assert stored.scores.shape == (sum(map(len, TEXTS)), LAYERS - 1)
    for i, text in enumerate(TEXTS[:6]):
        np.testing.assert_allclose(stored.logits[i], logits(model, [text])[0], atol=1e-4)
        token_scores = stored.scores[stored.starts[i] : stored.starts[i + 1]]
        for layer, state in enumerate(states(model, pad([text]))):
            np.testing.assert_allclose(token_scores[:, layer], state[0] @ PROBES[layer], atol=1e-3)


def outputs_of_text(model: Any, task: Any, text: list[int]) -> torch.Tensor:
    """(n, C) by the stock model, or (D,) where vectors are pooled."""
    batch = pad([text])
    with torch.no_grad():
        out = model(**batch)
    if task.NAME == "answer":
        return torch.stack([out.start_logits[0], out.end_logits[0]], -1)
    if task.NAME == "embed":
        return pool(out.last_hidden_state, batch["attention_mask"], task.pooling)[0]
    return out.logits[0]


@pytest.mark.parametrize("probes", [None, PROBES])
@pytest.mark.parametrize("family", ["bert", "distilbert"])
@pytest.mark.parametrize(
    ("task", "head"),
    [
        (Tags(), "tokens"),
        (Answer(), "answer"),
        (Embed(), "encoder"),
        (Embed(pooling="cls"), "encoder"),
    ],
)
def test_words_of_other_heads(
    task: Any, head: str, family: str, probes: torch.Tensor | None, tmp_path: Path
) -> None:
    """A line for each token where the head answers so; scores as ever; states of the first token
    only where it is all that the head reads."""
    model = make_model(family, head=head)
    stored = make_teacher(model, probes, task)
    stored.save(tmp_path / "teacher")
    by_token = head != "encoder"
    for one in (stored, Teacher.load(tmp_path / "teacher")):
        assert bool(one.by_token) == by_token
        assert len(one.logits) == (sum(map(len, TEXTS)) if by_token else len(TEXTS))
        assert len(one.states) == (0 if task.reads_all else len(TEXTS))
        rows = [3, 0, 2]
        extras = one.extras(rows, 24)
        assert ("teacher_states" in extras) == (not task.reads_all)
        for b, row in enumerate(rows):
            n, row_logits = len(TEXTS[row]), extras["teacher_logits"][b]
            expected = outputs_of_text(model, task, TEXTS[row])
            torch.testing.assert_close(
                row_logits[:n] if by_token else row_logits, expected, atol=1e-4, rtol=1e-4
            )
            assert not by_token or row_logits[n:].abs().sum() == 0
    if probes is None and family == "bert":  # the last layer is computed in full for them all
        model.set_attn_implementation("eager")
        with torch.no_grad():
            last = model(**pad([TEXTS[0]]), output_attentions=True).attentions[-1]
        token_scores = stored.scores[: stored.starts[1], 0]
        np.testing.assert_allclose(np.exp(token_scores), last[0].mean((0, 1)), atol=1e-5)


def test_extras_follow_the_rows_of_a_batch() -> None:
    stored = make_teacher(make_model("bert"), PROBES)
    rows = [3, 0, 2]
    extras = stored.extras(rows, 12)
    assert extras["teacher_logits"].tolist() == stored.logits[rows].tolist()
    assert extras["teacher_scores"].shape == (3, 12, LAYERS - 1)
    for b, row in enumerate(rows):
        n = len(TEXTS[row])
        token_scores = stored.scores[stored.starts[row] : stored.starts[row + 1]]
        assert extras["teacher_scores"][b, :n].tolist() == token_scores.tolist()
        assert extras["teacher_scores"][b, n:].abs().sum() == 0
    batch = Collate(make_tokenizer(), stored.extras)([FEATURES[i] for i in rows])
    width = batch["input_ids"].shape[1]
    assert width == 9
    assert torch.equal(batch["teacher_scores"], extras["teacher_scores"][:, :width])


@pytest.mark.parametrize("spill", [0, 1 << 30])
def test_saved_words_are_the_same(
    spill: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = make_teacher(make_model("bert"), PROBES)
    stored.save(tmp_path / "teacher")
    monkeypatch.setattr(module, "SPILL", spill)
    loaded = Teacher.load(tmp_path / "teacher")
    for large in (loaded.scores, loaded.states):
        assert isinstance(large, np.memmap) == (spill == 0)  # mapped when it is large
    for name, value in stored.extras([4, 1], 30).items():
        assert torch.equal(loaded.extras([4, 1], 30)[name], value)
    assert not list((tmp_path / "teacher").glob(".*"))  # no drafts left


def test_teaching_leaves_no_trace() -> None:
    model = make_model("bert").train()
    before = make_teacher(model).logits
    assert model.training
    assert attached(model) is None
    assert np.array_equal(make_teacher(model.eval()).logits, before)  # dropout was off


@pytest.mark.parametrize("probes", [None, PROBES])
def test_words_in_bfloat16_are_the_same_to_its_digits(probes: torch.Tensor | None) -> None:
    """The products are really in bfloat16, what is kept is not."""
    model, seen = make_model("bert"), set[torch.dtype]()
    exact = make_teacher(model, probes)
    model.classifier.register_forward_hook(lambda *arguments: seen.add(arguments[-1].dtype))
    stored = make_teacher(model, probes, precision="bfloat16")
    assert seen == {torch.bfloat16}
    for name in ("logits", "scores", "states"):
        one, other = getattr(stored, name), getattr(exact, name)
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=0.03 * np.abs(other).max())
        assert not np.array_equal(one, other)
