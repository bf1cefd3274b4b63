"""A sealed day made by hand: spilled generations, run-time results, the journal that names them.

No stream ran: what it would have left is written here with the engine's own writers, from rows
and generations that the tests choose. A row is (input, key, generation's epoch); its offset is
its place in the list.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.join.hashing import xxhash64
from spillway.engine.join.kernel import Rows, join_batches
from spillway.engine.join.results import complete, file_schema, result_schema
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import TreeSpec, one_join
from spillway.engine.spill.spillfile import spill_schema, write_spill
from spillway.engine.wire.datafile import write_data_file
from spillway.tables import Warehouse
from spillway_schemas.filenames import data_name
from spillway_schemas.journal import Claim, Cut, Epoch, Genesis, Prefix, Sealed, SealRequest, Topic
from tests.new_warehouse import new_warehouse
from tests.property.outer_reference import outer_joined

AT = "2026-01-05T21:00:00+00:00"
DAY, NEXT = "2026-01-05", "2026-01-06"

SPEC = one_join(
    JoinSpec(
        0,
        pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
        (
            InputSpec("stock", pa.schema([("price", pa.float64())])),
            InputSpec("volume", pa.schema([("shares", pa.int64())])),
            InputSpec("review", pa.schema([("text", pa.string())])),
        ),
    )
)

OPTIONAL = ("stock", "review")
OUTER = one_join(
    replace(
        SPEC.root,
        inputs=tuple(replace(each, optional=each.name in OPTIONAL) for each in SPEC.root.inputs),
    )
)
"""The same with an optional first and an optional last input."""

Row = tuple[int, str, int]


def random_rows(seed: int, n: int, keys: int, generations: int) -> list[Row]:
    """`n` rows of skewed keys; generations are epochs 1 to `generations`."""
    rng = np.random.default_rng(seed)
    which = (keys * rng.random(n) ** 2).astype(int)
    inputs, epochs = rng.integers(0, 3, n), rng.integers(1, generations + 1, n)
    return [(int(i), f"k{k}", int(e)) for i, k, e in zip(inputs, which, epochs, strict=True)]


def brute_force(rows: list[Row], spec: TreeSpec = SPEC) -> Counter:
    """All results: key and coordinates, with the phase that each belongs to."""
    sides = [[(key, offset) for offset, (i, key, _) in enumerate(rows) if i == n] for n in range(3)]
    optional = [i for i, each in enumerate(spec.root.inputs) if each.optional]
    whole = outer_joined(sides, optional)
    found = Counter({("cleanup", *result): n for result, n in whole.items() if None in result})
    by_key: dict[str, list[list[tuple[int, int]]]] = {}
    for offset, (i, key, epoch) in enumerate(rows):
        by_key.setdefault(key, [[], [], []])[i].append((offset, epoch))
    for key, sides in by_key.items():
        for combination in product(*sides):
            phase = "run-time" if len({epoch for _, epoch in combination}) == 1 else "cleanup"
            found[(phase, key, *(offset for offset, _ in combination))] += 1
    return found


def results_of(warehouse: Warehouse, session: str = DAY) -> Counter:
    """What the results table holds, as `brute_force` counts it; payloads are checked."""
    import deltalake

    table = pa.table(deltalake.DeltaTable(warehouse.folder("results").path()).to_pyarrow_table())
    table = table.filter(pc.field("session_date") == session)
    found: Counter = Counter()
    for row in table.to_pylist():
        offsets = [row[f"{each.name}_offset"] for each in SPEC.inputs]
        shown = [row[name] for name in ("stock_price", "volume_shares", "review_text")]
        for i, (offset, value) in enumerate(zip(offsets, shown, strict=True)):
            assert value == (None if offset is None else payload_of(i, offset))
            assert row[f"{SPEC.inputs[i].name}_partition"] == (None if offset is None else i)
        found[(row["phase"], row["symbol"], *offsets)] += 1
    return found


def payload_of(input_: int, offset: int) -> float | int | str | None:
    """A function of the row's coordinate: a result that mixes rows up shows it."""
    return (offset / 2, offset, f"é{offset}" if offset % 3 else None)[input_]


def rows_of(rows: list[tuple[int, Row]], input_: int) -> Rows:
    """The engine's rows of one input, from (offset, row)."""
    own = [(offset, row) for offset, row in rows if row[0] == input_]
    offsets = [offset for offset, _ in own]
    keys = pa.array([row[1] for _, row in own], pa.string())
    payload = [payload_of(input_, offset) for offset in offsets]
    schema = SPEC.row_schema(input_)
    columns = [keys, payload, [input_] * len(own), offsets]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    hashes = xxhash64([keys])
    order = np.argsort(hashes, kind="stable")
    return Rows(hashes[order], pa.Table.from_arrays(arrays, schema=schema).take(pa.array(order)))


@dataclass
class SpilledDay:
    """Where the day lies, and what it must come to."""

    root: str
    rows: list[Row]
    sealed: Sealed

    def warehouse(self) -> Warehouse:
        """The warehouse as a reader opens it."""
        return Warehouse(self.root, fsync=False)


