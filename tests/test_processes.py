"""Several processes make one bundle: they agree on the plan, and resume together."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import synthetic
from conftest import make_tokenizer
from toprune.plan import Plan

PROGRAM = """
import json, os, sys
sys.path.insert(0, {tests!r})
import pytest
import test_resume as t
from toprune.bundle import Bundle

def say(**what):
    # one write, so that the lines of two processes do not mix
    os.write(1, (json.dumps(dict(rank=os.environ["RANK"], **what)) + chr(10)).encode())

training = t.replace(t.TRAINING, save_steps=3)
save = Bundle.save
Bundle.save = lambda self, folder: (say(saved=str(folder)), save(self, folder))
for name in ("whole", "halved"):
    with pytest.MonkeyPatch.context() as patch:
        if name == "halved":
            t.stop_at(patch, "soft", 7)  # four steps to an epoch: inside the second
        try:
            bundle = t.prune({model!r}, t.ROWS, "2x", out=name, training=training)
        except t.Stopped:
            bundle = None
    if bundle is None:
        bundle = t.prune({model!r}, t.ROWS, "2x", out=name, training=training, resume=True)
    weights = sum(float(p.double().sum()) for p in bundle.model.parameters())
    say(name=name, steps=[[s.layer, str(s.keep)] for s in bundle.plan.steps], weights=weights,
        executed=bundle.report["budget"]["executed"]["unpadded"])
"""


@pytest.mark.slow
def test_two_processes_make_one_bundle(tmp_path: Path):
    synthetic.untrained().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    script = tmp_path / "program.py"
    tests = str(Path(__file__).parent)
    script.write_text(PROGRAM.format(tests=tests, model=str(tmp_path / "model")))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(
        [sys.executable, *launch], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    saved = [line for line in lines if "saved" in line]
    assert [line["rank"] for line in saved] == ["0", "0"]
    found = [line for line in lines if "steps" in line]
    assert len(found) == 4
    for line in found:
        assert line["steps"] == found[0]["steps"]
        assert line["weights"] == found[0]["weights"]
        assert line["executed"] == pytest.approx(2, rel=0.01)
    plans = [Plan.load(tmp_path / name / "plan.json") for name in ("whole", "halved")]
    assert plans[0].steps == plans[1].steps
    assert [[step.layer, str(step.keep)] for step in plans[0].steps] == found[0]["steps"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"model", "program.py", "whole", "halved"}
