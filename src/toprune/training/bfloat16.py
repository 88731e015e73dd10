"""Decides whether a run trains in bfloat16, or on a GPU without it in float16, where the caller
leaves that open."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list

from toprune.errors import UserError
from toprune.io.progress import console
from toprune.training.distributed import processes, run_device
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
    that are wide enough, on processors that really compute with it. A GPU of CUDA that does not
    gets float16.

    Args:
        width: of the model's states.
        trains: whether the run has a stage that trains.
    """
    on_cuda = run_device().type == "cuda"
    if training.fp16 and not on_cuda:
        raise UserError("float16 needs a GPU of CUDA; leave fp16 out, or choose bf16")
    if training.bf16 is not None or training.fp16:
        return replace(training, bf16=training.bf16 is True)
    wide = trains and width >= NARROW
    bf16 = wide and is_supported()
    training = replace(training, bf16=bf16, fp16=wide and on_cuda and not bf16)
    if training.precision is not None:
        console.print(f"training in {training.precision} (--no-bf16 to turn it off)")
    return training


def is_supported() -> bool:
    """Whether products in bfloat16 are fast and right here; the first process decides for all."""
    verdict = [processes().is_main_process and _is_supported(run_device().type)]
    return broadcast_object_list(verdict)[0]


@cache
def _is_supported(device: str) -> bool:
    """Some virtual machines claim AMX and die of it, so a child process tries."""
    if device != "cpu":  # Apple's GPUs compute with it, but nobody has tried that here
        return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
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
