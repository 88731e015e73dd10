"""Where dense and pruned part ways on what training never saw: class by class, and some examples.

A mean hides who pays for it. Two models of the same accuracy may differ in every tenth answer, and
all of these may be of one class.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toprune.data.images import Picture
from toprune.report.both import Both
from toprune.report.recalls import recalls
from toprune.tasks.embed import unit
from toprune.tasks.rank import ranking

SHOWN = 20  # examples
CUT = 280  # characters of a text
WORDS = 8  # whose tag changed, of a sentence


@dataclass(frozen=True)
class Case:
    """An example to which the two models say different things."""

    at: int  # which one
    dense: Any
    pruned: Any
    label: Any = None
    gain: float | None = None  # how much more the pruned answer is worth; None: nobody knows
    gap: float = 0.0  # between numbers, which always differ
    around: int = 0  # character of the second text that is to be seen


def changes(both: Both) -> dict[str, Any]:
    """`changed`: `count` of the examples with another answer (None where answers are numbers), how
    many of these were `lost` and `won` where labels tell, and up to 20 `examples`, lost ones
    first. `classes`, where there are some and labels: `count`, recall of `dense` and `pruned`, and
    how many `changed`."""
    kind = both.kind
    cases = CASES[kind](both)
    graded = kind in ("regress", "embed")
    found: dict[str, Any] = {"count": None if graded else len(cases)}
    if both.examples.labels is not None and not graded:
        found["lost"] = sum((case.gain or 0) < 0 for case in cases)
        found["won"] = sum((case.gain or 0) > 0 for case in cases)
    order = np.random.default_rng(0).permutation(len(cases))  # files are often sorted by class
    mixed = sorted((cases[i] for i in order), key=lambda c: (-c.gap, c.gain or 0))
    found["examples"] = [_shown(both, case) for case in mixed[:SHOWN]]
    classes = recalls(both)
    return {"changed": found} | ({"classes": classes} if classes else {})


# -- examples --------------------------------------------------------------------------------------


def _classified(both: Both) -> list[Case]:
    one, other = (logits.argmax(-1) for logits in both.by_text())
    cases: list[Case] = []
    for i in np.flatnonzero(one != other).tolist():
        label, a, b = both.label(i), int(one[i]), int(other[i])
        gain = None if label is None else float(b == label) - float(a == label)
        wanted = None if label is None else both.name(label)
        cases.append(Case(i, both.name(a), both.name(b), wanted, gain))
    return cases


def _labelled(both: Both) -> list[Case]:
    one, other = ([list(map(str, a["labels"])) for a in part] for part in both.answers())
    cases: list[Case] = []
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        if a == b:
            continue
        label, gain, wanted = both.label(i), None, None
        if label is not None:
            right = [both.name(c) for c in label]
            gain, wanted = float(len({*a} ^ {*right}) - len({*b} ^ {*right})), _listed(right)
        cases.append(Case(i, _listed(a), _listed(b), wanted, gain))
    return cases


def _tagged(both: Both) -> list[Case]:
    one, other = ([list(map(str, a["tags"])) for a in part] for part in both.answers())
    cases: list[Case] = []
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        places = [at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if not places:
            continue
        label = both.label(i)
        wanted = None if label is None else [both.name(tag) for tag in label]
        gain = None
        if wanted is not None:
            gain = float(sum((b[at] == wanted[at]) - (a[at] == wanted[at]) for at in places))
        words = both.examples.texts[i]
        cases.append(
            Case(
                i,
                _tags(words, a, places),
                _tags(words, b, places),
                None if wanted is None else _tags(words, wanted, places),
                gain,
            )
        )
    return cases


def _tags(words: Sequence[str], tags: Sequence[str], places: Sequence[int]) -> str:
    told = [f"{words[at]}: {tags[at]}" for at in places[:WORDS]]
    return ", ".join([*told, "..."] if len(places) > WORDS else told)


def _answered(both: Both) -> list[Case]:
    worth = None
    if both.examples.labels is not None:
        worth = [
            task.judge(outputs, both.rows, both.examples)
            for task, outputs in zip(both.tasks, both.outputs, strict=True)
        ]
    cases: list[Case] = []
    for i, (a, b) in enumerate(zip(*both.answers(), strict=True)):
        if a["answer"] == b["answer"]:
            continue
        golds, gain = both.label(i), None
        if worth is not None:
            f1 = [t.metrics(w[i : i + 1])["f1"] for t, w in zip(both.tasks, worth, strict=True)]
            gain = f1[1] - f1[0]
        wanted = None if golds is None else (golds[0][0] if golds else "")
        cases.append(Case(i, a["answer"], b["answer"], wanted, gain, around=a["start"]))
    return cases


def _ranked(both: Both) -> list[Case]:
    """Queries with another document on top; `at` is the dense model's."""
    documents: Any = both.examples.pairs
    orders = [ranking(scores[:, 0], both.examples.texts) for scores in both.by_text()]
    cases: list[Case] = []
    for (_, first), (_, second) in zip(*orders, strict=True):
        a, b = first[0], second[0]
        if a != b:
            known = both.examples.labels is not None
            gain = float(both.label(b) - both.label(a)) if known else None
            cases.append(Case(a, documents[a], documents[b], None, gain))
    return cases


