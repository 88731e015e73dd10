import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toprune.errors import UserError
from toprune.models.sentence_transformers import pool, read_pooling, write_pooling
from toprune.tasks.embed import Embed

HOME = "sentence_transformers.models"
KINDS = [Embed(), Embed("cls"), Embed(normalize=False), Embed("cls", normalize=False)]


@st.composite
def padded(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """States (B, S, D) with something in the padding too, and the mask (B, S) of live tokens."""
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    length = max(counts) + draw(st.integers(0, 3))
    mask = np.arange(length) < np.array(counts)[:, None]
    return rng.normal(size=(len(counts), length, 5)).astype(np.float32), mask.astype(np.int64)


def write(folder: Path, modules: list[str], pooling: dict[str, Any] | None = None) -> Path:
    """A sentence-transformers directory without the encoder."""
    paths = [f"{i}_{kind}" if i else "" for i, kind in enumerate(modules)]
    named = [{"path": p, "type": f"{HOME}.{m}"} for p, m in zip(paths, modules, strict=True)]
    (folder / "modules.json").write_text(json.dumps(named))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


def test_pool_by_hand():
    states = np.array([[[1, 2], [3, 6], [90, 90]], [[5, 7], [80, 80], [80, 80]]], np.float32)
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    assert pool(states, mask, "mean").tolist() == [[2, 4], [5, 7]]
    assert pool(states, mask, "cls").tolist() == [[1, 2], [5, 7]]


@settings(max_examples=60, deadline=None)
@given(padded(), st.sampled_from(["mean", "cls"]))
def test_torch_and_numpy_agree(batch: tuple[np.ndarray, np.ndarray], pooling: str):
    states, mask = batch
    mine = pool(states, mask, pooling)
    theirs = pool(torch.from_numpy(states), torch.from_numpy(mask), pooling)
    assert mine.dtype == np.float32
    assert theirs.dtype == torch.float32
    np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(padded(), st.sampled_from(["mean", "cls"]))
def test_padding_and_batch_mates_change_nothing(batch: tuple[np.ndarray, np.ndarray], pooling: str):
    states, mask = batch
    alone = [
        pool(s[None, : m.sum()], m[None, : m.sum()], pooling)[0]
        for s, m in zip(states, mask, strict=True)
    ]
    np.testing.assert_allclose(pool(states, mask, pooling), alone, rtol=1e-5, atol=1e-6)


def test_cls_needs_the_first_row_alone():
    states, mask = torch.randn(2, 4, 3), torch.ones(2, 4)
    assert torch.equal(pool(states[:, :1], mask, "cls"), pool(states, mask, "cls"))


def test_gradients_reach_live_tokens_alone():
    states, mask = torch.randn(2, 3, 4, requires_grad=True), torch.tensor([[1, 1, 0], [1, 1, 1]])
    pool(states, mask, "mean").sum().backward()
    assert states.grad is not None
    torch.testing.assert_close(
        states.grad[:, :, 0], torch.tensor([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    )


@pytest.mark.parametrize("embed", KINDS)
def test_what_is_written_is_read(tmp_path: Path, embed: Embed):
    write_pooling(tmp_path, embed, 32, 64)
    assert read_pooling(tmp_path) == {"pooling": embed.pooling, "normalize": embed.normalize}
    write_pooling(tmp_path, Embed(), 32, 64)  # over another one
    assert read_pooling(tmp_path) == {"pooling": "mean", "normalize": True}


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
        ({"embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": True}, "mean"),
        ({"pooling_mode": ["cls"]}, "cls"),
    ],
)
def test_old_and_new_spelling(tmp_path: Path, config: dict[str, Any], pooling: str):
    write(tmp_path, ["Transformer", "Pooling"], config)
    assert read_pooling(tmp_path) == {"pooling": pooling, "normalize": False}


def test_other_directories_say_nothing(tmp_path: Path):
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize(
    ("modules", "config", "message"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode": "mean"}, "Pooling, Dense"),
        (["Transformer"], None, "one pooling"),
        (["Transformer", "Pooling"], None, "config.json is not a file inside"),
        (["Transformer", "Pooling"], {"pooling_mode": "max"}, "by max; known are mean and cls"),
        (["Transformer", "Pooling"], {"pooling_mode": ["cls", "mean"]}, "by cls and mean"),
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "by max_tokens"),
        (["Transformer", "Pooling"], {}, "by nothing"),
    ],
)
def test_what_would_be_lost_is_refused(
    tmp_path: Path, modules: list[str], config: dict[str, Any] | None, message: str
):
    write(tmp_path, modules, config)
    with pytest.raises(UserError, match=message):
        read_pooling(tmp_path)


def test_broken_files_are_refused(tmp_path: Path):
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(UserError, match=r"modules.json: not valid JSON"):
        read_pooling(tmp_path)
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(UserError, match=r"modules.json is not of a sentence-transformers model"):
        read_pooling(tmp_path)


@pytest.mark.parametrize("embed", KINDS)
def test_sentence_transformers_opens_it(tmp_path: Path, embed: Embed):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from support.models import make_model, make_tokenizer

    encoder, tokenizer = make_model().base_model, make_tokenizer()
    encoder.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write_pooling(tmp_path, embed, encoder.config.hidden_size, 6)
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    assert theirs.max_seq_length == 6

    texts = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11"]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=6, return_tensors="pt")
    with torch.no_grad():
        states = encoder(**batch).last_hidden_state
    vectors = pool(states, batch["attention_mask"], embed.pooling)
    if embed.normalize:
        vectors = torch.nn.functional.normalize(vectors)
    np.testing.assert_allclose(theirs.encode(texts), vectors.numpy(), rtol=1e-4, atol=1e-5)
