"""What `spillway rebalance` prints: what was asked for and why, and what was not and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from spillway.policy.view import Declined
from spillway.rebalance.asking import Answers
from spillway.report.words import bytes_text, visible
from spillway_schemas.commands import (
    AdaptationCommand,
    BudgetCommand,
    MergeCommand,
    MoveCommand,
    SlotsCommand,
    SpillCommand,
    SplitCommand,
)
from spillway_schemas.hash_space import group_text
from spillway_schemas.journal import Prefix

NAMED = 3
"""Groups of one kind of move that are named; the rest is counted (`--json` has all)."""


def as_json(answers: Answers, declined: Iterable[Declined]) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "asked": [
            {
                "command": c.model_dump(),
                "group": None if (group := _group(c)) is None else group_text(group, answers.joins),
                "outcome": o.model_dump(),
            }
            for c, o in answers
        ],
        "declined": [asdict(each) for each in declined],
    }


def table(answers: Answers, declined: Iterable[Declined], *, dry_run: bool) -> Table:
    """A row for each thing that would be done, or was asked for, and for each that was not."""
    found = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("what", "", "why"):
        found.add_column(title, overflow="fold")
    said = "would be asked for" if dry_run else "asked for"
    for commands, verdict in _alike(answers):
        why = commands[0].reason
        if verdict is not None:
            why = verdict + (f" (wanted because: {why})" if why else "")
        what = _what(commands, answers.joins)
        found.add_row(what, said if verdict is None else "refused", Text(visible(why)))
    for each in declined:
        found.add_row(Text(visible(f"no {each.what}")), "", Text(visible(each.why)))
    return found


def _alike(answers: Answers) -> list[tuple[list[AdaptationCommand], str | None]]:
    """Moves to one slot for one reason belong together; anything else stands alone."""
    found: dict[object, tuple[list[AdaptationCommand], str | None]] = {}
    for command, outcome in answers:
        verdict = None if outcome.obeyed else outcome.reason
        key: object = command.id
        if isinstance(command, MoveCommand):
            key = (command.move.to, command.reason, verdict)
        found.setdefault(key, ([], verdict))[0].append(command)
    return list(found.values())


def _group(command: AdaptationCommand) -> Prefix | None:
    """The one group that a command is about."""
    match command:
        case MoveCommand():
            return command.move.group
        case SplitCommand() | MergeCommand():
            return command.group
        case _:
            return None


def _what(commands: Sequence[AdaptationCommand], joins: Sequence[str]) -> str:
    """Commands that belong together, in a few words. `joins`: the names of the query's."""
    first = commands[0]
    match first:
        case MoveCommand():
            moves = [command.move for command in commands if isinstance(command, MoveCommand)]
            names = ", ".join(group_text(move.group, joins) for move in moves[:NAMED])
            if len(moves) > NAMED:
                names += f" and {len(moves) - NAMED:,} more"
            size = bytes_text(sum(move.bytes for move in moves))
            return f"move {names} to slot {first.move.to} ({size})"
        case SpillCommand():
            return f"spill {bytes_text(first.bytes)} at slot {first.slot}"
        case BudgetCommand():
            size = bytes_text(first.bytes) if first.bytes else "state.budget_bytes"
            return f"budget of slot {first.slot}: {size}"
        case SlotsCommand():
            size = bytes_text(sum(move.bytes for move in first.moves))
            return f"{first.slots} slots ({len(first.moves):,} moves, {size})"
        case SplitCommand() | MergeCommand():
            return f"{first.kind} {group_text(first.group, joins)}"
