"""The saliency probe finds the tokens that the answer depends on, and nothing else moves it."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.models import make_model
from support.probing import states
from support.strategies import LAYERS, WIDTH, pad, random_text
from toprune.models.heads import outputs_of
from toprune.pruning.attach import attached
from toprune.pruning.policies import Protection
from toprune.tasks import Answer, Classify, Embed, Regress, Tags, Task
from toprune.training.probe import RIDGE, fit_probes

MARKED = 40  # an id that random texts never hold
TEXTS = [random_text(6 + i % 20, i) for i in range(48)]


def marked(text: list[int], seed: int) -> tuple[list[int], int]:
    """The text with the marked word somewhere after the first token, and where."""
    at = int(np.random.default_rng(seed).integers(1, len(text)))
    return [*text[:at], MARKED, *text[at + 1 :]], at


@cache
def looking_for_marked(num_labels: int = 2) -> Any:
    """A model that every query of which looks for one direction, which one word has."""
    model = make_model("bert", num_labels=num_labels).double()
    made = torch.Generator().manual_seed(0)
    way, query = torch.nn.functional.normalize(
        torch.randn(2, WIDTH, dtype=torch.float64, generator=made), dim=1
    )
    with torch.no_grad():
        vectors = model.base_model.embeddings.word_embeddings.weight
        vectors -= (vectors @ way)[:, None] * way
        vectors[MARKED] += 4 * vectors.norm(dim=1).mean() * way
        for layer in model.base_model.encoder.layer:
            share_of_answer = layer.attention.self
            share_of_answer.query.weight.zero_()
            share_of_answer.query.bias.copy_(8 * query)
            share_of_answer.key.weight.copy_(torch.outer(query, way) * 2)
            layer.attention.output.dense.weight *= 0.05  # states stay near their own word
            layer.output.dense.weight *= 0.05
    return model


def batches(texts: list[list[int]], size: int, extra: int = 0) -> list[dict[str, Tensor]]:
    return [pad(texts[i : i + size], extra) for i in range(0, len(texts), size)]


@pytest.mark.parametrize("num_labels", [1, 2, 3])
def test_the_token_that_matters_ranks_first(num_labels: int) -> None:
    model = looking_for_marked(num_labels)
    task = Regress() if num_labels == 1 else Classify()
    probes = fit_probes(model, task, batches([marked(t, i)[0] for i, t in enumerate(TEXTS)], 16))
    assert probes.shape == (LAYERS - 1, WIDTH)
    assert probes.dtype == torch.float32
    fresh = [marked(random_text(20, 1000 + i), i) for i in range(100)]
    state = states(model, pad([text for text, _ in fresh]))[0]  # (100, 20, D)
    best = (state @ probes[0].double())[:, 1:].argmax(1) + 1
    assert best.tolist() == [at for _, at in fresh]


def test_padding_batch_mates_and_order_change_nothing() -> None:
    model = make_model("bert").double()
    expected = fit_probes(model, Classify(), batches(TEXTS, 16))
    for other in (
        batches(TEXTS, 16, extra=7),
        batches(TEXTS, 1),
        batches(TEXTS[::-1], 5),
    ):
        fitted = fit_probes(model, Classify(), other)
        torch.testing.assert_close(fitted, expected, rtol=1e-4, atol=1e-5)


TASKS: dict[str, tuple[Task, str, int]] = {  # task, head, outputs
    "classes": (Classify(), "sequence", 3),
    "number": (Regress(), "sequence", 1),
    "answer": (Answer(), "answer", 2),
    "tags": (Tags(), "tokens", 3),
    "mean vector": (Embed(), "encoder", 2),
    "first vector": (Embed(pooling="cls"), "encoder", 2),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_fit_is_ridge_regression_within_texts(name: str) -> None:
    """Written out once more: one text at a time, numpy, normal equations."""
    task, head, outputs = TASKS[name]
    model = make_model("bert", num_labels=outputs, head=head).double()
    expected = by_hand(model, task, protect=())
    fitted = fit_probes(model, task, batches(TEXTS, 16))
    np.testing.assert_allclose(fitted.numpy(), expected, rtol=1e-3, atol=1e-4)


def test_tokens_that_stay_anyway_are_not_ranked() -> None:
    model, protect = make_model("bert", num_labels=2, head="answer").double(), (7, 9, 11)
    assert sum(token in protect for text in TEXTS for token in text) > 10
    expected = by_hand(model, Answer(), protect=protect)
    fitted = fit_probes(model, Answer(), batches(TEXTS, 16), protection=Protection(protect))
    np.testing.assert_allclose(fitted.numpy(), expected, rtol=1e-3, atol=1e-4)


def by_hand(model: Any, task: Task, protect: tuple[int, ...]) -> np.ndarray:
    """(L - 1, D)"""
    probes = []
    for layer in range(LAYERS - 1):
        xs, ys = [], []
        for text in TEXTS:
            count = ~np.isin(text[1:], protect)
            x, y = (part[count] for part in saliency(model, task, text, layer))
            xs.append(x - x.mean(0))
            ys.append((y - y.mean()) / y.std() + share_of_answer(model, task, text, count))
        x, y = np.concatenate(xs), np.concatenate(ys)
        gram = x.T @ x
        ridge = RIDGE * np.trace(gram) / WIDTH * np.eye(WIDTH)
        probes.append(np.linalg.solve(gram + ridge, x.T @ y))
    return np.stack(probes)


def share_of_answer(
    model: Any, task: Task, text: list[int], count: np.ndarray
) -> np.ndarray | float:
    """What is added where a token may itself be the answer: the log of its larger share."""
    if task.NAME != "answer":
        return 0.0
    out = model(**pad([text]))
    logits = torch.stack((out.start_logits[0], out.end_logits[0]))
    y = logits.log_softmax(1).max(0).values[1:].detach().numpy()[count]
    return (y - y.mean()) / y.std()


def saliency(model: Any, task: Task, text: list[int], layer: int) -> tuple[np.ndarray, np.ndarray]:
    """States and log gradient norms of the margin, of all tokens but the first; stock forward."""
    seen: list[Tensor] = []
    module = model.base_model.encoder.layer[layer].attention.output
    hook = module.register_forward_hook(lambda _m, _i, out: seen.append(out))
    batch = pad([text])
    out = model(**batch)
    hook.remove()
    if task.NAME == "classify":  # by hand
        best, second = out.logits[0].sort(descending=True).values[:2]
        margin = best - second
    else:
        mask = batch["attention_mask"]
        margin = task.margin(outputs_of(task, out, mask), mask)[0]
    (gradient,) = torch.autograd.grad(margin, seen)
    return seen[0][0, 1:].detach().numpy(), gradient[0, 1:].norm(dim=1).log().numpy()


def test_fitting_leaves_no_trace() -> None:
    model = make_model("bert").train()
    with torch.no_grad():
        fit_probes(
            model, Classify(), batches(TEXTS[:8], 4)
        )  # needs gradients, and asks for them itself
    assert model.training
    assert attached(model) is None
    assert all(p.grad is None for p in model.parameters())


def test_dropout_is_off_while_fitting() -> None:
    model = make_model("bert")
    expected = fit_probes(model, Classify(), batches(TEXTS[:8], 4))
    assert torch.equal(fit_probes(model.train(), Classify(), batches(TEXTS[:8], 4)), expected)


def test_a_failure_detaches_too() -> None:
    model = make_model("bert")

    def broken() -> Iterable[dict[str, Tensor]]:
        yield pad(TEXTS[:2])
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fit_probes(model, Classify(), broken())
    assert attached(model) is None
