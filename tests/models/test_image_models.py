"""Image models in every storey: pruned, exported, served."""

import copy
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTForImageClassification,
)

import toprune
from support.flops import count_macs
from support.images import (
    NAMES,
    SIDE,
    TOKENS,
    make_processor,
    make_vit,
    photo,
    squares,
    write_csv,
    write_files,
)
from support.models import make_tokenizer
from support.strategies import make_plan
from toprune import Bundle, Runner
from toprune.api import Data
from toprune.compare.bench import bench
from toprune.data.images import PLACE
from toprune.errors import UserError
from toprune.export.export import export
from toprune.export.graph import write_onnx
from toprune.export.parity import check
from toprune.methods.top import Top
from toprune.models.families import max_positions, sizes_of
from toprune.plan.cost import dense_macs, executed_macs
from toprune.pruning.attach import attach, attached, detach
from toprune.run.bulk import score_file
from toprune.run.engines import OnnxRuntime
from toprune.run.evaluate import evaluate
from toprune.run.manifest import Manifest
from toprune.training.job import dense_plan
from toprune.training.settings import Training

QUIET = Training(soft_epochs=1, hard_epochs=1, lr=1e-3, batch_size=16)


def pixels(count: int, seed: int = 0) -> Tensor:
    drawn = np.random.default_rng(seed).normal(size=(count, 3, SIDE, SIDE))
    return torch.from_numpy(drawn)


# -- one truth, many executions ------------------------------------------------------------------


@cache
def double() -> Any:
    """Never attached to: tests work on copies."""
    return make_vit(num_labels=3).double()


@torch.no_grad()
def logits(model: Any, images: Tensor) -> Tensor:
    return model(images).logits


SHAPES = {
    "no steps": (),
    "one step": ((1, "2/5"),),
    "three steps": ((0, "3/4"), (1, "1/2"), (2, "1/5")),
}
each_score = pytest.mark.parametrize("score", ["received", "probe"])
each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_score
def test_keep_all_is_the_stock_model(score: str) -> None:
    inputs, model = pixels(4), copy.deepcopy(double())
    expected = logits(model, inputs)
    for steps in ((), ((0, "1"), (2, "1"))):
        attach(model, make_plan("vit", *steps, score=score))
        torch.testing.assert_close(logits(model, inputs), expected, atol=1e-9, rtol=0)
    assert torch.equal(logits(detach(model), inputs), expected)


@each_score
@each_shape
def test_masked_is_gathered_is_alone(score: str, shape: str) -> None:
    plan, inputs = make_plan("vit", *SHAPES[shape], score=score), pixels(5)
    model = attach(copy.deepcopy(double()), plan)
    expected = logits(model, inputs)
    if plan.steps:
        assert not torch.allclose(expected, logits(double(), inputs), atol=1e-3)
        run = attached(model)
        assert run is not None
        kept = [tokens.index.shape[1] for tokens in run.entered]
        assert kept == plan.lengths(TOKENS)
    for i in range(len(inputs)):
        torch.testing.assert_close(
            logits(model, inputs[i : i + 1])[0], expected[i], atol=1e-9, rtol=0
        )
    masked = attach(copy.deepcopy(double()), plan, gather=False)
    torch.testing.assert_close(logits(masked, inputs), expected, atol=1e-9, rtol=0)


def test_a_mask_or_protected_ids_are_refused() -> None:
    model = attach(make_vit(), make_plan("vit", (1, "1/2")))
    with pytest.raises(ValueError, match="an image has no padding"):
        model(pixels(1), attention_mask=torch.ones(1, TOKENS))
    attach(model, make_plan("vit", (1, "1/2"), protect=(3,)))
    with pytest.raises(UserError, match="needs input_ids"):
        model(pixels(1))


