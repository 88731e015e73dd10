"""Ray, when one machine is not enough: join a cluster, or start one here, quietly.

Ray is an extra. Nothing here imports it before it is asked for.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from toprune.errors import UserError

# Read by Ray when it is imported or started. What the user has set stays.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no report to Ray's makers, and no line about it
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what it is going to be, else a warning
    "RAY_worker_niceness": "0",  # the work comes first, as in one process; Ray's own default is 15
}
SILENT = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # its C++ parts write to stderr
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what happens to workers goes to stdout, of all places
}
TIMEOUT = 10  # seconds


@dataclass(frozen=True)
class Cluster:
    """Where bulk work is done. address: None for this machine. workers: None for as many as fit."""

    address: str | None = None
    workers: int | None = None
    ordered: bool = True  # else rows come as they are done
    debug: bool = False  # let Ray talk


def load_ray(module: str = "ray", *, debug: bool = False) -> Any:
    """Ray, or a module of it; one line for who has not installed it. debug: let it talk."""
    for name, value in (SETTINGS if debug else SETTINGS | SILENT).items():
        os.environ.setdefault(name, value)
    try:
        return import_module(module)
    except ImportError as problem:  # ray.data without pyarrow is one, too
        raise UserError("the engine ray is not installed; pip install 'toprune[ray]'") from problem


def cores() -> int:
    """Of this machine, as far as this process may use them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def cluster(
    address: str | None = None, cpus: int | None = None, *, debug: bool = False
) -> Iterator[Any]:
    """`with cluster(address, cpus) as ray: ...`

    address: of a running cluster (`host:6379`, or `auto` on one of its nodes); None starts Ray here
    with so many `cpus` (None: every core) and ends it afterwards. Ray that is in use already, in a
    notebook say, is used and left as it is. debug: let Ray talk.
    """
    ray = load_ray(debug=debug)
    if ray.is_initialized():
        yield ray
        return
    how: dict[str, Any] = {"address": "local", "num_cpus": cpus or cores()}
    if address is None:
        how["include_dashboard"] = False
    else:
        _check(address)
        how = {"address": address}
    try:
        if debug:
            ray.init(**how)
        else:
            with _no_stderr():
                ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **how)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as problem:
        raise _none(address or "this machine", problem) from problem
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Ray's C++ parts begin with a line that they were told to be silent. What goes wrong is
    raised."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _check(address: str) -> None:
    """Ray itself would wait for minutes where nobody answers."""
    if "://" in address:
        raise UserError(
            f"--address {address}: a Ray client cannot do this; run toprune on a node of the "
            "cluster with --address auto, or send it there with ray job submit"
        )
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(f"--address {address}: give host:port, as ray start shows it, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT).close()
    except (OSError, OverflowError) as problem:
        raise _none(address, problem) from problem


def _none(where: str, problem: Exception) -> UserError:
    why = next(iter(str(problem).splitlines()), type(problem).__name__).rstrip(". ")
    return UserError(
        f"no Ray cluster at {where} ({why}); check it with: ray status; where it asks for a token, "
        "set RAY_AUTH_MODE=token"
    )
