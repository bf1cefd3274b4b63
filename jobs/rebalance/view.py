"""What the controller knows of the partition groups: their newest rows of `statistics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.tables import Warehouse
from jobs.tables.names import origin
from schemas.journal import Prefix

COLUMNS = ["epoch", "slot", "depth", "value", "bytes", "resident"]


def group_bytes(warehouse: Warehouse, slots: Iterable[int]) -> dict[Prefix, int]:
    """Bytes in memory of every group of some slots that has any, all open sessions together.

    They are those of each slot's newest statistics, which are written every few seconds.
    """
    newest: dict[int, tuple[int, pa.Table]] = {}
    wanted = set(slots)
    for rows in _newest_first(warehouse):
        for slot in wanted & set(pc.unique(rows["slot"]).to_pylist()):
            mine = rows.filter(pc.equal(rows["slot"], slot))
            epoch = pc.max(mine["epoch"]).as_py()
            if slot not in newest or epoch > newest[slot][0]:
                newest[slot] = epoch, mine.filter(pc.equal(mine["epoch"], epoch))
        if newest.keys() >= wanted:
            break
    sizes: dict[Prefix, int] = {}
    for _, rows in newest.values():
        kept = rows.filter(rows["resident"])
        columns = (kept[name].to_pylist() for name in ("depth", "value", "bytes"))
        for depth, value, size in zip(*columns, strict=True):
            group = Prefix(depth, value)
            sizes[group] = sizes.get(group, 0) + size
    return sizes


def _newest_first(warehouse: Warehouse) -> Iterator[pa.Table]:
    """The table's files, those of the last epochs first; what was compacted is older than they."""
    table = warehouse.table("statistics")

    def age(path: str) -> tuple[bool, int]:
        made = origin(path)
        return made is None or made.writer != "epoch", -(made.number if made else 0)

    for path in sorted((file.path for file in warehouse.files("statistics")), key=age):
        with table.place.open(path) as source:
            yield pq.ParquetFile(source).read(columns=COLUMNS, use_threads=False)
