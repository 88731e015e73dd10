"""A tokenizer and tiny random models, made here: tests need no network and no files."""

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    CamembertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    EuroBertConfig,
    GteConfig,
    JinaEmbeddingsV3Config,
    ModernBertConfig,
    MPNetConfig,
    NomicBertConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

SPECIAL = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]  # PAD is 1, as in RoBERTa: nobody may assume 0
WORDS = [f"w{i}" for i in range(60)]
SEGMENTED = ("bert", "electra", "albert")  # families whose tokenizers give token_type_ids

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 66,  # 64 tokens fit every family: RoBERTa's table starts at 2
    "initializer_range": 0.5,  # the usual 0.02 makes attention flat, and every score a tie
}
CALM = SIZES | {"initializer_range": 0.3}  # gates multiply: rounding would grow with them
V3: dict[str, Any] = {  # as in the config of DeBERTa v3, with fewer buckets
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
LOCAL: dict[str, Any] = {"local_attention": 12, "global_attn_every_n_layers": 2}
SPECIAL_IDS: dict[str, Any] = {
    "bos_token_id": 0,
    "eos_token_id": 2,
    "cls_token_id": 0,
    "sep_token_id": 2,
}
CONFIGS = {
    "bert": lambda **fields: BertConfig(**SIZES, **fields),
    "roberta": lambda **fields: RobertaConfig(**SIZES, type_vocab_size=1, **fields),
    "xlm-roberta": lambda **fields: XLMRobertaConfig(**SIZES, type_vocab_size=1, **fields),
    "electra": lambda **fields: ElectraConfig(**SIZES, embedding_size=32, **fields),
    "distilbert": lambda **fields: DistilBertConfig(
        dim=32,
        n_layers=4,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=66,
        initializer_range=0.5,
        **fields,
    ),
    "camembert": lambda **fields: CamembertConfig(**SIZES, type_vocab_size=1, **fields),
    "albert": lambda **fields: AlbertConfig(
        **SIZES, embedding_size=16, num_hidden_groups=2, type_vocab_size=2, **fields
    ),
    "mpnet": lambda **fields: MPNetConfig(**SIZES, **fields),
    "deberta-v2": lambda **fields: DebertaV2Config(**SIZES, **V3, **fields),
    "modernbert": lambda **fields: ModernBertConfig(**SIZES, **SPECIAL_IDS, **LOCAL, **fields),
    "eurobert": lambda **fields: EuroBertConfig(
        **SIZES, **SPECIAL_IDS, num_key_value_heads=2, classifier_pooling="bos", **fields
    ),
    "gte": lambda **fields: GteConfig(**CALM, type_vocab_size=0, **fields),
    "nomic_bert": lambda **fields: NomicBertConfig(**CALM, type_vocab_size=1, **fields),
    "jina_embeddings_v3": lambda **fields: JinaEmbeddingsV3Config(**SIZES, **fields),
}
FAMILIES = tuple(CONFIGS)
HEADS: dict[str, Any] = {
    "sequence": AutoModelForSequenceClassification,
    "answer": AutoModelForQuestionAnswering,
    "tokens": AutoModelForTokenClassification,
    "encoder": AutoModel,
}


def make_tokenizer(family: str = "bert") -> PreTrainedTokenizerFast:
    """One word, one token: "w0 w1 w2" is three tokens between [CLS] and [SEP]."""
    vocab = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    raw = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    raw.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    segments = ["token_type_ids"] if family in SEGMENTED else []
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        cls_token="[CLS]",
        pad_token="[PAD]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_input_names=["input_ids", *segments, "attention_mask"],
    )


def make_model(
    family: str = "bert", num_labels: int = 2, seed: int = 0, head: str = "sequence"
) -> Any:
    """A random model with a head of that kind in eval mode, the same for the same arguments."""
    tokenizer = make_tokenizer(family)
    config = CONFIGS[family](
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=num_labels
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = HEADS[head].from_config(config).eval()
    if head == "encoder":
        model.pooler = None  # as `read_weights` does
    return model
