"""How bundles are served; the command line reads these defaults without loading a runtime."""

import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from toprune.errors import UserError
from toprune.io.untrusted import read_text
from toprune.serve.requests import Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEY = "TOPRUNE_API_KEY"
QUEUE = 1  # batches for each worker: who comes last waits for about as many


@dataclass(frozen=True)
class Settings:
    """How bundles are served."""

    host: str = LOOPBACK[0]
    port: int = 8080
    precision: Literal["fp32", "int8"] = "fp32"
    workers: int | None = None  # batches at a time; None: cores / threads
    threads: int = 1  # of one batch
    max_queue: float | None = None  # full batches that may wait; None: QUEUE for each worker
    max_batch_cost: float | None = None  # billions of MACs; None: a full text, all tokens
    timeout: float = 30.0  # seconds
    shed: tuple[str, ...] = ()  # budgets, the loosest first; the queue decides
    explain: bool = False  # the page /ui shows which tokens leave; loads weights and torch
    limits: Limits = field(default_factory=Limits)
    key: str | None = None

    @property
    def worker_count(self) -> int:
        return self.workers or max(1, (os.cpu_count() or 1) // self.threads)

    @property
    def queue_batches(self) -> float:
        return self.max_queue or float(QUEUE * self.worker_count)


@dataclass(frozen=True)
class Scale:
    """Where replicas run, and how many."""

    address: str | None = None  # of a cluster; None: a Ray that starts and ends with the server
    replicas: int = 1  # at least
    max_replicas: int | None = None  # None: as many as at least
    debug: bool = False  # show Ray's messages


def check_installed() -> None:
    """Refuse to go on without the packages of the server."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise UserError("the server is an extra; pip install 'toprune[serve]'")


def read_key(path: Path | None) -> str | None:
    """The key from a file, or else from the environment; None: no key is needed."""
    if path is None and not os.environ.get(KEY):
        return None
    key = os.environ[KEY] if path is None else read_text(path, "name a file with the key")
    if len(key.split()) != 1 or not key.isascii():
        raise UserError(f"{path or KEY} must hold one key: ASCII characters without blanks")
    return key.strip()
