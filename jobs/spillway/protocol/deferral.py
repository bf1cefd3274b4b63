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

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from spillway.protocol.offsets import padded, partitions, reaches
from spillway.protocol.recovery import (
    Deferred,
    Restore,
    SessionRestore,
    expired_before,
    expired_until,
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
    """How many rows are read again, at most."""
    left = {
        (topic, partition): end - begin
        for topic, ends in restore.read_to.items()
        for partition, (begin, end) in enumerate(zip(restore.read_from[topic], ends, strict=True))
    }
    return sum(
        min(part.rows, left[part.topic, part.partition])
        if (part.topic, part.partition) in restore.lossy
        else part.rows
        for part in restore.expected
    )


def deferred_cuts_of(session: str, entries: Iterable[Genesis | Claim | Epoch]) -> list[Cut]:
    """A session's cuts by reference."""
    epochs = (entry for entry in entries if isinstance(entry, Epoch))
    return [cut for each in epochs for cut in each.deferred if cut.session == session]


def deferred_rows(
    genesis: Genesis, sealed: Sealed, entries: Sequence[Genesis | Claim | Epoch]
) -> Restore | None:
    """What must be read again in Kafka before a session is cleaned; None: nothing.

    `entries`: all of the session, and that of its base. A cut by reference holds the rows since the
    last valid cut of the same hashes, so only its range and epoch are needed.
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
    ends[genesis.after] = dict(genesis.start)  # of a changed query, other topics than before
    expired_by_us = tuple(
        (at, expired_before(sealed.session, [e for e in epochs if e.epoch <= at]))
        for at in sorted({at for _, at in deferred})
    )
    gone = {
        at: expired_until(genesis.event_time, us, sealed.base, [e for e in epochs if e.epoch <= at])
        for at, us in expired_by_us
    }
    begin = min(max(since, gone[at]) for since, at in _since(spilled, deferred, sealed.base))
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
            spilled=tuple(cut for cut in spilled if cut[1] <= last),
            deferred=tuple(deferred),
            expired_by_us=expired_by_us,
            held=tuple(_held(epochs)),
        ),
    )
    return Restore(
        slots=frozenset(),
        read_from=padded(ends[begin], ends[last]),
        read_to=ends[last],
        sessions=(session,),
        expected=tuple(read_by(ends[last], [e for e in epochs if begin < e.epoch <= last])),
    )


def _since(
    spilled: Iterable[tuple[Prefix, int]], deferred: Sequence[tuple[Prefix, int]], base: int
) -> Iterator[tuple[int, int]]:
    """Of each cut by reference the last cut that took all of its hashes before, or the session's
    base, and its own epoch."""
    by_epoch: dict[int, list[Prefix]] = {}
    for range_, at in (*spilled, *deferred):
        by_epoch.setdefault(at, []).append(range_)
    lost: dict[int, list[Prefix]] = {}
    for range_, at in deferred:
        lost.setdefault(at, []).append(range_)
    known: dict[Prefix, int] = {}
    for at in sorted(by_epoch):
        for range_ in lost.get(at, ()):
            wider = (
                Prefix(depth, range_.value >> (range_.depth - depth))
                for depth in range(range_.depth + 1)
            )
            yield max(known.get(each, base) for each in wider), at
        known |= dict.fromkeys(by_epoch[at], at)


def _held(epochs: Sequence[Epoch]) -> Iterator[tuple[int, int]]:
    """`Deferred.held`."""
    for before, entry in pairwise(epochs):
        if entry.deferred and len({cut.session for cut in entry.deferred}) == 1:
            lost = set(entry.deferred_slots)
            yield before.epoch, sum(slot.rows for slot in before.slots if slot.slot in lost)


def read_by(end: Offsets, epochs: Iterable[Epoch]) -> Iterable[PartitionCount]:
    """What epochs have read, per topic partition."""
    counts: dict[tuple[str, int], tuple[int, int]] = {}
    for part in [part for each in epochs for part in each.read]:
        counts[part.topic, part.partition] = counted(counts, part)
    for topic, partition, _ in partitions(end):
        rows, digest = counts.get((topic, partition), (0, 0))
        yield PartitionCount(
            topic=topic, partition=partition, rows=rows, rejected=0, filtered=0, digest=digest
        )
