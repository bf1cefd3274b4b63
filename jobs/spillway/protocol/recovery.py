"""What a lost slot needs back, and whether what came back is what was lost.

A slot declared lost starts from nothing, whatever it finds on disk. The rows of its groups that
were in memory at the end of epoch b-1 are, per hash, those of the current generation: from the
hash's last cut (or the session's start) to the end of b-1. They are read again from Kafka and
installed without output, for every result among them has been emitted.

Rows of an input that is a join are in no topic. They are made again from the leaves below it, as
the journal's cuts say that they had met (`Replay`): that takes all rows of the session.

Rows of a query with windows are judged by the watermark of the epoch before the one in which they
first came: a row that was late then is late now, and no other is.

Of what had expired nothing is read: a restore costs what a window has, however long the day is.

Offsets are read from one epoch's boundary to another's, so the counts and digests of what is
read can be held against the journal: a topic that was emptied or made anew is noticed instead
of answered with a state that looks right.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spillway.protocol.offsets import offset_of, padded, partitions
from spillway.protocol.state import JournalState, Mark, OpenSession, carries, counted
from spillway_schemas.hash_space import above, join_of
from spillway_schemas.journal import (
    Carried,
    EpochFacts,
    EventTime,
    Offsets,
    PartitionCount,
    Prefix,
)
from spillway_schemas.windows import BEGINNING_US, Judging


class InputChanged(Exception):
    """What Kafka gives today is not what the journal says was read: restoring would be a guess."""


@dataclass(frozen=True)
class Since:
    """Rows of `range` in a session are in memory from these offsets on."""

    range: Prefix
    start: Offsets


@dataclass(frozen=True)
class Replay:
    """What joins below the root gave in a session, to be made again (`spillway.engine.replay`)."""

    joins: frozenset[int]
    """Those whose rows are made again: all below a join of which rows were lost."""
    marks: tuple[Offsets, ...]
    """Where the input stood after each epoch in which the session was cut, in order."""
    cuts: tuple[tuple[Prefix, int], ...]
    """All cuts of the session, each with the number of its mark."""


@dataclass(frozen=True)
class Deferred:
    """Generations of a session that lie in no file (`spillway.protocol.deferral`)."""

    marks: tuple[tuple[int, Offsets], ...]
    """Epochs of the session's cuts, ascending, each with where the input stood after it."""
    spilled: tuple[tuple[Prefix, int], ...]
    """The cuts that hold and whose rows are in files: each range with its epoch."""
    deferred: tuple[tuple[Prefix, int], ...]
    """The cuts by reference."""
    expired_by_us: tuple[tuple[int, int], ...] = ()
    """Of a query with windows: epochs of cuts by reference, ascending, each with the watermark by
    which rows had expired then."""
    held: tuple[tuple[int, int], ...] = ()
    """Epochs of cuts by reference, each with the rows that the lost slots had in memory; where two
    sessions were open it is not known how many were of which, and the epoch is left out."""


@dataclass(frozen=True)
class SessionRestore:
    """One open session's rows: from `start`, up to (not including) `end`."""

    session: str
    start: Offsets
    end: Offsets
    cuts: tuple[Since, ...]
    """Of all that cover a hash the last one holds, which has the greatest offsets."""
    replay: Replay | None = None
    """None: only rows of leaves were lost."""
    deferred: Deferred | None = None
    """Set when the rows are read for a cleanup, and not for lost slots."""
    watermarks: tuple[tuple[Offsets, int], ...] = ()
    """Of a query with windows: where the input stood after each epoch of the session, in order, and
    the watermark then."""
    expired_by_us: int = BEGINNING_US
    """The watermark by which rows had expired when the last epoch ended."""
    least_us: int = BEGINNING_US
    """Rows of earlier times are left out: they had expired before they could be carried."""
    interval: int | None = None
    """Of rows of earlier sessions that were carried into this one: how many marks of the replay lie
    before the epoch that brought them. None: rows of the session itself."""

    def judging(self, topic: str, partition: int) -> Judging:
        """The watermarks by which the rows of a partition were judged when they first came."""
        return judging(self.watermarks, topic, partition)


