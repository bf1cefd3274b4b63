"""What only the HTML report draws: one session's history, its spills' choices, cleanup's steps.

Productivity is the papers' P_output / P_size: results of a group's current generation per KiB of
its state. When a slot spills, the `statistics` table holds a row for every group that it kept and
for every group that it spilled, of that very epoch; so what the policy chose can be compared with
what it left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.readmodel.groups import per_kib
from spillway.readmodel.model import ReadModel
from spillway.report.model import Cleaning, Detail, JoinStatus, SpillChoice, Spread
from spillway.tables import Warehouse
from spillway_schemas.filenames import origin

COLUMNS = ["session_date", "epoch", "slot", "bytes", "results", "resident"]


def detail_of(
    warehouse: Warehouse, model: ReadModel, session: str, joins: list[JoinStatus]
) -> Detail:
    """History of one session, whose `joins` are given.

    Raises KeyError for a session that the journal does not know.
    """
    known = model.tally.sessions[session]
    flush = known.sealed_epoch
    return Detail(
        session=session,
        points=[p for p in model.tally.points if p.session == session or session in p.results],
        # The seal's flush chooses nothing.
        choices=[c for c in choices(_statistics(warehouse, session)) if c.epoch != flush],
        cleaning=[] if flush is None else cleaning(warehouse, session),
        joins=joins,
    )


def choices(statistics: pa.Table) -> list[SpillChoice]:
    """Each spill of each slot, in order, from rows of the `statistics` table (one session's)."""
    epoch = statistics["epoch"].to_numpy()
    slot = statistics["slot"].to_numpy()
    resident = statistics["resident"].to_numpy(zero_copy_only=False).astype(bool)
    held = statistics["bytes"].to_numpy() > 0
    productivity = per_kib(statistics["results"].to_numpy(), statistics["bytes"].to_numpy())
    found = []
    spills = np.unique(np.stack([epoch[~resident], slot[~resident]], axis=1), axis=0)
    for e, s in spills.tolist():
        here = (epoch == e) & (slot == s)
        spilled = _spread(productivity[here & ~resident])
        assert spilled is not None  # the pair comes from a spilled row
        kept = _spread(productivity[here & resident & held])
        found.append(SpillChoice(epoch=e, slot=s, kept=kept, spilled=spilled))
    return found


def _spread(values: np.ndarray) -> Spread | None:
    if not len(values):
        return None
    p10, p50, p90 = (round(float(v), 4) for v in np.quantile(values, (0.1, 0.5, 0.9)))
    return Spread(groups=len(values), p10=p10, p50=p50, p90=p90)


def _statistics(warehouse: Warehouse, session: str) -> pa.Table:
    """The session's rows of `statistics`."""
    table = warehouse.table("statistics")
    parts = []
    for file in warehouse.files("statistics"):
        first, last = file.sessions or (session, session)
        if not first <= session <= last:
            continue
        with table.place.open(file.path) as source:
            parquet = pq.ParquetFile(source)
            names = [c for c in COLUMNS if c in parquet.schema_arrow.names]
            rows = parquet.read(columns=names, use_threads=False)
        if "session_date" in names:
            rows = rows.filter(pc.equal(rows["session_date"], session))
        parts.append(rows.select(COLUMNS[1:]))
    if not parts:
        kinds: list[Any] = [pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.bool_()]
        return pa.schema(list(zip(COLUMNS[1:], kinds, strict=True))).empty_table()
    return pa.concat_tables(parts)


def cleaning(warehouse: Warehouse, session: str) -> list[Cleaning]:
    """Files of missing results in the order of their writing.

    Empty once compaction has replaced them: then only their sum is known.
    """
    written_s = {info.name: info.modified_s for info in warehouse.folder("results").list()}
    steps = []
    for file in warehouse.files("results"):
        if file.partition["session_date"] != session or file.path not in written_s:
            continue
        made = origin(file.path)
        if made is not None and made.writer == "cleanup":
            steps.append(Cleaning(written_ms=round(written_s[file.path] * 1000), rows=file.rows))
    return sorted(steps, key=lambda step: step.written_ms)
