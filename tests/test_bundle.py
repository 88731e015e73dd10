"""What a bundle's directory says to those who read it without toprune, and that we read it back."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertTokenizer

from conftest import FAMILIES, SEGMENTED, SPECIAL, WORDS, make_model, make_tokenizer
from toprune.bundle import Bundle
from toprune.plan import Plan, Step

PLAN = Plan("bert", 4, 32, "received", (Step(0, Fraction(1, 2)),))


def tokenizer_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "tokenizer_config.json").read_text())


def test_reads_what_it_wrote(tmp_path: Path):
    bundle = Bundle(make_model(), make_tokenizer(), PLAN, {"task": "classify", "max_length": 24})
    bundle.save(tmp_path)
    loaded = Bundle.load(tmp_path)
    assert loaded.plan == PLAN
    assert loaded.report == bundle.report
    feeds = loaded.tokenizer(["w1 w2 w3", "w4"], ["w5", "w6 w7"], padding=True, return_tensors="pt")
    with torch.inference_mode():
        assert torch.equal(loaded.model(**feeds).logits, bundle.model(**feeds).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_bare_tokenizer_has_a_name_that_transformers_4_knows(family: str, tmp_path: Path):
    """Its AutoTokenizer refuses the name TokenizersBackend, and it gives segments unless told."""
    tokenizer = make_tokenizer(family)
    Bundle(make_model(family), tokenizer, None, {}).save(tmp_path)
    config = tokenizer_config(tmp_path)
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert ("token_type_ids" in config["model_input_names"]) == (family in SEGMENTED)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert dict(loaded("w1 w2", "w3")) == dict(tokenizer("w1 w2", "w3"))
    assert loaded.special_tokens_map == tokenizer.special_tokens_map


def test_tokenizer_with_a_class_keeps_it(tmp_path: Path):
    vocab = {word: i for i, word in enumerate([*SPECIAL, "[MASK]", *WORDS])}
    tokenizer = BertTokenizer(vocab=vocab, do_lower_case=False)
    Bundle(make_model(), tokenizer, None, {}).save(tmp_path)
    config = tokenizer_config(tmp_path)
    assert config["tokenizer_class"] == "BertTokenizer"
    assert config["do_lower_case"] is False


def test_tokenizer_cuts_where_the_bundle_does(tmp_path: Path):
    """Else a pipeline would run a text that is longer than any seen in training."""
    tokenizer = make_tokenizer()
    Bundle(make_model(), tokenizer, None, {"max_length": 6}).save(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded("w1 w2 w3 w4 w5 w6 w7 w8", truncation=True)["input_ids"]) == 6
    assert tokenizer.model_max_length > 6  # the object that was given is as it was


def test_tokenizer_without_a_known_limit_is_left_alone(tmp_path: Path):
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 17
    Bundle(make_model(), tokenizer, None, {}).save(tmp_path)
    assert tokenizer_config(tmp_path)["model_max_length"] == 17
