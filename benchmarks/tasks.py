"""Every kind of task with the embedded MiniLM, and one with MPNet-base: fine-tuned, pruned,
measured, exported and timed.

    python benchmarks/tasks.py trecqa squad ...           # dense models and pruned ones, by task
    python benchmarks/tasks.py trecqa --bf16              # faster, where the CPU has it
    python benchmarks/tasks.py --time                     # on a quiet machine: latency of bundles

One recipe a task. Nothing was chosen by a reported set, but recipes were changed after an earlier
run had been seen there (all but MPNet's and SQuAD v2.0's; 20News at 3x, Cranfield at 2x and
TREC-QA at 2x were made by older ones); LOG.md says how, and the runs that went before are in
results/selection. Models and bundles go to the cache directory, one JSON a run to results/tasks.
What is there is not done again.
"""

import argparse
import gzip
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import sets
from candidates import SENTENCE, cranfield, judged_softly, sentences, trecqa
from dense import CACHE
from mpnet import mpnet_directory
from toprune.api import Data, finetune, prune
from toprune.cli.demo import model_directory
from toprune.compare.bench import bench
from toprune.data.examples import Examples
from toprune.data.squad import read_squad, unanswerable
from toprune.export.export import export
from toprune.methods.joint import Joint
from toprune.methods.pool import Pool
from toprune.methods.top import Top
from toprune.plan.plan import Score
from toprune.report.environment import environment
from toprune.run.evaluate import evaluate
from toprune.run.runner import Runner
from toprune.tasks import Task, make_task
from toprune.tasks.answer import Answer
from toprune.training.job import Method
from toprune.training.settings import Training

RESULTS = Path(__file__).parent / "results" / "tasks"
PROVED = 300  # examples on which a dense model is looked at while it is made
TIMED = 64  # test texts from which a bundle's latency is taken
POSTS = 4000  # of 20News to fine-tune with; the others are for pruning
SEED = 0
SQUAD = sets.DATA / "squad"

Sets = Callable[[], tuple[Examples, Examples]]  # train, reported


@dataclass(frozen=True)
class Run:
    task: str
    sets: Sets
    budgets: tuple[str, ...]
    max_length: int
    soft: float  # epochs that learn masks
    hard: float  # epochs with tokens truly gone
    dense: float | None  # epochs of fine-tuning before; None: the model is brought
    start: str | None = None  # the run whose dense model the fine-tuning sets out from
    model: Callable[[], str | Path] = model_directory  # or the model
    lr: float = 1e-4
    dense_lr: float | None = None  # of the fine-tuning before; None: the same
    batch: int = 32
    dense_batch: int | None = None  # of the fine-tuning before; None: the same
    method: Method = field(default_factory=Top)
    score: Score | None = None  # by which tokens are ranked; None: the method's own
    unseen: Callable[[], Examples] | None = None  # texts to prune with; None: those of fine-tuning
    token_states: bool = False  # taught beside the first token's, which a ranker reads
    free: tuple[str, ...] = ()  # budgets that a protected query puts out of reach: it may go
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the task

    def made(self) -> Task:
        return make_task(self.task, self.settings)


def squad() -> tuple[Examples, Examples]:
    """Trained on 7,000 questions of each of three other sources, reported on the official dev."""
    return sets.together(shifts(slice(7000))), questions("dev-v1.1")[0]


def asked_anew() -> Examples:
    """These questions and the 6,759 others of the same sources, without labels."""
    return replace(sets.together(shifts(slice(None))), labels=None)


def squad2() -> tuple[Examples, Examples]:
    """Half of these questions, each second one also asked of another paragraph of its article
    that does not hold the answer: made, not asked by people, and easier than the official ones."""
    return _with_none(shifts(slice(700))), questions("half-dev-v2.0")[0]


def asked_anew2() -> Examples:
    """Other questions, a few more, made so as well."""
    return _with_none(shifts(slice(4000, 4800)))


def _with_none(parts: list[Examples]) -> Examples:
    return sets.together([unanswerable(part, 0.5, SEED) for part in parts])


def questions(name: str) -> list[Examples]:
    """The SQuAD files whose names begin so."""
    return [read_squad(path, reads=Answer.READS) for path in sorted(SQUAD.glob(f"{name}*"))]


def shifts(which: slice) -> list[Examples]:
    rng = np.random.default_rng(SEED)
    parts = questions("shifts-")
    return [part.take(np.sort(rng.permutation(len(part))[which])) for part in parts]


def news() -> tuple[Examples, Examples]:
    return sets.train_set("20news", POSTS), sets.report_sets("20news")["test"]


def posted_anew() -> Examples:
    """The other posts of the same shuffled training set: what it was trained on the dense model
    knows by heart. No labels are needed."""
    every = sets.train_set("20news")
    return every.take(np.random.default_rng(SEED).permutation(len(every))[POSTS:])


