"""How fast the files are: BERT-base by its config, dense and pruned, fp32 and int8, taking turns.

    python benchmarks/latency.py                          # all four parts, about 12 minutes
    python benchmarks/latency.py --parts table --lengths 512 --threads 1

table   lengths 128 to 512, 1 and 2 threads, two schedules, two scores, batch 1
paper   the protocol of the ToP paper: inputs padded to the maximum, its FLOPs factors
ragged  eight texts of 128 to 40 tokens: one ragged batch against one text at a time
curve   dense at ever fewer tokens: what a layer costs here, and so the most a schedule can give

Random weights say nothing of accuracy, and time does not ask for it. All contenders of one length
run in the same rounds of one process. Ratios are against the fastest dense fp32 graph there is: our
own export, or the stock model fused by ONNX Runtime's optimizer for BERT.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from onnxruntime.transformers.optimizer import optimize_model
from transformers import BertConfig, BertForSequenceClassification

from toprune.compare.bench import Feeds, compare, milliseconds
from toprune.export.graph import OPSET, input_names, write_onnx
from toprune.export.quantize import quantize
from toprune.models.families import sizes_of
from toprune.plan.budget import Lengths
from toprune.plan.cost import Sizes, paper_macs, reduction
from toprune.plan.plan import DENOMINATOR, Plan, Score, Step
from toprune.report.environment import environment
from toprune.run.engines import OnnxRuntime
from toprune.run.timing import Seconds, interleave, pinned

Part = Literal["table", "paper", "ragged", "curve"]
Row = dict[str, Any]
Pair = tuple[str, str, float | None]  # who, over whom, FLOPs factor if that says something

RESULTS = Path(__file__).parent / "results"
FILES = {
    "table": "latency.json",
    "paper": "latency_paper.json",
    "ragged": "latency_ragged.json",
    "curve": "latency_curve.json",
}
CURVE = (2, 4, 8, 16, 32, 64, 128, 256, 384, 512)  # tokens
SEED = 0
# the share of tokens that enters each of the 12 layers
SCHEDULES = {
    "mild": "1 .83 .83 .83 .52 .52 .26 .26 .15 .135 .106 .106",
    "strong": "1 .40 .22 .12 .08 .06 .04 .03 .03 .03 .02 .02",
}
SCORES: tuple[Score, ...] = ("received", "probe")
DENSE = ("dense fp32", "ort dense fp32")  # whichever is faster is the base
ROUNDS = {128: 15, 256: 11}  # up to a length; OTHERS above
OTHERS = 9
TINY = BertConfig(  # to try the script, not to measure: twelve layers, as the schedules want
    hidden_size=32,
    num_hidden_layers=12,
    num_attention_heads=4,
    intermediate_size=64,
    vocab_size=200,
    initializer_range=0.5,
)


@dataclass(frozen=True)
class Anchor:
    """A row of the paper: its FLOPs factor is against inputs padded to the maximum."""

    task: str
    maximum: int
    mean: int  # tokens of its texts; 20News: what the paper's two factors imply
    flops: float
    latency: float


PAPER = (
    Anchor("MRPC", 128, 53, 7.47, 2.9),
    Anchor("RTE", 256, 64, 9.94, 5.8),
    Anchor("SQuAD", 384, 152, 4.12, 4.1),
    Anchor("20News", 512, 322, 8.26, 7.4),
)


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


# -- plans and files -------------------------------------------------------------------------------


def scheduled(name: str, score: Score, sizes: Sizes) -> Plan:
    """What enters layer i+1 is what the step at layer i leaves; equal shares need no step."""
    shares = [Fraction(share) for share in SCHEDULES[name].split()]
    steps = [Step(i, after) for i, (before, after) in enumerate(pairwise(shares)) if after < before]
    return _plan(sizes, score, tuple(steps))


def _plan(sizes: Sizes, score: Score, steps: tuple[Step, ...]) -> Plan:
    rng = np.random.default_rng(SEED)
    probe = tuple(rng.standard_normal(sizes.width)) if score == "probe" else None
    return Plan("bert", sizes.layers, sizes.width, score, steps, probe=probe)


def as_in_the_paper(sizes: Sizes, anchor: Anchor, length: int) -> Plan:
    """The same share of the survivors leaves in every layer, so that the paper's formula gives the
    paper's factor: dense at the maximum, all rows, against what is left of `length` tokens."""

    def planned(share: float) -> Plan:
        keeps = [max(1, round(DENOMINATOR * share**i)) for i in range(1, sizes.layers)]
        steps = tuple(Step(i, Fraction(keep, DENOMINATOR)) for i, keep in enumerate(keeps))
        return _plan(sizes, "received", steps)

    low, high = 0.0, 1.0
    for _ in range(30):
        share = (low + high) / 2
        factor = paper_factor(sizes, anchor, planned(share).lengths(length))
        low, high = (share, high) if factor >= anchor.flops else (low, share)
    return planned(low)


