"""Does benign filler push the tokens that decide out of the kept set, and what does it cost to
protect them? For who serves guardrails: a pruned model that ranks tokens may be talked past where
the dense one still reads everything.

All shares are over one set of texts: those to which dense and pruned say the same without filler,
and that leave room for it, so that nothing is ever cut off by the maximum length.
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
from toprune.inspection.stress.decisive import Chosen, Trial, choose, passed, read_by
from toprune.inspection.stress.filler import (
    PLACES,
    PLAIN,
    Padded,
    Padding,
    read_sentences,
    with_last,
)
from toprune.io.progress import Advance, bar
from toprune.models.families import family_of, max_positions, sizes_of
from toprune.plan.cost import measured_reduction
from toprune.plan.plan import Plan
from toprune.tasks import TASKS, texts_of
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
) -> dict[str, Any]:
    """What filler does to a bundle with classes, as it is and with more tokens kept.

    dense: the directory of the original model; without it the pruned weights with every token kept.
    filler: a file with a sentence in each line. of_class: texts of this class alone, by their label
    or, where they have none, by the dense model's answer. doses: filler, in lengths of the text.
    floors, protect: the plan with so many tokens kept at least, and with these tokens always kept.
    """
    if not doses or min(doses) < 1:
        raise UserError("--doses are lengths of the text: 1 or more, like 1,3")
    own = Bundle.load(bundle)
    plan = _check(own, bundle)
    whole = own if dense is None else Bundle.load(dense, own.task.NAME)
    plans = _protected(own, plan, floors, protect)
    source = data if isinstance(data, Data) else Data(data)
    texts = load_furthest(
        source.source,
        preset=preset_of(own.report),
        reads=own.task.READS,
        columns=source.columns,
        split=split,
        label_names=class_names(own.model.config),
        skip_bad_rows=source.skip_bad_rows,
    )
    room = min(
        one.report.get("max_length") or max_positions(one.model.config) for one in (own, whole)
    )
    sentences = PLAIN if filler is None else read_sentences(filler)
    trial = Trial(own, whole, plan, Padding(own.tokenizer, sentences, room, seed))
    order = np.random.default_rng(seed).permutation(len(texts))
    chosen = choose(trial, texts.take(order), of_class, min(doses), limit)
    some = Reading(own, texts_of(own.task, texts.take(order[:limit])))
    protections = [
        {
            "name": name,
            "min_tokens": used.min_tokens,
            "protect": list(used.protect),
            "own": _executed(trial, used, passed(own, some, used).entering),
            "rows": rows,
        }
        for (name, used), rows in zip(
            plans.items(), _measure(trial, plans, chosen, sorted({*doses})), strict=True
        )
    ]
    report = {
        "bundle": str(bundle),
        "task": own.task.NAME,
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


def _decides(task: Any) -> bool:
    """Whether a task, or its class, gives labels to whole texts."""
    return task.HAS_LABEL_NAMES and not task.BY_TOKEN


def _check(own: Bundle, name: str | Path) -> Plan:
    if not _decides(own.task):
        others = " and ".join(name for name, task in TASKS.items() if _decides(task))
        raise UserError(
            f"{name} is for the task {own.task.NAME}; stress is for {others}, which "
            "decide on a text"
        )
    if family_of(own.model).images:
        raise UserError(f"{name} is a model of images; stress pads texts")
    plan = check_plan(own, name)
    if not plan.steps or plan.score == "pooled":
        raise UserError(f"the plan of {name} ranks no tokens: filler can push none of them out")
    return plan


def _protected(
    own: Bundle, plan: Plan, floors: Sequence[int], words: Sequence[str]
) -> dict[str, Plan]:
    """By name, the weakest first. Floors come with the words; one below the plan's own is none."""
    found = {AS_PRUNED: plan}
    held, also = plan, ""
    if words:
        ids = token_ids(own.tokenizer, words) | {*plan.protect}
        held, also = replace(plan, protect=tuple(sorted(ids))), " and these words"
        found["protecting these words"] = held
    for floor in sorted({*floors}):
        if floor > plan.min_tokens:
            found[f"a floor of {floor} tokens{also}"] = replace(held, min_tokens=floor)
    return found


@dataclass(frozen=True)
class Found:
    """Of each text (N,) under one plan: with filler at one place, or at the worst for it."""

    recalled: np.ndarray  # decisive tokens that are still kept
    dense: np.ndarray  # changed its answer
    pruned: np.ndarray  # changed its answer
    missed: np.ndarray  # dense says what both said without filler, pruned does not
    reached: np.ndarray  # filler, in lengths of the text
    entering: np.ndarray  # (N, L) tokens


def _measure(
    trial: Trial, plans: dict[str, Plan], chosen: Chosen, doses: Sequence[int]
) -> list[list[dict[str, Any]]]:
    """Rows for every plan: each dose at each place, and at the worst place for each text."""
    bare = Reading(trial.own, chosen.texts)
    many = len(chosen.texts) * (len(doses) * len(PLACES) * (len(plans) + 1) + len(plans))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in plans}
    with bar("reading with filler", many) as advance:
        usual = {name: passed(trial.own, bare, plan, advance).said for name, plan in plans.items()}
        for dose in doses:
            found: dict[str, list[Found]] = {name: [] for name in plans}
            for place in PLACES:
                padded = trial.padding.pad(chosen.texts, place, dose)
                for name, one in _read(trial, plans, chosen, padded, usual, advance):
                    found[name].append(one)
            for name, plan in plans.items():
                every = zip((*PLACES, WORST), (*found[name], _worst(found[name])), strict=True)
                rows[name] += [
                    {"dose": dose, "place": place} | _figures(trial, plan, chosen, one)
                    for place, one in every
                ]
    return list(rows.values())


