"""The driver of a cleanup: survey, compute ranges in parallel, commit them in order.

Model: the unit of work is one hash range of the session's sealed entry. Its missing results are
written by a task under fresh names and committed with the application transaction
(`cleanup/<session>`, n). Tasks run in parallel, in processes of this host or each as a Spark job
(`spillway.cleanup.workers`), as many at a time as there are cores; commits are made here, one after
the other, in order of n, as soon as it is their turn. A task's ranges are committed at once, by the
last one's number. A range without missing results is committed too (without files), so that the
last transaction says how far cleanup has come, whoever did it.

Failure paths:

* *Killed at any moment*: what is committed is complete ranges 0..n. The next start goes on with
  n + 1. Files that were written and not committed are orphans, which vacuum removes once the
  session is cleaned.
* *Two cleanups at once*: the one that began last holds the lease (`spillway.cleanup.lease`); the
  other stops computing and waits for it. Exactness does not rest on that: a commit of n happens
  once, and one that comes too late sees that, reads how far the other is and skips what is done.
* *A commit's outcome is unknown, a file is damaged, a worker dies*: the error goes up, what runs is
  ended. Start it again once the cause is mended.

Known limitation: results of a range are computed whole before they are committed; a range whose
results outgrow the disk cannot be finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from spillway.cleanup.deferred import TopicSource, read_deferred
from spillway.cleanup.lease import STALLED_S, Lease, TakenOver
from spillway.cleanup.plan import (
    TASK_BYTES,
    CleanupRefused,
    Share,
    shares,
    stages,
    stored_files,
)
from spillway.cleanup.task import CleanTask, RangeDone, SurveyTask, run_clean, run_survey
from spillway.cleanup.work import WAIT_S, CleanupWork, cleaned_event, spilled_now, work_of
from spillway.cleanup.workers import CleanupWorkers, ClusterWorkers
from spillway.engine.join.batches import BATCH_BYTES
from spillway.engine.join.results import result_schema
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.pieces import PIECE_BYTES
from spillway.engine.spill.source import SpillIndex
from spillway.engine.spill.spillfile import RowGroups, SpillDamaged, SpillFile, spill_schema
from spillway.protocol.deferral import rows_to_read
from spillway.protocol.recovery import Restore
from spillway.storage import StorageError
from spillway.tables import SessionEvent, Warehouse
from spillway_schemas.hash_space import join_of
from spillway_schemas.journal import Prefix


@dataclass(frozen=True)
class CleanupProgress:
    """How far a cleanup is."""

    ranges_done: int
    ranges_total: int
    rows: int
    """Results that this run has committed."""
    seconds: float
    """Since this run began."""


@dataclass(frozen=True)
class Cleaned:
    """What a cleanup came to."""

    session: str
    already: bool
    """The session had been cleaned before; this run did nothing."""
    cleanup: int
    """Results that cleanup has added, in all its runs."""
    run_time: int
    ranges: int
    generations: int
    spilled_rows: int
    spilled_bytes: int
    seconds: float
    """Of this run (of the one that finished, when it did nothing)."""
    deferred_rows: int = 0
    """Rows that slots had lost, and that were read again in Kafka."""
    outer: bool = False
    """Whether some of what cleanup has added may lack optional rows."""


OnProgress = Callable[[CleanupProgress], None]


def run_cleanup(
    start_spark: Callable[[], Any],
    warehouse: Warehouse,
    spec: TreeSpec,
    session: str,
    *,
    fingerprint: str = "",
    on_progress: OnProgress = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
    source: TopicSource | None = None,
    workers: Callable[[int], CleanupWorkers] | None = None,
    wait_s: float = WAIT_S,
    stalled_s: float = STALLED_S,
    piece_bytes: int = PIECE_BYTES,
    batch_bytes: int = BATCH_BYTES,
    task_bytes: int = TASK_BYTES,
) -> Cleaned:
    """Append the session's missing results, and unmatched ones of an outer join, each once, however
    often this is started.

    `start_spark` gives the `SparkSession`; it is called only when there is something to compute.
    `workers`: what computes so many spilled bytes, where that is not Spark. Then it is started only
    to read in Kafka what slots had lost.
    `fingerprint` is the query's, compared with the warehouse's when not empty.
    `source`: the query's topics, where slots were lost whose rows were left to cleanup, and where
    an outer join has lost input: without it that is refused.
    `tell` hears of what takes long, and of another cleanup of the session at the same time; when
    that stands still for `stalled_s`, this one takes over.
    Raises `NothingYet`, `WrongTable`, `CleanupRefused` (not sealed, tables behind, no
    `source` where one is needed), `SpillDamaged`, `InputChanged` (rows that slots had lost are in
    Kafka no more), `OutcomeUnknown`.
    """
    began = time.monotonic()
    work = work_of(warehouse, session, fingerprint, wait_s)
    warehouse.compare_columns(
        result_schema(spec), spill_schema(spec), changes=bool(work.state.before)
    )
    sealed = work.sealed
    if work.cleaned is not None:
        return _summary(work, work.cleaned, already=True)
    again = work.again
    if again is not None and warehouse.deferred_applied(session) < 0:
        if source is None:
            raise CleanupRefused(f"rows of {session} are only in Kafka, and nobody has said where")
        source.check(work.genesis, again)
    streams = source.streams if source is not None else ()
    work.doubtful(warehouse, spec.root, streams)  # refuses before Spark starts
    committed = 0
    while (first := warehouse.cleanup_applied(session) + 1) < len(sealed.ranges):
        lease = Lease.take(warehouse, session)
        if again is not None and source is not None:
            commit_deferred(start_spark, warehouse, spec, work, source, again, tell)
        spilled = sum(spilled_now(warehouse, session).values())
        mine = workers(spilled) if workers else ClusterWorkers(start_spark(), session)
        run = _CleanupRun(
            mine,
            warehouse,
            spec,
            work,
            lease,
            # Only now: another cleanup may have read them, without what is lost since then.
            work.doubtful(warehouse, spec.root, streams),
            began=began,
            on_progress=on_progress,
            piece_bytes=piece_bytes,
            batch_bytes=batch_bytes,
            task_bytes=task_bytes,
        )
        try:
            committed = run.all(first)
        except TakenOver as other:
            tell(f"{other}. This one waits for it.")
            if not lease.wait(partial(warehouse.cleanup_applied, session), stalled_s):
                tell(f"It has made no progress for {stalled_s:g} s: taking over.")
            elif event := cleaned_event(warehouse, session):
                return _summary(work, event, already=True)
        finally:
            mine.close()
    results = sum(file.rows for file in warehouse.files("results", session))
    cleanup = results - sealed.results
    if cleanup < committed:
        raise CleanupRefused(
            f"the results table holds {results} rows of session {session}, but "
            f"{sealed.results} were given at run time and {committed} by this cleanup: rows are "
            "missing. Something other than spillway has changed the table: restore it"
        )
    event = SessionEvent(
        session=session,
        event="cleaned",
        run_time=sealed.results,
        cleanup=cleanup,
        generations=sealed.generations,
        seconds=round(time.monotonic() - began, 3),
        details={
            "ranges": len(sealed.ranges),
            "spilled_rows": sealed.spilled_rows,
            "spilled_files": len(work.files),
            "spilled_bytes": sum(file.bytes for file in work.files),
            **({"deferred_rows": _rows_read_again(warehouse, session)} if again else {}),
            **({"loss": work.loss.model_dump()} if work.loss else {}),
        },
    )
    # Another cleanup may have finished at the same time: one row is enough.
    if cleaned_event(warehouse, session) is None:
        warehouse.sessions.append(event)
    return _summary(work, event, already=False)


def _rows_read_again(warehouse: Warehouse, session: str) -> int:
    """Rows of the session in `spill` that slots had lost (of one join: a tree's are restored)."""
    stored = {file.path for file in stored_files(spilled_now(warehouse, session))}
    return sum(file.rows for file in warehouse.files("spill") if file.path in stored)


def _summary(work: CleanupWork, event: SessionEvent, *, already: bool) -> Cleaned:
    sealed = work.sealed
    return Cleaned(
        session=sealed.session,
        already=already,
        cleanup=event.cleanup or 0,
        run_time=sealed.results,
        ranges=len(sealed.ranges),
        generations=sealed.generations,
        spilled_rows=sealed.spilled_rows,
        spilled_bytes=event.details.get("spilled_bytes", 0),
        seconds=event.seconds or 0.0,
        deferred_rows=event.details.get("deferred_rows", 0),
        outer=work.genesis.outer,
    )


def commit_deferred(
    start_spark: Callable[[], Any],
    warehouse: Warehouse,
    spec: TreeSpec,
    work: CleanupWork,
    source: TopicSource,
    again: Restore,
    tell: Callable[[str], None],
) -> None:
    """Make spilled rows of what slots had lost, unless that was done. Of two cleanups the one that
    is done first commits, whichever has the lease: both read the same, unless more was accepted as
    lost between them."""
    session, genesis = work.sealed.session, work.genesis
    if warehouse.deferred_applied(session) >= 0:
        return
    tell(f"reading {rows_to_read(again):,} rows again in Kafka: slots had lost some of them")
    place = warehouse.folder("spill")
    try:
        mine = source.identified(genesis.topics)
        files = read_deferred(start_spark(), spec, mine, again, genesis.event_time, place)
    except Exception:
        source.check(genesis, again)  # it may have gone while it was read
        raise
    warehouse.apply_deferred(session, files)


class _CleanupRun:
    """One run over the ranges that are left."""

    def __init__(
        self,
        workers: CleanupWorkers,
        warehouse: Warehouse,
        spec: TreeSpec,
        work: CleanupWork,
        lease: Lease,
        doubtful: frozenset[int],
        *,
        began: float,
        on_progress: OnProgress,
        piece_bytes: int,
        batch_bytes: int,
        task_bytes: int,
    ) -> None:
        """`doubtful`: as in `SpillSource`."""
        self._workers = workers
        self._warehouse = warehouse
        self._spec = spec
        self._work = work
        self._sealed = work.sealed
        self._lease = lease
        self._doubtful = doubtful
        self._began = began
        self._on_progress = on_progress
        self._piece_bytes = piece_bytes
        self._batch_bytes = batch_bytes
        self._task_bytes = task_bytes
        self._surveyed: dict[SpillFile, RowGroups] = {}
        self._applied = -1
        """The last range that is known to be committed, by whomever. Read by the pool's threads."""

    def all(self, first: int) -> int:
        """Do ranges `first` and up; the number of results that this run committed."""
        self._applied = first - 1
        rows = 0
        self._report(rows)
        numbered = list(enumerate(self._sealed.ranges))
        for stage in stages(self._sealed.ranges, self._spec.parents):
            units = [
                [(n, each) for n, each in numbered if self._join_of(each) == join and n >= first]
                for join in stage
            ]
            if any(units):
                rows += self._stage(stage, units, rows)
        return rows

    def _join_of(self, range_: Prefix) -> int:
        return join_of(range_, len(self._spec.joins))

    def _stage(
        self, joins: Sequence[int], units: Sequence[Sequence[tuple[int, Prefix]]], done: int
    ) -> int:
        """Do the units of joins that do not wait for each other; the results that were committed.

        What the joins below them lacked is committed by then, by whomever.
        """
        index = self._survey()
        todo = [
            (join, share)
            for join, mine in zip(joins, units, strict=True)
            for share in shares(mine, index, self._workers.cores, task_bytes=self._task_bytes)
        ]
        rows = 0
        pool = ThreadPoolExecutor(self._workers.cores, thread_name_prefix="cleanup")
        try:
            running = [pool.submit(self._clean, join, share, index) for join, share in todo]
            for future in running:
                rows += self._commit(future.result())
                self._report(done + rows)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            self._workers.cancel()
            raise
        pool.shutdown()
        return rows

    def _commit(self, done: Sequence[RangeDone]) -> int:
        """Commit the ranges of a task, at once, but those that are in; how many results of the
        query that was."""
        session = self._sealed.session
        if not done or done[-1].n <= self._applied:
            return 0  # another cleanup was faster, and may be further
        self._lease.check()
        is_root = self._join_of(self._sealed.ranges[done[-1].n]) == self._spec.root.operator
        table = "results" if is_root else "spill"
        files = {each.n: each.files for each in done}
        before = self._warehouse.apply_cleanup(session, files, table)
        self._applied = max(done[-1].n, before)
        # What another has committed since then is not seen, and counted here, too.
        return sum(each.rows for each in done if each.n > before) if is_root else 0

    def _report(self, rows: int) -> None:
        self._on_progress(
            CleanupProgress(
                self._applied + 1,
                len(self._sealed.ranges),
                rows,
                time.monotonic() - self._began,
            )
        )

    def _survey(self) -> SpillIndex:
        """Verify every file, in parallel, that was not verified before; what all of them hold."""
        place = self._warehouse.folder("spill")
        stored = stored_files(spilled_now(self._warehouse, self._sealed.session))
        files = [file for file in (*self._work.files, *stored) if file not in self._surveyed]
        tasks = [SurveyTask(place, file) for file in files]
        total = sum(file.bytes for file in files)
        parts = max(1, min(len(tasks), max(self._workers.cores, total // (256 * 2**20))))
        found: list[RowGroups | SpillDamaged | StorageError] = self._workers.run(
            "verify spilled files", tasks, parts, run_survey
        )
        for file, groups in zip(files, found, strict=True):
            if isinstance(groups, Exception):
                raise groups
            self._surveyed[file] = groups
        return SpillIndex.of(list(self._surveyed.items()))

    def _clean(self, join: int, share: Share, index: SpillIndex) -> list[RangeDone]:
        """Have a worker compute the share's ranges. Runs in a thread of the pool."""
        if share.last <= self._applied:
            return []  # another cleanup was faster
        task = CleanTask(
            spec=self._spec,
            operator=join,
            session=self._sealed.session,
            epoch=self._sealed.epoch,
            units=share.units,
            index=index.within([prefix for _, prefix in share.units]),
            spill=self._warehouse.folder("spill"),
            results=self._warehouse.folder("results"),
            committed_us=time.time_ns() // 1000,
            ends=self._work.ends,
            voided=self._work.voided,
            doubtful=self._doubtful,
            piece_bytes=self._piece_bytes,
            batch_bytes=self._batch_bytes,
        )
        name = f"ranges {share.units[0][0]}-{share.last}"
        done: list[RangeDone] | SpillDamaged | StorageError
        [done] = self._workers.run(name, [task], 1, run_clean)
        if isinstance(done, Exception):
            raise done
        ranges: list[RangeDone] = done
        return ranges
