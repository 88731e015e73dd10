"""The runtime's tokens are the ones that the model was pruned with, to the last id."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from conftest import SPECIAL, make_tokenizer
from toprune.data import Examples
from toprune.encode import Collate, encode
from toprune.errors import UserError
from toprune.run.texts import CHUNK, Texts

ALL = ("input_ids", "attention_mask", "token_type_ids")
words = st.lists(st.integers(0, 70).map("w{}".format), min_size=1, max_size=30).map(" ".join)


def word_pieces() -> PreTrainedTokenizerFast:
    """As in BERT: letters in pieces, accents and case gone, control characters gone."""
    letters = [chr(i) for i in range(33, 127)]
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), "\u4e2d"]
    raw: Any = Tokenizer(WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    raw.normalizer = BertNormalizer()
    raw.pre_tokenizer = BertPreTokenizer()
    raw.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_input_names=list(ALL),
    )


TOKENIZERS = {"words": make_tokenizer("bert"), "pieces": word_pieces()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    found = {name: folder / f"{name}.json" for name in TOKENIZERS}
    for name, path in found.items():
        TOKENIZERS[name].backend_tokenizer.save(str(path))
    return found


def load(path: Path, max_length: int = 24, inputs: tuple[str, ...] = ALL) -> Texts:
    return Texts(path, max_length=max_length, inputs=inputs, pad_token_id=1)


def theirs(tokenizer: Any, texts: list[Any], max_length: int) -> list[dict[str, Any]]:
    """By transformers, one by one: a call of encode is all texts or all pairs."""
    parts = [(text, None) if isinstance(text, str) else text for text in texts]
    examples = [Examples([a], None if b is None else [b]) for a, b in parts]
    return [row for one in examples for row in encode(tokenizer, one, max_length)]


def check(texts: Texts, tokenizer: Any, given: list[Any], max_length: int) -> None:
    wanted = theirs(tokenizer, given, max_length)
    found = texts.encode(given)
    assert [row.ids.tolist() for row in found] == [row["input_ids"] for row in wanted]
    types = [row.segments.tolist() for row in found if row.segments is not None]
    assert types == [row["token_type_ids"] for row in wanted]
    batch, padded = texts.batch(found), Collate(tokenizer)(wanted)
    assert list(batch) == list(ALL)
    for name in ALL:
        assert batch[name].dtype == np.int64
        np.testing.assert_array_equal(batch[name], padded[name].numpy())


@settings(max_examples=60, deadline=None)
@given(
    given=st.lists(words | st.tuples(words, words), min_size=1, max_size=5),
    max_length=st.integers(5, 40),
)
def test_equals_encode(files: dict[str, Path], given: list[Any], max_length: int):
    check(load(files["words"], max_length), TOKENIZERS["words"], given, max_length)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40), pair=st.text(max_size=40), max_length=st.integers(5, 20))
def test_equals_encode_for_any_text(files: dict[str, Path], text: str, pair: str, max_length: int):
    try:
        theirs(TOKENIZERS["pieces"], [text, (text, pair)], max_length)
    except UserError:  # there is no token in it, which a training set must not have
        assume(False)
    check(load(files["pieces"], max_length), TOKENIZERS["pieces"], [text, (text, pair)], max_length)


def test_equals_encode_over_chunks(files: dict[str, Path]):
    given = [f"w{i % 60} " * (1 + i % 7) for i in range(2 * CHUNK + 3)]
    check(load(files["words"]), TOKENIZERS["words"], given, 24)


@pytest.mark.parametrize("side", ["left", "right"])
def test_settings_in_the_file_do_not_matter_but_the_side(tmp_path: Path, side: str):
    """A tokenizer is saved with the truncation and padding of its last call."""
    own = make_tokenizer()
    own.truncation_side = side
    own(["w1 w2 w3 w4"], truncation=True, max_length=3, padding="max_length")
    own.backend_tokenizer.enable_padding(length=30)
    own.save_pretrained(tmp_path)
    saved = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert saved.truncation_side == side
    long = " ".join(f"w{i}" for i in range(40))
    check(load(tmp_path / "tokenizer.json", 9), saved, ["w1", long, (long, "w2 w3")], 9)


def test_only_the_inputs_that_are_asked_for(files: dict[str, Path]):
    texts = load(files["words"], inputs=("attention_mask", "input_ids"))
    batch = texts.batch(texts.encode(["w0", ("w0", "w1")]))
    assert list(batch) == ["attention_mask", "input_ids"]
    assert batch["input_ids"].tolist() == [[0, 4, 2, 1, 1], [0, 4, 2, 5, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_kinds_of_texts(files: dict[str, Path]):
    texts = load(files["words"])
    plain = texts.encode(["w1", ("w1", "w2"), ("w1", "w2")])
    odd = texts.encode([np.str_("w1"), ["w1", "w2"], (np.str_("w1"), "w2")])
    assert [row.ids.tolist() for row in odd] == [row.ids.tolist() for row in plain]
    assert texts.encode([]) == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (7, "a int"),
        (None, "a NoneType"),
        (b"w1", "a bytes"),
        (("w1",), "a tuple of str"),
        (("w1", None), "a tuple of str, NoneType"),
        (["w1", "w2", "w3"], "a list of str, str, str"),
        ({"text": "w1"}, "a dict"),
    ],
)
def test_what_is_no_text(files: dict[str, Path], bad: Any, says: str):
    given = ["w1"] * (CHUNK + 2) + [bad]
    with pytest.raises(UserError, match=rf"texts\[{CHUNK + 12}\] is {says}, not a text"):
        load(files["words"]).encode(given, first=10)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("odd", ["\ud800", "a\udfffb w1", "\0", "w1\0w2", "\ufeff", "", " \t\n"])
def test_odd_characters_do_not_crash(files: dict[str, Path], name: str, odd: str):
    one, pair, plain = load(files[name]).encode([odd, (odd, odd), "w1"])
    assert len(one) >= 2
    assert len(pair) >= 3
    assert plain.ids.tolist() == load(files[name]).encode(["w1"])[0].ids.tolist()


def test_half_a_surrogate_pair_is_a_question_mark(files: dict[str, Path]):
    one, two = load(files["pieces"]).encode(["a \ud800", "a ?"])
    assert one.ids.tolist() == two.ids.tolist()


def test_no_room(files: dict[str, Path]):
    with pytest.raises(UserError, match="maximum length of 2 leaves no room; use 3 or more"):
        load(files["words"], 2)
    texts = load(files["words"], 4)
    assert len(texts.encode(["w1 w2 w3"])[0]) == 4
    with pytest.raises(UserError, match=r"texts\[1\].*no room for a pair"):
        texts.encode(["w1", ("w1", "w2")])


def test_no_token(tmp_path: Path):
    tokenizer: Any = Tokenizer.from_str(make_tokenizer().backend_tokenizer.to_str())
    tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"texts\[1\]: the tokenizer finds no token"):
        load(tmp_path / "tokenizer.json").encode(["w1", " "])


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": 7}'])
def test_a_broken_tokenizer(tmp_path: Path, content: str):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"cannot read .*tokenizer.json"):
        load(tmp_path / "tokenizer.json")