def answered() -> tuple[Examples, Examples]:
    """93 questions are few to learn from: 4,500 of SQuAD's form beside them, with sentences; the
    official pairs twice."""
    own, test = _split(trecqa())
    return sets.together([own, own, sentences(sets.together(shifts(slice(1500))))]), test


def answered_anew() -> Examples:
    """The official pairs and 16,500 further questions of SQuAD's form, without labels."""
    own, _ = _split(trecqa())
    asked = sets.together(shifts(slice(1500, 7000)))
    return replace(sets.together([own, sentences(asked)]), labels=None)


def searched() -> tuple[Examples, Examples]:
    """119 queries are few to learn from: titles ask, too, each with 6 candidates; relevance by
    people's judgement, BM25 and the embedded model's vectors."""
    return judged_softly(slice(6)), cranfield()["test"]


def searched_anew() -> Examples:
    """The training queries again and 6 other candidates of each title, without labels."""
    return replace(judged_softly(slice(6, 12)), labels=None)


def similar() -> tuple[Examples, Examples]:
    return sets.train_set("stsb"), sets.report_sets("stsb")["test"]


def loose() -> Examples:
    """To learn vectors no labels are needed, only sentences: of the training pairs, of MRPC, of
    SNLI's captions and of SQuAD's paragraphs, each once, two at a time as they fall; without any
    of the reported set, which has some in common with them."""
    with gzip.open(sets.DATA / "snli" / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        captions = [json.loads(line) for line in lines]
    own, news = sets.train_set("stsb"), sets.train_set("mrpc")
    paragraphs = dict.fromkeys(sets.together(shifts(slice(None))).pairs or [])
    found = [*own.texts, *(own.pairs or []), *news.texts, *(news.pairs or [])]
    found += [row[side] for row in captions for side in ("sentence1", "sentence2")]
    found += [part for paragraph in paragraphs for part in SENTENCE.findall(paragraph)]
    _, test = similar()
    every = sorted({*found} - {*test.texts, *(test.pairs or [])})
    drawn = [every[i] for i in np.random.default_rng(SEED).permutation(len(every))]
    half = len(drawn) // 2
    return Examples(drawn[:half], drawn[half : 2 * half], None)


def paraphrases() -> tuple[Examples, Examples]:
    return sets.train_set("mrpc"), sets.together(sets.report_sets("mrpc").values())


def _split(found: dict[str, Examples]) -> tuple[Examples, Examples]:
    return found["train"], found["test"]


RUNS = {
    "trecqa": Run(
        "rank",
        answered,
        ("2x", "3x", "5x"),
        128,
        0.3,  # as many steps as pairs have in accuracy.py
        1.4,
        dense=1,
        start="squad",
        lr=2e-4,
        dense_lr=1e-4,
        method=Joint(),  # chosen by other pairs: MRPC and STS-B
        score="probes",
        token_states=True,
        unseen=answered_anew,
        free=("2x", "3x", "5x"),
    ),
    "stsb-embed": Run(
        "embed",
        similar,
        ("2x",),
        128,
        0,
        1.7,
        dense=None,
        lr=6e-4,
        method=Pool(first=1),
        unseen=loose,
    ),
    "cranfield": Run(
        "rank",
        searched,
        ("2x", "3x"),
        256,
        0.2,
        3,
        dense=1,
        start="squad",
        batch=16,
        unseen=searched_anew,
    ),
    "squad": Run(
        "answer",
        squad,
        ("1.7x",),
        384,
        0,
        2.5,
        dense=1,
        lr=2e-4,
        batch=16,
        score="probes",
        unseen=asked_anew,
        settings={"dropped": "zero"},
    ),
    "squad2": Run(
        "answer",
        squad2,
        ("1.7x",),
        384,
        0.25,
        0.75,
        dense=1,
        start="squad",
        score="probe",
        unseen=asked_anew2,
        settings={"no_answer": True},
    ),
    "20news": Run(
        "classify",
        news,
        ("3x", "5x"),
        512,
        0.25,
        2.75,
        dense=2,
        batch=16,
        dense_batch=32,
        unseen=posted_anew,
    ),
    "mrpc-mpnet": Run(
        "classify",
        paraphrases,
        ("2x", "3x"),
        128,
        0.5,
        1,
        dense=2,
        model=mpnet_directory,
        lr=3e-5,
    ),
}


def rows(task: str, examples: Examples) -> list[dict[str, Any]]:
    """Examples as rows of the public interface."""
    names = {"rank": ("query", "document"), "answer": ("question", "context")}
    first, second = names.get(task, ("text", "text_pair"))
    found: list[dict[str, Any]] = [{first: text} for text in examples.texts]
    for row, pair in zip(found, examples.pairs or [], strict=False):
        row[second] = pair
    for row, label in zip(found, examples.labels or [], strict=False):  # some have none
        if task == "answer":
            texts, starts = [text for text, _ in label], [start for _, start in label]
            row["answers"] = {"text": texts, "answer_start": starts}
        else:
            row["label"] = label
    return found


def dense_model(
    name: str, run: Run, train: Examples, test: Examples, *, bf16: bool = False
) -> Path:
    if run.dense is None:
        return Path(run.model())
    out = CACHE / "dense" / f"task-{name}"
    if not out.exists():
        shown = _some(run.task, test, PROVED)
        source = {"train": rows(run.task, train), "test": rows(run.task, shown)}
        training = Training(
            0,
            run.dense,
            lr=run.dense_lr or run.lr,
            batch_size=run.dense_batch or run.batch,
            label_weight=1.0,
            bf16=bf16,
            dropout=False,
            seed=SEED,
        )
        data = Data(source, max_length=run.max_length)
        if run.start is None:
            start = run.model()
        else:
            first = RUNS[run.start]
            start = dense_model(run.start, first, *first.sets(), bf16=bf16)
        report = finetune(start, data, task=run.made(), out=out, training=training, resume=True)
        sets.say(f"{name}, dense, {len(shown)} examples: {report['metrics']}")
    return out


def _some(task: str, examples: Examples, count: int) -> Examples:
    """The first so many; of rankings whole queries."""
    if task == "rank":
        queries = dict.fromkeys(examples.texts)
        kept = set(list(queries)[: max(10, len(queries) // 5)])
        return examples.take(i for i, text in enumerate(examples.texts) if text in kept)
    order = np.random.default_rng(SEED).permutation(len(examples))
    return examples.take(np.sort(order[:count]))


def do(name: str, budgets: list[str] | None = None, *, bf16: bool = False) -> None:
    run = RUNS[name]
    left = [
        budget
        for budget in budgets or run.budgets
        if not (RESULTS / f"{name}-{budget}.json").exists()
    ]
    if not left:
        return
    train, test = run.sets()
    model = dense_model(name, run, train, test, bf16=bf16)
    learned_from = train if run.unseen is None else run.unseen()
    source = {"train": rows(run.task, learned_from), "test": rows(run.task, test)}
    for budget in left:
        out = CACHE / "tasks" / f"{name}-{budget}"
        training = Training(
            run.soft,
            run.hard,
            lr=run.lr,
            batch_size=run.batch,
            token_states=run.token_states,
            bf16=bf16,
            seed=SEED,
        )
        started = time.time()
        bundle = prune(
            model,
            Data(source, max_length=run.max_length),
            budget,
            task=run.made(),
            out=out,
            method=run.method,
            score=run.score,
            training=training,
            protect_first=False if budget in run.free else None,
            known=CACHE / "known" / (name + "-free" * (budget in run.free)),
            resume=True,
            overwrite=True,
        )
        report = bundle.report
        kept = ("task", "task_settings", "budget", "max_length", "examples", "agreement")
        found = {key: report[key] for key in (*kept, "dense", "pruned", "difference")}
        found |= {
            "name": name,
            "method": run.method.NAME,
            "method_settings": vars(run.method),
            "score": bundle.plan.score if bundle.plan else None,
            "seed": SEED,
            "steps": [[s.layer, str(s.keep)] for s in bundle.plan.steps] if bundle.plan else [],
            "query_protected": bundle.plan is not None and bundle.plan.protect_until is not None,
            "trained_on": len(train),
            "pruned_with": len(learned_from),
            "dense_epochs": run.dense,
            "training": training.settings(),
            "minutes": (time.time() - started) / 60,
            "environment": environment(),
        }
        _write(name, budget, found)
        metric = run.made().METRICS[0]
        gap = report["difference"][metric]
        sets.say(f"{name} {budget}: {metric} {gap['value']:+.4f} [{gap['low']:+.4f}, ...]")
        export(out, int8=True)
        shown = {"test": rows(run.task, test)}
        found["int8"] = evaluate(Runner(out, precision="int8"), shown)["metrics"]
        _write(name, budget, found)


def take_times() -> None:
    """Dense and pruned, fp32 and int8, in turns on texts of the reported set; nothing else may
    run."""
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text())
        if "latency" in found:
            continue
        run = RUNS[found["name"]]
        _, test = run.sets()
        chosen = test.take(np.random.default_rng(SEED).permutation(len(test))[:TIMED])
        texts: Any = chosen.texts
        if chosen.pairs is not None and run.task != "embed":
            texts = list(zip(chosen.texts, chosen.pairs, strict=True))
        bundle = CACHE / "tasks" / path.stem
        report = bench(bundle, texts=texts, threads=1, rounds=15, seconds=45, say=sets.say)
        path.write_text(json.dumps(found | {"latency": report}, indent=1) + "\n")


def _write(name: str, budget: str, found: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}-{budget}.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(RUNS))
    parser.add_argument("--budgets", nargs="+", help="only these: one process for each")
    parser.add_argument("--bf16", action="store_true", help="train with products in bfloat16")
    parser.add_argument("--time", action="store_true")
    args = parser.parse_args()
    for name in args.names:
        do(name, args.budgets, bf16=args.bf16)
    if args.time:
        take_times()


if __name__ == "__main__":
    main()
