"""Fixtures of every test. `support` comes first: it sets what transformers reads once."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import synthetic
from support.models import make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@pytest.fixture
def tokenizer() -> "PreTrainedTokenizerFast":
    return make_tokenizer()


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an untrained model and its tokenizer."""
    return synthetic.save_untrained(tmp_path_factory.mktemp("untrained"))
