"""What turns the user's texts, or images, into the inputs of a bundle's graph."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from toprune.data.images import PLACE, Images
from toprune.errors import UserError
from toprune.run.manifest import Manifest
from toprune.tasks.tokenize import Text, Texts

Given = (
    Text | Any
)  # an image: a path, the bytes of a file, Pillow's, or (height, width, 3) of uint8


class Reader(Protocol):
    """Rows are those of texts (`texts.Row`) or images (`images.Picture`): each has a `text`, which
    of the given ones it is of, and a length in tokens."""

    def encode(self, texts: Sequence[Any], first: int = 0, /) -> list[Any]: ...

    def batch(self, rows: Sequence[Any], /) -> dict[str, np.ndarray]: ...


def open_reader(bundle: Path, manifest: Manifest, max_length: int | None = None) -> Texts | Images:
    """max_length: of a text, where it is to be shorter than the bundle's."""
    if manifest.images:
        if max_length not in (None, manifest.max_length):
            raise UserError(
                f"every image has {manifest.max_length} tokens, one for a patch; leave the maximum "
                "length out"
            )
        return Images.load(bundle / PLACE, manifest.max_length)
    return Texts.load(
        bundle / "tokenizer.json",
        manifest.build_task(),
        max_length=max_length or manifest.max_length,
        inputs=manifest.inputs,
        pad_token_id=manifest.pad_token_id,
    )
