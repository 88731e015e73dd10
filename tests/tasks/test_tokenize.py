"""What the model reads is what the transformers tokenizer gives, to the last id; windows lose
nothing, and places say where each token is from."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from support.models import SPECIAL, make_tokenizer
from toprune.errors import UserError
from toprune.tasks import Answer, Classify, Embed, Multilabel, Tags, Task
from toprune.tasks.tokenize import CHUNK, QUESTION, Row, Texts

ALL = ("input_ids", "attention_mask", "token_type_ids")
words = st.lists(st.integers(0, 70).map("w{}".format), min_size=1, max_size=30).map(" ".join)


def word_pieces() -> PreTrainedTokenizerFast:
    """As in BERT: letters in pieces, accents and case gone, control characters gone."""
    letters = [chr(i) for i in range(33, 127)]
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), "\u4e2d"]
    raw: Any = Tokenizer(WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    raw.normalizer = BertNormalizer()
    raw.pre_tokenizer = BertPreTokenizer()
    return finished(raw)


def byte_by_byte() -> PreTrainedTokenizerFast:
    """The worst that a tokenizer of bytes (RoBERTa's) can do: a character is up to four tokens."""
    letters = {letter: i for i, letter in enumerate([*SPECIAL, *sorted(ByteLevel.alphabet())])}
    raw: Any = Tokenizer(WordLevel(letters, unk_token="[UNK]"))
    raw.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=True), Split("", "isolated")])
    return finished(raw)


def finished(raw: Any) -> PreTrainedTokenizerFast:
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


TOKENIZERS = {"words": make_tokenizer("bert"), "pieces": word_pieces(), "bytes": byte_by_byte()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    found = {name: folder / f"{name}.json" for name in TOKENIZERS}
    for name, path in found.items():
        TOKENIZERS[name].backend_tokenizer.save(str(path))
    return found


STRIDES = (Classify(), Classify(stride=4))


def load(
    path: Path,
    max_length: int = 24,
    inputs: tuple[str, ...] = ALL,
    task: Task | None = None,
    side: str | None = None,
) -> Texts:
    return Texts.load(
        path,
        task or Classify(),
        max_length=max_length,
        inputs=inputs,
        pad_token_id=1,
        side=side,
    )


def theirs(tokenizer: Any, text: Any, max_length: int) -> dict[str, Any]:
    """By transformers, in a batch of one: alone, "" is no second text."""
    sides = [[text]] if isinstance(text, str) else [[side] for side in text]
    batch = tokenizer(*sides, truncation=True, max_length=max_length)
    return {name: rows[0] for name, rows in batch.items()}


def check(texts: Texts, tokenizer: Any, inputs: list[Any], max_length: int) -> None:
    """Against transformers, text by text and padded."""
    wanted = [theirs(tokenizer, text, max_length) for text in inputs]
    found = texts.encode(inputs)
    assert [row.text for row in found] == list(range(len(inputs)))
    assert all(row.places is None for row in found)
    assert [row.ids.tolist() for row in found] == [row["input_ids"] for row in wanted]
    types = [row.segments.tolist() for row in found if row.segments is not None]
    assert types == [row["token_type_ids"] for row in wanted]
    batch, padded = texts.batch(found), tokenizer.pad(wanted, return_tensors="np")
    assert list(batch) == list(ALL)
    for name in ALL:
        assert batch[name].dtype == np.int64
        np.testing.assert_array_equal(batch[name], padded[name])


@settings(max_examples=60, deadline=None)
@given(
    inputs=st.lists(words | st.tuples(words, words), min_size=1, max_size=5),
    max_length=st.integers(5, 40),
)
def test_equals_transformers(files: dict[str, Path], inputs: list[Any], max_length: int):
    check(load(files["words"], max_length), TOKENIZERS["words"], inputs, max_length)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40), pair=st.text(max_size=40), max_length=st.integers(5, 20))
