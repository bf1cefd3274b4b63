"""`spillway doctor`: is everything here that a trading day needs, and will it last?

Each check looks at one thing and gives a `Check`: ok, a warning, or a failure, with what was
found and how to mend it. `stream` refuses to start on a failure: what fails here would fail
later, in the middle of a day. Looking (files, processes, Kafka) is apart from judging
(`judge_...`, pure), so that every judgement can be tested without the surroundings it is about.

Known limitation: with a Spark master other than a local one, memory and the state folder belong
to the executors' hosts, which are not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spillway.doctor.beside import beside
from spillway.doctor.check import Check, failed
from spillway.doctor.disks import folders
from spillway.doctor.inputs import Begun, judge_close_delay, kafka, query_file, sessions
from spillway.doctor.machine import budget, memory, programs
from spillway.doctor.ports import metrics
from spillway.doctor.schemas import schemas
from spillway.plain import plain
from spillway.protocol.state import JournalState
from spillway.readmodel.clocks import clocks_text, wrong_clocks
from spillway.report.words import times_text
from spillway_schemas.query import Query
from spillway_schemas.settings import Settings, SettingsError
from spillway_schemas.stores import is_uri

__all__ = ["Check", "beside", "blocking", "check_all", "of_query", "table"]


def check_all(
    settings: Settings,
    *,
    close_delay_s: float | None = None,
    now_ms: int | None = None,
    thorough: bool = True,
    query: Query | None = None,
) -> list[Check]:
    """Look at everything; never raises for what it finds.

    `close_delay_s`: how long after a close a scheduler closes the day, when one does; `now_ms`: the
    present, for tests. `thorough`: read the whole journal, and hold the topics against it; a start
    reads it from its snapshot on, and holds them against it when it claims the journal. `query`:
    the stream's, where it is not the settings'.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    spans, calendar_check = sessions(settings, now)
    query, query_check = query_file(settings, query)
    places = list(folders(settings))
    is_away = is_uri(settings.warehouse.root) and places[0].status == "fail"
    begun, tables = (None, []) if is_away else _tables(settings, query, thorough)
    slots = settings.state.slots if begun is None else len(begun.state.slots)
    return [
        *programs(),
        *places,
        *memory(settings, slots),
        calendar_check,
        *([] if close_delay_s is None else [judge_close_delay(settings, close_delay_s)]),
        query_check,
        *([] if query is None else [budget(settings, query, slots)]),
        *_carry(settings, query),
        *kafka(settings, query, spans, begun if thorough else None),
        *schemas(settings, query),
        *metrics(settings),
        *tables,
    ]


def of_query(name: str, checks: Sequence[Check]) -> list[Check]:
    """The checks of one of several queries."""
    return [replace(each, name=f"{name}: {each.name}") for each in checks]


def broken(name: str, error: SettingsError, *, is_asked: bool) -> Check:
    """What is wrong with the settings of a named query. It fails where the query is asked for;
    otherwise it means that nothing is compared with that one."""
    mend = f"mend it; what is said of this query alone stands below [queries.{name}]"
    return Check(f"{name}: settings", "fail" if is_asked else "warn", str(error), mend)


def blocking(checks: Sequence[Check]) -> list[Check]:
    """The failures: with any of them `stream` does not start."""
    return [check for check in checks if check.status == "fail"]


def table(checks: Sequence[Check]) -> Any:
    """The checks as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    shown = Table("", "what", "found", box=None, pad_edge=False)
    for check in checks:
        text = Text(plain(check.what))
        if check.mend:
            text.append(f"\n-> {check.mend}", style="bold")
        shown.add_row(Text(check.status, style=colours[check.status]), check.name, text)
    return shown


def _carry(settings: Settings, query: Query | None) -> list[Check]:
    """Whether sessions can carry rows over, where they are to."""
    from spillway.stream.genesis import StartRefused, carrying

    if query is None or not settings.session.carry:
        return []
    try:
        carrying(settings, query)
    except StartRefused as error:
        what, _, mend = str(error).rpartition(". ")
        return [Check("carry", "fail", what, mend)]
    return [Check("carry", "ok", "windows reach over the end of a session")]


def _tables(
    settings: Settings, query: Query | None, thorough: bool
) -> tuple[Begun | None, list[Check]]:
    """The tables' checks, and what a stream of the query would go on with."""
    from spillway.protocol.queries import QueryChanged
    from spillway.stream.genesis import StartRefused, check_carry, state_of_query
    from spillway.tables import DamagedTable, NoWarehouse, WarehouseError, opened

    root = settings.warehouse.root
    begun: Begun | None = None
    try:
        warehouse = opened(settings.warehouse)
        changed: list[Check] = []
        more: list[Check] = []
        if query is not None and (state := state_of_query(warehouse, query)) is not None:
            begun = Begun(warehouse, state)
            changed, more = _changed(state, query), [*_clocks(state), *_slots(settings, state)]
            if not changed:
                check_carry(settings, state)
        found = warehouse.check(thorough=thorough)
    except NoWarehouse:
        return None, [Check("tables", "ok", "no warehouse yet; 'spillway stream' makes one")]
    except DamagedTable as error:
        return begun, [Check("tables", "fail", str(error), "run 'spillway doctor --repair'")]
    except (QueryChanged, StartRefused, WarehouseError, OSError, ValueError) as error:
        return begun, [failed("tables", str(error))]
    if found:
        return begun, [failed("tables", problem) for problem in found]
    agree = Check("tables", "ok", f"the journal and the tables of {root} agree")
    return begun, [*changed, *more, agree]


def _clocks(state: JournalState) -> list[Check]:
    """Whether the last epoch found a host's clock wrong."""
    told, _, mend = clocks_text(wrong_clocks(state.totals)).rpartition(": ")
    return [Check("clocks", "warn", f"in the last epoch, {told}", mend)] if told else []


def _slots(settings: Settings, state: JournalState) -> list[Check]:
    """Whether the settings have another number of slots than the warehouse, which keeps its own."""
    there, wanted = len(state.slots), settings.state.slots
    if there == wanted:
        return []
    kept = f"the warehouse has {times_text(there, 'slot')}, and keeps them"
    change = f"`spillway rebalance --slots {wanted}` changes that while the stream runs"
    return [Check("slots", "ok", f"{kept}: state.slots = {wanted} is for a new one. {change}")]


def _changed(state: JournalState, query: Query) -> list[Check]:
    """What a start would change of the query, where the open session has no row yet."""
    from spillway.protocol.queries import told_changes

    told = "; ".join(each.text for each in told_changes(state.genesis, query))
    if not told:
        return []
    date = state.session.date
    return [Check("changed query", "ok", f"the next start takes it up for {date}: {told}")]
