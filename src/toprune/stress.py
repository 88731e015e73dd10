"""Does benign filler push the tokens that decide out of the kept set, and what does it cost to
protect them? For who serves guardrails: a pruned model that ranks tokens can be talked past where
the dense one still reads everything.

All shares are over one set of texts: those to which dense and pruned say the same without filler,
and that leave room for it, so that nothing is ever cut off by the maximum length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from toprune.api import Data
from toprune.attachment import attach, attached, detach
from toprune.batching import in_batches
from toprune.bundle import Bundle
from toprune.cost import measured_reduction
from toprune.data import Examples
from toprune.encode import Collate, token_ids
from toprune.errors import UserError
from toprune.explain import SAME_WEIGHTS, Reading, check_plan
from toprune.families import family_of, max_positions, sizes_of
from toprune.filler import PLACES, PLAIN, Filler, Padded, read_sentences
from toprune.glue import glue_of, load_furthest
from toprune.heads import ask
from toprune.intervals import share
from toprune.plan import Plan
from toprune.progress import Advance, bar
from toprune.tasks import texts_of
from toprune.tasks.classify import class_names
from toprune.verdicts import WORST, verdict

DOSES, FLOORS, LIMIT = (1, 3), (16, 32, 64), 200
AS_PRUNED = "as pruned"
BUILT_IN = f"{len(PLAIN)} plain English sentences of toprune's own"
Counts = np.ndarray  # (N, L): tokens that enter each layer


def stress(
    bundle: str | Path | Bundle,
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
    own = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
    plan = _check(own, bundle)
    if not doses or min(doses) < 1:
        raise UserError("--doses are lengths of the text: 1 or more, like 1,3")
    whole = own if dense is None else Bundle.load(dense, own.task.NAME)
    plans = _protected(own, plan, floors, protect)
    source = data if isinstance(data, Data) else Data(data)
    texts = load_furthest(
        source.source,
        glue=glue_of(own.report),
        task=own.task.NAME,
        columns=source.columns,
        split=split,
        label_names=class_names(own.model.config),
        skip_bad_rows=source.skip_bad_rows,
    )
    room = min(_max_length(one, source.max_length) for one in (own, whole))
    padding = Padding(own, read_sentences(filler) if filler else PLAIN, room, seed)
    order = np.random.default_rng(seed).permutation(len(texts))
    chosen = _choose(own, whole, plan, padding, texts.take(order), of_class, min(doses), limit)
    some = texts_of(own.task, texts.take(order[:limit]))
    protections = _measure(own, whole, plans, padding, chosen, sorted(set(doses)))
    for row, used in zip(protections, plans.values(), strict=True):
        counts = passed(own, Reading(own, some), used).entering
        row["own"] = vars(measured_reduction(sizes_of(own.model), used, counts, max_length=room))
    report = {
        "bundle": "a bundle" if isinstance(bundle, Bundle) else str(bundle),
        "task": own.task.NAME,
        "dense": SAME_WEIGHTS if dense is None else f"the model in {dense}",
        "filler": BUILT_IN if filler is None else str(filler),
        "class": of_class,
        "class_by": None if of_class is None else "dense" if texts.labels is None else "label",
        "texts": len(chosen.texts),
        "left_out": chosen.left_out,
        "decisive": float(np.mean([len(found) for found in chosen.decisive])),
        "max_length": room,
        "seed": seed,
        "protections": protections,
    }
    return report | {"verdict": verdict(report)}


def _check(own: Bundle, name: Any) -> Plan:
    if own.task.NAME not in ("classify", "multilabel"):
        raise UserError(
            f"stress is for the tasks classify and multilabel, whose answer can be missed; this "
            f"bundle is for {own.task.NAME}"
        )
    if family_of(own.model).images:
        raise UserError("stress pads texts; this is a model of images")
    plan = check_plan(own, "the bundle" if isinstance(name, Bundle) else name)
    if not plan.steps or plan.score == "pooled":
        raise UserError("the plan ranks no tokens, so that filler can push none of them out")
    return plan


def _max_length(bundle: Bundle, asked: int | None) -> int:
    most = bundle.report.get("max_length") or max_positions(bundle.model.config)
    return min(most, asked or most)


def _protected(
    own: Bundle, plan: Plan, floors: Sequence[int], words: Sequence[str]
) -> dict[str, Plan]:
    """By name, the weakest first. Floors come with the words; one below the plan's own is none."""
    found = {AS_PRUNED: plan}
    held, also = plan, ""
    if words:
        ids = token_ids(own.tokenizer, words) | {*plan.protect}
        held, also = replace(plan, protect=tuple(sorted(ids))), " and these words"
        found["these words protected"] = held
    for floor in sorted({*floors}):
        if floor > plan.min_tokens:
            found[f"a floor of {floor} tokens{also}"] = replace(held, min_tokens=floor)
    return found


