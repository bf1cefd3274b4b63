"""How a session ends.

A seal names an end offset for every topic partition. It is accepted in one epoch and fulfilled
in the first epoch (the same or a later one) whose offsets have reached that end everywhere. In
between two sessions are open: rows at or beyond the end belong to the next one. Where rows
beyond the named end are in the journal already, the session ends at the greater of the two:
results that were given are not taken back.

Sealing again is a no-op; a seal of any session but the open one is refused.

A seal that is pending can be withdrawn, and then it is as if it had never been: its session stays
open and the next one, which has no row yet, does not exist. So it is refused from the first epoch
on that has read to beyond the seal's end on any partition: those rows are the next session's
already, results and cuts of them are in the tables under its date, and a row's session may never
change. The epoch that withdraws a seal may itself read beyond its end: those rows are the open
session's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spillway.protocol.offsets import greater, least, padded, partitions, reaches, wider
from spillway.protocol.state import JournalState, OpenSession, brought
from spillway_schemas.commands import CommandLine, EndCommand, SealCommand, WithdrawCommand
from spillway_schemas.hash_space import ROOT, above, joins_of, spaces
from spillway_schemas.journal import (
    Claim,
    CommandOutcome,
    Cut,
    EpochFacts,
    Genesis,
    Offsets,
    Prefix,
    Sealed,
    SealRequest,
)

CLEANUP_DEPTH = 6
"""Cleanup's units of work are at most 2**6 = 64 hash ranges of equal width: enough to share out
and to show progress, few enough that their commits cost nothing."""


LATER = "9999-12-31"
"""Comes after every session."""


@dataclass(frozen=True)
class Obeyed:
    """What the commands of an epoch come to."""

    outcomes: tuple[CommandOutcome, ...]
    accepted: SealRequest | None
    """The seal that is accepted now."""
    withdrawn: str = ""
    """The id of the pending seal that is taken back now."""
    pending: SealRequest | None = None
    """The seal that is pending then: this one, or one of an earlier epoch."""


def obey(state: JournalState, commands: Iterable[EndCommand], next_session: str) -> Obeyed:
    """Obey or refuse each seal and withdrawal, in the order given; the journal has seen none."""
    outcomes: list[CommandOutcome] = []
    pending, accepted, withdrawn = state.seal, None, ""
    for command in commands:
        ok = True
        match command:
            case WithdrawCommand():
                reason = not_withdrawable(state, pending, command.session, command.seal)
                ok = not reason
                if ok:
                    withdrawn = withdrawn or ("" if accepted else command.seal)
                    pending = accepted = None
            case SealCommand() if not (reason := already(state, pending, command.session)):
                reason = not_sealable(state, command.session, next_session)
                if not reason and state.before and state.end.keys() - command.offsets.keys():
                    reason = "it was asked for before the query changed, which has more topics now"
                ok = not reason
                if ok:
                    end = greater(padded(command.offsets, state.end), state.end)
                    pending = accepted = SealRequest(
                        session=command.session,
                        end=end,
                        next_session=next_session,
                        command=command.id,
                    )
        outcomes.append(
            CommandOutcome(
                id=command.id,
                decision=command.decision,
                kind=command.kind,
                obeyed=ok,
                reason=reason or command.reason,
                by=command.by,
            )
        )
    return Obeyed(tuple(outcomes), accepted, withdrawn, pending)


def pending_after(
    state: JournalState, commands: Iterable[CommandLine], next_session: str = LATER
) -> SealRequest | None:
    """The seal that is pending once these commands are obeyed; None when none is.

    Commands of other kinds are passed over; the journal has seen none of these. Without
    `next_session`, which session follows does not matter.
    """
    mine = [c for c in commands if isinstance(c, EndCommand)]
    return obey(state, mine, next_session).pending


def no_further(
    state: JournalState,
    end: Offsets,
    commands: Iterable[CommandLine],
    next_session: str,
    session: str,
) -> Offsets:
    """Where an epoch ends that might read up to `end`, so that it reads nothing beyond a session's
    seal, once that is pending. Then the next session has no row, and its query may be another one.
    """
    seal = pending_after(state, commands, next_session)
    if seal is None or seal.session != session:
        return end
    end = padded(end, greater(state.end, end))
    # What was read beyond it before stays read.
    return greater(least(end, padded(seal.end, end)), padded(state.end, end))


def already(state: JournalState, pending: SealRequest | None, session: str) -> str:
    """Why a seal of the session changes nothing; empty when it would.

    `pending`: the state's seal, or the one that is about to be accepted.
    """
    if session in state.sealed:
        return f"{session} is sealed already (epoch {state.sealed[session].epoch})"
    if pending is not None and pending.session == session:
        return f"a seal of {session} is pending already"
    return ""


def not_sealable(state: JournalState, session: str, next_session: str) -> str:
    """Why a session cannot be sealed; empty when it can."""
    if session != state.session.date:
        open_ = state.session.date
        return f"not the open session: that is {open_}; `spillway seal --session {open_}` ends it"
    if not next_session > session:
        # Only a warehouse from before dates were checked has such a session.
        return (
            f"{session!r} is not written YYYY-MM-DD, so {next_session} does not come after it in "
            "the tables. Name a new warehouse.root and join its rows again there"
        )
    return ""


def not_sealed(state: JournalState, session: str, commands: Iterable[CommandLine]) -> str:
    """Why a session is not sealed, and what to do; empty when it is.

    `commands`: those that the journal has not seen. A seal among them is as good as a pending one.
    """
    if session in state.sealed:
        return ""
    pending = pending_after(state, commands)
    if pending is not None and pending.session == session:
        return (
            f"session {session} is being sealed, but not all of its input has been read yet: "
            f"let `spillway stream --until-sealed {session}` reach its end first"
        )
    open_ = [s.date for s in state.sessions]
    if session in open_:
        return (
            f"session {session} is not sealed: more rows may come. Run "
            f"`spillway seal --session {session}`, and let `spillway stream` obey it"
        )
    known = ", ".join(sorted(state.sealed)) or "none"
    return f"session {session} is not in the journal (sealed: {known}; open: {', '.join(open_)})"


def carried_from(
    genesis: Genesis, sealed: Sealed, entries: Iterable[Genesis | Claim | EpochFacts]
) -> Offsets:
    """Where the rows begin that the session's results have: its own, or those that it carries."""
    if sealed.carried is None:
        return sealed.start
    since = sealed.carried.since
    ends = {each.epoch: each.end for each in entries if isinstance(each, EpochFacts)}
    return genesis.start if since <= genesis.after else ends[since]


