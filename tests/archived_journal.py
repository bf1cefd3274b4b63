"""Journals of several sessions, whose older ones may be archived.

A session is a text of steps: `e` an epoch, `f` one that names files, `x` one that cuts, `c` a
claim, `o` an epoch that reads beyond the end of the session before the next one seals it. Each
session but the last, which is open, ends with an epoch that seals it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from spillway.engine.join.results import result_schema
from spillway.protocol.state import JournalState, fold
from spillway.tables import SessionEvent, Warehouse
from spillway.tables.definitions import DATA_TABLES
from spillway_schemas.journal import Claim, Epoch, Genesis, Offsets
from tests.integration.spilled_day import SPEC
from tests.new_warehouse import new_warehouse
from tests.protocol_entries import DAY, claim, cut, ends, epoch, file, genesis, seal, sealed

Entry = Genesis | Claim | Epoch
AT = datetime(2026, 1, 5, 15, tzinfo=UTC)
DAYS = [(date.fromisoformat(DAY) + timedelta(days=k)).isoformat() for k in range(20)]


def journal_of(sessions: Sequence[str], seed: int = 0) -> list[Entry]:
    """The entries of these sessions; every one may follow the one before."""
    rng = random.Random(seed)
    made = _Made(rng)
    for k, steps in enumerate(sessions):
        for step in steps.replace("o", ""):
            made.step(step, DAYS[k])
        if k < len(sessions) - 1:
            made.end(DAYS[k], DAYS[k + 1], beyond="o" in steps)
    return made.entries


class _Made:
    def __init__(self, rng: random.Random) -> None:
        self.entries: list[Entry] = []
        self.state: JournalState | None = None
        self.rng = rng
        self.add(genesis(written_at=AT.isoformat()))
        self.add(claim(1, 1, written_at=AT.isoformat()))

    @property
    def known(self) -> JournalState:
        assert self.state is not None
        return self.state

    def add(self, entry: Entry) -> None:
        self.state = fold(self.state, entry)
        self.entries.append(entry)

    def epoch(self, end: Offsets, day: str, **more: object) -> None:
        state = self.known
        at = (AT + timedelta(seconds=2 * state.epoch)).isoformat(timespec="milliseconds")
        named = {"term": state.term, "session": day, "started_at": at, "written_at": at}
        self.add(epoch(state.n + 1, state.epoch + 1, end, **named, **more))

    def step(self, step: str, day: str) -> None:
        state = self.known
        if step == "c":
            driver = self.rng.randbytes(self.rng.choice([4, 4, 40_000])).hex()
            at = AT.isoformat()
            self.add(claim(state.n + 1, state.term + 1, driver=driver, written_at=at))
            return
        number = state.epoch + 1
        more: dict[str, object] = {"results": {day: self.rng.randrange(9)}}
        if step == "f":
            some = self.rng.sample(DATA_TABLES, 2)
            more["files"] = [file(table, number) for table in some]
        if step == "x":
            value = self.rng.randrange(4)
            more["cuts"] = [cut(value, number, session=day)]
        self.epoch(self.further(1, 1, 1), day, **more)

    def end(self, day: str, after: str, *, beyond: bool) -> None:
        end = self.further(1, 1, 1)
        asked = seal(end, session=day, next_session=after)
        if beyond:  # one partition is past the end, another has not reached it
            self.epoch(self.further(3, 1, 0), day, seal=asked, results={day: 1, after: 2})
        base, start = self.known.session.base, self.known.session.start
        whole = sealed(end, self.known.epoch + 1, session=day, base=base, start=start)
        self.epoch(self.further(1, 1, 1), after, seal=None if beyond else asked, sealed=whole)

    def further(self, *more: int) -> Offsets:
        (a0, a1), (b0,) = self.known.end["a"], self.known.end["b"]
        return ends(a0 + more[0], a1 + more[1], b0 + more[2])


def filled(
    root: Path, entries: Sequence[Entry], seed: int = 0, *, upkeep: bool = True
) -> Warehouse:
    """A warehouse with these entries, in commits of some each, whose tables owe nothing."""
    rng = random.Random(seed)
    warehouse = new_warehouse(root, result_schema(SPEC))
    rest = list(entries)
    while rest:
        some = rng.choice([1, 2, 7, 30])
        warehouse.journal.append(*rest[:some])
        del rest[:some]
        if upkeep:
            warehouse.maintain()
    settle(warehouse, entries)
    return warehouse


def settle(warehouse: Warehouse, entries: Sequence[Entry]) -> None:
    """Every table has the transactions of all epochs. What they name is not there."""
    last = max(entry.epoch for entry in entries if isinstance(entry, Epoch))
    for name in DATA_TABLES:
        warehouse.apply(name, last, [])


def prove(warehouse: Warehouse, days: Sequence[str]) -> None:
    """These sessions are cleaned and complete."""
    for day in days:
        warehouse.sessions.append(SessionEvent(session=day, event="cleaned"))
        warehouse.sessions.append(SessionEvent(session=day, event="verified", complete=True))


def seals(entries: Sequence[Entry]) -> dict[str, int]:
    """The number of the entry that sealed each session."""
    return {e.sealed.session: e.n for e in entries if isinstance(e, Epoch) and e.sealed}
