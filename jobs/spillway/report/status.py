"""`status`: where the stream stands, read from the tables with delta-rs alone (no JVM, no Spark).

Everything comes from the journal, but for what the journal cannot know: reasons of quarantined
rows, what cleanup has done and what `verify` found. It reads only and takes no lock: while an
epoch is being committed it shows the epoch before.

Measured on two cores: a first look at a journal of 5,000 epochs takes about a second, each later
one about a tenth of that, because what was added up is remembered (`spillway.readmodel.cache`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from spillway.clock import rfc3339
from spillway.processes import process_runs
from spillway.protocol.limit import intake_held
from spillway.protocol.offsets import padded, partitions
from spillway.protocol.queries import kept_query, told_changes
from spillway.protocol.state import AnotherQuery
from spillway.readmodel import cache
from spillway.readmodel.cache import ReadCache
from spillway.readmodel.clocks import clocks_text, wrong_clocks
from spillway.readmodel.disks import slow_disks
from spillway.readmodel.event_time import event_time_of
from spillway.readmodel.groups import group_states
from spillway.readmodel.hottest import HotKey, hottest_keys
from spillway.readmodel.joins import JoinFigures, look_at_joins
from spillway.readmodel.model import ReadModel
from spillway.readmodel.tally import SessionTally, delay_quantile_ms, summed_delay
from spillway.readmodel.waiting import open_loss, pending_seal, waiting
from spillway.report.detail import detail_of
from spillway.report.model import (
    DecisionStatus,
    EventTimeStatus,
    HotKeyStatus,
    JoinStatus,
    LossAcceptance,
    SessionStatus,
    SlotStatus,
    Status,
    TopicStatus,
    Verdict,
)
from spillway.tables import SessionEvent, Warehouse
from spillway.tables.events import Outcome, SessionHistory, revisions_of, standing_verdicts
from spillway_schemas.journal import Offsets
from spillway_schemas.losses import AcceptedLoss
from spillway_schemas.query import Query, QueryError, load_query
from spillway_schemas.settings import Settings

DECISIONS = TypeAdapter(list[DecisionStatus])
RECENT_S = 60.0
MOST_HOT_KEYS = 10
MOST_REASONS = 20
"""Different reasons that are told apart; the rest is counted as one."""
MOST_REASONS_A_FILE = 500
"""The same within one file: far more, since what is rare in one may be frequent in all."""
OTHER = "(other reasons)"
NOT_PROVED_AGAIN = "corrected, not proved again"
"""Why a session that was proved has no verdict that counts."""
PLACE_IN_VALUE = r"( at line \d+ column \d+| \(byte \d+\))$"
"""Where in its value a row is broken: told of each row, left out where rows are counted."""
HOW_LATE = r"(: late) by [\d.]+ s|: [\d.]+ s( ahead of Kafka)"
"""How late a row is, or how far ahead: likewise."""


def status(
    warehouse: Warehouse,
    settings: Settings,
    now: datetime,
    ends: Offsets | None,
    *,
    memory: ReadCache | None = None,
    detail_session: str | None = None,
    newest: int | None = None,
) -> Status:
    """Where the stream stands at `now` (with its offset).

    Args:
        warehouse: opened as readers do (without a schema of results).
        settings: of the stream.
        now: the time that ages and rates are measured from.
        ends: Kafka's end offsets per topic; None when no broker answers.
        memory: what an earlier call has found; it is brought up to date. Kept on disk otherwise.
        detail_session: with a date, `detail` holds that session's history and groups.
        newest: leave out sessions that are older than so many, and of which nothing is missing
            that anybody knows of.

    Raises what the tables raise (`spillway.tables.errors`), `NothingYet` among them.
    """
    place = warehouse.place.path()
    known = cache.load(place) if memory is None else memory
    model = cache.caught_up(warehouse, known)
    reasons = _reasons(warehouse, known)
    unanswered = waiting(warehouse, model.state, now)
    seals = model.state.seal is not None or any(each.session for each in unanswered)
    cache.save(known, place)
    history = warehouse.sessions.history()
    left_out = {} if newest is None else _left_out(history, model, newest)
    tallied = model.tally.sessions
    sessions = {date: tallied[date] for date in tallied if date not in left_out}
    events = by_session(history.events(sessions if left_out else None))
    done = _cleanup_done(warehouse, sessions, events)
    stored = _stored_results(warehouse)
    rows_per_s, results_per_s = _rates(model, now)
    # Of the open session: the last epochs may be of the one before.
    delay = summed_delay(model.tally.recent) if any(sessions[model.session].delay) else []
    topics, lag_rows = topics_of(model, ends)
    problem, query = _query(model, settings)

    def joins(found: Sequence[JoinFigures]) -> list[JoinStatus]:
        return [JoinStatus(**dict(each), inputs=_inputs(each, found, query)) for each in found]

    return Status(
        at=_text(now),
        warehouse_root=place,
        warehouse_id=model.state.genesis.warehouse_id,
        query=settings.query,
        query_problem=problem,
        session=model.session,
        epoch=model.state.epoch,
        term=model.state.term,
        driver=model.tally.driver,
        driver_runs=process_runs(model.tally.process),
        entries=model.state.n + 1,
        last_epoch_at=model.tally.last_epoch_at,
        last_epoch_age_s=_age_s(model.tally.last_epoch_at, now),
        last_claim_age_s=_age_s(model.tally.last_claim_at, now),
        rows_per_s=rows_per_s,
        results_per_s=results_per_s,
        delay_p50_ms=delay_quantile_ms(delay, 0.5),
        delay_p99_ms=delay_quantile_ms(delay, 0.99),
        lag_rows=lag_rows,
        intake_held=intake_held(model.state),
        slow_disks=slow_disks(model.tally.write_s),
        clocks=clocks_text(wrong_clocks(model.state.totals)),
        hot_keys=[HotKeyStatus(**dict(each)) for each in _hot_keys(warehouse, known, model)],
        event_time=_event_time(model),
        threshold=settings.spill.threshold,
        topics=topics,
        slots=slots_of(model, settings.stream.trigger_s),
        joins=joins(_joins(warehouse, known, model)),
        quarantine=reasons,
        sessions=[
            _session(model, each, done.get(date, -1), stored.get(date, 0), events.get(date, []))
            for date, each in sorted(sessions.items(), reverse=True)
        ],
        sessions_left_out=len(left_out),
        unverified_left_out=sum(each.complete is None for each in left_out.values()),
        adaptations=_adaptations(model),
        moves_waiting=len(model.state.moves),
        waiting=unanswered,
        pending_seal=pending_seal(warehouse, model.state) if seals else None,
        loss=open_loss(model.state, warehouse.commands.unseen(model.state) if seals else (), None),
        detail=None
        if detail_session is None
        else detail_of(
            warehouse,
            model,
            detail_session,
            joins(look_at_joins(warehouse, model, detail_session)),
        ),
    )


def _event_time(model: ReadModel) -> EventTimeStatus | None:
    known, rules = event_time_of(model), model.state.genesis.event_time
    if known is None or rules is None:
        return None
    idle_ms, mark = rules.idle_after_ms, known.watermark_us
    return EventTimeStatus(
        watermark=None if mark is None else rfc3339(mark // 1000),
        ahead_s=known.ahead_s,
        idle=known.idle,
        unheard=known.unheard,
        lateness_s=rules.lateness_us / 1e6,
        idle_after_s=None if idle_ms is None else idle_ms / 1000,
    )


def _query(model: ReadModel, settings: Settings) -> tuple[str, Query | None]:
    """Why the settings' query is not the open session's; and that one, where it is known."""
    given, problem = None, ""
    try:
        given = load_query(settings.query)
    except ValueError as error:  # what the tables hold is shown all the same
        problem = str(error)
    genesis = model.state.genesis
    if given is not None and (told := told_changes(genesis, given)):
        problem = (
            f"it is not the one by which {model.session} runs ("
            f"{'; '.join(each.text for each in told)}): the next session can take it up"
        )
    try:
        return problem, kept_query(genesis, given)
    except (AnotherQuery, QueryError):
        return problem, None


def _adaptations(model: ReadModel) -> list[DecisionStatus]:
    """The newest first. All are checked in one call: one by one they took a tenth of a look."""
    known = model.tally.adaptations
    facts = []
    for each in reversed(known.decisions):
        one = dict(each.__dict__)
        one["results_since"] = known.results - one.pop("results_at")
        facts.append(one)
    return DECISIONS.validate_python(facts)


def _joins(warehouse: Warehouse, memory: ReadCache, model: ReadModel) -> list[JoinFigures]:
    """The joins of the open sessions, looked at again only where the journal has gone on."""
    known = memory.joins
    if known is None or known[0] != model.entry:
        memory.joins = known = (model.entry, look_at_joins(warehouse, model))
    return known[1]


def _hot_keys(warehouse: Warehouse, memory: ReadCache, model: ReadModel) -> list[HotKey]:
    """The hottest keys, looked at again only where the journal has gone on."""
    known = memory.hot_keys
    if known is None or known[0] != model.entry:
        found = hottest_keys(model, group_states(warehouse, model, 0.0), MOST_HOT_KEYS)
        memory.hot_keys = known = (model.entry, found)
    return known[1]


def _inputs(join: JoinFigures, joins: Iterable[JoinFigures], query: Query | None) -> list[str]:
    found = None if query is None else query.tree.join(join.join)
    if found is not None:
        return list(found.inputs)
    return [each.join for each in joins if each.reader == join.join]


def _reasons(warehouse: Warehouse, memory: ReadCache) -> dict[str, int]:
    """Quarantined rows by reason. A file never changes, so each is read once."""
    table = warehouse.table("quarantine")
    table.refresh()
    found: dict[str, dict[str, int]] = {}
    for file in table.files():
        counts = memory.reasons.get(file.path)
        found[file.path] = _count_reasons(table.place, file.path) if counts is None else counts
    memory.reasons = found
    total: Counter[str] = Counter()
    for counts in found.values():
        total.update(counts)
    return _most(total, MOST_REASONS)


def _count_reasons(place: Any, path: str) -> dict[str, int]:
    with place.open(path) as source:
        column = pq.ParquetFile(source).read(columns=["reason"], use_threads=False)["reason"]
    column = pc.replace_substring_regex(column, PLACE_IN_VALUE, "")
    column = pc.replace_substring_regex(column, HOW_LATE, r"\1\2")
    counts = pc.value_counts(column).to_pylist()
    return _most(Counter({c["values"]: c["counts"] for c in counts}), MOST_REASONS_A_FILE)


def _most(counts: Counter[str], most: int) -> dict[str, int]:
    """The most frequent reasons in order; what is left, and was left before, as one."""
    other = counts.pop(OTHER, 0)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ranked[:most])
    other += sum(count for _, count in ranked[most:])
    return kept | ({OTHER: other} if other else {})


def by_session(events: Iterable[SessionEvent]) -> dict[str, list[SessionEvent]]:
    """Each session's events, in order."""
    found: dict[str, list[SessionEvent]] = {}
    for event in events:
        found.setdefault(event.session, []).append(event)
    return found


