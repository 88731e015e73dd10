"""Bundles in LangChain: search by vectors, then rerank. No torch in the process.

    pip install toprune langchain-classic
    python examples/with_langchain.py vec/ ranker/ "refund policy" < documents.txt

`vec/` is a bundle of the task embed, `ranker/` one of the task rank; documents.txt has one text on
each line. LangChain's own classes load sentence-transformers themselves, so two small ones stand in
their place.
"""

import sys

from langchain_classic.retrievers import (  # pyright: ignore[reportMissingImports]
    ContextualCompressionRetriever,
)
from langchain_classic.retrievers.document_compressors import (  # pyright: ignore[reportMissingImports]
    CrossEncoderReranker,
)
from langchain_core.cross_encoders import (  # pyright: ignore[reportMissingImports]
    BaseCrossEncoder,
)
from langchain_core.embeddings import Embeddings  # pyright: ignore[reportMissingImports]
from langchain_core.vectorstores import (  # pyright: ignore[reportMissingImports]
    InMemoryVectorStore,
)

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


def search(vec: str, ranker: str, query: str, texts: list[str], top: int = 3) -> list[str]:
    """The best documents: twenty by their vectors, and `top` of these by the ranker."""
    store = InMemoryVectorStore.from_texts(texts, BundleEmbeddings(vec))
    reranker = CrossEncoderReranker(model=BundleCrossEncoder(ranker), top_n=top)
    retriever = ContextualCompressionRetriever(
        base_compressor=reranker, base_retriever=store.as_retriever(search_kwargs={"k": 20})
    )
    return [document.page_content for document in retriever.invoke(query)]


if __name__ == "__main__":
    vec, ranker, query = sys.argv[1:4]
    lines = [line.strip() for line in sys.stdin if line.strip()]
    for text in search(vec, ranker, query, lines):
        print(text)
