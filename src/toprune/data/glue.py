"""The GLUE tasks by name: what their files look like, how long their texts get, how ToP trained.

A task is read from a folder of the official TSV files, from the hub, or from whatever else
`data.load` takes. Class ids are the hub's, or the model's own where its head has the same names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from toprune.data.columns import Columns, choose_columns, present_in
from toprune.data.examples import Examples, choose_splits, from_tables, load, read_texts
from toprune.data.files import SPLITS, Table, read, read_tsv
from toprune.data.labels import fold
from toprune.data.reads import Reads
from toprune.errors import UserError
from toprune.io.untrusted import read_json
from toprune.plan.plan import Score

HUB = "nyu-mll/glue"
Schedule = Literal["short", "paper"]


@dataclass(frozen=True)
class Recipe:
    """A schedule: what it changes of `fit.Training` and `methods.top.Top`, in their own words.

    Plain data, because whoever only evaluates has no torch to import those two with.
    """

    epochs: float = 5.0  # of pruning, in all
    soft: float = 0.2  # share of them that learns masks; in the rest tokens are truly gone
    score: Score = "probe"
    training: Mapping[str, Any] = field(default_factory=dict)
    top: Mapping[str, Any] = field(default_factory=dict)
    finetune: Mapping[str, Any] = field(default_factory=dict)  # of Training, for the dense model


SHORT = Recipe()  # the library's defaults: minutes on a CPU


def _paper(
    epochs: int,
    warmup: int,
    bins: int,
    *,
    dense: int,
    top_k: int = 20,
    lr: float = 2e-5,
    label_weight: float = 0.0,
) -> Recipe:
    """ToP's recipe: masks are learned to the end, by multipliers, from logits alone. The method
    stays ours (see `methods/top.py`), and STS-B learns from the dense model beside its labels.

    Bins, top-k, epochs and warm-up are those of its README. The rates and the weight of the ranking
    loss were searched there and only SST-2's are given; the others get what lies in the grid
    (weights 1e-5 to 6e-5, masks .01 to .04, ranking 1e-5 to 1e-2). `first`: layer 2 of the
    published code sees fewer tokens first, which is to drop them in layer 1.
    """
    return Recipe(
        epochs=epochs,
        soft=1.0,
        score="received",
        training={
            "lr": lr,
            "mask_lr": 0.02,
            "lr_warmup": 0.0,
            "sparsity_warmup": warmup / epochs,
            "state_weight": 0.0,
            "dropout": True,
            "label_weight": label_weight,
        },
        top={
            "bins": bins,
            "top_k": top_k,
            "first": 1,
            "constraint": "lagrangian",
            "distill_weight": 0.01,
        },
        finetune={"hard_epochs": dense, "lr": 2e-5, "lr_warmup": 0.0},
    )


@dataclass(frozen=True)
class Glue:
    """One task. `title` is also the name of its folder in the official download."""

    name: str  # as users write it, and the hub's name for its configuration
    title: str
    columns: Columns  # of the official files; numbers: the files have no header
    hub_columns: Columns
    classes: tuple[str, ...]  # by id; none: a number is to be told
    metrics: tuple[str, ...]  # what is reported first
    max_length: int  # the paper's
    paper: Recipe
    files: Mapping[str, str] = field(
        default_factory=lambda: {"train": "train.tsv", "validation": "dev.tsv"}
    )
    broken: int = 0  # lines of an official file that may be cut in two

    @property
    def kind(self) -> str:
        return "classify" if self.classes else "regress"

    @property
    def hub(self) -> str:
        return f"{HUB}:{self.name}"


# Most test sets have no labels, so their files are not read; of these two there are copies that do.
WITH_TEST = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
SENTENCES = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")

_TASKS = (
    Glue(
        name="cola",
        title="CoLA",
        columns=Columns("3", None, "1"),
        hub_columns=Columns("sentence", None, "label"),
        classes=("unacceptable", "acceptable"),
        metrics=("matthews",),
        max_length=64,
        paper=_paper(100, 50, bins=20, top_k=10, dense=10),
    ),
    Glue(
        name="sst2",
        title="SST-2",
        columns=Columns("sentence", None, "label"),
        hub_columns=Columns("sentence", None, "label"),
        classes=("negative", "positive"),
        metrics=("accuracy",),
        max_length=64,
        paper=_paper(40, 10, bins=25, dense=3, lr=1e-5),
    ),
    Glue(
        name="mrpc",
        title="MRPC",
        columns=Columns("#1 String", "#2 String", "Quality"),
        hub_columns=Columns(*SENTENCES, "label"),
        classes=("not_equivalent", "equivalent"),
        metrics=("f1", "accuracy"),
        max_length=128,
        paper=_paper(200, 150, bins=50, dense=10),
        files=WITH_TEST,
    ),
    Glue(
        name="stsb",
        title="STS-B",
        columns=Columns(*SENTENCES, "score"),
        hub_columns=Columns(*SENTENCES, "label"),
        classes=(),
        metrics=("pearson", "spearman"),
        max_length=64,
        paper=_paper(150, 50, bins=30, dense=10, label_weight=1.0),
        files=WITH_TEST,
    ),
    Glue(
        name="qqp",
        title="QQP",
        columns=Columns("question1", "question2", "is_duplicate"),
        hub_columns=Columns("question1", "question2", "label"),
        classes=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        max_length=128,
        paper=_paper(40, 10, bins=50, dense=3),
        broken=100,  # a few questions of train have a line break in them; the hub drops them, too
    ),
    Glue(
        name="mnli",
        title="MNLI",
        columns=Columns(*SENTENCES, "gold_label"),
        hub_columns=Columns("premise", "hypothesis", "label"),
        classes=("entailment", "neutral", "contradiction"),
        metrics=("accuracy",),
        max_length=128,
        paper=_paper(40, 10, bins=50, dense=3),
        files={
            "train": "train.tsv",
            "validation": "dev_matched.tsv",
            "validation_mismatched": "dev_mismatched.tsv",
        },
    ),
    Glue(
        name="qnli",
        title="QNLI",
        columns=Columns("question", "sentence", "label"),
        hub_columns=Columns("question", "sentence", "label"),
        classes=ENTAILMENT,
        metrics=("accuracy",),
        max_length=128,
        paper=_paper(40, 10, bins=50, dense=3),
    ),
    Glue(
        name="rte",
        title="RTE",
        columns=Columns(*SENTENCES, "label"),
        hub_columns=Columns(*SENTENCES, "label"),
        classes=ENTAILMENT,
        metrics=("accuracy",),
        max_length=256,
        paper=_paper(80, 50, bins=100, dense=10),
    ),
)
GLUE: dict[str, Glue] = {task.name: task for task in _TASKS}


def find(name: str) -> Glue | None:
    """The task of that name, also as `SST-2` or `sts_b`; None for other names."""
    return GLUE.get(name.lower().replace("-", "").replace("_", ""))


def recipe_of(task: str, schedule: str | None) -> Recipe:
    """How to train for a task: `short` unless the paper's own was asked for."""
    glue = find(task)
    if schedule is None:
        return SHORT
    if glue is None:
        raise UserError(
            f"--schedule {schedule} is for the tasks of GLUE ({', '.join(GLUE)}), not for {task}; "
            "leave it out and say --epochs and the like"
        )
    recipes = {"short": SHORT, "paper": glue.paper}
    if schedule not in recipes:
        raise UserError(f"the schedule {schedule!r} is not known; use {' or '.join(recipes)}")
    return recipes[schedule]


