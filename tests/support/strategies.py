"""Random plans and random texts for property tests, and what every such test does with them."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import torch
from hypothesis import strategies as st

from support.models import SIZES, SPECIAL
from toprune.plan.plan import Plan, Score, Step

CLS, PAD, SEP = map(SPECIAL.index, ("[CLS]", "[PAD]", "[SEP]"))
LAYERS, WIDTH = SIZES["num_hidden_layers"], SIZES["hidden_size"]
USED = range(2, 22)  # ids of random texts: few, so that protected ones are often among them
INNER = 6  # width of predictors
PROTECTED = ((), (3,), (2, 7, 11), (4, 5, 6, 8, 9))


def make_plan(family: str = "bert", *keeps: tuple[int, str], **fields: Any) -> Plan:
    """A plan for a tiny model: make_plan("bert", (0, "1/2"), (2, "1/4"), score="probe")."""
    steps = tuple(Step(layer, Fraction(keep)) for layer, keep in keeps)
    fields = {"score": "received"} | fields
    if steps:
        fields.setdefault("probe", probe_for(fields["score"], len(steps)))
    if fields["score"] == "predicted" and steps:
        fields.setdefault("predictor", INNER)
    return Plan(family=family, n_layers=LAYERS, width=WIDTH, steps=steps, **fields)


def random_probe(seed: int, steps: int = 1) -> tuple[float, ...]:
    return tuple(np.random.default_rng(seed).normal(size=steps * WIDTH).tolist())


def probe_for(score: Score, steps: int, seed: int = 0) -> tuple[float, ...] | None:
    """The numbers that a plan of so many steps needs, if it needs any."""
    many = {"probe": 1, "probes": steps}.get(score)
    return random_probe(seed, many) if many and steps else None


@st.composite
def plans(draw: Any, family: str, **fields: Any) -> Plan:
    """Any steps at any layers that may have one, any ratios, any score, any protected tokens."""
    layers = sorted(draw(st.sets(st.integers(0, LAYERS - 2))))
    ratios = st.fractions(Fraction(1, 100), 1, max_denominator=100)
    keeps = draw(st.lists(ratios, min_size=len(layers), max_size=len(layers)))
    score: Score = draw(st.sampled_from(get_args(Score)))
    probe = probe_for(score, len(layers), draw(st.integers(0, 9)))
    predicted = score == "predicted" and bool(layers)
    may_return = predicted and fields.get("restore", "none") == "none"
    return Plan(
        family=family,
        n_layers=LAYERS,
        width=WIDTH,
        score=score,
        steps=tuple(map(Step, layers, sorted(keeps, reverse=True))),
        probe=probe,
        predictor=INNER if predicted else None,
        returns=may_return and draw(st.booleans()),
        protect=draw(st.sampled_from(PROTECTED)),
        protect_until=draw(st.sampled_from((None, SEP))),
        min_tokens=draw(st.integers(1, 5)),
        **fields,
    )


def random_text(length: int, seed: int | tuple[int, ...]) -> list[int]:
    """[CLS] and random words, `length` tokens in all."""
    ids = np.random.default_rng(seed).integers(USED.start, USED.stop, length)
    return [CLS, *ids[1:].tolist()]


@st.composite
def texts(draw: Any, max_texts: int = 4, max_length: int = 24) -> list[list[int]]:
    lengths = draw(st.lists(st.integers(1, max_length), min_size=1, max_size=max_texts))
    seed = draw(st.integers(0, 999))
    rows = [random_text(n, (seed, i)) for i, n in enumerate(lengths)]
    for i, row in enumerate(rows):
        if len(row) > 1 and (seed + i) % 4 != 3:  # a pair, its first text short; else maybe none
            row[1 + (seed + i) % (1 + len(row) // 3)] = SEP
    return rows


def guarded(plan: Plan, row: Sequence[int]) -> set[int]:
    """Places of the tokens that no step may take."""
    ids = {0} | {i for i, token in enumerate(row) if token in plan.protect}
    if plan.protect_until is None:
        return ids
    return ids | {i for i in range(len(row)) if plan.protect_until not in row[:i]}


def pad(rows: Sequence[Sequence[int]], extra: int = 0) -> dict[str, torch.Tensor]:
    """A right-padded batch of texts, `extra` columns wider than it has to be."""
    length = max(map(len, rows)) + extra
    ids = torch.full((len(rows), length), PAD)
    for b, row in enumerate(rows):
        ids[b, : len(row)] = torch.tensor(row)
    counts = torch.tensor([len(row) for row in rows])
    return {
        "input_ids": ids,
        "attention_mask": (torch.arange(length) < counts[:, None]).long(),
    }


@torch.no_grad()
def logits(model: Any, rows: Sequence[Sequence[int]], extra: int = 0) -> torch.Tensor:
    return model(**pad(rows, extra)).logits
