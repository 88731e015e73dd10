"""Scores beside `received` and `probe`: what they are, and that every execution agrees on them."""

from pathlib import Path

import pytest
import torch

from support.executions import TASKS, check_executions
from support.models import make_model, make_tokenizer
from support.strategies import make_plan, pad, random_text
from toprune.plan.plan import Score
from toprune.pruning.attach import attach, attached, detach
from toprune.pruning.tokens import by_place, groups, keep_merged, mask_merged, merge, start

ROWS = [random_text(n, n) for n in (24, 17, 9, 3)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("score", ["accumulated", "random", "pooled"])
@pytest.mark.parametrize("task", ["classify", "answer", "embed restored"])
def test_executions_agree(
    task: str, score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # random weights of this size are chaotic (see test_export.py)
    monkeypatch.setattr("toprune.export.parity.TOLERANCE", 5e-4)
    kind, outputs = TASKS[task]
    model = make_model(head=kind.HEAD, num_labels=outputs)
    check_executions(model, make_tokenizer(), kind, score, tmp_path / "bundle")


def test_neighbours_become_their_mean() -> None:
    """By hand: eight live tokens, the first alone, seven in three runs of three, two and two."""
    tokens = start(torch.tensor([[1] * 8 + [0] * 2]))
    place = groups(tokens, torch.tensor([4]), 4)
    assert place.tolist() == [[0, 1, 1, 1, 2, 2, 3, 3, 4, 4]]
    x = torch.arange(10.0).reshape(1, 10, 1)
    assert merge(x, place, 4).flatten().tolist() == [0, 2, 4.5, 6.5]
    kept = keep_merged(tokens, place, torch.tensor([4]), 4)
    assert kept.index.tolist() == [[0, 1, 4, 6]]
    assert kept.alive.all()
    stands, masked = mask_merged(tokens, place, 4)
    assert masked.alive[0].nonzero().flatten().tolist() == [0, 1, 4, 6]
    assert merge(x, stands, 10)[0, [0, 1, 4, 6], 0].tolist() == [0, 2, 4.5, 6.5]


def test_protected_tokens_are_not_pooled() -> None:
    """The fourth of seven is held: it stays alone, and the others run past it."""
    held = torch.tensor([[0, 0, 0, 1, 0, 0, 0]]).bool()
    tokens = start(torch.ones(1, 7, dtype=torch.long), held)
    place = groups(tokens, torch.tensor([4]), 4)
    assert place.tolist() == [[0, 2, 2, 1, 2, 3, 3]]
    kept = keep_merged(tokens, place, torch.tensor([4]), 4)
    assert kept.index.tolist() == [[0, 3, 1, 5]]
    assert kept.protected.tolist() == [[True, True, False, False]]
    crowded = groups(tokens, torch.tensor([2]), 2)  # no room for anybody else
    assert crowded.tolist() == [[0, 2, 2, 1, 2, 2, 2]]


def test_accumulated_is_the_sum_over_layers_heads_and_live_queries() -> None:
    """Against the attention that the stock model gives, one text at a time."""
    model = make_model().double()
    model.set_attn_implementation("eager")
    plan = make_plan("bert", (1, "1/2"), score="accumulated")
    for row in ROWS[:3]:
        batch = pad([row])
        with torch.no_grad():
            given = model(**batch, output_attentions=True).attentions[:2]  # (1, H, S, S) each
            total = torch.stack(given).sum((0, 1, 2, 3))  # (S,)
            attach(model, plan)
            model(**batch)
        run = attached(model)
        assert run is not None
        tokens = run.tokens[2]
        assert tokens is not None
        k = -(-len(row) // 2)
        best = [0, *(i for i in total.argsort(descending=True).tolist() if i != 0)][:k]
        assert set(tokens.index[0].tolist()) == set(best)
        detach(model)


def test_what_was_received_before_counts_after_a_drop() -> None:
    """Two steps: the second ranks by all three layers, of tokens that are still there."""
    model = make_model().double()
    batch = pad(ROWS)
    attach(model, make_plan("bert", (0, "3/4"), (2, "1/4"), score="accumulated"))
    with torch.no_grad():
        model(**batch)
    run = attached(model)
    assert run is not None
    early, late = run.tokens[1], run.tokens[3]
    assert early is not None
    assert late is not None
    assert early.total is not None
    assert late.total is not None
    for b, row in enumerate(ROWS):
        # every layer hands out one unit for each live query: what is left cannot exceed that
        queries = len(row) + 2 * int(early.alive[b].sum())
        assert float(late.total[b][late.alive[b]].sum()) <= queries + 1e-9
        before = dict(zip(early.index[b].tolist(), early.total[b].tolist(), strict=True))
        for place, now, here in zip(
            late.index[b].tolist(), late.total[b].tolist(), late.alive[b].tolist(), strict=True
        ):
            assert not here or now > before[place]
    detach(model)


def test_random_is_the_same_for_every_text_and_knows_no_content() -> None:
    model = make_model()
    attach(model, make_plan("bert", (0, "1/2"), score="random"))
    kept = []
    for seed in (1, 2):
        with torch.no_grad():
            model(**pad([random_text(20, seed)]))
        run = attached(model)
        assert run is not None
        tokens = run.tokens[1]
        assert tokens is not None
        kept.append(tokens.index[0].tolist())
    detach(model)
    assert kept[0] == kept[1]
    scores = by_place(torch.arange(1, 20))
    best = (scores.argsort(descending=True) + 1)[:9].tolist()
    assert kept[0] == [0, *best]
    assert kept[0] != sorted(kept[0])


def test_places_look_random() -> None:
    """No two places share a number, and neither halves nor neighbours are told apart."""
    scores = by_place(torch.arange(512))
    assert len(set(scores.tolist())) == 512
    best = scores.argsort(descending=True)[:256]
    assert 100 <= int((best < 256).sum()) <= 156
    kept = torch.zeros(512, dtype=torch.bool).index_fill(0, best, True)
    assert 64 <= int((kept[1:] & kept[:-1]).sum()) <= 192
