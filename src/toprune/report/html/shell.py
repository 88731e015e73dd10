"""The frame of every page: one file without requests, for any screen, light or dark.

The content security policy forbids all requests and names the page's style and script by their
hashes, so that nothing that slips into the body can run. So `style="..."` and `onclick="..."`
attributes do nothing: give elements classes, and let the script set `element.style`.
"""

import base64
import hashlib
import html
import re
from functools import cache
from importlib.resources import files

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_ENDS = re.compile(
    r"</(script|style)|<!--", re.IGNORECASE
)  # what ends an element, or hides its end


@cache
def read_asset(package: str, name: str) -> str:
    """The text of a style or script file that lies in a package of toprune."""
    return files(package).joinpath(name).read_text("utf-8")


def escape(text: str) -> str:
    """Escape text for element content and quoted attributes. Characters that no page may hold
    (control characters, unpaired surrogates) become visible signs."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return html.escape(_UNSAFE.sub(_sign, plain), quote=True)


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def page(title: str, body: str, *, script: str = "", style: str = "", form: bool = False) -> str:
    """A complete HTML document.

    Args:
        title: plain text.
        body: HTML, in which text from elsewhere is escaped.
        script, style: ours, without data of users, which belongs into the body.
        form: may the page send a form to where it came from?
    """
    style = read_asset(__package__, "page.css") + style
    for code in (script, style):
        if _ENDS.search(code):
            raise ValueError("a script or style that would end its own element")
    rules = ["default-src 'none'", "base-uri 'none'", "img-src data:"]
    rules.append("form-action 'self'" if form else "form-action 'none'")
    rules.append(f"style-src {_hash(style)}")
    rules += [f"script-src {_hash(script)}"] if script else []
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(rules)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            body,
            "</main>",
            *([f"<script>{script}</script>"] if script else []),
            "</body>",
            "</html>",
            "",
        ]
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
