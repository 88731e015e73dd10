"""Bundles in LlamaIndex: search by vectors, then rerank. No torch in the process.

    pip install toprune llama-index-core
    python examples/with_llama_index.py vec/ ranker/ "refund policy" < documents.txt

`vec/` is a bundle of the task embed, `ranker/` one of the task rank; documents.txt has one text on
each line. LlamaIndex's own classes load sentence-transformers; two small ones stand in.
"""

# pyright: reportMissingImports=false
import sys
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, TextNode

from toprune.integrations.sentence_transformers import CrossEncoder, SentenceTransformer


class BundleEmbedding(BaseEmbedding):
    encoder: Any  # of a bundle; for any index of LlamaIndex

    def _get_query_embedding(self, query: str) -> list[float]:
        return self.encoder.encode_query(query).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.encoder.encode_document(text).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self.encoder.encode_document(texts).tolist()


class BundleRerank(BaseNodePostprocessor):
    ranker: Any  # of a bundle
    top_n: int = 3

    def _postprocess_nodes(self, nodes: list[Any], query_bundle: Any = None) -> list[Any]:
        texts = [node.node.get_content() for node in nodes]
        ranked = self.ranker.rank(query_bundle.query_str, texts, top_k=self.top_n)
        return [NodeWithScore(node=nodes[r["corpus_id"]].node, score=r["score"]) for r in ranked]


def search(vec: str, ranker: str, query: str, texts: list[str]) -> list[str]:
    """The best documents: twenty by their vectors, and three of these by the ranker."""
    nodes = [TextNode(text=text) for text in texts]
    index = VectorStoreIndex(nodes, embed_model=BundleEmbedding(encoder=SentenceTransformer(vec)))
    found = index.as_retriever(similarity_top_k=20).retrieve(query)
    best = BundleRerank(ranker=CrossEncoder(ranker)).postprocess_nodes(found, query_str=query)
    return [node.node.get_content() for node in best]


if __name__ == "__main__":
    vec, ranker, query = sys.argv[1:4]
    print(*search(vec, ranker, query, sys.stdin.read().splitlines()), sep="\n")
