"""Errors for users: they fit into one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from toprune.errors import UserError


@contextmanager
def one_line_error(match: str) -> Iterator[None]:
    """Expect a UserError of one line that matches the pattern."""
    with pytest.raises(UserError, match=match) as caught:
        yield
    assert "\n" not in str(caught.value)