# -- one pass --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Passed:
    said: list[Any]  # the class of each text, or its classes
    kept: list[list[int]]  # places of the tokens that enter the last layer
    entering: Counts


def passed(
    bundle: Bundle, reading: Reading, plan: Plan | None, advance: Advance | None = None
) -> Passed:
    """What the model says under the plan, or dense, and whom it kept until then."""
    model, task, rows = bundle.model.eval(), bundle.task, reading.rows
    features = [
        {"input_ids": row.ids.tolist()}
        | ({} if row.segments is None else {"token_type_ids": row.segments.tolist()})
        for row in rows
    ]
    layers = sizes_of(model).layers
    outputs = [np.empty(0)] * len(rows)
    kept = [list(range(len(row))) for row in rows]
    entering = np.repeat([[len(row)] for row in rows], layers, 1)
    if plan is not None:
        attach(model, plan)
    try:
        with torch.inference_mode():
            for where, batch in in_batches(features, Collate(bundle.tokenizer)):
                for i, one in zip(where, ask(model, task, batch)[0].numpy(force=True), strict=True):
                    outputs[i] = one
                if (run := attached(model)) is not None:
                    at = [tokens for tokens in run.at[: run.last + 1] if tokens is not None]
                    entering[where] = torch.stack([t.alive.sum(1) for t in at], 1).numpy(force=True)
                    for i, index, alive in zip(where, at[-1].index, at[-1].alive, strict=True):
                        kept[i] = index[alive].tolist()
                if advance is not None:
                    advance(len(where))
    finally:
        detach(model)
    names = class_names(model.config)
    told = task.answers(outputs, rows, reading.texts, None if names is None else tuple(names))
    said = [one["label"] if "label" in one else tuple(one["labels"]) for one in told]
    return Passed(said, kept, entering)


# -- which texts, and what decides them ------------------------------------------------------------


