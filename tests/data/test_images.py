"""Images as data: prepared as transformers prepares them, and read from any source."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.images import (
    NAMES,
    SIDE,
    TOKENS,
    make_processor,
    photo,
    squares,
    write_csv,
    write_files,
)
from toprune.data.columns import Columns
from toprune.data.examples import load
from toprune.data.images import PLACE, Images, as_image
from toprune.errors import UserError
from toprune.tasks.classify import Classify

# -- how images are prepared ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
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
def test_pixels_are_those_of_transformers(changes: dict[str, Any], size: tuple[int, int]) -> None:
    processor = make_processor(**changes)
    images = Images(processor.to_dict(), TOKENS)
    image = photo(*size)
    expected = processor(images=image, return_tensors="np")["pixel_values"][0]
    pixels = images.pixels(image)
    assert (pixels.dtype, pixels.shape) == (np.float32, (3, images.height, images.width))
    np.testing.assert_allclose(pixels, expected, atol=2e-6, rtol=1e-6)


def test_old_files_say_less() -> None:
    """Those of ViTFeatureExtractor have a number as size, and nothing on rescaling."""
    old = {"feature_extractor_type": "ViTFeatureExtractor", "size": SIDE, "do_resize": True}
    expected = Images(make_processor().to_dict(), TOKENS).pixels(photo())
    np.testing.assert_array_equal(Images(old, TOKENS).pixels(photo()), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
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
def test_settings_that_are_not_known(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"{PLACE}: .*{message}"):
        Images(make_processor().to_dict() | changes, TOKENS)


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
    ("cell", "message"),
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
def test_what_is_no_image(cell: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Images(make_processor().to_dict(), TOKENS).encode([photo(), cell], first=3)


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    images, path = Images(make_processor().to_dict(), TOKENS), tmp_path / "cut.png"
    photo(300, 200).save(path)
    path.write_bytes(path.read_bytes()[:5000])
    (row,) = images.encode([path])  # its header is whole
    with pytest.raises(UserError, match=r"cut\.png' is not an image that Pillow can read"):
        images.batch([row])


# -- data ----------------------------------------------------------------------------------------


IMAGES = Columns(images=True)


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "some.csv", write_files(tmp_path / "files", 6, 0))
    examples = load(path, reads=Classify.READS, columns=IMAGES, label_names=NAMES)["train"]
    assert examples.texts[0] == str(tmp_path / "files/0-0.png")
    assert examples.labels == squares(6, 0)[1]
    named = Columns(text="image", label="label", images=True)
    assert load(path, reads=Classify.READS, columns=named)["train"].texts == examples.texts


def test_paths_that_lead_nowhere_are_bad_rows(tmp_path: Path) -> None:
    rows = write_files(tmp_path / "files", 6, 0)
    rows[2]["image"], rows[4]["image"] = "files/lost.png", ""
    path = write_csv(tmp_path / "some.csv", rows)
    message = r"a file that does not exist in row 3 .*lost\.png.*'image' is empty in row 5"
    with pytest.raises(UserError, match=message):
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
    expected = reader.batch(reader.encode(images))["pixel_values"]
    sources: list[Any] = [dataset, tmp_path / "some.parquet"]
    rows = [{"img": image, "label": NAMES[i]} for image, i in zip(images, labels, strict=True)]
    sources.append(rows)
    for source in sources:
        examples = load(source, reads=Classify.READS, columns=IMAGES, label_names=NAMES)["train"]
        assert examples.labels == labels
        loaded = reader.batch(reader.encode(examples.texts))["pixel_values"]
        np.testing.assert_array_equal(loaded, expected)
        assert isinstance(examples.texts[0], Image.Image if source is rows else bytes)
    for image, label in zip(images, labels, strict=True):
        for split in ("train", "test"):
            folder = tmp_path / "tree" / split / NAMES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{len(list(folder.iterdir()))}.png")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    tree = load(tmp_path / "tree", reads=Classify.READS, columns=IMAGES, label_names=NAMES)
    assert tree.keys() == {"train", "test"}
    assert sorted(tree["test"].labels or []) == sorted(labels)
