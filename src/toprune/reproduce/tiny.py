"""Models and data that are made in a moment: every target runs on them in seconds.

Random weights and made texts prove that a target works, and nothing about the paper. The texts have
the shape of a dataset: as much padding, one text or a pair, and labels of its kind.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, BertConfig, PreTrainedTokenizerFast, RobertaConfig

from toprune.io.atomic import write_text
from toprune.reproduce.paper import CUT_SHARE, Kind, Published

SPECIAL = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
WORDS = [f"w{i}" for i in range(60)]
MAX_LENGTH = 48
TRAIN, TEST = 48, 24  # texts
SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "pad_token_id": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": MAX_LENGTH + 2,  # RoBERTa's table starts at 2
    "initializer_range": 0.3,  # the usual 0.02 makes attention flat, and every score a tie
}
LAYERS: dict[Kind, int] = {"base": 6, "roberta": 6, "six": 4}


def make_models(folder: Path) -> dict[Kind, Path]:
    """Write the models, the same every time; returns their directories."""
    paths: dict[Kind, Path] = {kind: folder / kind for kind in LAYERS}
    for kind, path in paths.items():
        if (path / "config.json").exists():
            continue
        make = RobertaConfig if kind == "roberta" else BertConfig
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModel.from_config(make(num_hidden_layers=LAYERS[kind], **SIZES))
        _tokenizer().save_pretrained(path)
        model.save_pretrained(path)
    return paths


def _tokenizer() -> PreTrainedTokenizerFast:
    vocab = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    raw: Any = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()
    raw.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        cls_token="[CLS]",
        pad_token="[PAD]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "attention_mask"],
    )


def make_data(paper: Published, kind: str, folder: Path) -> Path:
    """Write the sets of a task: texts as long, for their maximum, as those of the dataset.

    Args:
        paper: the dataset that they stand for.
        kind: of the labels: class, number or answers (`Reads.label_type`).
        folder: gets train.jsonl and test.jsonl.
    """
    share = min(CUT_SHARE, (paper.mean_length or paper.max_length) / paper.max_length)
    mean = max(10, round(MAX_LENGTH * share))
    rng = np.random.default_rng(0)
    for name, count in (("train", TRAIN), ("test", TEST)):
        rows = [_ROWS[kind](rng, mean, i) for i in range(count)]
        write_text(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _words(rng: np.random.Generator, mean: int) -> list[str]:
    length = int(rng.integers(round(0.7 * mean), round(1.3 * mean) + 1)) - 2
    return [WORDS[i] for i in rng.integers(10, len(WORDS), max(4, length))]


def _classified(rng: np.random.Generator, mean: int, number: int) -> dict[str, Any]:
    words = _words(rng, mean)
    words[int(rng.integers(len(words)))] = WORDS[number % 2]
    return {"text": " ".join(words), "label": number % 2}


def _rated(rng: np.random.Generator, mean: int, number: int) -> dict[str, Any]:
    return {"text": " ".join(_words(rng, mean)), "label": float(number % 11) / 2}


def _answered(rng: np.random.Generator, mean: int, number: int) -> dict[str, Any]:
    """The answer is the word that the question names; every fourth question has none."""
    words = _words(rng, mean - 4)
    at = int(rng.integers(len(words)))
    answer = WORDS[number % 10]
    words[at] = answer
    start = len(" ".join(words[:at])) + (at > 0)
    is_answered = number % 4 > 0
    answers = {"text": [answer], "answer_start": [start]}
    asked = answer if is_answered else WORDS[(number + 1) % 10]
    row = {"question": f"w59 {asked}", "context": " ".join(words)}
    return row | {"answers": answers if is_answered else {"text": [], "answer_start": []}}


_ROWS: dict[str, Callable[[np.random.Generator, int, int], dict[str, Any]]] = {
    "class": _classified,
    "number": _rated,
    "answers": _answered,
}
