"""The history of adaptations: what a day's entries say of each decision, and how it is shown."""

from __future__ import annotations

import io
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spillway.readmodel.adaptations import MOST_DECISIONS
from spillway.report import decisions
from spillway.report.html import report_html
from spillway.report.model import Status
from spillway.report.shown import show_status
from spillway.report.status import status
from spillway.report.terminal import render
from spillway_schemas.journal import CommandOutcome, Epoch, Move, Prefix
from spillway_schemas.settings import Settings, load_settings
from tests.commands import outcome_of
from tests.report_journal import (
    DAY,
    Made,
    carry_out,
    fill_journal,
    make_day,
    model_of,
    open_warehouse,
)

WHY = "memory 80% of the budget (slot 0) and 20% (slot 1)"


def outcome(number: int, *, obeyed: bool = True, **more: Any) -> CommandOutcome:
    given = {
        "kind": "move",
        "obeyed": obeyed,
        "policy": "pooled",
        "slot": 1,
        "bytes": 100,
        "reason": WHY if obeyed else "expired at noon",
    }
    return outcome_of(more.pop("id", f"pooled/1a2b/{number}"), **{**given, **more})


def moved(value: int) -> Move:
    return Move(group=Prefix(3, value), to=1, bytes=100, decision="pooled/1a2b")


def adapted() -> Made:
    """A day of ten epochs: in epoch 4 three moves are asked for, one of them in vain; one group
    moves in epoch 4, the other in epoch 6; in epoch 8 a person has slot 0 spill."""
    made = make_day(10, slots=2, groups_depth=3)
    at = {e.epoch: i for i, e in enumerate(made.entries) if isinstance(e, Epoch)}

    def change(epoch: int, **more: object) -> None:
        made.entries[at[epoch]] = made.entries[at[epoch]].model_copy(update=more)

    asked = [outcome(0), outcome(1), outcome(2, obeyed=False)]
    carry_out(made, 4, [moved(0)], commands=asked, queued=[moved(1)])
    carry_out(made, 6, [moved(1)], queued=[])
    change(
        8,
        commands=[
            outcome(0, id="by-hand/77/0", kind="spill", policy="", slot=0, reason="[b]now[/b]")
        ],
    )
    return made


def memory(made: Made, epoch: int) -> dict[int, int]:
    entry = next(e for e in made.entries if isinstance(e, Epoch) and e.epoch == epoch)
    return {totals.slot: totals.state_bytes for totals in entry.slots}


def results_after(made: Made, epoch: int) -> int:
    later = (e for e in made.entries if isinstance(e, Epoch) and e.epoch >= epoch)
    return sum(sum(e.results.values()) for e in later)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    overrides = {
        "warehouse.root": str(tmp_path / "w"),
        "kafka.bootstrap_servers": "127.0.0.1:9",  # nobody listens there
    }
    return load_settings(overrides=overrides, environ={})[0]


@pytest.fixture
def found(settings: Settings) -> Status:
    warehouse = open_warehouse(settings.warehouse.root)
    made = adapted()
    fill_journal(warehouse, made.entries)
    return status(warehouse, settings, made.now(), None, detail_session=DAY)


def test_a_decision_has_its_commands_moves_and_effect(found: Status) -> None:
    made = adapted()
    spill, moves = found.adaptations
    assert (moves.id, moves.policy, moves.epoch) == ("pooled/1a2b", "pooled", 4)
    assert moves.obeyed == {"move": 2}
    assert moves.refused == {"expired at noon": 1}
    assert (moves.moved, moves.moved_bytes, moves.waiting, moves.bytes) == (2, 200, 0, 200)
    assert moves.reason == WHY
    assert moves.done_epoch == 6
    assert moves.before == memory(made, 3)
    assert moves.after == memory(made, 6)
    assert moves.results_since == results_after(made, 4)
    assert (spill.policy, spill.obeyed, spill.done_epoch) == ("", {"spill": 1}, 8)
    assert spill.results_since == results_after(made, 8)


