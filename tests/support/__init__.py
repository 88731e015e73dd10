"""What several tests share. Settings of the process come first: transformers, datasets and torch
read them once, when they are imported."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual machines claim AMX for bfloat16 and crash when torch uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
