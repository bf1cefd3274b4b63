"""`spillway status --groups`: the largest partition groups, by the newest statistics."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from spillway.engine.statistics import range_of
from spillway.readmodel import cache
from spillway.readmodel.groups import newest, per_kib
from spillway.report.words import bytes_text, count_text, part_text, visible
from spillway.tables import Warehouse
from spillway_schemas.hash_space import group_text, join_named, spaces
from spillway_schemas.journal import Prefix

HEAD = (
    "group",
    "slot",
    "state",
    "rows",
    "rows in",
    "results",
    "of the session",
    "results/s",
    "per KiB",
    "loss/KiB",
    "generations",
    "spilled",
    "hottest key",
)
LEFT_OUT = (
    "of the session",
    "rows in",
    "generations",
    "per KiB",
    "loss/KiB",
    "results/s",
    "spilled",
)
"""Columns that a narrow terminal does without, the first ones first."""


class GroupStatus(BaseModel):
    """One group of one open session, as its slot's newest statistics have it."""

    group: str
    """As `group_text` writes it."""
    session: str
    slot: int
    epoch: int
    bytes: int
    rows: list[int]
    """Per input, in memory."""
    rows_in: int
    """All inputs, in the session."""
    results: int
    """Of the current generation."""
    session_results: int
    rate: float
    """Results per second, lately."""
    generations: int
    spilled_bytes: int
    last_used_ms: int
    expected_loss: float | None
    """Results that a spill now would give up."""
    hot_key: str | None
    """The key with the most rows; None: not looked at."""
    hot_rows: int | None


def largest_groups(warehouse: Warehouse, most: int, join: str = "") -> list[GroupStatus]:
    """The `most` largest groups by bytes in memory, of all joins or of one.

    Raises `UnknownJoin`.
    """
    memory = cache.load(warehouse.place.path())
    model = cache.caught_up(warehouse, memory)
    names = model.state.genesis.joins
    wanted = join_named(join, names) if join else None
    tables = list(newest(warehouse, model).values())
    if not tables:
        return []
    rows = pa.concat_tables(tables).sort_by([("bytes", "descending")])
    if wanted is not None:
        rows = rows.filter(pa.array(range_of(rows, spaces(len(names))) == wanted))
    return [
        GroupStatus(
            group=group_text(Prefix(row["depth"], row["value"]), names),
            session=row["session_date"],
            **{field: row[field] for field in GroupStatus.model_fields if field in row},
        )
        for row in rows.filter(pc.greater(rows["rows_in"], 0)).slice(0, most).to_pylist()
    ]


def groups_table(groups: list[GroupStatus], console: Console) -> RenderableType:
    """What people read. On a narrow terminal columns are left out, and it says which."""
    unbound = console.options.update(width=1_000)
    for count in range(len(LEFT_OUT) + 1):
        gone = LEFT_OUT[:count]
        table = _table(groups, gone)
        if Measurement.get(console, unbound, table).maximum <= console.width:
            break
    if not gone:
        return table
    return Group(table, Text(f"left out for want of room: {', '.join(gone)} (--json has all)"))


def _table(groups: list[GroupStatus], gone: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    shown = [at for at, title in enumerate(HEAD) if title not in gone]
    for at in shown:
        left = HEAD[at] in ("group", HEAD[-1])
        table.add_column(HEAD[at], justify="left" if left else "right", no_wrap=True)
    for each in groups:
        cells = _cells(each)
        table.add_row(*(Text(cells[at]) for at in shown))
    return table


def _cells(each: GroupStatus) -> tuple[str, ...]:
    """One group, by `HEAD`."""
    hot, rows = "", sum(each.rows)
    if each.hot_key is not None and rows:
        hot = f"{visible(each.hot_key)}, {part_text((each.hot_rows or 0) / rows)}"
    return (
        each.group,
        str(each.slot),
        bytes_text(each.bytes),
        count_text(rows),
        count_text(each.rows_in),
        count_text(each.results),
        count_text(each.session_results),
        f"{each.rate:,.1f}",
        f"{per_kib(each.results, each.bytes):,.2f}",
        f"{per_kib(each.expected_loss or 0.0, each.bytes):,.2f}",
        count_text(each.generations),
        bytes_text(each.spilled_bytes),
        hot,
    )
