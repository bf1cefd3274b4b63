"""`commands` (what people and automation ask for) and `sessions` (what became of a session)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from spillway.protocol.plan import unseen
from spillway.protocol.state import JournalState
from spillway.tables.log import Table
from spillway.tables.numbered import Numbered
from spillway_schemas.commands import Command, CommandLine, SessionCommand, command_from
from spillway_schemas.corrections import Revision
from spillway_schemas.losses import AcceptedLoss


class NumberedCommand(NamedTuple):
    """A command and its place in the order of all commands."""

    n: int
    command: CommandLine


class Commands:
    """The `commands` table. Obeyed once per id: the journal remembers which were."""

    def __init__(self, table: Table) -> None:
        self._rows = Numbered(table)

    def append(self, *commands: Command) -> int:
        """Append commands, durably and together: whoever reads sees all of them or none.

        Returns the first one's number. Several processes may append at once.
        """
        return self._rows.append_next(
            *(
                {
                    "id": command.id,
                    "kind": command.kind,
                    "session": command.session if isinstance(command, SessionCommand) else "",
                    "reason": command.reason,
                    "by": command.by,
                    "written_at": _now(),
                    "command": command.model_dump_json(),
                }
                for command in commands
            )
        )

    def unseen(self, state: JournalState) -> Iterator[CommandLine]:
        """The commands that the journal has not seen, each id once; read only when asked for."""
        yield from unseen(state, (each.command for each in self.unanswered(state)[0]))

    def unanswered(self, state: JournalState) -> tuple[list[NumberedCommand], int]:
        """The commands above the number up to which the journal has answered all, in order.

        All of them when the command of that number is another one: a table that was repaired, or
        restored from a backup, gives its numbers again. Ids tell which of them are answered. With
        them the number up to which the table has been read then; -1 for an empty one.
        """
        found, answered = None, -1
        self._rows.refresh()
        if 0 <= state.commands_n <= self._rows.last():
            known, *more = self.read(state.commands_n - 1)
            if known.command.id in state.seen:
                found, answered = more, known.n
        if found is None:
            found = self.read()
        return found, found[-1].n if found else answered

    def read(self, after: int = -1) -> list[NumberedCommand]:
        """Return the commands with a number above `after`, in order, the newest included."""
        self._rows.refresh()
        rows = self._rows.read(after, ["n", "command"]).to_pylist()
        return [NumberedCommand(r["n"], command_from(r["command"], r["n"])) for r in rows]


class SessionEvent(BaseModel):
    """A line of `sessions`: a session was sealed, cleaned or verified, a cleanup has begun
    (`cleaning`), somebody gave a reason for looking at what might be done and nothing of it went
    to the stream (`asked`), or has accepted that input is lost for good (`accepted`), or a revision
    of a closed session is in (`corrected`). Counts are of results.

    Readers take a session's *last* event of a kind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str
    event: Literal["sealed", "cleaning", "cleaned", "verified", "asked", "accepted", "corrected"]
    expected: int | None = None
    run_time: int | None = None
    cleanup: int | None = None
    missing: int | None = None
    doubled: int | None = None
    complete: bool | None = None
    generations: int | None = None
    seconds: float | None = None
    """How long the work took that ended with this event."""
    details: dict[str, Any] = {}
    written_at: str = ""
    """RFC 3339; the time of appending when empty."""

    @property
    def settles(self) -> bool:
        """Of a verdict: whether the session needs nothing more. It is complete, or its input is
        lost and somebody has accepted that."""
        return bool(self.complete) or "loss" in self.details


def standing_verdicts(events: Iterable[SessionEvent]) -> dict[str, SessionEvent]:
    """The last verdict on each session, unless it does not know of all corrections: then
    the session has to be proved again. `events`: in order."""
    found: dict[str, SessionEvent] = {}
    revisions: dict[str, int] = {}
    for event in events:
        if event.event == "corrected":
            newest = max(event.details["revision"], revisions.get(event.session, 0))
            revisions[event.session] = newest
        elif event.event == "verified":
            found[event.session] = event
    return {
        session: event
        for session, event in found.items()
        if knows(event.details, revisions.get(session, 0))
    }


def revisions_of(events: Iterable[SessionEvent]) -> dict[int, Revision]:
    """A session's corrections that are in, by their numbers. `events`: its own, in order."""
    found = [Revision(**each.details) for each in events if each.event == "corrected"]
    return {each.revision: each for each in reversed(found)}  # the first word counts


