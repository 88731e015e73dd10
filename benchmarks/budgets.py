"""Is a budget met to the token on real lengths? Repairs random plans on the benchmark sets.

    python benchmarks/budgets.py

For every set and budget: the geometric plan, one cut, and 20 random monotone plans that are
repaired; the worst distance of executed FLOPs from the budget. Writes results/budgets.json.
"""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import sets
from toprune.cli.demo import model_directory
from toprune.models.load import load_tokenizer
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Sizes, reduction
from toprune.plan.plan import DENOMINATOR, Plan, Step
from toprune.plan.schedule import geometric, repair
from toprune.report.environment import environment
from toprune.tasks import make_task
from toprune.training.features import encode, lengths

OUT = Path(__file__).parent / "results" / "budgets.json"
MINILM = Sizes(layers=6, width=384, heads=12, inner=1536)
BUDGETS = ("1.5x", "2x", "3x", "5x")


def plans(histogram: Lengths, budget: Budget, rng: np.random.Generator) -> list[Plan]:
    settings: Any = {"family": "bert", "first": 0, "score": "received"}
    made = [geometric(MINILM, histogram, budget, **settings, last=last) for last in (None, 0)]
    for _ in range(20):
        notches = np.sort(rng.integers(1, DENOMINATOR, 5))[::-1]
        steps = tuple(Step(i, Fraction(int(k), DENOMINATOR)) for i, k in enumerate(notches))
        made.append(repair(MINILM, replace(made[0], steps=steps), histogram, budget))
    return made


def main() -> None:
    tokenizer = load_tokenizer(model_directory())
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for name in ("mrpc", "imdb", "20news"):
        task, examples = make_task(sets.TASK[name]), sets.train_set(name)
        histogram = lengths(encode(tokenizer, task, examples, sets.MAX_LENGTH[name]))
        for text in BUDGETS:
            budget = Budget.parse(text)
            executed = [
                reduction(MINILM, plan, histogram).unpadded
                for plan in plans(histogram, budget, rng)
            ]
            worst = max(abs(x / budget.reduction - 1) for x in executed)
            rows.append({"set": name, "mean": histogram.mean, "budget": text, "worst_off": worst})
            sets.say(f"{name} (mean {histogram.mean:.0f}) {text}: worst {100 * worst:.3f} % off")
    OUT.write_text(json.dumps({"rows": rows, "environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
