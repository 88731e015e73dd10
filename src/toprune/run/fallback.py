"""The dense file of a bundle, which answers texts that the pruned one is not sure of."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from toprune.errors import UserError
from toprune.run import manifest
from toprune.run.manifest import Manifest, Precision
from toprune.tasks import Task
from toprune.tasks.fallback import DENSE, PLACE, Fallback
from toprune.tasks.tokenize import Row

DENSE_MANIFEST = f"{DENSE}/{manifest.PLACE}"  # its hash, and by it those of all files of dense
# What a pruned and a dense file must share, so that one can stand in for the other.
SHARED = ("task", "settings", "labels", "inputs", "max_length", "pad_token_id")

Run = Callable[[list[Row], int], list[np.ndarray]]  # rows, number of the first text -> outputs


@dataclass
class Counter:
    """Counts texts, and those that fell back. Any number of threads may add."""

    texts: int = 0
    fallbacks: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, texts: int, fallbacks: int) -> None:
        with self._lock:
            self.texts, self.fallbacks = self.texts + texts, self.fallbacks + fallbacks

    def stats(self) -> dict[str, Any]:
        with self._lock:
            texts, fallbacks = self.texts, self.fallbacks
        return {
            "texts": texts,
            "fallbacks": fallbacks,
            "share": fallbacks / texts if texts else 0.0,
        }


@dataclass(frozen=True)
class SafetyNet:
    """The fallback of a bundle with the dense file loaded."""

    fallback: Fallback
    task: Task
    dense: Manifest
    run_dense: Run

    def catch(
        self, outputs: list[np.ndarray], rows: list[Row], count: int, first: int
    ) -> np.ndarray:
        """Replace the outputs of texts whose margin is too small by those of the dense file.

        Args:
            outputs: of the pruned file, one for each row; changed in place.
            rows: of `count` texts, which are numbered from 0.
            first: number of the first text, for errors that name one.

        Returns:
            (count,) booleans: which texts fell back.
        """
        fell = self.fallback.below(self.task, outputs, rows, count)
        chosen = [i for i, row in enumerate(rows) if fell[row.text]]
        if chosen:
            dense = self.run_dense([rows[i] for i in chosen], first)
            for i, output in zip(chosen, dense, strict=True):
                outputs[i] = output
        return fell


def has_fallback(bundle: Path, files: Manifest) -> bool:
    """Whether a bundle answers some texts by its dense file.

    Args:
        bundle: the directory.
        files: its manifest, which must list the file if it is there.
    """
    listed, there = PLACE in files.files, os.path.lexists(bundle / PLACE)
    if listed != there:
        what = "is missing" if listed else "was not there when the bundle was exported"
        raise UserError(
            f"{bundle / PLACE} {what}; copy the bundle again or run 'toprune export {bundle}' again"
        )
    return listed


def has_dense(bundle: Path, files: Manifest) -> bool:
    """Whether a bundle holds an exported dense model that its manifest lists."""
    if DENSE_MANIFEST not in files.files:
        return False
    if not (bundle / DENSE_MANIFEST).is_file():
        raise UserError(
            f"{bundle / DENSE_MANIFEST} is missing; copy it again, run 'toprune export {bundle}' "
            "again, or open the bundle with Runner(..., fallback=False)"
        )
    return True


def dense_precision(dense: Manifest, precision: Precision, runtime: str = "onnx") -> Precision:
    """The file of the dense model that stands behind a pruned one: of the same precision, so that
    the budget holds; fp32 if that was not exported."""
    return precision if dense.graph(precision, runtime) in dense.files else "fp32"


def read_fallback(bundle: Path, files: Manifest) -> Fallback:
    """The fallback of a bundle that has one; its dense model must be there, too."""
    if not has_dense(bundle, files):
        raise UserError(
            f"{bundle} has a {PLACE}, but was exported without {DENSE}/; "
            f"run 'toprune export {bundle}' again"
        )
    fallback = Fallback.load(bundle)
    assert fallback is not None
    if files.build_task().NO_MARGIN is not None:
        raise UserError(f"{bundle / PLACE}: the task {files.task} has no margin; prune again")
    return fallback


def check_partner(bundle: Path, pruned: Manifest, dense: Manifest) -> None:
    """Refuse a dense model that reads or answers otherwise than the pruned one."""
    same_tokens = [one.files.get(pruned.needed[1]) for one in (pruned, dense)]
    other = [name for name in SHARED if getattr(pruned, name) != getattr(dense, name)]
    other += ["tokenizer"] if same_tokens[0] != same_tokens[1] else []
    if other:
        raise UserError(
            f"{bundle / DENSE} is not the dense model of this bundle: it has another "
            f"{', '.join(other)}; prune the model again"
        )
