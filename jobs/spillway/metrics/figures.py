"""What a scrape shows, as one immutable value, and how it is taken from the tally. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from spillway.kafka.backlog import Backlog
from spillway.protocol.limit import intake_held, limit_ratio
from spillway.protocol.state import genesis_of, kept_groups
from spillway.readmodel.event_time import EventTimeFigures, event_time_of
from spillway.readmodel.joins import JoinFigures
from spillway.readmodel.model import ReadModel
from spillway.readmodel.tally import summed_delay
from spillway.report.model import SlotStatus
from spillway.report.status import slots_of, topics_of
from spillway.tables import SessionEvent
from spillway.tables.events import standing_verdicts


@dataclass(frozen=True)
class JournalFigures:
    """Sums over the journal, and the slots as the last epoch left them."""

    warehouse: str
    query: str
    """Its name."""
    session: str
    term: int
    epochs: int
    last_epoch_s: float | None
    """Unix time."""
    last_epoch_took_s: float | None
    rows: Mapping[str, int]
    filtered: Mapping[str, int]
    outside: Mapping[str, int]
    """Only topics of which it is counted."""
    results: int
    write_s: Mapping[str, float]
    """Of `Tally`."""
    intake_held: bool
    limit_ratio: float | None
    """Of a session's results (`spillway.protocol.limit`); None: there is no limit."""
    delay: tuple[int, ...]
    """Samples over `DELAY_EDGES_MS`; empty before the first result."""
    slots: tuple[SlotStatus, ...]
    clocks_ahead_s: Mapping[str, float]
    """By slot: of its host, against the driver's."""
    spills: int
    spilled_bytes: int
    flushed_bytes: int
    returned_bytes: int
    expired_rows: int
    event_time: EventTimeFigures | None
    """None: the query has no window."""
    generations: Mapping[str, int]
    """By join, of a tree."""
    relocations: int
    relocations_waiting: int
    restored_slots: int
    deferred_slots: int


@dataclass(frozen=True)
class Lag:
    """What waited at the last look that Kafka answered. A topic that is not known is left out."""

    rows: Mapping[str, int]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Days:
    """Sealed sessions and their proofs."""

    unproved: int
    oldest_sealed_s: float | None
    """Unix time at which the oldest of them was sealed."""
    incomplete: int


@dataclass(frozen=True)
class JoinTotals:
    """What the joins of a tree hold, and what they have given since the first look."""

    now: Sequence[JoinFigures]
    """Of the open sessions."""
    given: Mapping[str, int]

    @classmethod
    def of(cls, before: JoinTotals | None, now: Sequence[JoinFigures]) -> JoinTotals:
        """After another look. Results are counted from nothing again when a session is sealed or a
        slot's state is lost: then none are added."""
        if before is None:
            return cls(now, {each.join: 0 for each in now})
        known = {each.join: each.results for each in before.now}
        more = {each.join: max(each.results - known[each.join], 0) for each in now}
        return cls(now, {join: before.given[join] + count for join, count in more.items()})


@dataclass(frozen=True)
class ScrapeFigures:
    """Everything that a scrape shows. None: not known now."""

    at_s: float | None = None
    claimed: bool = False
    threshold: float | None = None
    journal: JournalFigures | None = None
    kafka_answers: bool | None = None
    lag: Lag | None = None
    quarantined: Mapping[tuple[str, str], int] | None = None
    """Rows per topic and kind of reason."""
    days: Days | None = None
    joins: JoinTotals | None = None


def journal_figures(model: ReadModel, trigger_s: float, query: str) -> JournalFigures:
    """The tally's figures. `trigger_s` and `query`, its name: of the stream."""
    sessions = list(model.tally.sessions.values())
    state = model.state
    # Of another query a join of the same number is another one.
    alike = [
        each
        for date, each in model.tally.sessions.items()
        if date not in state.sealed or kept_groups(state, genesis_of(state, state.sealed[date]))
    ]
    last = model.tally.recent[-1] if model.tally.recent else None
    topics, joins = list(model.partitions), model.state.genesis.joins
    return JournalFigures(
        warehouse=model.state.genesis.warehouse_id,
        query=query,
        session=model.session,
        term=model.state.term,
        epochs=model.state.epoch + 1,
        last_epoch_s=_unix(model.tally.last_epoch_at),
        last_epoch_took_s=None if last is None else (last.ended_ms - last.started_ms) / 1000,
        rows={t: sum(s.rows.get(t, 0) for s in sessions) for t in topics},
        filtered={t: sum(s.filtered.get(t, 0) for s in sessions) for t in topics},
        outside={
            t: sum(s.outside.get(t, 0) for s in sessions)
            for t in topics
            if any(t in s.outside for s in sessions)
        },
        results=sum(s.results for s in sessions),
        write_s=dict(model.tally.write_s),
        intake_held=bool(intake_held(model.state)),
        limit_ratio=limit_ratio(model.state),
        delay=tuple(summed_delay(sessions)),
        slots=tuple(slots_of(model, trigger_s)),
        clocks_ahead_s={str(t.slot): t.clock_ahead_ms / 1000 for t in model.state.totals},
        spills=sum(s.spills for s in sessions),
        spilled_bytes=sum(s.spilled_bytes for s in sessions),
        flushed_bytes=sum(s.flushed_bytes for s in sessions),
        returned_bytes=sum(s.returned_bytes for s in sessions),
        expired_rows=sum(s.expired_rows for s in sessions),
        event_time=event_time_of(model),
        generations={
            join: sum(s.cuts_by_join.get(number, 0) for s in alike)
            for number, join in enumerate(joins)
            if len(joins) > 1
        },
        relocations=sum(s.moved for s in sessions),
        relocations_waiting=len(model.state.moves),
        restored_slots=sum(s.restored_slots for s in sessions),
        deferred_slots=sum(s.deferred_slots for s in sessions),
    )


def lag_of(model: ReadModel, backlog: Backlog, now_ms: int) -> Lag:
    """What waits, in rows and seconds, when Kafka looked so at `now_ms`."""
    topics, _ = topics_of(model, backlog.ends)
    rows = {each.topic: each.lag_rows for each in topics if each.lag_rows is not None}
    seconds = {topic: 0.0 for topic, waiting in rows.items() if not waiting}
    for topic, oldest_ms in backlog.oldest_ms.items():
        # A producer's clock may be ahead of ours.
        seconds[topic] = max(0, now_ms - oldest_ms) / 1000
    return Lag(rows, seconds)


def days_of(model: ReadModel, events: Iterable[SessionEvent]) -> Days:
    """Which sealed sessions are not proved complete. `events`: of the table `sessions`."""
    verdicts = {date: e.settles for date, e in standing_verdicts(events).items()}
    sealed = {date: _unix(s.sealed_at) for date, s in model.tally.sessions.items() if s.sealed_at}
    unproved = {date: at for date, at in sealed.items() if not verdicts.get(date, False)}
    return Days(
        unproved=len(unproved),
        oldest_sealed_s=min((at for at in unproved.values() if at is not None), default=None),
        incomplete=sum(not verdicts[date] for date in sealed if date in verdicts),
    )


def _unix(at: str | None) -> float | None:
    return None if at is None else datetime.fromisoformat(at).timestamp()
