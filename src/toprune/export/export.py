"""Export a bundle to ONNX: files are traced, checked against torch, and only then published."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from toprune.bundle.bundle import Bundle, read_report
from toprune.data.columns import Columns
from toprune.data.images import Images
from toprune.data.presets import preset_in
from toprune.data.sets import load_texts
from toprune.errors import UserError
from toprune.export.graph import input_names, write_onnx
from toprune.export.milliseconds import times_here
from toprune.export.openvino import difference, quantize_openvino, sample
from toprune.export.parity import cases_of, check, draw, protected_ids
from toprune.export.quantize import quantize
from toprune.io.atomic import replace_directory
from toprune.io.untrusted import read_text
from toprune.models.families import max_positions, sizes_of
from toprune.models.heads import restore_of
from toprune.plan.plan import Plan
from toprune.report.environment import environment
from toprune.report.html.files import write_report
from toprune.run.dial import Keep, keep_input
from toprune.run.engines import OnnxRuntime
from toprune.run.evaluate import evaluate
from toprune.run.manifest import GRAPHS, OPENVINO_INT8, PLACE, Manifest, is_foreign
from toprune.run.runner import Runner
from toprune.tasks import settings_of
from toprune.tasks.classify import class_names
from toprune.tasks.fallback import DENSE
from toprune.tasks.tokenize import Texts
from toprune.training.job import dense_plan

Say = Callable[[str], Any]


def export(
    bundle: str | Path,
    *,
    int8: bool = False,
    calibration: Any = None,
    columns: Columns | None = None,
    skip_bad_rows: bool = False,
    task: str | None = None,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Write onnx/model.onnx, and if requested its int8 twins, into a bundle. The dense model of a
    bundle that holds one is exported, too, into its own directory.

    Args:
        bundle: the directory. One without a plan is exported dense: every token stays.
        int8: also write onnx/model_int8.onnx.
        calibration: data without labels, whatever `evaluate` reads; also write
            onnx/openvino_int8.xml, static int8 for OpenVINO, calibrated on some of its texts.
        columns, skip_bad_rows: of the calibration data.
        task: name of the task, for a directory without a report whose head is ambiguous.
        say: gets a line about each part of the work.

    Returns:
        What was checked, and the sizes of the files.
    """
    folder = Path(bundle)
    loaded = Bundle.load(folder, task)
    texts = None
    if calibration is not None:
        if isinstance(loaded.tokenizer, Images):
            raise UserError("int8 for OpenVINO is for texts here; leave --int8-openvino out")
        texts = sample(
            load_texts(
                calibration,
                reads=loaded.task.READS,
                preset=preset_in(folder),
                columns=columns,
                skip_bad_rows=skip_bad_rows,
            )
        )
    how: Any = {"int8": int8, "texts": texts, "say": say}
    if loaded.dense is None:
        return _export(loaded, folder, **how)
    say("the dense model:")
    dense = _export(loaded.dense, folder / DENSE, **how)  # first: it is hashed next
    say("the pruned model:")
    return _export(loaded, folder, **how) | {"dense": dense}


def _export(
    bundle: Bundle, folder: Path, *, int8: bool, texts: Sequence[Any] | None, say: Say
) -> dict[str, Any]:
    model, tokenizer, task = bundle.model, bundle.tokenizer, bundle.task
    if not isinstance(tokenizer, Images):
        _check_tokenizer(tokenizer, folder / "tokenizer.json")
    plan = bundle.plan or dense_plan(model, restore_of(task, model.config))
    positions = max_positions(model.config)
    limit = min(positions, bundle.report.get("max_length") or positions)
    names = input_names(model.config, tokenizer)
    pad = getattr(tokenizer, "pad_token_id", 0)  # images need none
    with _stage(folder) as stage:
        say("writing the graph")
        path = stage / "model.onnx"
        plans = {} if bundle.dial is None else bundle.dial.plans()
        how: Any = {"by_token": task.reads_all, "dial": bool(plans)}
        write_onnx(model, plan, path, names, task.OUTPUTS, **how)
        say("comparing it with torch")
        engine = OnnxRuntime(path, threads=None)
        parity = check(model, plan, engine.run, limit, names=names, outputs=task.OUTPUTS)
        checked: dict[str, Any] = {"fp32": vars(parity) | {"difference": parity.difference}}
        for asked, other in plans.items():
            say(f"comparing it at {asked}")
            turned = partial(_turned, engine, keep_input(other))
            parity = check(model, other, turned, limit, names=names, outputs=task.OUTPUTS)
            dial = checked.setdefault("dial", {})
            dial[asked] = vars(parity) | {"difference": parity.difference}
        if int8:
            say("quantising to int8")
            quantize(path, stage / "model_int8.onnx")
            int8_engine = OnnxRuntime(stage / "model_int8.onnx", threads=None)
            found = _difference(model.config, plan, engine, int8_engine, limit, names)
            checked["int8"] = {"difference": found}
        if texts is not None:
            say("calibrating int8 for OpenVINO")
            twin = stage / Path(OPENVINO_INT8).name
            reader = Texts.load(
                folder / "tokenizer.json",
                task,
                max_length=limit,
                inputs=names,
                pad_token_id=pad,
            )
            feeds = [reader.batch([row]) for row in reader.encode(texts)]
            quantize_openvino(path, twin, feeds)
            found = difference(path, twin, feeds)
            checked["int8 openvino"] = {"difference": found, "texts": len(feeds)}
        if bundle.plan is None:
            plan.save(folder / "plan.json")
        manifest = Manifest.of(
            folder,
            stage,
            task=task.NAME,
            settings=settings_of(task),
            max_length=limit,
            inputs=tuple(names),
            pad_token_id=pad,
            labels=_labels(bundle),
            checked=checked,
            environment=environment(),
            sizes=sizes_of(model),
        )
        (stage / "export.json").write_text(manifest.to_json(), encoding="utf-8", newline="\n")
    report: dict[str, Any] = {}
    if (timed := bundle.report.get("time")) is not None:
        report = times_here(bundle, folder, timed, say)
    written = sorted(p for p in (folder / "onnx").iterdir() if p.suffix != ".json")
    sizes = {p.name: p.stat().st_size for p in written}
    return {"bundle": str(folder), "max_length": limit, "checked": checked, "bytes": sizes} | report


