"""Texts that nobody would send by mistake alone, and words that are code where a page forgets."""

from collections.abc import Callable

import numpy as np

LONGEST = 10_000_000  # characters of the longest text
MARKUP = (
    "<script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" \'',
    "</textarea></style><!--",
    "a\ud800b\udfff",
    "\u202egnp.exe\u202c\x00\x1b[31m",
)

Draw = Callable[[np.random.Generator], str]


def _words(rng: np.random.Generator) -> str:
    return " ".join(f"w{i}" for i in rng.integers(0, 60, rng.integers(1, 40)))


def _signs(first: int, last: int, most: int = 300) -> Draw:
    """Any characters from a range of code points."""
    return lambda rng: "".join(
        map(chr, rng.integers(first, last, rng.integers(1, most), endpoint=True))
    )


# kind -> how one is drawn
TEXTS: dict[str, Draw] = {
    "words": _words,
    "empty": lambda rng: "",
    "one token": lambda rng: "w1",
    "blanks": lambda rng: (
        rng.choice([" ", "\t", "\n", "\u3000", "\u200b"]) * int(rng.integers(1, 99))
    ),
    "control characters": _signs(0, 31),
    "NUL": lambda rng: "\0".join(["", _words(rng), ""]),
    "half surrogates": _signs(0xD800, 0xDFFF),
    "right to left": lambda rng: "\u202e" + _signs(0x5D0, 0x5EA)(rng) + _signs(0x620, 0x64A)(rng),
    "all unknown": _signs(0x4E00, 0x9FFF),
    "special tokens": lambda rng: " ".join(rng.choice(["[CLS]", "[SEP]", "[PAD]", "[UNK]"], 20)),
    "emoji": lambda rng: "\U0001f468\u200d\U0001f469\u200d\U0001f467" * int(rng.integers(1, 2000)),
    "combining marks": lambda rng: "w" + "\u0301\u0489" * int(rng.integers(1, 5000)),
    "any character": _signs(0, 0x10FFFF),
    "markup": lambda rng: MARKUP[int(rng.integers(len(MARKUP)))],
    "one word": lambda rng: "w" * int(rng.integers(1, 100_000)),
    "long": lambda rng: "w1 w2 " * int(rng.integers(1, 20_000)),
}


def hostile_texts(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """(kind, text): every kind in turn."""
    rng, kinds = np.random.default_rng(seed), list(TEXTS)
    return [(kinds[i % len(kinds)], TEXTS[kinds[i % len(kinds)]](rng)) for i in range(count)]
