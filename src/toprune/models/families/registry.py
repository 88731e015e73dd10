"""The families that toprune supports, and what can be read from a config."""

from typing import Any

from toprune.errors import UserError
from toprune.models.families.bert import (
    ALBERT,
    BERT,
    CAMEMBERT,
    DISTILBERT,
    ELECTRA,
    MPNET,
    ROBERTA,
    XLM_ROBERTA,
)
from toprune.models.families.deberta import DEBERTA
from toprune.models.families.family import Family
from toprune.models.families.rotary import EUROBERT, GTE, JINA_V3, MODERNBERT, NOMIC_BERT
from toprune.models.families.vit import VIT
from toprune.plan.cost import Sizes

# by config.model_type; MiniLM, BGE, E5 and most rerankers have the type "bert" or "xlm-roberta"
FAMILIES = {
    family.name: family
    for family in (
        BERT,
        ROBERTA,
        XLM_ROBERTA,
        ELECTRA,
        DISTILBERT,
        CAMEMBERT,
        ALBERT,
        MPNET,
        DEBERTA,
        MODERNBERT,
        EUROBERT,
        GTE,
        NOMIC_BERT,
        JINA_V3,
        VIT,
    )
}


def family_of(model: Any) -> Family:
    """Return the family of a transformers model; refuse decoders and unknown architectures."""
    family = family_named(model.config)
    if getattr(model.config, "is_decoder", False):
        raise UserError("this model is a decoder; toprune prunes encoders (is_decoder=False)")
    return family


def family_named(config: Any) -> Family:
    """Return the family of a transformers config; refuse unknown architectures."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UserError(
            f"architecture '{config.model_type}' is not known; supported: {', '.join(FAMILIES)} "
            "(to add one, see docs/add-a-family.md)"
        )
    return family


def sizes_of(model: Any) -> Sizes:
    """Return the numbers that decide the cost of a model."""
    return family_of(model).sizes(model.config)


def max_positions(config: Any) -> int:
    """Return how many tokens fit the position table."""
    return family_named(config).max_positions(config)


def has_segments(config: Any) -> bool:
    """Does the model take `token_type_ids` that differ?"""
    return getattr(config, "type_vocab_size", 0) > 1


def pools_all(config: Any) -> bool:
    """Does the head for a whole text read every token, in place of the first one?"""
    return getattr(config, "classifier_pooling", None) in ("mean", "late")


def reads_every_token(model: Any) -> bool:
    """Does the head of the model read every token? False for a bare encoder: how its rows are used
    is up to the caller."""
    head = type(model).__name__
    if head.endswith("ForSequenceClassification"):
        return pools_all(model.config)
    return head.endswith(("ForQuestionAnswering", "ForTokenClassification"))