@dataclass(frozen=True)
class Restore:
    """Read `read_from` to `read_to` again; keep the rows of `slots` that a session wants."""

    slots: frozenset[int]
    read_from: Offsets
    read_to: Offsets
    sessions: tuple[SessionRestore, ...]
    expected: tuple[PartitionCount, ...]
    lossy: frozenset[tuple[str, int]] = frozenset()
    """Topic partitions that have lost rows: what is read of them is not held against `expected`."""


def judging(watermarks: Iterable[tuple[Offsets, int]], topic: str, partition: int) -> Judging:
    """The watermarks by which a session's rows of a partition were judged. `watermarks`: as in
    `SessionRestore`."""
    ends = ((offset_of(end, topic, partition), watermark_us) for end, watermark_us in watermarks)
    return Judging.by_epochs(ends)


def watermarks_of(
    session: str | None, epochs: Iterable[EpochFacts]
) -> tuple[tuple[Offsets, int], ...]:
    """Where the input stood after each epoch that gave a session a watermark, and that. None: time
    is one for all sessions (`session.carry`)."""
    return tuple(
        (each.end, max(each.watermarks.values()) if session is None else each.watermarks[session])
        for each in epochs
        if (each.watermarks if session is None else session in each.watermarks)
    )


def history_wanted(state: JournalState, lost: Iterable[int]) -> int | None:
    """The epoch after which `restore_of` and `carry_of` need all epochs; None: they need none."""
    slots = frozenset(slot for slot in lost if state.manifests.get(slot) is not None)
    windowed = state.genesis.event_time is not None
    if not (slots and (windowed or _replayed(state, slots))) and not state.session.waits_for_rows:
        return None
    return history_begins(state)


def history_begins(state: JournalState) -> int:
    """The last epoch of which nothing is needed. With `session.carry` the last epoch before the
    first rows is needed, too: its watermark judges them, unless it is of another query."""
    since = [s.base if s.carried is None else min(s.base, s.carried.since) for s in state.sessions]
    return max(min(since) - carries(state), state.genesis.after)


def carry_of(state: JournalState, history: Iterable[EpochFacts]) -> Restore | None:
    """What the next epoch must read again to carry the rows of the session before into the open
    one; None: nothing waits. Every slot gets its rows.

    `history`: every epoch after `history_wanted`. Raises ValueError when one is lacking.
    """
    open_, carried = state.session, state.session.carried
    if carried is None or not open_.waits_for_rows:
        return None
    epochs = _complete(state, history)
    mark = _mark(state, carried.since, epochs)
    return Restore(
        slots=frozenset(state.slots),
        read_from=padded(mark.end, state.end),
        read_to=state.end,
        sessions=(_of_before(state, open_, carried, mark, epochs),),
        expected=tuple(_between(state, mark)),
    )


def _of_before(
    state: JournalState,
    session: OpenSession,
    carried: Carried,
    mark: Mark,
    epochs: Sequence[EpochFacts],
) -> SessionRestore:
    """The rows of earlier sessions that a session carries, as far as they came after a mark."""
    return SessionRestore(
        session=session.date,
        start=padded(mark.end, state.end),
        end=session.start,
        cuts=tuple(Since(each, session.start) for each in _cut_with(session, carried)),
        watermarks=watermarks_of(None, epochs),
        expired_by_us=_expired_then(state, session, epochs),
        least_us=least_carried_us(state, carried),
        interval=0,
    )


def least_carried_us(state: JournalState, carried: Carried) -> int:
    """The least time of rows that are carried: all that are older had expired, in whatever join."""
    rules = state.genesis.event_time
    assert rules is not None, "there are windows"
    assert rules.kept_us is not None, "every join has one"
    return carried.expired_by_us - rules.kept_us


def _cut_with(session: OpenSession, carried: Carried) -> list[Prefix]:
    """The ranges that were cut since rows were carried into a session: they hold none of them."""
    at = carried.epoch
    return sorted(r for r, epoch in session.last_cuts.items() if at is not None and epoch >= at)


def _replayed(state: JournalState, slots: Container[int]) -> frozenset[int]:
    """The joins below one of which slots hold rows."""
    parents = state.genesis.parents
    if len(parents) == 1:
        return frozenset()
    held = {join_of(prefix, len(parents)) for prefix, slot in state.groups if slot in slots}
    return frozenset(j for j in range(len(parents)) if held & set(above(parents, [j])))