def glue_of(report: Mapping[str, Any]) -> Glue | None:
    """The task that a bundle was made for, when its report names one."""
    return find(str(report.get("glue", "")))


def glue_in(bundle: str | Path) -> Glue | None:
    """The same of a bundle on disk, which may be without a report where it serves."""
    try:
        report = read_json(Path(bundle) / "report.json")
    except UserError:
        return None
    return glue_of(report) if isinstance(report, dict) else None


def as_reported(report: Mapping[str, Any], glue: Glue | None) -> dict[str, Any]:
    """The report with the task's name, and those metrics first that the task is judged by."""
    if glue is None:
        return dict(report)
    found = {**report, "glue": glue.name}
    for part in ("metrics", "dense", "pruned", "difference"):
        if part in found:
            figures = found[part]
            found[part] = {name: figures[name] for name in dict.fromkeys([*glue.metrics, *figures])}
    return found


def load_glue(
    task: str | Glue,
    source: Any = None,
    *,
    reads: Reads,
    columns: Columns | None = None,
    split: str | None = None,
    label_names: Sequence[str] | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Examples]:
    """The labelled sets of a task: train, validation, MNLI's validation_mismatched, and test where
    it has labels.

    source: a folder with the official TSV files, the folder above it, or one of the files; anything
    else that `data.load` takes; None: the hub's copy. columns: only where they have other names.
    label_names: the model's class names by id.
    """
    glue = task if isinstance(task, Glue) else find(task)
    if glue is None:
        raise UserError(f"GLUE has no task {task!r}; there are: {', '.join(GLUE)}")
    files = _official_files(glue, source)
    try:
        if files:
            tables, columns = _read_official(glue, files, columns or Columns(), split)
        else:
            tables, columns = _read_other(glue, source, columns or Columns(), split, reads)
    except UserError as problem:
        if files or not isinstance(source, str | Path) or not Path(source).is_dir():
            raise
        raise UserError(
            f"{source} has none of {glue.title}'s files ({', '.join(glue.files.values())}), and "
            f"as other data: {problem}"
        ) from problem
    if glue.classes and columns.label:
        tables = {name: _with_classes(t, columns.label, glue) for name, t in tables.items()}
    same = label_names and set(fold(label_names)) == set(fold(glue.classes))
    found = from_tables(
        tables,
        columns,
        reads=reads,
        label_names=label_names if same else glue.classes,
        blanks=True,  # QQP has such pairs
        skip_bad_rows=skip_bad_rows,
    )
    kept = {n: e for n, e in found.items() if n != "test" or e.labels is not None}
    if not kept:
        raise UserError(f"the test set of {glue.title} has no labels; ask for another split")
    return kept


