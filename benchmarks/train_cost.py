"""What learning costs: soft and hard epochs against plain fine-tuning, interleaved in one process.

    python benchmarks/train_cost.py

The same model (the embedded MiniLM), the same texts (IMDB reviews of the demo, at most 256 tokens),
the same batches: each round trains every kind on one set of batches in turn, so that the machine's
moods hit all alike. Ratios of rounds, their median and a bootstrap interval. The soft kind stands
at its target of 67 %, as in the stage after warm-up; the hard kind runs the plan that follows.
"""

import argparse
import copy
import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toprune.cli.demo import model_directory, read_reviews, split
from toprune.data.examples import Examples
from toprune.methods.top import Selector, Top
from toprune.models.families import family_of, sizes_of
from toprune.models.load import load_model, load_tokenizer
from toprune.plan.budget import Budget
from toprune.plan.plan import Plan
from toprune.plan.schedule import repair
from toprune.pruning.attach import attach, attach_policy
from toprune.report.environment import environment
from toprune.tasks import Classify
from toprune.training.batches import Collate, in_batches
from toprune.training.features import encode, lengths
from toprune.training.learner import Learner
from toprune.training.probe import fit_probes
from toprune.training.soft_policy import Learn
from toprune.training.teacher import teach

OUT = Path(__file__).parent / "results" / "train_cost.json"
BUDGET, BATCH, BATCHES = "67%", 32, 3


def prepare(score: str) -> dict[str, Any]:
    """Learners of every kind on the same dense model, and the batches that all of them see."""
    task = Classify()
    torch.manual_seed(0)
    rows = split(read_reviews(), 2 * BATCH * BATCHES, 0, 0)["train"]
    examples = Examples([r["text"] for r in rows], None, [r["label"] for r in rows])
    dense = load_model(model_directory(), task, examples, new_head=True)
    tokenizer = load_tokenizer(model_directory())
    features = encode(tokenizer, task, examples, 256)
    plain = [batch for _, batch in in_batches(features, Collate(tokenizer), BATCH)]
    for p in dense.base_model.embeddings.parameters():
        p.requires_grad_(False)
    probes = None
    if score == "probe":
        unlabelled = [{k: v for k, v in b.items() if k != "labels"} for b in plain[:2]]
        probes = fit_probes(dense, task, unlabelled)
    teacher = teach(dense, task, features, Collate(tokenizer), probes=probes)
    taught = [b for _, b in in_batches(features, Collate(tokenizer, teacher.extras), BATCH)]
    sizes, histogram, budget = sizes_of(dense), lengths(features), Budget.parse(BUDGET)
    selector = Selector(Top(), sizes, histogram, budget)
    policy = Learn(selector, score, probes=probes, distilled=frozenset((0, 1)))  # pyright: ignore[reportArgumentType]
    soft = attach_policy(copy.deepcopy(dense), policy)
    blank = Plan(family_of(dense).name, sizes.layers, sizes.width, score, ())  # pyright: ignore[reportArgumentType]
    plan = repair(sizes, selector.plan(blank, probes), histogram, budget)
    hard = attach(copy.deepcopy(dense), plan)
    return {
        "plain": (Learner(dense, task, label_weight=1.0), plain),
        "soft": (Learner(soft, task, label_weight=0.0, policy=policy), taught),
        "hard": (Learner(hard, task, label_weight=0.0), taught),
    }


def train_on(learner: Learner, optimizer: Any, batches: list[dict[str, Any]]) -> float:
    learner.train()
    start = time.perf_counter()
    for batch in batches:
        learner(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - start


def optimizer_of(learner: Learner) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in learner.parameters() if p.requires_grad], 1e-5, fused=True)


def interleave(kinds: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    optimizers = {name: optimizer_of(learner) for name, (learner, _) in kinds.items()}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for i in range(rounds + 1):  # the first round warms up
        chosen = [(2 * BATCHES * j // BATCHES + i) % (2 * BATCHES) for j in range(BATCHES)]
        for name, (learner, batches) in kinds.items():
            seconds = train_on(learner, optimizers[name], [batches[j] for j in chosen])
            if i > 0:
                times[name].append(seconds)
    return times


def peak_memory(kind: str, score: str) -> int:
    """Peak resident bytes of a process that trains this kind alone."""
    told = subprocess.run(
        [sys.executable, __file__, "--alone", kind, "--score", score],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(told.stdout.strip().splitlines()[-1])


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", choices=["plain", "soft", "hard"])
    parser.add_argument("--score", default="probe")
    args = parser.parse_args()
    if args.alone:
        learner, batches = prepare(args.score)[args.alone]
        gc.collect()  # the other kinds
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        train_on(learner, optimizer_of(learner), batches)
        sys.stdout.write(f"{_peak()}\n")
        return
    found: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)
    for score in ("probe", "received"):
        times = interleave(prepare(score), args.rounds)
        memory = {kind: peak_memory(kind, score) for kind in ("plain", "soft", "hard")}
        for kind in ("soft", "hard"):
            ratios = np.array(times[kind]) / np.array(times["plain"])
            draws = [np.median(rng.choice(ratios, len(ratios))) for _ in range(1000)]
            low, high = np.quantile(draws, [0.025, 0.975])
            found.append(
                {
                    "name": f"{kind}, score {score}, {BUDGET}",
                    "ratio": float(np.median(ratios)),
                    "low": float(low),
                    "high": float(high),
                    "rounds": ratios.tolist(),
                    "memory_ratio": memory[kind] / memory["plain"],
                }
            )
    result = {"rows": found, "threads": torch.get_num_threads(), "environment": environment()}
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(
        json.dumps([{k: r[k] for k in ("name", "ratio", "memory_ratio")} for r in found], indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
