"""Images in place of texts: from whatever a cell holds to `pixel_values`, with Pillow and numpy.

The steps are those of transformers' ViTImageProcessor on Pillow, as preprocessor_config.json sets
them. Nothing is decoded before its batch: a training set of pixels would not fit the memory.
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
PROCESSORS = ("ViT", "DeiT")  # how the names of those begin whose steps these are
INPUT = "pixel_values"
BILINEAR = 2  # Pillow's number for it


def as_image(cell: Any, folder: Path | None = None) -> Image:
    """The image of a cell, "" where it is empty. folder: where relative paths begin."""
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
    """Is it a path that leads nowhere?"""
    return isinstance(image, str) and not Path(image).is_file()


@dataclass(frozen=True, slots=True)
class Picture:
    """What the model reads in one piece, as `run.texts.Row` is of a text."""

    image: Image
    tokens: int
    text: int = 0  # which of the given images it is

    def __len__(self) -> int:
        return self.tokens


class Images:
    """Prepares images as a model's preprocessor_config.json says; stands where a tokenizer stands
    (`encode`, `batch` and `save_pretrained`)."""

    def __init__(self, settings: Mapping[str, Any], tokens: int):
        """tokens: of every image, [CLS] included."""
        self.settings, self.tokens = dict(settings), tokens
        kind = str(_first(settings, "ViT", "image_processor_type", "feature_extractor_type"))
        _require(
            kind.startswith(PROCESSORS),
            f"{kind} prepares images in ways that toprune does not know; use a ViTImageProcessor",
        )
        _require(bool(settings.get("do_resize", True)), "do_resize must be true: sizes are fixed")
        self._size = _size(settings.get("size", 224), "size")
        crop = settings.get("crop_size") if settings.get("do_center_crop") else None
        self._crop = None if crop is None else _size(crop, "crop_size")
        final = self._crop or self._size
        _require(len(final) == 2, "shortest_edge needs a do_center_crop, for one size of all")
        self.height, self.width = final[0], final[-1]
        _require(
            self.height <= self._size[0] and self.width <= self._size[-1],
            "crop_size must be within size",
        )
        self._resample = int(settings.get("resample", BILINEAR))
        scales = settings.get("do_rescale", True)
        self._scale = float(settings.get("rescale_factor", 1 / 255)) if scales else 1.0
        moves = settings.get("do_normalize", True)
        self._mean = _channels(settings, "image_mean") if moves else np.zeros(3, np.float32)
        self._std = _channels(settings, "image_std") if moves else np.ones(3, np.float32)

    @classmethod
    def load(cls, path: Path, tokens: int) -> "Images":
        settings = read_json(path)
        _require(isinstance(settings, dict), "must be a JSON object")
        return cls(settings, tokens)

    def save_pretrained(self, folder: str | Path) -> None:
        text = json.dumps(self.settings, indent=2, sort_keys=True)
        (Path(folder) / PLACE).write_text(text + "\n", encoding="utf-8")

    def encode(self, images: Sequence[Any], first: int = 0) -> list[Picture]:
        """A row for each image, which is looked at but not decoded. first: the position of
        images[0] in what the user gave."""
        rows: list[Picture] = []
        for i, given in enumerate(images):
            try:
                image = as_image(given)
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
        """The graph's input (B, 3, height, width), float32."""
        return {INPUT: np.stack([self.pixels(row.image) for row in rows])}

    def pixels(self, image: Image) -> np.ndarray:
        """(3, height, width) float32."""
        whole = _decoded(image)
        resized = whole.resize(self._resized(*whole.size), self._resample)
        if self._crop is not None:
            left = (resized.width - self.width) // 2
            top = (resized.height - self.height) // 2
            resized = resized.crop((left, top, left + self.width, top + self.height))
        pixels = np.asarray(resized, np.float32) * np.float32(self._scale)  # (height, width, 3)
        return ((pixels - self._mean) / self._std).transpose(2, 0, 1)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """(width, height): as told, or so that the shorter side is."""
        if len(self._size) == 2:
            return self._size[1], self._size[0]
        short = self._size[0]
        if width <= height:
            return short, int(short * height / width)
        return int(short * width / height), short


def _decoded(image: Image) -> Any:
    """A Pillow image of red, green and blue; files are turned upright, as everybody shows them."""
    if not isinstance(image, str | bytes):
        return image.convert("RGB")
    with _opened(image) as opened:
        return _pillow().ImageOps.exif_transpose(opened).convert("RGB")


@contextmanager
def _opened(image: str | bytes) -> Iterator[Any]:
    """The image of a file: its header is read, the rest when it is asked for."""
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


def _size(told: Any, name: str) -> tuple[int, ...]:
    """(height, width), or (shortest edge,)."""
    if isinstance(told, int):
        return told, told
    if isinstance(told, list | tuple):
        told = dict(zip(("height", "width"), told, strict=False))
    _require(isinstance(told, Mapping), f"{name} must be height and width, not {told!r}")
    sides = {key: value for key, value in told.items() if value is not None}
    known = sides.keys() in ({"height", "width"}, {"shortest_edge"})
    _require(known, f"{name} must be height and width, or shortest_edge, not {told!r}")
    return tuple(int(sides[key]) for key in sorted(sides))


def _channels(settings: Mapping[str, Any], name: str) -> np.ndarray:
    """(3,)"""
    told = np.asarray(settings.get(name, [0.5] * 3), np.float32)
    _require(told.shape == (3,), f"{name} must be three numbers, of red, green and blue")
    return told


def _first(settings: Mapping[str, Any], default: str, *names: str) -> Any:
    return next((settings[name] for name in names if settings.get(name)), default)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"{PLACE}: {message}")
