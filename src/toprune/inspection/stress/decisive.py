"""Chooses the texts that get filler, and their decisive tokens: those that the pruned model keeps
to its last layer."""

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
from toprune.tasks.classify import class_names
from toprune.training.batches import Collate, in_batches


@dataclass(frozen=True)
class Trial:
    """The models, the plan and the filler of a stress test."""

    bundle: Bundle
    dense: Bundle  # the same object if its weights with every token kept are the dense model
    plan: Plan
    padding: Padding


@dataclass(frozen=True)
class Decisions:
    """What a model decides about some texts."""

    classes: list[Any]  # the class of each text, or a tuple of its classes
    kept: list[list[int]]  # places of the tokens that enter the last layer
    entering: np.ndarray  # (N, L): tokens that enter each layer


def decide(
    bundle: Bundle, reading: Reading, plan: Plan | None, advance: Advance | None = None
) -> Decisions:
    """Run a model under a plan, or dense without one.

    Args:
        reading: the texts, as this bundle reads them.
        advance: of a progress bar, called with the number of texts.
    """
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
    answers = task.predictions(
        outputs, rows, reading.texts, None if names is None else tuple(names)
    )
    classes = [one["label"] if "label" in one else tuple(one["labels"]) for one in answers]
    return Decisions(classes, kept, entering)


@dataclass
class Chosen:
    """Texts that dense and pruned agree on without filler, and that leave room for it."""

    texts: list[Any] = field(default_factory=list[Any])
    classes: list[Any] = field(default_factory=list[Any])  # by dense and by pruned
    # the decisive tokens of each text: which text of a pair, and their last character there
    decisive: list[list[tuple[int, int]]] = field(default_factory=list[list[tuple[int, int]]])
    no_room: int = 0
    other_class: int = 0
    disagree: int = 0

    @property
    def left_out(self) -> dict[str, int]:
        names = ("no_room", "other_class", "disagree")
        return {name: getattr(self, name) for name in names}


def choose(trial: Trial, texts: Examples, of_class: str | None, dose: int, limit: int) -> Chosen:
    """The first `limit` texts that are suitable; the others are counted.

    Args:
        of_class: only texts of this class, by label, or by the dense model's answer without labels.
        dose: there must be room for so many lengths of filler.
    """
    config = trial.bundle.model.config
    names: Sequence[Any] = class_names(config) or range(config.num_labels)
    if of_class is not None and of_class not in map(str, names):
        listed = ", ".join(map(str, names))
        raise UserError(f"--class {of_class} is not a class of the model; it has: {listed}")
    chosen, padding = Chosen(), trial.padding
    for start in range(0, len(texts), limit):
        part = texts.take(range(start, min(start + limit, len(texts))))
        read = part.inputs(trial.bundle.task.READS)
        fits = [i for i, text in enumerate(read) if padding.fits(text, dose)]
        chosen.no_room += len(read) - len(fits)
        if of_class is not None and part.labels is not None:
            same = [i for i in fits if _has_class(_named(part.labels[i], names), of_class)]
            chosen.other_class += len(fits) - len(same)
            fits = same
        by_answer = of_class if part.labels is None else None
        if fits:
            _add(chosen, trial, [read[i] for i in fits], by_answer, limit)
        if len(chosen.texts) == limit:
            break
    if not chosen.texts:
        raise UserError(
            f"no text can be padded: {chosen.no_room} leave no room for {dose} times as much "
            f"filler in {padding.room} tokens, {chosen.other_class} are of another class, and on "
            f"{chosen.disagree} dense and pruned disagree without filler; give other texts"
        )
    return chosen


def _add(
    chosen: Chosen, trial: Trial, texts: Sequence[Any], of_class: str | None, limit: int
) -> None:
    """Add the texts that dense and pruned give the same class. of_class: only this one."""
    reading = Reading(trial.bundle, texts)
    pruned = decide(trial.bundle, reading, trial.plan)
    dense = decide(trial.dense, read_by(trial.dense, reading, trial.bundle), None)
    for text, dense_class, pruned_class, encoding, kept in zip(
        texts, dense.classes, pruned.classes, reading.encodings, pruned.kept, strict=True
    ):
        if len(chosen.texts) == limit:
            return
        if of_class is not None and not _has_class(dense_class, of_class):
            chosen.other_class += 1
        elif dense_class != pruned_class:
            chosen.disagree += 1
        else:
            chosen.texts.append(text)
            chosen.classes.append(dense_class)
            parts, ends = encoding.sequence_ids, [end for _, end in encoding.offsets]
            places = [(parts[i], ends[i] - 1) for i in kept]
            chosen.decisive.append([(part, at) for part, at in places if part is not None])


def read_by(bundle: Bundle, reading: Reading, reader: Bundle) -> Reading:
    """The same texts as another bundle than the `reader` of this reading reads them."""
    return reading if bundle is reader else Reading(bundle, reading.texts)


def _named(label: Any, names: Sequence[Any]) -> Any:
    return tuple(names[i] for i in label) if isinstance(label, list | tuple) else names[label]


def _has_class(classes: Any, name: str) -> bool:
    """Is this the class, or one of several?"""
    return name in map(str, classes) if isinstance(classes, tuple) else str(classes) == name