class Padding:
    """Texts with filler in them that are read to their end."""

    def __init__(self, bundle: Bundle, sentences: Sequence[str], room: int, seed: int):
        self._tokenizer = Tokenizer.from_str(bundle.tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._filler, self.room, self._seed = Filler(sentences, self._tokenizer), room, seed

    def length(self, text: Any) -> int:
        """Tokens of a text or pair, special ones included."""
        parts = (text,) if isinstance(text, str) else text
        return len(self._tokenizer.encode(*parts).ids)

    def own_length(self, text: Any) -> int:
        """Of the text that gets the filler: of a pair the second one."""
        return len(self._tokenizer.encode(last_of(text), add_special_tokens=False).ids)

    def pad(self, texts: Sequence[Any], place: str, dose: int) -> list[Padded]:
        return [self._pad(text, place, dose, i) for i, text in enumerate(texts)]

    def _pad(self, text: Any, place: str, dose: int, number: int) -> Padded:
        count = min(dose * self.own_length(text), self.room - self.length(text))
        while True:  # tokens may join or part where filler and text meet
            made = self._filler.pad(last_of(text), place, count, (self._seed, number))
            over = self.length(with_last(text, made.text)) - self.room
            if over <= 0 or count <= 0:
                return made
            count -= over


def last_of(text: Any) -> str:
    return text if isinstance(text, str) else text[-1]


def with_last(text: Any, last: str) -> Any:
    return last if isinstance(text, str) else (*text[:-1], last)


@dataclass(frozen=True)
class Chosen:
    texts: list[Any]
    said: list[Any]  # by dense and pruned alike
    decisive: list[list[tuple[int, int]]]  # tokens by text of a pair, and their last character
    left_out: dict[str, int]


def _choose(
    own: Bundle,
    whole: Bundle,
    plan: Plan,
    padding: Padding,
    texts: Examples,
    of_class: str | None,
    dose: int,
    limit: int,
) -> Chosen:
    """The first `limit` texts that will do; others are counted."""
    names: Sequence[Any] = class_names(own.model.config) or range(own.model.config.num_labels)
    if of_class is not None and of_class not in map(str, names):
        listed = ", ".join(map(str, names))
        raise UserError(f"--class {of_class} is none of the model's classes: {listed}")
    found = Chosen([], [], [], {"no room": 0, "other class": 0, "disagree": 0})
    for start in range(0, len(texts), limit):
        part = texts.take(range(start, min(start + limit, len(texts))))
        read = texts_of(own.task, part)
        fits = [0 < dose * padding.own_length(t) <= padding.room - padding.length(t) for t in read]
        found.left_out["no room"] += fits.count(False)
        labels = None if part.labels is None else [_named(label, names) for label in part.labels]
        wanted = [
            i
            for i, fit in enumerate(fits)
            if fit and (labels is None or of_class is None or _is(labels[i], of_class))
        ]
        found.left_out["other class"] += fits.count(True) - len(wanted)
        if wanted:
            by = of_class if labels is None else None
            _agreeing(own, whole, plan, [read[i] for i in wanted], by, limit, found)
        if len(found.texts) == limit:
            break
    if not found.texts:
        out = found.left_out
        raise UserError(
            f"no text to pad: {out['no room']} leave no room for {dose} times as much filler in "
            f"{padding.room} tokens, {out['other class']} are of another class, on "
            f"{out['disagree']} dense and pruned disagree already; give other texts"
        )
    return found


def _agreeing(
    own: Bundle,
    whole: Bundle,
    plan: Plan,
    texts: Sequence[Any],
    of_class: str | None,
    limit: int,
    found: Chosen,
) -> None:
    """Add those to which dense and pruned say the same; of_class: and nothing else."""
    reading = Reading(own, texts)
    pruned = passed(own, reading, plan)
    dense = passed(whole, reading if whole is own else Reading(whole, texts), None)
    for text, one, other, spelled, kept in zip(
        texts, dense.said, pruned.said, reading.spelled, pruned.kept, strict=True
    ):
        if len(found.texts) == limit:
            return
        if of_class is not None and not _is(one, of_class):
            found.left_out["other class"] += 1
        elif one != other:
            found.left_out["disagree"] += 1
        else:
            found.texts.append(text)
            found.said.append(one)
            parts, offsets = spelled.sequence_ids, spelled.offsets
            found.decisive.append([(p, offsets[i][1] - 1) for i in kept if (p := parts[i]) is not None])


def _named(label: Any, names: Sequence[Any]) -> Any:
    return tuple(names[i] for i in label) if isinstance(label, list | tuple) else names[label]


def _is(said: Any, name: str) -> bool:
    """Is it the class, or one of several?"""
    return name in map(str, said) if isinstance(said, tuple) else str(said) == name


# -- what filler does ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Of each text (N,) under one plan: with filler at one place, or at the worst of all."""

    recalled: np.ndarray  # decisive tokens that are still kept
    dense: np.ndarray  # changed
    pruned: np.ndarray  # changed
    missed: np.ndarray
    reached: np.ndarray  # filler, in lengths of the text
    entering: Counts


def _measure(
    own: Bundle,
    whole: Bundle,
    plans: dict[str, Plan],
    padding: Padding,
    chosen: Chosen,
    doses: Sequence[int],
) -> list[dict[str, Any]]:
    """Every plan with its rows: each dose at each place, and at the worst place for each text."""
    bare = Reading(own, chosen.texts)
    many = len(chosen.texts) * (len(doses) * len(PLACES) * (len(plans) + 1) + len(plans))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in plans}
    with bar("reading with filler", many) as advance:
        usual = {name: passed(own, bare, plan, advance).said for name, plan in plans.items()}
        for dose in doses:
            found: dict[str, list[Found]] = {name: [] for name in plans}
            for place in PLACES:
                for name, one in _at(own, whole, plans, padding, chosen, usual, dose, place, advance):
                    found[name].append(one)
            for name, plan in plans.items():
                told = zip((*PLACES, WORST), (*found[name], _worst(found[name])), strict=True)
                rows[name] += [
                    {"dose": dose, "place": place} | _figures(own, plan, padding.room, chosen, one)
                    for place, one in told
                ]
    return [
        {
            "name": name,
            "min_tokens": plan.min_tokens,
            "protect": list(plan.protect),
            "rows": rows[name],
        }
        for name, plan in plans.items()
    ]


