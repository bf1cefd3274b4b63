"""What people look at, as one value: `Status`, JSON-able, with units last in the names.

`spillway status`, its `--json`, the demo's table and the HTML report all show this value and
nothing else, so that two places never disagree. Times are RFC 3339 in UTC. A figure that is not
known now is None, never 0: lag when Kafka does not answer, a delay before the first result.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from spillway.readmodel.adaptations import DecisionFacts
from spillway.readmodel.hottest import HotKey
from spillway.readmodel.joins import JoinFigures
from spillway.readmodel.tally import Point, SealAnswer, SlotTally
from spillway.readmodel.waiting import OpenLoss, PendingSeal, Waiting


class StatusRecord(BaseModel):
    """Base: immutable, and strict about what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TopicStatus(StatusRecord):
    """One Kafka input, over the open session."""

    topic: str
    partitions: int
    rows: int
    """Every value read, good or bad."""
    rejected: int
    filtered: int
    outside: int | None
    """Rows that keep their contract and happened outside the session's day; None: not counted."""
    lag_rows: int | None
    """Offsets from the journal's end to Kafka's: at most so many rows wait. None: no answer."""


class SlotStatus(StatusRecord, SlotTally):
    """One query processor. Peaks, spills and flushes are of the open session."""

    slot: int
    busy: float
    """The part of the last minute in which it worked; the rest it was idle."""
    occupancy: float
    """Average buffer occupancy over the last minute, 0 to 1."""
    output_rate: float
    """Results of the last minute for each group that it holds."""
    skew: float
    """The largest group's share of its work, on average over the last minute."""


class DecisionStatus(StatusRecord, DecisionFacts):
    """A decision as people see it."""

    results_since: int
    """Results of the warehouse since then, at run time."""


class HotKeyStatus(StatusRecord, HotKey):
    """A key that many rows have."""


class JoinStatus(StatusRecord, JoinFigures):
    """One join of a tree, over the open sessions; in `Detail`, over that one."""

    inputs: list[str]
    """Streams and joins that it reads, in the query's order; joins alone where the query that the
    settings name is not the warehouse's."""


class Verdict(StatusRecord):
    """What `verify` found, the last time it looked."""

    complete: bool
    expected: int | None
    run_time: int | None
    cleanup: int | None
    missing: int | None
    doubled: int | None
    seconds: float | None
    verified_at: str


class EventTimeStatus(StatusRecord):
    """How far the time of a query with windows has come, in the open session."""

    watermark: str | None
    """None: a partition is waited for that has had no row."""
    ahead_s: dict[str, float]
    """Per topic, how much its newest row is ahead of the watermark."""
    idle: dict[str, list[int]]
    """Per topic the partitions that are not waited for."""
    unheard: dict[str, list[int]]
    """Per topic the partitions that are waited for and have had no row."""
    lateness_s: float
    idle_after_s: float | None


class LossAcceptance(StatusRecord):
    """Who has said that input of a session is lost for good, and why."""

    at: str
    by: str
    reason: str


class SessionStatus(StatusRecord):
    """One trading day."""

    session: str
    stage: Literal["open", "ending", "next", "sealed", "cleaning", "cleaned"]
    """`ending`: its end is fixed but not reached by every partition; `next`: rows beyond that end
    belong to it already."""
    rows_in: dict[str, int]
    """Per topic."""
    rejected: int
    filtered: int
    outside: dict[str, int]
    """Per topic, rows that keep their contract and happened outside the session's day; only topics
    of which that is counted."""
    results_run_time: int
    results_cleanup: int | None
    """None before cleanup has begun."""
    results_corrections: int | None
    """What its corrections have added; None where there are none."""
    cleanup_ranges: int | None
    """Hash ranges that cleanup has to do; None before the seal."""
    cleanup_ranges_done: int
    spills: int
    """How often a slot has spilled (the flush at the seal is not one)."""
    overflows: int
    """How many of these took groups that the rule would have kept, for want of room."""
    spilled_rows: int
    """The flush included."""
    spilled_bytes: int
    flushed_bytes: int
    """State that left memory when the session was sealed."""
    returned_bytes: int
    """What was spilled and came back to memory."""
    expired_rows: int
    """Rows of windowed joins that left memory because no row to come joins with them."""
    generations: int
    """Cuts; the seal's included."""
    most_generations: int
    """The most cuts of any one hash range."""
    peak_state_bytes: int
    """Of the slot that had most of its budget in use."""
    budget_bytes: int
    """The budget that it had then."""
    restored_slots: int
    """How often a slot's state was lost and read again."""
    deferred_slots: int
    """How often it was lost and left to cleanup."""
    moved: int
    """Groups that changed their slot."""
    delay_p50_ms: int | None
    delay_p99_ms: int | None
    began_at: str | None
    """When its first epoch began."""
    ended_at: str | None
    """When it was sealed."""
    seal_by: str
    """Who asked for the seal that was obeyed; empty before, and when the journal does not say."""
    seal_reason: str
    seal_answers: list[SealAnswer]
    """The newest last; those that came while the session was open."""
    accepted_losses: list[LossAcceptance]
    """Those that the stream has obeyed, and the last one since the seal."""
    cleanup_s: float | None
    verdict: Verdict | None
    unproved: str
    """Why an earlier verdict no longer counts; empty where none was given, or it counts."""

    @property
    def results(self) -> int:
        """All of them that are in the table."""
        return self.results_run_time + (self.results_cleanup or 0) + (self.results_corrections or 0)


