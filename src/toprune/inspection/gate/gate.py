"""The gate: is a bundle no worse than the dense model by more than is allowed, and fast enough?"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from toprune.data.examples import Examples
from toprune.data.presets import preset_in
from toprune.data.sets import Data, load_furthest
from toprune.errors import UserError
from toprune.inspection.gate import checks as c
from toprune.inspection.gate.answers import (
    Answers,
    Contender,
    open_dense,
    open_file,
    side_by_side,
    text_numbers,
    tokens_of,
)
from toprune.inspection.gate.checks import Check
from toprune.inspection.gate.result import FACTOR, GateResult, Limits
from toprune.inspection.gate.times import time_files
from toprune.inspection.stress.filler import (
    PLACES,
    PLAIN,
    Padding,
    read_sentences,
    takes_filler,
)
from toprune.io.untrusted import read_json
from toprune.report.build import SHARES
from toprune.report.environment import environment
from toprune.run.engines import Runtime
from toprune.run.fallback import has_dense
from toprune.run.manifest import GRAPHS, OPENVINO_INT8, Manifest, Precision
from toprune.run.timing import interleave
from toprune.tasks.fallback import DENSE
from toprune.tasks.intervals import level_of, parse_share
from toprune.tasks.side_by_side import SideBySide

FILLED = 500  # texts that get filler, as much of it as they are long
SECONDS = 60.0  # for all rounds
TARGETS = (99.0, 99.9)  # shares of the dense metric that MLPerf's rules name, in %


def gate(
    bundle: str | Path,
    data: Data | Any,
    *,
    dense: str | Path | None = None,
    max_loss: float | None = None,
    min_agreement: str | float | None = None,
    keep: str | float | None = None,
    max_ms: float | None = None,
    group_factor: float = FACTOR,
    metric: str | None = None,
    precision: Precision | None = None,
    runtime: Runtime = "onnx",
    split: str | None = None,
    filler: str | Path | None = None,
    threads: int = 1,
    rounds: int = 20,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> GateResult:
    """Check the exported files of a bundle against the dense model, and their time.

    Args:
        bundle: the exported directory.
        data: a `Data`, or its source; `max_length` is what the dense model reads. Labels are needed
            for `max_loss` and `keep`.
        dense: the model that was pruned: a directory or a hub id. If the directory is exported, its
            fp32 file is run without torch. Not needed for `max_ms` alone.
        max_loss: points of the metric that may be lost.
        min_agreement: share of equal answers, `98%` or 0.98.
        keep: share of the dense metric that must be kept.
        max_ms: median time of one text per call, over the lengths of the data, on this machine.
        group_factor: classes, ranges of lengths and texts with filler may lose, or disagree, so
            many times as much.
        metric: the metric of `max_loss` and `keep`; None: the task's first one.
        precision: check this file alone; None: every file of the bundle.
        runtime: what executes the files; "openvino" has an int8 file of its own, if exported.
        split: of the data.
        filler: a file with a sentence on each line; None: built-in sentences.
        threads: of each model.
        rounds: of the timing.
        seed: of filler and of the order in rounds.
        clock: returns the time in seconds.

    Returns:
        The checks; `passed` if all of them hold.
    """
    limits = Limits(
        max_loss,
        None if min_agreement is None else parse_share("--min-agreement", min_agreement),
        None if keep is None else parse_share("--keep", keep),
        max_ms,
        group_factor,
    )
    if min(threads, rounds) < 1:
        raise UserError("threads and rounds must be 1 or more")
    folder = Path(bundle)
    manifest = Manifest.load(folder)
    files = _files(folder, manifest, precision, runtime)
    if dense is None and has_dense(folder, manifest):
        dense = folder / DENSE
    source = data if isinstance(data, Data) else Data(data)
    examples = _load(folder, manifest, source, split, limits)
    about: dict[str, Any] = {
        "bundle": str(bundle),
        "dense": None if dense is None else str(dense),
        "task": manifest.task,
        "metric": None,
        "examples": len(examples),
        "limits": vars(limits),
        "keeps": {},
        "not_checked": [],
        "runtime": runtime,
        "threads": threads,
    }
    if runtime == "onnx" and precision != "fp32" and OPENVINO_INT8 in manifest.files:
        entry = {"what": "the int8 file for OpenVINO", "why": "gate it with --runtime openvino"}
        about["not_checked"].append(entry)
    rows: list[Check] = []
    if limits.compares:
        reference = open_dense(
            _named(folder, dense),
            manifest,
            examples,
            preset_in(folder),
            max_length=source.max_length,
            threads=threads,
        )
        trial = Trial(folder, manifest, limits, examples, reference, metric, about)
        sentences = PLAIN if filler is None else read_sentences(filler)
        open_one = partial(open_file, folder, runtime=runtime, threads=threads)
        rows += trial.run(files, open_one, sentences, seed)
    if limits.max_ms is not None:
        texts = examples.inputs(manifest.build_task().READS)
        turns = partial(interleave, rounds=rounds, seed=seed, seconds=SECONDS, clock=clock)
        for file, figure, n in time_files(folder, manifest, texts, files, runtime, threads, turns):
            rows.append(c.check_all("time", file, limits.max_ms, figure, n))
    where = environment()
    return GateResult(tuple(rows), about | {"machine": where["machine"], "environment": where})


def _files(
    folder: Path, manifest: Manifest, precision: Precision | None, runtime: Runtime
) -> Sequence[Precision]:
    """The files to check, all of them unchanged since the export."""
    graphs: dict[Precision, str] = {one: manifest.graph(one, runtime) for one in GRAPHS}
    exported: list[Precision] = [one for one, graph in graphs.items() if graph in manifest.files]
    files: Sequence[Precision] = exported if precision is None else (precision,)
    for one in files:
        manifest.verify(folder, graphs[one])
    return files


def _load(
    folder: Path, manifest: Manifest, data: Data, split: str | None, limits: Limits
) -> Examples:
    examples = load_furthest(
        data.source,
        preset=preset_in(folder),
        reads=manifest.build_task().READS,
        columns=replace(data.columns, images=manifest.images),
        split=split,
        label_names=None if manifest.labels is None else list(manifest.labels),
        skip_bad_rows=data.skip_bad_rows,
    )
    if examples.labels is None and limits.by_labels:
        options = " and ".join(limits.by_labels)
        raise UserError(
            f"the data have no labels, which {options} needs; name their column with --label, or "
            "give --min-agreement alone"
        )
    return examples


def _named(folder: Path, dense: str | Path | None) -> str | Path:
    """The dense model, or a line that names it if the bundle's report does."""
    if dense is not None:
        return dense
    try:
        report = read_json(folder / "report.json")
        name = report["inputs"]["model"]
    except (UserError, KeyError, TypeError):
        name = "the model that was pruned"
    raise UserError(f"the gate compares with the dense model; give --dense: {name}")


