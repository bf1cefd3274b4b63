"""The page's views, each one value that follows from what was seen. Pure; JSON-able.

Nothing in a view changes with the clock alone: a view of an unchanged warehouse is the same text,
and whoever has it need not get it again. Ages are the reader's business; times are RFC 3339 or
milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from spillway.readmodel.tally import Point, SealAnswerKind, at_most
from spillway.readmodel.waiting import OpenLoss, PendingSeal, Waiting
from spillway.report.model import (
    Cleaning,
    DecisionStatus,
    EventTimeStatus,
    JoinStatus,
    LossAcceptance,
    SessionStatus,
    SlotStatus,
    Status,
    StatusRecord,
    TopicStatus,
)

MOST_POINTS = 300
"""Points of a chart: more than that many nobody sees."""
FRESH_S = 30.0
"""An epoch not older than so, or than some triggers, means that the stream works."""
FRESH_TRIGGERS = 5
HANDOVER_S = 12 * 3600.0
"""How long after its seal an unfinished day stays the one that is looked at first."""


class StreamView(StatusRecord):
    """Whether the stream works, as far as the tables and Kafka tell."""

    state: Literal["new", "working", "quiet", "held", "stalled", "unknown"]
    """`new`: no epoch yet; `quiet`: nothing waits; `held`: no more rows are read; `stalled`: rows
    wait and nothing happens; `unknown`: nothing happens, and Kafka does not say whether rows
    wait."""
    last_epoch_at: str | None
    epoch: int
    term: int
    driver: str
    rows_per_s: float
    results_per_s: float
    lag_rows: int | None
    intake_held: str
    """Why no more rows are read, and what to do; empty: they are."""
    slow_disks: str
    """Which disks are slow; empty: none."""
    clocks: str
    """Which hosts' clocks differ from the driver's, and what to do; empty: none that is known."""
    delay_p50_ms: int | None
    delay_p99_ms: int | None


class SlotHistory(StatusRecord):
    """One slot over time; a number for each point of the history."""

    slot: int
    state_bytes: list[int]
    budget_bytes: list[int]
    spilled_bytes: list[int]
    moved_in: list[int]
    moved_out: list[int]


class History(StatusRecord):
    """A session over time, in at most `MOST_POINTS` points."""

    began_ms: int
    ended_ms: list[int]
    epoch: list[int]
    """The last one of each point."""
    results: list[int]
    """At run time, up to then."""
    flush: list[bool]
    cleanup_ms: list[int]
    """When missing results were written."""
    cleanup_results: list[int]
    """How many there were up to then."""
    slots: list[SlotHistory]


class DayView(StatusRecord):
    """One session as the overview and its own page show it."""

    session: SessionStatus
    stage: Literal[
        "open", "sealing", "sealed", "cleaning", "cleaned", "complete", "incomplete", "next"
    ]
    close_ms: int | None
    """When its exchange closes; None where that is not known."""
    threshold: float
    """Part of its budget at which a slot spills."""
    history: History


class Overview(StatusRecord):
    """The first view."""

    day: DayView
    open: str
    """The session whose input is read now."""
    unfinished: list[str]
    """Other sealed sessions that are not proved complete."""
    stream: StreamView
    topics: list[TopicStatus]
    slots: list[SlotStatus]
    joins: list[JoinStatus]
    """Of a tree, children first; empty for a query of one join."""
    quarantine: dict[str, int]
    event_time: EventTimeStatus | None
    """Of the open session; None: the query has no window."""
    moves_waiting: int
    commands_waiting: int
    pending_seal: PendingSeal | None
    loss: OpenLoss | None
    """Of the open session; None: nothing is lost that is known of."""
    accepted_losses: list[LossAcceptance]
    """Of the open session."""


class SealView(StatusRecord):
    """A seal that was obeyed, or what else was asked about a session."""

    session: str
    what: Literal["sealed"] | SealAnswerKind
    at: str
    """When the session was sealed, or the stream answered."""
    by: str
    reason: str


class Decisions(StatusRecord):
    """What was asked for, the newest first, and what has not been answered."""

    waiting: list[Waiting]
    decisions: list[DecisionStatus]
    total: int
    seals: list[SealView]
    """Of the time that the decisions given are of."""


class SessionRow(StatusRecord):
    """A line of the sessions."""

    session: SessionStatus
    stage: str


class SessionList(StatusRecord):
    """The newest sessions first."""

    open: str
    sessions: list[SessionRow]
    total: int


def stage(session: SessionStatus) -> str:
    """Where a session stands, in one word."""
    if session.verdict is not None and session.stage in ("cleaned", "cleaning", "sealed"):
        return "complete" if session.verdict.complete else "incomplete"
    return "sealing" if session.stage == "ending" else session.stage


def shown(status: Status, now: datetime) -> SessionStatus:
    """The session that people want to see first.

    The open one; but a day that has just ended until it is complete, and until rows of the next
    one come.
    """
    open_ = status.session_of(status.session)
    assert open_ is not None  # the journal's open session has sums
    before = [s for s in status.sessions if s.session < status.session and s.ended_at]
    if not before:
        return open_
    last = before[0]
    assert last.ended_at is not None
    age_s = (now - datetime.fromisoformat(last.ended_at)).total_seconds()
    if not sum(open_.rows_in.values()):
        return last
    return last if stage(last) != "complete" and age_s < HANDOVER_S else open_


def overview(
    status: Status,
    points: Mapping[str, Sequence[Point]],
    now: datetime,
    *,
    trigger_s: float,
    cleaning: Mapping[str, Sequence[Cleaning]],
    closes_ms: Mapping[str, int],
) -> Overview:
    """What is going on. `points`: `points_of` each session."""
    session, open_ = shown(status, now), status.session_of(status.session)
    return Overview(
        day=day(
            status,
            session,
            points.get(session.session, ()),
            cleaning.get(session.session, ()),
            closes_ms,
        ),
        open=status.session,
        unfinished=[
            each.session
            for each in status.sessions
            if each.ended_at and each.session != session.session and stage(each) != "complete"
        ],
        stream=stream(status, trigger_s),
        topics=status.topics,
        slots=status.slots,
        joins=status.joins,
        quarantine=status.quarantine,
        event_time=status.event_time,
        moves_waiting=status.moves_waiting,
        commands_waiting=sum(sum(each.kinds.values()) for each in status.waiting),
        pending_seal=status.pending_seal,
        loss=status.loss,
        accepted_losses=[] if open_ is None else open_.accepted_losses,
    )


def stream(status: Status, trigger_s: float) -> StreamView:
    """How the stream does."""
    age_s = status.last_epoch_age_s
    if age_s is None:
        state = "new"
    elif status.intake_held:
        state = "held"
    elif age_s <= max(FRESH_S, FRESH_TRIGGERS * trigger_s):
        state = "working"
    elif status.lag_rows is None:
        state = "unknown"
    else:
        state = "stalled" if status.lag_rows else "quiet"
    return StreamView.model_validate(
        {
            "state": state,
            **status.model_dump(include=set(StreamView.model_fields) - {"state"}),
        }
    )


def day(
    status: Status,
    session: SessionStatus,
    points: Sequence[Point],
    cleaning: Sequence[Cleaning],
    closes_ms: Mapping[str, int],
) -> DayView:
    """One session with its history."""
    return DayView.model_validate(
        {
            "session": session,
            "stage": stage(session),
            "close_ms": closes_ms.get(session.session),
            "threshold": status.threshold,
            "history": history(session, points, cleaning),
        }
    )


def points_of(date: str, points: Sequence[Point]) -> list[Point]:
    """What a session's history is made of, in at most `MOST_POINTS` points."""
    mine = [p for p in points if p.session == date or p.results.get(date)]
    own = [p if p.session == date else _without_slots(p) for p in mine]
    return at_most(own, MOST_POINTS)