def _turned(engine: OnnxRuntime, keep: Keep, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Run the graph at another budget of its dial."""
    return engine.run(feeds | keep)


def evaluate_files(
    bundle: str | Path,
    source: Any,
    *,
    columns: Columns | None = None,
    split: str | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Any]:
    """Measure each ONNX file of a bundle on labelled data, and add the result to its report.json.

    Rounding to int8 can change which tokens stay, so a comparison of logits is not enough.

    Args:
        bundle: the directory.
        source: the data: whatever `evaluate` reads.
        columns: of the data; guessed by default.
        split: of the data.
        skip_bad_rows: leave out rows that cannot be read, in place of an error.

    Returns:
        What `evaluate` returns, by precision; "int8 openvino" for the calibrated file.
    """
    folder = Path(bundle)
    files = Manifest.load(folder).files
    runs: dict[str, Any] = {
        precision: {"precision": precision} for precision, graph in GRAPHS.items() if graph in files
    }
    if OPENVINO_INT8 in files:
        runs["int8 openvino"] = {"precision": "int8", "runtime": "openvino"}
    results = {
        name: evaluate(
            Runner(folder, **how),
            source,
            preset=preset_in(folder),
            columns=columns,
            split=split,
            skip_bad_rows=skip_bad_rows,
        )
        for name, how in runs.items()
    }
    write_report(folder, read_report(folder) | {"onnx": results})
    return results


def _check_tokenizer(tokenizer: Any, path: Path) -> None:
    """Refuse a tokenizer that the runtime would read differently: it reads tokenizer.json alone,
    while transformers also reads tokenizer_config.json."""
    if not path.is_file():
        raise UserError(f"there is no {path}; save the model with a fast tokenizer first")
    truncation = Tokenizer.from_file(str(path)).truncation or {}
    side = truncation.get("direction", "right")
    if side != tokenizer.truncation_side:
        raise UserError(
            f"{path} cuts texts on the {side}, tokenizer_config.json on the "
            f"{tokenizer.truncation_side}; use the same side in both"
        )


def _labels(bundle: Bundle) -> tuple[str, ...] | None:
    names = class_names(bundle.model.config) if bundle.task.HAS_LABEL_NAMES else None
    return None if names is None else tuple(names)


def _difference(
    config: Any,
    plan: Plan,
    fp32: OnnxRuntime,
    int8: OnnxRuntime,
    limit: int,
    names: list[str],
) -> float:
    """Return the largest difference of int8 from fp32 on random tokens, for the record, and check
    that int8 gives numbers. `toprune eval` measures its effect on a metric."""
    worst = 0.0
    rng = np.random.default_rng(0)
    for lengths, padded in cases_of(config, limit):
        feeds = draw(config, rng, lengths, padded, names, protected_ids(plan))
        outputs = int8.run(feeds)
        if not np.isfinite(outputs).all():
            raise UserError(f"the int8 file gives NaN for lengths {lengths}; use fp32")
        worst = max(worst, float(np.abs(outputs - fp32.run(feeds)).max()))
    return worst


@contextmanager
def _stage(folder: Path) -> Iterator[Path]:
    """Make a directory beside onnx/ that takes its place when everything in it is complete."""
    there = folder / PLACE
    if there.is_file() and is_foreign(read_text(there, "move it away")):
        raise UserError(
            f"{there.parent} holds an export of transformers, which would be overwritten; move it "
            "away first"
        )
    stage = folder / ".onnx.partial"
    try:
        shutil.rmtree(stage, ignore_errors=True)  # left by a run that was killed
        stage.mkdir()
    except OSError as error:
        raise UserError(f"cannot write into {folder} ({error.strerror})") from error
    try:
        yield stage
        replace_directory(stage, folder / "onnx")
    finally:
        shutil.rmtree(stage, ignore_errors=True)
