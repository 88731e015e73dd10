"""From examples to features: token ids, the training target, and the row that they are from."""

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

from toprune.data.bad_rows import name_rows
from toprune.data.examples import Examples
from toprune.data.images import Images
from toprune.errors import UserError
from toprune.models.families import has_segments, max_positions
from toprune.plan.budget import Lengths
from toprune.plan.plan import held_tokens
from toprune.tasks import Task
from toprune.tasks.tokenize import Row, Texts


def encode(
    tokenizer: Any,
    task: Task,
    examples: Examples,
    max_length: int,
    *,
    positions: int | None = None,
    segments: bool = True,
) -> list[dict[str, Any]]:
    """Features: `input_ids`, `token_type_ids` where the tokenizer has them, `label` or `tags`,
    `index`, and the `row` that they are from. A text that is read in windows has several. A
    feature of an image has only its row. Batches pad them (`batches.Collate`).

    Args:
        tokenizer: a fast tokenizer, or an `Images`.
        max_length: tokens after which texts are cut, or windows end.
        positions: number of tokens that the model has positions for, if known.
        segments: whether the model has segments (a BERT tokenizer may serve a model without them).
    """
    if isinstance(tokenizer, Images):
        rows: Any = tokenizer.encode(examples.texts)
    else:
        rows = _text_rows(tokenizer, task, examples, max_length, positions, segments)
    features: list[dict[str, Any]] = []
    for index, row in enumerate(rows):
        feature: dict[str, Any] = {"index": index, "row": row}
        if isinstance(row, Row):
            feature["input_ids"] = row.ids.tolist()
            if row.segments is not None:
                feature["token_type_ids"] = row.segments.tolist()
        if examples.labels is not None and not task.READS.alone:
            key = "tags" if task.TARGET_BY_TOKEN else "label"
            feature[key] = task.target(row, examples.labels[row.text])
        features.append(feature)
    return features


def encode_for(
    model: Any, tokenizer: Any, task: Task, examples: Examples, max_length: int
) -> list[dict[str, Any]]:
    """`encode` for a model: with its number of positions, and segments if it has them."""
    positions, segments = max_positions(model.config), has_segments(model.config)
    return encode(tokenizer, task, examples, max_length, positions=positions, segments=segments)


def _text_rows(
    tokenizer: Any,
    task: Task,
    examples: Examples,
    max_length: int,
    positions: int | None,
    segments: bool,
) -> list[Row]:
    _check(tokenizer, max_length, positions, is_pair=examples.pairs is not None)
    names = ["input_ids"]
    if segments and "token_type_ids" in tokenizer.model_input_names:
        names.append("token_type_ids")
    texts = Texts(
        Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),  # a copy: `Texts` sets it up
        task,
        max_length=max_length,
        inputs=names,
        pad_token_id=tokenizer.pad_token_id or 0,
        side=tokenizer.truncation_side,
    )
    rows = texts.encode(examples.inputs(task.READS))
    _refuse_empty(tokenizer, task, examples, rows)
    return rows


def token_ids(tokenizer: Any, words: Sequence[str]) -> set[int]:
    """The ids of words that a plan protects. They must be whole tokens: a plan knows ids only."""
    vocabulary = tokenizer.get_vocab()
    for word in words:
        if word not in vocabulary:
            raise UserError(f"--protect '{word}' is not a token of this tokenizer")
    return {vocabulary[word] for word in words}


def protected_ids(
    tokenizer: Any, task: Task, words: tuple[str, ...], first: bool | None
) -> tuple[tuple[int, ...], int | None]:
    """(ids that stay, the id up to which everything stays)"""
    if isinstance(tokenizer, Images):
        if words or first:
            raise UserError("images have no words to protect; leave --protect out")
        return (), None
    ids = token_ids(tokenizer, words)
    if not (task.KEEPS_FIRST if first is None else first):
        return tuple(sorted(ids)), None
    until = tokenizer.sep_token_id
    if until is None:
        raise UserError(
            "the tokenizer has no separator after the first text; pass protect_first=False "
            "(--no-protect-first)"
        )
    return tuple(sorted({*ids, until})), until


def rows_of(features: Iterable[dict[str, Any]]) -> list[Row]:
    """The rows that the features were made from, in order."""
    return [feature["row"] for feature in features]


def tokens_in(feature: dict[str, Any]) -> int:
    """The number of live tokens, with special ones."""
    return len(feature["input_ids"] if "input_ids" in feature else feature["row"])


def lengths(
    features: Iterable[dict[str, Any]],
    protect: tuple[int, ...] = (),
    protect_until: int | None = None,
) -> Lengths:
    """The histogram of live tokens, with special ones, and of those that a plan must keep: cost and
    budget are measured on it."""
    if not protect and protect_until is None:
        return Lengths.of(map(tokens_in, features))
    texts = [feature["input_ids"] for feature in features]
    held = [held_tokens(ids, protect, protect_until) for ids in texts]
    return Lengths.of(map(len, texts), held)


def _refuse_empty(tokenizer: Any, task: Task, examples: Examples, rows: Sequence[Row]) -> None:
    is_pair = examples.pairs is not None and not task.READS.alone
    frame = tokenizer.num_special_tokens_to_add(pair=is_pair)
    empty = sorted({row.text % len(examples) for row in rows if len(row) <= frame})
    if empty:
        raise UserError(f"the tokenizer finds no token in {name_rows(empty)}; drop these texts")


def _check(tokenizer: Any, max_length: int, positions: int | None, *, is_pair: bool) -> None:
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{type(tokenizer).__name__} is a slow tokenizer without a tokenizer.json; "
            "save the model with a fast one"
        )
    if tokenizer.padding_side == "left":
        raise UserError(
            "the tokenizer pads on the left, but heads read the first token; "
            'set tokenizer.padding_side = "right" (a line of tokenizer_config.json)'
        )
    if positions is not None and max_length > positions:
        raise UserError(
            f"a maximum length of {max_length} is above the model's {positions} positions; "
            f"use {positions} or less"
        )
    room = tokenizer.num_special_tokens_to_add(pair=is_pair) + 1 + is_pair
    if max_length < room:
        raise UserError(f"a maximum length of {max_length} leaves no room; use {room} or more")
