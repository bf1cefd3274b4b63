"""What every way of asking for an adaptation shares: looking at the journal, appending commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from spillway.clock import Clock, rfc3339
from spillway.protocol.adapt import adapt
from spillway.protocol.queries import kept_query
from spillway.protocol.state import AnotherQuery
from spillway.readmodel import cache
from spillway.readmodel.model import ReadModel
from spillway.readmodel.waiting import waiting
from spillway.tables import SessionEvent, Warehouse, opened
from spillway_schemas.commands import AdaptationCommand
from spillway_schemas.exits import USAGE
from spillway_schemas.journal import CommandOutcome
from spillway_schemas.query import SINGLE, Query, QueryError, load_query
from spillway_schemas.settings import Settings


class Answers(list[tuple[AdaptationCommand, CommandOutcome]]):
    """Commands, each with what the stream would answer now."""

    def __init__(
        self,
        found: Iterable[tuple[AdaptationCommand, CommandOutcome]] = (),
        joins: Sequence[str] = (SINGLE,),
    ) -> None:
        super().__init__(found)
        self.joins = joins
        """Names of the query's joins: people's names of groups begin with one."""


class RequestRefused(Exception):
    """What was asked for cannot be asked for."""

    exit_code = USAGE


@dataclass(frozen=True)
class WarehouseLook:
    """A warehouse at one moment, which everything that is asked for goes by."""

    at_ms: int
    warehouse: Warehouse
    model: ReadModel
    """What follows from the journal."""
    waiting: tuple[str, ...]
    """Decisions that the stream has not answered yet."""

    def at(self, later_s: float = 0.0) -> str:
        """That moment, or some seconds later, as RFC 3339."""
        return rfc3339(self.at_ms + int(later_s * 1000))

    def query(self, settings: Settings) -> Query:
        """The query by which the open session runs, where the journal has it, else the settings':
        their file may be that of the next session by now. Raises QueryError."""
        genesis = self.model.state.genesis
        if genesis.text is not None:
            with suppress(AnotherQuery, QueryError):
                return kept_query(genesis)
        return load_query(settings.query)


def look(settings: Settings, *, clock: Clock) -> WarehouseLook:
    """Look at the warehouse: only what is new since the last time is read.

    Raises `NoWarehouse`, and `NothingYet` when the journal is empty.
    """
    warehouse = opened(settings.warehouse)
    memory = cache.load(warehouse.place.path())
    model = cache.caught_up(warehouse, memory)
    at_ms = clock()
    unanswered = waiting(warehouse, model.state, datetime.fromtimestamp(at_ms / 1000, UTC))
    cache.save(memory, warehouse.place.path())
    return WarehouseLook(at_ms, warehouse, model, tuple(each.id for each in reversed(unanswered)))


def ask(seen: WarehouseLook, commands: Sequence[AdaptationCommand], *, dry_run: bool) -> Answers:
    """Append the commands, each with what the stream would answer now.

    A command that would be refused is not appended. The stream has the last word: it may refuse
    later what looks right now.
    """
    outcomes = adapt(seen.model.state, commands, seen.at()).outcomes
    right = [c for c, o in zip(commands, outcomes, strict=True) if o.obeyed]
    if right and not dry_run:
        # Together: one that the stream read alone would make the others' assignment an old one.
        seen.warehouse.commands.append(*right)
    return Answers(zip(commands, outcomes, strict=True), seen.model.state.genesis.joins)


def note(settings: Settings, by: str, reason: str, *, clock: Clock, **what: object) -> None:
    """Keep why somebody asked when nothing of it went to the stream, whose journal would say so."""
    seen = look(settings, clock=clock)
    details = {"by": by, "reason": reason, **what}
    seen.warehouse.sessions.append(
        SessionEvent(session=seen.model.session, event="asked", details=details)
    )
