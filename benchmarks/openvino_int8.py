"""Two int8 files side by side: ONNX Runtime's (dynamic) and OpenVINO's (static, by NNCF).

    python benchmarks/openvino_int8.py                  # about 5 minutes, on an idle machine
    python benchmarks/openvino_int8.py --examples 200 --rounds 5 --seconds 5 --out FILE   # a try

MiniLM on IMDB, dense and pruned to 3x (accuracy.py makes both; they are copied, not changed). Both
are exported with both int8 files; OpenVINO's is calibrated on 128 reviews of train. Then:

quality  accuracy on reviews of test, and how many get the class that fp32 of the same model gives
time     all six files take turns on texts of test, one a call, with 1 and 2 threads; and the file
         of transformers' own exporter, if --dense-onnx names one

It needs toprune[nncf]. Exported copies stay in the cache, so that a second run only measures.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import sets
from dense import CACHE
from toprune.compare.bench import bench
from toprune.export.export import export
from toprune.report.environment import environment
from toprune.run.manifest import OPENVINO_INT8, PLACE
from toprune.run.runner import Runner
from toprune.tasks import make_task
from toprune.tasks.intervals import paired, with_intervals

RESULT = Path(__file__).parent / "results" / "openvino_int8.json"
TASK, BUDGET = "imdb", "3x"
SOURCES = {
    "dense": CACHE / "dense" / "imdb-minilm",
    "pruned": CACHE / "accuracy" / f"imdb-minilm-{BUDGET}-top-1",
}
FILES: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "int8": {"precision": "int8"},
    "int8 openvino": {"precision": "int8", "runtime": "openvino"},
}


def exported(name: str) -> Path:
    """A copy of the bundle with both int8 files."""
    folder = CACHE / "openvino" / name
    if not (folder / OPENVINO_INT8).exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(SOURCES[name], folder)
        texts = sets.rows(sets.train_set(TASK, 1000, seed=1))
        export(folder, int8=True, calibration=texts, task=sets.TASK[TASK], say=sets.say)
    return folder


def quality(folder: Path, examples: int) -> dict[str, Any]:
    """Accuracy of each file, and how it differs from fp32."""
    task = make_task(sets.TASK[TASK])
    whole = sets.report_sets(TASK, examples)["test"]
    texts = whole.inputs(task.READS)
    outputs: dict[str, list[Any]] = {}
    rows: list[Any] = []
    for file, how in FILES.items():
        read = list(Runner(folder, **how).read(texts))
        rows, outputs[file] = [row for row, _ in read], [output for _, output in read]
    exact = task.statistics(outputs["fp32"], rows, whole)
    results: dict[str, Any] = {}
    for file, output in outputs.items():
        statistics = task.statistics(output, rows, whole)
        results[file] = {
            "metrics": with_intervals(task, statistics),
            "difference": paired(task, exact, statistics),
            "agreement": task.agreement(outputs["fp32"], output, rows, whole),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=40, help="of each thread count")
    parser.add_argument("--dense-onnx", type=Path)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    folders = {name: exported(name) for name in SOURCES}
    result: dict[str, Any] = {"task": TASK, "budget": BUDGET, "examples": args.examples}
    result["quality"] = {}
    for name, folder in folders.items():
        result["quality"][name] = found = quality(folder, args.examples)
        for file, row in found.items():
            accuracy = 100 * row["metrics"]["accuracy"]["value"]
            sets.say(f"{name} {file}: {accuracy:.1f}, as fp32 {100 * row['agreement']:.1f} %")
        checked = json.loads((folder / PLACE).read_text(encoding="utf-8"))["checked"]
        result["quality"][name]["int8 openvino"]["checked"] = checked["int8 openvino"]
    texts = sets.report_sets(TASK, 400)["test"].texts
    result["time"] = [
        bench(
            folders["pruned"],
            texts=texts,
            threads=threads,
            rounds=args.rounds,
            seconds=args.seconds,
            dense_onnx=args.dense_onnx,
            say=sets.say,
        )
        for threads in (1, 2)
    ]
    text = json.dumps(result | {"environment": environment()}, indent=1)
    args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
