"""What every page has around its body: one file that asks for nothing, on any screen, in any light.

The content policy forbids all requests and names the page's own style and script by their hashes,
so that nothing that slips into the body can run. It follows that `style="..."` and `onclick="..."`
attributes do nothing: give elements classes, and let the script set `element.style`.
"""

import base64
import hashlib
import html
import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_ENDS = re.compile(
    r"</(script|style)|<!--", re.IGNORECASE
)  # what ends an element, or hides its end

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #ffffff; --panel: #f6f7f9; --ink: #1c2128; --soft: #57606a; --rule: #d5dae0;
  --dense: #6b7480; --pruned: #0a62c4; --good: #17703a; --bad: #b3261e; --warm: #9a5700;
  --tint: #e3eefb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12161b; --panel: #1a2027; --ink: #e4e8ed; --soft: #a3adb8; --rule: #38414b;
    --dense: #929dab; --pruned: #62aeff; --good: #63c98a; --bad: #ff8f85; --warm: #e3a54a;
    --tint: #17314f;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.5rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .5rem 0; max-width: 44rem; overflow-wrap: anywhere; }
a { color: var(--pruned); }
code, pre, kbd { font: .9em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre {
  background: var(--panel); border: 1px solid var(--rule); border-radius: .4rem;
  padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: .6rem 0;
}
.soft { color: var(--soft); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; }
tr + tr > *, tbody tr:first-child > * { border-top: 1px solid var(--rule); }
.number { text-align: right; white-space: nowrap; }
.scroll { overflow-x: auto; }
summary { cursor: pointer; color: var(--soft); padding: .3rem 0; }
:focus-visible { outline: 2px solid var(--pruned); outline-offset: 2px; }
svg { display: block; width: 100%; height: auto; }
@media print {
  :root {
    color-scheme: light;
    --ground: #ffffff; --panel: #ffffff; --ink: #000000; --soft: #444444; --rule: #bbbbbb;
    --dense: #6b7480; --pruned: #0a62c4; --good: #17703a; --bad: #b3261e; --warm: #9a5700;
    --tint: #e3eefb;
  }
  main { max-width: none; padding: 0; }
  section, figure, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""


def escape(text: str) -> str:
    """For element content and quoted attributes alike. What no page may hold (control characters,
    unpaired surrogates) becomes a visible sign in its place."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return html.escape(_UNSAFE.sub(_sign, plain), quote=True)


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def page(title: str, body: str, *, script: str = "", style: str = "", form: bool = False) -> str:
    """A whole document. `title` is text; `body` is HTML, in which others' words are escaped;
    `script` and `style` are ours, they hold no data of users (those go into the body). `form`: one
    may be sent, to where the page came from."""
    style = STYLE + style
    for own in (script, style):
        if _ENDS.search(own):
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
