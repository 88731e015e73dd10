"""Hugging Face architectures, and the only code that knows them: one `Family` for each."""

from toprune.models.families.family import Base, Family, Layer, Projection
from toprune.models.families.registry import (
    FAMILIES,
    family_named,
    family_of,
    has_segments,
    max_positions,
    pools_all,
    reads_every_token,
    sizes_of,
)
from toprune.models.families.vit import image_shape, patches

__all__ = [
    "FAMILIES",
    "Base",
    "Family",
    "Layer",
    "Projection",
    "family_named",
    "family_of",
    "has_segments",
    "image_shape",
    "max_positions",
    "patches",
    "pools_all",
    "reads_every_token",
    "sizes_of",
]
