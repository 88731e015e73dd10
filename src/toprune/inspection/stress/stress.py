"""Does benign filler push the decisive tokens out, and what does it cost to protect them?

For those who serve guardrails: filler may talk a pruned model, which ranks tokens, past a text
that the dense one still reads. All shares are over one set of texts: those to which dense and
pruned give the same class without filler, and that leave room for it, so that nothing is ever cut
off by the maximum length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toprune.api import Data
from toprune.bundle.bundle import Bundle
from toprune.data.presets import preset_of
from toprune.data.sets import load_furthest
from toprune.errors import UserError
from toprune.inspection.explain.explain import SAME_WEIGHTS, Reading, check_plan
from toprune.inspection.stress.decisive import Chosen, Trial, choose, decide, read_by
from toprune.inspection.stress.filler import (
    PLACES,
    PLAIN,
    Padded,
    Padding,
    read_sentences,
    takes_filler,
    with_last,
)
from toprune.io.devices import Device
from toprune.io.progress import Advance, bar
from toprune.models.families import family_of, max_positions, sizes_of
from toprune.plan.cost import measured_reduction
from toprune.plan.plan import Plan
from toprune.tasks import TASKS
from toprune.tasks.classify import class_names
from toprune.tasks.intervals import share
from toprune.training.features import token_ids

DOSES, FLOORS, LIMIT = (1, 3), (16, 32, 64), 200
AS_PRUNED, WORST = "as pruned", "worst"
BUILT_IN = f"{len(PLAIN)} plain English sentences of toprune's own"


def stress(
    bundle: str | Path,
    data: Data | Any,
    *,
    split: str | None = None,
    dense: str | Path | None = None,
    filler: str | Path | None = None,
    of_class: str | None = None,
    doses: Sequence[int] = DOSES,
    floors: Sequence[int] = FLOORS,
    protect: Sequence[str] = (),
    limit: int = LIMIT,
    seed: int = 0,
    device: Device = "auto",
) -> dict[str, Any]:
    """Measure what filler does to a bundle that gives classes, as it is and with more tokens kept.

    Args:
        bundle: the directory that `prune` wrote.
        data: texts, with or without labels.
        split: of the data.
        dense: the directory of the original model; without it, the pruned weights with every
            token kept are the dense model.
        filler: a file with a sentence on each line; without it, built-in sentences.
        of_class: only texts of this class, by label, or by the dense model's answer without labels.
        doses: amounts of filler, in lengths of the text.
        floors: also try the plan with at least so many tokens kept.
        protect: also try the plan with these tokens always kept.
        limit: how many texts.
        device: what runs the models; "auto": a GPU if there is one.

    Returns:
        JSON: what each protection costs, what is missed with filler, and a `verdict`.
    """
    if not doses or min(doses) < 1:
        raise UserError(
            "--doses are amounts of filler in lengths of the text; give 1 or more, like 1,3"
        )
    loaded = Bundle.load(bundle, device=device)
    plan = _check(loaded, bundle)
    original = loaded
    if dense is not None:
        original = Bundle.load(dense, loaded.task.NAME, device=device)
    plans = _protected(loaded, plan, floors, protect)
    source = data if isinstance(data, Data) else Data(data)
    texts = load_furthest(
        source.source,
        preset=preset_of(loaded.report),
        reads=loaded.task.READS,
        columns=source.columns,
        split=split,
        label_names=class_names(loaded.model.config),
        skip_bad_rows=source.skip_bad_rows,
    )
    room = min(
        one.report.get("max_length") or max_positions(one.model.config)
        for one in (loaded, original)
    )
    sentences = PLAIN if filler is None else read_sentences(filler)
    tokenizer = loaded.tokenizer.backend_tokenizer
    trial = Trial(loaded, original, plan, Padding(tokenizer, sentences, room, seed))
    order = np.random.default_rng(seed).permutation(len(texts))
    chosen = choose(trial, texts.take(order), of_class, min(doses), limit)
    sample = Reading(loaded, texts.take(order[:limit]).inputs(loaded.task.READS))
    protections = [
        {
            "name": name,
            "min_tokens": used.min_tokens,
            "protect": list(used.protect),
            "own": _executed(trial, used, decide(loaded, sample, used).entering),
            "rows": rows,
        }
        for (name, used), rows in zip(
            plans.items(), _measure(trial, plans, chosen, sorted({*doses})), strict=True
        )
    ]
    report = {
        "bundle": str(bundle),
        "task": loaded.task.NAME,
        "dense": SAME_WEIGHTS if dense is None else f"the model in {dense}",
        "filler": BUILT_IN if filler is None else str(filler),
        "class": of_class,
        "class_by": None if of_class is None else "dense" if texts.labels is None else "label",
        "texts": len(chosen.texts),
        "left_out": chosen.left_out,
        "decisive": float(np.mean([*map(len, chosen.decisive)])),
        "max_length": room,
        "seed": seed,
        "protections": protections,
    }
    return report | {"verdict": verdict(protections)}


def _check(bundle: Bundle, name: str | Path) -> Plan:
    if not takes_filler(bundle.task):
        names = [name for name, task in TASKS.items() if takes_filler(task)]
        raise UserError(
            f"{name} is for the task {bundle.task.NAME}; stress is for tasks that give classes to "
            f"a text: {', '.join(names)}"
        )
    if family_of(bundle.model).images:
        raise UserError(f"{name} is a model of images, but stress pads texts")
    plan = check_plan(bundle, name)
    if not plan.steps or plan.score == "pooled":
        raise UserError(f"the plan of {name} ranks no tokens, so filler can push none of them out")
    return plan


def _protected(
    bundle: Bundle, plan: Plan, floors: Sequence[int], words: Sequence[str]
) -> dict[str, Plan]:
    """Plans by name, the weakest protection first. A floor also protects the words; a floor that
    the plan has already is left out."""
    plans = {AS_PRUNED: plan}
    held, suffix = plan, ""
    if words:
        ids = token_ids(bundle.tokenizer, words) | {*plan.protect}
        held, suffix = replace(plan, protect=tuple(sorted(ids))), " and these words"
        plans["protecting these words"] = held
    for floor in sorted({*floors}):
        if floor > plan.min_tokens:
            plans[f"a floor of {floor} tokens{suffix}"] = replace(held, min_tokens=floor)
    return plans


@dataclass(frozen=True)
class Outcome:
    """For each text (N,) under one plan, with filler at one place, or at the worst one."""

    recalled: np.ndarray  # decisive tokens that are still kept
    dense: np.ndarray  # did the dense model change its answer?
    pruned: np.ndarray  # did the pruned model?
    missed: np.ndarray  # dense gives the class that both gave without filler, pruned does not
    reached: np.ndarray  # filler, in lengths of the text
    entering: np.ndarray  # (N, L) tokens


def _measure(
    trial: Trial, plans: dict[str, Plan], chosen: Chosen, doses: Sequence[int]
) -> list[list[dict[str, Any]]]:
    """Rows of the report for each plan: every dose at every place, and at each text's worst one."""
    bare = Reading(trial.bundle, chosen.texts)
    total = len(chosen.texts) * (len(doses) * len(PLACES) * (len(plans) + 1) + len(plans))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in plans}
    with bar("reading with filler", total) as advance:
        usual = {
            name: decide(trial.bundle, bare, plan, advance).classes for name, plan in plans.items()
        }
        for dose in doses:
            outcomes: dict[str, list[Outcome]] = {name: [] for name in plans}
            for place in PLACES:
                padded = trial.padding.pad(chosen.texts, place, dose)
                for name, outcome in _read(trial, plans, chosen, padded, usual, advance):
                    outcomes[name].append(outcome)
            for name, plan in plans.items():
                places = zip(
                    (*PLACES, WORST), (*outcomes[name], _worst(outcomes[name])), strict=True
                )
                rows[name] += [
                    {"dose": dose, "place": place} | _figures(trial, plan, chosen, outcome)
                    for place, outcome in places
                ]
    return list(rows.values())


