"""`spillway stream`: one run, from the journal to the last epoch.

| module | idea |
|---|---|
| `start` | the journal's first entry, the session asked for, Spark, what workers are told |
| `supervised` | Spark's query: a batch is read in epochs; stops and new starts between two |
| `commands` | what waits to be answered, the calendar's seal among it |
| `failures` | what failures of jobs and of the query mean |
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from pyarrow import ArrowException

from spillway import calendar
from spillway.clock import Clock
from spillway.decode import tree_spec
from spillway.engine.join.results import result_schema
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.spillfile import spill_schema
from spillway.kafka.client import (
    LOOK_ANSWER_S,
    LOOK_CONNECT_S,
    KafkaUnavailable,
    TopicProblem,
    cluster,
    listens,
)
from spillway.places import var_folder
from spillway.policy.automatic import forecast_for
from spillway.policy.intake import LEAST_ROWS, rows_per_epoch
from spillway.protocol.deferral import not_deferrable
from spillway.protocol.limit import intake_held
from spillway.protocol.offsets import padded, rows_between, towards
from spillway.protocol.plan import waits
from spillway.protocol.seal import no_further
from spillway.protocol.state import JournalState
from spillway.storage import StorageError, private
from spillway.stream.boundary import has_no_close, never_closes
from spillway.stream.commands import CommandSource
from spillway.stream.day_before import day_before
from spillway.stream.driver import Ended, StreamDriver
from spillway.stream.failures import (
    OF_THE_JVM,
    beyond_mending,
    deleted,
    first_lines,
    topic_gone,
)
from spillway.stream.genesis import state_of_query
from spillway.stream.job import EpochJob
from spillway.stream.placement import Placement
from spillway.stream.run import IntakeHeld, StreamFailed, Wanted, Watcher
from spillway.stream.silence import nobody_came
from spillway.stream.source import kafka_options
from spillway.stream.start import (
    check_session,
    job_settings,
    open_journal,
    query_to_claim,
    refreshed,
    start_spark,
    topics_to_claim,
)
from spillway.stream.supervised import POLL_S, EpochHooks, SupervisedQuery
from spillway.stream.troubles import MemoryWatch
from spillway.tables import SessionEvent, Warehouse, exists, opened
from spillway.tables.definitions import OF_QUERY
from spillway.tables.errors import WarehouseError
from spillway_schemas.journal import Epoch, Offsets, SlotTotals
from spillway_schemas.query import Query
from spillway_schemas.secret import Options
from spillway_schemas.settings import Settings

TOPICS_S = 3.0
"""So often it is asked whether the topics are still the same while no task reads them."""


class Stream:
    """One run of the streaming job."""

    driver: StreamDriver
    """Once the journal is claimed."""
    supervised: SupervisedQuery
    """Once it was claimed and the query begins."""
    job: EpochJob
    """Of all epochs; once the journal is claimed."""

    def __init__(
        self, settings: Settings, query: Query, wanted: Wanted, watcher: Watcher, clock: Clock
    ) -> None:
        """`clock`: the exchange's time, by which sessions begin and end."""
        self.settings = settings
        self.clock = clock
        self.query = query
        self.wanted = wanted
        self.watcher = watcher
        self._last: Epoch | None = None
        self._came: list[SlotTotals] = []
        """The slots of the last epoch that says how many rows there are in state for each that is
        read, and which slots they come to: one of a few rows does not."""
        self._told_away = False
        """Whether it was said that the calendar's seal waits for Kafka."""
        self._held = ""
        """Why no row is read, as it was told; empty: rows are read."""
        self._asked_at = 0.0
        """When Kafka was last asked for its topics, while no row is read."""
        self._misses_topic = False
        """Whether one of them was gone then, in this hold."""

    @cached_property
    def spec(self) -> TreeSpec:
        """The joins that the query stands for; compiled once."""
        return tree_spec(self.query)

    @cached_property
    def warehouse(self) -> Warehouse:
        """The tables. Those that are missing are made at the first use: not before a start."""
        return Warehouse(
            self.settings.warehouse.root,
            result_schema(self.spec),
            fsync=self.settings.warehouse.fsync,
            spill=spill_schema(self.spec),
            later=OF_QUERY,
            options=self.settings.warehouse.options,
        )

    @cached_property
    def commands(self) -> CommandSource:
        """What waits to be answered."""
        return CommandSource(self.settings, self.warehouse.commands, self.query.topics, self.clock)

    def is_done(self) -> bool:
        """Whether the session to stream until is sealed already. Makes nothing.

        Raises `QueryChanged` or `WrongTable` when the warehouse is another query's.
        """
        place = self.settings.warehouse
        if not exists(place.root, place.options):
            return False
        found = opened(place, fsync=False)
        state = state_of_query(found, self.query)
        return state is not None and self.wanted.until_sealed in state.sealed

    def run(self) -> None:
        """Run until stopped, sealed, or out of input. Raises what ends it otherwise."""
        if self.watcher.stop.is_set():
            return
        if self.settings.spark.master.startswith("local"):
            private(self.settings.state.root)  # before anything is written
        state = open_journal(self.warehouse, self.settings, self.query, self.wanted, self.clock)
        check_session(self.wanted, state)
        self.watcher.on_progress(f"starting Spark ({self.settings.spark.master})")
        memory = MemoryWatch()
        try:
            spark = start_spark(self.settings)
            try:
                if self._claim(spark, state):
                    try:
                        self._loop(spark)
                    finally:
                        self._remove_checkpoints()
            finally:
                spark.stop()
        except OF_THE_JVM as error:
            if killed := memory.told():
                told = first_lines(error, self.settings.secrets)
                raise StreamFailed(f"{killed}. What is in the journal is whole ({told})") from error
            raise

    # ------------------------------------------------------------------ beginning

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
        placement = Placement(spark, master.startswith("local["), hosts, away_s=wait_s)
        placement.settle(wait_s)
        if not placement.local and not placement.executors():
            driver = str(spark.conf.get("spark.driver.host", ""))
            self.watcher.on_trouble(nobody_came(master, driver, wait_s))
        told = job_settings(self.settings, self.query, self.spec, self.warehouse, state)
        job = EpochJob(spark, told, placement, self.watcher.on_trouble)
        with ThreadPoolExecutor(1, "rehearsal") as pool:
            rehearsal = pool.submit(job.rehearse, len(state.slots))
            with cluster(
                self.settings.kafka.bootstrap_servers, self.settings.kafka.options
            ) as view:
                state = refreshed(self.warehouse, state)
                check_session(self.wanted, state)
                topics = topics_to_claim(self.warehouse, state, self.query, view)
                changed = query_to_claim(
                    self.settings, self.query, state, view, self.clock, self.watcher.on_trouble
                )
            rehearsal.result()
        if self.watcher.stop.is_set():
            return False
        self.driver = StreamDriver(
            self.warehouse,
            topics,
            int(self.settings.rebalance.max_bytes_per_epoch),
            self.settings.stream.trigger_s,
            self._journaled,
            self.watcher.on_trouble,
            cores=spark.sparkContext.defaultParallelism,
            max_results=self.settings.results.max_per_session,
            recovery=self.settings.recovery,
            secrets=self.settings.secrets,
            query=changed,
        )
        state = self.driver.state
        if state.before:  # only now that nobody else writes by another query
            self.warehouse.widen_columns()
        placement.hosts = dict(state.hosts)
        job.identify(state.topics)
        self.job = job
        self.driver.use(job)
        self._look_at_the_day_before()
        self._tell_sealed(state)
        # Until rows come: what a row takes is known, and not yet which slots rows come to.
        self._came = [each.model_copy(update={"rows_in": {}}) for each in state.totals]
        self.watcher.on_start(state)
        self._tell_never_closes()
        why = not_deferrable(state.genesis)
        if why and self.settings.recovery.mode == "defer":
            self.watcher.on_trouble(f"recovery.mode = defer, but {why}: lost state is restored")
        return True

    def _look_at_the_day_before(self) -> None:
        """For what groups are to expect. Not knowing it is no reason to stop."""
        calendar_ = self.job.settings.calendar
        genesis = self.driver.state.genesis
        is_used = genesis.event_time is None and len(genesis.parents) == 1
        forecast = forecast_for(self.settings.spill.forecast, self.job.settings.reactivation)
        if forecast == "off" or not calendar_ or not is_used:
            return
        try:
            self.job.before = day_before(self.warehouse, self.driver.state, calendar_)
        except (ArrowException, OSError, KeyError, calendar.CalendarError, WarehouseError) as error:
            self.job.before = None
            self.watcher.on_trouble(f"how rows came in the session before is not known: {error}")

    def _tell_never_closes(self) -> None:
        session = self.settings.session
        why_not = never_closes if session.boundary == "calendar" else has_no_close
        if problem := why_not(self.driver.state, session.days):
            self.watcher.on_trouble(problem)

    def _kafka(self) -> Options:
        kafka = self.settings.kafka
        return kafka_options(kafka.bootstrap_servers, self.query.topics, kafka.options)

    def _rows_that_fit(self) -> int:
        own = int(self.settings.state.budget_bytes)
        return rows_per_epoch(
            self._came,
            min((each.budget_bytes for each in self._came), default=own),
            len(self.driver.state.slots),
            self.settings.spill.threshold,
            self.settings.stream.max_rows_per_epoch,
            [join.name for join in self.query.tree.joins],
        )

    # ------------------------------------------------------------------ an epoch

    def _towards(self, end: Offsets) -> bool:
        """Run an epoch on the way to where a batch ends; whether it came as far as it may."""
        return self._epoch(end, self._rows_that_fit())

    def _epoch(self, end: Offsets, most: int = 0, *, losses: bool = False) -> bool:
        """Run an epoch towards these offsets, of so many rows at most; whether it came as far as
        it may. `losses`: as in `CommandSource.waiting`."""
        commands = self.commands.waiting(self.driver.state, losses=losses)
        date, last = self.driver.state.session.date, self._last
        next_session = calendar.session_after(self.settings.session.days, date)
        if self.wanted.until_sealed is not None:
            reached = no_further(
                self.driver.state, end, commands, next_session, self.wanted.until_sealed
            )
            self.supervised.left_rows |= reached != end
            end = reached
        start = self.driver.state.end
        to = towards(start, end, most)
        self.driver.epoch(
            to,
            commands,
            next_session,
            # The epochs of a batch are of one size: all but the last leave rows in Kafka.
            limit_rows=most if to == end else rows_between(start, to),
            commands_n=self.commands.read_n,
        )
        if self.driver.state.session.date != date:
            self._tell_sealed(self.driver.state)
            self._look_at_the_day_before()
        if self._last is not None and self._last is not last and self._last.withdrawn:
            self._tell_never_closes()
        return to == end

    def _tell_sealed(self, state: JournalState) -> None:
        """Say in `sessions` what the journal says; after a crash in between, at the next start."""
        known = {each.session for each in self.warehouse.sessions.read() if each.event == "sealed"}
        for date in sorted(state.sealed.keys() - known):
            self.warehouse.sessions.append(SessionEvent(session=date, event="sealed"))

    def _journaled(self, entry: Epoch) -> None:
        self._last = entry
        if sum(sum(slot.rows_in.values()) for slot in entry.slots) >= LEAST_ROWS:
            self._came = entry.slots
        self.watcher.on_epoch(entry)

    # ------------------------------------------------------------------ the main thread

    def _is_over(self) -> bool:
        return self.watcher.stop.is_set() or self._is_sealed()

    def _is_sealed(self) -> bool:
        return self.wanted.until_sealed in self.driver.state.sealed

    def _checkpoints(self) -> Path:
        return var_folder() / "checkpoints" / self.driver.state.genesis.warehouse_id

    def _remove_checkpoints(self) -> None:
        """Remove this term's checkpoints and those of drivers that came before.

        Where that cannot be done the next one does it: the stream may be ending with an error that
        is the reason of this one, too, and says what to do.
        """
        with suppress(OSError):
            for folder in self._checkpoints().glob("*"):
                if int(folder.name) <= self.driver.state.term:
                    shutil.rmtree(folder, ignore_errors=True)

    def _loop(self, spark: Any) -> None:
        self.supervised = query = SupervisedQuery(
            spark,
            self._kafka(),
            self._checkpoints() / str(self.driver.state.term),
            EpochHooks(self._towards, self._is_sealed, self._is_held, self._is_over),
            trigger_s=self.settings.stream.trigger_s,
            available_now=self.wanted.available_now,
        )
        self._accept_losses()
        if not self._is_held():
            query.start(self.driver.state.end)
        away_since: float | None = None
        looked = 0.0
        while True:
            if self._is_over():
                query.stop()
                return
            if self._holds(query):
                self._idle_epoch()
                if self.wanted.available_now and self._is_held():
                    raise IntakeHeld(self._held)
                self._look_at_topics()
                self.watcher.stop.wait(min(self.settings.stream.trigger_s, 1.0))
                continue
            if not query.is_active:
                if query.failure is None:
                    if waits(self.driver.state, self.commands.waiting(self.driver.state)):
                        self._idle_epoch()
                    return
                away_since = self._again(away_since)
                continue
            if self._last is not None:
                away_since = None
            if query.left_rows and self.driver.state.seal is None:
                query.stop()
                self._start_again(query)
                continue
            if time.monotonic() - looked >= min(self.settings.stream.trigger_s, 1.0):
                looked = time.monotonic()
                self._idle_epoch()
                if self.commands.loss_waits(self.driver.state):
                    query.stop()
                    if query.failure is None and not self._is_over():
                        self._accept_losses()
                        self._start_again(query)
            time.sleep(POLL_S)

    def _start_again(self, query: SupervisedQuery) -> None:
        """Start the query once it was stopped: unless an epoch has failed meanwhile, which is to be
        told first, or was the last one."""
        if not query.has_failed_epoch and not self._is_over():
            self._start(query)

    def _start(self, query: SupervisedQuery) -> None:
        """Start the query where the journal ends. A topic may have got a partition since the last
        start, and Spark wants to know where each begins."""
        end, kafka = self.driver.state.end, self.settings.kafka
        if listens(kafka.bootstrap_servers, LOOK_CONNECT_S):
            # What is wrong with a topic is told by the query, which asks for it, too.
            with (
                suppress(KafkaUnavailable, TopicProblem),
                cluster(kafka.bootstrap_servers, kafka.options, LOOK_ANSWER_S) as view,
            ):
                like = {each.name: [0] * each.partitions for each in view.topics(list(end))}
                end = padded(end, like)
        query.start(end)

    def _accept_losses(self) -> bool:
        """Go on behind rows that somebody has accepted as lost; whether there were any.

        Call it while no query runs: it would read on where it is, and not where the journal ends.
        """
        self.commands.waiting(self.driver.state, losses=True)
        if not self.commands.loss_waits(self.driver.state) or self._is_over():
            return False
        self._epoch(self.driver.state.end, losses=True)
        return True

    def _is_held(self) -> bool:
        return bool(intake_held(self.driver.state))

    def _holds(self, query: SupervisedQuery) -> bool:
        """Stop the query while no row may be read, and say why; start it again afterwards."""
        held = intake_held(self.driver.state)
        if held:
            if not self._held:
                query.stop()
                if query.has_failed_epoch:
                    return False
            if held != self._held:
                self.watcher.on_trouble(held)
        elif self._held or query.has_refused:
            query.stop()
            self._start_again(query)
            self._misses_topic = False  # a look in the next hold is not the second in a row
        self._held = held
        return bool(held)

    def _look_at_topics(self) -> None:
        """End the stream where a topic was deleted, as a task that reads would: none does now.

        Not before it is gone twice in a row, for a broker that has just started may not know it
        yet. A broker that hangs is not waited for: commands and a stop would wait, too.
        """
        kafka = self.settings.kafka
        if time.monotonic() - self._asked_at < TOPICS_S:
            return
        gone = None
        if listens(kafka.bootstrap_servers, LOOK_CONNECT_S):
            gone = topic_gone(kafka, self.driver.state.topics, LOOK_ANSWER_S)
        self._asked_at = time.monotonic()
        if gone is not None and self._misses_topic:
            raise gone
        self._misses_topic = gone is not None

    def _idle_epoch(self) -> None:
        """An epoch without rows, when something waits and no batch is being worked on."""
        with self.supervised.at_rest() as is_free:
            # Sealed a moment ago, it leaves the next session as it is: its query may change.
            if not is_free or self._is_over():
                return
            try:
                self.driver.look()
                if waits(self.driver.state, self.commands.waiting(self.driver.state)):
                    self._epoch(self.driver.state.end)
                self._told_away = False
            except KafkaUnavailable as error:
                # Only the calendar asks Kafka here. Its seal is by time: later it is the same.
                if not self._told_away:
                    date = self.driver.state.session.date
                    self.watcher.on_trouble(f"{date} has closed and waits for its seal: {error}")
                self._told_away = True

    def _again(self, away_since: float | None) -> float:
        """After the query failed: start it again, or raise what cannot be mended."""
        failure = self.supervised.failure
        if isinstance(failure, Ended | StorageError):
            raise failure
        if self._accept_losses():
            self._start(self.supervised)
            return time.monotonic()
        if gone := deleted(failure, self.settings.kafka, self.driver.state.topics):
            raise gone from failure
        now = time.monotonic()
        since = away_since if away_since is not None else now
        secrets = self.settings.secrets
        if ended := beyond_mending(failure, now - since, self.supervised.checkpoint, secrets):
            raise ended from failure
        self.watcher.on_trouble("Kafka does not answer; trying again")
        self.watcher.stop.wait(min(5.0, 1.0 + (now - since) / 4))
        self._last = None
        self._start(self.supervised)
        return since
