"""A report with everything in it, of any task, from what two made-up models say."""

from typing import Any

import numpy as np

from toprune.data.examples import Examples
from toprune.report.differences import differences
from toprune.tasks import TASKS, make_task
from toprune.tasks.side_by_side import SideBySide
from toprune.tasks.tokenize import Row

NAMES = ["no", "yes", "maybe"]
LATENCY: dict[str, Any] = {
    "verdict": "Pruning is worth it for 16 texts: 2.5x to 2.6x faster than dense, 1 thread.",
    "rows": [
        {
            "name": "16 texts",
            "texts": 16,
            "tokens": 34.5,
            "batch": 1,
            "ratios": [
                {
                    "who": who,
                    "over": over,
                    "value": value,
                    "low": value - 0.125,
                    "high": value + 0.25,
                    "flops": flops,
                    "realised": None if flops is None else value / flops,
                }
                for who, over, value, flops in (
                    ("pruned fp32", "dense fp32", 2.5, 3.0),
                    ("pruned int8", "dense int8", 2.625, 3.0),
                    ("pruned int8", "dense fp32", 6.75, None),
                    ("dense int8", "dense fp32", 2.25, None),
                    ("pruned fp32", "dense padded", 5.5, 6.0),
                    ("dense fp32", "dense padded", 2.125, None),
                )
            ],
            "flops": {"unpadded": 3.0, "padded": 6.0},
            "ms_per_text": {"pruned fp32": 1.5, "dense fp32": 3.75, "dense padded": 8.25},
            "rounds": 15,
        }
    ],
    "threads": 1,
    "max_length": 64,
    "seed": 0,
    "environment": {"machine": "a desk, 2 cores"},
}


def make_sides(task: str, count: int = 24, *, labelled: bool = True, seed: int = 0) -> SideBySide:
    """Random outputs for both models, pruned ones near the dense."""
    rng = np.random.default_rng(seed)
    task_object = make_task(task, {"classes": 3} if task == "multilabel" else None)
    texts: list[Any] = [f"w{i} and some more words, {i}" for i in range(count)]
    pairs = [f"w3 w4 of text {i}" for i in range(count)]
    labels: list[Any] = rng.integers(0, 3, count).tolist()
    places: Any = None
    shape: tuple[int, ...] = (3,)
    if task == "tokens":
        texts = [["w1", "w2"] for _ in range(count)]
        labels = rng.integers(0, 3, (count, 2)).tolist()
        shape, places = (3, 3), np.array([[-1, -1], [0, 0], [1, 0]])
    elif task == "answer":
        labels = [[("w3", 0)] if i % 3 else [] for i in range(count)]
        shape, places = (3, 2), np.array([[-1, -1], [0, 2], [3, 5]])
    elif task == "multilabel":
        labels = [[c for c in range(3) if rng.random() < 0.5] for _ in range(count)]
    elif task in ("regress", "rank", "embed"):
        labels = rng.integers(0, 2, count).astype(float).tolist()
        shape = (4,) if task == "embed" else (1,)
    if task == "rank":
        texts = [f"query {i // 4}" for i in range(count)]
    examples = Examples(
        texts,
        pairs if task in ("answer", "rank", "embed") else None,
        labels if labelled else None,
        NAMES if task in ("classify", "multilabel", "tokens") else None,
    )
    rows = [
        Row(np.arange(3), None, i, places) for i in range(count * (2 if task == "embed" else 1))
    ]
    dense = [rng.normal(size=shape) for _ in rows]
    pruned = [one + rng.normal(size=shape) for one in dense]
    return SideBySide(
        (task_object, task_object), (dense, pruned), rows, examples, examples.label_names
    )


FALLBACK: dict[str, Any] = {
    "threshold": 0.5,
    "requested": 0.99,
    "agreement": 0.9921875,
    "low": 0.984375,
    "share": 0.0625,
    "cost": 0.3125,
    "texts": 128,
    "schema": 1,
    "met": False,
    "reduction": 3.2,
    "pruned_reduction": 4.0,
    "chosen": 1,
    "curves": [
        {"name": "5.00x", "cost": 0.2, "points": [[0.2, 0.9], [0.25, 0.96], [0.4, 0.99]]},
        {"name": "4.00x", "cost": 0.25, "points": [[0.25, 0.95], [0.3125, 0.9921875]]},
    ],
    "held_out": {
        "texts": 24,
        "fallen": 3,
        "agreement": 0.96875,
        "share": {"value": 0.125, "low": 0.03125, "high": 0.3125},
    },
}
CURVE: dict[str, Any] = {
    "counts": [1, 16, 64],
    "milliseconds": {
        name: [scale, 2 * scale, 8 * scale]
        for name, scale in (
            ("attend", 0.125),
            ("feed", 0.25),
            ("step", 0.03125),
            ("head", 0.0625),
            ("entry", 0.5),
        )
    },
    "environment": {"machine": "a desk, 2 cores"},
}