def _measured(both: Both) -> list[Case]:
    one, other = (values[:, 0].astype(float).tolist() for values in both.by_text())
    cases: list[Case] = []
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        label = both.label(i)
        gain = None if label is None else abs(a - label) - abs(b - label)
        cases.append(Case(i, a, b, label, gain, gap=abs(a - b)))
    return cases


def _embedded(both: Both) -> list[Case]:
    """Of a pair the cosine of its vectors; of a text alone, of the two models' vectors."""
    n = len(both.examples)
    paired = both.examples.pairs is not None
    one, other = (unit(v.astype(np.float64)) for v in both.by_text(2 * n if paired else n))
    if not paired:
        alike = (one * other).sum(-1).tolist()
        return [Case(i, None, cosine, gap=1 - cosine) for i, cosine in enumerate(alike)]
    a, b = ((v[:n] * v[n:]).sum(-1).tolist() for v in (one, other))
    return [Case(i, a[i], b[i], both.label(i), gap=abs(a[i] - b[i])) for i in range(n)]


CASES: dict[str, Callable[[Both], list[Case]]] = {
    "classify": _classified,
    "multilabel": _labelled,
    "tokens": _tagged,
    "answer": _answered,
    "rank": _ranked,
    "regress": _measured,
    "embed": _embedded,
}


def _shown(both: Both, case: Case) -> dict[str, Any]:
    """For the report: words of users only as far as they are needed."""
    shown: dict[str, Any] = {"text": _named(both, case.at)}
    if both.examples.pairs is not None and both.kind != "rank":
        shown["pair"] = _cut(both.examples.pairs[case.at], case.around)
    for key in ("dense", "pruned", "label"):
        value = getattr(case, key)
        if value is not None:
            shown[key] = _cut(value) if isinstance(value, str) else value
    if case.gain is not None:
        shown["outcome"] = "lost" if case.gain < 0 else "won" if case.gain > 0 else "even"
    return shown


def _named(both: Both, at: int) -> str:
    """A text; of an image where it is, as far as that tells it from others."""
    text = both.examples.texts[at]
    if isinstance(text, list):
        return _cut(" ".join(map(str, text)))
    if not isinstance(text, str):
        return f"image {at + 1}"
    is_path = len(both.rows) > 0 and isinstance(both.rows[0], Picture)
    return "/".join(Path(text).parts[-2:]) if is_path else _cut(text)


def _cut(text: str, around: int = 0) -> str:
    """Of a long text so much that the character `around` is in the middle."""
    start = max(0, min(around - CUT // 2, len(text) - CUT))
    part = text[start : start + CUT]
    return ("..." if start else "") + part + ("..." if start + CUT < len(text) else "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "(none)"
