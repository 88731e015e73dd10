"""Targets without runs: table 7 (the datasets) and table 8 (settings)."""

from typing import Any

import numpy as np

from toprune.models.load import load_tokenizer, read_config
from toprune.reproduce import paper as printed
from toprune.reproduce.case import Case
from toprune.reproduce.settings import cpu_steps, method_settings, prune_training
from toprune.tasks import TASKS
from toprune.training.settings import Training


def dataset(case: Case) -> dict[str, Any]:
    """Texts and tokens of each set, with special tokens, before and after the cut."""
    model = case.model()
    tokenizer = load_tokenizer(model, read_config(model))
    reads, sets = TASKS[case.task_name].READS, dict[str, Any]()
    for name, examples in case.sets.items():
        pairs = [(text,) if isinstance(text, str) else text for text in examples.inputs(reads)]
        tokens = np.array([len(tokenizer(*pair, truncation=False)["input_ids"]) for pair in pairs])
        sets[name] = {
            "texts": len(pairs),
            "mean": float(tokens.mean()),
            "mean_cut": float(np.minimum(tokens, case.max_length).mean()),
            "longest": int(tokens.max()),
        }
    return {"max_length": case.max_length, "sets": sets}


def settings_rows(case: Case) -> dict[str, dict[str, Any]]:
    """Settings of the paper, of the authors' code, and of this scale, by name."""
    paper, options = case.paper.content, case.options
    shared = printed.settings()
    rates = [paper["lr"]] if "lr" in paper else shared["learning_rates"]
    rows: dict[str, dict[str, Any]] = {}
    for recipe in ("paper", "authors"):
        rows[recipe] = {
            "epochs": paper[recipe]["epochs"],
            "warm-up epochs": paper[recipe]["warmup"],
            "learning rates": rates,
            "weights of the ranking distillation": shared["weights"],
            "batch size": paper.get("batch_size", shared["batch_size"]),
            "rank masks of a layer": paper["bins"],
            "relevant tokens": paper["top_k"],
            "seed": shared["seed"],
            "padded length": case.paper.max_length,
        }
    training = prune_training(
        options.scale,
        case.paper,
        texts=len(case.sets["train"]),
        recipe=options.recipe,
        seed=case.seed,
        select=options.select,
    )
    soft, hard = training.stage_epochs
    top = method_settings(options.scale, case.paper, layers=case.layers(), masks=options.masks)
    is_paper = options.scale == "paper"
    rows["here"] = {
        "epochs": round(soft + hard, 2),
        "warm-up epochs": round(training.sparsity_warmup * soft, 2),
        "learning rates": rates if is_paper else [training.lr],
        "weights of the ranking distillation": (
            shared["weights"] if is_paper else [top["top"]["distill_weight"]]
        ),
        "batch size": training.batch_size,
        "rank masks of a layer": top["top"]["bins"],
        "relevant tokens": top["top"]["top_k"],
        "seed": case.seed,
        "padded length": case.max_length,
    }
    if options.scale == "cpu":
        rows["here"]["steps with masks"] = cpu_steps(case.paper)
        rows["here"]["steps with tokens dropped"] = round(
            hard * len(case.sets["train"]) / Training.batch_size
        )
    return rows