def test_equals_transformers_for_any_text(
    files: dict[str, Path], text: str, pair: str, max_length: int
):
    for name in ("pieces", "bytes"):
        texts = load(files[name], max_length)
        check(texts, TOKENIZERS[name], [text, (text, pair)], max_length)


def test_equals_transformers_over_chunks(files: dict[str, Path]):
    inputs = [f"w{i % 60} " * (1 + i % 7) for i in range(2 * CHUNK + 3)]
    check(load(files["words"]), TOKENIZERS["words"], inputs, 24)


@pytest.mark.parametrize("side", ["left", "right"])
def test_settings_in_the_file_do_not_matter_but_the_side(tmp_path: Path, side: str):
    """A tokenizer is saved with the truncation and padding of its last call."""
    tokenizer = make_tokenizer()
    tokenizer.truncation_side = side
    tokenizer(["w1 w2 w3 w4"], truncation=True, max_length=3, padding="max_length")
    tokenizer.backend_tokenizer.enable_padding(length=30)
    tokenizer.save_pretrained(tmp_path)
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
    ("bad", "message"),
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
def test_what_is_no_text(files: dict[str, Path], bad: Any, message: str):
    inputs = ["w1"] * (CHUNK + 2) + [bad]
    with pytest.raises(UserError, match=rf"texts\[{CHUNK + 12}\] is {message}, not a text"):
        load(files["words"]).encode(inputs, first=10)


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


# Windows


def long_text(count: int) -> str:
    return " ".join(f"w{i}" for i in range(count))


def contents(rows: list[Row]) -> list[list[int]]:
    """What each row reads of the last text in it: between the special tokens."""
    found = []
    for row in rows:
        ids = row.ids.tolist()
        assert (ids[0], ids[-1]) == (0, 2)
        inside = ids[1:-1]
        found.append(inside[len(inside) - inside[::-1].index(2) :] if 2 in inside else inside)
    return found


