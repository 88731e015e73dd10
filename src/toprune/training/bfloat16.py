"""Decides whether a run trains in bfloat16 where the caller leaves that open."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list

from toprune.io.progress import console
from toprune.training.distributed import ON_CPU, processes
from toprune.training.settings import Training

NARROW = 128  # width of the states below which conversions cost more than products save
SECONDS = 60  # for the trial: most of it is the import of torch
TRIAL = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
x, weight = torch.randn(64, 256), torch.randn(256, 256, requires_grad=True)

def products(enabled):
    with torch.autocast("cpu", torch.bfloat16, enabled):
        y = F.linear(x, weight)
    (gradient,) = torch.autograd.grad(y.float().square().mean(), weight)
    return y.detach().float(), gradient

for exact, rounded in zip(products(False), products(True)):
    assert (rounded - exact).norm() < 0.02 * exact.norm()
"""


def choose_bf16(training: Training, width: int, *, trains: bool = True) -> Training:
    """The training with bfloat16 on or off: where the caller leaves it open, it is on for models
    that are wide enough, on processors that really compute with it.

    Args:
        width: of the model's states.
        trains: whether the run has a stage that trains.
    """
    if training.bf16 is not None:
        return training
    bf16 = trains and width >= NARROW and is_supported()
    if bf16:
        console.print("training in bfloat16 (--no-bf16 to turn it off)")
    return replace(training, bf16=bf16)


@cache
def is_supported() -> bool:
    """Whether products in bfloat16 are fast and right here; the first process decides for all."""
    verdict = [processes().is_main_process and _is_supported()]
    return broadcast_object_list(verdict)[0]


def _is_supported() -> bool:
    """Some virtual machines claim AMX and die of it, so a child process tries."""
    if not ON_CPU:
        return torch.cuda.is_bf16_supported()
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return bool(re.search(r"\b(amx_bf16|avx512_bf16)\b", cpuinfo)) and runs_well(TRIAL)


def runs_well(code: str) -> bool:
    """Whether a Python process of its own comes to the end of this code, in time."""
    try:
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return child.returncode == 0
