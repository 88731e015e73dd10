"""Every family at base size, dense and pruned by the strong schedule, taking turns on one thread.

    python benchmarks/families.py                 # all that have no row yet, a minute each
    python benchmarks/families.py modernbert vit --again

Random weights say nothing of accuracy, and time does not ask for it. 512 tokens, or an image of 384
x 384 pixels (577 patches and tokens); what is compared with is our own dense export of the family.
"""

import argparse
import json
import warnings
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)

from latency import RESULTS, SCHEDULES, SEED, Row, row_of, run_all, tell
from toprune.compare.bench import Feeds
from toprune.export.graph import input_names, write_onnx
from toprune.export.quantize import quantize
from toprune.models.families import family_of, max_positions
from toprune.plan.budget import Lengths
from toprune.plan.cost import Sizes, reduction
from toprune.plan.plan import Plan, Step
from toprune.report.environment import environment
from toprune.run.engines import OnnxRuntime
from toprune.run.timing import interleave, pinned
from toprune.training.job import dense_plan

TOKENS = 512
FILE = "families.json"
ROUNDS = 9
BASE: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 60_000,  # of all alike: a table costs time to write, and none to look up
}
TINY = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
POSITIONS = {"max_position_embeddings": 514}
V3 = {  # what DeBERTa-v3-base says of itself
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
OWN: dict[str, dict[str, Any]] = {  # where a base model is not BASE
    "bert": {},
    "roberta": POSITIONS,
    "xlm-roberta": POSITIONS,
    "camembert": POSITIONS,
    "electra": {"embedding_size": 768},
    "distilbert": {"num_hidden_layers": 6},
    "albert": {},
    "mpnet": POSITIONS,
    "deberta-v2": V3,
    "modernbert": {"num_hidden_layers": 22, "intermediate_size": 1152},
    "eurobert": {"classifier_pooling": "bos", "pad_token_id": 0},
    "gte": {},
    "nomic_bert": {},
    "jina_embeddings_v3": {},
    "vit": {"image_size": 384},
}
# DistilBERT's words for the same
SPELLED = {"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "hidden_size": "dim"}
SPELLED |= {"intermediate_size": "hidden_dim"}


def built(name: str, tiny: bool) -> Any:
    settings = BASE | OWN[name] | (TINY if tiny else {})
    if name == "distilbert":
        settings = {SPELLED.get(key, key): value for key, value in settings.items()}
    if tiny and name == "vit":
        settings |= {"image_size": 64}
    config = AutoConfig.for_model(name, **settings)
    torch.manual_seed(SEED)
    kind = AutoModelForImageClassification if name == "vit" else AutoModelForSequenceClassification
    return kind.from_config(config).eval()


def strong(name: str, sizes: Sizes) -> Plan:
    """The strong schedule by relative depth: architectures have 6, 12 or 22 layers."""
    twelve = [Fraction(share) for share in SCHEDULES["strong"].split()]
    shares = [twelve[i * len(twelve) // sizes.layers] for i in range(sizes.layers)]
    steps = [Step(i, after) for i, (before, after) in enumerate(pairwise(shares)) if after < before]
    probe = np.random.default_rng(SEED).standard_normal(sizes.width)
    return Plan(name, sizes.layers, sizes.width, "probe", tuple(steps), probe=tuple(probe))


def drawn(model: Any, tokens: int) -> Feeds:
    """One random input of that many tokens, or one image."""
    config, rng = model.config, np.random.default_rng(SEED)
    if family_of(model).images:
        shape = (1, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": rng.standard_normal(shape, np.float32)}
    ids = rng.integers(config.vocab_size // 2, config.vocab_size, (1, tokens))
    inputs = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    return {name: inputs[name] for name in input_names(config)}


def measure(name: str, folder: Path, *, tiny: bool, rounds: int) -> Row:
    model = built(name, tiny)
    family = family_of(model)
    sizes = family.sizes(model.config)
    tokens = max_positions(model.config) if family.images else TOKENS
    plan = strong(name, sizes)
    paths: dict[str, Path] = {}
    for who, used_plan in (("dense", dense_plan(model)), ("strong", plan)):
        fp32, int8 = (folder / f"{who}-{kind}.onnx" for kind in ("fp32", "int8"))
        write_onnx(model, used_plan, fp32)
        quantize(fp32, int8)
        paths |= {f"{who} fp32": fp32, f"{who} int8": int8}
    feeds = [drawn(model, tokens)]
    del model
    with pinned(1):
        runs = {
            who: partial(run_all, OnnxRuntime(path, threads=1), feeds)
            for who, path in paths.items()
        }
        times = interleave(runs, rounds=rounds, warmup=1, seed=SEED)
    flops = reduction(sizes, plan, Lengths.of([tokens])).unpadded
    base = "dense fp32"
    pairs = [("strong fp32", base, flops), ("strong int8", "dense int8", flops)]
    others = [("strong int8", base, None), ("dense int8", base, None)]
    row = {"family": name, "layers": sizes.layers, "tokens": tokens, "threads": 1}
    row |= row_of(times, base, [*pairs, *others])
    tell(row, f"{name}, {tokens} tokens")
    return row | {"environment": environment()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*OWN, []], help="families; all if none")
    parser.add_argument("--again", action="store_true", help="also those that have a row")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    path = args.out / FILE
    rows: dict[str, Row] = {}
    if path.exists():
        rows = {row["family"]: row for row in json.loads(path.read_text())["rows"]}
    for name in args.names or OWN:
        if name in rows and not args.again:
            continue
        with TemporaryDirectory(prefix="toprune-families-") as folder:
            rows[name] = measure(name, Path(folder), tiny=args.tiny, rounds=args.rounds)
        ordered = [rows[known] for known in OWN if known in rows]
        text = {"rows": ordered, "seed": SEED, "schedule": SCHEDULES["strong"]}
        path.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
