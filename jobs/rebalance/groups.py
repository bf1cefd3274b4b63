"""`spillway status --groups`: the largest partition groups, by the newest statistics."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from jobs.policy.view import name
from jobs.rebalance.view import newest
from jobs.report import memory as remembering
from jobs.report.words import bytes_text, count_text, part_text, visible
from jobs.tables import Warehouse
from schemas.journal import Prefix

HEAD = (
    "group",
    "slot",
    "state",
    "rows",
    "rows in",
    "results",
    "of the session",
    "results/s",
    "a KiB",
    "generations",
    "spilled",
    "hottest key",
)


class GroupStatus(BaseModel):
    """One group of one open session, as its slot's newest statistics have it."""

    group: str
    """`depth/value`."""
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
    hot_key: str | None
    """The key with the most rows; None: not looked at."""
    hot_rows: int | None


def largest_groups(warehouse: Warehouse, most: int) -> list[GroupStatus]:
    """The `most` largest groups by bytes in memory."""
    memory = remembering.load(warehouse.place.path())
    tally = remembering.caught_up(warehouse, memory)
    tables = list(newest(warehouse, tally).values())
    if not tables:
        return []
    rows = pa.concat_tables(tables).sort_by([("bytes", "descending")])
    return [
        GroupStatus(
            group=name(Prefix(row["depth"], row["value"])),
            session=row["session_date"],
            **{field: row[field] for field in GroupStatus.model_fields if field in row},
        )
        for row in rows.filter(pc.greater(rows["rows_in"], 0)).slice(0, most).to_pylist()
    ]


def groups_table(groups: list[GroupStatus]) -> Table:
    """What people read."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in HEAD:
        table.add_column(title, justify="left" if title in ("group", HEAD[-1]) else "right")
    for each in groups:
        hot, rows = "", sum(each.rows)
        if each.hot_key is not None and rows:
            hot = f"{visible(each.hot_key)}, {part_text((each.hot_rows or 0) / rows)}"
        table.add_row(
            each.group,
            str(each.slot),
            bytes_text(each.bytes),
            count_text(rows),
            count_text(each.rows_in),
            count_text(each.results),
            count_text(each.session_results),
            f"{each.rate:,.1f}",
            f"{each.results * 1024 / max(each.bytes, 1):,.2f}",
            count_text(each.generations),
            bytes_text(each.spilled_bytes),
            Text(hot),
        )
    return table
