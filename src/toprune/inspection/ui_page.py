"""The pages of `toprune ui`: a form, and under it what became of the text. No script but that of
the explanation, no request but the form's own."""

from collections.abc import Sequence
from dataclasses import dataclass

from toprune.inspection.explain.explanation import Explained
from toprune.inspection.explain.look import SCRIPT
from toprune.inspection.explain.look import STYLE as LOOK
from toprune.inspection.explain.page import article, controls
from toprune.report.html.shell import escape, page

STYLE = """
form { display: grid; gap: .8rem; margin: 1rem 0 0; }
form label { display: grid; gap: .25rem; font-weight: 600; }
textarea, select, button { font: inherit; color: inherit; }
textarea, select {
  width: 100%; padding: .5rem .6rem; background: var(--ground); border: 1px solid var(--soft);
  border-radius: .4rem;
}
button {
  justify-self: start; padding: .5rem 1.4rem; border: 0; border-radius: .4rem; cursor: pointer;
  background: var(--pruned); color: var(--ground); font-weight: 600;
}
.speed { font-size: 1.15rem; }
.wrong { color: var(--bad); font-weight: 600; }
"""


@dataclass(frozen=True)
class Asked:
    """What stands in the form."""

    bundles: Sequence[str]  # names to choose from
    chosen: int
    roles: tuple[str, str]  # of two texts
    pairs: bool  # does it take two texts?
    text: str = ""
    pair: str = ""


@dataclass(frozen=True)
class Speed:
    """Pruned over dense, both in torch and in turns, with its 95 % interval."""

    value: float
    low: float
    high: float
    rounds: int


def ui_page(asked: Asked, found: Explained | None, speed: Speed | None, wrong: str = "") -> str:
    """The form alone, or with one explanation or one line of what was wrong under it."""
    body = [
        "<h1>What does it drop?</h1>",
        "<p>Type a text: what the pruned model and the dense one say to it, which tokens left in "
        "which layer, and what that is worth in time. Nothing leaves this machine.</p>",
        _form(asked),
    ]
    if wrong:
        body.append(f'<p class="wrong" role="alert">{escape(wrong)}</p>')
    if found is not None:
        body.append(_speed(speed) if speed is not None else "")
        body += [controls(found), article(found, 0)]
        body.append('<div id="tip" role="tooltip" hidden></div>')
    script = SCRIPT if found is not None else ""
    return page("toprune", "\n".join(body), script=script, style=LOOK + STYLE, form=True)


def _form(asked: Asked) -> str:
    first, second = (role.capitalize() for role in asked.roles)
    fields = [_area("text", first if asked.pairs else "Text", asked.text, 6)]
    if asked.pairs:
        fields.append(_area("pair", second, asked.pair, 6))
    if len(asked.bundles) > 1:
        options = "".join(
            f'<option value="{i}"{" selected" * (i == asked.chosen)}>{escape(name)}</option>'
            for i, name in enumerate(asked.bundles)
        )
        fields.append(f'<label>Bundle<select name="bundle">{options}</select></label>')
    return f'<form method="post" action="/">{"".join(fields)}<button>Look</button></form>'


def _area(name: str, title: str, text: str, rows: int) -> str:
    return (
        f'<label>{title}<textarea name="{name}" rows="{rows}" required>'
        f"\n{escape(text)}</textarea></label>"
    )


def _speed(speed: Speed) -> str:
    return (
        f'<p class="speed"><b>{speed.value:.2f}x</b> the speed of dense on this text '
        f"<span>[{speed.low:.2f}, {speed.high:.2f}]</span></p>"
        f'<p class="soft">Median of {speed.rounds} turns of each in torch, on one thread. The '
        "exported file is another matter: <code>toprune bench</code> times it.</p>"
    )
