"""One tag per word, as in named entity recognition or part-of-speech tagging.

The first piece of a word stands for it, in training and in scoring. The scores are those of
seqeval's default mode (which follows conlleval): an entity is right when its type, first and last
word are, and tags that break the rules of IOB2 are read leniently, so an I- without a B- starts an
entity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from toprune.data.examples import Examples
from toprune.data.labels import fold
from toprune.data.reads import Reads
from toprune.errors import UserError
from toprune.tasks.base import Labels, Outputs, Predictions, Rows, Task, check_stride
from toprune.tasks.classify import class_names, distill, top_two_gap
from toprune.tasks.side_by_side import Change, SideBySide

if TYPE_CHECKING:
    from torch import Tensor

    from toprune.tasks.tokenize import Row

IGNORE = -100  # the target of a token that is not the first piece of a word
OUTSIDE = "O"
SHOWN = 8  # words of a changed sentence that the report names
PREFIXES = {"B": "B", "I": "I", "E": "E", "L": "E", "S": "S", "U": "S"}  # IOB2, IOBES and BILOU


class Tag(NamedTuple):
    """B-PER is Tag("B", "PER"): the place of a word in an entity, and the entity's type."""

    place: str
    type: str


class Entity(NamedTuple):
    """Numbers of the first and the last word."""

    type: str
    first: int
    last: int


