"""Counters, gauges and histograms in the text format that Prometheus reads."""

import threading
from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TEXTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
Labels = tuple[tuple[str, str], ...]


class Series:
    """One metric: a number for each set of labels."""

    def __init__(self, name: str, kind: str, help: str):
        self.name, self.kind, self.help = f"toprune_{name}", kind, help
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1.0, **labels: str) -> None:
        key = tuple(labels.items())
        self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, value: float, **labels: str) -> None:
        self._values[tuple(labels.items())] = value

    def lines(self) -> list[str]:
        return [f"{self.name}{_braces(key)} {value:g}" for key, value in self._values.items()]


class Histogram:
    """Counts observations up to each bound, for each set of labels."""

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: Sequence[float]):
        self.name, self.help, self._bounds = f"toprune_{name}", help, bounds
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        counts = self._counts.setdefault(key, [0] * (len(self._bounds) + 1))
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[key] = self._sums.get(key, 0.0) + value

    def lines(self) -> list[str]:
        lines: list[str] = []
        for key, counts in self._counts.items():
            total = 0
            for bound, count in zip(
                [*map("{:g}".format, self._bounds), "+Inf"], counts, strict=True
            ):
                total += count
                lines.append(f"{self.name}_bucket{_braces((*key, ('le', bound)))} {total}")
            lines.append(f"{self.name}_sum{_braces(key)} {self._sums[key]:g}")
            lines.append(f"{self.name}_count{_braces(key)} {total}")
        return lines


class Metrics:
    """What the server counts; any thread may call the methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = Series("requests_total", "counter", "Requests by path and status.")
        self._seconds = Histogram("request_seconds", "Time to answer a request.", SECONDS)
        self._texts = Series("texts_total", "counter", "Texts answered.")
        self._tokens = Series("tokens_total", "counter", "Tokens of the texts answered.")
        self._macs = Series(
            "executed_macs_total", "counter", "Multiply-accumulates of the batches."
        )
        self._fallbacks = Series(
            "fallbacks_total", "counter", "Texts that the dense model answered."
        )
        self._batch_texts = Histogram("batch_texts", "Texts of a batch.", TEXTS)
        self._batch_seconds = Histogram("batch_seconds", "Time that a batch runs.", SECONDS)
        self._queue_texts = Series("queue_texts", "gauge", "Texts that wait.")
        self._queue_batches = Series("queue_batches", "gauge", "Full batches that wait, by cost.")
        self._running = Series("running_batches", "gauge", "Batches that run.")
        self._cancelled = Series(
            "cancelled_texts_total", "counter", "Texts that did not run because nobody waited."
        )
        self._level = Series("shed_level", "gauge", "Number of the budget that runs; 0: loosest.")
        self._shed = Series("shed_texts_total", "counter", "Texts by the budget that they got.")
        self._reloads = Series("reloads_total", "counter", "Bundles replaced while serving.")
        self._all: list[Series | Histogram] = [
            one for one in vars(self).values() if isinstance(one, Series | Histogram)
        ]

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests.add(path=path, status=str(status))
            self._seconds.observe(seconds, path=path)

    def answered(self, model: str, texts: int, tokens: int, fallbacks: int) -> None:
        with self._lock:
            self._texts.add(texts, model=model)
            self._tokens.add(tokens, model=model)
            self._fallbacks.add(fallbacks, model=model)

    def batch(self, model: str, texts: int, macs: int, seconds: float) -> None:
        with self._lock:
            self._macs.add(macs, model=model)
            self._batch_texts.observe(texts, model=model)
            self._batch_seconds.observe(seconds, model=model)

    def shed(self, level: int, budget: str, texts: int) -> None:
        with self._lock:
            self._level.set(level)
            self._shed.add(texts, budget=budget)

    def queue(self, texts: int, batches: float, running: int) -> None:
        with self._lock:
            self._queue_texts.set(texts)
            self._queue_batches.set(batches)
            self._running.set(running)

    def cancelled(self, texts: int) -> None:
        with self._lock:
            self._cancelled.add(texts)

    def reload(self, model: str, result: str) -> None:
        """result: `ok`, or `refused` for a bundle that cannot be loaded."""
        with self._lock:
            self._reloads.add(model=model, result=result)

    def render(self) -> str:
        """All metrics as text, version 0.0.4 of the format."""
        with self._lock:
            lines: list[str] = []
            for one in self._all:
                lines += [f"# HELP {one.name} {one.help}", f"# TYPE {one.name} {one.kind}"]
                lines += one.lines()
        return "\n".join(lines) + "\n"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
