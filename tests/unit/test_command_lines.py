"""Lines of the `commands` table: of this version, of others, and damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spillway.protocol.plan import plan_epoch
from spillway.protocol.seal import pending_after
from spillway.protocol.state import begin
from spillway.readmodel.waiting import waiting
from spillway.tables import Warehouse
from spillway_schemas.commands import SpillCommand, UnreadableCommand, command_from
from spillway_schemas.journal import CommandOutcome, Move, Prefix
from tests.commands import command_of
from tests.protocol_entries import DAY, NEXT, closing, ends, genesis
from tests.report_journal import open_warehouse

ALL = [
    command_of("seal", "close", session=DAY, offsets={"a": [1]}),
    command_of("withdraw", "back", session=DAY, seal="close"),
    command_of("move", "d/0", move=Move(group=Prefix(2, 1), to=1, bytes=5)),
    command_of("slots", "d/1", slots=3, moves=[Move(group=Prefix(2, 1), to=2)]),
    command_of("split", "d/2", group=Prefix(2, 1)),
    command_of("merge", "d/3", group=Prefix(1, 0), expires_at="2026-01-05T15:00:00Z"),
    command_of("spill", "d/4", slot=1, bytes=9, policy="p", settings={"k": 0.3}),
    command_of("budget", "d/5", slot=1, assignment_version=4),
]
SEAL, SPILL = (json.loads(ALL[at].model_dump_json()) for at in (0, 6))


@pytest.mark.parametrize("command", ALL, ids=lambda each: each.kind)
def test_what_is_written_is_read_again(command: Any) -> None:
    assert command_from(command.model_dump_json(), 7) == command


@pytest.mark.parametrize(
    ("line", "id_", "why"),
    [
        ({**SPILL, "kind": "rotate"}, "d/4", "Input tag 'rotate' found"),
        ({**SPILL, "urgency": 3}, "d/4", "spill.urgency: Extra inputs are not permitted"),
        ({**SPILL, "bytes": 0}, "d/4", "spill.bytes: Input should be greater than 0"),
        ({k: v for k, v in SPILL.items() if k != "id"}, "line 7", "spill.id: Field required"),
        ({**SPILL, "id": 5}, "line 7", "spill.id: Input should be a valid string"),
        ([SPILL], "line 7", "Input should be an object"),
        ({**SPILL, "id": ""}, "line 7", "spill.id: String should have at least 1 character"),
        ({**SPILL, "bytes": 2**63}, "d/4", "spill.bytes: Input should be less than or equal to"),
        ({**SPILL, "expires_at": "tomorrow"}, "d/4", "spill.expires_at: Value error"),
        ({**SPILL, "expires_at": "2026-01-05T15:00:00"}, "d/4", "a time needs a zone"),
        ({**SPILL, "issued_at": "2026-01-05"}, "d/4", "a time needs a zone"),
        ({**SEAL, "offsets": {"a": [1, -1]}}, "close", "an offset is between 0 and"),
        ({**SEAL, "offsets": {"a": [2**63]}}, "close", "an offset is between 0 and"),
    ],
)
def test_a_line_that_cannot_be_read_says_why(line: Any, id_: str, why: str) -> None:
    found = command_from(json.dumps(line), 7)
    assert isinstance(found, UnreadableCommand)
    assert (found.id, found.decision) == (id_, id_)
    assert why in found.problem
    assert found.problem.startswith("line 7 of the commands table is none that this version knows")


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 100_000])
def test_a_damaged_line_is_no_command(text: str) -> None:
    found = command_from(text, 3)
    assert (found.kind, found.id) == ("unreadable", "line 3")


def test_the_stream_refuses_what_it_cannot_read_and_obeys_the_rest() -> None:
    state = begin(genesis())
    foreign = command_from(json.dumps({**SPILL, "kind": "rotate"}), 0)
    found = plan_epoch(state, ends(1, 1, 1), [foreign, closing(ends(9, 9, 9))], NEXT)
    assert [(each.id, each.kind, each.obeyed) for each in found.outcomes] == [
        ("d/4", "unreadable", False),
        ("close", "seal", True),
    ]
    assert "ask again with this one" in found.outcomes[0].reason
    pending = pending_after(state, [foreign, closing(ends(9, 9, 9))])
    assert pending is not None
    assert pending.command == "close"
    # Once answered, it is not answered again.
    seen = replace(state, seen=frozenset({"d/4"}))
    assert plan_epoch(seen, ends(1, 1, 1), [foreign], NEXT).outcomes == ()


ODD = [
    None,
    -1,
    0,
    2**63,
    10**30,
    1.5,
    "",
    "x",
    "2026-01-05",
    "\x00",
    [],
    {},
    [1],
    [-3, 5],
    [70, 1],
]
LINES = [json.loads(each.model_dump_json()) for each in ALL]


@pytest.mark.parametrize("line", LINES, ids=lambda each: each["kind"])
def test_no_value_of_a_line_ends_the_stream_or_a_look(line: dict[str, Any]) -> None:
    """Whatever one field says, the line is obeyed or refused, and what became of it can be kept."""
    state = begin(genesis())
    for field in line:
        for value in ODD:
            command = command_from(json.dumps({**line, field: value}), 7)
            planned = plan_epoch(state, ends(1, 1, 1), [command], NEXT, now="2026-01-05T15:00:00Z")
            (outcome,) = planned.outcomes
            assert CommandOutcome.model_validate_json(outcome.model_dump_json()) == outcome


def test_readers_of_the_table_go_on_behind_such_a_line(tmp_path: Path) -> None:
    warehouse: Warehouse = open_warehouse(str(tmp_path / "w"))
    strange = UnreadableCommand(id="x", problem="as another version would write it")
    warehouse.commands.append(strange, SpillCommand(id="d/0", decision="d", slot=0, bytes=1))  # type: ignore[arg-type]
    assert [each.command.kind for each in warehouse.commands.read()] == ["unreadable", "spill"]
    state = begin(genesis())
    told = waiting(warehouse, state, datetime.now(UTC))
    assert [(each.id, each.kinds) for each in told] == [
        ("d", {"spill": 1}),
        ("x", {"unreadable": 1}),
    ]


def test_entries_from_before_decisions_had_a_field() -> None:
    move = {"group": [2, 1], "to": 1, "bytes": 5}
    assert Move.model_validate({**move, "command": "p/ab/3"}).decision == "p/ab"
    assert Move.model_validate({**move, "command": "alone"}).decision == "alone"
    assert Move.model_validate({**move, "decision": "p/ab"}).decision == "p/ab"
    outcome = {"kind": "move", "obeyed": True}
    assert CommandOutcome.model_validate({**outcome, "id": "p/ab/3"}).decision == "p/ab"
    assert (
        CommandOutcome.model_validate({**outcome, "id": "p/ab/3", "decision": "q"}).decision == "q"
    )


def test_what_waits_is_what_the_stream_would_not_refuse_as_expired(tmp_path: Path) -> None:
    """Kills: at the very moment the stream refuses what a look calls waiting; the reason of a
    decision is that of its last command."""
    warehouse = open_warehouse(str(tmp_path / "w"))
    ends_at = datetime(2026, 1, 5, 15, tzinfo=UTC)
    given = {"slot": 0, "bytes": 1, "expires_at": ends_at.isoformat()}
    commands = [command_of("spill", f"d/{k}", reason=f"reason {k}", **given) for k in range(2)]
    warehouse.commands.append(*commands)
    state = begin(genesis())
    for moment in (ends_at - timedelta(microseconds=1), ends_at):
        told = waiting(warehouse, state, moment)
        planned = plan_epoch(state, ends(1, 1, 1), commands, NEXT, now=moment.isoformat())
        expired = [each.reason.startswith("expired at") for each in planned.outcomes]
        assert expired == [moment == ends_at] * 2
        assert [each.reason for each in told] == (["reason 0"] if moment < ends_at else [])
