"""docs/images: a page at phone and desktop size, light and dark. By hand, after a page has changed:

cd tests && python -m support.pictures report toprune-demo/pruned/report.html
"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from support.browser import SIZES, executable

PLACE = Path(__file__).parents[2] / "docs" / "images"
COLOURS = 128  # a flat page needs no more, and the file is a third as large


def main(name: str, page: Path) -> None:
    PLACE.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        tab = browser.new_page()
        for size, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                tab.set_viewport_size({"width": width, "height": height})
                tab.emulate_media(color_scheme=scheme)
                tab.goto(page.resolve().as_uri(), timeout=120_000)
                image = Image.open(io.BytesIO(tab.screenshot(timeout=120_000))).convert("RGB")
                path = PLACE / f"{name}-{size}-{scheme}.png"
                image.quantize(COLOURS).save(path, optimize=True)
                print(path, path.stat().st_size)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
