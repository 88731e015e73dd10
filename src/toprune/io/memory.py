"""How the process gets its memory from the system."""

import ctypes

# Parameters of glibc's mallopt(3), with values: no mmap for large blocks, never give memory back.
SETTINGS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}


def keep_freed_memory() -> bool:
    """Reuse freed memory instead of returning it to the system, for the rest of the process.

    glibc maps every large block anew and unmaps it when it is freed, so each tensor of a training
    step costs page faults: half the time at 512 tokens (benchmarks/finetune_cost.py). Other
    allocators (jemalloc, tcmalloc, other systems) are left alone.

    Returns:
        Whether the allocator took the settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all([mallopt(name, value) == 1 for name, value in SETTINGS.values()])
