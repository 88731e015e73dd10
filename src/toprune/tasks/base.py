"""The interface of a task with the defaults that most tasks share; windows of long texts."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from toprune.data.examples import Examples
from toprune.data.reads import Reads
from toprune.errors import UserError
from toprune.plan.plan import Restore
from toprune.tasks.pool import Array

if TYPE_CHECKING:
    from torch import Tensor

    from toprune.tasks.side_by_side import Change, SideBySide
    from toprune.tasks.tokenize import Row

Outputs = Sequence[np.ndarray]  # of each row: (C,), or (n, C) where the head answers by token
Rows = Sequence["Row"]
Labels = tuple[str, ...] | None  # names of classes or tags by id, where there are any
Predictions = list[dict[str, Any]]  # one for each text


class Task(Protocol):
    """Everything that the package knows about one task. A task subclasses this explicitly.

    Letters: B batch, S length, C outputs of the head; `outputs` of the torch functions are
    (B, C), or (B, S, C) where the head answers by token; the mask (B, S) is 1 for live tokens.
    """

    NAME: ClassVar[str]
    READS: ClassVar[Reads]  # its columns, and what their cells hold
    METRICS: ClassVar[tuple[str, ...]]  # names; the first one is the main metric
    HEAD: ClassVar[str]  # kind of head: a key of `models.heads.HEADS`
    SAME_HEAD_AS: ClassVar[str | None] = None  # a task that stands for this one in support tables
    OUTPUTS: ClassVar[tuple[str, ...]]  # output names of the torch model and of the ONNX file
    NUM_OUTPUTS: ClassVar[int | None] = None  # C, where the task fixes it
    MIN_CLASSES: ClassVar[int] = 1

    MAX_LENGTH: ClassVar[int | None] = None  # usual limit in tokens; None: all the model can read
    KEEPS_FIRST: ClassVar[bool] = False  # the first text of a pair is never dropped
    PAIR_ROLES: ClassVar[tuple[str, str] | None] = None  # of a task that always reads pairs
    HAS_LABEL_NAMES: ClassVar[bool] = False  # the outputs are classes or tags that have names
    READS_IMAGES: ClassVar[bool] = False  # a text may be an image
    BY_TOKEN: ClassVar[bool] = False  # the head answers for every token
    TARGET_BY_TOKEN: ClassVar[bool] = False  # so does the training target, which is padded then
    FINDS_SPANS: ClassVar[bool] = False  # the answer is a span of the second text
    RANKS: ClassVar[bool] = False  # the score of a pair orders the second texts of one first text
    POOLS: ClassVar[bool] = False  # there is no head: token states are pooled to one vector
    # For reports and the model card.
    HUB_TAG: ClassVar[str]  # the hub's pipeline tag
    EXAMPLE: ClassVar[str] = '["a text", "another"]'  # argument of Runner.predict
    UNIT: ClassVar[str] = "examples"  # what `changes` counts
    NUMERIC: ClassVar[bool] = False  # answers are numbers: two models always differ a little
    ANSWER: ClassVar[str]  # entry of `predictions` that is the answer; the others go with it
    NO_MARGIN: ClassVar[str | None] = None  # why answers have no margin, and what to do instead
    AGREEMENT: ClassVar[str] = "Dense and pruned give the same answer to {:.1f} % of the examples."

    @property
    def reads_all(self) -> bool:
        """Whether the head reads every token, so that dropped ones are put back for it."""
        return self.BY_TOKEN

    @property
    def restore(self) -> Restore:
        """The state with which a dropped token comes back for a head that reads every token."""
        return "last"

    @property
    def overlap(self) -> int | None:
        """Tokens that two windows of a long text share; None: long texts are cut off."""
        return getattr(self, "stride", None)

    @property
    def needs_tuning(self) -> bool:
        """Whether a setting depends on the model's outputs (see `tune`)."""
        return False

    def tune(self, outputs: Outputs, rows: Rows, examples: Examples) -> Self:
        """Return the task with the settings that suit these outputs best.

        Args:
            outputs: of a model on labelled training examples.
            rows: the rows that the outputs are of.
            examples: the training examples.
        """
        return self

    def sized(self, outputs: Callable[[], int]) -> Self:
        """Return the task with its number of classes, where it needs that and has none yet."""
        return self

    def check_finetune(self) -> None:
        """Refuse a task that cannot be fine-tuned here."""

    def num_outputs(self, examples: Examples) -> int:
        """How many outputs a new head needs."""
        self.check_finetune()
        assert self.NUM_OUTPUTS is not None
        return self.NUM_OUTPUTS

    def head(self, examples: Examples) -> dict[str, Any]:
        """Further entries of a new head's config."""
        return {}

    def check_head(self, config: Any, examples: Examples) -> None:
        """Refuse a model whose head cannot mean these labels."""
        ...

    def check_labels(self, examples: Examples, outputs: int) -> None:
        """Refuse labels for which a head with so many outputs has no class."""

    def target(self, row: "Row", label: Any) -> Any:
        """The training target of one row."""
        return label

    def pool(self, states: Array, mask: Array) -> Array:
        """Turn the model's output into what the task reads; only a task that pools changes it."""
        return states

    def margin(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """(B,): the number whose gradient shows which tokens the answer depends on."""
        ...

    def log_shares(self, outputs: "Tensor", mask: "Tensor") -> "Tensor | None":
        """(B, S): log probability that each token is the answer; None: tokens are not answers."""
        return None

    def distill_loss(self, student: "Tensor", teacher: "Tensor", mask: "Tensor") -> "Tensor":
        """How far the student's outputs are from the teacher's."""
        ...

    def label_loss(self, student: "Tensor", labels: "Tensor", mask: "Tensor") -> "Tensor":
        """How far the student's outputs are from the targets of a batch."""
        ...

    def statistics(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(units, k): what the metrics need of each unit. A bootstrap draws from these rows."""
        ...

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """The metrics by name, from the rows of `statistics`."""
        ...

    def compared(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(units,) or (units, k): what `agree` needs of each unit; mostly 1 for the same answer of
        two models and 0 for another. A bootstrap draws from these rows."""
        ...

    def agree(self, compared: np.ndarray) -> float:
        """How far two models agree, 1 for the same answers, from the rows of `compared`."""
        return float(compared.mean())

    def agreement(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> float:
        """How far two models agree on these examples."""
        return self.agree(self.compared(one, other, rows, examples))

    def by_text(self, outputs: Outputs, rows: Rows, count: int) -> np.ndarray:
        """(count, C): the outputs of each text, where there is one answer per text."""
        return by_text(outputs, rows, count)

    def predictions(
        self, outputs: Outputs, rows: Rows, texts: Sequence[Any], labels: Labels
    ) -> Predictions:
        """Answer texts, for people and programs.

        Args:
            outputs: of the model, one array for each row.
            rows: the rows that the outputs belong to.
            texts: the texts that the rows come from.
            labels: names of classes or tags by id; None: ids are given.

        Returns:
            One dict for each text.
        """
        ...

    def probabilities(self, logits: np.ndarray) -> np.ndarray | None:
        """(N, C) -> (N, C): the probability of every class; None: the outputs are no classes."""
        return None

    def answer_margins(self, outputs: Outputs, rows: Rows, count: int) -> np.ndarray:
        """(count,): how far the answer to each text is from being another one, 0 or more. A bundle
        with a fallback gives texts with a small margin to the dense model."""
        raise UserError(f"the task {self.NAME} has no margin: {self.NO_MARGIN}")

    def changes(self, sides: "SideBySide") -> "list[Change]":
        """The examples for which the two models give different answers."""
        ...

    def recalls(self, sides: "SideBySide") -> list[dict[str, Any]]:
        """One row per class: `name`, `count`, recall of `dense` and of `pruned`, how many answers
        `changed`, and how many of the class only one model finds: `lost` and `won` by the pruned
        one. Called with labels; empty where answers are not classes."""
        return []


def by_text(outputs: Outputs, rows: Rows, count: int) -> np.ndarray:
    """(count, C): the mean over the windows of each text, with equal weights."""
    if not len(outputs):
        return np.zeros((0, 1), np.float32)
    stacked = np.asarray(outputs, np.float32)  # (rows, C)
    at = np.array([row.text for row in rows])
    if len(at) == count and (at == np.arange(count)).all():  # one window each
        return stacked
    total = np.zeros((count, stacked.shape[1]), np.float32)
    np.add.at(total, at, stacked)
    return total / np.bincount(at, minlength=count)[:, None].astype(np.float32)


def check_stride(stride: int | None) -> None:
    """Refuse an overlap of windows that is not a number of tokens."""
    if stride is not None and (type(stride) is not int or stride < 0):
        raise UserError(f"windows cannot overlap by {stride} tokens; use 0 or more")