class Spread(StatusRecord):
    """Productivity (results per KiB of state) of some partition groups."""

    groups: int
    p10: float
    p50: float
    p90: float


class SpillChoice(StatusRecord):
    """One spill of one slot: what it kept and what it spilled."""

    epoch: int
    slot: int
    kept: Spread | None
    """None: nothing was kept."""
    spilled: Spread


class Cleaning(StatusRecord):
    """Missing results that cleanup wrote, as a step in time."""

    written_ms: int
    rows: int


class Detail(StatusRecord):
    """What only the HTML report draws, of one session."""

    session: str
    points: list[Point]
    choices: list[SpillChoice]
    cleaning: list[Cleaning]
    joins: list[JoinStatus]
    """Of a sealed session memory is what the last statistics before its seal say."""


class Status(StatusRecord):
    """Everything that people look at."""

    at: str
    warehouse_root: str
    warehouse_id: str
    query: str
    query_problem: str
    """Why that query is not the one that the warehouse is of; empty when it is."""
    session: str
    """The open one."""
    epoch: int
    """The last; -1 before the first."""
    term: int
    driver: str
    """Host and process of the last driver, whether it lives or not; empty before the first."""
    driver_runs: bool | None
    """Whether it lives; None where that cannot be seen: another host, boot or container."""
    entries: int
    """Of the journal."""
    last_epoch_at: str | None
    last_epoch_age_s: float | None
    last_claim_age_s: float | None
    """Since the last driver took over the journal; None before the first did."""
    rows_per_s: float
    """Rows read, over the last minute (or the last epochs, where a minute holds too many)."""
    results_per_s: float
    delay_p50_ms: int | None
    """Production delay over the last epochs: age of a result's newest input row. None until the
    open session has a result."""
    delay_p99_ms: int | None
    lag_rows: int | None
    intake_held: str
    """Why no more rows are read (`results.max_per_session`), and what to do; empty: they are."""
    slow_disks: str = ""
    """Which disks the newest epoch has found slow, with figures; empty: none."""
    clocks: str
    """Which hosts' clocks differ from the driver's, and what to do; empty: none that is known."""
    hot_keys: list[HotKeyStatus]
    """The keys with the most rows in memory, of the large groups, those first."""
    event_time: EventTimeStatus | None
    """None: the query has no window."""
    threshold: float
    """Part of its budget at which a slot spills."""
    topics: list[TopicStatus]
    slots: list[SlotStatus]
    joins: list[JoinStatus]
    """Of a tree, children first, the root last; empty for a query of one join."""
    quarantine: dict[str, int]
    """Rows of the whole warehouse by reason, the most frequent first."""
    sessions: list[SessionStatus]
    """The newest first: all of them, or the newest ones that were asked for and each older one that
    is not cleaned, or not complete."""
    sessions_left_out: int = 0
    """Older ones that were not asked for."""
    unverified_left_out: int = 0
    """Of these, how many are cleaned and not verified; the others are complete."""
    adaptations: list[DecisionStatus]
    """Decisions to move, split, merge or spill groups, the newest first."""
    moves_waiting: int
    """Groups that are to change their slot in the next epochs."""
    waiting: list[Waiting]
    """What was asked for and not answered by a stream yet, the newest first."""
    pending_seal: PendingSeal | None
    """The seal that is asked for or accepted, and not fulfilled yet."""
    loss: OpenLoss | None
    """What the open session has lost; None: nothing that is known."""
    detail: Detail | None = None

    def session_of(self, date: str) -> SessionStatus | None:
        """The figures of one session; None when the journal does not know it."""
        return next((s for s in self.sessions if s.session == date), None)