@each_score
@each_shape
def test_the_file_gives_the_logits_of_torch(score: str, shape: str, tmp_path: Path) -> None:
    """In batches of 1, 2 and 5, and of another image size than is usual: not a square."""
    model = make_vit(num_labels=3, image_size=[24, 40], initializer_range=0.3)
    plan = make_plan("vit", *SHAPES[shape], score=score)
    write_onnx(model, plan, tmp_path / "model.onnx")
    engine = OnnxRuntime(tmp_path / "model.onnx", threads=1)
    assert engine.inputs == ("pixel_values",)
    assert check(model, plan, engine.run, max_positions(model.config)).batches == 3
    other = make_plan("vit", (0, "1/5"), score="received")
    with pytest.raises(UserError, match="differs from torch"):
        check(model, other, engine.run, max_positions(model.config))


def counted_macs(model: Any, count: int) -> int:
    return count_macs(lambda: model.base_model(pixels(count).float()))


@each_score
@each_shape
def test_executed_macs_are_what_torch_counts(score: str, shape: str) -> None:
    """[CLS] is not read by the convolution."""
    model, plan = make_vit(), make_plan("vit", *SHAPES[shape], score=score)
    sizes = sizes_of(model)
    assert counted_macs(model, 1) == dense_macs(sizes, TOKENS, "last")
    assert counted_macs(attach(model, plan), 1) == executed_macs(sizes, plan, TOKENS)


# -- from end to end -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data/ of coloured squares, dense/ that tells them apart, small/ pruned and exported."""
    place = tmp_path_factory.mktemp("images")
    data = place / "data"
    data.mkdir()
    write_csv(data / "train.csv", write_files(data / "train", 160, 0))
    write_csv(data / "test.csv", write_files(data / "test", 40, 1))
    base = make_vit(num_labels=3, initializer_range=0.1)
    base.save_pretrained(place / "base")
    make_processor().save_pretrained(place / "base")
    toprune.finetune(
        place / "base",
        data,
        out=place / "dense",
        training=Training(
            soft_epochs=0,
            hard_epochs=4,
            lr=2e-3,
            batch_size=16,
            label_weight=1.0,
            train_embeddings=True,
        ),
    )
    toprune.prune(place / "dense", data, "1.8x", out=place / "small", training=QUIET)
    export(place / "small", int8=True)
    return place


def test_the_budget_is_met_and_the_squares_are_found(place: Path) -> None:
    report = json.loads((place / "small/report.json").read_text())
    assert report["max_length"] == TOKENS
    assert report["lengths"] == {str(TOKENS): 160}
    done = report["budget"]["executed"]
    assert done["unpadded"] == pytest.approx(1.8, rel=0.02)
    assert done["padded"] == done["unpadded"]  # images have no padding
    assert report["dense"]["accuracy"]["value"] >= 0.9
    assert report["pruned"]["accuracy"]["value"] >= 0.85


def test_the_bundle_is_an_ordinary_directory(place: Path) -> None:
    bundle, processor = (
        Bundle.load(place / "small"),
        AutoImageProcessor.from_pretrained(place / "small"),
    )
    stock = AutoModelForImageClassification.from_pretrained(place / "small").eval()
    assert processor.to_dict() == make_processor().to_dict()
    assert stock.config.id2label == dict(enumerate(NAMES))
    assert not list((place / "small").glob("token*"))
    inputs = pixels(2).float()
    assert torch.equal(logits(bundle.model, inputs), logits(stock, inputs))


