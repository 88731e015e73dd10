"""Pages in a real browser: the system's chromium through Playwright, never one that is downloaded.

A test module with `pytest_plugins = ["support.browser"]` gets `visit`. Without a browser its tests
are skipped; with TOPRUNE_BROWSER=required they fail.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest

SIZES = {"phone": (390, 844), "desktop": (1100, 800)}
NAMES = ("chromium", "chromium-browser", "google-chrome")  # the first is Debian's


@dataclass
class Visit:
    """An open page and what it did: anything in `errors` is a mistake, and so is any request but
    the first, for the file itself."""

    page: Any
    errors: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])

    def overflow(self) -> int:
        """Pixels that one would have to scroll sideways."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def open_details(self) -> None:
        self.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")

    def violations(self) -> list[str]:
        """What axe-core calls serious or critical, and where."""
        from axe_playwright_python.sync_playwright import Axe

        violations = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {node['html'][:120]}"
            for one in violations
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


Open = Callable[..., Visit]  # (file or address, size=, scheme=)


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests of a file; it ends with them, because its event loop would be in the way of
    others'."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _miss("playwright is not installed")
    path = executable()
    if path is None:
        _miss("there is no chromium; as root: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


def _miss(why: str) -> NoReturn:
    if os.environ.get("TOPRUNE_BROWSER") == "required":
        pytest.fail(f"pages must be tested here, but {why}")
    pytest.skip(f"pages are not tested: {why}")


@pytest.fixture(scope="module")
def visit(browser: Any) -> Open:
    """Opens a page that nothing was open in before."""
    contexts: dict[tuple[str, str], Any] = {}

    def open_it(
        target: Path | str, *, size: str = "desktop", scheme: Literal["light", "dark"] = "light"
    ) -> Visit:
        width, height = SIZES[size]
        context = contexts.get((size, scheme)) or browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        contexts[size, scheme] = context
        context.set_default_timeout(120_000)  # milliseconds: on a busy machine, too
        for old in context.pages:
            old.close()
        visited = Visit(context.new_page())
        visited.page.on("request", lambda request: visited.requests.append(request.url))
        visited.page.on("pageerror", lambda error: visited.errors.append(str(error)))
        visited.page.on("console", lambda line: _note(visited, line))
        visited.page.goto(target.as_uri() if isinstance(target, Path) else target)
        return visited

    return open_it


def _note(visit: Visit, line: Any) -> None:
    if line.type in ("error", "warning"):
        visit.errors.append(line.text)