def knows(details: Mapping[str, Any], revisions: int) -> bool:
    """Whether a verdict with these details knows of so many corrections. One that was read while
    another came does not."""
    return bool(details.get("corrections", {}).get("revisions", 0) >= revisions)


class Outcome(NamedTuple):
    """What became of a session after its seal."""

    cleaned: bool
    complete: bool | None
    """What `verify` said last; None: nothing yet, or nothing of the last correction."""
    accepted: bool = False
    """What it said is that input is lost, and that somebody has accepted that."""


@dataclass(frozen=True)
class SessionHistory:
    """The rows of the table: after a year there are a thousand, and most people ask for a few."""

    rows: pa.Table

    def outcomes(self) -> dict[str, Outcome]:
        """What became of each session that was cleaned or verified."""
        kind, date = self.rows["event"], self.rows["session_date"]
        cleaned = set(date.filter(pc.equal(kind, "cleaned")).to_pylist())
        judged = pc.is_in(kind, pa.array(["verified", "corrected"]))
        verdicts = standing_verdicts(_events(self.rows.filter(judged)))
        found = {}
        for session in cleaned | verdicts.keys():
            said = verdicts.get(session)
            complete = None if said is None else bool(said.complete)
            accepted = said is not None and said.settles and not complete
            found[session] = Outcome(session in cleaned, complete, accepted)
        return found

    def corrected(self) -> dict[str, int]:
        """How many corrections of each session are in, where there are any."""
        wanted = self.rows.filter(pc.equal(self.rows["event"], "corrected"))
        return {date: len(self.revisions(date)) for date in set(wanted["session_date"].to_pylist())}

    def revisions(self, session: str) -> dict[int, Revision]:
        """A session's corrections that are in, by their numbers."""
        return revisions_of(self.events([session]))

    def events(self, sessions: Collection[str] | None = None) -> list[SessionEvent]:
        """The events in the order in which they were appended: all, or those of these sessions."""
        rows = self.rows
        if sessions is not None:
            rows = rows.filter(
                pc.is_in(rows["session_date"], pa.array(list(sessions), pa.string()))
            )
        return _events(rows)


def _events(rows: pa.Table) -> list[SessionEvent]:
    events = []
    for row in rows.to_pylist():
        del row["n"]
        row["session"] = row.pop("session_date")
        row["details"] = json.loads(row["details"])
        row["written_at"] = row["written_at"].isoformat()
        events.append(SessionEvent(**row))
    return events


class Sessions:
    """The `sessions` table."""

    def __init__(self, table: Table) -> None:
        self._rows = Numbered(table)

    def append(self, event: SessionEvent) -> int:
        """Append an event, durably; return its number. Several processes may do so at once."""
        row = event.model_dump(exclude={"session", "details", "written_at"})
        row["session_date"] = event.session
        row["details"] = json.dumps(event.details)
        row["written_at"] = _time(event.written_at) if event.written_at else _now()
        return self._rows.append_next(row)

    def read(self) -> list[SessionEvent]:
        """Return all events in the order in which they were appended, the newest included."""
        return self.history().events()

    def cleaned(self) -> set[str]:
        """Return the sessions that cleanup has finished."""
        return {date for date, outcome in self.history().outcomes().items() if outcome.cleaned}

    def accepted_loss(self, session: str) -> AcceptedLoss | None:
        """Return what the session has lost for good, as somebody accepted it last."""
        found = self.accepted_losses(session)
        return found[-1] if found and found[-1].ranges else None

    def accepted_losses(self, session: str) -> list[AcceptedLoss]:
        """Return all that was ever accepted as lost of a sealed session, the newest last: each
        takes the place of the one before it, and one without ranges takes it back."""
        events = self.history().events([session])
        found = [each.details["loss"] for each in events if each.event == "accepted"]
        return [AcceptedLoss.model_validate(each) for each in found]

    def revisions(self, session: str) -> dict[int, Revision]:
        """Return the session's corrections that are in, by their numbers."""
        return self.history().revisions(session)

    def history(self) -> SessionHistory:
        """Return all that the table says, the newest included."""
        self._rows.refresh()
        return SessionHistory(self._rows.read())


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _now() -> datetime:
    return datetime.now(UTC)