def load_sets(
    source: Any,
    *,
    reads: Reads,
    glue: Glue | None,
    columns: Columns | None = None,
    split: str | None = None,
    label_names: Sequence[str] | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Examples]:
    """The sets of a source, read as those of a GLUE task where there is one."""
    how: Any = {
        "reads": reads,
        "columns": columns,
        "split": split,
        "label_names": label_names,
        "skip_bad_rows": skip_bad_rows,
    }
    if glue is not None:
        return load_glue(glue, source, **how)
    if source is None:
        raise UserError("no data; name them with --data (the tasks of GLUE have a copy on the hub)")
    return load(source, **how)


def load_furthest(source: Any, *, glue: Glue | None, **how: Any) -> Examples:
    """One set of `load_sets`: the asked one, or what is furthest from training."""
    return _furthest(load_sets(source, glue=glue, **how), glue)


def load_labelled(source: Any, *, reads: Reads, glue: Glue | None, **how: Any) -> Examples:
    """The same, to evaluate on."""
    chosen = load_furthest(source, reads=reads, glue=glue, **how)
    if chosen.labels is None and reads.alone:
        raise UserError(
            "a model without a head makes vectors, which are judged by pairs of texts (--pair) and "
            "their similarity (--label); for other tasks run 'toprune finetune' on it first"
        )
    if chosen.labels is None:
        raise UserError("evaluation needs labels; name their column with --label")
    return chosen


