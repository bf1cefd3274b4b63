"""The plan of one epoch: a pure function of the journal, the input's end and the commands.

The plan says everything that the epoch's job needs; the job decides nothing but what only the
state itself can tell (which groups a full slot spills). Two attempts of one epoch may differ in
their files and cuts: only the one that the journal names exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jobs.protocol.offsets import greater, padded, reaches
from jobs.protocol.recovery import Restore, restore_of
from jobs.protocol.seal import obey
from jobs.protocol.state import Groups, JournalState
from schemas.journal import Command, CommandOutcome, Offsets, Prefix, SealRequest


@dataclass(frozen=True)
class Plan:
    """One epoch as it shall be carried out."""

    epoch: int
    term: int
    n: int
    """Number of the journal entry that the epoch will become."""
    session: str
    """The open session."""
    start: Offsets
    """Has every partition that `end` has, like every offsets of the plan: a topic may gain one."""
    end: Offsets
    seal: SealRequest | None
    """The end of the open session, when one is pending: rows at or beyond it are the next's."""
    accepted: SealRequest | None
    """The same, when this epoch is the one that accepts it."""
    sealing: bool
    """Whether this epoch ends the open session."""
    flush: tuple[Prefix, ...]
    """When sealing: every range of the session that was ever cut before this epoch."""
    groups: Groups
    manifests: tuple[tuple[int, str | None], ...]
    """Per slot, the manifest of the epoch before that its task must load; None: start empty."""
    outcomes: tuple[CommandOutcome, ...]
    restore: Restore | None


def plan_epoch(
    state: JournalState,
    end: Offsets,
    commands: Iterable[Command],
    next_session: str,
    lost: frozenset[int] = frozenset(),
) -> Plan:
    """Plan the epoch after `state`.

    `end`: where the epoch's input ends. `next_session`: the calendar's session after the open
    one. `lost`: slots that start from nothing and are restored. Raises `ValueError` when `end`
    lies before the journal's end.
    """
    end = padded(end, greater(state.end, end))
    if not reaches(end, state.end):
        raise ValueError(f"epoch {state.epoch + 1} would end at {end}, before {state.end}")
    obeyed = obey(state, commands, next_session)
    accepted = obeyed.seal and _widened(obeyed.seal, end)
    seal = accepted or (state.seal and _widened(state.seal, end))
    sealing = seal is not None and reaches(end, seal.end)
    return Plan(
        epoch=state.epoch + 1,
        term=state.term,
        n=state.n + 1,
        session=state.session.date,
        start=padded(state.end, end),
        end=end,
        seal=seal,
        accepted=accepted,
        sealing=sealing,
        flush=tuple(sorted(state.session.last_cuts)) if sealing else (),
        groups=state.groups,
        manifests=tuple(
            (slot, None if slot in lost else name) for slot, name in sorted(state.manifests.items())
        ),
        outcomes=obeyed.outcomes,
        restore=restore_of(state, lost),
    )


def _widened(seal: SealRequest, end: Offsets) -> SealRequest:
    """The seal with a partition that a topic has gained since: all its rows are the next's."""
    return seal.model_copy(update={"end": padded(seal.end, end)})


def waits(state: JournalState, commands: Iterable[Command]) -> bool:
    """Whether an epoch has work to do even if no row came: a command, or a seal in reach."""
    if any(command.id not in state.seen for command in commands):
        return True
    return state.seal is not None and reaches(state.end, state.seal.end)
