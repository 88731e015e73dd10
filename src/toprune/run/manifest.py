"""The manifest, onnx/export.json: which files of a bundle belong together, and how they run.

The exporter writes it last and the runtime reads it first. A graph of one export beside the
tokenizer or the plan of another gives wrong answers, not errors. So the manifest has the hash of
every file, and a bundle that was mixed, cut short or changed is refused before it runs.

The exporters of transformers write a file of the same name. Both have the field `export_format`, by
which each reader knows that a file is not its own.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from toprune.data import images
from toprune.errors import UserError
from toprune.io.untrusted import inside, parse_json, read_text
from toprune.plan import dial
from toprune.plan.cost import Sizes
from toprune.plan.schema import Schema
from toprune.plan.sizes import parse_sizes
from toprune.run.external_data import external_files
from toprune.tasks import Task, fallback, make_task

PLACE = "onnx/export.json"
FORMAT = "toprune"  # transformers names the format of its own exports here, such as "onnx"
Precision = Literal["fp32", "int8"]
GRAPHS: dict[Precision, str] = {"fp32": "onnx/model.onnx", "int8": "onnx/model_int8.onnx"}
OPENVINO_INT8 = "onnx/openvino_int8.xml"  # static int8; its weights are in the .bin beside it
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MAX_LENGTH = 1 << 20  # tokens of a text: a number above it is a mistake or an attack
MAX_ID = 1 << 31  # of a token
# Below the bundle, with / and nothing hidden: no "..", no "C:", no second spelling of one file.
INSIDE = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*")
SHA256 = re.compile(r"[0-9a-f]{64}")


_SCHEMA = Schema(
    name=PLACE,
    version=1,
    command="export",
    fields={
        "schema": (int,),
        "export_format": (str,),
        "task": (str,),
        "settings": (dict,),
        "max_length": (int,),
        "inputs": (list,),
        "pad_token_id": (int,),
        "labels": (list, NoneType),
        "files": (dict,),
        "checked": (dict,),
        "environment": (dict,),
        "sizes": (dict, NoneType),
    },
    optional=frozenset({"export_format", "sizes"}),  # files from before they were written
    advice="; export the bundle again (toprune export)",
)


@dataclass(frozen=True)
class Manifest:
    """What the runtime must know beside the graph."""

    task: str
    settings: dict[str, Any] = field(hash=False)  # of the task
    max_length: int
    inputs: tuple[str, ...]
    pad_token_id: int
    labels: tuple[str, ...] | None  # class names by id, where the head has names
    files: dict[str, str] = field(hash=False)  # sha256 by path below the bundle
    checked: dict[str, Any] = field(hash=False)  # figures of the exporter's parity check
    environment: dict[str, Any] = field(hash=False)
    sizes: Sizes | None = None  # of the model: a server knows by them what a text costs
    schema: int = _SCHEMA.version

    def __post_init__(self) -> None:
        require = _SCHEMA.require
        _SCHEMA.check_version(self.schema)
        try:
            task = self.build_task()
        except UserError as problem:
            raise UserError(f"{PLACE}: {problem}{_SCHEMA.advice}") from problem
        require(
            1 <= self.max_length <= MAX_LENGTH,
            f"max_length must be 1 to {MAX_LENGTH}, not {self.max_length}",
        )
        require(
            0 <= self.pad_token_id <= MAX_ID,
            f"pad_token_id must be 0 to {MAX_ID}, not {self.pad_token_id}",
        )
        require(
            set(self.inputs) in (set(INPUTS[:2]), set(INPUTS), {images.INPUT})
            and len(set(self.inputs)) == len(self.inputs),
            f"inputs must be {', '.join(INPUTS)} or the first two, or {images.INPUT}, "
            f"not {list(self.inputs)}",
        )
        require(
            self.labels is None or (task.HAS_LABEL_NAMES and len(self.labels) >= task.MIN_CLASSES),
            f"labels must be names of classes or tags, {task.MIN_CLASSES} or more of them, and the "
            f"task {self.task} must give such labels",
        )
        for name, digest in self.files.items():
            require(INSIDE.fullmatch(name) is not None, f"{name!r} is not a path in the bundle")
            require(SHA256.fullmatch(digest) is not None, f"the sha256 of {name} is not one")
        for name in self.needed:
            require(name in self.files, f"{name} is not listed")

    @classmethod
    def of(
        cls,
        bundle: str | os.PathLike[str],
        graphs: str | os.PathLike[str],
        *,
        task: str,
        settings: dict[str, Any],
        max_length: int,
        inputs: tuple[str, ...],
        pad_token_id: int,
        labels: tuple[str, ...] | None,
        checked: dict[str, Any],
        environment: dict[str, Any],
        sizes: Sizes | None = None,
    ) -> "Manifest":
        """Make the manifest of a bundle.

        Args:
            bundle: the bundle's directory, with the plan, the config and the tokenizer.
            graphs: the directory that becomes its onnx/.
            task, settings: the task's name and its settings.
            max_length: tokens of a text that the graph was checked for.
            inputs: names of the graph's inputs.
            pad_token_id: the id that fills batches.
            labels: class names by id, if the head has names.
            checked: figures of the parity check.
            environment: versions and machine of the export.
            sizes: of the model.
        """
        bundle, graphs = Path(bundle), Path(graphs)
        names = ["plan.json", dial.FILE, "config.json", "tokenizer.json", images.PLACE]
        names += [fallback.PLACE, f"{fallback.DENSE}/{PLACE}"]  # by the latter all files of dense
        names += [path.name for path in bundle.glob("*.safetensors")]
        there = sorted(name for name in names if (bundle / name).is_file())
        files = {name: _digest(inside(bundle, name)) for name in there}
        for path in sorted(graphs.iterdir()):
            if not path.name.startswith(".") and path.name != Path(PLACE).name:
                files[f"{Path(PLACE).parent}/{path.name}"] = _digest(path)
        return cls(
            task=task,
            settings=settings,
            max_length=max_length,
            inputs=tuple(inputs),
            pad_token_id=pad_token_id,
            labels=None if labels is None else tuple(labels),
            files=files,
            checked=checked,
            environment=environment,
            sizes=sizes,
        )

    @property
    def images(self) -> bool:
        return self.inputs == (images.INPUT,)

    @property
    def needed(self) -> tuple[str, ...]:
        """Files that a run needs beside the graph; a serving image may leave the weights out."""
        reader = images.PLACE if self.images else "tokenizer.json"
        return ("plan.json", reader, *(name for name in self.files if name == dial.FILE))

    def graph(self, precision: Precision, runtime: str = "onnx") -> str:
        """The file to run: OpenVINO prefers the int8 file that was calibrated for it."""
        if precision == "int8" and runtime == "openvino" and OPENVINO_INT8 in self.files:
            return OPENVINO_INT8
        return GRAPHS[precision]

    def build_task(self) -> Task:
        """The task with its settings."""
        return make_task(self.task, self.settings)

    def to_json(self) -> str:
        data = {"schema": self.schema, "export_format": FORMAT} | vars(self)
        data["sizes"] = None if self.sizes is None else vars(self.sizes)
        return json.dumps(data, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        if is_foreign(text):
            raise UserError(
                f"{PLACE} comes from the exporter of transformers, not from toprune; move the "
                "folder onnx/ away and run 'toprune export'"
            )
        data = _SCHEMA.parse(text)
        found = data.pop("export_format", FORMAT)
        _SCHEMA.require(found == FORMAT, f"export_format must be {FORMAT!r}, not {found!r}")
        data["inputs"] = _SCHEMA.strings("inputs", data["inputs"])
        if data["labels"] is not None:
            data["labels"] = _SCHEMA.strings("labels", data["labels"])
        _SCHEMA.strings("files", list(data["files"].values()))
        if data.get("sizes") is not None:
            data["sizes"] = parse_sizes(data["sizes"], _SCHEMA)
        return cls(**data)

    @classmethod
    def load(cls, bundle: str | os.PathLike[str]) -> "Manifest":
        bundle = Path(bundle)
        if not bundle.is_dir():
            raise UserError(f"there is no bundle {bundle}; give the directory that prune wrote")
        path = bundle / PLACE
        if not path.is_file():
            raise UserError(f"{bundle} has no {PLACE}; run 'toprune export {bundle}' first")
        manifest = cls.from_json(read_text(inside(bundle, PLACE), _SCHEMA.again))
        for name in manifest.files:
            if os.path.lexists(bundle / name):
                inside(bundle, name)
        return manifest

    def verify(self, bundle: str | os.PathLike[str], graph: str = GRAPHS["fp32"]) -> None:
        """Refuse a bundle in which a file has changed, or a file that a run needs is missing.

        The manifest must also list the files in which the graph keeps its weights, and each must be
        a real file below the bundle, so no runtime reads anything outside. Runtimes do not all
        check that: ONNX Runtime does since 1.24, but 1.23 opens `../../x`.

        Args:
            bundle: the bundle's directory.
            graph: the ONNX file to run, below the bundle.
        """
        bundle = Path(bundle)
        if graph not in self.files:
            option = {GRAPHS["int8"]: " --int8", OPENVINO_INT8: " --int8-openvino TEXTS"}
            command = f"toprune export{option.get(graph, '')}"
            raise UserError(f"{bundle} was exported without {graph}; run '{command} {bundle}'")
        for name in (*self.needed, graph):
            if not (bundle / name).is_file():
                raise UserError(f"{bundle / name} is missing; copy it again or export again")
        # Not run, so not read: a cold start stays short.
        others = {*GRAPHS.values(), *both_files(OPENVINO_INT8)} - {*both_files(graph)}
        for name, digest in self.files.items():
            if name in others or not os.path.lexists(bundle / name):
                continue
            if _digest(inside(bundle, name)) != digest:
                raise UserError(
                    f"{bundle / name} is not the file that was exported (its sha256 differs): "
                    f"it was changed, cut short or belongs to another bundle; copy it again, "
                    f"or run 'toprune export {bundle}' again"
                )
        for location in weight_files(bundle / graph):
            name = f"{Path(graph).parent.as_posix()}/{location}"
            if name not in self.files or not (bundle / name).is_file():
                raise UserError(
                    f"{bundle / graph} keeps weights in {location!r}, which is not a file of the "
                    "bundle; copy it again or export again"
                )


def both_files(graph: str) -> tuple[str, ...]:
    """A graph's file; one of OpenVINO has a second one for its weights."""
    path = Path(graph)
    return (graph, path.with_suffix(".bin").as_posix()) if path.suffix == ".xml" else (graph,)


def weight_files(path: Path) -> list[str]:
    """The files beside a graph in which it keeps weights."""
    if path.suffix == ".xml":
        return [path.with_suffix(".bin").name]
    return sorted(external_files(path))


def is_foreign(text: str) -> bool:
    """Whether this is the export.json of transformers, not one of toprune, whole or broken."""
    try:
        data = parse_json(text, PLACE)
    except UserError:
        return False
    return (
        type(data) is dict and "schema" not in data and {"components", "export_format"} <= {*data}
    )


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); copy it again") from error
