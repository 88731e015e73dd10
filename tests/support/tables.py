"""Tables on disk, written by other code than ours."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

Rows = Sequence[dict[str, Any]]


def write_rows(path: Path, rows: Rows) -> Path:
    """Write rows in the format of the path's ending, compressed if it ends in .gz."""
    content = _content(Path(path.name.removesuffix(".gz")).suffix, rows)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _content(ending: str, rows: Rows) -> bytes:
    if ending == ".json":
        return json.dumps(list(rows)).encode()
    if ending == ".jsonl":  # half a character can be written here, and in no table of pandas
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    frame = pd.DataFrame(list(rows))
    if ending == ".csv":
        return frame.to_csv(index=False).encode()
    if ending == ".parquet":
        return frame.to_parquet()
    assert ending == ".tsv"  # without quotes, as GLUE has it
    lines = [frame.columns, *frame.astype(str).itertuples(index=False)]
    return "".join("\t".join(line) + "\n" for line in lines).encode()
