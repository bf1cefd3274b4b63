"""A warehouse as the page sees one: a made-up day with moves, refusals, spills and statistics.

It is written without Spark and Kafka, from `tests.report_journal`, and what is in it is known.
Symbols and reasons are hostile: whoever shows them must show them as text.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from spillway.engine.statistics import STATISTICS_SCHEMA
from spillway.engine.wire.datafile import write_data_files
from spillway.tables import SessionEvent, Warehouse
from spillway_schemas.filenames import data_name
from spillway_schemas.hash_space import join_of
from spillway_schemas.journal import CommandOutcome, Epoch, Move, Prefix
from tests.report_journal import DAY, Made, add_quarantine, fill_journal, make_day, open_warehouse

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"
BUDGET = 1 << 20


def page_day(epochs: int = 60, *, depth: int = 9, slots: int = 2, **more: Any) -> Made:
    """A day with decisions: twelve groups moved by a policy, a refusal, a spill by a person.

    In the last quarter of it slot 0 has twice the budget.
    """
    made = make_day(epochs, slots=slots, groups_depth=depth, budget=BUDGET, **more)
    at = {e.epoch: i for i, e in enumerate(made.entries) if isinstance(e, Epoch)}
    groups = dict(made.entries[0].groups)
    first = [g for g, slot in groups.items() if slot == 0]
    moved = first[: min(12, len(first) // 2)]
    moves = [Move(group=g, to=slots - 1, bytes=30_000, decision="pooled/aa") for g in moved]
    after = [(g, slots - 1 if g in moved else slot) for g, slot in groups.items()]
    why = "slot 0 holds 61 % of the memory, the others less than half of that"

    def change(epoch: int, **what: Any) -> None:
        made.entries[at[epoch]] = made.entries[at[epoch]].model_copy(update=what)

    def answered(kind: str, name: str, *, ok: bool = True, **what: Any) -> CommandOutcome:
        decision = name.rpartition("/")[0]
        return CommandOutcome(id=name, decision=decision, kind=kind, obeyed=ok, **what)

    change(
        epochs // 3,
        commands=[
            answered(
                "move",
                f"{m.decision}/{k}",
                reason=why,
                policy="pooled",
                by="airflow",
                bytes=m.bytes,
                slot=m.to,
            )
            for k, m in enumerate(moves)
        ],
        moved=moves,
        assignment=after,
    )
    change(
        epochs // 2,
        commands=[
            answered(
                "move",
                "lazy-disk/bb/0",
                ok=False,
                policy="lazy-disk",
                by="airflow",
                reason="decided on assignment 0, which is an old one",
            ),
        ],
    )
    for epoch in range(3 * epochs // 4, epochs):
        entry = made.entries[at[epoch]]
        assert isinstance(entry, Epoch)
        larger = entry.slots[0].model_copy(update={"budget_bytes": 2 * BUDGET})
        change(epoch, slots=[larger, *entry.slots[1:]], budgets={0: 2 * BUDGET})
    waiting = [Move(group=g, to=0, bytes=9_000, decision="by-hand/dd") for g in moved[:3]]
    change(
        epochs - 2,
        commands=[
            answered(
                "spill",
                "by-hand/cc/0",
                reason=f"make room {HOSTILE}",
                by="alice",
                slot=0,
                bytes=1 << 19,
            ),
        ],
    )
    change(
        epochs - 1,
        commands=[answered("move", "by-hand/dd/0", reason="back again", by="bob", bytes=27_000)],
        queued=waiting,
    )
    return made


def write_statistics(
    warehouse: Warehouse,
    epoch: int,
    groups: list[tuple[Prefix, int]],
    *,
    session: str = DAY,
    seed: int = 3,
    joins: int = 1,
) -> None:
    """Figures of every group: one in nine is spilled, one in seven partly, a few are empty.

    One join has three inputs, each of a tree's has two.
    """
    rng = random.Random(seed)
    rows = []
    for number, (prefix, slot) in enumerate(groups):
        spilled, partly, empty = number % 9 == 4, number % 7 == 2, number % 31 == 5
        held = 0 if spilled or empty else int(rng.lognormvariate(9, 0.7))
        results = int(held * rng.lognormvariate(-4, 1.6)) if held else 0
        hot = HOSTILE if number == 1 else f"SYM{number}" if number % 40 == 0 else None
        rows.append(
            {
                "epoch": epoch,
                "session_date": session,
                "slot": slot,
                "depth": prefix.depth,
                "value": prefix.value,
                "bytes": held,
                "rows": _rows(held // 93, join_of(prefix, joins), joins),
                "results": results,
                "last_used_ms": 0,
                "resident": True,
                "written_at": datetime(2026, 1, 5, 15, tzinfo=UTC) + timedelta(seconds=epoch),
                "session_results": results * 2,
                "rate": results / 60,
                "rows_in": 0 if empty else held // 31 + 7,
                "generations": 1 + number % 3 if spilled or partly else 0,
                "spilled_bytes": 40_000 if spilled or partly else 0,
                "hot_key": hot if held else None,
                "hot_rows": held // 93 if hot and held else None,
            }
        )
    table = pa.Table.from_pylist(rows, schema=STATISTICS_SCHEMA)
    place = warehouse.folder("statistics")
    files = write_data_files(
        place, "statistics", lambda k: data_name(epoch, "a" * 12, 0, k), STATISTICS_SCHEMA, [table]
    )
    warehouse.apply("statistics", epoch, files)


def _rows(each: int, join: int, joins: int) -> list[int]:
    """Rows of a group by input, those of all joins numbered through."""
    return [each] * 3 if joins == 1 else [each * (n // 2 == join) for n in range(2 * joins)]


def write_page_warehouse(root: Path, made: Made) -> Warehouse:
    """All tables of that day."""
    return fill_page_warehouse(open_warehouse(str(root)), made)


def fill_page_warehouse(warehouse: Warehouse, made: Made) -> Warehouse:
    """What is not in its tables yet."""
    fill_journal(warehouse, made.entries)
    last = max(e.epoch for e in made.entries if isinstance(e, Epoch))
    groups = next(
        e.assignment for e in reversed(made.entries) if isinstance(e, Epoch) and e.assignment
    )
    joins = len(made.entries[0].joins)
    write_statistics(warehouse, last, groups, session=made.last.session, joins=joins)
    add_quarantine(
        warehouse, last, ["price: Input should be a valid number"] * 40 + [f"symbol {HOSTILE}"] * 9
    )
    if made.sealed_epoch >= 0:
        warehouse.sessions.append(
            SessionEvent(session=DAY, event="cleaned", cleanup=500, seconds=15.4)
        )
    return warehouse
