"""A text, plans and bundles to explain."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from support.models import make_model, make_tokenizer
from toprune.bundle.bundle import Bundle
from toprune.plan.plan import Plan, Score, Step
from toprune.pruning.predictor import add_predictors

LAYERS, WIDTH = 4, 32
TEXT = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10"
STEPS = (Step(0, Fraction(2, 3)), Step(2, Fraction(1, 3)))


def make_plan(score: Score = "received", steps: tuple[Step, ...] = STEPS, **fields: Any) -> Plan:
    if score == "probe":
        fields["probe"] = tuple(torch.linspace(-1, 1, WIDTH).tolist())
    return Plan("bert", LAYERS, WIDTH, score, steps, **fields)


def make_bundle(
    folder: Path, plan: Plan | None, head: str = "sequence", task: str = "classify", **fields: Any
) -> Path:
    report = {"task": task, "max_length": 24} | fields
    outputs = {"answer": 2, "tokens": 3}.get(head, 2)
    model = make_model(num_labels=outputs, head=head)
    if plan is not None and plan.predictor is not None:
        torch.manual_seed(0)
        add_predictors(model, [step.layer for step in plan.steps], plan.predictor, normed=True)
    Bundle(model, make_tokenizer(), plan, report).save(folder)
    return folder
