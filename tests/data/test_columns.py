import pytest

from toprune.data.columns import Columns, choose_columns
from toprune.data.examples import Examples, load
from toprune.errors import UserError
from toprune.tasks import TASKS
from toprune.tasks.answer import Answer
from toprune.tasks.classify import Classify


@pytest.mark.parametrize(
    ("others", "text", "pair", "label"),
    [
        ("idx", "sentence", None, "label"),
        ("", "Text", None, "Label"),
        ("title", "content", None, "labels"),
        ("", "review", None, "score"),
        ("", "sentence1", "sentence2", "label"),
        ("", "premise", "hypothesis", "gold_label"),
        ("", "question", "sentence", "label"),
        ("", "question1", "question2", "class"),
        ("", "query", "document", "target"),
        ("sentence score", "text", "text_pair", "label"),
    ],
)
def test_guessed_columns(others: str, text: str, pair: str | None, label: str):
    row = {name: name for name in [*others.split(), text, *filter(None, [pair])]}
    examples = load([row | {label: i} for i in (0, 1)], reads=Classify.READS)["train"]
    assert examples.texts == [text, text]
    assert examples.pairs == (pair and [pair, pair])
    assert examples.labels == [0, 1]


@pytest.mark.parametrize(
    ("task", "present", "expected"),
    [
        ("multilabel", "text labels", "text - labels"),
        ("multilabel", "sentence1 sentence2 topics", "sentence1 sentence2 topics"),
        ("rank", "query document label", "query document label"),
        ("rank", "Question Passage Relevance", "Question Passage Relevance"),
        ("rank", "query text score", "query text score"),
        ("rank", "text text_pair grade", "text text_pair grade"),
        ("rank", "question answer label", "question answer label"),
        ("rank", "sentence1 sentence2", "sentence1 sentence2 -"),
        ("answer", "id title question context answers", "question context answers"),
        ("answer", "context question answer answer_start", "question context answer"),
        ("answer", "query passage", "query passage -"),
        ("tokens", "id tokens pos_tags ner_tags", "tokens - ner_tags"),
        ("tokens", "words tags", "words - tags"),
        ("tokens", "text labels", "text - labels"),
        ("embed", "sentence1 sentence2 score", "sentence1 sentence2 score"),
        ("embed", "anchor positive", "anchor positive -"),
        ("embed", "text label", "text - -"),  # a class is no similarity
    ],
)
def test_guesses_of_the_tasks(task: str, present: str, expected: str):
    chosen = choose_columns(Columns(), present.split(), TASKS[task].READS)
    assert (chosen.text, chosen.pair, chosen.label) == tuple(
        None if name == "-" else name for name in expected.split()
    )


def test_half_named_pairs_are_completed():
    present = ["query text", "context", "passage", "answers"]
    assert choose_columns(Columns("query text"), present, Answer.READS).pair == "context"
    present = ["question", "body", "answers"]
    assert choose_columns(Columns(pair="body"), present, Answer.READS).text == "question"


@pytest.mark.parametrize(
    ("task", "columns", "present", "message"),
    [
        (
            "answer",
            Columns(),
            "id question reply",
            r"which column is the context\? Name it: the task answer reads a question \(--text\), "
            r"a context \(--pair\) and answers \(--label\); columns here: id, question, reply",
        ),
        ("answer", Columns(), "text label", r"which column is the question\?.*here: text, label"),
        ("rank", Columns(), "query label", r"which column is the document\?"),
        ("rank", Columns("query"), "query label", r"which column is the document\?"),
        ("tokens", Columns(), "body tags", r"which column is the list of words\?"),
        ("tokens", Columns("tokens", "text"), "tokens text tags", "leave --pair out"),
        ("embed", Columns("text", label="label"), "text label", "name the second text, too"),
        ("classify", Columns("text", label="a,b"), "text a b", "no column 'a,b'"),
    ],
)
def test_columns_that_do_not_fit_the_task(task: str, columns: Columns, present: str, message: str):
    with pytest.raises(UserError, match=message):
        choose_columns(columns, present.split(), TASKS[task].READS)


@pytest.mark.parametrize("task", TASKS)
def test_image_models_read_no_pair(task: str):
    columns = Columns("image", "caption", "label", images=True)
    with pytest.raises(UserError, match=r"an image model reads.*leave --pair out") as error:
        choose_columns(columns, ["image", "caption", "label"], TASKS[task].READS)
    assert "task" not in str(error.value)


def test_named_columns():
    row = {"sentence1": "a", "sentence2": "b", "other": "c", "label": 0, "stars": 3}
    rows = [row, row | {"label": 1, "stars": 4}]
    named = load(rows, reads=Classify.READS, columns=Columns("sentence1", label="stars"))["train"]
    assert named == Examples(["a", "a"], labels=[3, 4])  # a named text has no guessed pair
    pair = load(rows, reads=Classify.READS, columns=Columns(pair="sentence2"))
    assert pair["train"] == Examples(["a", "a"], ["b", "b"], [0, 1])
    with pytest.raises(UserError, match="no column 'stras'; columns here: sentence1, sentence2"):
        load(rows, reads=Classify.READS, columns=Columns(label="stras"))


def test_no_text_column():
    with pytest.raises(UserError, match=r"which column is the text.*columns here: body, label"):
        load([{"body": "a", "label": 0}], reads=Classify.READS)
