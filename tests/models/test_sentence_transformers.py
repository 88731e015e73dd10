import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from toprune.errors import UserError
from toprune.models.sentence_transformers import read_pooling, read_prompts, write_pooling
from toprune.tasks.embed import Embed
from toprune.tasks.pool import pool

HOME = "sentence_transformers.models"
KINDS = [Embed(), Embed("cls"), Embed(normalize=False), Embed("cls", normalize=False)]


def write_modules(folder: Path, modules: list[str], pooling: dict[str, Any] | None = None) -> Path:
    """A sentence-transformers directory without the encoder."""
    paths = [f"{i}_{kind}" if i else "" for i, kind in enumerate(modules)]
    named = [{"path": p, "type": f"{HOME}.{m}"} for p, m in zip(paths, modules, strict=True)]
    (folder / "modules.json").write_text(json.dumps(named))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


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
    write_modules(tmp_path, ["Transformer", "Pooling"], config)
    assert read_pooling(tmp_path) == {"pooling": pooling, "normalize": False}


def test_other_directories_say_nothing(tmp_path: Path):
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize(
    ("modules", "config", "message"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode": "mean"}, "Pooling, Dense"),
        (["Transformer"], None, "one pooling"),
        (["Transformer", "Pooling"], None, "config.json is not a file inside"),
        (["Transformer", "Pooling"], {"pooling_mode": "max"}, "by max; .* mean or cls"),
        (["Transformer", "Pooling"], {"pooling_mode": ["cls", "mean"]}, "by cls and mean"),
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "by max_tokens"),
        (["Transformer", "Pooling"], {}, "by nothing"),
    ],
)
def test_what_would_be_lost_is_refused(
    tmp_path: Path, modules: list[str], config: dict[str, Any] | None, message: str
):
    write_modules(tmp_path, modules, config)
    with pytest.raises(UserError, match=message):
        read_pooling(tmp_path)


def test_broken_files_are_refused(tmp_path: Path):
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(UserError, match=r"modules.json: not valid JSON"):
        read_pooling(tmp_path)
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(UserError, match=r"modules.json is not of a sentence-transformers model"):
        read_pooling(tmp_path)


def test_prompts_are_kept(tmp_path: Path):
    prompts = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}
    write_pooling(tmp_path, Embed(), 32, 64)
    assert read_prompts(tmp_path) is None
    write_pooling(tmp_path, Embed(), 32, 64, prompts)
    assert read_prompts(tmp_path) == prompts


@pytest.mark.parametrize(
    "broken",
    [
        {"prompts": ["query: "]},
        {"prompts": {"query": 1}},
        {"prompts": {"query": "query: "}, "default_prompt_name": "passage"},
    ],
)
def test_broken_prompts_are_refused(tmp_path: Path, broken: dict[str, Any]):
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(broken))
    with pytest.raises(UserError, match="prompts must be texts by name"):
        read_prompts(tmp_path)


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
