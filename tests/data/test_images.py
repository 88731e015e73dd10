"""Images through the whole house: prepared as transformers does it, pruned, exported, served."""

import copy
import csv
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

import toprune
from support.models import SIZES, make_tokenizer
from support.strategies import make_plan
from toprune import Bundle, Runner
from toprune.api import Data
from toprune.compare.bench import bench
from toprune.data.columns import Columns
from toprune.data.examples import load
from toprune.data.images import PLACE, Images, as_image
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
from toprune.tasks.classify import Classify
from toprune.training.job import dense_plan
from toprune.training.settings import Training

SIDE, PATCH = 32, 8
TOKENS = (SIDE // PATCH) ** 2 + 1
COLOURS = {"blue": (30, 30, 230), "red": (230, 30, 30)}  # in the order of their ids
NAMES = list(COLOURS)
QUIET = Training(soft_epochs=1, hard_epochs=1, lr=1e-3, batch_size=16)


def make_vit(num_labels: int = 2, seed: int = 0, **own: Any) -> Any:
    sizes = {name: size for name, size in SIZES.items() if name != "max_position_embeddings"}
    own = {"image_size": SIDE, "patch_size": PATCH, "num_labels": num_labels} | sizes | own
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ViTForImageClassification(ViTConfig(**own)).eval()


def make_processor(**own: Any) -> ViTImageProcessorPil:
    settings: dict[str, Any] = {"size": {"height": SIDE, "width": SIDE}} | own
    return ViTImageProcessorPil(**settings)


def squares(count: int, seed: int) -> tuple[list[np.ndarray], list[int]]:
    """Noise with one coloured patch: a method that works must keep just that one."""
    rng = np.random.default_rng(seed)
    images, labels = [], []
    for _ in range(count):
        image = rng.integers(0, 60, (SIDE, SIDE, 3), np.uint8)
        y, x = rng.integers(0, SIDE // PATCH, 2) * PATCH
        label = int(rng.integers(2))
        image[y : y + PATCH, x : x + PATCH] = COLOURS[NAMES[label]]
        images.append(image)
        labels.append(label)
    return images, labels


def photo(width: int = 50, height: int = 37, seed: int = 0, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def pixels(count: int, seed: int = 0) -> Tensor:
    drawn = np.random.default_rng(seed).normal(size=(count, 3, SIDE, SIDE))
    return torch.from_numpy(drawn)


# -- how images are prepared ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"resample": 3},
        {"size": {"height": 24, "width": 40}},
        {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
        {"do_normalize": False},
        {"do_rescale": False, "do_normalize": False},
        {"rescale_factor": 1 / 128},
        {"size": {"shortest_edge": 41}, "do_center_crop": True, "crop_size": SIDE},
        {"do_center_crop": True, "crop_size": {"height": 20, "width": 31}},
    ],
)
@pytest.mark.parametrize("size", [(50, 37), (37, 50), (32, 32), (7, 90)])
def test_pixels_are_those_of_transformers(own: dict[str, Any], size: tuple[int, int]) -> None:
    processor = make_processor(**own)
    images = Images(processor.to_dict(), TOKENS)
    image = photo(*size)
    wanted = processor(images=image, return_tensors="np")["pixel_values"][0]
    found = images.pixels(image)
    assert (found.dtype, found.shape) == (np.float32, (3, images.height, images.width))
    np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=1e-6)


def test_old_files_say_less() -> None:
    """Those of ViTFeatureExtractor have a number as size, and nothing on rescaling."""
    old = {"feature_extractor_type": "ViTFeatureExtractor", "size": SIDE, "do_resize": True}
    found = Images(old, TOKENS).pixels(photo())
    np.testing.assert_array_equal(found, Images(make_processor().to_dict(), TOKENS).pixels(photo()))


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (
            {"image_processor_type": "ConvNextImageProcessor"},
            "not support ConvNext",
        ),
        ({"do_resize": False}, "do_resize must be true"),
        ({"size": {"longest_edge": 30}}, "size must be height and width"),
        ({"size": "large"}, "size must be height and width"),
        ({"size": {"shortest_edge": 30}}, "needs do_center_crop"),
        ({"do_center_crop": True, "crop_size": 33}, "crop_size must be within size"),
        ({"image_mean": [0.5]}, "image_mean must be three numbers"),
    ],
)
def test_settings_that_are_not_known(own: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=f"{PLACE}: .*{says}"):
        Images(make_processor().to_dict() | own, TOKENS)