@dataclass(frozen=True)
class Tags(Task):
    stride: int = 0  # overlap of windows over long texts, in tokens

    NAME: ClassVar[str] = "tokens"
    METRICS: ClassVar[tuple[str, ...]] = ("f1", "precision", "recall", "accuracy")
    HEAD: ClassVar[str] = "tokens"
    OUTPUTS: ClassVar[tuple[str, ...]] = ("logits",)
    HAS_LABEL_NAMES: ClassVar[bool] = True
    BY_TOKEN: ClassVar[bool] = True
    TARGET_BY_TOKEN: ClassVar[bool] = True
    READS: ClassVar[Reads] = Reads(
        "the task tokens reads a list of words (--text) and a list of tags (--label)",
        texts=("tokens", "words", "text", "sentence"),
        labels=("ner_tags", "tags", "labels", "label"),
        label_type="tags",
        text_role="list of words",
        words=True,
    )
    HUB_TAG: ClassVar[str] = "token-classification"
    EXAMPLE: ClassVar[str] = '["Ada lives in London"]'
    UNIT: ClassVar[str] = "sentences"
    AGREEMENT: ClassVar[str] = "Dense and pruned give the same tag to {:.1f} % of the words."
    ANSWER: ClassVar[str] = "tags"

    def __post_init__(self) -> None:
        check_stride(self.stride)

    def num_outputs(self, examples: Examples) -> int:
        if examples.label_names is not None:
            return len(examples.label_names)
        if examples.labels is None:
            raise UserError("a new head needs labels; name the label column")
        return _largest(examples) + 1

    def check_head(self, config: Any, examples: Examples) -> None:
        """Refuse a model with other tags than the data: one tag more or less shifts all ids."""
        names, model_names = examples.label_names, class_names(config)
        if names is not None and len(names) != config.num_labels:
            raise UserError(
                f"the data has {len(names)} tags, the model's head {config.num_labels}; load the "
                "data with the model's label_names or fine-tune a head first (toprune finetune)"
            )
        if names and model_names and fold(names) != fold(model_names):
            raise UserError(
                f"the data's tags are {', '.join(names)}, the model's "
                f"{', '.join(model_names)}; load the data with the model's label_names "
                "or fine-tune a head first (toprune finetune)"
            )
        if examples.labels is not None and _largest(examples) >= config.num_labels:
            raise UserError(
                f"tags go up to {_largest(examples)}, but the model's head has {config.num_labels} "
                f"(0 to {config.num_labels - 1}); fine-tune a head first (toprune finetune)"
            )

    def target(self, row: "Row", label: Any) -> Any:
        """The word's tag at its first piece, IGNORE at every other token."""
        words, pieces = _places(row)
        return np.array([*label, IGNORE])[np.where(pieces == 0, words, -1)].tolist()

    def margin(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """(B, S, C) -> (B,): best minus second best logit, summed over live tokens."""
        best = outputs.topk(2, dim=-1).values  # (B, S, 2)
        return ((best[..., 0] - best[..., 1]) * mask).sum(1)

    def distill_loss(self, student: "Tensor", teacher: "Tensor", mask: "Tensor") -> "Tensor":
        """T^2 KL(teacher || student) of logits (B, S, C), the mean over live tokens."""
        live = mask.bool()
        return distill(student[live], teacher[live])

    def label_loss(self, student: "Tensor", labels: "Tensor", mask: "Tensor") -> "Tensor":
        """Cross entropy of logits (B, S, C) with tags (B, S), the mean over first pieces."""
        from torch.nn import functional as F

        live = mask.bool()
        tags = labels[live]
        total = F.cross_entropy(student[live], tags, ignore_index=IGNORE, reduction="sum")
        return total / (tags != IGNORE).sum().clamp_min(1)  # a window may have no first piece

    def statistics(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N, 5) counts per sentence: right, predicted and true entities; right words, words."""
        if examples.labels is None:
            raise UserError("metrics of tags need labels; name the label column")
        names = examples.label_names or [str(i) for i in range(outputs[0].shape[-1])]
        predicted = _read(outputs, rows, list(map(len, examples.texts)), names)
        labels: Any = examples.labels
        if _largest(examples) >= len(names):
            raise UserError(
                f"tags go up to {_largest(examples)}, but the model has {len(names)}; "
                "fine-tune a head for these tags first (toprune finetune)"
            )
        tags = parse(names)
        statistics = np.zeros((len(examples), 5), np.int64)
        for i, (ids, label) in enumerate(zip(predicted, labels, strict=True)):
            proposed = set(entities([tags[tag] for tag in ids]))
            true = set(entities([tags[tag] for tag in label]))
            right = int((ids == np.asarray(label, np.int64)).sum())
            statistics[i] = len(proposed & true), len(proposed), len(true), right, len(label)
        return statistics

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """Micro scores: over all entities, not the mean over types; accuracy is over words.

        With flat tags (parts of speech) each word is an entity, except a word with the tag "O". So
        without an "O" all four are the same number. 0/0 counts as 0.
        """
        right, proposed, true, right_words, words = (int(count) for count in statistics.sum(0))
        return {
            "f1": 2 * right / max(proposed + true, 1),
            "precision": right / max(proposed, 1),
            "recall": right / max(true, 1),
            "accuracy": right_words / max(words, 1),
        }

    def compared(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(N, 2) per sentence: words that get the same tag, and words."""
        counts, names = list(map(len, examples.texts)), examples.label_names or []
        tags = zip(*(_read(x, rows, counts, names) for x in (one, other)), strict=True)
        return np.array([((a == b).sum(), len(a)) for a, b in tags]).reshape(-1, 2)

    def agree(self, compared: np.ndarray) -> float:
        """Share of the words that get the same tag."""
        same, words = compared.sum(0)
        return float(same / max(words, 1))

    def predictions(
        self, outputs: Outputs, rows: Rows, texts: Sequence[Any], labels: Labels
    ) -> Predictions:
        """`tags`, the name or id of each word's tag; also `entities` if the tags have prefixes."""
        tag_ids = _read(outputs, rows, list(map(len, texts)), labels or ())
        if labels is None:
            return [{"tags": ids.tolist()} for ids in tag_ids]
        predictions: Predictions = [{"tags": [labels[i] for i in ids]} for ids in tag_ids]
        if has_prefixes(labels):
            tags = parse(labels)
            for prediction, ids, words in zip(predictions, tag_ids, texts, strict=True):
                prediction["entities"] = [
                    entity._asdict() | {"text": " ".join(words[entity.first : entity.last + 1])}
                    for entity in entities([tags[i] for i in ids])
                ]
        return predictions

    def answer_margins(self, outputs: Outputs, rows: Rows, count: int) -> np.ndarray:
        """Best minus second best logit of the least sure word, in every window that reads it: one
        other tag makes another answer."""
        margins = np.full(count, np.inf)
        for output, row in zip(outputs, rows, strict=True):
            _, pieces = _places(row)
            gaps = top_two_gap(output[pieces == 0])
            margins[row.text] = min(margins[row.text], gaps.min(initial=np.inf))
        return margins

    def changes(self, sides: SideBySide) -> list[Change]:
        """Sentences in which a word has another tag; the gain is in words."""
        changes: list[Change] = []
        for i, (dense, pruned) in enumerate(zip(*_tags(sides), strict=True)):
            places = np.flatnonzero(dense != pruned)
            if not len(places):
                continue
            label, gain = sides.label(i), None
            if label is not None:
                label = np.asarray(label, np.int64)
                right = [int((ids == label)[places].sum()) for ids in (dense, pruned)]
                gain = float(right[1] - right[0])
            words = sides.examples.texts[i]
            shown = [
                None if ids is None else _show(sides, words, ids, places.tolist())
                for ids in (dense, pruned, label)
            ]
            changes.append(Change(i, shown[0], shown[1], shown[2], gain))
        return changes

    def recalls(self, sides: SideBySide) -> list[dict[str, Any]]:
        """By word."""
        labels: Any = sides.examples.labels
        dense, pruned = _tags(sides)
        ids = [[i for tags in texts for i in tags] for texts in (labels, dense, pruned)]
        return sides.recalls_of_one_class(ids[0], ids[1], ids[2], sides.outputs[0][0].shape[-1])


def _tags(sides: SideBySide) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Tag ids of each text's words, by each model."""
    counts, names = list(map(len, sides.examples.texts)), sides.names or ()
    dense, pruned = (_read(outputs, sides.rows, counts, names) for outputs in sides.outputs)
    return dense, pruned


def _show(sides: SideBySide, words: Sequence[str], ids: np.ndarray, places: Sequence[int]) -> str:
    parts = [f"{words[at]}: {sides.name(ids[at])}" for at in places[:SHOWN]]
    return ", ".join([*parts, "..."] if len(places) > SHOWN else parts)


def has_prefixes(names: Sequence[str]) -> bool:
    """Whether all tags but "O" have a prefix for the place in an entity, as B-PER and I-PER."""
    places = {name.partition("-")[0] for name in names if name != OUTSIDE}
    return places <= PREFIXES.keys() and not places.isdisjoint("BI")


def parse(names: Sequence[str]) -> list[Tag]:
    """The tags by id. A flat tag becomes an entity of one word, so one rule fits all."""
    if not has_prefixes(names):
        return [Tag(OUTSIDE if name == OUTSIDE else "S", name) for name in names]
    parts = [name.partition("-") for name in names]
    return [Tag(PREFIXES.get(place, OUTSIDE), type_name or "_") for place, _, type_name in parts]


def entities(tags: Sequence[Tag]) -> list[Entity]:
    """The entities in the tags of one sentence, in order."""
    result: list[Entity] = []
    before = Tag(OUTSIDE, "")
    for i, tag in enumerate(tags):
        continues = tag.place in "IE" and before.place in "BI" and tag.type == before.type
        if continues:
            result[-1] = result[-1]._replace(last=i)
        elif tag.place != OUTSIDE:
            result.append(Entity(tag.type, i, i))
        before = tag
    return result


def _read(
    outputs: Outputs,
    rows: Rows,
    counts: Sequence[int],
    names: Sequence[str],
) -> list[np.ndarray]:
    """Tag ids of the words of each text.

    A word in several windows is read in the window whose nearer end is farthest from it, the first
    of equals. A word in no window is "O", or has the first tag if there is no "O".

    Args:
        outputs: of the model, (n, C) for each row.
        rows: the rows that the outputs belong to.
        counts: number of words of each text.
        names: of the tags, by id.
    """
    outside = names.index(OUTSIDE) if OUTSIDE in names else 0
    tag_ids = [np.full(count, outside) for count in counts]
    context = [np.full(count, -1) for count in counts]  # tokens to the nearer end
    for output, row in zip(outputs, rows, strict=True):
        words, pieces = _places(row)
        at = np.flatnonzero(pieces == 0)
        words, room = words[at], np.minimum(at, len(pieces) - 1 - at)
        better = room > context[row.text][words]
        tag_ids[row.text][words[better]] = output[at[better]].argmax(-1)
        context[row.text][words[better]] = room[better]
    return tag_ids


def _places(row: "Row") -> tuple[np.ndarray, np.ndarray]:
    """Word number and piece number of each token, (n,) and (n,)."""
    assert row.places is not None, "a text of words was read without its words"
    return row.places[:, 0], row.places[:, 1]


def _largest(examples: Examples) -> int:
    labels: Any = examples.labels
    return max((tag for tags in labels for tag in tags), default=0)
