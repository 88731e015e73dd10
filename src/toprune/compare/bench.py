"""Time dense against pruned on this machine: how many times faster is it, and is it worth it?

The dense partner is exported in the same way as the pruned file, so that only the plan differs, and
the weights that `joint` or `cofi` removed. All of them run in one process and take turns
(`timing.interleave`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from toprune.compare.graphs import (
    GIVEN,
    UNLIKE,
    Feeds,
    Given,
    Runs,
    exported_graphs,
    missing,
    open_graphs,
    write_graphs,
)
from toprune.compare.verdict import ALIKE, verdict
from toprune.data.images import Images
from toprune.errors import UserError
from toprune.plan.budget import Budget, Lengths
from toprune.plan.cost import Reduction, measured_reduction, reduction
from toprune.plan.dial import parse_budgets
from toprune.plan.plan import Plan, held_tokens
from toprune.report.environment import environment
from toprune.run.dial import keep_input
from toprune.run.engines import OnnxRuntime, providers_on
from toprune.run.reader import Reader, open_reader
from toprune.run.runner import Input
from toprune.run.timing import Seconds, interleave, pinned, ratio
from toprune.tasks.fallback import Fallback
from toprune.tasks.tokenize import Row, Texts

if TYPE_CHECKING:
    from toprune.bundle.bundle import Bundle

LENGTHS = (128, 256, 512)
TIMED = 16  # texts, from the shortest to the longest; a round runs all of them
QUERY = 12  # tokens of the first text in a random pair, if the plan protects first texts
PADDED = "dense padded"  # fp32, padded to the maximum


@dataclass(frozen=True)
class Work:
    """What every model does in a round: some texts, with `batch` of them per call."""

    name: str
    lengths: Lengths
    batch: int
    feeds: list[Feeds]
    keep: Feeds = field(default_factory=Feeds)  # turns the pruned graphs of a dial

    @classmethod
    def of(
        cls, name: str, rows: Sequence[Any], batch: int = 1, *, reader: Reader, plan: Plan
    ) -> "Work":
        rows = sorted(rows, key=len)  # similar lengths together, as in the Runner
        starts = range(0, len(rows), batch)
        feeds = [reader.batch(rows[start : start + batch]) for start in starts]
        held = [_held(row, plan) for row in rows]
        return cls(name, Lengths.of(map(len, rows), held), batch, feeds)


def _held(row: Any, plan: Plan) -> int:
    """The number of tokens in a row that the plan must keep; none in an image."""
    if not isinstance(row, Row):
        return 0
    return held_tokens(row.ids.tolist(), plan.protect, plan.protect_until)


Make = Callable[..., Work]  # (name, rows[, batch])


def bench(
    bundle_dir: str | Path,
    *,
    texts: Iterable[Input] | None = None,
    lengths: Sequence[int] | None = None,
    threads: int = 1,
    rounds: int = 20,
    seconds: float | None = 30.0,
    int8: bool = True,
    batch: int = 1,
    budget: str | Budget | None = None,
    seed: int = 0,
    device: str = "cpu",
    dense_onnx: str | Path | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Time an exported bundle and its dense partner on texts, or on random tokens.

    There is no progress bar, because its thread would run on the cores that are timed.

    Args:
        texts: to time, one per call; None for random tokens.
        lengths: of random texts, in tokens.
        threads: of each model.
        rounds: every model runs once in each.
        seconds: limit for each row of the report.
        int8: also time the int8 files; those of OpenVINO, too, if the bundle was exported with one.
        batch: above one, also time calls with this many texts.
        budget: of a bundle with a dial, or several (`2x,5x`): each has its rows; None: the default.
        seed: of random tokens and of the order in rounds.
        device: "cpu", or "cuda" with onnxruntime-gpu, where int8 is not timed: it is for CPUs.
        dense_onnx: an ONNX file of the dense model that another exporter wrote, to be timed, too.
        say: gets a line for each row.

    Returns:
        The verdict, the rows with their ratios, and the environment.
    """
    if min(threads, rounds, batch) < 1:
        raise UserError("threads, rounds and batch must be 1 or more")
    if dense_onnx is not None and not Path(dense_onnx).is_file():
        raise UserError(f"--dense-onnx {dense_onnx}: there is no such file")
    providers, int8 = providers_on(device), int8 and device == "cpu"
    folder = Path(bundle_dir)
    manifest, exported = exported_graphs(folder, int8=int8, openvino=int8 and budget is None)
    bundle = _load(folder)
    reader = open_reader(folder, manifest)
    if lengths and manifest.images:
        raise UserError("all images have the same length; leave --lengths out")
    if lengths and not all(1 <= n <= manifest.max_length for n in lengths):
        requested = ", ".join(map(str, lengths))
        raise UserError(
            f"lengths must be 1 to {manifest.max_length}, the limit of the bundle, not {requested}"
        )
    assert bundle.plan is not None
    make = partial(Work.of, reader=reader, plan=bundle.plan)
    if texts is None:
        draw = _draw(bundle, reader, seed=seed)
        fitting = [manifest.max_length] if manifest.images else _fitting(manifest.max_length)
        works = _random(make, draw, lengths or fitting, batch)
    elif lengths is None:
        works = _from_texts(make, reader, texts, batch)
    else:
        raise UserError("give texts or lengths, not both")
    turned = _turned(works, bundle, budget)
    flops = [_reduction(at, work, manifest.max_length) for work, at in turned]
    works = [work for work, _ in turned]
    with TemporaryDirectory(prefix="toprune-bench-") as temporary:
        say("writing the dense partner")
        feeds = [feed for work in works for feed in work.feeds]
        paths = write_graphs(bundle, Path(temporary), exported, feeds, int8=int8)
        del bundle, turned  # frees the torch model, to make room for four sessions
        turns = partial(interleave, rounds=rounds, seconds=seconds, seed=seed)
        with pinned(threads):
            load = partial(OnnxRuntime, threads=threads, providers=providers)
            engines = open_graphs(paths, load, threads)
            if dense_onnx is not None:
                given = Given(Path(dense_onnx), load, manifest.build_task().OUTPUTS)
                given.check(engines["dense fp32"], works[0].feeds[0])
                engines[GIVEN] = given
            times = _time(engines, works, manifest.max_length, turns, say)
            engines.clear()  # their files are deleted next
    rows = [_row(*parts) for parts in zip(works, times, flops, strict=True)]
    report: dict[str, Any] = {"rows": rows, "threads": threads, "max_length": manifest.max_length}
    report |= {"seed": seed, "environment": environment()}
    if budget is not None:
        report["budget"] = ",".join(one.asked for one in parse_budgets(budget))
    report |= {} if device == "cpu" else {"device": device}
    report |= {} if dense_onnx is None else {"dense_onnx": str(dense_onnx)}
    fallback = Fallback.load(folder)
    report |= {} if fallback is None else {"fallback": fallback.share}
    return {"verdict": verdict(report)} | report