def test_an_image_comes_in_many_forms(tmp_path: Path) -> None:
    images, image = Images(make_processor().to_dict(), TOKENS), photo()
    path, file = tmp_path / "a.png", io.BytesIO()
    image.save(path)
    image.save(file, "png")
    forms: list[Any] = [image, np.asarray(image), path, str(path), file.getvalue()]
    forms += [{"bytes": file.getvalue(), "path": None}, {"bytes": None, "path": str(path)}]
    rows = images.encode(forms)
    assert [(row.text, len(row)) for row in rows] == [(i, TOKENS) for i in range(len(forms))]
    batch = images.batch(rows)["pixel_values"]
    assert batch.shape == (len(forms), 3, SIDE, SIDE)
    assert (batch == batch[0]).all()
    assert images.pixels(as_image("a.png", tmp_path)).tolist() == batch[0].tolist()


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_every_mode_becomes_red_green_and_blue(mode: str) -> None:
    images, image = Images(make_processor().to_dict(), TOKENS), photo(mode=mode)
    np.testing.assert_array_equal(images.pixels(image), images.pixels(image.convert("RGB")))


def test_files_are_turned_upright(tmp_path: Path) -> None:
    images, image = Images(make_processor().to_dict(), TOKENS), photo()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    image.save(tmp_path / "turned.png", exif=exif)
    upright = images.pixels(image.transpose(Image.Transpose.ROTATE_270))
    np.testing.assert_array_equal(images.pixels(str(tmp_path / "turned.png")), upright)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a text", r"images\[4\]: there is no image file 'a text'"),
        ("", r"images\[4\]: there is no image"),
        (("a", "pair"), r"images\[4\] is a tuple, not an image"),
        (np.zeros((3, 8, 8), np.uint8), r"images\[4\] is an array of shape \(3, 8, 8\)"),
        (np.zeros((8, 8, 3), np.float32), "and type float32, not an image"),
        (np.zeros((8, 8), np.uint8), r"shape \(8, 8\)"),
        (b"no image", "not an image that Pillow can read"),
        (7, "is a int, not an image"),
    ],
)
def test_what_is_no_image(given: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Images(make_processor().to_dict(), TOKENS).encode([photo(), given], first=3)


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    images, path = Images(make_processor().to_dict(), TOKENS), tmp_path / "cut.png"
    photo(300, 200).save(path)
    path.write_bytes(path.read_bytes()[:5000])
    (row,) = images.encode([path])  # its header is whole
    with pytest.raises(UserError, match=r"cut\.png' is not an image that Pillow can read"):
        images.batch([row])


# -- one truth, many executions ------------------------------------------------------------------


@cache
def double() -> Any:
    """Never attached to: tests work on copies."""
    return make_vit(num_labels=3).double()


@torch.no_grad()
def said(model: Any, given: Tensor) -> Tensor:
    return model(given).logits


SHAPES = {
    "no steps": (),
    "one step": ((1, "2/5"),),
    "three steps": ((0, "3/4"), (1, "1/2"), (2, "1/5")),
}
each_score = pytest.mark.parametrize("score", ["received", "probe"])
each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_score
def test_keep_all_is_the_stock_model(score: str) -> None:
    given, model = pixels(4), copy.deepcopy(double())
    wanted = said(model, given)
    for steps in ((), ((0, "1"), (2, "1"))):
        attach(model, make_plan("vit", *steps, score=score))
        torch.testing.assert_close(said(model, given), wanted, atol=1e-9, rtol=0)
    assert torch.equal(said(detach(model), given), wanted)


@each_score
@each_shape
def test_masked_is_gathered_is_alone(score: str, shape: str) -> None:
    plan, given = make_plan("vit", *SHAPES[shape], score=score), pixels(5)
    model = attach(copy.deepcopy(double()), plan)
    wanted = said(model, given)
    if plan.steps:
        assert not torch.allclose(wanted, said(double(), given), atol=1e-3)
        run = attached(model)
        assert run is not None
        kept = [tokens.index.shape[1] for tokens in run.entered]
        assert kept == plan.lengths(TOKENS)
    for i in range(len(given)):
        torch.testing.assert_close(said(model, given[i : i + 1])[0], wanted[i], atol=1e-9, rtol=0)
    masked = attach(copy.deepcopy(double()), plan, gather=False)
    torch.testing.assert_close(said(masked, given), wanted, atol=1e-9, rtol=0)


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


def _mv_flops(matrix: Any, vector: Any, *_: Any, **__: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def counted_macs(model: Any, count: int) -> int:
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.mv: _mv_flops})
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model.base_model(pixels(count).float())
    return counter.get_total_flops() // 2


