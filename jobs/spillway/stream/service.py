"""`spillway stream`: the long-running query, its epochs with and without rows, and its end.

Two threads meet here: Spark's, which calls `_on_batch` with the rows of a batch, and the main
one, which looks for commands, runs epochs without rows while Kafka is silent, and stops the
query. One lock makes every epoch whole: it is held from the plan to the last table's commit.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from spillway import calendar
from spillway.clock import Clock
from spillway.decode import compile_streams, join_spec
from spillway.engine.join.results import result_schema
from spillway.kafka.client import KafkaUnavailable, cluster
from spillway.places import var_folder
from spillway.policy.intake import rows_per_epoch, worth_changing
from spillway.private import private_folder
from spillway.protocol.offsets import rows_between
from spillway.protocol.plan import unseen, waits
from spillway.protocol.state import JournalState, check_query, fold
from spillway.storage import StorageError, private
from spillway.stream.boundary import due_close, never_closes
from spillway.stream.driver import FULL, Driver, Ended, first_lines
from spillway.stream.genesis import check_same, first_entry, state_of_query
from spillway.stream.job import Batch, EpochJob, Placement
from spillway.stream.session import spark_session
from spillway.stream.source import batch_end, kafka_options, stream_rows
from spillway.stream.tasks import JobSettings
from spillway.tables import JournalConflict, SessionEvent, Warehouse, exists
from spillway_schemas.exits import FAILED
from spillway_schemas.journal import Command, Epoch, Offsets
from spillway_schemas.query import Query
from spillway_schemas.secret import Options, hide
from spillway_schemas.settings import Settings

POLL_S = 0.1
LOST_DATA = ("OffsetOutOfRange", "data may have been lost", "data loss", "was changed from")
AWAY = (
    "TimeoutException",
    "DisconnectException",
    "BrokerNotAvailable",
    "NetworkException",
    "No resolvable bootstrap",
    "Connection refused",
    "TimeoutError",
)
AWAY_S = 600.0
"""How long a broker may be away before the stream ends with an error."""


@dataclass
class Wanted:
    """What `spillway stream` was asked for."""

    session: str | None = None
    until_sealed: str | None = None
    available_now: bool = False


def _nothing(_: object) -> None:
    """Nobody watches."""


@dataclass
class Watcher:
    """What the stream tells whoever runs it."""

    on_epoch: Callable[[Epoch], None] = _nothing
    on_trouble: Callable[[str], None] = _nothing
    on_start: Callable[[JournalState], None] = _nothing
    on_progress: Callable[[str], None] = _nothing
    """What the start does next: it takes seconds."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set to end the stream after its epoch (SIGTERM does)."""


class SessionNotOpen(Exception):
    """The session asked for is not the open one."""

    exit_code = FAILED


class StreamFailed(Exception):
    """The stream ended with an error (exit code 3); what was journaled stays exact."""