def _at(
    own: Bundle,
    whole: Bundle,
    plans: dict[str, Plan],
    padding: Padding,
    chosen: Chosen,
    usual: dict[str, list[Any]],
    dose: int,
    place: str,
    advance: Advance,
) -> Iterator[tuple[str, Found]]:
    padded = padding.pad(chosen.texts, place, dose)
    texts = [with_last(t, made.text) for t, made in zip(chosen.texts, padded, strict=True)]
    reading = Reading(own, texts)
    reached = np.array(
        [
            (padding.length(now) - padding.length(before)) / padding.own_length(before)
            for now, before in zip(texts, chosen.texts, strict=True)
        ]
    )
    other = reading if whole is own else Reading(whole, texts)
    dense = _differ(passed(whole, other, None, advance).said, chosen.said)
    for name, plan in plans.items():
        pruned = passed(own, reading, plan, advance)
        yield (
            name,
            Found(
                recalled=_recalled(reading, pruned.kept, padded, chosen),
                dense=dense,
                pruned=_differ(pruned.said, usual[name]),
                missed=~dense & _differ(pruned.said, chosen.said),
                reached=reached,
                entering=pruned.entering,
            ),
        )


def _differ(one: Sequence[Any], other: Sequence[Any]) -> np.ndarray:
    return np.array([a != b for a, b in zip(one, other, strict=True)])


def _recalled(
    reading: Reading, kept: Sequence[list[int]], padded: Sequence[Padded], chosen: Chosen
) -> np.ndarray:
    """(N,): decisive tokens that are kept with filler, too; found by their last character, for a
    blank before a word may change what it is cut into."""
    counts: list[int] = []
    every = zip(reading.spelled, kept, padded, chosen.texts, chosen.decisive, strict=True)
    for spelled, places, made, text, decisive in every:
        padded_part = 0 if isinstance(text, str) else len(text) - 1
        parts, offsets = spelled.sequence_ids, spelled.offsets
        there = {(parts[i], c) for i in places for c in range(*offsets[i])}
        counts.append(
            sum((p, made.where(c) if p == padded_part else c) in there for p, c in decisive)
        )
    return np.array(counts)


def _worst(found: Sequence[Found]) -> Found:
    """An attacker may try every place."""
    return Found(
        recalled=np.min([one.recalled for one in found], 0),
        dense=np.any([one.dense for one in found], 0),
        pruned=np.any([one.pruned for one in found], 0),
        missed=np.any([one.missed for one in found], 0),
        reached=np.mean([one.reached for one in found], 0),
        entering=np.concatenate([one.entering for one in found]),
    )


def _figures(own: Bundle, plan: Plan, room: int, chosen: Chosen, one: Found) -> dict[str, Any]:
    many = sum(map(len, chosen.decisive))
    done = measured_reduction(sizes_of(own.model), plan, one.entering, max_length=room)
    return {
        "reached": float(one.reached.mean()),
        "recall": float(one.recalled.sum() / many) if many else None,
        "changed": {"dense": float(one.dense.mean()), "pruned": float(one.pruned.mean())},
        "missed": share(int(one.missed.sum()), len(one.missed)),
        "executed": vars(done),
    }