def test_moves_that_wait_are_told() -> None:
    model = model_of(adapted().entries[:-4])
    assert model.state.epoch == 5
    (only,) = model.tally.adaptations.decisions
    assert (only.waiting, only.moved, only.done_epoch) == (1, 1, None)
    assert [move.group for move in model.state.moves] == [Prefix(3, 1)]


def test_slots_and_session_count_groups_that_moved(found: Status) -> None:
    assert [(slot.moved_in, slot.moved_out) for slot in found.slots] == [(0, 2), (2, 0)]
    session = found.session_of(DAY)
    assert session is not None
    assert session.moved == 2


def test_slots_have_their_work(found: Status) -> None:
    made = adapted()
    epochs = [e for e in made.entries if isinstance(e, Epoch)]
    span = (made.now() - made.now().fromisoformat(epochs[0].started_at)).total_seconds()
    assert span < 60, "all epochs lie in the minute that is looked at"
    for slot in found.slots:
        mine = [t for e in epochs for t in e.slots if t.slot == slot.slot]
        ended = made.now().fromisoformat(epochs[-1].written_at)
        whole = (ended - made.now().fromisoformat(epochs[0].started_at)).total_seconds()
        assert slot.busy == pytest.approx(sum(t.busy_s for t in mine) / whole, abs=0.001)
        groups = {0: 2, 1: 6}[slot.slot]  # of the eight, two of which have moved
        rate = sum(t.results for t in mine) / groups
        assert slot.output_rate == pytest.approx(rate, abs=0.001)


def test_the_history_in_a_terminal(settings: Settings, found: Status) -> None:
    out = Console(file=io.StringIO(), width=200)
    show_status(settings, out, adaptations=True)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "2 moves (200 B), 1 refused" in text
    assert WHY in text
    assert "refused: expired at noon" in text
    assert "[b]now[/b]" in text
    assert "a person" in text
    lines = [line for line in text.splitlines() if "pooled" in line]
    assert len(lines) == 1
    out = Console(file=io.StringIO(), width=200)
    show_status(settings, out, as_json=True, adaptations=True)
    listed = json.loads(out.file.getvalue())  # type: ignore[attr-defined]
    assert listed == [each.model_dump(mode="json") for each in found.adaptations]


def test_watching_shows_the_last_decisions(found: Status) -> None:
    out = Console(file=io.StringIO(), width=200)
    out.print(render(found, out), highlight=False)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "2 moves (200 B), 1 refused" in text
    assert "in / out" in text


def test_the_page_lists_decisions_as_text(found: Status) -> None:
    page = report_html(found)
    assert "2 moves (200 B), 1 refused" in page
    assert "[b]now[/b]" in page
    hostile = found.adaptations[0].model_copy(update={"reason": "<img src=x onerror=alert(1)>"})
    page = report_html(found.model_copy(update={"adaptations": [hostile]}))
    assert "<img" not in page
    assert "&lt;img src=x" in page


def test_memory_of_many_slots_is_a_range() -> None:
    assert decisions.memory({0: 1024, 1: 2048}) == "1.00 KiB / 2.00 KiB"
    assert (
        decisions.memory({slot: 1024 * (slot + 1) for slot in range(9)}) == "1.00 KiB to 9.00 KiB"
    )
    assert decisions.memory({}) == "–"


def at_80_columns(show: Any) -> str:
    out = Console(file=io.StringIO(), width=80)
    show(out)
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text, "something is cut"
    return text


def test_at_80_columns_the_history_is_whole(settings: Settings, found: Status) -> None:
    text = at_80_columns(lambda out: show_status(settings, out, adaptations=True))
    words = " ".join(text.split())
    for each in found.adaptations:
        *shown, why = decisions.cells(each)
        for cell in (*shown, *why.split(": ")):
            assert cell in words
    assert [line[:8] for line in text.splitlines() if line[:1].isdigit()] == [
        each.at[11:19] for each in found.adaptations
    ], "a decision begins on a line of its own"


