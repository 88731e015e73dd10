"""Memory that is freed stays with the process."""

import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from toprune.io.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = {kept} and keep_freed_memory()
np.ones(5_000_000)
before = faults()
for _ in range(20):
    np.ones(5_000_000)  # 40 MB
print(kept, faults() - before)
"""


def page_faults(*, kept: bool) -> int:
    code = FAULTS.format(kept=kept)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took, count = done.stdout.split()
    assert took == str(kept)
    return int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these settings")
def test_large_blocks_are_used_again() -> None:
    assert page_faults(kept=True) < 100
    assert page_faults(kept=False) > 200  # one for each page, or huge page, of each block
