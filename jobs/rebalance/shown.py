"""What `spillway rebalance` prints: what was asked for and why, and what was not and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from jobs.policy.view import Declined, name
from jobs.rebalance.asking import Answers
from schemas.journal import Command


def as_json(answers: Answers, declined: Iterable[Declined]) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "asked": [{"command": c.model_dump(), "outcome": o.model_dump()} for c, o in answers],
        "declined": [asdict(each) for each in declined],
    }


def lines(answers: Answers, declined: Iterable[Declined], *, dry_run: bool) -> Iterator[str]:
    """A line for each."""
    for command, outcome in answers:
        said = "would be asked for" if dry_run else "asked for"
        verdict = said if outcome.obeyed else f"refused: {outcome.reason}"
        why = f" ({command.reason})" if command.reason else ""
        yield f"{what(command)}: {verdict}{why}"
    for each in declined:
        yield f"no {each.what}: {each.why}"


def what(command: Command) -> str:
    """A command in a few words."""
    group = name(command.group) if command.group is not None else ""
    match command.kind:
        case "move":
            move = command.moves[0]
            return f"move {name(move.group)} to slot {move.to} ({move.bytes:,} bytes)"
        case "spill":
            return f"spill {command.bytes:,} bytes at slot {command.slot}"
        case "slots":
            total = sum(move.bytes for move in command.moves)
            return f"{command.slots} slots ({len(command.moves)} moves, {total:,} bytes)"
        case _:
            return f"{command.kind} {group}"
