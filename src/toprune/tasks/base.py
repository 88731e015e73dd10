"""What the rest of the house asks of a task, and what is the same for most."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from toprune.data.examples import Examples
from toprune.data.reads import Reads

if TYPE_CHECKING:
    from torch import Tensor

    from toprune.tasks.side_by_side import Change, SideBySide
    from toprune.tasks.tokenize import Row

Outputs = Sequence[np.ndarray]  # of each row: (C,), or (n, C) where the head answers by token
Rows = Sequence["Row"]
Labels = tuple[str, ...] | None  # names of classes or tags by id, where there are any
Answers = list[dict[str, Any]]  # one for each text


class Task(Protocol):
    """Letters: B batch, S length, C outputs of the head; `outputs` of the torch functions are
    (B, C), or (B, S, C) where the head answers by token; the mask (B, S) is 1 for live tokens."""

    NAME: ClassVar[str]
    READS: ClassVar[Reads]  # its columns, and what their cells hold
    METRICS: ClassVar[tuple[str, ...]]  # names; it is judged by the first
    HEAD: ClassVar[str]  # which kind: a key of `heads.HEADS`
    OUTPUTS: ClassVar[tuple[str, ...]]  # what the model's answer calls them, and the ONNX file
    # For reports and the model card.
    HUB_TAG: ClassVar[str]  # the hub's pipeline tag
    EXAMPLE: ClassVar[str] = '["a text", "another"]'  # argument of Runner.predict
    UNIT: ClassVar[str] = "examples"  # what `changes` counts
    NUMERIC: ClassVar[bool] = False  # answers are numbers: two models always differ a little
    AGREEMENT: ClassVar[str] = "Dense and pruned give the same answer to {:.1f} % of the examples."

    @property
    def whole(self) -> bool:
        """Does the head read every token? Then dropped ones are put back for it."""
        return False

    def num_outputs(self, examples: Examples) -> int:
        """How many outputs a new head needs."""
        ...

    def head(self, examples: Examples) -> dict[str, Any]:
        """What else a new head's config must say."""
        return {}

    def check_head(self, config: Any, examples: Examples) -> None:
        """Refuse a model whose head cannot mean these labels."""
        ...

    def target(self, row: "Row", label: Any) -> Any:
        """What the head is to say to one row."""
        return label

    def margin(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """(B,): the number whose gradient says which tokens the answer depends on."""
        ...

    def own_share(self, outputs: "Tensor", mask: "Tensor") -> "Tensor | None":
        """(B, S): log of the share of the answer that each token is; None: no token is one."""
        return None

    def distill_loss(self, student: "Tensor", teacher: "Tensor", mask: "Tensor") -> "Tensor": ...

    def label_loss(self, student: "Tensor", labels: "Tensor", mask: "Tensor") -> "Tensor": ...

    def judge(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """(units, k): all that the metrics must know of each unit, for a bootstrap to draw from."""
        ...

    def metrics(self, judged: np.ndarray) -> dict[str, float]: ...

    def agreement(self, one: Outputs, other: Outputs, rows: Rows, examples: Examples) -> float:
        """How much two models say the same, by whatever they say."""
        ...

    def answers(
        self, outputs: Outputs, rows: Rows, texts: Sequence[Any], labels: Labels
    ) -> Answers:
        """For people and programs, one for each text."""
        ...

    def changes(self, sides: "SideBySide") -> "list[Change]":
        """The examples for which the two models give different answers."""
        ...

    def recalls(self, sides: "SideBySide") -> list[dict[str, Any]]:
        """One row per class: `name`, `count`, recall of `dense` and of `pruned`, and how many
        answers `changed`. Called with labels; empty where answers are not classes."""
        return []
