"""The matrix of families and tasks that test_families.py runs, and the page that shows it.

`cd tests && python -m support.matrix` rewrites the tables of docs/families.md; a test fails when
they are old.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import ViTConfig

from support.executions import TASKS
from support.models import CONFIGS, SIZES, make_tokenizer
from toprune.models.families import FAMILIES, has_segments
from toprune.models.families.support import TASKS as COLUMNS
from toprune.models.families.support import all_support, support_of
from toprune.models.heads import auto_class
from toprune.tasks import Task

_SIZES = {name: size for name, size in SIZES.items() if name != "max_position_embeddings"}
_IMAGES = {"vit": lambda **own: ViTConfig(**_SIZES, image_size=32, patch_size=8, **own)}
PAGE = Path(__file__).parents[2] / "docs" / "families.md"


@dataclass(frozen=True)
class Row:
    """A family as most of its models are, or with something about it that others have not."""

    family: str
    special: str = ""
    own: dict[str, Any] = field(default_factory=dict[str, Any])  # what its config says otherwise
    tasks: tuple[str, ...] = ("classify",)  # whose cells it has, where it is special


VARIANTS = (
    Row("electra", "narrow embeddings", {"embedding_size": 16}),
    Row("albert", "two layers in one group", {"inner_group_num": 2, "num_hidden_layers": 2}),
    Row("albert", "one group", {"num_hidden_groups": 1}),
    Row(
        "deberta-v2",
        "a convolution",
        {"conv_kernel_size": 3, "conv_act": "gelu"},
        ("classify", "tokens", "embed"),
    ),
    Row("deberta-v2", "no buckets", {"position_buckets": -1}),
    Row("deberta-v2", "separate position projections", {"share_att_key": False}),
    Row(
        "deberta-v2",
        "content to position only",
        {"pos_att_type": ["c2p"], "share_att_key": False},
    ),
    Row("deberta-v2", "positions in the input too", {"position_biased_input": True}),
    Row("modernbert", "a mean of all tokens", {"classifier_pooling": "mean"}),
    Row("eurobert", "a mean of all tokens", {"classifier_pooling": "mean"}),
    Row("eurobert", "a mean of the logits of all tokens", {"classifier_pooling": "late"}),
    Row("gte", "segments", {"type_vocab_size": 2}, ("classify", "embed")),
    Row("nomic_bert", "segments", {"type_vocab_size": 2}, ("classify", "embed")),
)


@dataclass(frozen=True)
class Cell:
    row: Row
    column: str

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.row.family, self.row.special, self.column)))

    @property
    def task(self) -> Task:
        return TASKS["embed mean" if self.column == "embed" else self.column][0]

    @property
    def images(self) -> bool:
        return FAMILIES[self.row.family].images

    def config(self) -> Any:
        outputs = TASKS["embed mean" if self.column == "embed" else self.column][1]
        if self.images:
            return _IMAGES[self.row.family](num_labels=outputs)
        tokens = {"vocab_size": len(make_tokenizer()), "pad_token_id": 1}
        config = CONFIGS[self.row.family](num_labels=outputs, **tokens)
        for name, value in self.row.own.items():
            setattr(config, name, value)
        return config

    def model(self) -> Any:
        """Random weights, the same every time."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            config = self.config()
            model = auto_class(self.task, config).from_config(config).eval()
        if self.task.HEAD == "encoder":
            model.pooler = None  # as `read_weights` does
        return model

    def tokenizer(self) -> Any:
        return make_tokenizer("bert" if has_segments(self.config()) else "roberta")


def cells_of(row: Row) -> list[Cell]:
    tasks = support_of(FAMILIES[row.family]).tasks
    return [Cell(row, task) for task in tasks if not row.special or task in row.tasks]


def cells() -> list[Cell]:
    return [cell for row in (*map(Row, FAMILIES), *VARIANTS) for cell in cells_of(row)]


# -- the page ------------------------------------------------------------------------------------


def page() -> str:
    """docs/families.md with its tables as they must be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in {"matrix": _matrix(), "notes": _notes(), "variants": _variants()}.items():
        begin, end = f"<!-- {name}: generated -->\n", f"\n<!-- {name}: end -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}{table}{end}{rest.split(end)[1]}"
    return text


def _matrix() -> str:
    none = "transformers has none"
    rows = [
        (
            f"`{row.family.name}`",
            *(row.missing.get(task, "✓") for task in COLUMNS),
            "✓" if row.checkpointing else none,
            row.family.since,
        )
        for row in all_support()
    ]
    return _table(("family", *COLUMNS, "gradient checkpointing", "since"), rows)


def _notes() -> str:
    rows = [(f"`{f.name}`", f.note.models, f.note.positions) for f in FAMILIES.values()]
    return _table(("family", "models, among others", "positions"), rows)


def _variants() -> str:
    rows: list[tuple[str, ...]] = []
    for row in VARIANTS:
        settings = ", ".join(f"`{name}={value!r}`" for name, value in row.own.items())
        tasks = ", ".join(cell.column for cell in cells_of(row))
        rows.append((f"`{row.family}`", row.special, settings, tasks))
    return _table(("family", "with", "setting", "tasks"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