def load_texts(
    source: Any,
    *,
    reads: Reads,
    glue: Glue | None,
    columns: Columns | None = None,
    split: str | None = None,
    skip_bad_rows: bool = False,
) -> list[Any]:
    """The texts, pairs or lists of words alone, of the set that would be evaluated on."""
    how: Any = {
        "reads": reads,
        "columns": columns,
        "split": split,
        "skip_bad_rows": skip_bad_rows,
    }
    if glue is None:
        return read_texts(source, **how)
    chosen = _furthest(load_glue(glue, source, **how), glue)
    texts, pairs = chosen.texts, chosen.pairs
    return texts if pairs is None else list(zip(texts, pairs, strict=True))


def _furthest(sets: Mapping[str, Examples], glue: Glue | None) -> Examples:
    """Of GLUE that is validation, as in all papers: few copies have the labels of the test sets."""
    order = ("test", "validation", "train") if glue is None else ("validation", "test", "train")
    return sets[next((name for name in order if name in sets), next(iter(sets)))]


def _official_files(glue: Glue, source: Any) -> dict[str, Path]:
    """The task's own files by split, when that is what the source is."""
    if not isinstance(source, str | Path):
        return {}
    path = Path(source)
    if path.is_file():
        return {split: path for split, name in glue.files.items() if name == path.name}
    folder = path / glue.title if (path / glue.title).is_dir() else path
    files = {split: folder / name for split, name in glue.files.items()}
    return {split: file for split, file in files.items() if file.is_file()}


def _read_official(
    glue: Glue, files: Mapping[str, Path], named: Columns, split: str | None
) -> tuple[dict[str, Table], Columns]:
    columns = _merged(named, glue.columns)
    tables: dict[str, Table] = {}
    for name in _asked(glue, files, split):
        file = files[name]
        table = read_tsv(file, header=not columns.are_numbers, broken=glue.broken)
        label = columns.label if name != "test" else None  # GLUE's own test files have none
        for column in filter(None, (columns.text, columns.pair, label)):
            if column not in table.columns:
                raise UserError(
                    f"{file} is not a file of {glue.title}: it has no column {column!r}, but "
                    f"{', '.join(table.columns)}; give the folder with {glue.title}'s files, or "
                    "name the columns"
                )
        tables[name] = table
    return tables, columns


def _asked(glue: Glue, files: Mapping[str, Path], split: str | None) -> list[str]:
    if split is None:
        return list(files)
    name = SPLITS.get(split, split)
    if name not in files:
        raise UserError(
            f"there is no {name} set with labels in these files of {glue.title}, only: "
            f"{', '.join(files)}"
        )
    return [name]


def _read_other(
    glue: Glue, source: Any, named: Columns, split: str | None, reads: Reads
) -> tuple[dict[str, Table], Columns]:
    """The hub's columns where they are there, else what can be guessed, as for any data."""
    found = read(glue.hub if source is None else source, header=not named.are_numbers)
    tables = choose_splits(found, split, usual=tuple(dict.fromkeys([*glue.files, "test"])))
    present = present_in(tables)
    hub = glue.hub_columns
    if named.text is None and named.pair is None and {hub.text, hub.pair} <= {*present, None}:
        named = replace(named, text=hub.text, pair=hub.pair)
    is_named = named.text is not None
    columns = choose_columns(named, present, reads)
    if not is_named and (columns.pair is None) != (hub.pair is None):
        wanted, ways = (
            ("single texts", "--text") if hub.pair is None else ("pairs", "--text, --pair")
        )
        raise UserError(
            f"{glue.title} is about {wanted}; name the columns with {ways} "
            f"(columns here: {', '.join(present)})"
        )
    return tables, columns


def _merged(named: Columns, usual: Columns) -> Columns:
    """Who names the text names the pair, too."""
    if named.text is None and named.pair is None:
        return replace(usual, label=named.label or usual.label)
    return replace(named, label=named.label or usual.label)


def _with_classes(table: Table, label: str, glue: Glue) -> Table:
    return table if label in table.classes else Table(table.columns, {label: list(glue.classes)})
