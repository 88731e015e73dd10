"""Images in place of texts: from the content of a cell to `pixel_values`, with Pillow and numpy.

The steps are those of transformers' ViTImageProcessor on Pillow, with the settings of
preprocessor_config.json. An image is decoded with its batch: the pixels of a training set would not
fit the memory.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toprune.data.cells import is_missing
from toprune.errors import UserError
from toprune.io.untrusted import read_json

Image = Any  # a path as str, the bytes of a file, or a Pillow image

PLACE = "preprocessor_config.json"
PROCESSORS = ("ViT", "DeiT")  # processors with these steps have names that begin so
INPUT = "pixel_values"
BILINEAR = 2  # Pillow's number for it


def as_image(cell: Any, folder: Path | None = None) -> Image:
    """Return the image of a cell, "" where it is empty. folder: where relative paths begin."""
    if isinstance(cell, Mapping):  # what `datasets` writes into Parquet files
        cell = cell.get("bytes") or cell.get("path")
    if is_missing(cell):
        return ""
    if isinstance(cell, str | Path):
        return str(cell if folder is None else folder / cell)
    if isinstance(cell, bytes):
        return cell
    pillow = _pillow()
    if isinstance(cell, np.ndarray):
        if cell.ndim != 3 or cell.shape[2] != 3 or cell.dtype != np.uint8:
            raise TypeError(f"an array of shape {cell.shape} and type {cell.dtype}")
        return pillow.Image.fromarray(np.ascontiguousarray(cell))
    if isinstance(cell, pillow.Image.Image):
        return cell
    raise TypeError(f"a {type(cell).__name__}")


def no_file(image: Image) -> bool:
    """Is an image a path without a file?"""
    return isinstance(image, str) and not Path(image).is_file()


@dataclass(frozen=True, slots=True)
class Picture:
    """One image as the model reads it, as `tasks.tokenize.Row` is one piece of a text."""

    image: Image
    tokens: int
    text: int = 0  # its position in the images of the caller

    def __len__(self) -> int:
        return self.tokens


class Images:
    """Prepares images with the settings of a model's preprocessor_config.json; takes the place of a
    tokenizer (`encode`, `batch` and `save_pretrained`)."""

    def __init__(self, settings: Mapping[str, Any], tokens: int):
        """tokens: how many every image has, [CLS] included."""
        self.settings, self.tokens = dict(settings), tokens
        name = str(_first(settings, "ViT", "image_processor_type", "feature_extractor_type"))
        _require(
            name.startswith(PROCESSORS),
            f"toprune does not support {name}; use a ViTImageProcessor",
        )
        _require(bool(settings.get("do_resize", True)), "do_resize must be true: sizes are fixed")
        self._size = _size(settings.get("size", 224), "size")
        crop = settings.get("crop_size") if settings.get("do_center_crop") else None
        self._crop = None if crop is None else _size(crop, "crop_size")
        final = self._crop or self._size
        _require(len(final) == 2, "shortest_edge needs do_center_crop, for images of one size")
        self.height, self.width = final[0], final[-1]
        _require(
            self.height <= self._size[0] and self.width <= self._size[-1],
            "crop_size must be within size",
        )
        self._resample = int(settings.get("resample", BILINEAR))
        rescale = settings.get("do_rescale", True)
        self._scale = float(settings.get("rescale_factor", 1 / 255)) if rescale else 1.0
        normalize = settings.get("do_normalize", True)
        self._mean = _channels(settings, "image_mean") if normalize else np.zeros(3, np.float32)
        self._std = _channels(settings, "image_std") if normalize else np.ones(3, np.float32)

    @classmethod
    def load(cls, path: Path, tokens: int) -> "Images":
        settings = read_json(path)
        _require(isinstance(settings, dict), "must be a JSON object")
        return cls(settings, tokens)

    def save_pretrained(self, folder: str | Path) -> None:
        text = json.dumps(self.settings, indent=2, sort_keys=True)
        (Path(folder) / PLACE).write_text(text + "\n", encoding="utf-8")

    def encode(self, images: Sequence[Any], first: int = 0) -> list[Picture]:
        """Return a row for each image, whose header is checked but which is not decoded.

        first: the position of images[0] in the images of the caller, for error messages.
        """
        rows: list[Picture] = []
        for i, cell in enumerate(images):
            try:
                image = as_image(cell)
            except TypeError as problem:
                raise UserError(
                    f"images[{first + i}] is {problem}, not an image; give a list of paths, Pillow "
                    "images or arrays (height, width, 3) of uint8"
                ) from problem
            if no_file(image):
                raise UserError(f"images[{first + i}]: there is no image file {image!r}")
            if isinstance(image, str | bytes):
                with _opened(image):
                    pass
            rows.append(Picture(image, self.tokens, i))
        return rows

    def batch(self, rows: Sequence[Picture]) -> dict[str, np.ndarray]:
        """Return the graph's input (B, 3, height, width), float32."""
        return {INPUT: np.stack([self.pixels(row.image) for row in rows])}

    def pixels(self, image: Image) -> np.ndarray:
        """Return the pixels of one image (3, height, width), float32."""
        decoded = _decoded(image)
        resized = decoded.resize(self._resized(*decoded.size), self._resample)
        if self._crop is not None:
            left = (resized.width - self.width) // 2
            top = (resized.height - self.height) // 2
            resized = resized.crop((left, top, left + self.width, top + self.height))
        pixels = np.asarray(resized, np.float32) * np.float32(self._scale)  # (height, width, 3)
        return ((pixels - self._mean) / self._std).transpose(2, 0, 1)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) after resizing: both sides, or the shorter one, are set by `size`."""
        if len(self._size) == 2:
            return self._size[1], self._size[0]
        short = self._size[0]
        if width <= height:
            return short, int(short * height / width)
        return int(short * width / height), short


def _decoded(image: Image) -> Any:
    """A Pillow image in RGB; files are turned upright, as viewers show them."""
    if not isinstance(image, str | bytes):
        return image.convert("RGB")
    with _opened(image) as opened:
        return _pillow().ImageOps.exif_transpose(opened).convert("RGB")


@contextmanager
def _opened(image: str | bytes) -> Iterator[Any]:
    """The image of a file: its header is read now, the rest when it is used."""
    pillow = _pillow()
    try:
        with pillow.Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
            yield opened
    except (OSError, ValueError, SyntaxError, pillow.Image.DecompressionBombError) as problem:
        name = "the file" if isinstance(image, bytes) else repr(image)
        raise UserError(f"{name} is not an image that Pillow can read ({problem})") from problem


def _pillow() -> Any:
    try:
        import PIL.Image
        import PIL.ImageOps
    except ModuleNotFoundError as problem:
        raise UserError("images need Pillow; pip install 'toprune[images]'") from problem
    return PIL


def _size(size: Any, name: str) -> tuple[int, ...]:
    """(height, width), or (shortest edge,)."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, list | tuple):
        size = dict(zip(("height", "width"), size, strict=False))
    _require(isinstance(size, Mapping), f"{name} must be height and width, not {size!r}")
    sides = {key: value for key, value in size.items() if value is not None}
    known = sides.keys() in ({"height", "width"}, {"shortest_edge"})
    _require(known, f"{name} must be height and width, or shortest_edge, not {size!r}")
    return tuple(int(sides[key]) for key in sorted(sides))


def _channels(settings: Mapping[str, Any], name: str) -> np.ndarray:
    """(3,)"""
    values = np.asarray(settings.get(name, [0.5] * 3), np.float32)
    _require(values.shape == (3,), f"{name} must be three numbers, for red, green and blue")
    return values


def _first(settings: Mapping[str, Any], default: str, *names: str) -> Any:
    return next((settings[name] for name in names if settings.get(name)), default)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"{PLACE}: {message}")