def restore_of(
    state: JournalState, lost: Iterable[int], history: Iterable[EpochFacts] = ()
) -> Restore | None:
    """What must be read again for the lost slots; None when they held nothing.

    `history`: every epoch after `history_wanted`, in order; others are passed over. Raises
    ValueError when one is lacking.
    """
    slots = frozenset(slot for slot in lost if state.manifests.get(slot) is not None)
    if not slots:
        return None
    lost_ranges = [prefix for prefix, slot in state.groups if slot in slots]
    sessions, first = [], state.epoch
    joins = _replayed(state, slots)
    windowed = state.genesis.event_time is not None
    epochs = _complete(state, history) if joins or windowed else []
    ends = [*(session.start for session in state.sessions[1:]), state.end]
    for session, end in zip(state.sessions, ends, strict=True):
        cuts = sorted(
            (epoch, prefix)
            for prefix, epoch in session.last_cuts.items()
            if any(prefix.overlaps(lost_range) for lost_range in lost_ranges)
        )
        covered = {prefix for _, prefix in cuts}
        if all(any(prefix.covers(r) for prefix in covered) for r in lost_ranges):
            # Every lost range was cut: nothing before the earliest of its last cuts is needed.
            last = [max(e for e, p in cuts if p.covers(r)) for r in lost_ranges]
            begin = min(last)
        else:
            begin = session.base
        if not joins:  # what joins made takes all rows of the session
            begin = max(begin, _expired_until(state, session, session.base, epochs))
        first = min(first, begin)
        replay = _replay(session, joins, epochs) if joins else None
        sessions.append(
            SessionRestore(
                session=session.date,
                start=session.start,
                end=end,
                cuts=tuple(Since(prefix, state.marks[epoch].end) for epoch, prefix in cuts),
                replay=replay,
                watermarks=watermarks_of(None if carries(state) else session.date, epochs),
                expired_by_us=_expired_then(state, session, epochs),
            )
        )
        if joins:
            first = min(first, session.base)
        if (carried := session.carried) is None or carried.epoch is None:
            continue
        since = carried.since
        if not joins:
            since = _expired_until(state, session, since, epochs)
            gone = _cut_with(session, carried)
            if since >= carried.epoch or all(any(p.covers(r) for p in gone) for r in lost_ranges):
                continue
        first = min(first, since)
        before = _of_before(state, session, carried, _mark(state, since, epochs), epochs)
        cut_epochs = {e.epoch for e in epochs if any(c.session == session.date for c in e.cuts)}
        interval = sum(each < carried.epoch for each in cut_epochs)
        sessions.append(replace(before, replay=replay, interval=interval))
    mark = _mark(state, first, epochs)
    return Restore(
        slots=slots,
        read_from=padded(mark.end, state.end),
        read_to=state.end,
        sessions=tuple(sessions),
        expected=tuple(_between(state, mark)),
    )


def expired_before(session: str, epochs: Sequence[EpochFacts]) -> int:
    """The watermark of the epoch before the last: the last one's rows were judged by it."""
    before = watermarks_of(session, epochs[:-1])
    return before[-1][1] if before else BEGINNING_US


def _expired_then(state: JournalState, session: OpenSession, epochs: Sequence[EpochFacts]) -> int:
    """The watermark by which a session's rows had expired when the last epoch ended."""
    carried = session.carried
    if carried is not None and (carried.epoch is None or carried.epoch >= state.epoch):
        return BEGINNING_US  # nothing had: see `expired_by`
    return expired_before(session.date, epochs)


def _complete(state: JournalState, history: Iterable[EpochFacts]) -> list[EpochFacts]:
    """All epochs that may be needed. Raises ValueError when one is lacking."""
    base = history_begins(state)
    epochs = [each for each in history if each.epoch > base]
    if [each.epoch for each in epochs] != list(range(base + 1, state.epoch + 1)):
        raise ValueError(f"reading again needs all epochs from {base + 1} to {state.epoch}")
    return epochs


def voided(session: str, epochs: Iterable[EpochFacts]) -> frozenset[tuple[Prefix, int]]:
    """The cuts of a session (range, epoch) that were taken back."""
    return frozenset(
        cut.generation for each in epochs for cut in each.voided if cut.session == session
    )


