"""What every way of asking for an adaptation shares: looking at the journal, appending commands."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobs.protocol.adapt import adapt
from jobs.protocol.state import JournalState, replay
from jobs.stream.genesis import rfc3339
from jobs.tables import Warehouse
from schemas.journal import Claim, Command, CommandOutcome, Epoch, Genesis
from schemas.settings import Settings

Answers = list[tuple[Command, CommandOutcome]]


class WishRefused(Exception):
    """What was asked for cannot be asked for (exit code 2)."""


def look(settings: Settings) -> tuple[Warehouse, list[Genesis | Claim | Epoch], JournalState]:
    """The warehouse, its journal and what that comes to. Raises `WishRefused` when it is empty."""
    warehouse = Warehouse(settings.warehouse.root, fsync=settings.warehouse.fsync)
    entries = list(warehouse.journal.read())
    state = replay(entries)
    if state is None:
        raise WishRefused("the journal is empty: start `spillway stream` first")
    return warehouse, entries, state


def ask(
    warehouse: Warehouse, state: JournalState, commands: Sequence[Command], *, dry_run: bool
) -> Answers:
    """Append the commands, each with what the stream would answer now.

    A command that would be refused is not appended. The stream has the last word: it may refuse
    later what looks right now.
    """
    outcomes = adapt(state, commands, now()).outcomes
    right = [c for c, o in zip(commands, outcomes, strict=True) if o.obeyed]
    if right and not dry_run:
        # Together: one that the stream read alone would make the others' assignment an old one.
        warehouse.commands.append(*right)
    return list(zip(commands, outcomes, strict=True))


def now(later_s: float = 0.0) -> str:
    """The time, or that some seconds later, as RFC 3339."""
    return rfc3339(time.time_ns() // 1_000_000 + int(later_s * 1000))
