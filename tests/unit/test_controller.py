"""A run of the controller on real tables: what it asks for, what it leaves, and two at once."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from spillway.clock import rfc3339, system_clock
from spillway.engine.least import least_budget
from spillway.engine.statistics import STATISTICS_SCHEMA
from spillway.engine.wire.datafile import write_data_files
from spillway.policy.guards import guarded
from spillway.policy.registry import POLICIES
from spillway.policy.view import Advice, Declined
from spillway.protocol.adapt import adapt
from spillway.protocol.state import replay
from spillway.rebalance import by_hand, controller
from spillway.rebalance.asking import Answers, RequestRefused, ask, look
from spillway.rebalance.by_hand import RebalanceRequest
from spillway.rebalance.shown import as_json, table
from spillway.rebalance.view import view_of
from spillway.report.groups import HEAD, GroupStatus, groups_table, largest_groups
from spillway.tables import NothingYet, Warehouse
from spillway_schemas.filenames import data_name
from spillway_schemas.hash_space import UnknownJoin, spaces
from spillway_schemas.journal import CommandOutcome, Epoch, Move, Prefix
from spillway_schemas.query import load_query
from spillway_schemas.settings import Settings, load_settings
from spillway_schemas.windows import swing
from tests.commands import command_of, outcome_of
from tests.page_warehouse import write_statistics
from tests.report_journal import DAY, Made, fill_journal, make_day, open_warehouse
from tests.tree_journal import JOINS, tree_day

GROUPS = 8

NOON_MS = 1_767_632_400_000
"""2026-01-05, 12:00 in New York."""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    overrides = {
        "warehouse.root": str(tmp_path / "w"),
        "rebalance.min_span_s": "0",
        "rebalance.relocation_bytes": "0",
    }
    return load_settings(overrides=overrides, environ={})[0]


@pytest.fixture
def warehouse(settings: Settings) -> Warehouse:
    return open_warehouse(settings.warehouse.root)


def uneven(warehouse: Warehouse, epochs: int = 12) -> Made:
    """A day whose slot 0 holds 900 kB and slot 1 100 kB in four groups each."""
    made = make_day(epochs, slots=2, groups_depth=3)
    last = made.entries[-1]
    assert isinstance(last, Epoch)
    held = (900_000, 100_000)
    totals = [t.model_copy(update={"state_bytes": held[t.slot]}) for t in last.slots]
    made.entries[-1] = last.model_copy(update={"slots": totals})
    fill_journal(warehouse, made.entries)
    rows: list[dict[str, Any]] = [
        {
            "epoch": last.epoch,
            "session_date": DAY,
            "slot": value // 4,
            "depth": 3,
            "value": value,
            "bytes": held[value // 4] // 4,
            "rows": [5, 5, 5],
            "results": value,
            "last_used_ms": 0,
            "resident": True,
            "written_at": 0,
            "rows_in": 15,
            "session_results": value,
            "rate": 0.5,
            "generations": 0,
            "spilled_bytes": 0,
            "hot_key": "ACME" if value == 0 else None,
            "hot_rows": 15 if value == 0 else None,
        }
        for value in range(GROUPS)
    ]
    table = pa.Table.from_pylist(rows, schema=STATISTICS_SCHEMA)
    place = warehouse.folder("statistics")
    files = write_data_files(
        place,
        "statistics",
        lambda k: data_name(last.epoch, "a" * 12, 0, k),
        STATISTICS_SCHEMA,
        [table],
    )
    warehouse.apply("statistics", last.epoch, files)
    return made


def answered(made: Made, warehouse: Warehouse, *outcomes: CommandOutcome) -> None:
    """The stream answers commands in one more epoch."""
    last = made.entries[-1]
    more = last.model_copy(
        update={
            "n": last.n + 1,
            "epoch": last.epoch + 1,
            "commands": list(outcomes),
            "cuts": [],
            "files": [],
            "read": [],
            "results": {},
            "spilled_rows": {},
        }
    )
    made.entries.append(more)
    fill_journal(warehouse, [more])


def test_a_session_is_evened_out_by_its_own_query(
    settings: Settings, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be the next session's by now, or be no query while it is being changed."""
    own = load_query("symbol_window")
    made = make_day(3, slots=2, groups_depth=3)
    update = {"query": own.fingerprint, "text": own.text}
    made.entries[0] = made.entries[0].model_copy(update=update)
    fill_journal(warehouse, made.entries)
    swings: list[float] = []

    def seen_by(*given: Any, **more: Any) -> Any:
        swings.append(more["swing"])
        return view_of(*given, **more)

    monkeypatch.setattr(controller, "view_of", seen_by)
    for query in ("symbol", str(tmp_path / "gone.toml")):
        changed = settings.model_copy(update={"query": query})
        controller.run(changed, "lazy-disk", "me", clock=system_clock)
        wanted = RebalanceRequest(budgets=["0:1GiB"])
        by_hand.request(changed, wanted, "why", "me", clock=system_clock, dry_run=True)
    assert swings == [swing(own.spans)] * 2
    assert swings[0] < 1


