"""`session.boundary = "calendar"`: the stream itself ends a session at its close plus grace.

Model: the calendar seals each trading day once, when the clock has passed close plus grace, at the
offsets that Kafka gives for that time. So it does not matter when the stream comes to it: minutes
late because the broker was away, or days late because the stream was down. No row of the evening
gets into the day. It does not seal

* a session that has a pending seal, or will have once the commands that wait are obeyed: a person
  was faster, and theirs holds. Should it be withdrawn, the calendar's own comes in the same epoch;
* a session whose calendar seal was obeyed before, and then withdrawn by a person;
* a session that is no trading day, for it has no close: only `spillway seal` ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from spillway import calendar
from spillway.clock import rfc3339
from spillway.protocol.seal import pending_after
from spillway.protocol.state import JournalState
from spillway_schemas.commands import CommandLine, SealCommand
from spillway_schemas.journal import Offsets


@dataclass(frozen=True)
class DueClose:
    """The end of a session's input, by the calendar; its time has come."""

    session: str
    at_ms: int
    """Close plus grace, in ms since 1970."""

    def seal(self, offsets: Offsets) -> SealCommand:
        """The command. `offsets`: what Kafka gives for `at_ms`."""
        return SealCommand(
            id=_id(self.session),
            session=self.session,
            at="close",
            offsets=offsets,
            reason=f"close and grace of {self.session}",
            by="calendar",
            issued_at=rfc3339(self.at_ms),
        )


def due_close(
    state: JournalState, waiting: Iterable[CommandLine], name: str, grace_s: float, now_ms: int
) -> DueClose | None:
    """The end of the open session, when the calendar `name` has one and it has come; else None.

    `waiting`: commands that the journal has not seen. `now_ms`: the exchange's time, in ms since
    1970. Raises `CalendarError` for a date that the calendar does not reach.
    """
    date = state.session.date
    if _id(date) in state.seen or not calendar.is_trading_day(name, date):
        return None
    at_ms = calendar.close_ms(name, date) + int(grace_s * 1000)
    if now_ms < at_ms:
        return None
    pending = pending_after(state, waiting, calendar.session_after(name, date))
    return DueClose(date, at_ms) if pending is None else None


def never_closes(state: JournalState, name: str) -> str | None:
    """Why the calendar `name` will never end the open session; None: it will."""
    date = state.session.date
    if not calendar.is_trading_day(name, date):
        why = f"is not a trading day of {name}"
    elif state.seal is None and _id(date) in state.seen:
        why = "had its calendar's seal withdrawn"
    else:
        return None
    return f"{date} {why}: end it with `spillway seal --session {date}`"


def has_no_close(state: JournalState, name: str) -> str | None:
    """That people cannot end the open session at the close of the calendar `name`; None: they
    can."""
    date = state.session.date
    if calendar.is_trading_day(name, date):
        return None
    return (
        f"{date} is not a trading day of {name}, so it has no close: end it with `spillway seal "
        f"--session {date}`, without `--at close`"
    )


def _id(session: str) -> str:
    return f"calendar/{session}"


GRACE_MS = 60_000.0
"""A session that should have closed and has not is taken to go on for so long."""
LATE_MS = 12 * 3_600_000
"""What is over for longer is a day that is replayed."""


def left_ms(name: str, sessions: Iterable[str], now_ms: int) -> dict[str, float]:
    """How long each session goes on by the calendar `name`, at `now_ms` of the stream's clock (0:
    it has not begun).

    Left out are those of which it is not known: a day that is replayed, a date without trading or
    beyond the calendar.
    """
    found = {}
    for session in sessions:
        with suppress(calendar.CalendarError):
            left = calendar.close_ms(name, session) - now_ms
            if now_ms > 0 and left > -LATE_MS:
                found[session] = max(float(left), GRACE_MS)
    return found
