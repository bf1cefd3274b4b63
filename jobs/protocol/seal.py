"""How a session ends.

A seal names an end offset for every topic partition. It is accepted in one epoch and fulfilled
in the first epoch (the same or a later one) whose offsets have reached that end everywhere. In
between two sessions are open: rows at or beyond the end belong to the next one. Where rows
beyond the named end are in the journal already, the session ends at the greater of the two:
results that were given are not taken back.

Sealing again is a no-op; a seal of any session but the open one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jobs.protocol.offsets import greater, padded
from jobs.protocol.state import JournalState, Session
from schemas.journal import Command, CommandOutcome, Cut, Prefix, Sealed, SealRequest

CLEANUP_DEPTH = 6
"""Cleanup's units of work are at most 2**6 = 64 hash ranges of equal width: enough to share out
and to show progress, few enough that their commits cost nothing."""


@dataclass(frozen=True)
class Obeyed:
    """What the commands of an epoch come to."""

    outcomes: tuple[CommandOutcome, ...]
    seal: SealRequest | None


def obey(state: JournalState, commands: Iterable[Command], next_session: str) -> Obeyed:
    """Obey or refuse each seal, in the order given; none of them has the journal seen."""
    outcomes: list[CommandOutcome] = []
    accepted: SealRequest | None = None
    for command in commands:
        pending = accepted or state.seal
        ok, reason = True, ""
        if command.session in state.sealed:
            reason = "already sealed"
        elif pending is not None and pending.session == command.session:
            reason = "a seal of this session is pending already"
        elif command.session != state.session.date:
            ok, reason = False, f"not the open session: that is {state.session.date}"
        else:
            end = greater(padded(command.offsets, state.end), state.end)
            accepted = SealRequest(
                session=command.session, end=end, next_session=next_session, command=command.id
            )
            reason = command.reason
        outcomes.append(
            CommandOutcome(
                id=command.id, kind=command.kind, obeyed=ok, reason=reason, by=command.by
            )
        )
    return Obeyed(tuple(outcomes), accepted)


def cleanup_ranges(cut: Iterable[Prefix]) -> list[Prefix]:
    """Disjoint ranges of one width that cover every range given, in ascending order."""
    units: set[int] = set()
    for prefix in cut:
        if prefix.depth >= CLEANUP_DEPTH:
            units.add(prefix.value >> (prefix.depth - CLEANUP_DEPTH))
        else:
            width = CLEANUP_DEPTH - prefix.depth
            units.update(range(prefix.value << width, (prefix.value + 1) << width))
    return [Prefix(CLEANUP_DEPTH, value) for value in sorted(units)]


def seal_session(
    session: Session, end: SealRequest, epoch: int, cuts: Iterable[Cut], results: int, rows: int
) -> Sealed:
    """The record of a session that ends in `epoch`, with this epoch's cuts and counts."""
    mine = [c for c in cuts if c.session == session.date]
    return Sealed(
        session=session.date,
        epoch=epoch,
        start=session.start,
        end=end.end,
        ranges=cleanup_ranges([*session.last_cuts, *(c.range for c in mine)]),
        results=session.results + results,
        spilled_rows=session.spilled_rows + rows,
        generations=session.cuts + len(mine),
    )
