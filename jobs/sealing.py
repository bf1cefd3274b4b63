"""`spillway seal`: finds the offsets at which a session ends, and writes the command.

The streaming job obeys the command at one of its next epochs; this returns as soon as the command
is written. Sealing again is answered, not repeated.
"""

from __future__ import annotations

import time
import uuid
from datetime import datetime

from jobs import calendar
from jobs.decode import compile_streams
from jobs.kafka.client import cluster
from jobs.protocol.state import replay
from jobs.stream.genesis import StartRefused, rfc3339
from jobs.tables import Warehouse
from schemas.journal import Command, Offsets
from schemas.query import Query
from schemas.settings import Settings


class SealRefused(Exception):
    """The session cannot be sealed (exit code 3)."""


def request_seal(
    settings: Settings, query: Query, session: str, at: str, reason: str, by: str
) -> str:
    """Write the seal's command; what to tell the person who asked.

    Raises `SealRefused` for a session that is not open, `StartRefused` for a wrong `at`.
    """
    warehouse = Warehouse(settings.warehouse.root, fsync=settings.warehouse.fsync)
    state = replay(warehouse.journal.read())
    if state is None:
        raise SealRefused("the journal is empty: start `spillway stream` first")
    if session in state.sealed:
        return f"{session} is sealed already (epoch {state.sealed[session].epoch})"
    if state.seal is not None and state.seal.session == session:
        return f"a seal of {session} is pending already"
    pending = [
        command
        for _, command in warehouse.commands.read()
        if command.kind == "seal" and command.session == session and command.id not in state.seen
    ]
    if pending:
        return f"a seal of {session} is pending already"
    if session != state.session.date:
        raise SealRefused(f"{session} is not the open session: that is {state.session.date}")
    topics = sorted({stream.topic for stream in compile_streams(query)})
    offsets, rule = _end(settings, topics, session, at)
    now_ms = time.time_ns() // 1_000_000
    warehouse.commands.append(
        Command(
            id=f"seal/{session}/{uuid.uuid4().hex[:8]}",
            kind="seal",
            session=session,
            at=rule,
            offsets=offsets,
            reason=reason,
            by=by,
            issued_at=rfc3339(now_ms),
        )
    )
    return f"{session} will be sealed at {rule}: {offsets}"


def _end(settings: Settings, topics: list[str], session: str, at: str) -> tuple[Offsets, str]:
    with cluster(settings.kafka.bootstrap_servers, settings.kafka.options) as view:
        if at == "now":
            return view.end_offsets(topics), "now"
        if at == "close":
            at_ms = calendar.close_ms(settings.session.calendar, session)
            at_ms += int(settings.session.grace_s * 1000)
        else:
            at_ms = _time(at)
        return view.offsets_for_time(topics, at_ms), f"{at} {rfc3339(at_ms)}"


def _time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise StartRefused(
            f"--at {text!r}: write now, close, or a time such as 2026-01-05T16:00:00-05:00"
        ) from None
    if moment.tzinfo is None:
        raise StartRefused(f"--at {text!r} has no offset; write e.g. {text}-05:00 or {text}Z")
    return int(moment.timestamp() * 1000)
