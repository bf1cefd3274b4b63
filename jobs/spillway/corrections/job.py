"""The driver of a correction: keep its rows, have them joined, commit what they add.

Model: corrections of a session are revisions 1, 2, ... of it. Each has two commits with the
application transaction (`correct/<session>`, revision): its rows in the table `corrections`, and
then its results in `results`. A revision is joined with the session's input, read again in Kafka,
and with the rows of all revisions before it; only rows of keys that the correction has travel. What
is read is held against the journal's counts and digests before anything is committed. An event
`corrected` in `sessions` says that it is in.

Invariants:

* A revision's results are exactly the combinations with at least one of its rows and otherwise rows
  of the session or of earlier revisions; so all revisions together give the join of the enlarged
  input, whatever they were split into.
* Results of a revision are committed once, after those of the one before, by whomever.

Failure paths:

* *The input is not what it was, or the disk is full*: nothing is kept, for a revision is joined
  before its rows are.
* *Killed before the rows are kept*: nothing was done; files are orphans.
* *Killed before the results are in*: the next start, with the same correction, another one or none,
  finishes this revision first, from the rows that are kept. Until then `verify` refuses.
* *Killed before the event*: the next start appends it, and counts the results that are there.
* *The same correction again*: its digest is among the revisions, and nothing is done.
* *Two at once*: one of them takes the number; the other sees that, looks again, and comes after it.
  Both may compute a revision that was not finished, and one of them commits it.

Known limitation: the rows of all corrections of a session pass through this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.cleanup.deferred import TopicSource, frame_schema, parts_of
from spillway.corrections.closed import ClosedSession, closed_session
from spillway.corrections.kept import SessionRevisions
from spillway.corrections.leaves import TreeLeaves
from spillway.corrections.rows import Correction, CorrectionRefused, KeptRevision
from spillway.corrections.task import (
    ADDED_SCHEMA,
    AdditionTask,
    PartAdded,
    add_parts,
    batched,
    hashes_of,
    row_blocks,
)
from spillway.decode.chunks import COLUMNS
from spillway.engine.groups import U64
from spillway.engine.join.results import result_schema
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.spillfile import spill_schema
from spillway.engine.wire.blocks import BLOCK_SCHEMA
from spillway.protocol.deferral import rows_to_read
from spillway.protocol.recovery import check_restored
from spillway.registry import SchemaTrouble
from spillway.report.words import times_text
from spillway.sealed_input.decoding import TopicRanges
from spillway.storage import StorageError
from spillway.stream.decoding import DecodeTask, decode_chunks
from spillway.stream.messages import ranges_of, whole_frame
from spillway.stream.pins import salted, salts
from spillway.tables import TableConflict, Warehouse
from spillway_schemas.corrections import Revision
from spillway_schemas.journal import FileRecord

UNREADABLE = "The session's input cannot be read again in Kafka as it was read then"
NO_HASHES: U64 = np.zeros(0, dtype=np.uint64)
ATTEMPTS = 100
"""Corrections of one session that may be faster, one after the other."""


@dataclass(frozen=True)
class Corrected:
    """What a correction came to. Counts of rows and results."""

    session: str
    finished: tuple[Revision, ...]
    """Revisions that were begun before, and that this run has finished."""
    revision: Revision | None
    """The correction's own; None: none was given."""
    already: bool
    """It was in before; nothing was done for it."""
    seconds: float
    planned: bool = False
    """Nothing was done: this is what it would come to."""
    unfinished: int = 0
    """Revisions that would be finished first."""


@dataclass(frozen=True)
class CorrectionRequest:
    """A correction that somebody asks for."""

    read: Callable[[Sequence[KeptRevision]], Correction | None]
    """Gives its rows, by the revisions that are kept; None: there are none that are new."""
    reason: str
    by: str


