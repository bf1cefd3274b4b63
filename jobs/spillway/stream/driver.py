"""The driver's edge: carries out the protocol's instructions and brings back their events.

`spillway.protocol.driver` decides; here it is done, one instruction at a time and in order. What
could not be done either has an event of its own (a conflict, an unknown outcome, a failed job)
or is raised and ends the stream.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from spillway.clock import rfc3339, system_clock
from spillway.engine.statistics import statistics_every_s
from spillway.policy.restoring import most_restored_rows, rate_shown
from spillway.policy.sampling import Work, owned, slot_figures, work_of
from spillway.processes import process_identity
from spillway.protocol import driver as protocol
from spillway.protocol.deferral import rows_to_read
from spillway.protocol.entry import missing_slots
from spillway.protocol.failing import JobFailed
from spillway.protocol.losses import lost_ranges
from spillway.protocol.plan import Plan
from spillway.protocol.redo import Apply
from spillway.protocol.snapshot import is_due
from spillway.protocol.state import JournalState
from spillway.readmodel.kept import keep
from spillway.stream.failures import cause_of, first_lines
from spillway.stream.job import EpochJob
from spillway.stream.troubles import ClockWatch, DiskWatch, MemoryWatch
from spillway.tables import JournalConflict, OutcomeUnknown, Warehouse
from spillway_schemas.commands import CommandLine
from spillway_schemas.exits import FAILED
from spillway_schemas.journal import Epoch, EpochHead, Genesis, Offsets, SlotReport, Topic
from spillway_schemas.secret import Options
from spillway_schemas.setting_fields import RecoverySettings


class Ended(Exception):
    """The protocol ended this driver."""

    def __init__(self, end: protocol.End) -> None:
        super().__init__(end.reason)
        self.fenced = end.fenced
        if end.fenced:  # what somebody else has begun is no fault: its line says all
            self.exit_code = FAILED


class StreamDriver:
    """One term's driver. Not thread-safe: its owner holds a lock around every call."""

    def __init__(
        self,
        warehouse: Warehouse,
        topics: Sequence[Topic],
        most_moved_bytes: int,
        interval_s: float,
        on_epoch: Callable[[Epoch], None],
        on_trouble: Callable[[str], None],
        *,
        cores: int,
        max_results: int,
        recovery: RecoverySettings,
        secrets: Options,
        query: Genesis | None = None,
    ) -> None:
        """`query`: what the claim is to say of it (`start.query_to_claim`)."""
        self._warehouse = warehouse
        self._topics = topics
        self._recovery = recovery
        self._most_moved_bytes = most_moved_bytes
        self._on_epoch = on_epoch
        self._on_trouble = on_trouble
        self._cores = cores
        self._max_results = max_results
        self._secrets = secrets
        self._most_per_s = 0.0
        """The greatest `rate_shown` of this term."""
        self._job: EpochJob | None = None
        self._limit_rows = 0
        self._began = 0.0
        self._statistics_at = -math.inf
        self._interval_s = interval_s
        self._disks, self._memory = DiskWatch(), MemoryWatch()
        self._works: list[Work] = []
        self._clocks = ClockWatch()
        self._kept_n, self._open = -1, ""  # so the first state is kept
        name = f"{socket.gethostname()}/{os.getpid()}"
        self._driver, instructions = protocol.start(name, _now(), process_identity(), query)
        self._carry_out(instructions)

    @property
    def state(self) -> JournalState:
        """The journal's state as this driver knows it."""
        if self._driver.state is None:
            raise RuntimeError("the journal was not read")
        return self._driver.state

    def use(self, job: EpochJob) -> None:
        """Run epochs with this job from now on."""
        self._job = job

    def epoch(
        self,
        end: Offsets,
        commands: Sequence[CommandLine],
        next_session: str,
        *,
        limit_rows: int,
        commands_n: int = -1,
    ) -> None:
        """Carry one epoch, which might read `limit_rows` at most, through to every table.

        `commands_n`: number up to which all commands are given, or seen by the journal.

        Raises `Ended` when this driver must stop.
        """
        self._limit_rows = limit_rows
        self._began = time.monotonic()
        readers = min(self._cores, sum(topic.partitions for topic in self.state.topics))
        most_restored = most_restored_rows(
            self._recovery.mode, self._recovery.restore_within_s, readers, self._most_per_s
        )
        offered = protocol.Offered(
            end,
            commands,
            next_session,
            _now(),
            self._most_moved_bytes,
            commands_n,
            most_restored,
        )
        self._driver, instructions = protocol.step(self._driver, offered)
        self._carry_out(instructions)
        for slow in self._disks.told():
            self._on_trouble(f"epoch {self.state.epoch}: {slow}")

    def _carry_out(self, instructions: Sequence[protocol.Instruction]) -> None:
        waiting = deque(instructions)
        while waiting:
            event = self._do(waiting.popleft())
            if event is not None:
                self._driver, more = protocol.step(self._driver, event)
                waiting.extend(more)

    def _do(self, instruction: protocol.Instruction) -> protocol.Event | None:
        match instruction:
            case protocol.ReadJournal():
                return self.read_journal(instruction.after)
            case protocol.Look():
                return self.looked()
            case protocol.ReadHistory():
                return self.read_history(instruction.after_epoch)
            case protocol.Sync():
                with self._disks.writing("making its files durable"):
                    self.sync(instruction)
                return None
            case protocol.Append():
                with self._disks.writing("a commit to 'journal'"):
                    return self.append(instruction)
            case Apply():
                with self._disks.writing(f"a commit to {instruction.table!r}"):
                    return self.apply(instruction)
            case protocol.RunJob():
                return self.run_job(instruction.plan, instruction.attempt)
            case protocol.Ready():
                self._warehouse.maintain()
                self.keep()
                return None
            case protocol.End():
                raise Ended(instruction)

    def read_journal(self, after: int) -> protocol.Event:
        """Read the newest entries and every table's last application transaction."""
        self._warehouse.journal.refresh()
        journal, applied = self._warehouse.journal, self._warehouse.applied_all()
        known, entries = (None, journal.read(after + 1)) if after >= 0 else journal.read_on(applied)
        return protocol.JournalRead(
            entries, applied, self._topics, self._cores, known, self._max_results
        )

    def read_history(self, after_epoch: int) -> protocol.HistoryRead:
        """The journal's epochs after one, as this driver knows the journal."""
        # Epoch e is never before entry e + 1.
        heads = (head for _, head in self._warehouse.journal.heads(after_epoch + 2))
        found = [head for head in heads if isinstance(head, EpochHead)]
        return protocol.HistoryRead(
            [each for each in found if after_epoch < each.epoch <= self.state.epoch]
        )

    def look(self) -> None:
        """See whether another driver has taken over. Raises `Ended` when one has."""
        self._driver, instructions = protocol.step(self._driver, self.looked())
        self._carry_out(instructions)

    def looked(self) -> protocol.Looked:
        """What others have journaled beyond this driver's last entry."""
        # An append after this still takes exactly the number after that entry, or conflicts.
        self._warehouse.journal.refresh()
        n = self.state.n
        newer = self._warehouse.journal.read(n + 1) if self._warehouse.journal.last_n() > n else []
        return protocol.Looked([entry for entry in newer if not isinstance(entry, Genesis)])

    def keep(self) -> None:
        """Keep a snapshot of the journal's state when it is due, for the next start."""
        journal, state = self._warehouse.journal, self.state
        if not is_due(state, self._kept_n, state.session.date != self._open):
            return
        self._kept_n, self._open = state.n, state.session.date
        try:
            journal.keep(state)
            keep(self._warehouse)
        except Exception as error:  # noqa: BLE001 - a cache must not end the stream
            told = f"{type(error).__name__}: {error}"
            self._on_trouble(f"the next start and look will read more of the journal: {told}")

    def sync(self, instruction: protocol.Sync) -> None:
        """Make data files durable before the journal names them."""
        self._warehouse.sync_files(instruction.files)

    def append(self, instruction: protocol.Append) -> protocol.Event:
        """One commit to the journal, with the handle as it was last used."""
        try:
            self._warehouse.journal.append(instruction.entry)
        except JournalConflict:
            return protocol.Conflict(self.looked().entries)
        except OutcomeUnknown as error:
            return protocol.Unknown(str(error))
        if isinstance(instruction.entry, Epoch):
            work, job_s = work_of(instruction.entry), instruction.entry.seconds.get("job", 0.0)
            self._works.append(work)
            shown = rate_shown(work.limit_rows, work.rows, job_s)
            self._most_per_s = max(self._most_per_s, shown)
            self._on_epoch(instruction.entry)
        return protocol.Appended()

    def apply(self, instruction: Apply) -> protocol.Event:
        """Give a table its files; a no-op when it has them."""
        self._warehouse.apply(instruction.table, instruction.epoch, list(instruction.files))
        return protocol.Applied(instruction.table, instruction.epoch)

    def run_job(self, plan: Plan, attempt: int) -> protocol.Event:
        """Run the epoch's Spark job; wait for executors before a repeated attempt."""
        if self._job is None:
            raise RuntimeError("no job was given")
        if attempt > 1:
            self._job.placement.wait(self._recovery.wait_s)
        else:
            for each in lost_ranges(self.state.end, plan.start, plan.lost_to):
                told = f"continuing without {each} (accepted as lost)"
                self._on_trouble(f"epoch {plan.epoch}: {told}")
        self._tell_recovery(plan)
        now_ms = self.state.recent_input_ms
        due = self._statistics_at + statistics_every_s(len(plan.groups))
        began = time.monotonic()
        statistics = plan.sealing or began >= due
        try:
            reports = self._job.run(
                plan,
                term=self.state.term,
                attempt=attempt,
                now_ms=now_ms,
                statistics=statistics,
                recent=slot_figures(
                    self._works, owned(plan.groups, len(plan.manifests)), self._interval_s
                ),
            )
        except Exception as error:
            detail = first_lines(error, self._secrets)
            if killed := self._memory.told():
                detail = f"{killed} ({detail})"
            self._on_trouble(f"epoch {plan.epoch}, attempt {attempt}: {detail}")
            if self._job.spark.sparkContext._jsc.sc().isStopped():
                raise
            return JobFailed(detail, cause_of(str(error)))
        self._disks.stepped(reports)
        for slot, what in missing_slots(plan, reports).items():
            self._on_trouble(f"epoch {plan.epoch}: slot {slot} has lost its state ({what})")
        for report in reports:
            for what in report.warnings:
                self._on_trouble(f"epoch {plan.epoch}: slot {report.slot}: {what}")
        totals = [report.totals for report in reports if report.totals is not None]
        for told in self._clocks.told(totals, math.ceil((time.monotonic() - began) * 1000)):
            self._on_trouble(told)
        if statistics:
            self._statistics_at = time.monotonic()
            self._works = []
        return self._reported(reports)

    def _tell_recovery(self, plan: Plan) -> None:
        if plan.restore is not None:
            rows, slots = rows_to_read(plan.restore), sorted(plan.restore.slots)
            self._on_trouble(
                f"epoch {plan.epoch}: reading {rows:,} rows again from Kafka for slots {slots}"
            )
        elif plan.deferred_slots:
            mode = self._recovery.mode
            self._on_trouble(
                f"epoch {plan.epoch}: slots {list(plan.deferred_slots)} restart empty; cleanup "
                f"will re-read their rows from Kafka (recovery.mode is {mode})"
            )

    def _reported(self, reports: Sequence[SlotReport]) -> protocol.Event:
        job_s, commits_s = time.monotonic() - self._began, self._disks.commits_s()
        seconds = {"job": round(job_s, 4), "commits before": round(commits_s, 4)}
        now_ms = system_clock()
        sane = [dated(report, now_ms) for report in reports]
        return protocol.Reported(sane, _now(), seconds, self._limit_rows)


def dated(report: SlotReport, now_ms: int) -> SlotReport:
    """A report whose newest input is not ahead of this host's clock.

    Producers date records. One of the year 2100 would move the stream's clock there, and it would
    stand still ever after: in a query with `idle_after` all other partitions would be idle at
    once, so that their rows are late, and one that falls silent later never would; no group would
    be inactive. The journal has the bounded time, so every fold of it goes by the same.
    """
    newest = max(0, min(report.recent_input_ms, now_ms))
    return report.model_copy(update={"recent_input_ms": newest})


def _now() -> str:
    return rfc3339(system_clock())
