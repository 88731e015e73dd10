"""Rerank candidates with a dense cross-encoder and its pruned version: how well, and how fast?

    toprune prune --task rank --model dense/ --data train.jsonl --budget 3x --out pruned/
    toprune export pruned/
    python examples/rerank.py dense/ pruned/ pairs.jsonl      # rows: query, document, label

CrossEncoder opens a bundle as an ordinary model directory and keeps every token. With the plan
attached it drops tokens, in torch; the ONNX file contains the plan. If optimum-onnx is installed
(it needs transformers 4), CrossEncoder("pruned/", backend="onnx") runs the same file.
"""

import sys
from shutil import copytree
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sentence_transformers import CrossEncoder

import toprune
from toprune.data.examples import load
from toprune.export.export import export
from toprune.run.timing import interleave, ratio
from toprune.tasks.rank import Rank, ranking

if len(sys.argv) != 4:
    sys.exit(__doc__)
dense, pruned, data = sys.argv[1:]
candidates = load(data, reads=Rank.READS, split="test")["test"]
queries, documents = candidates.texts, candidates.pairs or []
pairs, timed = candidates.inputs(Rank.READS), candidates.inputs(Rank.READS)[:64]
torch.set_num_threads(1)  # one thread for all, so that no thread pool waits for another
fast = toprune.Runner(pruned, threads=1)
limit = fast.manifest.max_length
with TemporaryDirectory() as copy:  # the dense model, exported and run like the pruned one
    export(copytree(dense, copy, dirs_exist_ok=True), task="rank")
    slow = toprune.Runner(copy, threads=1, max_length=limit)
settings = {"max_length": limit, "activation_fn": torch.nn.Identity(), "device": "cpu"}
before, stock, after = (CrossEncoder(model, **settings) for model in (dense, pruned, pruned))
toprune.attach(after.model, fast.plan)
rerankers = {
    "dense CrossEncoder": before.predict,
    "pruned CrossEncoder, no plan": stock.predict,  # keeps every token: the same speed
    "pruned CrossEncoder": after.predict,
    "dense ONNX": slow,
    "pruned ONNX": fast,
}
turns = {name: lambda score=score: score(timed) for name, score in rerankers.items()}
times = interleave(turns, rounds=10, seconds=120)
rows, rank = [row for row, _ in fast.read(pairs)], Rank()
print(f"{'reranker':28}  nDCG@10  ms/pair    best for '{queries[0]}'")
for name, score in rerankers.items():
    scores = score(pairs).reshape(-1, 1)  # (N, 1) logits
    ndcg = rank.metrics(rank.statistics(scores, rows, candidates))["ndcg@10"]
    best = documents[ranking(scores[:, 0], queries)[0][1][0]]
    milliseconds = 1000 * np.median(times[name]) / len(timed)
    print(f"{name:28}  {ndcg:7.4f}  {milliseconds:9.2f}  {best:.60}")
for kind in ("CrossEncoder", "ONNX"):
    value, low, high = ratio(times[f"dense {kind}"], times[f"pruned {kind}"]).values()
    print(f"pruned {kind} is {value:.2f}x as fast as dense {kind} ({low:.2f} to {high:.2f})")
