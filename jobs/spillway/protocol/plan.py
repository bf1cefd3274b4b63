"""The plan of one epoch: a pure function of the journal, the input's end and the commands.

The plan says everything that the epoch's job needs; the job decides nothing but what only the
state itself can tell (which groups a full slot spills). Two attempts of one epoch may differ in
their files and cuts: only the one that the journal names exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spillway.protocol.adapt import adapt, carried_out, moved
from spillway.protocol.deferral import deferred_cuts, not_deferrable, rows_to_read
from spillway.protocol.limit import intake_held
from spillway.protocol.losses import obey_losses, what_is_left
from spillway.protocol.offsets import greater, padded, reaches
from spillway.protocol.recovery import Restore, carry_of, restore_of
from spillway.protocol.seal import flushed, obey
from spillway.protocol.state import (
    Groups,
    JournalState,
    carries,
    expired_by,
    watermarks,
    with_deferred,
)
from spillway_schemas.commands import (
    AdaptationCommand,
    CommandLine,
    EndCommand,
    UnreadableCommand,
)
from spillway_schemas.journal import (
    CommandOutcome,
    Cut,
    EpochFacts,
    EventTime,
    Move,
    Offsets,
    Prefix,
    SealRequest,
)

MOST_MOVED_BYTES = 64 << 20


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
    """Where the epoch's input begins: at the journal's end, or behind what is lost. Has every
    partition that `end` has, like every offsets of the plan: a topic may gain one."""
    end: Offsets
    seal: SealRequest | None
    """The end of the open session, when one is pending: rows at or beyond it are the next's."""
    accepted: SealRequest | None
    """The same, when this epoch is the one that accepts it."""
    withdrawn: str
    """The id of the pending seal that this epoch takes back; empty: of none."""
    sealing: bool
    """Whether this epoch ends the open session."""
    flush: tuple[Prefix, ...]
    """When sealing: the ranges of which what is in memory becomes a generation; see `flushed`."""
    before: Groups
    """The assignment of the epoch before."""
    groups: Groups
    """The assignment from this epoch on; where it differs, groups move in this epoch."""
    moved: tuple[Move, ...]
    """Moves that this epoch carries out."""
    queue: tuple[Move, ...]
    """Moves that are left for later epochs."""
    forced: tuple[tuple[int, int], ...]
    """(slot, bytes): what slots must spill whatever their memory."""
    budgets: Mapping[int, int]
    """Bytes by slot, where a command has set them; the others have the stream's own budget."""
    manifests: tuple[tuple[int, str | None], ...]
    """Per slot of either assignment, the manifest of the epoch before that its task must load;
    None: start empty."""
    outcomes: tuple[CommandOutcome, ...]
    restore: Restore | None
    deferred: tuple[Cut, ...] = ()
    """Cuts by reference of what lost slots had in memory, where that is not restored."""
    deferred_slots: tuple[int, ...] = ()
    lost_to: Offsets = field(default_factory=dict)
    """What is accepted as lost once the commands are obeyed (`spillway.protocol.losses`)."""
    commands_n: int = -1
    """Number up to which all commands are answered by then."""
    event_time: EventTime | None = None
    """None: the query has no window."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Per session the watermark of the epoch before, by which this one's rows are judged; a session
    that begins with this epoch has none."""
    expired_by: Mapping[str, int] = field(default_factory=dict)
    """Per session the watermark by which its rows expire in this epoch."""
    carry: Restore | None = None
    """Rows of the session before that this epoch carries into the open one (`session.carry`)."""
    reach: Mapping[str, tuple[tuple[Prefix, int], ...]] = field(default_factory=dict)
    """Of a query with windows: per session the ranges that were ever cut, with the greatest time of
    what was."""
    may_return: bool = True
    """Whether spilled generations may come back. They give results, so none does while no row may
    be read (`intake_held`)."""