def compare(
    times: Mapping[str, Seconds], who: str, over: str, *, flops: float | None = None
) -> dict[str, Any]:
    """How many times faster `who` is than `over`, and what share of the FLOPs factor that is.

    Args:
        flops: times fewer FLOPs of `who`; None if they do not differ in FLOPs.
    """
    faster = ratio(times[over], times[who])
    realised = None if flops is None else faster["value"] / flops
    return {"who": who, "over": over} | faster | {"flops": flops, "realised": realised}


def milliseconds(times: Mapping[str, Seconds], texts: int) -> dict[str, float]:
    """Median times per text, in rounds of so many texts."""
    return {name: float(1000 * np.median(seconds) / texts) for name, seconds in times.items()}


def _load(folder: Path) -> "Bundle":
    try:
        from toprune.bundle.bundle import Bundle
        from toprune.models.shape import shape_of

        bundle = Bundle.load(folder)
    except ModuleNotFoundError as problem:
        raise missing(problem) from problem
    slim = shape_of(bundle.model.config) is not None
    if bundle.plan is None or not (bundle.plan.steps or slim):
        raise UserError(f"{folder} drops no tokens, so there is nothing to compare; prune it first")
    return bundle


def _fitting(max_length: int) -> list[int]:
    return [n for n in LENGTHS if n <= max_length] or [max_length]


def _draw(bundle: "Bundle", reader: Texts | Images, seed: int) -> Callable[[int], Any]:
    """A function that draws rows: n ordinary tokens after the usual first one, because special and
    protected tokens might be treated differently. Images are noise."""
    rng = np.random.default_rng(seed)
    if isinstance(reader, Images):
        shape = (reader.height, reader.width, 3)
        return lambda _: reader.encode([rng.integers(0, 256, shape, np.uint8)])[0]
    assert bundle.plan is not None
    known = set(bundle.tokenizer.get_vocab().values())
    ordinary = np.array(sorted(known - {*bundle.tokenizer.all_special_ids, *bundle.plan.protect}))
    until = bundle.plan.protect_until

    def row(n: int) -> Row:
        ids = rng.choice(ordinary, n).astype(np.int64)
        ids[0] = reader.first
        if until is not None and n > QUERY:  # else all of it would be protected
            ids[QUERY] = until
        return Row(ids, np.zeros_like(ids))

    return row


def _random(
    make: Make, draw: Callable[[int], Any], lengths: Sequence[int], batch: int
) -> list[Work]:
    works: list[Work] = []
    for n in lengths:
        works.append(make(f"length {n}", [draw(n)]))
        if batch > 1:
            rows = [draw(n) for _ in range(batch)]
            works.append(make(f"{batch} x length {n}", rows, batch))
    return works


