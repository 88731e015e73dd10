"""Candidates to rank, as examples of the task rank, from ../shared/data; none of it is committed.

TREC-QA comes with its candidates: the official pairs, in the "raw" form with the questions whose
answers are all right or all wrong (the latter are left out of the metrics, see `tasks/rank.py`).
The files list the right answers first, so the candidates of a question are shuffled: the order in
which they are given, the baseline that is printed, must tell nothing.

Cranfield is a collection; BM25 finds the candidates. Its codes run backwards, by Cleverdon: 1 is a
complete answer, 4 of minimum interest. They become relevance 4 to 1; what was not judged is 0. The
code -1 is explained nowhere. Every query has exactly one, neighbours share it, and BM25 puts it on
top more often than any other code: we read it as the paper whose author asked the question, and
take it out of that query's candidates, as neither relevant nor not. Queries that share it are of
one author and much alike, so they stay in one split.

TREC-QA has 93 training questions; there are more of SQuAD's form (`sentences`). Cranfield has 119:
titles of its papers ask, too, and BM25 and the embedded model's vectors together judge
(`judged_softly`).

    python benchmarks/candidates.py    # results/candidates.json: sizes, recall, order given
"""

import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sets import DATA, say
from toprune.cli.demo import model_directory
from toprune.data.examples import Examples
from toprune.report.environment import environment
from toprune.tasks.rank import Rank, ranking
from toprune.tasks.tokenize import Row

RESULT = Path(__file__).parent / "results" / "candidates.json"
K1, B = 1.2, 0.75
DEPTH = 50  # candidates per query
LEXICAL = 0.01  # of BM25's score beside a cosine; the best of five on the validation queries
MIDDLE, STEEP = 0.65, 12.0  # of that sum: where a pair is called relevant by half, and how sharply
SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s)|\Z)", re.DOTALL)
TEST, VALIDATION = 75, 30  # queries, at least; the other 120 or so are for training


class BM25:
    """Okapi's score with Lucene's idf, which is never negative."""

    def __init__(self, documents: list[str]):
        counts = [Counter(_words(text)) for text in documents]
        lengths = np.array([sum(count.values()) for count in counts])
        damping = K1 * (1 - B + B * lengths / lengths.mean())  # (N,)
        postings: dict[str, list[tuple[int, int]]] = {}
        for document, count in enumerate(counts):
            for word, times in count.items():
                postings.setdefault(word, []).append((document, times))
        self.size = len(documents)
        self.weights: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # documents, what it adds there
        for word, found in postings.items():
            where, times = np.array(found).T
            idf = np.log1p((self.size - len(where) + 0.5) / (len(where) + 0.5))
            self.weights[word] = where, idf * times * (K1 + 1) / (times + damping[where])

    def scores(self, query: str) -> np.ndarray:
        """(N,)"""
        total = np.zeros(self.size)
        for word in _words(query):
            if word in self.weights:
                where, weight = self.weights[word]
                total[where] += weight
        return total


@dataclass(frozen=True)
class Query:
    text: str
    source: int  # the document that is taken out
    relevance: dict[int, int]  # of the judged documents, 1 to 4
    order: list[int]  # all documents but the source, BM25's best first


def trecqa() -> dict[str, Examples]:
    """The official pairs: train, validation (their dev) and test."""
    rng = np.random.default_rng(0)
    found: dict[str, Examples] = {}
    for split, file in (("train", "train"), ("validation", "dev"), ("test", "test")):
        rows = _read(DATA / "trecqa" / f"{file}.jsonl.gz")
        labels = [float(row["label"]) for row in rows]
        queries, documents = ([row[side] for row in rows] for side in ("query", "document"))
        places = ranking(rng.random(len(rows)), queries)
        order = [i for _, shuffled in places for i in shuffled]
        found[split] = Examples(queries, documents, labels).take(order)
    return found