@dataclass(frozen=True)
class Trial:
    """A comparison of the bundle's files with the dense model."""

    folder: Path
    manifest: Manifest
    limits: Limits
    examples: Examples
    dense: Contender
    requested: str | None  # metric
    about: dict[str, Any]  # of the result; completed here

    def run(
        self,
        files: Sequence[Precision],
        open_one: Callable[[Precision], Contender],
        sentences: Sequence[str],
        seed: int,
    ) -> Iterator[Check]:
        """Compare every file, on all texts and on groups of them."""
        self.about["metric"] = metric = self._metric()
        reference = self.dense.answer(self.examples)
        filled: tuple[Examples, Answers] | None = None
        for number, file in enumerate(files):
            contender = open_one(file)
            if number == 0:
                self.about["max_length"] = {
                    "dense": self.dense.max_length,
                    "pruned": contender.max_length,
                }
                room = min(self.dense.max_length, contender.max_length)
                padded = self._padded(room, sentences, seed)
                filled = None if padded is None else (padded, self.dense.answer(padded))
            answers = contender.answer(self.examples)
            sides = self._sides(reference, answers, self.examples)
            yield from self._all(file, sides, metric)
            groups = dict(self._bands(sides, reference, answers))
            if filled is not None:
                padded, before = filled
                groups["with filler"] = self._sides(before, contender.answer(padded), padded)
            yield from self._groups(file, sides, groups, metric)

    def _metric(self) -> str | None:
        """The metric that is gated, if there are labels."""
        if self.examples.labels is None:
            return None
        preset, task = preset_in(self.folder), self.manifest.build_task()
        if self.requested is None:
            return task.METRICS[0] if preset is None else preset.metrics[0]
        if self.requested not in task.METRICS:
            raise UserError(
                f"--metric {self.requested} is not one of the task {task.NAME}; it has: "
                f"{', '.join(task.METRICS)}"
            )
        return self.requested

    def _sides(self, dense: Answers, pruned: Answers, examples: Examples) -> SideBySide:
        names = self.manifest.labels or examples.label_names
        return side_by_side(dense, pruned, examples, names)

    def _all(self, file: str, sides: SideBySide, metric: str | None) -> Iterator[Check]:
        """The checks on all texts."""
        limits = self.limits
        if metric is not None:
            lost, n, dense = c.loss(sides, metric)
            if limits.max_loss is not None:
                yield c.check_all("loss", file, limits.max_loss, lost, n)
            kept = c.keep(lost, dense)
            if kept is not None:
                targets = {f"{target:g}%": kept["value"] >= target for target in TARGETS}
                self.about["keeps"][file] = kept | {"dense": dense, "reaches": targets}
                if limits.keep is not None:
                    yield c.check_all("keep", file, limits.keep, kept, n)
            elif limits.keep is not None:
                raise UserError(f"the dense model's {metric} is {dense:.2f}: nothing to keep")
        if limits.min_agreement is not None:
            yield c.check_all("agreement", file, limits.min_agreement, *c.agreement(sides))

    def _groups(
        self,
        file: str,
        sides: SideBySide,
        groups: Mapping[str, SideBySide],
        metric: str | None,
    ) -> Iterator[Check]:
        """The checks on classes, and on other groups of texts."""
        most, least = self.limits.group_loss, self.limits.group_agreement
        if metric is not None and most is not None:
            present, absent = c.count_classes(sides)
            level = level_of(len(groups) + present)
            if absent:
                self._leave_out("some classes", f"the data have none of: {', '.join(absent)}")
            for name, lost, n in c.class_losses(sides, level):
                yield c.check_group("loss", name, file, most, lost, n)
            for name, group in groups.items():
                try:
                    lost, n, _ = c.loss(group, metric, level)
                except UserError as problem:  # such as no query with a relevant document
                    self._leave_out(name, str(problem))
                    continue
                yield c.check_group("loss", name, file, most, lost, n)
        if least is not None:
            level = level_of(len(groups))
            for name, group in groups.items():
                agreed, n = c.agreement(group, level)
                yield c.check_group("agreement", name, file, least, agreed, n)

    def _bands(
        self, sides: SideBySide, dense: Answers, pruned: Answers
    ) -> Iterator[tuple[str, SideBySide]]:
        """Ranges of lengths: those of the report, from the shortest tenth to the longest."""
        ranges = c.bands(tokens_of(self.examples, pruned), SHARES)
        if not ranges:
            self._leave_out("lengths", "all texts have the same length")
        for name, chosen in ranges.items():
            texts = text_numbers(self.examples, chosen, pruned.task)
            part = self.examples.take(chosen)
            yield name, self._sides(dense.take(texts), pruned.take(texts), part)

    def _padded(self, room: int, sentences: Sequence[str], seed: int) -> Examples | None:
        """Some of the examples with filler, at each place in turn; None if none can have it."""
        task = self.manifest.build_task()
        if self.manifest.images or not takes_filler(task):
            self._leave_out("filler", "only tasks that give classes to a text have this check")
            return None
        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        padding = Padding(tokenizer, sentences, room, seed)
        texts = self.examples.inputs(task.READS)
        order = np.random.default_rng(seed).permutation(len(texts))
        chosen = [i for i in order.tolist() if padding.fits(texts[i], 1)][:FILLED]
        if not chosen:
            self._leave_out("filler", f"no text leaves room for filler in {room} tokens")
            return None
        padded = self.examples.take(chosen)
        for start, place in enumerate(PLACES):
            turn = range(start, len(chosen), len(PLACES))
            filled = padding.pad([texts[chosen[i]] for i in turn], place, 1)
            for i, one in zip(turn, filled, strict=True):
                column = padded.texts if padded.pairs is None else padded.pairs
                column[i] = one.text
        return padded

    def _leave_out(self, what: str, why: str) -> None:
        entry = {"what": what, "why": why}
        if entry not in self.about["not_checked"]:
            self.about["not_checked"].append(entry)