def test_at_80_columns_watching_shows_half_of_the_decisions_whole(found: Status) -> None:
    many = found.model_copy(update={"adaptations": found.adaptations[1:] * 9})
    text = at_80_columns(lambda out: out.print(render(many, out), highlight=False))
    assert " ".join(text.split()).count(WHY) == 3


def with_commands(*outcomes: tuple[int, CommandOutcome]) -> Made:
    """A day of ten epochs, in some of which commands are answered."""
    made = make_day(10, slots=2, groups_depth=3)
    for at, entry in enumerate(made.entries):
        if isinstance(entry, Epoch):
            some = [each for epoch, each in outcomes if epoch == entry.epoch]
            made.entries[at] = entry.model_copy(update={"commands": some})
    return made


def test_policies_wait_for_what_policies_did_and_not_for_a_person() -> None:
    """Kills: a person's spill or split, or a refused one, holds up the controller."""
    made = with_commands(
        (2, outcome(0, id="p/a/0", kind="spill")),
        (3, outcome(0, id="p/b/0", kind="merge")),
        (5, outcome(0, id="by-hand/1/0", kind="spill", policy="")),
        (5, outcome(0, id="by-hand/2/0", kind="split", policy="")),
        (6, outcome(0, id="p/c/0", kind="spill", obeyed=False)),
        (6, outcome(0, id="p/d/0", kind="split", obeyed=False)),
    )
    ended = {e.epoch: e.written_at for e in made.entries if isinstance(e, Epoch)}
    adaptations = model_of(made.entries).tally.adaptations
    assert (adaptations.forced_at, adaptations.tuned_at) == (ended[2], ended[3])
    assert adaptations.moved_at is None


def test_how_long_moves_took_is_of_the_last_decision_alone() -> None:
    """Kills: the epochs of earlier decisions are added, or only the last epoch counts."""
    made = make_day(10, slots=2, groups_depth=3)
    later = Move(group=Prefix(3, 2), to=1, bytes=100, decision="pooled/3c")
    carry_out(made, 3, [later.model_copy(update={"group": Prefix(3, 3)})])
    carry_out(made, 4, [moved(0)], queued=[moved(1)])
    carry_out(made, 6, [moved(1)], queued=[])

    def took_s(epoch: int) -> float:
        (entry,) = (e for e in made.entries if isinstance(e, Epoch) and e.epoch == epoch)
        times = (datetime.fromisoformat(each) for each in (entry.started_at, entry.written_at))
        began, ended = times
        return (ended - began).total_seconds()

    adaptations = model_of(made.entries).tally.adaptations
    assert adaptations.moved_for == "pooled/1a2b"
    assert adaptations.moved_s == pytest.approx(took_s(4) + took_s(6), abs=0.002)


def test_a_budget_moves_no_state() -> None:
    made = with_commands(
        (2, outcome(0, id="by-hand/1/0", kind="budget", policy="", bytes=1 << 30)),
        (2, outcome(1, id="by-hand/1/1", kind="spill", policy="", bytes=7)),
    )
    (decision,) = model_of(made.entries).tally.adaptations.decisions
    assert (decision.obeyed, decision.bytes) == ({"budget": 1, "spill": 1}, 7)


def test_the_newest_decisions_are_remembered() -> None:
    many = [(1, outcome(0, id=f"p/{k}/0", kind="spill")) for k in range(MOST_DECISIONS)]
    made = with_commands(*many, (2, outcome(0, id="p/last/0", kind="spill")))
    decisions = model_of(made.entries).tally.adaptations.decisions
    assert [each.id for each in decisions] == [f"p/{k}" for k in range(1, MOST_DECISIONS)] + [
        "p/last"
    ]
