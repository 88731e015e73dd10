"""Which texts filler is tried on, and which of their tokens decide: those that the pruned model
carries through to its end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from toprune.bundle.bundle import Bundle
from toprune.data.examples import Examples
from toprune.errors import UserError
from toprune.inspection.explain.explain import Reading
from toprune.inspection.stress.filler import Padding
from toprune.io.progress import Advance
from toprune.models.families import sizes_of
from toprune.models.heads import task_outputs
from toprune.plan.plan import Plan
from toprune.pruning.attach import attach, attached, detach
from toprune.tasks import texts_of
from toprune.tasks.classify import class_names
from toprune.training.batches import Collate, in_batches


@dataclass(frozen=True)
class Trial:
    """What filler is tried on, and how."""

    own: Bundle
    dense: Bundle  # the same object where its own weights are asked, with every token kept
    plan: Plan
    padding: Padding


@dataclass(frozen=True)
class Passed:
    said: list[Any]  # the class of each text, or its classes
    kept: list[list[int]]  # places of the tokens that enter the last layer
    entering: np.ndarray  # (N, L): tokens that enter each layer


def passed(
    bundle: Bundle, reading: Reading, plan: Plan | None, advance: Advance | None = None
) -> Passed:
    """What the model says under the plan, or without one, and whom it kept until then."""
    model, task, rows = bundle.model.eval(), bundle.task, reading.rows
    features = [
        {"input_ids": row.ids.tolist()}
        | ({} if row.segments is None else {"token_type_ids": row.segments.tolist()})
        for row in rows
    ]
    outputs = [np.empty(0)] * len(rows)
    kept = [list(range(len(row))) for row in rows]
    entering = np.repeat([[len(row)] for row in rows], sizes_of(model).layers, 1)
    if plan is not None:
        attach(model, plan)
    try:
        with torch.inference_mode():
            for where, batch in in_batches(features, Collate(bundle.tokenizer)):
                for i, one in zip(
                    where, task_outputs(model, task, batch)[0].numpy(force=True), strict=True
                ):
                    outputs[i] = one
                if (run := attached(model)) is not None:
                    at = run.entered
                    entering[where] = torch.stack([t.alive.sum(1) for t in at], 1).numpy(force=True)
                    for i, index, alive in zip(where, at[-1].index, at[-1].alive, strict=True):
                        kept[i] = index[alive].tolist()
                if advance is not None:
                    advance(len(where))
    finally:
        detach(model)
    names = class_names(model.config)
    told = task.predictions(outputs, rows, reading.texts, None if names is None else tuple(names))
    said = [one["label"] if "label" in one else tuple(one["labels"]) for one in told]
    return Passed(said, kept, entering)


@dataclass
class Chosen:
    """Texts that dense and pruned agree on while they are bare, and that leave room for filler."""

    texts: list[Any] = field(default_factory=list[Any])
    said: list[Any] = field(default_factory=list[Any])  # by dense and pruned alike
    # of each text its decisive tokens: which text of a pair, and their last character there
    decisive: list[list[tuple[int, int]]] = field(default_factory=list[list[tuple[int, int]]])
    no_room: int = 0
    other_class: int = 0
    disagree: int = 0

    @property
    def left_out(self) -> dict[str, int]:
        names = ("no_room", "other_class", "disagree")
        return {name: getattr(self, name) for name in names}


def choose(trial: Trial, texts: Examples, of_class: str | None, dose: int, limit: int) -> Chosen:
    """The first `limit` texts that will do, of one class if that is asked; others are counted."""
    config = trial.own.model.config
    names: Sequence[Any] = class_names(config) or range(config.num_labels)
    if of_class is not None and of_class not in map(str, names):
        listed = ", ".join(map(str, names))
        raise UserError(f"--class {of_class} is none of the model's classes: {listed}")
    found, padding = Chosen(), trial.padding
    for start in range(0, len(texts), limit):
        part = texts.take(range(start, min(start + limit, len(texts))))
        read = texts_of(trial.own.task, part)
        fits = [i for i, text in enumerate(read) if padding.fits(text, dose)]
        found.no_room += len(read) - len(fits)
        if of_class is not None and part.labels is not None:
            wanted = [i for i in fits if _is(_named(part.labels[i], names), of_class)]
            found.other_class += len(fits) - len(wanted)
            fits = wanted
        by_answer = of_class if part.labels is None else None
        if fits:
            _add(found, trial, [read[i] for i in fits], by_answer, limit)
        if len(found.texts) == limit:
            break
    if not found.texts:
        raise UserError(
            f"no text to pad: {found.no_room} leave no room for {dose} times as much filler in "
            f"{padding.room} tokens, {found.other_class} are of another class, on "
            f"{found.disagree} dense and pruned disagree already; give other texts"
        )
    return found


def _add(
    found: Chosen, trial: Trial, texts: Sequence[Any], of_class: str | None, limit: int
) -> None:
    """Those to which dense and pruned say the same. of_class: and nothing but this."""
    reading = Reading(trial.own, texts)
    pruned = passed(trial.own, reading, trial.plan)
    dense = passed(trial.dense, read_by(trial.dense, reading, trial.own), None)
    for text, one, other, spelled, kept in zip(
        texts, dense.said, pruned.said, reading.spelled, pruned.kept, strict=True
    ):
        if len(found.texts) == limit:
            return
        if of_class is not None and not _is(one, of_class):
            found.other_class += 1
        elif one != other:
            found.disagree += 1
        else:
            found.texts.append(text)
            found.said.append(one)
            parts, ends = spelled.sequence_ids, [end for _, end in spelled.offsets]
            places = [(parts[i], ends[i] - 1) for i in kept]
            found.decisive.append([(part, at) for part, at in places if part is not None])


def read_by(bundle: Bundle, reading: Reading, own: Bundle) -> Reading:
    """The same texts as another model reads them."""
    return reading if bundle is own else Reading(bundle, reading.texts)


def _named(label: Any, names: Sequence[Any]) -> Any:
    return tuple(names[i] for i in label) if isinstance(label, list | tuple) else names[label]


def _is(said: Any, name: str) -> bool:
    """Is it the class, or one of several?"""
    return name in map(str, said) if isinstance(said, tuple) else str(said) == name
