"""Fixtures of every test. `support` comes first: it sets what transformers reads once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

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


@pytest.fixture(scope="session")
def fine_tuned() -> Any:
    """The dense model of `synthetic.DATA`; tests work on copies."""
    return synthetic.fine_tuned(synthetic.DATA)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rough intervals, for tests that do not look at them."""
    monkeypatch.setattr("toprune.tasks.intervals.DRAWS", 20)


@pytest.fixture
def rough_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights of this size are chaotic: torch itself is up to 1.5e-4 from float64 here, and
    1e-6 in a real model."""
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)