def _replay(session: OpenSession, joins: frozenset[int], epochs: Sequence[EpochFacts]) -> Replay:
    marks: list[Offsets] = []
    cuts: list[tuple[Prefix, int]] = []
    void = voided(session.date, epochs)
    for epoch in epochs:
        mine = [cut for cut in epoch.cuts if cut.session == session.date]
        if mine:
            cuts += [(each.range, len(marks)) for each in mine if each.generation not in void]
            marks.append(epoch.end)
    return Replay(joins, tuple(marks), tuple(cuts))


def _expired_until(
    state: JournalState, session: OpenSession, since: int, epochs: Sequence[EpochFacts]
) -> int:
    """`expired_until`, when the last epoch ended."""
    by_us = _expired_then(state, session, epochs)
    return expired_until(state.genesis.event_time, by_us, since, epochs)


def expired_until(
    rules: EventTime | None, by_us: int, since: int, epochs: Iterable[EpochFacts]
) -> int:
    """The last epoch up to which all rows that came after `since` had expired by a watermark;
    `since`: of none that is known."""
    until = since
    if rules is None or rules.kept_us is None:
        return until
    oldest_us = by_us - rules.kept_us
    for epoch in epochs:
        if epoch.epoch <= since:
            continue
        times = [t for c in epoch.read for t in (c.greatest_us, c.next_greatest_us)]
        if any(time_us is not None and time_us >= oldest_us for time_us in times):
            break
        until = epoch.epoch
    return until


def _mark(state: JournalState, epoch: int, epochs: Iterable[EpochFacts]) -> Mark:
    """Where the input stood at the end of an epoch. `epochs`: all from a mark on that the state
    has, where it has none of this epoch."""
    if epoch in state.marks:
        return state.marks[epoch]
    begin = max(known for known in state.marks if known < epoch)
    end, counts = state.marks[begin].end, dict(state.marks[begin].counts)
    for each in epochs:
        if begin < each.epoch <= epoch:
            end = each.end
            for part in each.read:
                counts[part.topic, part.partition] = counted(counts, part)
    return Mark(end, counts)


def _between(state: JournalState, mark: Mark) -> Iterable[PartitionCount]:
    """What the journal says was read after a mark, per topic partition."""
    before = mark.counts
    for topic, partition, _ in partitions(state.end):
        rows, digest = state.counts.get((topic, partition), (0, 0))
        rows0, digest0 = before.get((topic, partition), (0, 0))
        yield PartitionCount(
            topic=topic,
            partition=partition,
            rows=rows - rows0,
            rejected=0,
            filtered=0,
            digest=(digest - digest0) % 2**64,
        )


LOST = "Lost state cannot be restored from Kafka"


def check_restored(restore: Restore, got: Iterable[PartitionCount], what: str = LOST) -> None:
    """Hold what was read again against the journal. `what`: what cannot be done where it differs.
    Raises `InputChanged`."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for part in got:
        rows, digest = found.get((part.topic, part.partition), (0, 0))
        found[(part.topic, part.partition)] = (
            rows + part.rows,
            (digest + part.digest) % 2**64,
        )
    for want in restore.expected:
        if (want.topic, want.partition) in restore.lossy:
            continue
        rows, digest = found.get((want.topic, want.partition), (0, 0))
        if (rows, digest) != (want.rows, want.digest):
            first = restore.read_from[want.topic][want.partition]
            last = restore.read_to[want.topic][want.partition]
            raise InputChanged(
                f"{what}: {want.topic}/{want.partition}, "
                f"offsets {first} to {last}, gave {rows} rows (digest {digest:016x}) where the "
                f"journal counted {want.rows} (digest {want.digest:016x}). Was the topic emptied "
                "or made anew? Nothing was written; bring the topic's messages back and run it "
                "again."
            )


def check_installed(state: JournalState, restore: Restore, installed: Mapping[int, int]) -> None:
    """Hold the rows that restored slots got, by slot, against those that they had. Raises
    `InputChanged`.

    Of rows of leaves the counts of what was read say as much; what joins made again has no others.
    Where rows are lost that somebody has accepted as lost, slots get fewer.
    """
    if restore.lossy:
        return
    for slot in sorted(restore.slots):
        held = state.memory.get(slot)
        if held is not None and installed[slot] != held.rows:
            raise InputChanged(
                f"Lost state cannot be restored: slot {slot} had {held.rows:,} rows in memory, and "
                f"{installed[slot]:,} were made again of the same input. Nothing was written. This "
                "is an error of spillway's: keep the topics and the warehouse, and report it"
            )