class Stream:
    """One run of the streaming job."""

    def __init__(
        self, settings: Settings, query: Query, wanted: Wanted, watcher: Watcher, clock: Clock
    ) -> None:
        """`clock`: the exchange's time, by which sessions begin and end."""
        self.settings = settings
        self.clock = clock
        self.query = query
        self.wanted = wanted
        self.watcher = watcher
        self.streams = compile_streams(query)
        self.spec = join_spec(query)
        self.topics = [stream.topic for stream in self.streams]
        self._lock = threading.Lock()
        self._stopping = False
        self._failure: BaseException | None = None
        self._max_rows = settings.stream.max_rows_per_epoch
        self._last: Epoch | None = None
        self._wanted_rows = self._max_rows
        self._commands_read: int | None = None
        self._pending: list[Command] = []
        self._query: Any = None
        self._checkpoint = Path()
        self._starts = 0
        self._hosts = frozenset[str]()
        """Where executors were when the last batch came."""
        self._told_away = False
        """Whether it was said that the calendar's seal waits for Kafka."""

    @cached_property
    def warehouse(self) -> Warehouse:
        """The tables. Those that are missing are made at the first use: not before a start."""
        return Warehouse(
            self.settings.warehouse.root,
            result_schema(self.spec),
            fsync=self.settings.warehouse.fsync,
            later={"results"},
        )

    def is_done(self) -> bool:
        """Whether the session to stream until is sealed already. Makes nothing.

        Raises `AnotherQuery` or `WrongTable` when the warehouse is another query's.
        """
        if not exists(self.settings.warehouse.root):
            return False
        found = Warehouse(self.settings.warehouse.root, fsync=False)
        state = state_of_query(found, self.query)
        return state is not None and self.wanted.until_sealed in state.sealed

    def run(self) -> None:
        """Run until stopped, sealed, or out of input. Raises what ends it otherwise."""
        if self.watcher.stop.is_set():
            return
        if self.settings.spark.master.startswith("local"):
            private(self.settings.state.root)  # before anything is written
        state = self._open_journal()
        self._check_session(state)
        spark = self._start_spark()
        try:
            if self._claim(spark, state):
                try:
                    self._loop(spark)
                finally:
                    self._remove_checkpoints()
        finally:
            spark.stop()

    # ------------------------------------------------------------------ beginning

    def _open_journal(self) -> JournalState:
        state = self.warehouse.journal.state()
        if state is None:
            session = self.wanted.session or self.wanted.until_sealed
            with cluster(
                self.settings.kafka.bootstrap_servers, self.settings.kafka.options
            ) as view:
                genesis = first_entry(
                    self.settings,
                    self.query.fingerprint,
                    self.topics,
                    view,
                    session=session,
                    now_ms=self.clock(),
                )
            calendar.session_after(self.settings.session.calendar, genesis.session)
            try:
                self.warehouse.journal.append(genesis)
            except JournalConflict:
                self.warehouse.journal.refresh()  # another first start was faster
            state = self.warehouse.journal.state()
        if state is None:
            raise StreamFailed("the journal is empty after its first entry was written")
        check_query(state, self.query.fingerprint, begins=True)
        self.warehouse.table("results")  # made now that the journal is this query's
        return state

    def _check_session(self, state: JournalState) -> None:
        for date in (self.wanted.session, self.wanted.until_sealed):
            if date is not None and date != state.session.date and date not in state.sealed:
                raise SessionNotOpen(
                    f"{date} is not the open session: that is {state.session.date}. "
                    f"Start with --session {state.session.date}, or without it."
                )
        if self.wanted.session in state.sealed:
            raise SessionNotOpen(
                f"{self.wanted.session} is sealed; the open session is {state.session.date}."
            )

    def _start_spark(self) -> Any:
        master = self.settings.spark.master
        self.watcher.on_progress(f"starting Spark ({master})")
        # Not on the main thread: there pyspark would replace our handler of Ctrl-C.
        with ThreadPoolExecutor(1, "start") as pool:
            return pool.submit(
                spark_session,
                master,
                "spillway stream",
                streaming=True,
                options=_page(self.settings.spark.ui_port),
            ).result()

    def _claim(self, spark: Any, state: JournalState) -> bool:
        """Take over the journal: a new term, with the topics as they are now.

        False when it was asked to stop before: then the journal is as it was.
        """
        if self.watcher.stop.is_set():
            return False
        self.watcher.on_progress("trying an epoch without rows")
        master = self.settings.spark.master
        wait_s = self.settings.recovery.wait_s
        hosts = dict(state.hosts)
        self._placement = placement = Placement(
            spark, master.startswith("local["), hosts, away_s=wait_s
        )
        placement.settle(wait_s)
        job = EpochJob(spark, self._job_settings(state), placement)
        with ThreadPoolExecutor(1, "rehearsal") as pool:
            rehearsal = pool.submit(job.rehearse, len(state.slots))
            with cluster(
                self.settings.kafka.bootstrap_servers, self.settings.kafka.options
            ) as view:
                state = self._refreshed(state)
                self._check_session(state)
                topics = check_same(state, self.query.fingerprint, view, self.topics)
            rehearsal.result()
        if self.watcher.stop.is_set():
            return False
        self.driver = Driver(
            self.warehouse,
            topics,
            self.settings.recovery.wait_s,
            int(self.settings.rebalance.max_bytes_per_epoch),
            self.settings.stream.trigger_s,
            self._journaled,
            self.watcher.on_trouble,
            cores=spark.sparkContext.defaultParallelism,
            secrets=self.settings.kafka.options,
        )
        state = self.driver.state
        placement.hosts = dict(state.hosts)
        self.driver.use(job)
        self._tell_sealed(state)
        self._max_rows = self._wanted_rows = self._rows_that_fit()
        self.watcher.on_start(state)
        self._tell_never_closes()
        return True

    def _tell_never_closes(self) -> None:
        session = self.settings.session
        if session.boundary != "calendar":
            return
        if problem := never_closes(self.driver.state, session.calendar):
            self.watcher.on_trouble(problem)

    def _refreshed(self, state: JournalState) -> JournalState:
        """The journal's state now: whoever is to be relieved goes on, and may seal a session."""
        self.warehouse.journal.refresh()
        for entry in self.warehouse.journal.read(state.n + 1):
            state = fold(state, entry)
        return state

    def _job_settings(self, state: JournalState) -> JobSettings:
        return JobSettings(
            spec=self.spec,
            streams=self.streams,
            warehouse_id=state.genesis.warehouse_id,
            warehouse_root=self.settings.warehouse.root,
            state_root=self.settings.state.root,
            state_key=self.warehouse.state_key(),
            executor_may_override_state_root=not self.settings.spark.master.startswith("local"),
            budget_bytes=int(self.settings.state.budget_bytes),
            threshold=self.settings.spill.threshold,
            fraction=self.settings.spill.fraction,
            inactive_ms=int(self.settings.spill.inactive_s * 1000),
            victims=self.settings.spill.victims,
            kafka=self._kafka(),
        )

    def _kafka(self) -> Options:
        kafka = self.settings.kafka
        return kafka_options(kafka.bootstrap_servers, self.topics, kafka.options)

    def _rows_that_fit(self) -> int:
        last = self._last.slots if self._last is not None else []
        own = int(self.settings.state.budget_bytes)
        return rows_per_epoch(
            last,
            min((each.budget_bytes for each in last), default=own),
            len(self.driver.state.slots),
            self.settings.spill.threshold,
            self.settings.spill.fraction,
            self.settings.stream.max_rows_per_epoch,
        )

    # ------------------------------------------------------------------ the query

    def _checkpoints(self) -> Path:
        return var_folder() / "checkpoints" / self.driver.state.genesis.warehouse_id

    def _remove_checkpoints(self) -> None:
        """Remove this term's checkpoints and those of drivers that came before."""
        for folder in self._checkpoints().glob("*"):
            if int(folder.name) <= self.driver.state.term:
                shutil.rmtree(folder, ignore_errors=True)

    def _start_query(self, spark: Any) -> None:
        """A new query with a new checkpoint, from the journal's end offsets."""
        self._starts += 1
        self._failure = None
        private_folder(self._checkpoints())
        self._checkpoint = self._checkpoints() / str(self.driver.state.term) / str(self._starts)
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._max_rows = self._wanted_rows
        rows = stream_rows(spark, self._kafka(), self.driver.state.end, self._max_rows)
        writer = rows.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        if self.wanted.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime="0 seconds")
        self._query = writer.start()

    def _stop_query(self) -> None:
        """Stop the query between two epochs."""
        with self._lock:
            self._stopping = True
        self._query.stop()
        self._stopping = False

    def _on_batch(self, rows: Any, batch: int) -> None:
        """Spark's thread: one batch is one epoch."""
        began = time.monotonic()
        # One that goes between Spark's plan and this look was there at the look before.
        hosts = frozenset(self._placement.executors())
        planned = Batch(rows, hosts | self._hosts)
        self._hosts = hosts
        while not self._lock.acquire(timeout=POLL_S):
            if self._stopping:
                return
        try:
            if self._stopping or self._finished():
                return
            before = self.driver.state.end
            end = batch_end(self._checkpoint, batch)
            self._epoch(end, planned)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._lock.release()
        self._pace(began, before)

    def _pace(self, began: float, before: Offsets) -> None:
        """Wait for the trigger's time when this batch has read all there was."""
        read = rows_between(before, self.driver.state.end)
        until = began + self.settings.stream.trigger_s
        while (
            read < self._max_rows // 2
            and not self.wanted.available_now
            and not self._stopping
            and not self.watcher.stop.is_set()
            and time.monotonic() < until
        ):
            time.sleep(0.02)

    def _epoch(self, end: Offsets, batch: Batch | None) -> None:
        commands = self._commands()
        assert self._commands_read is not None  # they were read
        date, last = self.driver.state.session.date, self._last
        after = self._session_after(date)
        self.driver.epoch(
            end,
            batch,
            commands,
            after,
            limit_rows=self._max_rows,
            commands_n=self._commands_read,
        )
        if self.driver.state.session.date != date:
            self._tell_sealed(self.driver.state)
        if self._last is not None and self._last is not last and self._last.withdrawn:
            self._tell_never_closes()

    def _session_after(self, date: str) -> str:
        return calendar.session_after(self.settings.session.calendar, date)

    def _commands(self) -> list[Command]:
        table = self.warehouse.commands
        if self._commands_read is None:  # what no driver has answered
            fresh, self._commands_read = table.unanswered(self.driver.state)
        else:
            fresh = table.read(self._commands_read)
            self._commands_read = fresh[-1].n if fresh else self._commands_read
        self._pending += [each.command for each in fresh]
        self._pending = unseen(self.driver.state, self._pending)
        commands = list(self._pending)
        if self.settings.session.boundary == "calendar":
            commands += self._calendar_seal(commands)
        return commands

    def _calendar_seal(self, waiting: list[Command]) -> list[Command]:
        """The calendar's own end of the open session, once close and grace have passed.

        Raises `KafkaUnavailable`: a batch must not be joined without it, for rows of the evening
        would become the day's.
        """
        session, kafka = self.settings.session, self.settings.kafka
        due = due_close(self.driver.state, waiting, session.calendar, session.grace_s, self.clock())
        if due is None:
            return []
        with cluster(kafka.bootstrap_servers, kafka.options) as view:
            return [due.seal(view.offsets_for_time(sorted(set(self.topics)), due.at_ms))]

    def _tell_sealed(self, state: JournalState) -> None:
        """Say in `sessions` what the journal says; after a crash in between, at the next start."""
        known = {each.session for each in self.warehouse.sessions.read() if each.event == "sealed"}
        for date in sorted(state.sealed.keys() - known):
            self.warehouse.sessions.append(SessionEvent(session=date, event="sealed"))

    def _journaled(self, entry: Epoch) -> None:
        self._last = entry
        wanted = self._rows_that_fit()
        if worth_changing(self._max_rows, wanted):
            self._wanted_rows = wanted
        self.watcher.on_epoch(entry)

    # ------------------------------------------------------------------ the main thread

    def _finished(self) -> bool:
        return self.wanted.until_sealed in self.driver.state.sealed

    def _loop(self, spark: Any) -> None:
        self._start_query(spark)
        away_since: float | None = None
        looked = 0.0
        while True:
            if self.watcher.stop.is_set() or self._finished():
                self._stop_query()
                return
            if not self._query.isActive:
                if self._ended_well():
                    if self._rows_wait_for_seal():
                        self._idle_epoch()
                    return
                away_since = self._again(spark, away_since)
                continue
            if self._last is not None and away_since is not None:
                away_since = None
            if self._wanted_rows != self._max_rows:
                self._stop_query()
                self._start_query(spark)
            if time.monotonic() - looked >= min(self.settings.stream.trigger_s, 1.0):
                looked = time.monotonic()
                self._idle_epoch()
            time.sleep(POLL_S)

    def _rows_wait_for_seal(self) -> bool:
        return waits(self.driver.state, self._commands())

    def _idle_epoch(self) -> None:
        """An epoch without rows, when something waits and no batch is being worked on."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._failure is not None:
                return
            self.driver.look()
            if waits(self.driver.state, self._commands()):
                self._epoch(self.driver.state.end, None)
            self._told_away = False
        except KafkaUnavailable as error:
            # Only the calendar asks Kafka here. Its seal is by time: it comes out the same later.
            if not self._told_away:
                date = self.driver.state.session.date
                self.watcher.on_trouble(f"{date} has closed and waits for its seal: {error}")
            self._told_away = True
        finally:
            self._lock.release()

    def _ended_well(self) -> bool:
        return self._failure is None and self._query.exception() is None

    def _again(self, spark: Any, away_since: float | None) -> float | None:
        """After the query failed: start it again, or raise what cannot be mended."""
        failure = self._failure or self._query.exception()
        if isinstance(failure, Ended | StorageError):
            raise failure
        now = time.monotonic()
        since = away_since if away_since is not None else now
        secrets = self.settings.kafka.options
        if ended := beyond_mending(failure, now - since, self._checkpoint, secrets):
            raise ended from failure
        self.watcher.on_trouble("Kafka does not answer; trying again")
        self.watcher.stop.wait(min(5.0, 1.0 + (now - since) / 4))
        self._last = None
        self._start_query(spark)
        return since


def beyond_mending(
    failure: BaseException | None, away_s: float, checkpoint: Path, secrets: Options
) -> StreamFailed | None:
    """What a failed query, `away_s` seconds after the first one, ends the stream with.

    None: the broker is away and may come back. `secrets` are not told.
    """
    said = str(failure)
    text = hide(said, secrets)
    if any(mark in said for mark in LOST_DATA):
        return StreamFailed(
            "Kafka no longer gives the rows that the journal's offsets name (retention too "
            "short, or a topic was made anew). Nothing wrong was written. Check with "
            f"`spillway doctor`. Spark says: {text.splitlines()[0]}"
        )
    if not isinstance(failure, KafkaUnavailable) and not any(mark in said for mark in AWAY):
        where = ""
        if any(mark in said for mark in FULL):
            where = f". Spark writes to its temporary folder (TMPDIR) and to {checkpoint}"
        told = first_lines(failure, secrets) if failure is not None else "Spark does not say why"
        return StreamFailed(f"the stream failed: {told}{where}")
    if away_s > AWAY_S:
        return StreamFailed(f"Kafka has been away for {AWAY_S:.0f} s: {text}")
    return None


def _page(port: int) -> dict[str, str]:
    """Options that switch Spark's own page on; none for port 0."""
    return {"spark.ui.enabled": "true", "spark.ui.port": str(port)} if port else {}
