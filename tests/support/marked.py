"""A task whose important tokens are known because nothing else can answer.

A marked word decides between two classes, and a third class is "no marked word": else one class
could be guessed from the absence of the other's words, and half of the marked words would be free
to go.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support import synthetic
from support.models import make_tokenizer
from toprune.data.examples import load
from toprune.models.families import sizes_of
from toprune.plan.cost import reduction
from toprune.plan.plan import Plan
from toprune.pruning.attach import attached
from toprune.pruning.policies import Drop, Follow
from toprune.pruning.tokens import Tokens
from toprune.tasks import Classify
from toprune.training.batches import Collate
from toprune.training.features import encode, lengths

NO_MARK = 2  # the third class
CARRIER = "bert.encoder.layer.0.attention.output.dense"


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Two texts of three hold a marked word among 12 to 30."""
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        words = [f"w{i}" for i in rng.integers(10, 60, rng.integers(12, 31))]
        label = int(rng.integers(3))
        if label != NO_MARK:
            mark = 3 * label + int(rng.integers(3))
            words[rng.integers(len(words))] = synthetic.MARKED[mark]
        result.append({"text": " ".join(words), "label": label})
    return result


DATA = {"train": rows(1500, 0), "test": rows(300, 1)}


def untrained(*, carries: bool) -> Any:
    """A model of three classes. Without `carries` its first layer moves nothing from token to token
    and never learns to: a word dropped at the first step is lost, and the answer with it."""
    model = synthetic.untrained(num_labels=3)
    if not carries:
        for p in model.get_submodule(CARRIER).parameters():
            torch.nn.init.zeros_(p).requires_grad_(False)
    return model


def fine_tuned(*, carries: bool) -> Any:
    model = synthetic.fine_tuned(DATA, partial(untrained, carries=carries), least=0.99)
    assert carries == any(p.any() for p in model.get_submodule(CARRIER).parameters())
    return model


class Randomly(Follow):
    """The control: the same plan, tokens dropped at random."""

    def decide(
        self, layer: int, state: Tensor, received: Tensor | None, tokens: Tokens
    ) -> Drop | None:
        return super().decide(layer, state, torch.rand(state.shape[:2]), tokens)


def outcome(model: Any) -> tuple[float, list[float]]:
    """On the test set: accuracy, and the share of marked words that enter layers 1, 2 and 3."""
    tokenizer = make_tokenizer()
    features = encode(tokenizer, Classify(), load(DATA, reads=Classify.READS)["test"], 64)
    batch = Collate(tokenizer)(features)
    labels = batch.pop("labels")
    marks = torch.tensor(tokenizer.convert_tokens_to_ids(synthetic.MARKED))
    with torch.no_grad():
        right = model(**batch).logits.argmax(1) == labels
    run = attached(model)
    assert run is not None
    kept = []
    for tokens in run.entered[1:]:
        here = torch.isin(batch["input_ids"].gather(1, tokens.index), marks) & tokens.alive
        assert not here[labels == NO_MARK].any()
        kept.append(here.any(1)[labels != NO_MARK].double().mean().item())
    return right.double().mean().item(), kept


def executed(model: Any, plan: Plan) -> float:
    """Real reduction on the training texts, counted here and not read from the report."""
    features = encode(make_tokenizer(), Classify(), load(DATA, reads=Classify.READS)["train"], 64)
    return reduction(sizes_of(model), plan, lengths(features)).unpadded