def cranfield(depth: int = DEPTH, seed: int = 0) -> dict[str, Examples]:
    """BM25's `depth` best for each query, in its order: an untouched order is the first stage's."""
    documents, queries = _collection()
    found: dict[str, Examples] = {}
    for split, chosen in _split(queries, np.random.default_rng(seed)).items():
        found[split] = _examples(
            [
                (query.text, documents[d], float(query.relevance.get(d, 0)))
                for query in chosen
                for d in query.order[:depth]
            ]
        )
    return found


def judged_softly(titles: slice, seed: int = 0) -> Examples:
    """Pairs whose relevance is a number between 0 and 1: what BM25 and the cosine of the embedded
    model's vectors say together; `cosines` says how good a judge that is.

    Of every paper's title those of BM25's best (`DEPTH`, shuffled, without the paper itself) that
    `titles` cuts out; and all candidates of the training queries, with every relevant document,
    found or not, where people's judgement counts as much. Validation and test queries are not used.
    """
    documents, asked = _collection()
    rng = np.random.default_rng(seed)
    wanted: list[tuple[str, list[int], dict[int, int] | None]] = []
    for query in _split(asked, np.random.default_rng(seed))["train"]:
        found = query.order[:DEPTH]
        missed = [d for d in query.relevance if d not in found]
        wanted.append((query.text, found + missed, query.relevance))
    index, ids = BM25(list(documents.values())), np.array(list(documents))
    for document, title in _titles().items():
        ranked = ids[np.argsort(-index.scores(title), kind="stable")]
        drawn = rng.permutation(ranked[ranked != document][:DEPTH])[titles]
        wanted.append((title, drawn.tolist(), None))
    place = {document: i for i, document in enumerate(documents)}
    vectors = _vectors([text for text, _, _ in wanted])
    among = _vectors(list(documents.values()))
    pairs: list[tuple[str, str, float]] = []
    for (text, found, relevance), vector in zip(wanted, vectors, strict=True):
        both = among @ vector + LEXICAL * index.scores(text)
        for d in found:
            soft = 1 / (1 + np.exp(-STEEP * (both[place[d]] - MIDDLE)))
            label = soft if relevance is None else (soft + (d in relevance)) / 2
            pairs.append((text, documents[d], float(label)))
    return _examples(pairs)


def _vectors(texts: list[str]) -> np.ndarray:
    """(N, D), of length one."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(model_directory()), device="cpu")
    return model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


def _examples(pairs: list[tuple[str, str, float]]) -> Examples:
    texts, candidates, labels = (list(column) for column in zip(*pairs, strict=True))
    return Examples(texts, candidates, labels)


def sentences(asked: Examples, count: int = 4, seed: int = 0) -> Examples:
    """Each question of SQuAD's form with up to `count` sentences of its paragraph; relevant is the
    one in which its answer begins, which is always among them."""
    rng = np.random.default_rng(seed)
    pairs: list[tuple[str, str, float]] = []
    answers: list[Any] = list(asked.labels or [])
    for question, own, (answer, *_) in zip(asked.texts, asked.pairs or [], answers, strict=True):
        spans = [found.span() for found in SENTENCE.finditer(own)]
        right = max(i for i, (start, _) in enumerate(spans) if start <= max(answer[1], spans[0][0]))
        others = [i for i in rng.permutation(len(spans)) if i != right][: count - 1]
        pairs += [(question, own[slice(*spans[i])], float(i == right)) for i in (right, *others)]
    return _examples(pairs)


def recall(depth: int = DEPTH) -> float:
    """Share of a query's relevant documents that BM25 finds, mean over all queries."""
    _, queries = _collection()
    return float(
        np.mean([len(set(q.order[:depth]) & set(q.relevance)) / len(q.relevance) for q in queries])
    )