def _from_texts(
    make: Make, reader: Texts | Images, texts: Iterable[Input], batch: int
) -> list[Work]:
    """A sample of the user's texts, evenly spread from the shortest to the longest."""
    if isinstance(texts, str):  # it would be timed letter by letter
        raise UserError('texts must be a list, like ["a text"], not one text')
    rows = sorted(reader.encode(list(texts)), key=len)
    if not rows:
        raise UserError("there are no texts to time; give at least one")
    count = min(len(rows), max(TIMED, batch))
    if batch > 1:
        if len(rows) < batch:
            raise UserError(f"{len(rows)} texts do not fill a batch of {batch}; give more texts")
        count -= count % batch  # so that every batch is full
    picks = np.linspace(0, len(rows) - 1, count).round().astype(int)
    chosen = [rows[i] for i in picks]
    noun = "image" if isinstance(reader, Images) else "text"
    works = [make(f"{count} {noun}{'s' if count > 1 else ''}", chosen)]
    if batch > 1:
        works.append(make(f"{count} {noun}s, {batch} a call", chosen, batch))
    return works


def _turned(
    works: Sequence[Work], bundle: "Bundle", budget: str | Budget | None
) -> list[tuple[Work, "Bundle"]]:
    """The work at each budget, with the bundle at that budget."""
    if bundle.dial is None or budget is None:
        return [(work, bundle.at(budget)) for work in works]
    found: list[tuple[Work, Bundle]] = []
    budgets = parse_budgets(budget)
    for work, one in product(works, budgets):
        at = bundle.at(one)
        assert at.plan is not None
        name = f"{work.name} at {one.asked}" if len(budgets) > 1 else work.name
        found.append((replace(work, name=name, keep=keep_input(at.plan)), at))
    return found


def _time(
    engines: Mapping[str, Runs],
    works: Sequence[Work],
    max_length: int,
    turns: Callable[[Mapping[str, Callable[[], object]]], dict[str, Seconds]],
    say: Callable[[str], object],
) -> list[dict[str, Seconds]]:
    times: list[dict[str, Seconds]] = []
    for work in works:
        say(f"timing {work.name}")
        turned = [feed | work.keep for feed in work.feeds]
        runs = {
            name: partial(_run, engine, turned if name.startswith("pruned") else work.feeds)
            for name, engine in engines.items()
        }
        if work.lengths.counts[0][0] < max_length:
            padded = [_padded(feed, max_length) for feed in work.feeds]
            runs[PADDED] = partial(_run, engines["dense fp32"], padded)
        times.append(turns(runs))
    return times


def _run(engine: Runs, feeds: list[Feeds]) -> None:
    for feed in feeds:
        engine.run(feed)


def _padded(feed: Feeds, length: int) -> Feeds:
    """Pad a batch to `length`, as a stock graph computes it. Our graphs skip padding, so here it
    counts as live tokens; its ids make no difference to the time."""
    wide = {
        name: np.pad(rows, ((0, 0), (0, length - rows.shape[1]))) for name, rows in feed.items()
    }
    return wide | {"attention_mask": np.ones_like(wide["attention_mask"])}


def _reduction(bundle: "Bundle", work: Work, max_length: int) -> Reduction:
    import torch

    from toprune.models.families import family_of, sizes_of
    from toprune.models.shape import without_shape
    from toprune.training.evaluation import entering

    model, plan = bundle.model, bundle.plan
    assert plan is not None
    whole = family_of(model).sizes(without_shape(model.config))
    if not plan.adaptive:
        return reduction(sizes_of(model), plan, work.lengths, max_length=max_length, before=whole)
    batches = ({name: torch.from_numpy(x) for name, x in feed.items()} for feed in work.feeds)
    counts = entering(model, plan, ((None, batch) for batch in batches))
    return measured_reduction(sizes_of(model), plan, counts, max_length=max_length, before=whole)


def _row(work: Work, times: dict[str, Seconds], flops: Reduction) -> dict[str, Any]:
    pairs: list[tuple[str, str, float | None]] = [
        (*pair, flops.unpadded) for pair in ALIKE if pair[0] in times
    ]
    pairs += [(who, over, None) for who, over in UNLIKE if who in times and over in times]
    if PADDED in times:
        pairs.append(("pruned fp32", PADDED, flops.padded))
        pairs.append(("dense fp32", PADDED, None))  # the gain from skipping the padding alone
    return {
        "name": work.name,
        "texts": work.lengths.total,
        "tokens": work.lengths.mean,
        "batch": work.batch,
        "ratios": [compare(times, who, over, flops=factor) for who, over, factor in pairs],
        "flops": {"unpadded": flops.unpadded, "padded": flops.padded},
        "ms_per_text": milliseconds(times, work.lengths.total),
        "rounds": len(times["dense fp32"]),
    }