def _last(events: Sequence[SessionEvent], kind: str) -> SessionEvent | None:
    """A session's last event of a kind."""
    return next((each for each in reversed(events) if each.event == kind), None)


def _left_out(history: SessionHistory, model: ReadModel, newest: int) -> dict[str, Outcome]:
    """Sessions older than the `newest` ones that need nobody: cleaned, and not found incomplete."""
    older = sorted(model.tally.sessions, reverse=True)[newest:]
    known = history.outcomes() if older else {}
    ended = {date: known[date] for date in older if date in known}
    return {
        date: each
        for date, each in ended.items()
        if each.cleaned and (each.complete is not False or each.accepted)
    }


def _cleanup_done(
    warehouse: Warehouse,
    sessions: Mapping[str, SessionTally],
    events: Mapping[str, Sequence[SessionEvent]],
) -> dict[str, int]:
    """Per session with ranges to clean, how many of them have their missing results in.

    The table is asked only for those that are not cleaned: history is long.
    """
    return {
        date: session.ranges
        if _last(events.get(date, ()), "cleaned")
        else warehouse.cleanup_applied(date) + 1
        for date, session in sessions.items()
        if session.ranges
    }


def _stored_results(warehouse: Warehouse) -> dict[str, int]:
    """Rows of `results` per session, as the table's log says."""
    rows: Counter[str] = Counter()
    for file in warehouse.files("results"):
        rows[file.partition["session_date"]] += file.rows
    return rows


