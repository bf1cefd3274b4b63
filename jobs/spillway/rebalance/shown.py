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
from spillway_schemas.journal import Command

NAMED = 3
"""Groups of one kind of move that are named; the rest is counted (`--json` has all)."""


def as_json(answers: Answers, declined: Iterable[Declined]) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "asked": [{"command": c.model_dump(), "outcome": o.model_dump()} for c, o in answers],
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
        found.add_row(_what(commands), said if verdict is None else "refused", Text(visible(why)))
    for each in declined:
        found.add_row(Text(visible(f"no {each.what}")), "", Text(visible(each.why)))
    return found


def _alike(answers: Answers) -> list[tuple[list[Command], str | None]]:
    """Moves to one slot for one reason belong together; anything else stands alone."""
    found: dict[object, tuple[list[Command], str | None]] = {}
    for command, outcome in answers:
        verdict = None if outcome.obeyed else outcome.reason
        moves = command.kind == "move"
        key = (command.moves[0].to, command.reason, verdict) if moves else command.id
        found.setdefault(key, ([], verdict))[0].append(command)
    return list(found.values())


def _what(commands: Sequence[Command]) -> str:
    """Commands that belong together, in a few words."""
    first = commands[0]
    match first.kind:
        case "move":
            moves = [command.moves[0] for command in commands]
            names = ", ".join(move.group.text for move in moves[:NAMED])
            if len(moves) > NAMED:
                names += f" and {len(moves) - NAMED:,} more"
            size = bytes_text(sum(move.bytes for move in moves))
            return f"move {names} to slot {moves[0].to} ({size})"
        case "spill":
            return f"spill {bytes_text(first.bytes)} at slot {first.slot}"
        case "budget":
            size = bytes_text(first.bytes) if first.bytes else "state.budget_bytes"
            return f"budget of slot {first.slot}: {size}"
        case "slots":
            size = bytes_text(sum(move.bytes for move in first.moves))
            return f"{first.slots} slots ({len(first.moves):,} moves, {size})"
        case _:
            return f"{first.kind} {first.group.text if first.group is not None else ''}"
