"""Bundles in LangChain: search by vectors, then rerank. No torch in the process.

    pip install toprune langchain-classic
    python examples/with_langchain.py vec/ ranker/ "refund policy" < documents.txt

`vec/` is a bundle of the task embed, `ranker/` one of the task rank; documents.txt has one text on
each line. LangChain's own classes load sentence-transformers themselves, so two small ones stand in
their place.
"""

# pyright: reportMissingImports=false
import sys

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

from toprune.integrations.sentence_transformers import CrossEncoder, SentenceTransformer


class BundleEmbeddings(Embeddings):
    """Vectors of a bundle, for any vector store of LangChain."""

    def __init__(self, bundle: str):
        self.model = SentenceTransformer(bundle)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.model.encode_document(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.model.encode_query(text).tolist()


class BundleCrossEncoder(BaseCrossEncoder):
    """Scores of a bundle, for LangChain's CrossEncoderReranker."""

    def __init__(self, bundle: str):
        self.model = CrossEncoder(bundle)

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return self.model.predict(text_pairs).tolist()


def search(vec: str, ranker: str, query: str, texts: list[str]) -> list[str]:
    """The best documents: twenty by their vectors, and three of these by the ranker."""
    store = InMemoryVectorStore.from_texts(texts, BundleEmbeddings(vec))
    reranker = CrossEncoderReranker(model=BundleCrossEncoder(ranker), top_n=3)
    retriever = ContextualCompressionRetriever(
        base_compressor=reranker, base_retriever=store.as_retriever(search_kwargs={"k": 20})
    )
    return [document.page_content for document in retriever.invoke(query)]


if __name__ == "__main__":
    vec, ranker, query = sys.argv[1:4]
    print(*search(vec, ranker, query, sys.stdin.read().splitlines()), sep="\n")
