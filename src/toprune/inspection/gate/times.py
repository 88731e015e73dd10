"""How long the files of a bundle take, one text a call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from toprune.errors import UserError
from toprune.run.engines import Engine, Runtime, open_engine
from toprune.run.fallback import dense_precision, has_fallback
from toprune.run.manifest import Manifest, Precision
from toprune.run.reader import open_reader
from toprune.run.runner import Runner
from toprune.run.timing import middle, pinned
from toprune.tasks.fallback import DENSE

TIMED = 16  # texts, from the shortest to the longest


def time_files(
    folder: Path,
    manifest: Manifest,
    texts: Sequence[Any],
    files: Sequence[Precision],
    runtime: Runtime,
    threads: int,
    turns: Callable[[Mapping[str, Callable[[], object]]], dict[str, np.ndarray]],
) -> Iterator[tuple[str, dict[str, float], int]]:
    """Each file, the milliseconds of one text, and the number of rounds.

    A round gives the median over texts that are spread evenly from the shortest to the longest; the
    figure is the median over rounds. A text that falls back takes the time of both models.
    """
    if not texts:
        raise UserError("there are no texts to time; give at least one")
    reader = open_reader(folder, manifest)
    windows: dict[int, list[Any]] = {}
    for row in reader.encode(list(texts)):
        windows.setdefault(row.text, []).append(row)
    ordered = sorted(windows, key=lambda text: sum(map(len, windows[text])))
    picks = np.linspace(0, len(ordered) - 1, min(TIMED, len(ordered))).round().astype(int)
    feeds = [reader.batch(windows[ordered[i]]) for i in picks]
    picked = [texts[ordered[i]] for i in picks]
    fell = {file: _fallen(folder, file, runtime, picked, threads) for file in files}
    with pinned(threads):
        runs: dict[str, Callable[[], object]] = {}
        for file in files:
            graphs = _graphs(folder, manifest, file, runtime)
            engines = [open_engine(runtime, graph, threads, None) for graph in graphs]
            for i, feed in enumerate(feeds):
                used = engines if fell[file][i] else engines[:1]
                runs[f"{file} {i}"] = partial(_run_all, used, feed)
        times = turns(runs)
    for file in files:
        by_text = np.stack([times[f"{file} {i}"] for i in range(len(feeds))], 1)  # (rounds, texts)
        figure = middle(np.median(by_text, axis=1))
        yield file, {key: 1000 * value for key, value in figure.items()}, len(by_text)


def _fallen(
    folder: Path, file: Precision, runtime: Runtime, texts: Sequence[Any], threads: int
) -> list[bool]:
    """Which of the texts the dense model answers."""
    answers = Runner(folder, precision=file, runtime=runtime, threads=threads).predict(texts)
    return [one.get("fallback", False) for one in answers]


def _graphs(folder: Path, manifest: Manifest, file: Precision, runtime: Runtime) -> list[Path]:
    """The pruned graph, and the dense one behind it if there is a fallback."""
    graphs = [folder / manifest.graph(file, runtime)]
    if has_fallback(folder, manifest):
        dense = Manifest.load(folder / DENSE)
        graphs.append(folder / DENSE / dense.graph(dense_precision(dense, file, runtime), runtime))
    return graphs


def _run_all(engines: Sequence[Engine], feed: dict[str, np.ndarray]) -> None:
    for engine in engines:
        engine.run(feed)
