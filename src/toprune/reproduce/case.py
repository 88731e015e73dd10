"""A dataset of the paper at a scale: its task, its data, and the dense models of its runs."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from toprune.api import Data, finetune
from toprune.bundle.bundle import read_report
from toprune.compare.comparison import Say
from toprune.compare.executors import Executor, in_turn
from toprune.data.columns import Columns
from toprune.data.examples import Examples
from toprune.data.presets import PRESET_KEY, find_preset
from toprune.data.recipes import Preset
from toprune.data.sets import held_out_order, load_sets
from toprune.errors import UserError
from toprune.io.devices import Device
from toprune.models.families import family_named
from toprune.models.load import read_config
from toprune.plan.budget import Count
from toprune.reproduce.paper import Kind, Published
from toprune.reproduce.sample import PLAIN, as_rows, columns_of, write_sample
from toprune.reproduce.settings import Recipe, Scale, Select, cpu_texts, dense_training
from toprune.reproduce.tiny import MAX_LENGTH, make_data, make_models
from toprune.tasks import TASKS, Task
from toprune.tasks.answer import Answer

HUB: dict[Kind, str] = {  # the models of the paper
    "base": "bert-base-uncased",
    "roberta": "roberta-base",
    "six": "google/bert_uncased_L-6_H-512_A-8",
}
WORK = "work"  # folder of models, data and runs, which all targets of an --out share


@dataclass(frozen=True)
class Options:
    """How targets are run."""

    out: Path
    scale: Scale = "cpu"
    model: str | Path | None = None  # pre-trained, or fine-tuned by toprune; None: by the scale
    data: str | Path | None = None  # None: the hub's copy of a GLUE task; made at `tiny`
    recipe: Recipe = "paper"
    select: Select = "last"
    masks: str = "learn"
    count: Count = "authors"
    seed: int | None = None  # None: the paper's at its scale, else 0
    device: Device = "auto"
    engine: Executor = in_turn
    say: Say = lambda line: None


@dataclass(frozen=True)
class Case:
    """One dataset of the paper, with the options of the command."""

    paper: Published
    options: Options

    @property
    def work(self) -> Path:
        return self.options.out / WORK

    @property
    def seed(self) -> int:
        if self.options.seed is not None:
            return self.options.seed
        return 57 if self.options.scale == "paper" else 0

    @cached_property
    def task(self) -> str | Task:
        """A preset of GLUE by name, or a task; made data are no copy of a preset."""
        if self.paper.name == "squad":
            return Answer(no_answer=True, stride=128 if self.options.scale != "tiny" else 8)
        preset = find_preset(self.paper.name)
        if preset is None:
            return "classify"
        return preset.task if self.options.scale == "tiny" else preset.name

    @property
    def task_name(self) -> str:
        if not isinstance(self.task, str):
            return self.task.NAME
        preset = find_preset(self.task)
        return self.task if preset is None else preset.task

    @property
    def max_length(self) -> int:
        """The length to which the paper pads inputs."""
        return MAX_LENGTH if self.options.scale == "tiny" else self.paper.max_length

    @cached_property
    def data(self) -> Data:
        """The files of the dataset, with the texts whose lengths the paper's factors are for."""
        data, served = self._files(), self.paper.content.get("lengths_of")
        if served is None:
            return data
        texts = replace(self._load(data)[served], labels=None)
        return replace(data, lengths_of=as_rows(texts, PLAIN))

    def _files(self) -> Data:
        if self.options.scale == "tiny":
            folder = self.work / "tiny" / self.paper.name
            if not (folder / "test.jsonl").exists():
                folder.mkdir(parents=True, exist_ok=True)
                make_data(self.paper, TASKS[self.task_name].READS.label_type, folder)
            return Data(str(folder), max_length=self.max_length)
        if self.options.data is None and find_preset(self.paper.name) is None:
            raise UserError(f"give the files of {self.paper.title} with --data")
        source = None if self.options.data is None else str(self.options.data)
        whole = Data(source, max_length=self.max_length)
        return self._sampled(whole) if self.options.scale == "cpu" else whole

    def _sampled(self, whole: Data) -> Data:
        """As many texts as two cores can read; all, where there are no more."""
        sets, most, preset = self._load(whole), cpu_texts(self.paper), self.preset
        if all(len(examples) <= most for examples in sets.values()):
            return whole
        names = {"train": "train", "dev": "test" if preset is None else "validation"}
        columns = PLAIN if preset is None else preset.hub_columns
        folder = self.work / f"{self.paper.name}-data"
        written = {names[name]: examples for name, examples in sets.items()}
        write_sample(written, folder, columns, most=most, seed=0)
        given = columns_of(sets["train"], columns) if preset is None else Columns()
        return Data(str(folder), given, max_length=self.max_length)

    @property
    def preset(self) -> Preset | None:
        """The dataset as one that the library knows, with its own files and metrics."""
        return find_preset(self.task) if isinstance(self.task, str) else None

    @cached_property
    def sets(self) -> dict[str, Examples]:
        """The training set, and the one that is reported."""
        return self._load(self.data)

    def _load(self, data: Data) -> dict[str, Examples]:
        reads = TASKS[self.task_name].READS
        sets = load_sets(data.source, reads=reads, preset=self.preset, columns=data.columns)
        train = sets.get("train") or next(iter(sets.values()))
        others = [name for name in held_out_order(self.preset) if name in sets]
        held_out = next((name for name in others if sets[name].labels is not None), None)
        return {"train": train} | ({} if held_out is None else {"dev": sets[held_out]})

    def model(self, kind: Kind = "base") -> str | Path:
        """The pre-trained model of a row."""
        options = self.options
        if options.model is not None:
            is_roberta = family_named(read_config(options.model)).name == "roberta"
            if (kind == "roberta") != is_roberta:
                raise UserError(f"this row needs --model with {_NEEDED[is_roberta]}")
            return options.model
        if options.scale == "tiny":
            return make_models(self.work / "tiny")[kind]
        return HUB[kind]

    def layers(self, kind: Kind = "base") -> int:
        config = read_config(self.model(kind))
        return family_named(config).sizes(config).layers

    def dense(self, kind: Kind = "base") -> Path:
        """The directory of the dense model, fine-tuned unless the user gave one that is."""
        if kind in self._dense:
            return self._dense[kind]
        self._dense[kind] = self._fine_tuned(kind)
        return self._dense[kind]

    @cached_property
    def _dense(self) -> dict[Kind, Path]:
        """The dense models that are ready."""
        return {}

    def _fine_tuned(self, kind: Kind) -> Path:
        data = self.data  # data that are not given are refused before a model is loaded
        model = self.model(kind)
        if Path(model).is_dir():
            report, preset = read_report(Path(model)), self.preset
            wanted = None if preset is None else preset.name
            if report.get("task") == self.task_name and report.get(PRESET_KEY) == wanted:
                return Path(model)
        out = self.work / f"{self.paper.name}-{kind}-dense"
        self.options.say(f"{self.paper.title}: fine-tuning {model} (skipped where it is done)")
        finetune(
            model,
            data,
            task=self.task,
            out=out,
            training=dense_training(
                self.options.scale, self.paper, texts=len(self.sets["train"]), seed=self.seed
            ),
            device=self.options.device,
            resume=True,
        )
        return out


_NEEDED = {True: "a BERT", False: "a RoBERTa"}


def describe(model: Any) -> str:
    """A short name of a model: the end of its path, or its hub id."""
    return "/".join(Path(model).resolve().parts[-2:]) if Path(model).is_dir() else str(model)
