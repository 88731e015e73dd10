"""Ray, when one machine is not enough: join a cluster, or start one here, quietly.

Ray is an extra. Nothing here imports it before it is asked for.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from toprune.errors import UserError

# Read by Ray when it is imported or started. What the user has set stays.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no report to Ray's makers, and no line about it
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what it is going to be, else a warning
}


def load_ray(module: str = "ray") -> Any:
    """Ray, or a module of it; one line for who has not installed it."""
    for name, value in QUIET.items():
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
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    how: dict[str, Any] = {"address": "local", "num_cpus": cpus or cores()}
    if address is None:
        how["include_dashboard"] = False
    elif "://" in address:
        raise UserError(
            f"--address {address}: a Ray client cannot do this; run toprune on a node of the "
            "cluster with --address auto, or send it there with ray job submit"
        )
    else:
        how = {"address": address}
    level = logging.INFO if debug else logging.CRITICAL
    try:
        ray.init(log_to_driver=debug, logging_level=level, **how)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as problem:
        where = f"at {address}" if address else "on this machine"
        why = next(iter(str(problem).splitlines()), type(problem).__name__).rstrip(". ")
        raise UserError(f"no Ray {where} ({why}); check it with: ray status") from problem
    try:
        yield ray
    finally:
        ray.shutdown()
