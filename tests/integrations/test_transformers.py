"""The same dictionaries as transformers' pipelines, which run the dense model in torch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers import pipeline as theirs

from support.models import CONFIGS, HEADS, make_model, make_tokenizer
from support.refusals import one_line_error
from support.toy_bundle import expected
from support.toy_bundle import make_bundle as toy_bundle
from toprune.bundle.bundle import Bundle
from toprune.export.export import export
from toprune.integrations.entities import STRATEGIES
from toprune.integrations.transformers import pipeline
from toprune.tasks import Answer, Classify, Embed, Multilabel, Regress, Tags, settings_of

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w11 w12"]
PAIRS = [{"text": "w1 w2", "text_pair": "w3 w4 w5"}, {"text": "w6", "text_pair": "w7"}]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
ATOL = 5e-4  # random weights of this size are chaotic, see `rough_parity`

pytestmark = pytest.mark.usefixtures("rough_parity")


def save(folder: Path, task: Any, model: Any, tokenizer: Any = None) -> Path:
    """A bundle that keeps every token, so that torch must give the same."""
    report = {"task": task.NAME, "task_settings": settings_of(task), "max_length": 32}
    Bundle(model, tokenizer or make_tokenizer("bert"), None, report).save(folder)
    export(folder)
    return folder


def same(ours: Any, other: Any) -> None:
    """Equal in form; numbers may differ by rounding."""
    assert type(ours) in (type(other), float)  # transformers gives some scores as numpy's floats
    if isinstance(other, dict):
        assert list(ours) == list(other)
        for key in other:
            same(ours[key], other[key])
    elif isinstance(other, list):
        assert len(ours) == len(other)
        for one, two in zip(ours, other, strict=True):
            same(one, two)
    elif isinstance(ours, float):
        assert ours == pytest.approx(float(other), abs=ATOL)
    else:
        assert ours == other


@pytest.mark.parametrize(
    ("task", "labels", "problem"),
    [
        (Classify(), 3, "single_label_classification"),
        (Multilabel(classes=3), 3, "multi_label_classification"),
        (Regress(), 1, "regression"),
    ],
)
def test_text_classification(tmp_path: Path, task: Any, labels: int, problem: str):
    model = make_model("bert", num_labels=labels)
    model.config.problem_type = problem
    if labels > 1:
        model.config.id2label = dict(enumerate(["no", "yes", "maybe"]))
    folder = save(tmp_path / "bundle", task, model)
    ours = pipeline("text-classification", model=folder)
    other: Any = theirs("text-classification", model=str(folder), device="cpu")
    for inputs in (TEXTS, TEXTS[0], PAIRS, PAIRS[0]):
        same(ours(inputs), other(inputs))
        for top_k in (1, 2, None):
            same(ours(inputs, top_k=top_k), other(inputs, top_k=top_k))
        for function in ("none", "sigmoid", "softmax"):
            same(
                ours(inputs, function_to_apply=function), other(inputs, function_to_apply=function)
            )
    nested = pipeline("sentiment-analysis", model=folder, top_k=None, batch_size=2)
    same(nested(TEXTS[0]), theirs("text-classification", model=str(folder), top_k=None)(TEXTS[0]))


def word_pieces() -> PreTrainedTokenizerFast:
    """Words of one to three pieces: "ab" is a ##b."""
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
    vocab = {word: i for i, word in enumerate([*special, *"abcde,.", *(f"##{x}" for x in "abcde")])}
    raw: Any = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 2)],
    )  # fmt: skip
    names = {"cls_token": "[CLS]", "pad_token": "[PAD]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def tagger(tokenizer: Any) -> Any:
    config = CONFIGS["bert"](vocab_size=len(tokenizer), pad_token_id=1, num_labels=len(LABELS))
    config.id2label = dict(enumerate(LABELS))
    config.label2id = {name: i for i, name in enumerate(LABELS)}
    torch.manual_seed(0)
    return HEADS["tokens"].from_config(config).eval()


@pytest.mark.parametrize("kind", ["pieces", "words"])
def test_token_classification(tmp_path: Path, kind: str):
    tokenizer = word_pieces() if kind == "pieces" else make_tokenizer("bert")
    sentences = ["abc de, a ?? ced.", "a", "bade cab"] if kind == "pieces" else TEXTS
    folder = save(tmp_path / "bundle", Tags(), tagger(tokenizer), tokenizer)
    ours = pipeline("ner", model=folder)
    other: Any = theirs("token-classification", model=str(folder), device="cpu")
    for strategy in STRATEGIES if kind == "pieces" else ("none", "simple"):
        for options in ({}, {"ignore_labels": []}):
            how: dict[str, Any] = {"aggregation_strategy": strategy, **options}
            same(ours(sentences, **how), other(sentences, **how))
            same(ours(sentences[0], **how), other(sentences[0], **how))
    words = [sentence.split() for sentence in sentences]
    how = {"is_split_into_words": True, "ignore_labels": [], "aggregation_strategy": "simple"}
    same(ours(words, **how), other(words, **how))
    long = " ".join(["a"] * 40)
    with one_line_error(r"inputs\[0\] has 42 tokens, the bundle reads 32 at a time; split it"):
        ours(long)


def test_feature_extraction(tmp_path: Path):
    """The mean over tokens is the vector; ours has one token."""
    task = Embed(normalize=False)
    folder = save(tmp_path / "bundle", task, make_model("bert", head="encoder"))
    ours = pipeline("feature-extraction", model=folder)
    other: Any = theirs("feature-extraction", model=str(folder), device="cpu")
    for mine, states in zip(ours(TEXTS), other(TEXTS), strict=True):
        assert np.shape(mine) == (1, 1, 32)
        np.testing.assert_allclose(np.mean(mine[0], 0), np.mean(states[0], 0), atol=ATOL)
    assert np.shape(ours(TEXTS[0])) == (1, 1, 32)


def brute_force(model: Any, tokenizer: Any, question: str, context: str, longest: int) -> Any:
    """As transformers 4 has it: probabilities of start times end, over the context and [CLS]."""
    row = tokenizer(question, context, return_tensors="pt")
    offsets = tokenizer(question, context, return_offsets_mapping=True)["offset_mapping"]
    inside = [part == 1 for part in tokenizer(question, context).sequence_ids()]
    with torch.inference_mode():
        out = model(**row)
    hidden = torch.tensor([not (keep or i == 0) for i, keep in enumerate(inside)])
    start, end = (
        logits[0].masked_fill(hidden, -1e4).softmax(0).tolist()
        for logits in (out.start_logits, out.end_logits)
    )
    spans = [
        (start[i] * end[j], offsets[i][0], offsets[j][1])
        for i in range(len(start))
        for j in range(i, min(i + longest, len(start)))
        if inside[i] and inside[j]
    ]
    score, first, last = max(spans)
    return {"score": score, "start": first, "end": last, "answer": context[first:last]}


def test_question_answering(tmp_path: Path):
    model, tokenizer = make_model("bert", head="answer"), make_tokenizer("bert")
    folder = save(tmp_path / "bundle", Answer(max_answer=4), model)
    ours: Any = pipeline("question-answering", model=folder)
    context = "w3 w4 w5 w6 w7 w8 w9 w10 w11"
    right = [brute_force(model, tokenizer, question, context, 4) for question in TEXTS]
    inputs = [{"question": question, "context": context} for question in TEXTS]
    same(ours(inputs), right)
    same(ours(inputs[0]), right[0])
    same(ours(question=TEXTS, context=context, batch_size=2), right)
    same(ours(question=TEXTS[1], context=context), right[1])
    with one_line_error("this pipeline gives one answer; leave top_k out"):
        ours(inputs, top_k=3)
    with one_line_error("give a context for every question"):
        ours(question=TEXTS, context=["w1", "w2"])
    with one_line_error('give {"question": ..., "context": ...}'):
        ours([("w1", "w2")])


def test_windows_of_a_long_context_and_no_answer(tmp_path: Path):
    task = Answer(stride=2, no_answer=True, threshold=-1e9)  # "none" always wins
    folder = save(tmp_path / "bundle", task, make_model("bert", head="answer"))
    context = " ".join(f"w{i}" for i in range(60))
    answer = pipeline(model=folder)({"question": "w1", "context": context})
    assert (answer["answer"], answer["start"], answer["end"]) == ("", 0, 0)
    assert 0 < answer["score"] < 1
    with one_line_error("the bundle's task has no_answer=True"):
        pipeline(model=folder)({"question": "w1", "context": "w2"}, handle_impossible_answer=False)


def test_a_pruned_bundle_and_one_without_label_names(tmp_path: Path):
    folder = toy_bundle(tmp_path, labels=None)
    logits = expected(TEXTS)
    answers = pipeline(model=folder)(TEXTS, function_to_apply="none")
    assert [one["label"] for one in answers] == [f"LABEL_{i}" for i in logits.argmax(1)]
    assert [one["score"] for one in answers] == logits.max(1).tolist()


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("summarization", {}, "there is no pipeline 'summarization' here; use one of text-class"),
        ("ner", {}, "a bundle of the task classify is for the pipeline 'text-classification'"),
        (None, {"tokenizer": "x"}, "Pipeline does not support tokenizer='x'; leave tokenizer out"),
        (None, {"truncation": False}, "always cuts long texts; leave truncation out"),
        (None, {"device": 0}, "device='0' is not supported here"),
    ],
)
def test_refused(tmp_path: Path, task: str | None, options: dict[str, Any], message: str):
    with one_line_error(message):
        pipeline(task, model=toy_bundle(tmp_path), **options)


def test_calls_that_are_refused(tmp_path: Path):
    classify = pipeline(model=toy_bundle(tmp_path / "classify"), device=-1)
    with one_line_error("function_to_apply='tanh': use one of sigmoid, softmax, none"):
        classify("w1", function_to_apply="tanh")
    with one_line_error("does not support return_tensors=True"):
        classify("w1", return_tensors=True)
    with one_line_error("give a text or a list of texts"):
        classify()
    tags = pipeline(model=toy_bundle(tmp_path / "tokens", task="tokens"))
    with one_line_error("aggregation_strategy='best' is not known; use one of none, simple"):
        tags("w1", aggregation_strategy="best")
    with one_line_error(r"inputs\[0\] is not a sentence; for words use is_split_into_words"):
        tags([["w1"]])
    with one_line_error("name the bundle"):
        pipeline("ner")
