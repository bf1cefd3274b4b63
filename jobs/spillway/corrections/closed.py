"""Which sessions can be corrected: closed ones that are proved, whose results nobody takes back and
no other session shares."""

from __future__ import annotations

from dataclasses import dataclass

from spillway.corrections.rows import CorrectionRefused
from spillway.protocol.closed import whole_session
from spillway.protocol.recovery import Restore
from spillway.protocol.seal import not_sealed, pending_after
from spillway.protocol.state import JournalState, check_query, genesis_of
from spillway.sealed_input.timing import Timing, timing_of
from spillway.tables import NothingYet, Warehouse
from spillway_schemas.journal import Genesis, Sealed


@dataclass(frozen=True)
class ClosedSession:
    """A session to which rows may be added."""

    state: JournalState
    sealed: Sealed
    again: Restore
    """All of its input; `slots` is empty."""
    cleaned: int
    """Results that cleanup has added."""
    timing: Timing | None
    """How its rows were judged by their times; None: the query has no window."""

    @property
    def genesis(self) -> Genesis:
        """What the warehouse was when the session ran."""
        return genesis_of(self.state, self.sealed)


def closed_session(warehouse: Warehouse, session: str, fingerprint: str) -> ClosedSession:
    """The session, when it can be corrected by a query of this fingerprint.

    Raises `NothingYet`, `AnotherQuery`, `CorrectionRefused`.
    """
    warehouse.journal.refresh()
    state = warehouse.journal.state()
    if state is None:
        raise NothingYet(warehouse.place.path())
    commands = warehouse.commands.unseen(state)
    if problem := not_sealed(state, session, commands):
        if session == state.session.date and pending_after(state, commands) is None:
            problem = (
                f"{session} is open: send the rows to their topic. Only a session that is closed "
                "and proved is corrected"
            )
        raise CorrectionRefused(problem)
    sealed = state.sealed[session]
    genesis = genesis_of(state, sealed)
    check_query(genesis, fingerprint)
    if genesis.outer:
        raise CorrectionRefused(
            "the query has optional streams: a late row may be the one that an unmatched result "
            "lacks, and results are never taken back. Make the day again: runbook, `Make a "
            "day again`"
        )
    if genesis.carry:
        raise CorrectionRefused(
            "sessions carry their rows into the next one (session.carry), so a row of this one may "
            "be part of results of another, and corrections are not built for that: make the days "
            "again, see the runbook, `Make a day again`"
        )
    events = [each for each in warehouse.sessions.read() if each.session == session]
    verdicts = [each for each in events if each.event == "verified"]
    if not verdicts or not verdicts[-1].complete:
        if sealed.lost_to or any(each.event == "accepted" for each in events):
            raise CorrectionRefused(
                f"{session} has an accepted loss, so it is never proved complete, and what a "
                "correction adds is known only beside a complete day. Make the day again: "
                "runbook, `Make a day again`"
            )
        raise CorrectionRefused(
            f"{session} is not proved complete: clean it and prove it first (spillway cleanup, "
            "spillway verify). What a correction adds is known only beside a complete day"
        )
    entries = warehouse.journal.read_after(sealed.base - 1)
    cleaned = [each.cleanup or 0 for each in events if each.event == "cleaned"]
    return ClosedSession(
        state,
        sealed,
        whole_session(genesis, sealed, entries),
        cleaned[-1] if cleaned else 0,
        timing_of(genesis, sealed, entries),
    )
