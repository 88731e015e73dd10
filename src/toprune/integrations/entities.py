"""From tags of tokens to entities, by the rules of transformers' token-classification pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from toprune.integrations.calls import softmax

STRATEGIES = ("none", "simple", "first", "max", "average")


@dataclass(frozen=True)
class Token:
    """A token, or a whole word after `by_word`."""

    text: str
    scores: np.ndarray  # (C,) probabilities of the tags
    start: int  # in characters of the sentence
    end: int
    index: int  # in the row
    continues: bool  # it is not the first piece of a word

    @property
    def tag(self) -> int:
        return int(self.scores.argmax())


def tokens_of(
    tokenizer: Tokenizer,
    encoding: Encoding,
    logits: np.ndarray,
    sentence: str,
    starts: Sequence[int] | None,
) -> list[Token]:
    """The tokens of a sentence that are not special.

    Args:
        tokenizer: that made the encoding.
        encoding: of the sentence.
        logits: (n, C).
        sentence: the text.
        starts: where each word begins in the sentence, if the encoding is one of words.
    """
    model: Any = tokenizer.model
    has_prefix = bool(getattr(model, "continuing_subword_prefix", None))
    unknown = tokenizer.token_to_id(str(getattr(model, "unk_token", None)))
    tokens: list[Token] = []
    for i, scores in enumerate(softmax(logits)):
        if encoding.special_tokens_mask[i]:
            continue
        start, end = encoding.offsets[i]
        word = encoding.word_ids[i]
        if starts is not None and word is not None:
            start, end = start + starts[word], end + starts[word]
        text, seen = encoding.tokens[i], sentence[start:end]
        if has_prefix:
            continues = len(text) != len(seen)
        else:
            continues = start > 0 and " " not in sentence[start - 1 : start + 1]
        if encoding.ids[i] == unknown:
            text, continues = seen, False
        tokens.append(Token(text, scores, start, end, i, continues))
    return tokens


def entities(
    tokenizer: Tokenizer, tokens: list[Token], labels: Sequence[str], strategy: str
) -> list[dict[str, Any]]:
    """Entities in the form of transformers.

    Args:
        tokenizer: joins the texts of tokens.
        tokens: of one sentence.
        labels: names of the tags by id.
        strategy: "none" gives each token; "simple" joins neighbours with the same tag; the others
            first give all pieces of a word one tag.
    """
    if strategy == "none":
        return [_alone(token, labels) for token in tokens]
    if strategy != "simple":
        tokens = by_word(tokenizer, tokens, strategy)
    groups: list[list[Token]] = []
    for token in tokens:
        place, name = _parse(labels[token.tag])
        if groups and place != "B" and name == _parse(labels[groups[-1][-1].tag])[1]:
            groups[-1].append(token)
        else:
            groups.append([token])
    return [
        {
            "entity_group": labels[group[0].tag].split("-", 1)[-1],
            "score": float(np.mean([token.scores.max() for token in group])),
            "word": _join(tokenizer, [token.text for token in group]),
            "start": group[0].start,
            "end": group[-1].end,
        }
        for group in groups
    ]


def by_word(tokenizer: Tokenizer, tokens: list[Token], strategy: str) -> list[Token]:
    """Join the pieces of each word; its tag is that of the first piece, of the surest one, or of
    the mean of all."""
    words: list[list[Token]] = []
    for token in tokens:
        if words and token.continues:
            words[-1].append(token)
        else:
            words.append([token])
    joined = []
    for pieces in words:
        if strategy == "first":
            scores = pieces[0].scores
        elif strategy == "max":
            scores = max(pieces, key=lambda piece: piece.scores.max()).scores
        else:
            scores = np.mean([piece.scores for piece in pieces], axis=0)
        text = _join(tokenizer, [piece.text for piece in pieces])
        first, last = pieces[0], pieces[-1]
        joined.append(Token(text, scores, first.start, last.end, first.index, False))
    return joined


def _alone(token: Token, labels: Sequence[str]) -> dict[str, Any]:
    return {
        "entity": labels[token.tag],
        "score": float(token.scores.max()),
        "index": token.index,
        "word": token.text,
        "start": token.start,
        "end": token.end,
    }


def _parse(label: str) -> tuple[str, str]:
    """Place and name of a tag; one without a prefix goes on with its like."""
    return (label[0], label[2:]) if label[:2] in ("B-", "I-") else ("I", label)


def _join(tokenizer: Tokenizer, texts: list[str]) -> str:
    decoder: Any = tokenizer.decoder
    return " ".join(texts) if decoder is None else decoder.decode(texts)
