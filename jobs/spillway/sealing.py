"""`spillway seal`: finds the offsets at which a session ends, and writes the command; or takes a
seal back that is not fulfilled yet (`--withdraw`).

The streaming job obeys the command at one of its next epochs; this returns as soon as the command
is written. Sealing again is answered, not repeated. What is asked for is judged here by the rules
by which the stream will judge it (`spillway.protocol.seal`), with the commands that it has not read
yet; the stream has the last word.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from spillway import calendar
from spillway.clock import Clock, rfc3339
from spillway.kafka.client import cluster, demand_listener
from spillway.kafka.held import demand_cluster
from spillway.protocol.offsets import greater, padded
from spillway.protocol.seal import already, not_sealable, not_withdrawable, pending_after
from spillway.protocol.state import JournalState, changed_topics
from spillway.report.words import span_text
from spillway.tables import NothingYet, Warehouse, opened
from spillway_schemas.commands import SealCommand, WithdrawCommand
from spillway_schemas.exits import FAILED, USAGE
from spillway_schemas.journal import Offsets, SealRequest
from spillway_schemas.settings import Settings

STAYS = ", and its end stays. Another one: first `spillway seal --session {} --withdraw`"


class TimeError(ValueError):
    """`--at` that is no time (exit code 2)."""

    exit_code = USAGE


class SealRefused(Exception):
    """The session cannot be sealed, or its seal not be withdrawn."""

    exit_code = FAILED


def request_seal(
    settings: Settings,
    session: str,
    at: str,
    reason: str,
    by: str,
    *,
    clock: Clock,
) -> str:
    """Write the seal's command; what to tell the person who asked.

    Raises `SealRefused` for a session that is not open and for a time that is still ahead,
    `TimeError` for an `at` that is no time, `CalendarError` for a date without a close,
    `NoWarehouse`, `NothingYet` for an empty journal, `KafkaUnavailable` and `TopicProblem`.
    """
    warehouse, state = _opened(settings)
    if done := already(state, _pending(warehouse, state, settings), session):
        return done if session in state.sealed else done + STAYS.format(session)
    next_session = calendar.session_after(settings.session.days, state.session.date)
    if problem := not_sealable(state, session, next_session):
        raise SealRefused(f"{session} cannot be sealed: {problem}")
    now_ms = clock()
    at_ms = _moment(settings, session, at, now_ms)
    # Where the stream has read to when it obeys: no session ends before that.
    offsets = state.end if at == "read" else _end(settings, state, at_ms)
    moment = "" if at_ms is None else rfc3339(at_ms)
    rule = f"{at} {moment}" if moment and at == "close" else moment or at
    warehouse.commands.append(
        SealCommand(
            id=_new_id("seal", session),
            session=session,
            at=rule,
            offsets=offsets,
            reason=reason,
            by=by,
            issued_at=rfc3339(now_ms),
        )
    )
    where = "where the stream stands" if at == "read" else f"at {rule}"
    where = "where its topics end now" if at == "now" else where
    ends = "; ".join(f"{t} {', '.join(map(str, at))}" for t, at in offsets.items())
    told = f"{session} will be sealed {where}: {ends}"
    begin = padded(state.session.start, state.end)
    # What lies before the session's begin is of the ones before, whatever its end.
    if beyond := _beyond(state.end, greater(padded(offsets, state.end), begin)):
        told += (
            f"\nThe stream has read {beyond:,} offsets beyond that already: they stay in "
            f"{session}, which ends no earlier than where the stream stands"
        )
    elif early := _beyond(begin, offsets):
        told += (
            f"\nThat is {early:,} offsets before the begin of {session}, which ends no earlier "
            "than where it begins: is the time right?"
        )
    return told


def _beyond(read: Offsets, end: Offsets) -> int:
    """How many offsets behind an end were read already."""
    pairs = ((at, end[topic]) for topic, at in read.items() if topic in end)
    return sum(max(0, r - e) for at, ends in pairs for r, e in zip(at, ends, strict=False))


def request_withdrawal(
    settings: Settings, session: str, reason: str, by: str, *, clock: Clock
) -> str:
    """Write the command that takes a session's seal back; what to tell the person who asked.

    Raises `SealRefused` when the session is sealed, is not open, or has rows beyond its end;
    `NoWarehouse`, `NothingYet` for an empty journal.
    """
    warehouse, state = _opened(settings)
    pending = _pending(warehouse, state, settings)
    if session == state.session.date and pending is None:
        return f"no seal of {session} is pending: it is open"
    seal = "" if pending is None else pending.command
    if problem := not_withdrawable(state, pending, session, seal):
        raise SealRefused(f"the seal of {session} cannot be withdrawn: {problem}")
    warehouse.commands.append(
        WithdrawCommand(
            id=_new_id("withdraw", session),
            session=session,
            seal=seal,
            reason=reason,
            by=by,
            issued_at=rfc3339(clock()),
        )
    )
    return f"the seal of {session} will be withdrawn, unless the stream passes its end before"


def _new_id(kind: str, session: str) -> str:
    return f"{kind}/{session}/{uuid.uuid4().hex[:8]}"


def _opened(settings: Settings) -> tuple[Warehouse, JournalState]:
    warehouse = opened(settings.warehouse)
    state = warehouse.journal.state()
    if state is None:
        raise NothingYet(warehouse.place.path())
    return warehouse, state


def _pending(warehouse: Warehouse, state: JournalState, settings: Settings) -> SealRequest | None:
    """The seal that is pending once the stream has read every command that there is."""
    after = calendar.session_after(settings.session.days, state.session.date)
    return pending_after(state, warehouse.commands.unseen(state), after)


def _end(settings: Settings, state: JournalState, at_ms: int | None) -> Offsets:
    """Where the topics end, or were at a time. Raises `SealRefused` where they are not those that
    the stream reads, and `AnotherCluster`: their offsets would cut the session anywhere."""
    bootstrap, topics = settings.kafka.bootstrap_servers, sorted(t.name for t in state.topics)
    demand_listener(bootstrap)
    with cluster(bootstrap, settings.kafka.options) as view:
        demand_cluster(view, state.genesis.cluster_id, bootstrap)
        found = view.end_offsets(topics) if at_ms is None else view.offsets_for_time(topics, at_ms)
        # Asked last: if the topics are the same, those were their offsets.
        if problem := changed_topics(state.topics, view.topics(topics)):
            raise SealRefused(
                f"{problem}: its offsets mean other rows now, and cannot end a session. "
                "See the runbook, `A topic was deleted`"
            )
    return found


def _moment(settings: Settings, session: str, at: str, now_ms: int) -> int | None:
    """The time that `at` stands for, in ms since 1970; None for now and read.

    A time that is still ahead has no offset yet: more rows of the day may come before it.
    """
    if at in ("now", "read"):
        return None
    if at == "close":
        name = settings.session.days
        at_ms = calendar.close_ms(name, session) + int(settings.session.grace_s * 1000)
        there = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(calendar.zone(name)))
        what = (
            f"close and grace of {session} are over at {there:%Y-%m-%d %H:%M:%S %Z} "
            f"({rfc3339(at_ms)})"
        )
    else:
        at_ms = _time(at)
        what = f"{at} is still to come"
    if at_ms > now_ms:
        raise SealRefused(
            f"{what}, in {span_text((at_ms - now_ms) / 1000)}. Ask again then, or end the session "
            "where its topics end now with --at now"
        )
    return at_ms


def _time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise TimeError(
            f"--at {text!r}: write now, read, close, or a time such as 2026-01-05T16:00:00-05:00"
        ) from None
    if moment.tzinfo is None:
        whole = text if "T" in text else f"{text}T16:00:00"
        raise TimeError(f"--at {text!r} has no offset; write e.g. {whole}-05:00 or {whole}Z")
    return int(moment.timestamp() * 1000)