def run_correction(
    start_spark: Callable[[], Any],
    warehouse: Warehouse,
    spec: TreeSpec,
    session: str,
    source: TopicSource,
    wanted: CorrectionRequest | None,
    *,
    fingerprint: str,
    tree: TreeLeaves | None = None,
    plan: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Corrected:
    """Finish what was begun for a closed session, and add a correction; only once, however often
    this is started.

    `start_spark` gives a session; it is called only when there is something to compute. `wanted`:
    None to finish only. `tree`: of a query of several joins. `plan`: count what would be added, and
    change nothing. `tell` hears of what takes long.
    Raises `NothingYet`, `AnotherQuery`, `CorrectionRefused`, `InputChanged`, KafkaUnavailable,
    `OutcomeUnknown`.
    """
    began = time.monotonic()
    closed = closed_session(warehouse, session, fingerprint)
    warehouse.compare_columns(
        result_schema(spec), spill_schema(spec), changes=bool(closed.state.before)
    )
    revisions = SessionRevisions(warehouse, session, closed.sealed.results + closed.cleaned)
    run = _CorrectionRun(start_spark, warehouse, spec, closed, revisions, source, tree, tell)
    finished: list[Revision] = []
    for _ in range(ATTEMPTS):
        kept = revisions.kept()
        # Before anything is done: rows with mistakes are refused as a whole.
        correction = None if wanted is None else wanted.read(kept)
        if not plan:
            finished += run.finish(kept)
        if wanted is None or correction is None:
            return Corrected(session, tuple(finished), None, False, _since(began), plan)
        digest, noted = correction.digest, revisions.noted()
        known = next((each for each in kept if each.digest == digest), None)
        if known is not None and known.revision in noted:
            own = noted[known.revision]
            return Corrected(session, tuple(finished), own, True, _since(began), plan)
        mine = known or KeptRevision(
            len(kept) + 1,
            correction.source,
            wanted.reason,
            wanted.by,
            digest,
            correction.read_to,
            len(correction.topics),
        )
        rows = correction.as_revision(mine.revision, time.time_ns() // 1000)
        run.check_input()
        tell(f"reading {session} in Kafka, and joining {times_text(len(rows), 'row')} with it")
        old = revisions.rows(1, mine.revision)
        files, results = run.added(mine.revision, old, rows, write=not plan)
        if plan:
            left = sum(each.revision not in noted for each in kept if each is not known)
            own = mine.as_noted(results)
            return Corrected(session, (), own, False, _since(began), plan, left)
        try:
            revisions.keep(mine, rows)
        except TableConflict:
            tell("another correction of the session was faster: looking again")
            continue
        warehouse.apply_correction(session, mine.revision, files)
        own = revisions.note(mine, _since(began))
        return Corrected(session, tuple(finished), own, False, _since(began))
    raise CorrectionRefused(f"{ATTEMPTS} other corrections of {session} were faster: try again")


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


class _CorrectionRun:
    """One run over the revisions of a session."""

    def __init__(
        self,
        start_spark: Callable[[], Any],
        warehouse: Warehouse,
        spec: TreeSpec,
        closed: ClosedSession,
        revisions: SessionRevisions,
        source: TopicSource,
        tree: TreeLeaves | None,
        tell: Callable[[str], None],
    ) -> None:
        self._start_spark = start_spark
        self._warehouse = warehouse
        self._spec = spec
        self._closed = closed
        self._revisions = revisions
        self._session = closed.sealed.session
        self._source = source
        self._tree = tree
        self._tell = tell

    def finish(self, kept: Sequence[KeptRevision]) -> list[Revision]:
        """Commit the results of all revisions that are kept and not in; those that this did."""
        done = []
        known = self._revisions.noted()
        for each in kept:
            if each.revision in known:
                continue
            began = time.monotonic()
            if each.revision > self._warehouse.corrections(self._session).applied:
                self._tell(f"joining the rows of revision {each.revision}")
                self.check_input()
                files, _ = self.added(
                    each.revision,
                    self._revisions.rows(1, each.revision),
                    self._revisions.rows(each.revision, each.revision + 1),
                )
                self._warehouse.apply_correction(self._session, each.revision, files)
            done.append(self._revisions.note(each, _since(began)))
        return done

    def check_input(self) -> None:
        """Raise `CorrectionRefused` unless Kafka holds all of the session's input; else as
        `TopicSource.gone` does."""
        if problem := self._source.gone(self._closed.genesis, self._closed.again):
            raise CorrectionRefused(
                f"{problem}. A correction is joined with all of the session's input: bring the "
                "topic's messages back and run it again"
            )

    def added(
        self, revision: int, old: pa.Table, new: pa.Table, *, write: bool = True
    ) -> tuple[list[FileRecord], int]:
        """Write what new rows add to the session and the old rows (both `ROWS`), not committed: the
        files, and the number of results. Without `write` they are only counted.

        Raises `CorrectionRefused` when Kafka does not hold the input any more, `InputChanged`,
        `SchemaTrouble`, `StorageError`.
        """
        spark, spec, sealed = self._start_spark(), self._spec, self._closed.sealed
        again = self._closed.again
        groups = parts_of(rows_to_read(again))
        salt = salts(spark, len(groups))
        again = replace(again, slots=frozenset(range(len(groups))))
        rows_as = partial(row_blocks, spec, self._source.streams, groups, self._session)
        added = rows_as(new, "new")
        if not added:  # the query's filter leaves all of them out
            return [], 0
        only, own = NO_HASHES, []
        if self._tree is None:
            only = hashes_of(spec, added)
            others = rows_as(old, "restore", only)
            own = [salted(salt, some) for some in batched([*added, *others])]
        decode = DecodeTask(
            spec=spec,
            streams=self._source.streams,
            groups=groups,
            salts=salt,
            session=self._session,
            next_session="",
            bound=None,
            restore=again,
            only=only,
            event_time=self._closed.genesis.event_time,
        )
        task = AdditionTask(
            spec=spec,
            groups=groups,
            salts=salt,
            session=self._session,
            epoch=sealed.epoch,
            revision=revision,
            results=self._warehouse.folder("results") if write else None,
            committed_us=time.time_ns() // 1000,
        )
        source = self._source.identified(self._closed.genesis.topics)
        try:
            found = parts_added(spark, source, decode, task, own)
            if self._tree is not None:
                found += self._of_tree(spark, self._tree, source, old, new, task)
        except Exception as error:
            if trouble := SchemaTrouble.told_by(error):
                raise trouble from error
            self.check_input()  # it may have gone while it was read
            raise
        for part in found:
            if part.problem is not None:
                raise StorageError(*part.problem)
        check_restored(again, [count for part in found for count in part.counts], UNREADABLE)
        files = [file for part in found for file in part.files]
        return files, sum(part.results for part in found)

    def _of_tree(
        self,
        spark: Any,
        tree: TreeLeaves,
        source: TopicSource,
        old: pa.Table,
        new: pa.Table,
        task: AdditionTask,
    ) -> list[PartAdded]:
        # Only now: what this imports takes a second.
        from spillway.corrections.trees import tree_parts_added

        (session,) = self._closed.again.sessions
        rows = TopicRanges(
            source.messages,
            session.start,
            session.end,
            self._closed.timing,
            old.select(COLUMNS) if len(old) else None,
        )
        return tree_parts_added(spark, tree, rows, new, task)


def parts_added(
    spark: Any, source: TopicSource, decode: DecodeTask, task: AdditionTask, own: Sequence[Any]
) -> list[PartAdded]:
    """What each part of the hashes adds, of what the decoders read and of `own`, the driver's
    batches of blocks."""
    again = decode.restore
    assert again is not None, "a correction reads the session's input"
    schema = frame_schema(BLOCK_SCHEMA)
    frames = []
    if own:
        frames.append(spark.createDataFrame(pa.Table.from_batches(own, BLOCK_SCHEMA), schema))
    if ranges := ranges_of(again.read_from, again.read_to):
        work = partial(decode_chunks, decode)
        frames.append(whole_frame(spark, source.messages, ranges, work, schema))
    if not frames:
        return []
    frame = reduce(lambda one, other: one.unionAll(other), frames)
    written = frame.repartition(len(task.groups), "slot").mapInArrow(
        partial(add_parts, task), frame_schema(ADDED_SCHEMA)
    )
    return [PartAdded.model_validate_json(row.added) for row in written.collect()]
