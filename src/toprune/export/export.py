"""A bundle's ONNX files: traced, checked against torch, and only then put in their place."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from toprune.bundle.bundle import Bundle, read_report
from toprune.data.columns import Columns
from toprune.data.images import Images
from toprune.data.presets import preset_in
from toprune.errors import UserError
from toprune.export.graph import input_names, write_onnx
from toprune.export.parity import cases_of, check, draw, guarded
from toprune.export.quantize import quantize
from toprune.io.atomic import replace_directory
from toprune.models.families import max_positions
from toprune.models.heads import restore_of
from toprune.plan.plan import Plan
from toprune.report.environment import environment
from toprune.report.html.files import write_report
from toprune.run.engines import OnnxRuntime
from toprune.run.evaluate import evaluate
from toprune.run.manifest import GRAPHS, Manifest
from toprune.run.runner import Runner
from toprune.tasks import settings_of
from toprune.tasks.classify import class_names
from toprune.training.job import dense_plan

Say = Callable[[str], Any]


def export(
    bundle: str | Path,
    *,
    int8: bool = False,
    task: str | None = None,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Write onnx/model.onnx (and its int8 twin) into the bundle; returns what was checked.

    A directory without a plan is exported dense, under a plan in which every token stays; `task`:
    what it is for, where it comes from elsewhere and its head does not tell.
    """
    folder = Path(bundle)
    own = Bundle.load(folder, task)
    if not isinstance(own.tokenizer, Images):
        _check_tokenizer(own.tokenizer, folder / "tokenizer.json")
    kind = own.task
    plan = own.plan or dense_plan(own.model, restore_of(kind, own.model.config))
    most = max_positions(own.model.config)
    limit = min(most, own.report.get("max_length") or most)
    names = input_names(own.model.config, own.tokenizer)
    with _stage(folder) as stage:
        say("writing the graph")
        write_onnx(
            own.model, plan, stage / "model.onnx", names, kind.OUTPUTS, by_token=kind.reads_all
        )
        say("comparing it with torch")
        engine = OnnxRuntime(stage / "model.onnx", threads=None)
        parity = check(own.model, plan, engine.run, limit, names=names, outputs=kind.OUTPUTS)
        checked: dict[str, Any] = {"fp32": vars(parity) | {"difference": parity.difference}}
        if int8:
            say("quantising to int8")
            quantize(stage / "model.onnx", stage / "model_int8.onnx")
            small = OnnxRuntime(stage / "model_int8.onnx", threads=None)
            checked["int8"] = {"difference": _distance(own, plan, engine, small, limit, names)}
        if own.plan is None:
            plan.save(folder / "plan.json")
        manifest = Manifest.of(
            folder,
            stage,
            task=kind.NAME,
            settings=settings_of(kind),
            max_length=limit,
            inputs=tuple(names),
            pad_token_id=getattr(own.tokenizer, "pad_token_id", 0),  # of images: none is needed
            labels=_labels(own),
            checked=checked,
            environment=environment(),
        )
        (stage / "export.json").write_text(manifest.to_json(), encoding="utf-8", newline="\n")
    sizes = {p.name: p.stat().st_size for p in sorted((folder / "onnx").glob("*.onnx*"))}
    return {"bundle": str(folder), "max_length": limit, "checked": checked, "bytes": sizes}


def evaluate_files(
    bundle: str | Path,
    source: Any,
    *,
    columns: Columns | None = None,
    split: str | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Any]:
    """What each of the bundle's files is worth on labelled data; kept in its report.json, too.
    Rounding to int8 can change which tokens stay, so parity of logits would not tell."""
    folder = Path(bundle)
    listed = Manifest.load(folder).files
    found = {
        precision: evaluate(
            Runner(folder, precision=precision),
            source,
            preset=preset_in(folder),
            columns=columns,
            split=split,
            skip_bad_rows=skip_bad_rows,
        )
        for precision, graph in GRAPHS.items()
        if graph in listed
    }
    write_report(folder, read_report(folder) | {"onnx": found})
    return found


def _check_tokenizer(tokenizer: Any, path: Path) -> None:
    """The runtime reads tokenizer.json alone; transformers may know better from another file."""
    if not path.is_file():
        raise UserError(f"there is no {path}; save the model with a fast tokenizer first")
    cut = Tokenizer.from_file(str(path)).truncation or {}
    side = cut.get("direction", "right")
    if side != tokenizer.truncation_side:
        raise UserError(
            f"{path} cuts texts on the {side}, tokenizer_config.json on the "
            f"{tokenizer.truncation_side}; make them say the same"
        )


def _labels(own: Bundle) -> tuple[str, ...] | None:
    names = class_names(own.model.config) if own.task.HAS_LABEL_NAMES else None
    return None if names is None else tuple(names)


def _distance(
    own: Bundle,
    plan: Plan,
    exact: OnnxRuntime,
    rounded: OnnxRuntime,
    limit: int,
    names: list[str],
) -> float:
    """How far int8 is from fp32 on random tokens: for the record. What it does to a metric is for
    `eval` to say; that it runs and gives numbers is checked here."""
    worst = 0.0
    rng = np.random.default_rng(0)
    for lengths, padded in cases_of(own.model.config, limit):
        feeds = draw(own.model.config, rng, lengths, padded, names, guarded(plan))
        found = rounded.run(feeds)
        if not np.isfinite(found).all():
            raise UserError(f"the int8 file gives NaN for lengths {lengths}; use fp32")
        worst = max(worst, float(np.abs(found - exact.run(feeds)).max()))
    return worst


@contextmanager
def _stage(folder: Path) -> Iterator[Path]:
    """A place beside onnx/ that takes its name when everything in it is whole."""
    stage = folder / ".onnx.partial"
    try:
        shutil.rmtree(stage, ignore_errors=True)  # of a run that was killed
        stage.mkdir()
    except OSError as error:
        raise UserError(f"cannot write into {folder} ({error.strerror})") from error
    try:
        yield stage
        replace_directory(stage, folder / "onnx")
    finally:
        shutil.rmtree(stage, ignore_errors=True)