def history(session: SessionStatus, own: Sequence[Point], cleaning: Sequence[Cleaning]) -> History:
    """A session over time. `own`: `points_of` it."""
    date = session.session
    total, results = 0, []
    for point in own:
        total += point.results.get(date, 0)
        results.append(total)
    numbers = sorted({slot for p in own for slot in p.state_bytes})
    steps = _steps(session, cleaning)
    return History(
        began_ms=own[0].started_ms if own else 0,
        ended_ms=[p.ended_ms for p in own],
        epoch=[p.epoch for p in own],
        results=results,
        flush=[p.flush for p in own],
        cleanup_ms=[at for at, _ in steps],
        cleanup_results=[count for _, count in steps],
        slots=[
            SlotHistory(
                slot=slot,
                state_bytes=[p.state_bytes.get(slot, 0) for p in own],
                budget_bytes=[p.budget_bytes.get(slot, session.budget_bytes) for p in own],
                spilled_bytes=[p.spilled_bytes.get(slot, 0) for p in own],
                moved_in=[p.moved_in.get(slot, 0) for p in own],
                moved_out=[p.moved_out.get(slot, 0) for p in own],
            )
            for slot in numbers
        ],
    )


def _without_slots(point: Point) -> Point:
    """A point of another session that gave results of this one: its memory is not this one's."""
    return point.model_copy(
        update={name: {} for name in ("state_bytes", "spilled_bytes", "moved_in", "moved_out")}
    )


def _steps(session: SessionStatus, cleaning: Sequence[Cleaning]) -> list[tuple[int, int]]:
    """Results of cleanup up to each moment."""
    by_cleanup = session.results_cleanup
    if not by_cleanup or session.ended_at is None:
        return []
    steps, total = [], 0
    for each in sorted(cleaning, key=lambda each: each.written_ms):
        total += each.rows
        steps.append((each.written_ms, total))
    if steps and total == by_cleanup:
        return steps
    # Compaction has replaced the files: only the sum is known, and about how long it took.
    begin_ms = round(datetime.fromisoformat(session.ended_at).timestamp() * 1000)
    end_ms = begin_ms + round((session.cleanup_s or 0) * 1000)
    return [(begin_ms, 0), (end_ms, by_cleanup)]


def decisions(status: Status, most: int) -> Decisions:
    """The newest `most` decisions, and everything that waits."""
    shown = status.adaptations[:most]
    since = shown[-1].at if len(shown) < len(status.adaptations) else ""
    return Decisions(
        waiting=status.waiting,
        decisions=shown,
        total=len(status.adaptations),
        seals=[
            each
            for session in status.sessions
            for each in reversed([*_answers(session), *_sealed(session)])
            if each.at >= since
        ],
    )


def _sealed(session: SessionStatus) -> list[SealView]:
    at, by, reason = session.ended_at, session.seal_by, session.seal_reason
    return (
        [SealView(session=session.session, what="sealed", at=at, by=by, reason=reason)]
        if at
        else []
    )


def _answers(session: SessionStatus) -> list[SealView]:
    return [SealView(session=session.session, **each.model_dump()) for each in session.seal_answers]


def sessions(status: Status, most: int) -> SessionList:
    """The newest `most` sessions."""
    return SessionList(
        open=status.session,
        sessions=[SessionRow(session=s, stage=stage(s)) for s in status.sessions[:most]],
        total=len(status.sessions),
    )