def _read(
    trial: Trial,
    plans: dict[str, Plan],
    chosen: Chosen,
    padded: Sequence[Padded],
    usual: dict[str, list[Any]],
    advance: Advance,
) -> Iterator[tuple[str, Outcome]]:
    texts = [with_last(text, one.text) for text, one in zip(chosen.texts, padded, strict=True)]
    reading = Reading(trial.bundle, texts)
    reached = trial.padding.reached(chosen.texts, texts)
    dense_reading = read_by(trial.dense, reading, trial.bundle)
    dense = _differ(decide(trial.dense, dense_reading, None, advance).classes, chosen.classes)
    for name, plan in plans.items():
        pruned = decide(trial.bundle, reading, plan, advance)
        outcome = Outcome(
            recalled=_recalled(reading, pruned.kept, padded, chosen),
            dense=dense,
            pruned=_differ(pruned.classes, usual[name]),
            missed=~dense & _differ(pruned.classes, chosen.classes),
            reached=reached,
            entering=pruned.entering,
        )
        yield name, outcome


def _differ(one: Sequence[Any], other: Sequence[Any]) -> np.ndarray:
    return np.array([a != b for a, b in zip(one, other, strict=True)])


def _recalled(
    reading: Reading, kept: Sequence[list[int]], padded: Sequence[Padded], chosen: Chosen
) -> np.ndarray:
    """(N,): decisive tokens that are kept with filler, too. They are matched by their last
    character: with a blank before it, a word may be cut into other tokens."""
    counts: list[int] = []
    rows = zip(reading.encodings, kept, padded, chosen.texts, chosen.decisive, strict=True)
    for encoding, places, one, text, decisive in rows:
        last = 0 if isinstance(text, str) else 1
        parts, offsets = encoding.sequence_ids, encoding.offsets
        alive = {(parts[i], at) for i in places for at in range(*offsets[i])}
        counts.append(sum((p, one.where(at) if p == last else at) in alive for p, at in decisive))
    return np.array(counts)


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Whoever pads a text may try every place."""
    return Outcome(
        recalled=np.min([one.recalled for one in outcomes], 0),
        dense=np.any([one.dense for one in outcomes], 0),
        pruned=np.any([one.pruned for one in outcomes], 0),
        missed=np.any([one.missed for one in outcomes], 0),
        reached=np.mean([one.reached for one in outcomes], 0),
        entering=np.concatenate([one.entering for one in outcomes]),
    )


def _figures(trial: Trial, plan: Plan, chosen: Chosen, outcome: Outcome) -> dict[str, Any]:
    total = sum(map(len, chosen.decisive))
    return {
        "reached": float(outcome.reached.mean()),
        "recall": float(outcome.recalled.sum() / total) if total else None,
        "changed": {"dense": float(outcome.dense.mean()), "pruned": float(outcome.pruned.mean())},
        "missed": share(int(outcome.missed.sum()), len(outcome.missed)),
        "executed": _executed(trial, plan, outcome.entering),
    }


def _executed(trial: Trial, plan: Plan, entering: np.ndarray) -> dict[str, float]:
    sizes, most = sizes_of(trial.bundle.model), trial.padding.room
    return vars(measured_reduction(sizes, plan, entering, max_length=most))


def verdict(protections: Sequence[dict[str, Any]]) -> str:
    """What is missed at each text's worst place and each plan's worst dose, and what would help.

    Whoever pads a text chooses both. Among protections that help equally, the cheapest is named.
    The best of several, chosen by the texts that judge it, looks better than it is, so the verdict
    mentions when intervals overlap.
    """
    first, *others = protections
    row = _hardest(first)
    missed = (
        f"Filler {row['reached']:.1f} times as long as the text, at the worst of {len(PLACES)} "
        f"places for each, makes the pruned model miss {_percent(row['missed'])} of what the dense "
        f"one still sees"
    )
    if not row["missed"]["value"]:
        return f"{missed}; these texts give no reason to protect more."
    if not others:
        return f"{missed}."
    best = min(others, key=lambda one: (_hardest(one)["missed"]["value"], -one["own"]["unpadded"]))
    left = _hardest(best)["missed"]
    if left["value"] >= row["missed"]["value"]:
        return f"{missed}; none of the protections that were tried lowers that at every dose."
    costs = " -> ".join(f"{one['own']['unpadded']:.2f}x" for one in (first, best))
    unsure = (
        "" if left["high"] < row["missed"]["low"] else " The intervals overlap: try more texts."
    )
    return (
        f"{missed}; {best['name']} brings that to {_percent(left)} at its worst dose and costs "
        f"{costs} fewer FLOPs on your own texts.{unsure}"
    )


def _hardest(protection: dict[str, Any]) -> dict[str, Any]:
    """The row of the dose at which most is missed; among equals, of the largest dose."""
    worst = [row for row in protection["rows"] if row["place"] == WORST]
    return max(worst, key=lambda row: (row["missed"]["value"], row["dose"]))


def _percent(figure: dict[str, float]) -> str:
    value, low, high = (f"{100 * figure[key]:.1f}" for key in ("value", "low", "high"))
    return f"{value} % [{low}, {high}]"
