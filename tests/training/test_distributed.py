"""Several processes make one bundle: they agree on the plan, and resume together."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support import synthetic
from support.models import make_tokenizer
from support.resuming import ROWS, TRAINING
from toprune.api import prune
from toprune.bundle.bundle import read_report
from toprune.plan.plan import Plan

PROGRAM = """
import json, os, sys
from dataclasses import replace
sys.path.insert(0, {tests!r})
import pytest
from support.resuming import ROWS, TRAINING, Stopped, stop_at
from toprune.api import prune
from toprune.bundle.bundle import Bundle

def say(**what):
    # one write, so that the lines of two processes do not mix
    os.write(1, (json.dumps(dict(rank=os.environ["RANK"], **what)) + chr(10)).encode())

training = replace(TRAINING, save_steps=3)
save = Bundle.save
Bundle.save = lambda self, folder: (say(saved=str(folder)), save(self, folder))
for name in ("whole", "halved", "left"):
    with pytest.MonkeyPatch.context() as patch:
        if name != "whole":
            stop_at(patch, "soft", 10)  # seven steps to an epoch: inside the second
        try:
            bundle = prune({model!r}, ROWS, "2x", out=name, training=training)
        except Stopped:
            bundle = None
    if name == "left":
        break  # for one process to end
    if bundle is None:
        bundle = prune({model!r}, ROWS, "2x", out=name, training=training, resume=True)
    weights = sum(float(p.double().sum()) for p in bundle.model.parameters())
    say(name=name, steps=[[s.layer, str(s.keep)] for s in bundle.plan.steps], weights=weights,
        executed=bundle.report["budget"]["executed"]["unpadded"])
"""


@pytest.mark.slow
def test_two_processes_make_one_bundle(tmp_path: Path):
    synthetic.untrained().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    script = tmp_path / "program.py"
    tests = str(Path(__file__).parents[1])
    script.write_text(PROGRAM.format(tests=tests, model=str(tmp_path / "model")))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(
        [sys.executable, *launch], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    saved = [line for line in lines if "saved" in line]
    assert [line["rank"] for line in saved] == ["0", "0"]
    results = [line for line in lines if "steps" in line]
    assert len(results) == 4
    for line in results:
        assert line["steps"] == results[0]["steps"]
        assert line["weights"] == results[0]["weights"]
        assert line["executed"] == pytest.approx(2, rel=0.01)
    plans = [Plan.load(tmp_path / name / "plan.json") for name in ("whole", "halved")]
    assert plans[0].steps == plans[1].steps
    assert [[step.layer, str(step.keep)] for step in plans[0].steps] == results[0]["steps"]
    _one_process_says_the_same(tmp_path, plans[0])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"model", "program.py", "whole", "halved", "left", "alone"}


def _one_process_says_the_same(place: Path, plan: Plan) -> None:
    """The same command, alone from the start, or going on where the two were stopped: the same
    steps over the same batches, but for the order in which numbers are added up."""
    whole_report = read_report(place / "whole")
    for name in ("alone", "left"):
        assert (place / f"{name}.partial").exists() == (name == "left")
        bundle = prune(
            *(place / "model", ROWS, "2x"), out=place / name, training=TRAINING, resume=True
        )
        assert bundle.plan is not None
        assert [step.layer for step in bundle.plan.steps] == [step.layer for step in plan.steps]
        for mine, theirs in zip(bundle.plan.steps, plan.steps, strict=True):
            assert mine.keep == pytest.approx(theirs.keep, abs=0.03)
        assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(2, rel=0.01)
        gap = (
            bundle.report["pruned"]["accuracy"]["value"]
            - whole_report["pruned"]["accuracy"]["value"]
        )
        assert abs(gap) <= 2 / whole_report["examples"]  # of six texts
