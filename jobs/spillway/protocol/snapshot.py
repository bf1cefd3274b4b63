"""Snapshots of the fold: a start that reads what is new, not all that there ever was. Pure.

Model: `snapshot_of` and `state_of` are inverse: for every n, the state after entry n that went
through a snapshot, with the rest of the entries folded, is the fold of all entries.

A snapshot is a cache and never the truth. A reader uses one only when

* the journal's entry `n` has the text that the snapshot was made after: a driver that was taken
  over, or a journal that was repaired, may have left a snapshot of an entry that nobody has;
* every table has the commits of all epochs up to it (`is_settled`): what a table lacks is redone
  from the entries themselves.

So writing one needs no claim, and two writers do no harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

from spillway.protocol.state import Counts, JournalState, Mark, OpenSession
from spillway_schemas.snapshot import (
    JournalSnapshot,
    MarkRecord,
    PartitionSums,
    ProgressRecord,
    SessionRecord,
)
from spillway_schemas.windows import Heard, Progress

EVERY = 256
"""Entries between two snapshots: reading and folding so many takes about a third of a second."""


def text_digest(text: str) -> str:
    """SHA-256 of an entry's text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def snapshot_of(state: JournalState, entry: str) -> JournalSnapshot:
    """The state as it is kept. `entry`: `text_digest` of entry `state.n`."""
    return JournalSnapshot(
        entry=entry,
        n=state.n,
        term=state.term,
        epoch=state.epoch,
        genesis=state.genesis,
        topics=list(state.topics),
        end=state.end,
        sessions=[
            SessionRecord(
                date=each.date,
                start=each.start,
                base=each.base,
                recent_cuts=[(r, list(epochs)) for r, epochs in sorted(each.recent_cuts.items())],
                cuts=each.cuts,
                results=each.results,
                spilled_rows=each.spilled_rows,
                progress=None if each.progress is None else _recorded(each.progress),
                reach=sorted(each.reach.items()),
                carried=each.carried,
            )
            for each in state.sessions
        ],
        seal=state.seal,
        groups=list(state.groups),
        assignment_version=state.assignment_version,
        policy_epoch=state.policy_epoch,
        manifests=sorted(state.manifests.items()),
        marks=[
            MarkRecord(epoch=epoch, end=mark.end, counts=_listed(mark.counts))
            for epoch, mark in sorted(state.marks.items())
        ],
        counts=_listed(state.counts),
        sealed=[sealed for _, sealed in sorted(state.sealed.items())],
        seen=sorted(state.seen),
        commands_n=state.commands_n,
        recent_input_ms=state.recent_input_ms,
        reached=list(state.reached),
        totals=list(state.totals),
        budgets=sorted(state.budgets.items()),
        cores=state.cores,
        max_results=state.max_results,
        moves=list(state.moves),
        lost_to=state.lost_to,
        named=sorted(state.named.items()),
        before=list(state.before),
    )


def state_of(snapshot: JournalSnapshot) -> JournalState:
    """The state that a snapshot was made of."""
    return JournalState(
        n=snapshot.n,
        term=snapshot.term,
        epoch=snapshot.epoch,
        genesis=snapshot.genesis,
        topics=tuple(snapshot.topics),
        end=snapshot.end,
        sessions=tuple(
            OpenSession(
                date=each.date,
                start=each.start,
                base=each.base,
                recent_cuts={r: tuple(epochs) for r, epochs in each.recent_cuts},
                cuts=each.cuts,
                results=each.results,
                spilled_rows=each.spilled_rows,
                progress=None if each.progress is None else _progress(each.progress),
                reach=dict(each.reach),
                carried=each.carried,
            )
            for each in snapshot.sessions
        ),
        seal=snapshot.seal,
        groups=tuple(snapshot.groups),
        assignment_version=snapshot.assignment_version,
        policy_epoch=snapshot.policy_epoch,
        manifests=dict(snapshot.manifests),
        marks={each.epoch: Mark(each.end, _mapped(each.counts)) for each in snapshot.marks},
        counts=_mapped(snapshot.counts),
        sealed={each.session: each for each in snapshot.sealed},
        seen=frozenset(snapshot.seen),
        commands_n=snapshot.commands_n,
        recent_input_ms=snapshot.recent_input_ms,
        reached=tuple(snapshot.reached),
        totals=tuple(snapshot.totals),
        budgets=dict(snapshot.budgets),
        cores=snapshot.cores,
        max_results=snapshot.max_results,
        moves=tuple(snapshot.moves),
        lost_to=snapshot.lost_to,
        named=dict(snapshot.named),
        before=tuple(snapshot.before),
    )


def chosen(
    newest_first: Iterable[JournalSnapshot],
    entry: Callable[[int], str | None],
    applied: Mapping[str, int] | None = None,
) -> JournalState | None:
    """The state of the first snapshot that holds; None when none does.

    `entry`: `text_digest` of the journal's entry n, None where there is none.
    `applied`: as in `is_settled`; None where nothing will be redone.
    """
    for snapshot in newest_first:
        if entry(snapshot.n) != snapshot.entry:
            continue
        state = state_of(snapshot)
        if applied is None or is_settled(state, applied):
            return state
    return None


def is_settled(state: JournalState, applied: Mapping[str, int]) -> bool:
    """Whether no table lacks a commit that the journal's entries up to this state ask for.

    `applied`: per table the epoch of its last application transaction, -1 for none.
    """
    return all(applied.get(table, -1) >= epoch for table, epoch in state.named.items())


def is_due(state: JournalState, last_n: int, sealed: bool) -> bool:
    """Whether the state should be kept. `last_n`: entry of the last snapshot, -1 for none;
    `sealed`: whether the last entry has sealed a session."""
    return sealed or state.n - last_n >= EVERY


def _recorded(progress: Progress) -> ProgressRecord:
    heard = [
        (topic, partition, each.clock_ms, each.greatest_us)
        for (topic, partition), each in sorted(progress.heard.items())
    ]
    return ProgressRecord(heard=heard, watermark_us=progress.watermark_us)


def _progress(record: ProgressRecord) -> Progress:
    heard = {
        (topic, partition): Heard(clock_ms, greatest_us)
        for topic, partition, clock_ms, greatest_us in record.heard
    }
    return Progress(heard, record.watermark_us)


def _listed(counts: Counts) -> PartitionSums:
    return [(topic, partition, *sums) for (topic, partition), sums in sorted(counts.items())]


def _mapped(counts: PartitionSums) -> Counts:
    return {(topic, partition): (rows, digest) for topic, partition, rows, digest in counts}