@cache
def _collection() -> tuple[dict[int, str], list[Query]]:
    """Documents by id, two without a text left out, and the queries in order."""
    rows = _read(DATA / "cranfield" / "docs.jsonl.gz")
    documents = {row["id"]: row["text"] for row in rows if row["text"].strip()}
    judged: dict[int, dict[int, int]] = {}
    for row in _read(DATA / "cranfield" / "qrels.jsonl.gz"):
        if row["doc"] in documents:
            judged.setdefault(row["query"], {})[row["doc"]] = row["grade"]
    ids, index = np.array(list(documents)), BM25(list(documents.values()))
    queries: list[Query] = []
    for row in _read(DATA / "cranfield" / "queries.jsonl.gz"):
        codes = judged[row["id"]]
        (source,) = (document for document, code in codes.items() if code == -1)
        relevance = {document: 5 - code for document, code in codes.items() if code != -1}
        ranked = ids[np.argsort(-index.scores(row["text"]), kind="stable")]
        queries.append(Query(row["text"], source, relevance, ranked[ranked != source].tolist()))
    return documents, queries


def _titles() -> dict[int, str]:
    documents, _ = _collection()
    rows = _read(DATA / "cranfield" / "docs.jsonl.gz")
    return {row["id"]: row["title"] for row in rows if row["id"] in documents and row["title"]}


def _split(queries: list[Query], rng: np.random.Generator) -> dict[str, list[Query]]:
    by_source: dict[int, list[Query]] = {}
    for query in queries:
        by_source.setdefault(query.source, []).append(query)
    groups = list(by_source.values())
    sizes = {"test": TEST, "validation": VALIDATION, "train": len(queries)}
    splits: dict[str, list[Query]] = {"train": [], "validation": [], "test": []}
    for i in rng.permutation(len(groups)):
        splits[next(name for name, size in sizes.items() if len(splits[name]) < size)] += groups[i]
    return splits


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def cosines(examples: Examples) -> dict[str, dict[str, float]]:
    """Metrics of Cranfield's candidates in the order of BM25's score beside the cosine, by its
    weight: the judge of `judged_softly`."""
    documents, _ = _collection()
    place = {text: i for i, text in enumerate(documents.values())}
    index, among = BM25(list(documents.values())), _vectors(list(documents.values()))
    queries = list(dict.fromkeys(examples.texts))
    vectors = dict(zip(queries, _vectors(queries), strict=True))
    lexical = {query: index.scores(query) for query in queries}
    pairs = [(q, place[d]) for q, d in zip(examples.texts, examples.pairs or [], strict=True)]
    cosine = np.array([vectors[query] @ among[d] for query, d in pairs])
    bm25 = np.array([lexical[query][d] for query, d in pairs])
    weights = (0.0, LEXICAL / 2, LEXICAL, 2 * LEXICAL, 3 * LEXICAL)
    return {f"{w:g}": Rank().metrics(_judged(cosine + w * bm25, examples)) for w in weights}


def _judged(scores: np.ndarray, examples: Examples) -> np.ndarray:
    rows = [Row(np.zeros(1, np.int64), None, text=i) for i in range(len(examples))]
    return Rank().statistics([np.array([score]) for score in scores], rows, examples)


def _describe(found: dict[str, Examples]) -> dict[str, Any]:
    """Sizes, and the metrics of the order in which the candidates are given."""
    summary: dict[str, Any] = {}
    for split, examples in found.items():
        judged = _judged(-np.arange(len(examples)), examples)
        counts = {"pairs": len(examples), "queries": len(set(examples.texts))}
        summary[split] = counts | {"judged": len(judged)} | Rank().metrics(judged)
        say(f"{split}: {summary[split]}")
    return summary


def main() -> None:
    searched = cranfield()
    sets = {"trecqa": _describe(trecqa()), "cranfield": _describe(searched)}
    soft = cosines(searched["validation"])
    say(f"cranfield, validation, cosine and so much of BM25: {soft}")
    recalls = {str(depth): recall(depth) for depth in (DEPTH, 2 * DEPTH)}
    say(f"cranfield, recall of the first stage: {recalls}")
    found = {
        "sets": sets,
        "cranfield_recall": recalls,
        "cranfield_cosine": soft,
        "environment": environment(),
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