def test_the_runner_says_what_torch_says(place: Path) -> None:
    images, labels = squares(24, 5)
    bundle = Bundle.load(place / "small")
    assert bundle.plan is not None
    inputs = make_processor()(images=images, return_tensors="pt")["pixel_values"]
    expected = logits(attach(bundle.model, bundle.plan), inputs).numpy()
    run = Runner(place / "small", threads=1, batch_tokens=5 * TOKENS)
    np.testing.assert_allclose(run(images), expected, atol=1e-4)
    np.testing.assert_allclose(run([Image.fromarray(i) for i in images]), expected, atol=1e-4)
    np.testing.assert_allclose(run(np.stack(images)), expected, atol=1e-4)
    assert run([]).shape == (0, 2)
    answers = run.predict(images)
    assert [answer["label"] for answer in answers] == [NAMES[i] for i in expected.argmax(1)]
    right = [answer["label"] == NAMES[i] for answer, i in zip(answers, labels, strict=True)]
    assert np.mean(right) >= 0.85
    small = Runner(place / "small", precision="int8", threads=1)
    assert np.mean(small(images).argmax(1) == expected.argmax(1)) >= 0.85


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (["a text"], "there is no image file 'a text'"),
        ([np.zeros((3, SIDE, SIDE), np.uint8)], "is an array of shape"),
        (np.zeros((SIDE, SIDE, 3), np.uint8), r"images\[0\] is an array of shape \(32, 3\)"),
        (photo(), "give a list"),
        ("a.png", "give a list"),
    ],
)
def test_the_runner_refuses_what_is_no_image(place: Path, images: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Runner(place / "small", threads=1)(images)


def test_the_runner_needs_no_torch(place: Path) -> None:
    code = f"""
import sys
import numpy as np
import toprune
run = toprune.Runner({str(place / "small")!r}, threads=1)
print(run([np.zeros((9, 9, 3), np.uint8)]).shape, {{"torch", "transformers"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[0] == "(1, 2) set()", done.stderr


def test_evaluation_is_the_same_by_torch_and_onnx(place: Path) -> None:
    by_torch = toprune.evaluate(place / "small", place / "data")
    by_onnx = evaluate(Runner(place / "small", threads=1), place / "data")
    assert by_torch["metrics"] == by_onnx["metrics"]
    assert by_torch["max_length"] == by_onnx["max_length"] == TOKENS
    assert by_torch["examples"] == 40
    assert by_torch["executed"]["unpadded"] == pytest.approx(1.8, rel=0.02)


def test_other_preparation_is_another_bundle(place: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    for part in ("plan.json", PLACE, "onnx/model.onnx", "onnx/export.json"):
        (bundle / part).parent.mkdir(parents=True, exist_ok=True)
        (bundle / part).write_bytes((place / "small" / part).read_bytes())
    manifest = Manifest.load(bundle)
    assert manifest.images
    assert Runner(bundle, threads=1)(squares(1, 0)[0]).shape == (1, 2)  # without weights
    with pytest.raises(UserError, match="every image has 17 tokens"):
        Runner(bundle, max_length=9)
    text = (bundle / PLACE).read_text()
    (bundle / PLACE).write_text(text.replace("0.5", "0.4"))
    with pytest.raises(UserError, match=f"{PLACE} is not the file that was exported"):
        Runner(bundle)
    (bundle / PLACE).unlink()
    with pytest.raises(UserError, match=f"{PLACE} is missing"):
        Runner(bundle)
    fields = json.loads(manifest.to_json()) | {"inputs": ["input_ids", "attention_mask"]}
    with pytest.raises(UserError, match=r"tokenizer\.json is not listed"):
        Manifest.from_json(json.dumps(fields))


def test_bulk_work(place: Path, tmp_path: Path) -> None:
    run, out = Runner(place / "small", threads=1), tmp_path / "out.jsonl"
    assert score_file(run, place / "data/test.csv", out) == 40
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[0]["image"] == "test/1-0.png"  # as it was written
    agree = [row["label"] == row["predicted_label"] for row in rows]
    assert np.mean(agree) >= 0.85
    source = write_csv(tmp_path / "in.csv", [{"image": "lost.png"}, {"image": ""}])
    with pytest.raises(UserError, match=r"row 1: there is no file '.*lost\.png' in column 'image'"):
        score_file(run, source, out)
    with pytest.warns(UserWarning, match="rows 1, 2"):
        assert score_file(run, source, out, skip_bad_rows=True) == 0


def test_bulk_work_leaves_pixels_behind(place: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    images = [Image.fromarray(image) for image in squares(3, 0)[0]]
    kinds = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict({"image": images}, kinds).to_parquet(tmp_path / "in.parquet")
    run, out = Runner(place / "small", threads=1), tmp_path / "out.jsonl"
    assert score_file(run, tmp_path / "in.parquet", out) == 3
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(row["image"] is None and row["label"] in NAMES for row in rows)


def test_bench_takes_images_and_noise(place: Path) -> None:
    options: Any = {"rounds": 1, "seconds": 0.1, "int8": False}
    report = bench(place / "small", texts=squares(4, 0)[0], batch=2, **options)
    assert [row["name"] for row in report["rows"]] == ["4 images", "4 images, 2 a call"]
    (noise,) = bench(place / "small", **options)["rows"]
    assert (noise["name"], noise["tokens"]) == (f"length {TOKENS}", TOKENS)
    assert noise["flops"]["unpadded"] == pytest.approx(1.8, rel=0.02)
    with pytest.raises(UserError, match="leave --lengths out"):
        bench(place / "small", lengths=[8])


def test_received_attention_and_a_processor_of_transformers(place: Path) -> None:
    """A model as an object, rows of arrays, and no labels: nothing is on disk."""
    rows = [{"image": image} for image in squares(48, 2)[0]]
    model = ViTForImageClassification.from_pretrained(place / "dense")
    bundle = toprune.prune(
        model,
        {"train": rows, "test": rows[:16]},
        "1.5x",
        tokenizer=make_processor(),
        score="received",
        training=QUIET,
        method=Top(first=1),
    )
    assert bundle.plan is not None
    assert (bundle.plan.score, bundle.plan.steps != ()) == ("received", True)
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(1.5, rel=0.03)
    assert bundle.report["agreement"] >= 0.75


@pytest.mark.parametrize(
    ("task", "outputs", "problem"),
    [("multilabel", 2, "multi_label_classification"), ("regress", 1, "regression")],
)
def test_a_schedule_without_training_for_other_tasks(
    task: str, outputs: int, problem: str, tmp_path: Path
) -> None:
    """And a dense model exported as it is."""
    model = make_vit(num_labels=outputs, problem_type=problem)
    model.save_pretrained(tmp_path / "model")
    make_processor().save_pretrained(tmp_path / "model")
    several = task == "multilabel"
    rows = [
        {"image": image, "labels": [i]} if several else {"image": image, "label": i / 2}
        for image, i in zip(*squares(24, 2), strict=True)
    ]
    still = Training(soft_epochs=0, hard_epochs=0)
    bundle = toprune.prune(tmp_path / "model", rows, "1.4x", task=task, training=still)
    # whole tokens of one length are coarse steps
    assert bundle.report["budget"]["executed"]["unpadded"] == pytest.approx(1.4, rel=0.03)
    export(tmp_path / "model", int8=True)
    run = Runner(tmp_path / "model", threads=1)
    expected = logits(
        model, make_processor()(images=rows[0]["image"], return_tensors="pt").pixel_values
    )
    np.testing.assert_allclose(run([rows[0]["image"]]), expected.numpy(), atol=1e-3)
    assert task == run.task.NAME
    assert dense_plan(model).steps == run.plan.steps == ()


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "rank"}, "the task rank reads texts"),
        ({"task": "answer"}, "the task answer reads texts"),
        ({"task": "embed"}, "the task embed reads texts"),
        ({"protect": ("w1",)}, "images have no words to protect"),
        ({"protect_first": True}, "images have no words to protect"),
        ({"tokenizer": make_processor(size=16)}, r"makes images of .*\(3, 16, 16\), the model"),
        ({"length": 9}, "every image has 17 tokens"),
    ],
)
def test_options_that_images_cannot_have(options: dict[str, Any], message: str) -> None:
    length = options.pop("length", None)
    rows = [{"image": i, "label": c} for i, c in zip(*squares(12, 0), strict=True)]
    options = {"task": "classify", "tokenizer": make_processor()} | options
    outputs = 1 if options["task"] == "rank" else 2
    with pytest.raises(UserError, match=message):
        toprune.prune(make_vit(outputs), Data(rows, max_length=length), "1.5x", **options)


def test_windows_are_of_texts(place: Path) -> None:
    from toprune.tasks import Classify

    with pytest.raises(UserError, match="an image has no windows"):
        toprune.prune(place / "dense", place / "data", "1.5x", task=Classify(stride=4))


def test_a_model_without_its_preparation(tmp_path: Path) -> None:
    make_vit().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"no {PLACE} in"):
        Bundle.load(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"no {PLACE} in"):
        Bundle.load(tmp_path)
