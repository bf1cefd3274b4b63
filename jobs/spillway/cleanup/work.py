"""What a cleanup has before it: read from the journal and the tables, before anything runs."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from spillway.cleanup.plan import (
    CleanupRefused,
    doubtful_topics,
    generations_of,
    owed,
    sealed_session,
    spill_files,
    stored_files,
)
from spillway.decode import StreamPlan
from spillway.engine.join.spec import JoinSpec
from spillway.engine.spill.generations import GenerationEnds, VoidedCuts
from spillway.engine.spill.spillfile import SpillFile
from spillway.protocol.deferral import deferred_cuts_of, deferred_rows
from spillway.protocol.losses import without_lost
from spillway.protocol.recovery import Restore
from spillway.protocol.state import JournalState, genesis_of
from spillway.tables import NothingYet, SessionEvent, Warehouse
from spillway_schemas.journal import Epoch, Genesis, Sealed
from spillway_schemas.losses import AcceptedLoss

WAIT_S = 60.0
"""How long to wait for a running stream to apply the seal's epoch to the tables."""

_POLL_S = 0.25


@dataclass(frozen=True)
class CleanupWork:
    """A sealed session as its cleanup finds it."""

    state: JournalState
    sealed: Sealed
    cleaned: SessionEvent | None
    """Set when it has been cleaned: then there is nothing of what follows."""
    files: tuple[SpillFile, ...] = ()
    """That the stream has written."""
    stored: tuple[SpillFile, ...] = ()
    """What a cleanup that did not end has made for the joins above."""
    ends: GenerationEnds | None = None
    voided: VoidedCuts | None = None
    again: Restore | None = None
    """What must be read again in Kafka first."""
    loss: AcceptedLoss | None = None
    cut_ranges: int = 0
    """Different ranges of hashes that were cut: partition groups, mostly."""

    @property
    def genesis(self) -> Genesis:
        """What the warehouse was when the session ran."""
        return genesis_of(self.state, self.sealed)

    def doubtful(
        self, warehouse: Warehouse, join: JoinSpec, streams: Collection[StreamPlan]
    ) -> frozenset[int]:
        """The inputs of an outer join that have rows which are in no file; none of an inner join.

        Rows that slots had lost may have been read again without what was accepted as lost then,
        so that still counts when it was taken back since. What was accepted once they had been read
        whole counts, too: when that was is not noted.

        Raises `CleanupRefused` where there are such rows and no `streams` that say of which inputs:
        a result that lacks one of them may be wrong.
        """
        if not join.is_outer:
            return frozenset()
        topics = doubtful_topics(self.sealed, self.loss, self.again)
        session = self.sealed.session
        if self.again is not None and warehouse.deferred_applied(session) >= 0:
            for each in warehouse.sessions.accepted_losses(session):
                topics |= {topic for topic, _ in without_lost(self.again, each.ranges).lossy}
        if topics and not streams:
            names = " and ".join(sorted(topics))
            raise CleanupRefused(
                f"rows of {names} are lost, and nobody has said which inputs of the outer join "
                "read them: results that lack one may be wrong. Give the query's streams"
            )
        return frozenset(each.index for each in streams if each.topic in topics)


def work_of(
    warehouse: Warehouse, session: str, fingerprint: str, wait_s: float = WAIT_S
) -> CleanupWork:
    """See what a cleanup has to do. `fingerprint`: the query's; an empty one is not compared.

    Raises `NothingYet`, `CleanupRefused` when the session is not sealed, or tables stay behind the
    journal for `wait_s` or do not agree with it.
    """
    warehouse.journal.refresh()
    state = warehouse.journal.state()
    if state is None:
        raise NothingYet(warehouse.place.path())
    sealed = sealed_session(state, session, fingerprint, warehouse.commands.unseen(state))
    if event := cleaned_event(warehouse, session):
        return CleanupWork(state, sealed, event)
    entries = warehouse.journal.read_session(sealed)
    _wait_for_tables(warehouse, entries, sealed, wait_s)
    in_table = spilled_now(warehouse, session)
    # Another cleanup may have finished meanwhile: from then on spilled rows may be dropped.
    if event := cleaned_event(warehouse, session):
        return CleanupWork(state, sealed, event)
    files = spill_files(entries, in_table, session)
    genesis = genesis_of(state, sealed)
    windowed = genesis.event_time is not None
    ends, voided = generations_of(entries, sealed, windowed=windowed)
    again = _deferred(warehouse, genesis, sealed, entries)
    loss = warehouse.accepted_loss(genesis, sealed)
    if again is not None and loss is not None:
        again = without_lost(again, loss.ranges)
    if sealed.ranges and not files and again is None:
        raise CleanupRefused(
            f"session {session} was cut in {len(sealed.ranges)} range(s), but the journal names no "
            "spill file of it: restore the journal"
        )
    cuts = [cut for each in entries if isinstance(each, Epoch) for cut in each.cuts]
    return CleanupWork(
        state,
        sealed,
        None,
        files,
        stored_files(in_table),
        ends,
        voided,
        again,
        loss,
        cut_ranges=len({cut.range for cut in cuts if cut.session == session}),
    )


def _deferred(
    warehouse: Warehouse, genesis: Genesis, sealed: Sealed, entries: Sequence[Any]
) -> Restore | None:
    """What must be read again in Kafka first; None: nothing."""
    if not deferred_cuts_of(sealed.session, entries):
        return None
    # With the session's base: there it begins.
    return deferred_rows(genesis, sealed, warehouse.journal.read_after(sealed.base - 1))


def spilled_now(warehouse: Warehouse, session: str) -> dict[str, int]:
    """Path and bytes of the session's files in the `spill` table now."""
    return {file.path: file.bytes for file in warehouse.files("spill", session)}


def cleaned_event(warehouse: Warehouse, session: str) -> SessionEvent | None:
    """The event of a session that is cleaned."""
    events = [e for e in warehouse.sessions.read() if (e.event, e.session) == ("cleaned", session)]
    return events[-1] if events else None


def _wait_for_tables(
    warehouse: Warehouse, entries: Sequence[Any], sealed: Sealed, wait_s: float
) -> None:
    """Until every table holds what the journal names up to the seal."""
    until = time.monotonic() + wait_s
    while behind := owed(entries, warehouse.applied_all(), sealed.epoch):
        if time.monotonic() >= until:
            tables = ", ".join(sorted({apply.table for apply in behind}))
            raise CleanupRefused(
                f"session {sealed.session} is sealed, but {tables} is behind the journal by "
                f"{len(behind)} commit(s) since {wait_s:.0f} s. Start `spillway stream` once: it "
                "begins by making up for them"
            )
        time.sleep(_POLL_S)
