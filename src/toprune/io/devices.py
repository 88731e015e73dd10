"""Devices by the names that users give them, without torch."""

from typing import Literal

from toprune.errors import UserError

Device = Literal["auto", "cpu", "cuda", "mps"]


def missing_device(name: str, library: str, fix: str) -> UserError:
    """The one line for a device that a library does not find."""
    return UserError(f"--device {name}: {library} finds none here; {fix}")
