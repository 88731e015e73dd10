"""The tokenizer of a bundle, or the preparation of its images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from toprune.data import images
from toprune.data.images import Images
from toprune.errors import UserError
from toprune.run.manifest import Manifest
from toprune.tasks.tokenize import Texts


class Reader(Protocol):
    """Turns texts or images into the inputs of a graph.

    Its rows are `tokenize.Row` or `images.Picture`: each has a length in tokens, and `text`, the
    number of the text or image that it belongs to.
    """

    def encode(self, texts: Sequence[Any], first: int = 0, /) -> list[Any]: ...

    def batch(self, rows: Sequence[Any], /) -> dict[str, np.ndarray]: ...


def open_reader(bundle: Path, manifest: Manifest, max_length: int | None = None) -> Texts | Images:
    """Open the tokenizer of a bundle, or the preparation of its images.

    Args:
        bundle: the bundle's directory.
        manifest: its manifest.
        max_length: tokens of a text; None: the bundle's limit.
    """
    if manifest.images:
        if max_length not in (None, manifest.max_length):
            raise UserError(
                f"every image has {manifest.max_length} tokens, one for a patch; do not set a "
                "maximum length"
            )
        return Images.load(bundle / images.PLACE, manifest.max_length)
    return Texts.load(
        bundle / "tokenizer.json",
        manifest.build_task(),
        max_length=max_length or manifest.max_length,
        inputs=manifest.inputs,
        pad_token_id=manifest.pad_token_id,
    )
