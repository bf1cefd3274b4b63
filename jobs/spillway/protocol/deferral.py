"""Recovery without reading again: a crash as a spill.

A lost slot starts empty at once. What its groups had in memory at the end of epoch b-1 becomes a
generation, by a cut of that epoch, as if it had been spilled then. But no file has these rows: the
cut is *by reference*. The generation is a range of Kafka's offsets (from the last cut of the hash
before it, to the end of b-1), so cleanup reads it there, holds what it reads against the journal's
counts and digests, and writes it as spilled rows before it joins anything.

What it reads is what a restore would have brought back: rows are judged by the watermarks of their
time, and those that had expired when the slot was lost are left out (where they are needed, the
slot had written them when they left memory).

Rows that a join gave are in no topic, and rows of an earlier session that were carried over are of
two generations at once, so trees and sessions that carry rows are restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spillway.protocol.offsets import padded, partitions, reaches
from spillway.protocol.recovery import (
    Deferred,
    Restore,
    SessionRestore,
    expired_before,
    voided,
    watermarks_of,
)
from spillway.protocol.state import JournalState, OpenSession, counted
from spillway_schemas.hash_space import join_of
from spillway_schemas.journal import (
    Claim,
    Cut,
    Epoch,
    Genesis,
    Offsets,
    PartitionCount,
    Prefix,
    Sealed,
)


def not_deferrable(genesis: Genesis) -> str:
    """Why lost state of a warehouse can only be restored; empty when it can be deferred."""
    if len(genesis.parents) > 1:
        return "rows that a join of a tree gave are in no topic"
    if genesis.carry:
        return "rows of the session before are carried into the open one"
    return ""


UNREADABLE = "What slots had in memory when they were lost cannot be read again in Kafka"


def deferred_cuts(state: JournalState, lost: Iterable[int]) -> tuple[Cut, ...]:
    """The cuts by reference of all that lost slots had in memory."""
    slots = {slot for slot in lost if state.manifests.get(slot) is not None}
    ranges = [prefix for prefix, slot in state.groups if slot in slots]
    return tuple(
        Cut(
            session=session.date,
            operator=join_of(each, len(state.genesis.parents)),
            range=each,
            epoch=state.epoch,
            greatest_us=_greatest_us(session),
        )
        for session in state.sessions
        if not reaches(session.start, state.end)  # it has had rows
        for each in ranges
        if session.last_cuts.get(each) != state.epoch  # then nothing of it was in memory
    )


def _greatest_us(session: OpenSession) -> int | None:
    """No less than the greatest time of any row of a session; None: rows have no time."""
    if session.progress is None:
        return None
    times = (each.greatest_us for each in session.progress.heard.values())
    return max((time_us for time_us in times if time_us is not None), default=None)


def rows_to_read(restore: Restore) -> int:
    """How many rows are read again."""
    return sum(part.rows for part in restore.expected)


def deferred_cuts_of(session: str, entries: Iterable[Genesis | Claim | Epoch]) -> list[Cut]:
    """A session's cuts by reference."""
    epochs = (entry for entry in entries if isinstance(entry, Epoch))
    return [cut for each in epochs for cut in each.deferred if cut.session == session]


def deferred_rows(
    genesis: Genesis, sealed: Sealed, entries: Sequence[Genesis | Claim | Epoch]
) -> Restore | None:
    """What must be read again in Kafka before a session is cleaned; None: nothing.

    `entries`: all of the session, and that of its base. Of the cuts by reference nothing is asked
    but which they are: what they hold is what no other cut that holds took before.
    """
    cuts = deferred_cuts_of(sealed.session, entries)
    if not cuts:
        return None
    every = [entry for entry in entries if isinstance(entry, Epoch)]
    epochs = [entry for entry in every if sealed.base < entry.epoch <= sealed.epoch]
    void = voided(sealed.session, epochs)
    spilled = sorted(
        {c.generation for e in epochs for c in e.cuts if c.session == sealed.session} - void
    )
    deferred = sorted({cut.generation for cut in cuts})
    ends = {entry.epoch: entry.end for entry in every}
    ends.setdefault(-1, dict(genesis.start))
    begin = min(_begins(range_, at, spilled + deferred, sealed.base) for range_, at in deferred)
    last = max(at for _, at in deferred)
    marks = sorted({at for _, at in spilled + deferred if at <= last})
    watermarks = watermarks_of(sealed.session, epochs)
    session = SessionRestore(
        session=sealed.session,
        start=padded(sealed.start, ends[last]),
        end=padded(sealed.end, ends[last]),
        cuts=(),
        watermarks=watermarks,
        deferred=Deferred(
            marks=tuple((at, padded(ends[at], ends[last])) for at in marks),
            spilled=tuple(spilled),
            deferred=tuple(deferred),
            expired_by_us=tuple(
                (at, expired_before(sealed.session, [e for e in epochs if e.epoch <= at]))
                for at in sorted({at for _, at in deferred})
            ),
        ),
    )
    return Restore(
        slots=frozenset(),
        read_from=padded(ends[begin], ends[last]),
        read_to=ends[last],
        sessions=(session,),
        expected=tuple(_counted(ends[last], [e for e in epochs if begin < e.epoch <= last])),
    )


def _begins(range_: Prefix, epoch: int, cuts: Iterable[tuple[Prefix, int]], base: int) -> int:
    """An epoch up to which nothing of a generation came: `epoch` ended it, `cuts` are all that
    hold."""
    return max((at for cut, at in cuts if at < epoch and cut.covers(range_)), default=base)


def _counted(end: Offsets, epochs: Iterable[Epoch]) -> Iterable[PartitionCount]:
    """What epochs have read, per topic partition."""
    counts: dict[tuple[str, int], tuple[int, int]] = {}
    for part in [part for each in epochs for part in each.read]:
        counts[part.topic, part.partition] = counted(counts, part)
    for topic, partition, _ in partitions(end):
        rows, digest = counts.get((topic, partition), (0, 0))
        yield PartitionCount(
            topic=topic, partition=partition, rows=rows, rejected=0, filtered=0, digest=digest
        )