@each_score
@each_shape
def test_executed_macs_are_what_torch_counts(score: str, shape: str) -> None:
    """[CLS] is not read by the convolution."""
    model, plan = make_vit(), make_plan("vit", *SHAPES[shape], score=score)
    sizes = sizes_of(model)
    assert counted_macs(model, 1) == dense_macs(sizes, TOKENS, "last")
    assert counted_macs(attach(model, plan), 1) == executed_macs(sizes, plan, TOKENS)


# -- data ----------------------------------------------------------------------------------------


def write_files(folder: Path, count: int, seed: int) -> list[dict[str, str]]:
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = squares(count, seed)
    rows: list[dict[str, str]] = []
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(folder / f"{seed}-{i}.png")
        rows.append({"image": f"{folder.name}/{seed}-{i}.png", "label": NAMES[label]})
    return rows


def write_csv(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


IMAGES = Columns(images=True)


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "some.csv", write_files(tmp_path / "own", 6, 0))
    found = load(path, reads=Classify.READS, columns=IMAGES, label_names=NAMES)["train"]
    assert found.texts[0] == str(tmp_path / "own/0-0.png")
    assert found.labels == squares(6, 0)[1]
    named = Columns(text="image", label="label", images=True)
    assert load(path, reads=Classify.READS, columns=named)["train"].texts == found.texts


def test_paths_that_lead_nowhere_are_bad_rows(tmp_path: Path) -> None:
    rows = write_files(tmp_path / "own", 6, 0)
    rows[2]["image"], rows[4]["image"] = "own/lost.png", ""
    path = write_csv(tmp_path / "some.csv", rows)
    says = r"a file that does not exist in row 3 .*lost\.png.*'image' is empty in row 5"
    with pytest.raises(UserError, match=says):
        load(path, reads=Classify.READS, columns=IMAGES)
    with pytest.warns(UserWarning, match="2 of 6 rows"):
        kept = load(path, reads=Classify.READS, columns=IMAGES, skip_bad_rows=True)["train"]
    assert [Path(text).name for text in kept.texts] == [f"0-{i}.png" for i in (0, 1, 3, 5)]


def test_texts_for_a_model_of_images() -> None:
    rows = [{"text": f"w{i}", "label": i % 2} for i in range(4)]
    with pytest.raises(UserError, match=r"which column is the image\?.*columns here: text, label"):
        load(rows, reads=Classify.READS, columns=IMAGES)
    rows = [{"image": [1, 2], "label": i % 2} for i in range(4)]
    with pytest.raises(UserError, match=r"'image' of the train set holds a list .*not an image"):
        load(rows, reads=Classify.READS, columns=IMAGES)
    with pytest.raises(UserError, match="an image"):
        load(rows, reads=Classify.READS, columns=Columns("image", "label", images=True))


