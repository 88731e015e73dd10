"""One process, two, and two that are killed and end as one: the same plan, the same quality?

    python benchmarks/processes.py        # some minutes on two cores; writes results/processes.json

The same command each time, with `torchrun` before it or not: MRPC, 800 pairs, the dense MiniLM of
results.py, 2x. Processes talk by gloo.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sets
from dense import CACHE
from toprune.bundle.bundle import read_report
from toprune.plan.plan import Plan
from toprune.report.environment import environment
from toprune.training.trainer import last_checkpoint

OUT = Path(__file__).parent / "results" / "processes.json"
BUDGET, PAIRS, SHOWN, SEED = "2x", 800, 500, 0
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def command(data: Path, out: Path) -> list[str]:
    args = f"-m toprune.cli prune --model {CACHE / 'dense' / 'mrpc'} --data {data} --out {out}"
    args += f" --budget {BUDGET} --epochs 2 --soft-epochs 1 --max-length 128 --save-steps 5"
    return f"{args} --seed {SEED} --resume --json".split()


def start(args: list[str], processes: int) -> subprocess.Popen[bytes]:
    command_line = [sys.executable, *(TWO if processes == 2 else []), *args]
    threads = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command_line, env=threads, stdout=subprocess.DEVNULL, start_new_session=True
    )


def kill_in_the_soft_stage(args: list[str], out: Path) -> None:
    """All processes at once, after their second checkpoint."""
    soft = out.with_name(f"{out.name}.partial") / "stages" / "soft"
    with start(args, 2) as launcher:
        while int((last_checkpoint(soft) or "-0").rpartition("-")[2]) < 10:
            if launcher.poll() is not None:
                raise SystemExit("it ended before it could be killed")
            time.sleep(0.1)
        os.killpg(launcher.pid, signal.SIGKILL)
        subprocess.run(["pkill", "-KILL", "-f", str(out)], check=False)  # workers have own sessions


def summary(out: Path) -> dict[str, Any]:
    plan, report = Plan.load(out / "plan.json"), read_report(out)
    return {
        "steps": [{"layer": step.layer, "keep": float(step.keep)} for step in plan.steps],
        "executed": report["budget"]["executed"]["unpadded"],
        "dense": report["dense"]["accuracy"],
        "pruned": report["pruned"]["accuracy"],
        "agreement": report["agreement"],
    }


def main() -> None:
    reported = sets.together(sets.report_sets("mrpc", SHOWN).values())
    results: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        for name, examples in (("train", sets.train_set("mrpc", PAIRS)), ("test", reported)):
            lines = (json.dumps(row) + "\n" for row in sets.rows(examples))
            (data / f"{name}.jsonl").write_text("".join(lines))
        for name, processes in (("one", 1), ("two", 2), ("two, killed, then one", 1)):
            out = Path(folder) / name.replace(", ", "-").replace(" ", "-")
            args = command(data, out)
            if "killed" in name:
                kill_in_the_soft_stage(args, out)
            if start(args, processes).wait() != 0:
                raise SystemExit(f"{name} failed")
            results[name] = summary(out)
            sets.say(f"{name}: {results[name]}")
            shutil.rmtree(out)
    about = {"budget": BUDGET, "trained_on": PAIRS, "examples": len(reported), "seed": SEED}
    OUT.write_text(
        json.dumps(about | {"runs": results, "environment": environment()}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