def _read(
    trial: Trial,
    plans: dict[str, Plan],
    chosen: Chosen,
    padded: Sequence[Padded],
    usual: dict[str, list[Any]],
    advance: Advance,
) -> Iterator[tuple[str, Found]]:
    texts = [with_last(text, made.text) for text, made in zip(chosen.texts, padded, strict=True)]
    reading = Reading(trial.own, texts)
    reached = trial.padding.reached(chosen.texts, texts)
    said = passed(trial.dense, read_by(trial.dense, reading, trial.own), None, advance).said
    dense = _differ(said, chosen.said)
    for name, plan in plans.items():
        pruned = passed(trial.own, reading, plan, advance)
        found = Found(
            recalled=_recalled(reading, pruned.kept, padded, chosen),
            dense=dense,
            pruned=_differ(pruned.said, usual[name]),
            missed=~dense & _differ(pruned.said, chosen.said),
            reached=reached,
            entering=pruned.entering,
        )
        yield name, found


def _differ(one: Sequence[Any], other: Sequence[Any]) -> np.ndarray:
    return np.array([a != b for a, b in zip(one, other, strict=True)])


def _recalled(
    reading: Reading, kept: Sequence[list[int]], padded: Sequence[Padded], chosen: Chosen
) -> np.ndarray:
    """(N,): decisive tokens that are kept with filler, too. Found by their last character: with a
    blank before it a word may be cut into other tokens."""
    counts: list[int] = []
    every = zip(reading.spelled, kept, padded, chosen.texts, chosen.decisive, strict=True)
    for spelled, places, made, text, decisive in every:
        last = 0 if isinstance(text, str) else 1
        parts, offsets = spelled.sequence_ids, spelled.offsets
        there = {(parts[i], at) for i in places for at in range(*offsets[i])}
        counts.append(sum((p, made.where(at) if p == last else at) in there for p, at in decisive))
    return np.array(counts)


def _worst(found: Sequence[Found]) -> Found:
    """Whoever pads a text may try every place."""
    return Found(
        recalled=np.min([one.recalled for one in found], 0),
        dense=np.any([one.dense for one in found], 0),
        pruned=np.any([one.pruned for one in found], 0),
        missed=np.any([one.missed for one in found], 0),
        reached=np.mean([one.reached for one in found], 0),
        entering=np.concatenate([one.entering for one in found]),
    )


def _figures(trial: Trial, plan: Plan, chosen: Chosen, one: Found) -> dict[str, Any]:
    many = sum(map(len, chosen.decisive))
    return {
        "reached": float(one.reached.mean()),
        "recall": float(one.recalled.sum() / many) if many else None,
        "changed": {"dense": float(one.dense.mean()), "pruned": float(one.pruned.mean())},
        "missed": share(int(one.missed.sum()), len(one.missed)),
        "executed": _executed(trial, plan, one.entering),
    }


def _executed(trial: Trial, plan: Plan, entering: np.ndarray) -> dict[str, float]:
    sizes, most = sizes_of(trial.own.model), trial.padding.room
    return vars(measured_reduction(sizes, plan, entering, max_length=most))


def verdict(protections: Sequence[dict[str, Any]]) -> str:
    """At the worst place for each text and at each plan's own worst dose, for whoever pads a text
    chooses both: what is missed, and what would help. Of protections that help alike, the
    cheapest. The best of several, chosen by the texts that judge it, looks better than it is: so
    it is told when intervals overlap."""
    first, *others = protections
    row = _hardest(first)
    told = (
        f"Filler {row['reached']:.1f} times as long as the text, at the worst of {len(PLACES)} "
        f"places for each, makes the pruned model miss {_percent(row['missed'])} of what the dense "
        f"one still sees"
    )
    if not row["missed"]["value"]:
        return f"{told}; these texts give no reason to protect more."
    if not others:
        return f"{told}."
    best = min(others, key=lambda one: (_hardest(one)["missed"]["value"], -one["own"]["unpadded"]))
    left = _hardest(best)["missed"]
    if left["value"] >= row["missed"]["value"]:
        return f"{told}; none of the protections that were tried lowers that at every dose."
    costs = " -> ".join(f"{one['own']['unpadded']:.2f}x" for one in (first, best))
    unsure = (
        "" if left["high"] < row["missed"]["low"] else " The intervals overlap: try more texts."
    )
    return (
        f"{told}; {best['name']} brings that to {_percent(left)} at its worst dose and costs "
        f"{costs} fewer FLOPs on your own texts.{unsure}"
    )


def _hardest(protection: dict[str, Any]) -> dict[str, Any]:
    """The dose that most is missed at; of equal ones the largest."""
    worst = [row for row in protection["rows"] if row["place"] == WORST]
    return max(worst, key=lambda row: (row["missed"]["value"], row["dose"]))


def _percent(figure: dict[str, float]) -> str:
    value, low, high = (f"{100 * figure[key]:.1f}" for key in ("value", "low", "high"))
    return f"{value} % [{low}, {high}]"
