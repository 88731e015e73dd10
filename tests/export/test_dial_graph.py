"""A graph with a dial gives torch's answers at every budget, for every score and every head."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification

from support.models import CONFIGS, make_model, make_tokenizer
from toprune.export.graph import write_onnx
from toprune.export.parity import check
from toprune.plan.plan import Plan, Score, Step
from toprune.run.dial import keep_input
from toprune.run.engines import OnnxRuntime

pytestmark = pytest.mark.usefixtures("rough_parity")
LIMIT = 40
KEEPS = {
    "default": (600, 400, 200),
    "smaller": (300, 150, 50),
    "larger": (900, 700, 699),
    "late": (1000, 1000, 250),  # steps that drop nothing
    "all": (1000, 1000, 1000),
}


def steps(kept: tuple[int, ...]) -> tuple[Step, ...]:
    return tuple(Step(i, Fraction(number, 1000)) for i, number in enumerate(kept))


def model_for(plan: Plan) -> Any:
    if plan.restore == "none":
        return make_model("bert")
    torch.manual_seed(0)
    config = CONFIGS["bert"](vocab_size=len(make_tokenizer()), num_labels=3, pad_token_id=1)
    return AutoModelForTokenClassification.from_config(config).eval()


@pytest.mark.parametrize(
    ("score", "fields"),
    [
        ("received", {}),
        ("probe", {"protect": (5, 9)}),
        ("probes", {"protect": (5,), "protect_until": 2}),
        ("probes", {"restore": "last"}),
        ("received", {"restore": "zero"}),
    ],
)
def test_every_share_gives_the_answers_of_torch(
    score: Score, fields: dict[str, Any], tmp_path: Path
) -> None:
    many = {"probe": 1, "probes": 3}.get(score)
    probe = None if many is None else np.random.default_rng(1).normal(size=32 * many)
    fields = {"probe": None if probe is None else tuple(probe.tolist())} | fields
    default = Plan("bert", 4, 32, score, steps(KEEPS["default"]), **fields)
    model = model_for(default)
    write_onnx(model, default, tmp_path / "model.onnx", dial=True)
    engine = OnnxRuntime(tmp_path / "model.onnx", threads=1)
    for name, kept in KEEPS.items():
        plan = replace(default, steps=steps(kept))
        keep = {} if name == "default" else keep_input(plan)
        cases = [([LIMIT], LIMIT), ([LIMIT, 17, 5, 1], LIMIT)]
        check(model, plan, lambda feeds, keep=keep: engine.run(feeds | keep), LIMIT, cases=cases)
