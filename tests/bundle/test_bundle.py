"""What a bundle's directory says to those who read it without toprune, and that we read it back."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertTokenizer

from support.models import FAMILIES, SEGMENTED, SPECIAL, WORDS, make_model, make_tokenizer
from toprune.bundle.bundle import Bundle
from toprune.errors import UserError
from toprune.plan.plan import Plan, Step
from toprune.tasks import Answer, Classify, Embed, Tags, make_task, settings_of

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


@pytest.mark.parametrize(
    ("task", "head"),
    [
        (Classify(stride=7), "sequence"),
        (Answer(no_answer=True, threshold=2.5), "answer"),
        (Tags(), "tokens"),
        (Embed(pooling="cls", normalize=False), "encoder"),
    ],
)
@pytest.mark.parametrize("has_report", [True, False])
def test_reads_every_head(task: Any, head: str, has_report: bool, tmp_path: Path):
    """With the settings that its report says; without a report, what the head is made for."""
    report = {"task": task.NAME, "task_settings": settings_of(task)} if has_report else {}
    model = make_model(num_labels=2, head=head)
    Bundle(model, make_tokenizer(), None, report).save(tmp_path)
    loaded = Bundle.load(tmp_path)
    assert loaded.task == (task if has_report else make_task(task.NAME))
    feeds = loaded.tokenizer(["w1 w2 w3", "w4"], padding=True, return_tensors="pt")
    with torch.inference_mode():
        one, other = loaded.model(**feeds), model(**feeds)
    for name in task.OUTPUTS:
        assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "is not a report"),
        ('{"task": "guess"}', "task 'guess' is not known"),
        ('{"task": "classify", "task_settings": {"a": 1}}', "no such setting"),
    ],
)
def test_a_report_of_nonsense(text: str, says: str, tmp_path: Path):
    Bundle(make_model(), make_tokenizer(), None, {}).save(tmp_path)
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UserError, match=says):
        Bundle.load(tmp_path)


def test_a_head_of_another_task_is_no_head(tmp_path: Path):
    """Its weights are not there, and transformers would draw new ones."""
    report = {"task": "answer", "task_settings": {}}
    Bundle(make_model(), make_tokenizer(), None, report).save(tmp_path)
    with pytest.raises(UserError, match="has no trained head"):
        Bundle.load(tmp_path)


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


def test_a_task_is_said_where_the_head_does_not_tell(tmp_path: Path):
    make_model("bert", 1).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    assert Bundle.load(tmp_path).task.NAME == "regress"
    assert Bundle.load(tmp_path, "rank").task.NAME == "rank"
    (tmp_path / "report.json").write_text('{"task": "regress"}')
    with pytest.raises(UserError, match="is for the task regress, not for rank"):
        Bundle.load(tmp_path, "rank")