def make_day(
    root: str,
    rows: list[Row],
    *,
    depth: int = 4,
    apply: bool = True,
    slots: int = 2,
    spec: TreeSpec = SPEC,
    of_next: Collection[Prefix] = (),
) -> SpilledDay:
    """Write the day. `apply` false: the journal is ahead of the tables, as after a crash.
    `of_next`: ranges of the next session that the last epoch cuts, too."""
    warehouse = new_warehouse(root, result_schema(spec), spill=spill_schema(spec))
    offsets = {"t": [0]}
    end = {"t": [len(rows)]}
    groups = [(Prefix(depth, v), v % slots) for v in range(1 << depth)]
    topic = Topic(name="t", id="x", partitions=1)
    warehouse.journal.append(
        Genesis(
            warehouse_id="w",
            cluster_id="c",
            topics=[topic],
            query="q",
            session=DAY,
            start=offsets,
            start_rule="earliest",
            inputs=3,
            groups=groups,
            outer=spec is OUTER,
            written_at=AT,
        )
    )
    warehouse.journal.append(Claim(n=1, term=1, driver="d", written_at=AT))
    last = max((row[2] for row in rows), default=0)
    cuts: list[Cut] = []
    sealed = None
    given = spilled = 0
    for epoch in range(last + 1):
        own = [(offset, row) for offset, row in enumerate(rows) if row[2] == epoch]
        inputs = [rows_of(own, i) for i in range(3)]
        attempt = uuid.uuid4().hex[:12]
        files = []
        batches = [
            complete(joined.table, epoch=epoch, phase="run-time", committed_us=0)
            for joined in join_batches(spec.root, [[], [], []], [[r] for r in inputs])
        ]
        record = write_data_file(
            warehouse.folder("results"),
            "results",
            data_name(epoch, attempt, 0, 0),
            file_schema(spec),
            batches,
            {"session_date": DAY},
        )
        files += [record] if record else []
        results = sum(batch.num_rows for batch in batches)
        given += results
        for slot in range(slots):
            # The owner of a group is its number modulo the slots.
            mine = [
                Rows(r.key_hash[mask], r.table.filter(pa.array(mask)))
                for r in inputs
                for mask in [(r.key_hash >> np.uint64(64 - depth)) % np.uint64(slots) == slot]
            ]
            record = write_spill(
                warehouse.folder("spill"),
                data_name(epoch, attempt, slot, 1),
                SPEC,
                DAY,
                epoch,
                [[r] for r in mine],
            )
            files += [record] if record else []
        touched = {int(h) >> (64 - depth) for r in inputs for h in r.key_hash}
        new_cuts = [
            Cut(session=DAY, operator=0, range=Prefix(depth, v), epoch=epoch)
            for v in sorted(touched)
        ]
        cuts += new_cuts
        spilled += len(own)
        done = epoch == last
        if done:
            new_cuts += [Cut(session=NEXT, operator=0, range=r, epoch=epoch) for r in of_next]
            sealed = Sealed(
                session=DAY,
                epoch=epoch,
                start=offsets,
                end=end,
                ranges=sorted({cut.range for cut in cuts}),
                results=given,
                spilled_rows=spilled,
                generations=len(cuts),
            )
        warehouse.journal.append(
            Epoch(
                n=epoch + 2,
                term=1,
                epoch=epoch,
                session=NEXT if done else DAY,
                end=end if done else offsets,
                manifests={slot: f"m{epoch}-{slot}" for slot in range(slots)},
                files=files,
                cuts=new_cuts,
                read=[],
                seal=SealRequest(session=DAY, end=end, next_session=NEXT, command="s")
                if done
                else None,
                sealed=sealed,
                results={DAY: results},
                spilled_rows={DAY: len(own)},
                slots=[],
                started_at=AT,
                written_at=AT,
            )
        )
        if apply:
            for table in sorted({file.table for file in files}):
                warehouse.apply(table, epoch, [f for f in files if f.table == table])
    assert sealed is not None
    return SpilledDay(root, rows, sealed)


def copied_day(
    root: str, seed: int, n: int, keys: int, *, depth: int = 4, outer: bool = False
) -> SpilledDay:
    """A day of random rows in four generations at `root`: a copy of the process's first such one,
    for to make it takes ten times as long."""
    first = _first_day(seed, n, keys, depth, outer)
    shutil.copytree(first.root, root, dirs_exist_ok=True)
    return replace(first, root=root)


@cache
def _first_day(seed: int, n: int, keys: int, depth: int, outer: bool) -> SpilledDay:
    place = tempfile.mkdtemp(prefix="spillway-spilled-day-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    rows = random_rows(seed, n, keys, 4)
    return make_day(f"{place}/w", rows, depth=depth, spec=OUTER if outer else SPEC)


class Here:
    """What cleanup uses of a SparkSession and its context; tasks run in the driver's process."""

    defaultParallelism = 2  # noqa: N815 - Spark's name

    @property
    def sparkContext(self):  # noqa: N802 - Spark's name
        return self

    def setJobGroup(self, group, description, interruptOnCancel):  # noqa: N802
        pass

    def cancelJobGroup(self, group):  # noqa: N802
        pass

    def parallelize(self, tasks, parts):
        return _Tasks(tasks)


class _Tasks:
    def __init__(self, tasks):
        self.tasks = tasks

    def map(self, work):
        return _Tasks([lambda task=task: work(task) for task in self.tasks])

    def collect(self):
        return [task() for task in self.tasks]