def _rates(model: ReadModel, now: datetime) -> tuple[float, float]:
    """Rows and results per second of the last minute, or of the epochs that are remembered."""
    now_ms = now.timestamp() * 1000
    begin_ms = now_ms - RECENT_S * 1000
    recent = [each for each in model.tally.recent if each.ended_ms > begin_ms]
    if not recent:
        return 0.0, 0.0
    # Divided by the whole time since the first of them began: a silent stream slows down.
    seconds = max(now_ms, recent[-1].ended_ms) - max(recent[0].started_ms, begin_ms)
    seconds = max(seconds, 1.0) / 1000
    return (
        round(sum(each.rows for each in recent) / seconds, 1),
        round(sum(each.results for each in recent) / seconds, 1),
    )


def topics_of(model: ReadModel, ends: Offsets | None) -> tuple[list[TopicStatus], int | None]:
    """Every topic, and the lag of all; None when that of any topic is not known."""
    session = model.tally.sessions[model.session]
    lag: Counter[str] = Counter()
    if ends is not None:
        read = padded(model.state.end, ends)
        for topic, partition, end in partitions(ends):
            lag[topic] += max(0, end - read[topic][partition])
    topics = [
        TopicStatus(
            topic=topic,
            partitions=count,
            rows=session.rows.get(topic, 0),
            rejected=session.rejected.get(topic, 0),
            filtered=session.filtered.get(topic, 0),
            outside=session.outside.get(topic),
            lag_rows=lag[topic] if ends is not None and topic in ends else None,
        )
        for topic, count in model.partitions.items()
    ]
    lags = [topic.lag_rows for topic in topics if topic.lag_rows is not None]
    return topics, sum(lags) if len(lags) == len(topics) else None