def paper_factor(sizes: Sizes, anchor: Anchor, entering: list[int]) -> float:
    dense = paper_macs(sizes, [anchor.maximum] * sizes.layers)
    return dense / paper_macs(sizes, entering)


class Graphs:
    """The model and its files, each written when it is first asked for, in a folder of its own."""

    def __init__(self, config: BertConfig, folder: Path):
        torch.manual_seed(SEED)
        self.model = BertForSequenceClassification(config).eval()
        self.sizes = sizes_of(self.model)
        self.folder = folder
        self.path = cache(self._write)

    def _write(self, name: str) -> Path:
        """`dense fp32`, `ort dense fp32`, `strong probe int8` and the like."""
        *what, precision = name.split()
        path = self.folder / name.replace(" ", "-") / "model.onnx"
        path.parent.mkdir()
        say(f"writing {name}")
        if precision == "int8":
            quantize(self.path(" ".join([*what, "fp32"])), path)
        elif what == ["ort", "dense"]:
            self._stock(path)
        elif what == ["dense"]:
            write_onnx(self.model, _plan(self.sizes, "received", ()), path)
        else:
            schedule, score = what[0], SCORES[SCORES.index(what[1])]  # pyright: ignore
            write_onnx(self.model, scheduled(schedule, score, self.sizes), path)
        return path

    def _stock(self, path: Path) -> None:
        """As a user gets it who does all that ONNX Runtime offers. It fuses attention only in
        what the tracing exporter makes of eager attention."""
        raw = path.with_name("raw.onnx")
        config = self.model.config
        names = input_names(config)
        self.model.set_attn_implementation("eager")
        axes = {name: {0: "batch", 1: "length"} for name in names}
        ids = torch.full((2, 8), config.vocab_size - 1)
        inputs = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "token_type_ids": torch.zeros_like(ids),
        }
        torch.onnx.export(
            self.model,
            tuple(inputs[name] for name in names),
            str(raw),
            kwargs={"return_dict": False},
            input_names=names,
            output_names=["logits"],
            dynamic_axes=axes | {"logits": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )
        fused = optimize_model(
            str(raw), "bert", num_heads=self.sizes.heads, hidden_size=self.sizes.width
        )
        count = fused.get_fused_operator_statistics()
        attentions = count["Attention"] + count["MultiHeadAttention"]
        if attentions != self.sizes.layers:
            say(f"ONNX Runtime fused the attention of {attentions} layers, not all: {count}")
        fused.save_model_to_file(str(path))
        raw.unlink()

    def texts(self, lengths: Iterable[int]) -> list[Feeds]:
        """Random texts, one a feed."""
        rng = np.random.default_rng(SEED)
        vocabulary = self.model.config.vocab_size
        return [batch([rng.integers(vocabulary // 2, vocabulary, n)]) for n in lengths]


def batch(texts: Sequence[np.ndarray]) -> Feeds:
    """Padded on the right to the longest."""
    ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
    mask = np.zeros_like(ids)
    for i, text in enumerate(texts):
        ids[i, : len(text)], mask[i, : len(text)] = text, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def run_all(engine: OnnxRuntime, feeds: list[Feeds]) -> None:
    for feed in feeds:
        engine.run(feed)


def check_same(one: np.ndarray, other: np.ndarray, what: str) -> None:
    """Who computes something else is no contender."""
    gap = float(np.abs(one - other).max())
    if not gap < 1e-3:
        raise SystemExit(f"{what} differ by {gap:.2g}; nothing was measured")


# -- what was found --------------------------------------------------------------------------------


def fastest(times: Mapping[str, Seconds], names: Iterable[str]) -> str:
    return min(names, key=lambda name: np.median(times[name]))


def row_of(times: dict[str, Seconds], base: str, pairs: Iterable[Pair], texts: int = 1) -> Row:
    ratios = [compare(times, who, over, flops=flops) for who, over, flops in pairs]
    ms = milliseconds(times, texts)
    return {"ratios": ratios, "base": base, "ms_per_text": ms, "rounds": len(times[base])}


def tell(row: Row, title: str) -> None:
    say(f"{title}, against {row['base']} of {row['ms_per_text'][row['base']]:.1f} ms a text:")
    for entry in row["ratios"]:
        over = "" if entry["over"] == row["base"] else f" over {entry['over']}"
        share = "" if entry["realised"] is None else f", {entry['realised']:.2f} of its FLOPs"
        say(
            f"  {entry['value']:6.2f}x [{entry['low']:.2f}, {entry['high']:.2f}] "
            f"{entry['who']}{over}{share}"
        )


# -- the four parts --------------------------------------------------------------------------------


def table(graphs: Graphs, args: argparse.Namespace) -> list[Row]:
    """Dense and pruned at several lengths, one text at a time."""
    plans = {
        f"{schedule} {score}": scheduled(schedule, score, graphs.sizes)
        for schedule, score in product(SCHEDULES, SCORES)
    }
    names = [*DENSE, *(f"{who} fp32" for who in plans)]
    names += [f"{who} int8" for who in ("dense", *plans)]
    paths = {name: graphs.path(name) for name in names}
    rows: list[Row] = []
    for threads in args.threads:
        for length, times in _at_lengths(graphs, paths, threads, args):
            base = fastest(times, DENSE)
            only = Lengths.of([length])
            flops = {w: reduction(graphs.sizes, p, only).unpadded for w, p in plans.items()}
            pairs: list[Pair] = [(f"{who} fp32", base, flops[who]) for who in plans]
            pairs += [(f"{who} int8", "dense int8", flops[who]) for who in plans]
            pairs += [(f"{who} int8", base, None) for who in plans]
            pairs += [(name, base, None) for name in (*DENSE, "dense int8") if name != base]
            slower = [name for name in DENSE if name != base]
            pairs += [(f"{who} fp32", name, None) for who, name in product(plans, slower)]
            rows.append({"length": length, "threads": threads} | row_of(times, base, pairs))
            tell(rows[-1], f"{length} tokens, {threads} thread(s)")
    return rows


def _at_lengths(
    graphs: Graphs, paths: Mapping[str, Path], threads: int, args: argparse.Namespace
) -> Iterator[tuple[int, dict[str, Seconds]]]:
    with pinned(threads):
        engines = {name: OnnxRuntime(path, threads=threads) for name, path in paths.items()}
        for length in args.lengths:
            feeds = graphs.texts([length])
            ours, stock = (engines[name].run(feeds[0]) for name in DENSE)
            check_same(ours, stock, "the dense graphs")
            runs = {name: partial(run_all, engine, feeds) for name, engine in engines.items()}
            yield length, interleave(runs, rounds=rounds_of(args, length), warmup=1, seed=SEED)


def paper(graphs: Graphs, args: argparse.Namespace) -> list[Row]:
    """The paper's FLOPs factors, dense padded to the maximum. What its pruned model was given is
    not said: we run a text of the maximum length, and one of the mean length without padding."""
    rows: list[Row] = []
    for anchor in PAPER:
        lengths = dict.fromkeys(DENSE, anchor.maximum)
        lengths |= {"pruned, padded": anchor.maximum, "pruned, mean length": anchor.mean}
        plans = {
            w: as_in_the_paper(graphs.sizes, anchor, lengths[w]) for w in lengths if w not in DENSE
        }
        feeds = {name: graphs.texts([length]) for name, length in lengths.items()}
        with TemporaryDirectory(dir=graphs.folder) as folder:
            paths = {name: graphs.path(name) for name in DENSE}
            for name, plan in plans.items():
                paths[name] = Path(folder, name, "model.onnx")
                paths[name].parent.mkdir()
                say(f"writing {anchor.task} {name}")
                write_onnx(graphs.model, plan, paths[name])
            with pinned(1):
                runs = {
                    w: partial(run_all, OnnxRuntime(paths[w], threads=1), feeds[w]) for w in feeds
                }
                rounds = rounds_of(args, anchor.maximum)
                times = interleave(runs, rounds=rounds, warmup=1, seed=SEED)
        kept = {who: plan.lengths(lengths[who]) for who, plan in plans.items()}
        base = fastest(times, DENSE)
        pairs = [(w, base, paper_factor(graphs.sizes, anchor, k)) for w, k in kept.items()]
        executed = {
            who: reduction(
                graphs.sizes, plan, Lengths.of([lengths[who]]), max_length=anchor.maximum
            ).padded
            for who, plan in plans.items()
        }  # more than by the paper's formula: we drop before the feed-forward part
        about = {"task": anchor.task, "length": anchor.maximum, "mean": anchor.mean, "threads": 1}
        about |= {"paper": {"flops": anchor.flops, "latency": anchor.latency}, "kept": kept}
        about |= {"executed": executed}
        rows.append(about | row_of(times, base, pairs))
        tell(rows[-1], f"{anchor.task}, the paper has {anchor.latency}x at {anchor.flops}x FLOPs")
    return rows


def ragged(graphs: Graphs, args: argparse.Namespace) -> list[Row]:
    """Eight texts of different lengths: one at a time, padded, ragged. The strong schedule."""
    lengths: list[int] = np.linspace(128, 40, 8).round().astype(int).tolist()
    single = graphs.texts(lengths)
    together = batch([feed["input_ids"][0] for feed in single])
    # our graphs skip padding; told that it is alive they pay for it, as stock ones do
    padded = together | {"attention_mask": np.ones_like(together["attention_mask"])}
    ways = {"row by row": single, "ragged": [together], "padded": [padded]}
    pruned = [f"strong {score}" for score in SCORES]
    names = [f"{who} {precision}" for who in ("dense", *pruned) for precision in ("fp32", "int8")]
    paths = {name: graphs.path(name) for name in (DENSE[1], *names)}
    with pinned(1):
        engines = {name: OnnxRuntime(path, threads=1) for name, path in paths.items()}
        for name in names:
            if name.endswith("fp32"):
                alone = np.concatenate([engines[name].run(feed) for feed in single])
                check_same(alone, engines[name].run(together), f"{name} alone and in a batch")
        runs = {
            f"{name}, {way}": partial(run_all, engines[name], feeds)
            for name, (way, feeds) in product(names, ways.items())
            if name.startswith("dense") or way != "padded"
        }
        rivals = [f"{name}, row by row" for name in DENSE]
        runs[rivals[1]] = partial(run_all, engines[DENSE[1]], single)
        times = interleave(runs, rounds=args.rounds or 7, warmup=1, seed=SEED)
    base = fastest(times, rivals)
    pairs: list[Pair] = []
    for who, precision in product(SCORES, ("fp32", "int8")):
        plan = scheduled("strong", who, graphs.sizes)
        done = reduction(graphs.sizes, plan, Lengths.of(lengths))
        me, like = (
            f"strong {who} {precision}",
            base if precision == "fp32" else "dense int8, row by row",
        )
        pairs += [(f"{me}, ragged", like, done.unpadded)]
        pairs += [(f"{me}, ragged", f"dense {precision}, padded", done.padded)]
        pairs += [(f"{me}, ragged", f"{me}, row by row", None)]
    met = {(who, over) for who, over, _ in pairs}
    pairs += [(who, base, None) for who in runs if who != base and (who, base) not in met]
    slower = [name for name in rivals if name != base]
    pairs += [(f"{who} fp32, ragged", name, None) for who, name in product(pruned, slower)]
    row = {"lengths": lengths, "schedule": "strong", "threads": 1}
    row |= row_of(times, base, pairs, texts=len(lengths))
    tell(row, "eight texts of 128 to 40 tokens, 1 thread")
    return [row]


def curve(graphs: Graphs, args: argparse.Namespace) -> list[Row]:
    """A layer of few tokens still reads all its weights, so FLOPs promise more than a machine can
    keep. What dense costs at few tokens says how much: a third of a layer's products are for the
    tokens that enter it, two thirds for those that its step leaves."""
    rows: list[Row] = []
    for precision in ("fp32", "int8"):
        with pinned(1):
            engine = OnnxRuntime(graphs.path(f"dense {precision}"), threads=1)
            runs = {str(n): partial(run_all, engine, graphs.texts([n])) for n in CURVE}
            times = interleave(runs, rounds=args.rounds or 9, warmup=1, seed=SEED)
        ms = milliseconds(times, 1)
        costs = [ms[str(n)] for n in CURVE]
        most: dict[str, dict[str, float]] = {}
        lengths: list[int] = args.lengths
        for schedule, length in product(SCHEDULES, lengths):
            entering = scheduled(schedule, "received", graphs.sizes).lengths(length)
            at = partial(np.interp, xp=CURVE, fp=costs)
            cost = sum(at(n) + 2 * at(k) for n, k in pairwise([*entering, 1]))
            dense = sum(at(n) + 2 * at(k) for n, k in pairwise([length] * len(entering) + [1]))
            most.setdefault(schedule, {})[str(length)] = float(dense / cost)
        rows.append({"precision": precision, "threads": 1, "ms": ms, "most": most})
        say(f"{precision}: " + ", ".join(f"{n} tokens {ms[str(n)]:.1f} ms" for n in CURVE))
        say(f"the most that schedules can give here: {most}")
    return rows


def rounds_of(args: argparse.Namespace, length: int) -> int:
    """Fewer for long texts, which are slow and steady."""
    return args.rounds or next((many for n, many in ROUNDS.items() if length <= n), OTHERS)


PARTS: dict[Part, Callable[[Graphs, argparse.Namespace], list[Row]]] = {
    "table": table,
    "paper": paper,
    "ragged": ragged,
    "curve": curve,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 256, 384, 512])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, help="of every length; else more for short ones")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON files go")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # exporting the stock model gives dozens
    config = TINY if args.tiny else BertConfig()
    args.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="toprune-latency-") as folder:
        graphs = Graphs(config, Path(folder))
        for part in args.parts:
            rows = PARTS[part](graphs, args)
            made = {"model": _described(config), "seed": SEED, "environment": environment()}
            text = json.dumps({"rows": rows} | made, indent=1)
            (args.out / FILES[part]).write_text(text + "\n", encoding="utf-8")
            say(f"{args.out / FILES[part]} written")


def _described(config: BertConfig) -> str:
    layers, width = config.num_hidden_layers, config.hidden_size
    return f"BERT of {layers} layers, {width} wide, random weights, 2 labels"


if __name__ == "__main__":
    main()