def plan_epoch(
    state: JournalState,
    end: Offsets,
    commands: Iterable[CommandLine],
    next_session: str,
    lost: frozenset[int] = frozenset(),
    *,
    now: str = "",
    most_moved_bytes: int = MOST_MOVED_BYTES,
    commands_n: int = -1,
    history: Iterable[EpochFacts] = (),
    most_restored_rows: int | None = None,
) -> Plan:
    """Plan the epoch after `state`.

    `end`: where the epoch's input ends, unless what is accepted as lost reaches further.
    `next_session`: the calendar's session after the open one. `lost`: slots that start from
    nothing: what they had is restored, or left to cleanup. `now`: RFC 3339, for commands that
    expire. `most_moved_bytes`: state that one epoch may move,
    unless a group is larger. `commands_n`: number up to which all commands are given, or seen by
    the journal. `history`: what `restore_of` and `carry_of` need of the past.
    `most_restored_rows`: when more would have to be read again for the lost slots, what they had is
    left to cleanup (not where `not_deferrable` says why); None: it is read, however much it is.
    Raises `ValueError` when `end` lies before the journal's end.
    """
    end = padded(end, greater(state.end, end))
    if not reaches(end, state.end):
        raise ValueError(f"epoch {state.epoch + 1} would end at {end}, before {state.end}")
    new = unseen(state, commands)
    losses = obey_losses(state, new)
    end = greater(end, losses.lost_to)
    obeyed = obey(state, [c for c in new if isinstance(c, EndCommand)], next_session)
    adapted = adapt(state, [c for c in new if isinstance(c, AdaptationCommand)], now)
    unreadable = [_refused(c) for c in new if isinstance(c, UnreadableCommand)]
    # Lost groups begin where they were: what moves, moves in a later epoch.
    count = 0 if lost else carried_out(adapted.queue, most_moved_bytes, state.memory)
    groups = moved(adapted.groups, adapted.queue[:count])
    owners = {slot for _, slot in groups}
    slots = sorted({slot for _, slot in state.groups} | owners)
    answered = (*obeyed.outcomes, *losses.outcomes, *adapted.outcomes, *unreadable)
    outcomes = {each.id: each for each in answered}
    accepted = obeyed.accepted and _widened(obeyed.accepted, end)
    seal = obeyed.pending and _widened(obeyed.pending, end)
    sealing = seal is not None and reaches(end, seal.end)
    marks = watermarks(state.sessions)
    if accepted is not None and carries(state) and state.session.date in marks:
        marks[accepted.next_session] = marks[state.session.date]
    history = list(history)
    restore, deferred = restore_of(state, lost, history), tuple[Cut, ...]()
    restore = restore and what_is_left(restore, losses.lost_to)
    carry = carry_of(state, history)
    left: frozenset[int] = frozenset()
    deferrable = most_restored_rows is not None and not not_deferrable(state.genesis)
    if restore is not None and deferrable and rows_to_read(restore) > (most_restored_rows or 0):
        left, restore, deferred = restore.slots, None, deferred_cuts(state, lost)
        state = with_deferred(state, deferred)
    return Plan(
        epoch=state.epoch + 1,
        term=state.term,
        n=state.n + 1,
        session=state.session.date,
        start=greater(padded(state.end, end), losses.lost_to),
        end=end,
        seal=seal,
        accepted=accepted,
        withdrawn=obeyed.withdrawn,
        sealing=sealing,
        flush=flushed(state.genesis.parents, state.session.last_cuts, outer=state.genesis.outer)
        if sealing
        else (),
        before=state.groups,
        groups=groups,
        moved=adapted.queue[:count],
        queue=adapted.queue[count:],
        forced=adapted.forced,
        budgets={slot: n for slot, n in adapted.budgets.items() if slot in owners},
        manifests=tuple(
            (slot, None if slot in lost else state.manifests.get(slot)) for slot in slots
        ),
        outcomes=tuple(outcomes[command.id] for command in new),
        commands_n=max(state.commands_n, commands_n),
        restore=restore,
        deferred=deferred,
        deferred_slots=tuple(sorted(left)),
        lost_to=losses.lost_to,
        event_time=state.genesis.event_time,
        watermarks=marks,
        expired_by={s.date: us for s in state.sessions if (us := expired_by(s)) is not None},
        carry=carry and what_is_left(carry, losses.lost_to),
        reach={each.date: tuple(each.reach.items()) for each in state.sessions if each.reach},
        may_return=not intake_held(state),
    )


def _refused(command: UnreadableCommand) -> CommandOutcome:
    """What cannot be read is answered, too: nobody may wait for it."""
    return CommandOutcome(
        id=command.id,
        decision=command.decision,
        kind=command.kind,
        obeyed=False,
        reason=command.problem,
        by=command.by,
    )


def _widened(seal: SealRequest, end: Offsets) -> SealRequest:
    """The seal with a partition that a topic has gained since: all its rows are the next's."""
    return seal.model_copy(update={"end": padded(seal.end, end)})


def unseen(state: JournalState, commands: Iterable[CommandLine]) -> list[CommandLine]:
    """The commands that the journal has not seen, each id once, in the order given."""
    new: dict[str, CommandLine] = {}
    for command in commands:
        if command.id not in state.seen:
            new.setdefault(command.id, command)
    return list(new.values())


def waits(state: JournalState, commands: Iterable[CommandLine]) -> bool:
    """Whether an epoch has work even if no row came: a command, a move, rows of the session before
    that are to be carried over, or a seal in reach."""
    if state.moves or state.session.waits_for_rows or unseen(state, commands):
        return True
    return state.seal is not None and reaches(state.end, state.seal.end)