def slots_of(model: ReadModel, trigger_s: float) -> list[SlotStatus]:
    """Every slot of the assignment, with what it did in the last minute of epochs."""
    last = model.sample(RECENT_S)
    busy = last.busy_s.sum(axis=0) / max(last.span_s, 1e-9)
    full = last.occupancy(trigger_s)
    return [
        SlotStatus(
            slot=number,
            **slot.model_dump(),
            busy=round(min(float(busy[number]), 1.0), 3),
            occupancy=round(float(full[number]), 3),
            output_rate=round(float(last.output_rate[number]), 3),
            skew=round(float(last.skew[number]), 3),
        )
        for number, slot in sorted(model.tally.slots.items())
    ]


def _session(
    model: ReadModel, session: SessionTally, done: int, stored: int, own: Sequence[SessionEvent]
) -> SessionStatus:
    """`own`: the session's events."""
    cleaned = _last(own, "cleaned")
    by_cleanup: int | None = None
    if cleaned is not None:
        by_cleanup = cleaned.cleanup
    elif session.sealed_at is not None and done > 0:
        by_cleanup = max(0, stored - session.results)
    begun = done > 0 or _last(own, "cleaning") is not None
    stage = _stage(model, session, begun, cleaned is not None)
    revisions = revisions_of(own).values()
    verdict = _verdict(standing_verdicts(own).get(session.session))
    return SessionStatus(
        session=session.session,
        stage=stage,
        rows_in=session.rows or dict.fromkeys(model.partitions, 0),
        rejected=sum(session.rejected.values()),
        filtered=sum(session.filtered.values()),
        outside=session.outside,
        results_run_time=session.results,
        results_cleanup=by_cleanup,
        results_corrections=sum(each.results for each in revisions) if revisions else None,
        cleanup_ranges=session.ranges,
        cleanup_ranges_done=max(0, done),
        spills=session.spills,
        overflows=session.overflows,
        spilled_rows=session.spilled_rows,
        spilled_bytes=session.spilled_bytes,
        flushed_bytes=session.flushed_bytes,
        returned_bytes=session.returned_bytes,
        expired_rows=session.expired_rows,
        generations=session.cuts,
        most_generations=session.most_cuts,
        peak_state_bytes=session.peak_state_bytes,
        budget_bytes=session.budget_bytes,
        restored_slots=session.restored_slots,
        deferred_slots=session.deferred_slots,
        moved=session.moved,
        delay_p50_ms=delay_quantile_ms(session.delay, 0.5),
        delay_p99_ms=delay_quantile_ms(session.delay, 0.99),
        began_at=session.began_at,
        ended_at=session.sealed_at,
        seal_by=session.seal_by,
        seal_reason=session.seal_reason,
        seal_answers=session.seal_answers,
        accepted_losses=_accepted_losses(session, own),
        cleanup_s=None if cleaned is None else cleaned.seconds,
        verdict=verdict,
        unproved=NOT_PROVED_AGAIN if revisions and verdict is None else "",
    )


def _accepted_losses(session: SessionTally, own: Sequence[SessionEvent]) -> list[LossAcceptance]:
    found = [
        LossAcceptance(at=each.at, by=each.by, reason=each.reason)
        for each in session.seal_answers
        if each.what == "loss accepted"
    ]
    since = _last(own, "accepted")
    if since is not None:
        loss = AcceptedLoss.model_validate(since.details["loss"])
        if loss.ranges:  # otherwise it was taken back
            found.append(LossAcceptance(at=since.written_at, by=loss.by, reason=loss.reason))
    return found


def _stage(model: ReadModel, session: SessionTally, begun: bool, cleaned: bool) -> str:
    if session.session > model.session:
        return "next"
    if session.sealed_at is None:
        return "open" if session.end is None else "ending"
    if cleaned:
        return "cleaned"
    return "cleaning" if begun else "sealed"


def _verdict(found: SessionEvent | None) -> Verdict | None:
    if found is None:
        return None
    return Verdict(
        complete=bool(found.complete),
        expected=found.expected,
        run_time=found.run_time,
        cleanup=found.cleanup,
        missing=found.missing,
        doubled=found.doubled,
        seconds=found.seconds,
        verified_at=found.written_at,
    )


def _age_s(at: str | None, now: datetime) -> float | None:
    if at is None:
        return None
    return round(max(0.0, (now - datetime.fromisoformat(at)).total_seconds()), 1)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
