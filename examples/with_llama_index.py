"""Bundles in LlamaIndex: search by vectors, then rerank. No torch in the process.

    pip install toprune llama-index-core
    python examples/with_llama_index.py vec/ ranker/ "refund policy" < documents.txt

`vec/` is a bundle of the task embed, `ranker/` one of the task rank; documents.txt has one text on
each line. LlamaIndex's SentenceTransformerRerank and HuggingFaceEmbedding load
sentence-transformers themselves, so two small classes stand in their place.
"""

import sys
from typing import Any

from llama_index.core import VectorStoreIndex  # pyright: ignore[reportMissingImports]
from llama_index.core.base.embeddings.base import (  # pyright: ignore[reportMissingImports]
    BaseEmbedding,
)
from llama_index.core.bridge.pydantic import PrivateAttr  # pyright: ignore[reportMissingImports]
from llama_index.core.postprocessor.types import (  # pyright: ignore[reportMissingImports]
    BaseNodePostprocessor,
)
from llama_index.core.schema import TextNode  # pyright: ignore[reportMissingImports]

from toprune.integrations.sentence_transformers import CrossEncoder, SentenceTransformer


class BundleEmbedding(BaseEmbedding):
    """Vectors of a bundle, for any index of LlamaIndex."""

    _model: Any = PrivateAttr()

    def __init__(self, bundle: str, **fields: Any):
        super().__init__(model_name=bundle, **fields)
        self._model = SentenceTransformer(bundle)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._model.encode_query(query).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._model.encode_document(text).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._model.encode_document(texts).tolist()


class BundleRerank(BaseNodePostprocessor):
    """Orders nodes by the scores of a bundle."""

    top_n: int = 3
    _model: Any = PrivateAttr()

    def __init__(self, bundle: str, **fields: Any):
        super().__init__(**fields)
        self._model = CrossEncoder(bundle)

    def _postprocess_nodes(self, nodes: list[Any], query_bundle: Any = None) -> list[Any]:
        texts = [node.node.get_content() for node in nodes]
        ranked = self._model.rank(query_bundle.query_str, texts, top_k=self.top_n)
        for one in ranked:
            nodes[one["corpus_id"]].score = one["score"]
        return [nodes[one["corpus_id"]] for one in ranked]


def search(vec: str, ranker: str, query: str, texts: list[str], top: int = 3) -> list[str]:
    """The best documents: twenty by their vectors, and `top` of these by the ranker."""
    nodes = [TextNode(text=text) for text in texts]
    index = VectorStoreIndex(nodes, embed_model=BundleEmbedding(vec))
    found = index.as_retriever(similarity_top_k=20).retrieve(query)
    ranked = BundleRerank(ranker, top_n=top).postprocess_nodes(found, query_str=query)
    return [node.node.get_content() for node in ranked]


if __name__ == "__main__":
    vec, ranker, query = sys.argv[1:4]
    lines = [line.strip() for line in sys.stdin if line.strip()]
    for text in search(vec, ranker, query, lines):
        print(text)