def test_images_of_datasets_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As files, not as pixels, from wherever they come."""
    datasets = pytest.importorskip("datasets")
    images, labels = squares(6, 0)
    columns = {"image": [Image.fromarray(image) for image in images], "label": labels}
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
    dataset = datasets.Dataset.from_dict(columns, datasets.Features(kinds))
    dataset.to_parquet(tmp_path / "some.parquet")
    reader = Images(make_processor().to_dict(), TOKENS)
    wanted = reader.batch(reader.encode(images))["pixel_values"]
    sources: list[Any] = [dataset, tmp_path / "some.parquet"]
    rows = [{"img": image, "label": NAMES[i]} for image, i in zip(images, labels, strict=True)]
    sources.append(rows)
    for source in sources:
        found = load(source, reads=Classify.READS, columns=IMAGES, label_names=NAMES)["train"]
        assert found.labels == labels
        given = reader.batch(reader.encode(found.texts))["pixel_values"]
        np.testing.assert_array_equal(given, wanted)
        assert isinstance(found.texts[0], Image.Image if source is rows else bytes)
    for image, label in zip(images, labels, strict=True):
        for split in ("train", "test"):
            folder = tmp_path / "tree" / split / NAMES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{len(list(folder.iterdir()))}.png")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    tree = load(tmp_path / "tree", reads=Classify.READS, columns=IMAGES, label_names=NAMES)
    assert tree.keys() == {"train", "test"}
    assert sorted(tree["test"].labels or []) == sorted(labels)


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
    own, processor = (
        Bundle.load(place / "small"),
        AutoImageProcessor.from_pretrained(place / "small"),
    )
    stock = AutoModelForImageClassification.from_pretrained(place / "small").eval()
    assert processor.to_dict() == make_processor().to_dict()
    assert stock.config.id2label == dict(enumerate(NAMES))
    assert not list((place / "small").glob("token*"))
    given = pixels(2).float()
    assert torch.equal(said(own.model, given), said(stock, given))


def test_the_runner_says_what_torch_says(place: Path) -> None:
    images, labels = squares(24, 5)
    own = Bundle.load(place / "small")
    assert own.plan is not None
    given = make_processor()(images=images, return_tensors="pt")["pixel_values"]
    wanted = said(attach(own.model, own.plan), given).numpy()
    run = Runner(place / "small", threads=1, batch_tokens=5 * TOKENS)
    np.testing.assert_allclose(run(images), wanted, atol=1e-4)
    np.testing.assert_allclose(run([Image.fromarray(i) for i in images]), wanted, atol=1e-4)
    np.testing.assert_allclose(run(np.stack(images)), wanted, atol=1e-4)
    assert run([]).shape == (0, 2)
    answers = run.predict(images)
    assert [answer["label"] for answer in answers] == [NAMES[i] for i in wanted.argmax(1)]
    right = [answer["label"] == NAMES[i] for answer, i in zip(answers, labels, strict=True)]
    assert np.mean(right) >= 0.85
    small = Runner(place / "small", precision="int8", threads=1)
    assert np.mean(small(images).argmax(1) == wanted.argmax(1)) >= 0.85


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["a text"], "there is no image file 'a text'"),
        ([np.zeros((3, SIDE, SIDE), np.uint8)], "is an array of shape"),
        (np.zeros((SIDE, SIDE, 3), np.uint8), r"images\[0\] is an array of shape \(32, 3\)"),
        (photo(), "give a list"),
        ("a.png", "give a list"),
    ],
)
def test_the_runner_refuses_what_is_no_image(place: Path, given: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Runner(place / "small", threads=1)(given)


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
    how: Any = {"rounds": 1, "seconds": 0.1, "int8": False}
    own = bench(place / "small", texts=squares(4, 0)[0], batch=2, **how)
    assert [row["name"] for row in own["rows"]] == ["4 images", "4 images, 2 a call"]
    (noise,) = bench(place / "small", **how)["rows"]
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
    wanted = said(
        model, make_processor()(images=rows[0]["image"], return_tensors="pt").pixel_values
    )
    np.testing.assert_allclose(run([rows[0]["image"]]), wanted.numpy(), atol=1e-3)
    assert task == run.task.NAME
    assert dense_plan(model).steps == run.plan.steps == ()


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "says"),
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
def test_what_images_cannot_be_asked(how: dict[str, Any], says: str) -> None:
    length = how.pop("length", None)
    rows = [{"image": i, "label": c} for i, c in zip(*squares(12, 0), strict=True)]
    how = {"task": "classify", "tokenizer": make_processor()} | how
    outputs = 1 if how["task"] == "rank" else 2
    with pytest.raises(UserError, match=says):
        toprune.prune(make_vit(outputs), Data(rows, max_length=length), "1.5x", **how)


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