def test_a_run_appends_versioned_commands(settings: Settings, warehouse: Warehouse) -> None:
    uneven(warehouse)
    dry = controller.run(settings, "lazy-disk", "me", dry_run=True, clock=system_clock)
    assert not warehouse.commands.read(), "a dry run asks for nothing"
    moments = iter([NOON_MS])
    found = controller.run(settings, "lazy-disk", "me", clock=lambda: next(moments))
    assert [c.move for c, _ in found.asked] == [c.move for c, _ in dry.asked]
    commands = [each.command for each in warehouse.commands.read()]
    assert commands == [c for c, _ in found.asked]
    # 400 kB are to go; a group has 225 kB.
    assert [(c.move.group, c.move.to) for c in commands] == [(Prefix(3, 3), 1)]
    for each in commands:
        assert each.policy == "lazy-disk"
        assert each.by == "me"
        assert each.assignment_version == -1
        assert each.epoch == look(settings, clock=system_clock).model.state.epoch
        assert each.issued_at == rfc3339(NOON_MS), "one moment for all of a decision"
        assert each.expires_at == rfc3339(NOON_MS + round(settings.rebalance.expires_s * 1000))
        assert each.settings["theta_d"] == 0.8
        assert "M_least / M_most = 0.11" in each.reason


def test_a_person_s_reason_and_name_go_with_the_policy_s(
    settings: Settings, warehouse: Warehouse
) -> None:
    uneven(warehouse)
    own = controller.run(settings, "lazy-disk", "me", dry_run=True, clock=system_clock).asked
    asked = controller.run(
        settings, "lazy-disk", "alice", reason="it is late", clock=system_clock
    ).asked
    assert [c.reason for c, _ in asked] == [f"it is late: {c.reason}" for c, _ in own]
    assert {(c.by, o.by) for c, o in asked} == {("alice", "alice")}


def test_nothing_is_decided_before_the_last_decision_is_answered(
    settings: Settings, warehouse: Warehouse
) -> None:
    made = uneven(warehouse)
    first = controller.run(settings, "lazy-disk", "me", clock=system_clock)
    again = controller.run(settings, "lazy-disk", "me", clock=system_clock)
    assert not again.asked
    assert "has not answered lazy-disk/" in again.advice.declined[0].why
    command = first.asked[0][0]
    outcome = outcome_of(command.id, kind="move", obeyed=False, reason="expired")
    answered(made, warehouse, outcome)
    assert controller.run(settings, "lazy-disk", "me", dry_run=True, clock=system_clock).asked


def test_an_expired_decision_holds_nothing_up(settings: Settings, warehouse: Warehouse) -> None:
    uneven(warehouse)
    old = command_of(
        "move",
        "lazy-disk/old/0",
        move=Move(group=Prefix(3, 0), to=1),
        expires_at="2026-01-05T00:00:00Z",
    )
    warehouse.commands.append(old)
    assert controller.run(settings, "lazy-disk", "me", dry_run=True, clock=system_clock).asked


def test_moves_that_wait_come_first(settings: Settings, warehouse: Warehouse) -> None:
    made = uneven(warehouse)
    last = made.entries[-1]
    queued = [Move(group=Prefix(3, 1), to=1, bytes=5, decision="d")]
    more = last.model_copy(
        update={"n": last.n + 1, "epoch": last.epoch + 1, "queued": queued, "cuts": []}
    )
    fill_journal(warehouse, [more])
    found = controller.run(settings, "lazy-disk", "me", clock=system_clock)
    assert not found.asked
    assert "an earlier one still has 1 move to carry out" in found.advice.declined[0].why