def joined(windows: list[list[int]], stride: int) -> list[int]:
    """The text again; neighbours share `stride` tokens, and all but the last are full."""
    whole = list(windows[0])
    for one, other in pairwise(windows):
        assert len(one) == len(windows[0])
        assert len(other) > stride  # something new in each
        assert one[len(one) - stride :] == other[:stride]
        whole += other[stride:]
    return whole


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 60), max_length=st.integers(3, 24), data=st.data())
def test_windows_hold_all_of_a_long_text(
    files: dict[str, Path], count: int, max_length: int, data: st.DataObject
):
    stride = data.draw(st.integers(0, (max_length - 3) // 3))
    side = data.draw(st.sampled_from(["right", "left"]))
    kind = data.draw(st.sampled_from([Classify, Multilabel]))
    texts = load(files["words"], max_length, task=kind(stride=stride), side=side)
    inputs = ["w7", long_text(count), "w8"]
    first, *windows, last = texts.encode(inputs)
    assert [first.text, last.text] == [0, 2]
    assert {row.text for row in windows} == {1}
    assert all(len(row) <= max_length for row in windows)
    whole = TOKENIZERS["words"](inputs[1], add_special_tokens=False)["input_ids"]
    found = contents(windows)
    if side == "left":  # the short one comes first, and neighbours are mirrored
        found = [window[::-1] for window in found[::-1]]
        whole = whole[::-1]
    assert joined(found, stride) == whole


def test_text_numbers_count_over_chunks(files: dict[str, Path]):
    texts = load(files["words"], 9, task=Classify(stride=2))
    rows = texts.encode([long_text(10)] * (CHUNK + 3), first=50)
    assert [row.text for row in rows] == [i for i in range(CHUNK + 3) for _ in range(2)]


def test_windows_of_a_pair(files: dict[str, Path]):
    """A short first text is in every window of a long second one."""
    texts = load(files["words"], 12, task=Classify(stride=2))
    rows = texts.encode([("w50 w51", long_text(30)), ("w1", "w2")])
    assert [row.text for row in rows] == [0] * (len(rows) - 1) + [1]
    for row in rows[:-1]:
        assert row.ids[:4].tolist() == [0, 54, 55, 2]
        assert row.segments is not None
        assert row.segments.tolist() == [0] * 4 + [1] * (len(row) - 4)
    assert joined(contents(rows[:-1]), 2) == list(range(4, 34))


def test_a_pair_that_fits_is_not_shortened(files: dict[str, Path]):
    pair = (long_text(30), "w1 w2")
    (plain,), (strided,) = (load(files["words"], 48, task=t).encode([pair]) for t in STRIDES)
    assert strided.ids.tolist() == plain.ids.tolist()


def test_windows_of_two_long_texts_are_of_the_second(files: dict[str, Path]):
    """Not every piece of the one beside every piece of the other: that would be their product."""
    texts = load(files["words"], 24, task=Classify(stride=2))
    one, two = (" ".join(f"w{i}" for i in range(start, start + 40)) for start in (0, 20))
    single, *pair = texts.encode(["w1", (one, two)])
    assert (single.text, [row.text for row in pair]) == (0, [1] * len(pair))
    assert {tuple(row.ids[:10].tolist()) for row in pair} == {(0, *range(4, 12), 2)}
    assert joined([row.ids[10:-1].tolist() for row in pair], 2) == list(range(24, 64))


@pytest.mark.parametrize("task", [Classify(stride=500), Answer(stride=500), Tags(stride=500)])
def test_an_overlap_that_leaves_no_room_is_less(files: dict[str, Path], task: Any):
    texts = load(files["words"], 12, task=task)
    inputs: Any = {"classify": long_text(40), "answer": ("w1 " * 9, long_text(40))}
    inputs["tokens"] = long_text(40).split()
    windows = contents(texts.encode([inputs[task.NAME]]))
    shared = [len(set(a) & set(b)) for a, b in pairwise(windows)]
    assert set(shared) <= {2, 3}
    assert {token for window in windows for token in window} == set(range(4, 44))


def test_without_a_stride_long_texts_are_cut(files: dict[str, Path]):
    for task in (Classify(), Embed()):
        (row,) = load(files["words"], 8, task=task).encode([long_text(30)])
        assert row.ids.tolist() == [0, *range(4, 10), 2]


# Questions and their contexts


def overflowing(tokenizer: Any, *sides: Any, **how: Any) -> list[Any]:
    """Windows by transformers."""
    batch = tokenizer(*sides, truncation=how.pop("truncation", True), **how)
    return batch.encodings


prose = st.text("abcXYZ ,.'-", min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(question=prose, context=prose, max_length=st.integers(9, 30), data=st.data())
def test_answers_are_looked_for_in_windows(
    files: dict[str, Path], question: str, context: str, max_length: int, data: st.DataObject
):
    tokenizer = TOKENIZERS["pieces"]
    question_ids = tokenizer(question, add_special_tokens=False)["input_ids"]
    stride = data.draw(st.integers(0, (max_length - 5) // 3))
    texts = load(files["pieces"], max_length, task=Answer(stride=stride))
    rows = texts.encode([("a", "b"), (question, context)])[1:]
    letters = [i for i, letter in enumerate(context) if letter != " "]
    question_ids = question_ids[: max(max_length // QUESTION, max_length - 3 - len(letters))]
    places: list[list[int]] = []
    for row in rows:
        assert row.text == 1
        assert len(row) <= max_length
        assert row.places is not None
        assert row.segments is not None
        assert row.ids[: len(question_ids) + 2].tolist() == [0, *question_ids, 2]
        assert (row.places[row.segments == 0] == -1).all()
        assert row.places[-1].tolist() == [-1, -1]
        context_places = row.places[len(question_ids) + 2 : -1]
        words = tokenizer.convert_ids_to_tokens(row.ids[len(question_ids) + 2 : -1].tolist())
        for (a, b), word in zip(context_places, words, strict=True):
            assert context[a:b].lower() == word.removeprefix("##")
        places += context_places[stride if places else 0 :].tolist()
    assert places == [[i, i + 1] for i in letters]  # every one, once, in order


@settings(max_examples=60, deadline=None)
@given(context=st.text(max_size=60), max_length=st.integers(12, 30), stride=st.integers(0, 2))
def test_windows_of_contexts_equal_transformers(
    files: dict[str, Path], context: str, max_length: int, stride: int
):
    for name in ("pieces", "bytes"):
        wanted = overflowing(
            TOKENIZERS[name],
            ["wh?"],
            [context],
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
        )
        rows = load(files[name], max_length, task=Answer(stride=stride)).encode([("wh?", context)])
        assert [row.ids.tolist() for row in rows] == [one.ids for one in wanted]
        for row, one in zip(rows, wanted, strict=True):
            assert row.places is not None
            found = [
                list(place) if side == 1 else [-1, -1]
                for place, side in zip(one.offsets, one.sequence_ids, strict=True)
            ]
            assert row.places.tolist() == found


def test_places_count_the_characters_of_the_context(files: dict[str, Path]):
    (row,) = load(files["pieces"], task=Answer()).encode([("é?", "É 中\x01 xY")])
    tokens = TOKENIZERS["pieces"].convert_ids_to_tokens(row.ids.tolist())
    assert tokens == ["[CLS]", "e", "?", "[SEP]", "e", "中", "x", "##y", "[SEP]"]
    assert row.places is not None
    assert row.places[4:8].tolist() == [[0, 1], [2, 3], [5, 6], [6, 7]]


@pytest.mark.parametrize(
    ("name", "unit"), [("words", "w1 "), ("pieces", "x"), ("bytes", "x"), ("bytes", "\U0001f600")]
)
@pytest.mark.parametrize("count", [1, 4, 5, 8, 12, 13, 60])
def test_a_question_that_is_too_long_is_shortened(
    files: dict[str, Path], name: str, unit: str, count: int
):
    """At any length, also where a character is several tokens."""
    texts, question = load(files[name], 12, task=Answer(stride=1)), unit * count
    context = "w1 w2 w3 w4 w5 w6 w7 w8 w9"
    rows = texts.encode([(question, context)])
    seen: set[tuple[int, ...]] = set()
    for row in rows:
        assert len(row) <= 12
        assert row.places is not None
        assert len(row) == 12 or row is rows[-1]
        seen |= {tuple(place) for place in row.places.tolist()}
    tokenizer = TOKENIZERS[name]
    whole = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    assert seen - {(-1, -1)} == {tuple(place) for place in whole["offset_mapping"]}
    question_ids = tokenizer(question, add_special_tokens=False)["input_ids"]
    kept = rows[0].ids.tolist().index(2) - 1
    assert rows[0].ids[1 : kept + 1].tolist() == question_ids[:kept]
    assert kept == min(4, len(question_ids)) or unit == "\U0001f600"  # not half of a character


# Words


words_of_letters = st.text("abcd", min_size=1, max_size=9) | st.sampled_from(["é\u4e2d", "\x01"])


@settings(max_examples=150, deadline=None)
@given(
    word_list=st.lists(words_of_letters, min_size=1, max_size=12),
    max_length=st.integers(6, 20),
    side=st.sampled_from(["right", "left"]),
    data=st.data(),
)
def test_places_name_words_and_pieces(
    files: dict[str, Path], word_list: list[str], max_length: int, side: str, data: st.DataObject
):
    name = data.draw(st.sampled_from(["pieces", "bytes"]))
    stride = data.draw(st.integers(0, (max_length - 3) // 3))
    texts = load(files[name], max_length, task=Tags(stride=stride), side=side)
    rows = texts.encode([["a"], word_list])[1:]
    assert {row.text for row in rows} == {1}
    (whole,) = overflowing(
        TOKENIZERS[name], [word_list], is_split_into_words=True, add_special_tokens=False
    )
    at = 0  # of the window's first token in the whole text
    for i, row in enumerate(rows):
        assert len(row) <= max_length
        assert row.places is not None
        assert row.places[[0, -1]].tolist() == [[-1, -1], [-1, -1]]
        ids, numbers = row.ids[1:-1].tolist(), row.places[1:-1].tolist()
        assert ids == whole.ids[at : at + len(ids)]
        assert [word for word, _ in numbers] == whole.word_ids[at : at + len(ids)]
        for j, (word, piece) in enumerate(numbers):
            begins = at + j == 0 or whole.word_ids[at + j - 1] != word
            assert (piece == 0) == begins  # a word is begun only once
            if j and numbers[j - 1][0] == word:
                assert piece == numbers[j - 1][1] + 1
        at += len(ids) - (stride if i + 1 < len(rows) else 0)
    assert at == len(whole.ids)


def test_a_word_that_is_split_over_two_windows(files: dict[str, Path]):
    first, second = load(files["pieces"], 6, task=Tags()).encode([["ab", "cdef"]])
    assert first.places is not None
    assert second.places is not None
    assert first.places.tolist() == [[-1, -1], [0, 0], [0, 1], [1, 0], [1, 1], [-1, -1]]
    assert second.places.tolist() == [[-1, -1], [1, 1], [1, 2], [-1, -1]]


def test_words_may_hold_blanks_and_be_dropped(files: dict[str, Path]):
    (row,) = load(files["pieces"], task=Tags()).encode([["a b", "\x01", "\x01c", "\ud800"]])
    tokens = TOKENIZERS["pieces"].convert_ids_to_tokens(row.ids[1:-1].tolist())
    assert tokens == ["a", "b", "c", "?"]
    assert row.places is not None
    assert row.places[1:-1].tolist() == [[0, 0], [0, 1], [2, 0], [3, 0]]


# Refusals of the ways to read


@pytest.mark.parametrize(
    ("task", "bad", "message"),
    [
        (Tags(), "w1 w2", "is a str, not a list of words"),
        (Tags(), [], "is a list of , not a list of words"),
        (Tags(), ["w1", 7], "is a list of str, int, not a list of words"),
        (Tags(), [["w1"], ["w2"]], "is a list of list, list, not a list of words"),
        (Tags(), None, "is a NoneType, not a list of words"),
        (Answer(), "w1", r'is a str.*give \("a question", "its context"\)'),
        (Answer(), ("w1", None), r'is a tuple of str, NoneType.*"its context"'),
        (Answer(), ("w1", "w2", "w3"), r'is a tuple of str, str, str.*"its context"'),
        (Embed(), ("w1", "w2"), "is a pair; the task embed reads one text"),
    ],
)
def test_what_a_task_cannot_read(files: dict[str, Path], task: Any, bad: Any, message: str):
    good: Any = {"tokens": ["w1"], "answer": ("w1", "w2"), "embed": "w1"}[task.NAME]
    with pytest.raises(UserError, match=rf"^texts\[13\]:? {message}"):
        load(files["words"], task=task).encode([good] * 3 + [bad], first=10)


def test_no_room_for_a_context(files: dict[str, Path]):
    with pytest.raises(UserError, match="maximum length of 4 leaves no room; use 5 or more"):
        load(files["words"], 4, task=Answer())
    rows = load(files["words"], 5, task=Answer()).encode([("w1 w2", "w3 w4")])
    assert [row.ids.tolist() for row in rows] == [[0, 5, 2, 7, 2], [0, 5, 2, 8, 2]]


@pytest.mark.parametrize("task", [Classify(), Answer(), Tags(), Embed()])
def test_the_token_that_every_text_begins_with(files: dict[str, Path], task: Any):
    assert load(files["words"], task=task).first == 0
