"""A tiny image model, and images that it can tell apart."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from support.models import SIZES

SIDE, PATCH = 32, 8
TOKENS = (SIDE // PATCH) ** 2 + 1
COLOURS = {"blue": (30, 30, 230), "red": (230, 30, 30)}  # in the order of their ids
NAMES = list(COLOURS)


def make_vit(num_labels: int = 2, seed: int = 0, **settings: Any) -> Any:
    sizes = {name: size for name, size in SIZES.items() if name != "max_position_embeddings"}
    settings = (
        {"image_size": SIDE, "patch_size": PATCH, "num_labels": num_labels} | sizes | settings
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ViTForImageClassification(ViTConfig(**settings)).eval()


def make_processor(**settings: Any) -> ViTImageProcessorPil:
    options: dict[str, Any] = {"size": {"height": SIDE, "width": SIDE}} | settings
    return ViTImageProcessorPil(**options)


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