def test_two_controllers_at_once_do_no_harm(settings: Settings, warehouse: Warehouse) -> None:
    """Both look before either has asked: in one epoch or in two, one of them is refused."""
    uneven(warehouse)
    seen = look(settings, clock=system_clock)
    wanted = {}
    for name in ("one", "other"):
        only = Move(group=Prefix(3, 1 + len(wanted)), to=1, bytes=9)
        wanted[name] = command_of("move", f"lazy-disk/{name}/0", move=only, assignment_version=-1)
    for command in wanted.values():
        assert ask(seen, [command], dry_run=False)[0][1].obeyed
    both = [each.command for each in warehouse.commands.read()]
    outcomes = adapt(seen.model.state, both, rfc3339(system_clock())).outcomes
    assert [o.obeyed for o in outcomes] == [True, False]
    assert "takes part in another decision, lazy-disk/one" in outcomes[1].reason
    later = replace(seen.model.state, assignment_version=12)
    outcome = adapt(later, both[1:], rfc3339(system_clock())).outcomes[0]
    assert "decided on assignment -1; it is 12 now" in outcome.reason


@pytest.mark.parametrize("slots", [(0, 0), (0, 1)])
def test_two_controllers_at_once_do_not_spill_twice(
    slots: tuple[int, int], settings: Settings, warehouse: Warehouse
) -> None:
    """A spill leaves the assignment as it is: what was obeyed since the decision counts."""
    made = uneven(warehouse)
    seen = look(settings, clock=system_clock)
    common = {"bytes": 9, "policy": "active-disk", "assignment_version": -1}
    both = [
        command_of(
            "spill",
            f"active-disk/{name}/0",
            slot=slot,
            epoch=seen.model.state.epoch,
            **common,
        )
        for name, slot in zip(("one", "other"), slots, strict=True)
    ]
    for command in both:
        assert ask(seen, [command], dry_run=False)[0][1].obeyed
    together = adapt(seen.model.state, both, rfc3339(system_clock())).outcomes
    assert [o.obeyed for o in together] == [True, False]
    assert "active-disk/one" in together[1].reason
    answered(made, warehouse, together[0])
    epoch = seen.model.state.epoch
    why = f"decided after epoch {epoch}; in epoch {epoch + 1} a policy"
    for state in (look(settings, clock=system_clock).model.state, replay(made.entries)):
        assert state is not None
        assert why in adapt(state, both[1:], rfc3339(system_clock())).outcomes[0].reason
        fresh = both[1].model_copy(update={"epoch": state.epoch})
        assert adapt(state, [fresh], rfc3339(system_clock())).outcomes[0].obeyed
    answered(made, warehouse, together[1])
    assert look(settings, clock=system_clock).model.state.policy_epoch == epoch + 1, (
        "a refusal is no relief"
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_and_says_why(
    policy: str, settings: Settings, warehouse: Warehouse
) -> None:
    uneven(warehouse)
    found = controller.run(settings, policy, "me", clock=system_clock)
    assert found.asked or found.advice.declined
    assert all(outcome.obeyed for _, outcome in found.asked), found.asked


@pytest.mark.parametrize(("policy", "round_s"), [("flux-memory", 7.0), ("lazy-disk", None)])
def test_policies_in_rounds_are_guarded_by_their_collection_time(
    policy: str,
    round_s: float | None,
    settings: Settings,
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []

    def spy(*arguments: Any) -> Advice:
        given.append(arguments[2:])
        return guarded(*arguments)

    monkeypatch.setattr(controller, "guarded", spy)
    monkeypatch.setattr(controller, "round_s", lambda *_: 7.0)
    uneven(warehouse)
    controller.run(settings, policy, "me", dry_run=True, clock=system_clock)
    rebalance = settings.rebalance
    assert given == [(rebalance.min_span_s, rebalance.min_gain, round_s)]


def test_a_split_of_one_key_is_refused_by_hand(settings: Settings, warehouse: Warehouse) -> None:
    uneven(warehouse)
    with pytest.raises(RequestRefused, match="all rows of group 3/0 are of the key 'ACME'"):
        by_hand.request(settings, RebalanceRequest(splits=("3/0",)), "", "me", clock=system_clock)
    asked = by_hand.request(
        settings, RebalanceRequest(splits=("3/1",)), "", "me", clock=system_clock
    )
    assert asked[0][1].obeyed


def test_what_is_printed(settings: Settings, warehouse: Warehouse) -> None:
    uneven(warehouse)
    wishes = RebalanceRequest(moves=tuple(f"3/{v}:1" for v in range(5)), spills=("1:2KiB",))
    answers = by_hand.request(settings, wishes, "because", "me", dry_run=True, clock=system_clock)
    out = Console(file=io.StringIO(), width=200)
    out.print(table(answers, [Declined("merge of 3/1", "[red]never[/red]")], dry_run=True))
    text = " ".join(out.file.getvalue().split())  # type: ignore[attr-defined]
    assert "move 3/0, 3/1, 3/2 to slot 1 (659 KiB) would be asked for because" in text
    assert "refused slot 0 would own no group" in text
    assert "spill 2.00 KiB at slot 1 would be asked for because" in text
    assert "no merge of 3/1 [red]never[/red]" in text


def test_budgets_by_hand(settings: Settings, warehouse: Warehouse) -> None:
    uneven(warehouse)
    wishes = RebalanceRequest(budgets=("0:2MiB", "1:default"))
    asked = by_hand.request(
        settings, wishes, "the day is long", "me", dry_run=True, clock=system_clock
    )
    assert [(c.kind, c.slot, c.bytes, o.obeyed) for c, o in asked] == [
        ("budget", 0, 2 << 20, True),
        ("budget", 1, 0, True),
    ]
    out = Console(file=io.StringIO(), width=200)
    out.print(table(asked, [], dry_run=True))
    text = " ".join(out.file.getvalue().split())  # type: ignore[attr-defined]
    assert "budget of slot 0: 2.00 MiB would be asked for the day is long" in text
    assert "budget of slot 1: state.budget_bytes would be asked for" in text
    least = least_budget(3, GROUPS, 2, settings.stream.max_rows_per_epoch)
    assert by_hand.request(
        settings,
        RebalanceRequest(budgets=(f"0:{least}",)),
        "",
        "me",
        dry_run=True,
        clock=system_clock,
    )
    wrongs = (
        ("0", "write, for example, --budget 0:2GiB"),
        ("0:0", "not above zero"),
        (f"0:{least - 1}", rf"cannot hold an epoch.* least .* is {-(-least // 1024)}KiB;"),
    )
    for wrong, why in wrongs:
        with pytest.raises(RequestRefused, match=why):
            by_hand.request(
                settings, RebalanceRequest(budgets=(wrong,)), "", "me", clock=system_clock
            )


def test_the_largest_groups_are_shown(settings: Settings, warehouse: Warehouse) -> None:
    uneven(warehouse)
    found = largest_groups(warehouse, 3)
    assert [(each.group, each.slot, each.bytes) for each in found] == [
        (f"3/{value}", 0, 225_000) for value in range(3)
    ]
    assert (found[0].hot_key, found[0].hot_rows, found[0].rows) == ("ACME", 15, [5, 5, 5])
    out = Console(file=io.StringIO(), width=200)
    out.print(groups_table(found, out))
    text = " ".join(out.file.getvalue().split())  # type: ignore[attr-defined]
    assert "3/0 0 220 KiB 15 15 0" in text
    assert "ACME, 100 %" in text
    assert len(largest_groups(warehouse, 99)) == GROUPS


def test_an_empty_journal_is_told(settings: Settings, warehouse: Warehouse) -> None:
    with pytest.raises(NothingYet, match="is empty: start `spillway stream`, or name"):
        controller.run(settings, "pooled", "me", clock=system_clock)
    with pytest.raises(RequestRefused, match="unknown policy"):
        controller.run(settings, "nonsense", "me", clock=system_clock)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_largest_groups_are_whole_at_any_width_and_what_is_left_out_is_told(width: int) -> None:
    group = GroupStatus(
        group="9/511",
        session=DAY,
        slot=1,
        epoch=8,
        bytes=12_345_678,
        rows=[123_456, 12_345, 1],
        rows_in=1_234_567,
        results=12_345_678,
        session_results=123_456_789,
        rate=1_234.5,
        generations=12,
        spilled_bytes=123_456_789,
        last_used_ms=0,
        expected_loss=7_000.5,
        hot_key="AAPL",
        hot_rows=100_000,
    )
    out = Console(file=io.StringIO(), width=width)
    out.print(groups_table([group], out), highlight=False)
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    head, row, *note = text.splitlines()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for cell in ("9/511", "11.8 MiB", "135,802", "12,345,678", "AAPL, 74 %"):
        assert cell in row
    gone = [title for title in HEAD if title not in re.split(r"\s{2,}", head.strip())]
    told = [title for title in HEAD if any(title in line for line in note)]
    assert set(gone) <= set(told)
    assert bool(gone) == (width < 150)


# --- a tree of joins -------------------------------------------------------------------------


@pytest.fixture
def tree(warehouse: Warehouse, tmp_path: Path) -> Made:
    """Eight groups of each of four joins, of which slot 0 owns four."""
    made = tree_day(tmp_path, 12, groups_depth=3)
    fill_journal(warehouse, made.entries)
    write_statistics(warehouse, 11, made.entries[0].groups, joins=4)
    return made


def printed(answers: Answers) -> str:
    out = Console(file=io.StringIO(), width=200)
    out.print(table(answers, (), dry_run=True))
    return out.file.getvalue()  # type: ignore[attr-defined]


def test_groups_of_a_tree_are_named_by_their_join(settings: Settings, tree: Made) -> None:
    wishes = RebalanceRequest(
        moves=("judged:3/1:1", "whole:3/2:1"), splits=("traded:3/0",), merges=("paired:2/3",)
    )
    answers = by_hand.request(settings, wishes, "why", "me", dry_run=True, clock=system_clock)
    joins = {name: number for number, name in enumerate(JOINS)}
    assert [command.kind for command, _ in answers] == ["split", "merge", "move", "move"]
    moves = [command.move.group for command, _ in answers if command.kind == "move"]
    assert moves == [
        spaces(4)[joins[n]].part(Prefix(3, v)) for n, v in (("judged", 1), ("whole", 2))
    ]
    text = printed(answers)
    assert "split traded:3/0" in text
    assert "merge paired:2/3" in text
    assert "move judged:3/1, whole:3/2 to slot 1" in text
    asked = as_json(answers, ())["asked"]
    assert [each["group"] for each in asked] == [
        *("traded:3/0", "paired:2/3", "judged:3/1", "whole:3/2"),
    ]


def test_what_is_about_no_group_names_none(settings: Settings, tree: Made) -> None:
    wishes = RebalanceRequest(spills=("0:1KiB",))
    answers = by_hand.request(settings, wishes, "", "me", dry_run=True, clock=system_clock)
    assert [each["group"] for each in as_json(answers, ())["asked"]] == [None]


def test_one_join_s_groups_are_named_as_ever(settings: Settings, warehouse: Warehouse) -> None:
    uneven(warehouse)
    wishes = RebalanceRequest(moves=("3/1:1",))
    answers = by_hand.request(settings, wishes, "", "me", dry_run=True, clock=system_clock)
    assert [each["group"] for each in as_json(answers, ())["asked"]] == ["3/1"]


@pytest.mark.parametrize(
    ("move", "says"),
    [
        ("3/1:1", "'3/1' is not a group: write JOIN:DEPTH/VALUE, for example traded:9/17; "),
        ("other:3/1:1", "there is no join 'other'; the joins are traded, judged, paired, whole"),
        ("judged:3/1", "'judged:3/1': '3/1' is no"),
        ("judged", "'judged': write, for example, --move traded:9/17:1"),
    ],
)
def test_a_group_of_a_tree_without_its_join_is_refused(
    settings: Settings, tree: Made, move: str, says: str
) -> None:
    with pytest.raises(RequestRefused) as refused:
        by_hand.request(settings, RebalanceRequest(moves=(move,)), "", "me", clock=system_clock)
    assert says in str(refused.value)


def test_the_largest_groups_are_those_of_a_join(
    settings: Settings, warehouse: Warehouse, tree: Made
) -> None:
    everything = largest_groups(warehouse, 100)
    assert {each.group.split(":")[0] for each in everything} == set(JOINS)
    own = largest_groups(warehouse, 100, "judged")
    assert own == [each for each in everything if each.group.startswith("judged:")]
    assert len(own) > 2
    assert len(largest_groups(warehouse, 2, "judged")) == 2
    with pytest.raises(UnknownJoin, match="there is no join 'x'; the joins are traded"):
        largest_groups(warehouse, 2, "x")