def make_times(*budgets: str) -> dict[str, Any]:
    """A budget in milliseconds, or several of a dial, each met to a tenth."""

    def timed(budget: str) -> dict[str, Any]:
        asked = float(budget.removesuffix("ms"))
        measured = {
            name: {"length": n, "held": 0, "value": 1.1 * asked, "low": asked, "high": 1.2 * asked}
            for name, n in (("p50", 33), ("p95", 60))
        }
        about = {"milliseconds": asked, "quantile": 0.5, "threads": 1, "precision": "fp32"}
        times = {"length": 33, "dense": 24.0, "predicted": asked, "before_correction": None}
        return about | times | {"measured": measured}

    time = timed(budgets[0]) | {"curve": CURVE}
    return time | ({"dial": {one: timed(one) for one in budgets}} if len(budgets) > 1 else {})


def make_report(task: str = "classify", *, labelled: bool = True) -> dict[str, Any]:
    sides = make_sides(task, labelled=labelled)
    kept = [34, 20, 11, 7]
    soft = [
        {"loss": 1 / step, "sparsity": 0.1 * step, "target": 0.1 * step, "step": 10 * step}
        | {f"gate_{i}": step / (8 + i) for i in range(3)}
        | {f"kept_{i}": 1 - step / (12 + i) for i in range(3)}
        for step in range(1, 7)
    ]
    hard = [{"loss": 0.1 / step, "step": 10 * step} for step in range(1, 5)]
    report: dict[str, Any] = {
        "task": task,
        "task_settings": {},
        "examples": 24,
        "max_length": 64,
        "budget": {
            "asked": "3x",
            "expected": 2.9999,
            "executed": {"unpadded": 3.0078125, "padded": 6.25, "paper": 2.5},
        },
        "agreement": 0.875,
        "kept_per_layer": kept,
        "kept_by_length": [
            {"share": share, "tokens": n, "kept": [n, n // 2, n // 3, n // 5]}
            for share, n in ((0.1, 12), (0.5, 33), (0.9, 52), (1.0, 64))
        ],
        "lengths": {"12": 3, "33": 10, "64": 1},
        "log": soft + hard,
        "ranking": {
            "target": "last",
            "layers": [{"layer": 0, "start": 0.51, "soft": 0.62, "hard": 0.73}],
        },
        "provenance": {
            "method": "top",
            "settings": {
                "task": task,
                "budget": "3x",
                "method": "top",
                "method_settings": {"bins": 50, "gates": False, "first": 1},
                "score": "probe",
                "training": {
                    "soft_epochs": 0.5,
                    "hard_epochs": 1.5,
                    "lr": 1e-4,
                    "mask_lr": None,
                    "sparsity_warmup": 0.7,
                    "batch_size": 32,
                    "accumulation": 1,
                    "label_weight": 0.0,
                    "seed": 3,
                },
                "protect_until": 2 if task in ("rank", "answer") else None,
            },
            "machine": "a desk, 2 cores",
            "versions": {"python": "3.11.7", "toprune": "0.1.0"},
            "commit": "abc1234",
        },
        "latency": {**LATENCY, "date": "2026-01-02T03:04:05+00:00"},
        **differences(sides),
    }
    if labelled:
        names = TASKS[task].METRICS
        report["dense"] = {n: {"value": 0.8125, "low": 0.75, "high": 0.875} for n in names}
        report["pruned"] = {
            n: {"value": 0.796875, "low": 0.734375, "high": 0.859375} for n in names
        }
        report["difference"] = {
            n: {"value": -0.015625, "low": -0.03125, "high": 0.0078125, "p": 0.25} for n in names
        }
        report["dial"] = [
            {
                "asked": asked,
                "executed": {"unpadded": times, "padded": 2 * times, "paper": times},
                "agreement": 0.9375 - times / 64,
                "keep": [900, 500, 400],
                "kept_per_layer": kept,
                "pruned": report["pruned"],
                "difference": report["difference"],
            }
            for asked, times in (("2x", 2.0), ("3x", 3.0078125), ("5x", 5.0))
        ]
        report["fallback"] = FALLBACK
        report["onnx"] = {
            precision: {"examples": 24, "metrics": report["pruned"]}
            for precision in ("fp32", "int8")
        }
    return report


def make_compared() -> dict[str, Any]:
    def cell(name: str, budget: str, reduction: float, value: float) -> dict[str, Any]:
        figure = {"value": value, "low": value - 0.02, "high": value + 0.02}
        return {
            "name": name,
            "budget": budget,
            "seeds": 1,
            "dense": {"value": 0.8125},
            "pruned": figure,
            "difference": {k: v - 0.8125 for k, v in figure.items()},
            "executed": {"unpadded": reduction, "padded": 2 * reduction, "paper": reduction},
            "faster": None,
        }

    refused = {"name": "ltp", "budget": "9x", "seed": 0, "error": "9x is out of reach"}
    return {
        "task": "classify",
        "examples": 24,
        "max_length": 64,
        "metric": "accuracy",
        "dense": {"value": 0.8125, "low": 0.75, "high": 0.875},
        "means": [
            cell("top", "2x", 2.0, 0.81),
            cell("top", "3x", 3.0, 0.8),
            cell("random", "2x", 2.0, 0.7),
            {"name": "ltp", "budget": "9x"},
        ],
        "rows": [refused],
    }
