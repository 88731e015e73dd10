"""Killed at any moment, a run leaves the old bundle or the new one, and goes on to the same end.
benchmarks/kills.py does more of it."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support import killing
from support.resuming import ROWS, TRAINING, same
from toprune.api import prune
from toprune.export.export import export
from toprune.run.runner import Runner

SHORT = replace(TRAINING, soft_epochs=1, hard_epochs=1)
NONE = replace(TRAINING, soft_epochs=0, hard_epochs=0)


@pytest.mark.slow
def test_prune_is_killed(untrained: Path, tmp_path: Path):
    """With an older bundle in its place, which stays until the new one is whole."""
    place, whole = tmp_path / "place", tmp_path / "whole"
    place.mkdir()
    job = partial(prune, untrained, ROWS, "2x", out=place / "out", training=SHORT, overwrite=True)
    prune(untrained, ROWS, "2x", out=place / "out", training=NONE)
    prune(untrained, ROWS, "2x", out=whole, training=SHORT)
    old, new = killing.content(place / "out"), killing.content(whole)
    assert old["plan.json"] != new["plan.json"]

    def look() -> None:
        now = killing.content(place / "out")
        if now != old:
            same(whole, place / "out")
            assert now.keys() == new.keys()

    moments = [{"at": int(n)} for n in (0, 5, 25, 60, 40, 20)]
    assert killing.kill_often(partial(job, resume=True), place, look, moments) >= 4
    same(whole, place / "out")
    assert [path.name for path in place.iterdir()] == ["out"]


@pytest.mark.slow
def test_export_is_killed(untrained: Path, tmp_path: Path):
    """The files work at any time, whether they were there before or are new."""
    out = tmp_path / "out"
    prune(untrained, ROWS, "2x", out=out, training=NONE)
    bare, count = killing.content(out), killing.touches(partial(export, out), out)
    assert killing.content(out).keys() > bare.keys()
    before = killing.content(out)
    assert killing.touches(partial(export, out), out) >= count  # now in the place of older ones

    def look() -> None:
        now = killing.content(out)
        assert now == before | {"onnx/export.json": now["onnx/export.json"]}
        Runner(out)

    moments = [{"at": n} for n in np.linspace(0, count - 1, 6, dtype=int).tolist()]
    assert killing.kill_often(partial(export, out), out, look, moments) == len(moments)
