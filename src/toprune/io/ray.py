"""Join a Ray cluster, or start Ray on this machine, without its messages.

Ray is an extra: nothing here imports it before it is needed.
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

# Ray reads these when it is imported or started. Values that the user has set stay.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage report, and no message about it
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the future default; otherwise Ray warns
    "RAY_worker_niceness": "0",  # same priority as a single process; Ray's default is 15
}
SILENT = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # C++ parts of Ray write to stderr
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # otherwise messages about workers go to stdout
}
TIMEOUT = 10  # seconds


@dataclass(frozen=True)
class Cluster:
    """Where bulk work runs."""

    address: str | None = None  # None: this machine
    workers: int | None = None  # None: as many as fit
    ordered: bool = True  # False: rows come in the order in which they are done
    debug: bool = False  # show Ray's messages


def load_ray(module: str = "ray", *, debug: bool = False) -> Any:
    """Import Ray or one of its modules.

    Args:
        module: what to import.
        debug: show Ray's messages.
    """
    for name, value in (SETTINGS if debug else SETTINGS | SILENT).items():
        os.environ.setdefault(name, value)
    try:
        return import_module(module)
    except ImportError as problem:  # ray.data raises it without pyarrow, too
        extra = "ray-serve" if module == "ray.serve" else "ray"
        raise UserError(
            f"the engine ray is not installed; pip install 'toprune[{extra}]'"
        ) from problem


def cores() -> int:
    """Count the cores of this machine that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def cluster(
    address: str | None = None, cpus: int | None = None, *, debug: bool = False
) -> Iterator[Any]:
    """Yield Ray, connected: `with cluster(address, cpus) as ray: ...`

    If this process uses Ray already, for example in a notebook, it goes on with that and does not
    end it.

    Args:
        address: of a running cluster (`host:6379`, or `auto` on one of its nodes); None starts Ray
            here and ends it afterwards.
        cpus: number of cores of a Ray that starts here; None: every core.
        debug: show Ray's messages.
    """
    ray = load_ray(debug=debug)
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {"address": "local", "num_cpus": cpus or cores(), "include_dashboard": False}
    else:
        _check_address(address)
    try:
        if debug:
            ray.init(**options)
        else:
            with _no_stderr():
                ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as problem:
        raise _no_cluster(address or "this machine", problem) from problem
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Hide the line with which Ray's C++ parts confirm their log level. Errors are raised."""
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)


def _check_address(address: str) -> None:
    """Check that a cluster answers: Ray itself would wait for minutes."""
    if "://" in address:
        raise UserError(
            f"--address {address}: the Ray client is not supported; run toprune on a node of "
            "the cluster with --address auto, or submit it with ray job submit"
        )
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(f"--address {address}: give host:port, as ray start shows it, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT).close()
    except (OSError, OverflowError) as problem:
        raise _no_cluster(address, problem) from problem


def _no_cluster(address: str, problem: Exception) -> UserError:
    reason = next(iter(str(problem).splitlines()), type(problem).__name__).rstrip(". ")
    return UserError(
        f"no Ray cluster at {address} ({reason}); check it with: ray status; if it needs a token, "
        "set RAY_AUTH_MODE=token"
    )