def not_withdrawable(
    state: JournalState, pending: SealRequest | None, session: str, seal: str
) -> str:
    """Why the seal `seal` of a session cannot be taken back; empty when it can.

    `pending`: the state's seal, or the one that is about to be accepted.
    """
    if session in state.sealed:
        return f"{session} is sealed since epoch {state.sealed[session].epoch}: that is final"
    if pending is None or pending.session != session:
        return f"no seal of {session} is pending"
    if pending.command != seal:
        return f"another seal of {session} is pending: {pending.command}"
    if reaches(pending.end, state.end):
        return ""
    like = wider(pending.end, state.end)
    ends, now = padded(pending.end, like), padded(state.end, like)
    read = [f"{t}/{p} to {at}" for t, p, at in partitions(now) if at > ends[t][p]]
    left = [f"{t}/{p} from {now[t][p]} to {at}" for t, p, at in partitions(ends) if at > now[t][p]]
    return (
        f"rows beyond its end are read and belong to {pending.next_session} ({', '.join(read)}). "
        f"{session} is sealed once the rest has been read: {', '.join(left)}"
    )


def flushed(
    parents: Sequence[int], cut: Iterable[Prefix], *, outer: bool = False
) -> tuple[Prefix, ...]:
    """The ranges that a seal flushes, when `cut` were ever cut: what they hold in memory becomes
    their last generation.

    All else is complete, and dropped. A join above one that was cut is flushed whole: what that one
    still lacks will be rows of it, and may join any. `outer`: so is a join whose results may lack
    rows of some input: which keys lack them is known only now, and cleanup must see all that the
    others have.
    """
    ranges = set(cut)
    if outer:
        return tuple(sorted(ranges | set(spaces(len(parents)))))
    joins = {join for each in ranges for join in joins_of(each, len(parents))}
    own = spaces(len(parents))
    return tuple(sorted(ranges | {own[join] for join in above(parents, joins)}))


def cleanup_ranges(cut: Iterable[Prefix], joins: int = 1) -> list[Prefix]:
    """Disjoint ranges, of one width in each join, that cover every range given, in ascending order:
    those of a join come after those of the joins below it."""
    units: list[Prefix] = []
    given = set(cut)
    for space in spaces(joins):
        depth = space.depth + CLEANUP_DEPTH
        values: set[int] = set()
        for prefix in given:
            if not prefix.overlaps(space):
                continue
            own = max(prefix, space)  # the finer of the two: one covers the other
            if own.depth >= depth:
                values.add(own.value >> (own.depth - depth))
            else:
                width = depth - own.depth
                values.update(range(own.value << width, (own.value + 1) << width))
        units += [Prefix(depth, value) for value in sorted(values)]
    return units


def seal_session(
    session: OpenSession,
    end: SealRequest,
    epoch: int,
    cuts: Iterable[Cut],
    results: int,
    rows: int,
    parents: Sequence[int] = (ROOT,),
    lost_to: Offsets | None = None,
) -> Sealed:
    """The record of a session that ends in `epoch`, with this epoch's cuts and counts. `lost_to`:
    what it has lost (`lost_of`)."""
    mine = [c for c in cuts if c.session == session.date]
    cut = flushed(parents, [*session.last_cuts, *(c.range for c in mine)])
    return Sealed(
        session=session.date,
        epoch=epoch,
        base=session.base,
        start=session.start,
        end=end.end,
        ranges=cleanup_ranges(cut, len(parents)),
        results=session.results + results,
        spilled_rows=session.spilled_rows + rows,
        generations=session.cuts + len(mine),
        carried=brought(session, epoch),
        lost_to=lost_to or {},
    )
