"""The page of the server: type a text, see the answer, and with the weights which tokens leave.

Pages are made here and sent complete; the browser runs nothing but the explanation's script.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs

from toprune.data.cells import as_words
from toprune.errors import UserError
from toprune.inspection.explain import page as explain_page
from toprune.inspection.explain.explanation import Explained, Speed, prediction_text
from toprune.report.html.shell import escape, page, read_asset
from toprune.serve.bundles import Answer, Loaded
from toprune.serve.requests import BadRequest, Body, Limits

PATH = "/ui"
HERE = ("same-origin", "none")  # what a browser sends for our own form, and for a typed address
WAITING = 4  # explanations that may wait for the one that runs
Explanation = tuple[Explained, Speed]


@dataclass(frozen=True)
class Form:
    """What is typed in."""

    bundles: Sequence[str]  # names to choose from
    chosen: int
    labels: Sequence[str]  # of the text fields: one, or two for a pair
    texts: Sequence[str] = ("", "")

    @classmethod
    def of(cls, bundles: Sequence[Loaded], fields: Mapping[str, str]) -> "Form":
        """Read the fields of a sent form; empty: the first visit."""
        names = [one.name for one in bundles]
        name = fields.get("bundle", names[0])
        chosen = names.index(name) if name in names else 0
        labels = ["Text"]
        if bundles[chosen].task.PAIR_ROLES or "pair" in fields:
            labels = [
                role.capitalize() for role in explain_page.pair_roles(bundles[chosen].task.NAME)
            ]
        return cls(names, chosen, labels, (fields.get("text", ""), fields.get("pair", "")))

    def input(self, bundle: Loaded, limits: Limits) -> Any:
        """The text, pair or words that the bundle reads."""
        body = Body({}, limits)
        parts = [
            body.check_text(text, label)
            for text, label in zip(self.texts, self.labels, strict=False)
        ]
        if bundle.task.READS.words:
            return as_words(parts[0])
        return parts[0] if len(parts) == 1 else tuple(parts)


def parse_form(content: bytes) -> dict[str, str]:
    """The fields of a form that a browser sends."""
    try:
        query = parse_qs(content.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError as error:
        raise BadRequest("the form has too many fields", 400) from error
    return {name: values[0].replace("\r\n", "\n") for name, values in query.items()}


def check_site(site: str | None) -> None:
    """Refuse a form that the page of another site sends.

    Args:
        site: the header Sec-Fetch-Site; programs send none.
    """
    if site is not None and site not in HERE:
        raise BadRequest("this form was sent by the page of another site", 403)


class Explainer:
    """Explains texts with the weights of the bundles, one at a time. Needs torch."""

    def __init__(self, load: Callable[[str], Any]):
        """Load nothing yet.

        Args:
            load: gives the weights of a bundle (`inspection.live.Live`) by its name.
        """
        self._load = load
        self._loaded: dict[str, tuple[Loaded, Any]] = {}
        self._lock = threading.Lock()
        self._waiting = threading.Semaphore(1 + WAITING)

    def explain(self, bundle: Loaded, text: Any) -> Explanation:
        """Explain a text with the weights that belong to a bundle, which may have been replaced."""
        if not self._waiting.acquire(blocking=False):
            raise UserError("too many texts wait for an explanation; try again")
        try:
            with self._lock:
                known = self._loaded.get(bundle.name)
                if known is None or known[0] is not bundle:
                    known = self._loaded[bundle.name] = bundle, self._load(bundle.name)
                return known[1].explain(text)
        finally:
            self._waiting.release()


def check_explainable() -> None:
    """Refuse to go on without the packages that explanations need."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise UserError("explanations need the weights; pip install 'toprune[train,serve]'")


def ui_page(
    form: Form,
    *,
    answer: Answer | None = None,
    explanation: Explanation | None = None,
    error: str = "",
    explains: bool = True,
) -> str:
    """The form alone, or with an answer or one error message below it.

    Args:
        form: what is typed in.
        answer: of the file that is served.
        explanation: which tokens leave, by the weights.
        error: in place of an answer.
        explains: does the server give explanations?
    """
    body = ["<h1>What does it drop?</h1>", f"<p>{_intro(explains)}</p>", _form(form)]
    if error:
        body.append(f'<p class="error" role="alert">{escape(error)}</p>')
    if answer is not None:
        body.append(_answer(answer))
    if explanation is not None:
        body += [_speed(explanation[1]), explain_page.explanations(explanation[0])]
    script = explain_page.script() if explanation is not None else ""
    style = explain_page.style() + read_asset(__package__, "ui.css")
    return page("toprune", "\n".join(body), script=script, style=style, form=True)


def _intro(explains: bool) -> str:
    if explains:
        return (
            "Type a text to see the answers of the pruned and the dense model, which tokens leave "
            "in which layer, and how much time that saves."
        )
    return (
        "Type a text to see the answer of the file that is served. To see which tokens leave, "
        "start the server with <code>--explain</code>."
    )


def _form(form: Form) -> str:
    fields = [
        f'<label>{label}<textarea name="{name}" rows="6" required>'
        f"\n{escape(text)}</textarea></label>"
        for name, label, text in zip(("text", "pair"), form.labels, form.texts, strict=False)
    ]
    if len(form.bundles) > 1:
        options = "".join(
            f'<option value="{escape(name)}"{" selected" * (i == form.chosen)}>{escape(name)}'
            "</option>"
            for i, name in enumerate(form.bundles)
        )
        fields.append(f'<label>Bundle<select name="bundle">{options}</select></label>')
    return f'<form method="post" action="{PATH}">{"".join(fields)}<button>Look</button></form>'


def _answer(answer: Answer) -> str:
    by = ", by the dense file" if answer.prediction.get("fallback") else ""
    return (
        f'<p class="speed">The file answers: <b>{escape(prediction_text(answer.prediction))}</b>'
        f"{by}</p>"
    )


def _speed(speed: Speed) -> str:
    return (
        f'<p class="speed"><b>{speed.value:.2f}x</b> the speed of dense on this text '
        f"<span>[{speed.low:.2f}, {speed.high:.2f}]</span></p>"
        f'<p class="soft">Median of {speed.rounds} turns of each in torch, on one thread. '
        "<code>toprune bench</code> times the exported file.</p>"
    )
