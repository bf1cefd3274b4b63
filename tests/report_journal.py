"""A made-up trading day as journal entries, for tests of what people look at.

The entries are valid (`spillway.protocol.state.replay` takes them), and what they add up to is
known, because it is counted here while they are made. Nothing of `spillway.report` is used.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pyarrow as pa

from spillway.engine.join.results import result_schema
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.wire.datafile import write_data_file
from spillway.readmodel.kept import followed
from spillway.readmodel.model import ReadModel
from spillway.tables import SessionEvent, Warehouse
from spillway.tables.journal import journal_row
from spillway_schemas.hash_space import ROOT, join_of, spaces
from spillway_schemas.journal import (
    DELAY_EDGES_MS,
    Claim,
    Cut,
    Epoch,
    FileRecord,
    Genesis,
    Move,
    PartitionCount,
    Prefix,
    Sealed,
    SealRequest,
    SlotTotals,
    Topic,
    entry_texts,
)
from spillway_schemas.query import load_query
from tests.new_warehouse import new_warehouse

TOPICS = ("stock", "volume", "review")
DAY, NEXT = "2026-01-05", "2026-01-06"
BEGAN = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
QUERY = load_query("symbol")
"""The default one, which the settings name when nobody says otherwise."""
SPEC = one_join(
    JoinSpec(
        operator=0,
        keys=pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
        inputs=tuple(InputSpec(name, pa.schema([("value", pa.int64())])) for name in TOPICS),
    )
)


@dataclass
class Made:
    """Entries and what they add up to."""

    entries: list = field(default_factory=list)
    rows: Counter = field(default_factory=Counter)
    """Per (session, topic)."""
    results: Counter = field(default_factory=Counter)
    rejected: int = 0
    spills: int = 0
    spilled_bytes: int = 0
    overflows: int = 0
    flushed_bytes: int = 0
    returned_bytes: int = 0
    cuts: Counter = field(default_factory=Counter)
    peak: int = 0
    end: dict = field(default_factory=dict)
    spill_epochs: list = field(default_factory=list)
    sealed_epoch: int = -1

    @property
    def last(self) -> Epoch:
        return self.entries[-1]

    def now(self) -> datetime:
        return datetime.fromisoformat(self.last.written_at)


def make_day(epochs: int = 40, **given: Any) -> Made:
    """A day of `epochs` epochs; with `seal_after`, rows run past the end of DAY into NEXT.

    What is given: see `_day`. The lists and counters are the caller's own.
    """
    return Made(**{name: copy(value) for name, value in vars(_day(epochs, **given)).items()})


@cache
def _day(
    epochs: int,
    *,
    slots: int = 2,
    groups_depth: int = 4,
    partitions: int = 2,
    rows: int = 100,
    budget: int = 1 << 20,
    seal_after: int | None = None,
    files: int = 0,
    seed: int = 1,
    epoch_s: float = 2.0,
    query: str = QUERY.fingerprint,
    joins: tuple[str, ...] = ("join",),
    parents: tuple[int, ...] = (ROOT,),
) -> Made:
    rng = random.Random(seed)
    made = Made()
    count = 1 << groups_depth
    groups = [
        (space.part(Prefix(groups_depth, v)), v * slots // count)
        for space in spaces(len(joins))
        for v in range(count)
    ]
    made.entries.append(
        Genesis(
            warehouse_id="w" * 8,
            cluster_id="c",
            topics=[Topic(name=t, id=t, partitions=partitions) for t in TOPICS],
            query=query,
            session=DAY,
            start={t: [10] * partitions for t in TOPICS},
            start_rule="earliest",
            inputs=3,
            groups=groups,
            parents=list(parents),
            joins=list(joins),
            written_at=BEGAN.isoformat(),
        )
    )
    made.entries.append(Claim(n=1, term=1, driver="host/1", written_at=BEGAN.isoformat()))
    end = {t: [10] * partitions for t in TOPICS}
    state = [0] * slots
    session, seal = DAY, None
    for epoch in range(epochs):
        before = {t: list(e) for t, e in end.items()}
        new_seal = sealed = None
        if seal_after is not None and epoch == seal_after:
            # The end lies within what the next epochs read: partitions reach it at other times.
            stop = {t: [e + rng.randrange(1, 2 * rows) for e in ends] for t, ends in before.items()}
            new_seal = seal = SealRequest(session=DAY, end=stop, next_session=NEXT, command="s")
        read = []
        for topic in TOPICS:
            for partition in range(partitions):
                got = rng.randrange(rows // 2, rows * 2)
                bad = rng.randrange(0, 3)
                read.append(
                    PartitionCount(
                        topic=topic,
                        partition=partition,
                        rows=got,
                        rejected=bad,
                        filtered=0,
                        digest=rng.getrandbits(64),
                    )
                )
                a = end[topic][partition]
                end[topic][partition] = a + got
                made.rejected += bad
                inside = got
                if seal is not None:
                    inside = min(max(seal.end[topic][partition] - a, 0), got)
                made.rows[session, topic] += inside
                if seal is not None:
                    made.rows[seal.next_session, topic] += got - inside
        results = {session: rng.randrange(0, 500)}
        if seal is not None:
            results[seal.next_session] = rng.randrange(0, 50)
        made.results.update(results)
        sealing = seal is not None and all(
            e >= s for t in TOPICS for e, s in zip(end[t], seal.end[t], strict=True)
        )
        totals, cuts = [], []
        for slot in range(slots):
            state[slot] += rng.randrange(20_000, 60_000)
            spilled = overflow = returned = 0
            if sealing:
                spilled = state[slot]
                made.flushed_bytes += spilled
            elif state[slot] > 0.9 * budget:
                spilled = int(0.3 * state[slot])
                made.spills += 1
                overflow = spilled // 4 if made.spills % 3 == 0 else 0
                made.overflows += overflow > 0
                returned = spilled // 9
                made.returned_bytes += returned
                made.spilled_bytes += spilled
                made.spill_epochs.append((epoch, slot))
            if spilled:
                mine = [p for p, s in groups if s == slot]
                for prefix in mine if sealing else rng.sample(mine, max(1, len(mine) // 3)):
                    join = join_of(prefix, len(joins))
                    cuts.append(Cut(session=session, operator=join, range=prefix, epoch=epoch))
                    made.cuts[session] += 1
            state[slot] -= spilled
            if not sealing:
                made.peak = max(made.peak, state[slot])
            histogram = [0] * (len(DELAY_EDGES_MS) + 1)
            for bucket in rng.choices(range(9, 24), k=20):
                histogram[bucket] += 1
            step = {"load": 0.02, "install": 0.01, "join": 0.2 + rng.random() / 5, "write": 0.1}
            step |= {"spill": 0.15 if spilled else 0.0, "merge": 0.05, "manifest": 0.02}
            totals.append(
                SlotTotals(
                    slot=slot,
                    host="host",
                    budget_bytes=budget,
                    state_bytes=state[slot],
                    folder_bytes=int(state[slot] * 1.1),
                    rows=state[slot] // 31,
                    results=sum(results.values()) // slots,
                    spilled_bytes=spilled,
                    overflow_bytes=overflow,
                    spilled_rows=spilled // 31,
                    returned_bytes=returned,
                    returned_rows=returned // 31,
                    groups=len(groups) // slots,
                    busy_s=sum(step.values()),
                    seconds=step,
                    delay_ms=histogram,
                )
            )
        if sealing:
            sealed = Sealed(
                session=DAY,
                epoch=epoch,
                start={t: [10] * partitions for t in TOPICS},
                end=seal.end,
                ranges=[s.part(Prefix(1, v)) for s in spaces(len(joins)) for v in (0, 1)],
                results=made.results[DAY],
                spilled_rows=made.spilled_bytes // 31,
                generations=made.cuts[DAY],
            )
            made.sealed_epoch = epoch
        began = BEGAN + timedelta(seconds=epoch * epoch_s)
        whole = 0.9 + 0.3 * rng.random()
        made.entries.append(
            Epoch(
                n=len(made.entries),
                term=1,
                epoch=epoch,
                session=NEXT if sealing else session,
                end={t: list(e) for t, e in end.items()},
                manifests=dict.fromkeys(range(slots), f"m{epoch}"),
                files=[_file_record(k) for k in range(files)],
                cuts=cuts,
                read=read,
                seal=new_seal,
                sealed=sealed,
                results=results,
                spilled_rows={session: sum(t.spilled_rows for t in totals)},
                slots=totals,
                started_at=began.isoformat(timespec="milliseconds"),
                written_at=(began + timedelta(seconds=whole)).isoformat(timespec="milliseconds"),
                seconds={"job": whole - 0.1},
            )
        )
        if sealing:
            session, seal = NEXT, None
    made.end = end
    return made


def withdraw_a_seal(made: Made) -> Made:
    """Have a day's seal accepted in epoch 10, and withdrawn before a row lay beyond it.

    Somebody tries to withdraw it once more in the epoch after. The seal named an end far ahead.
    """
    base = next(i for i, entry in enumerate(made.entries) if isinstance(entry, Epoch))
    ahead = {topic: [10**6] * len(ends) for topic, ends in made.end.items()}
    seal = SealRequest(session=DAY, end=ahead, next_session=NEXT, command="s")
    asked = {"id": "s", "kind": "seal", "obeyed": True, "reason": "close", "by": "alice"}
    back = {"kind": "withdraw", "by": "bob"}
    obeyed = {**back, "id": "w1", "obeyed": True, "reason": "too early"}
    late = {**back, "id": "w2", "obeyed": False, "reason": f"no seal of {DAY} is pending"}
    for epoch, change in (
        (10, {"seal": seal.model_dump(), "commands": [asked]}),
        (12, {"withdrawn": "s", "commands": [obeyed]}),
        (13, {"commands": [late]}),
    ):
        entry = made.entries[base + epoch]
        made.entries[base + epoch] = Epoch.model_validate({**entry.model_dump(), **change})
    return made


def _file_record(k: int) -> FileRecord:
    columns = [f"column_{i}" for i in range(12)]
    bounds = dict.fromkeys(columns, "2026-01-05T14:30:00.000Z")
    stats = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": {}}
    return FileRecord(
        table="results",
        path=f"session_date={DAY}/0-abcdef-0-{k}.parquet",
        bytes=1,
        rows=1,
        digest="sha256:" + "0" * 64,
        partition={"session_date": DAY},
        stats=json.dumps(stats),
    )


def open_warehouse(root: str) -> Warehouse:
    """A new warehouse at `root`."""
    return new_warehouse(root, result_schema(SPEC))


def carry_out(made: Made, epoch: int, moves: list[Move], **more: Any) -> None:
    """Have an epoch move groups; `more`: other fields of its entry."""
    number = next(n for n, e in enumerate(made.entries) if getattr(e, "epoch", None) == epoch)
    state = model_of(made.entries[:number]).state
    groups = {**dict(state.groups), **{move.group: move.to for move in moves}}
    changes = {"moved": moves, "assignment": sorted(groups.items()), **more}
    made.entries[number] = made.entries[number].model_copy(update=changes)


def model_of(entries: Iterable[Genesis | Claim | Epoch]) -> ReadModel:
    """What follows from some entries, the genesis among them."""
    model = followed(None, ((entry_texts(entry)[0], entry) for entry in entries))
    assert model is not None
    return model


def fill_journal(warehouse: Warehouse, entries: list) -> None:
    """Append all entries in one commit (one by one would take 3 ms each)."""
    table = warehouse.table("journal")
    first = warehouse.journal.last_n() + 1
    rows = [
        {
            "n": e.n,
            **journal_row(e),
        }
        for e in entries
        if e.n >= first
    ]
    schema = table.definition.file_schema
    record = write_data_file(
        table.place,
        "journal",
        f"entry-{rows[-1]['n']}-synthetic.parquet",
        schema,
        [pa.Table.from_pylist(rows, schema=schema)],
    )
    table.commit([record], "journal", rows[-1]["n"])


def add_file(warehouse: Warehouse, name: str, path: str, epoch: int, table: pa.Table) -> None:
    """Write rows of one session as one data file and commit it as that epoch's."""
    definition = warehouse.table(name).definition
    by = definition.partition_by
    place = warehouse.folder(name)
    full = f"session_date={DAY}/{path}" if by else path
    partition = dict.fromkeys(by, DAY)
    record = write_data_file(place, name, full, definition.file_schema, [table], partition)
    assert record is not None
    warehouse.apply(name, epoch, [record])


def add_quarantine(warehouse: Warehouse, epoch: int, reasons: list[str]) -> None:
    """Quarantine one row for each reason."""
    schema = warehouse.table("quarantine").definition.file_schema
    rows = [
        {
            "topic": "stock",
            "partition": 0,
            "offset": k,
            "reason": reason,
            "value": b"\xff",
            "kafka_timestamp": BEGAN,
            "epoch": epoch,
            "written_at": BEGAN,
        }
        for k, reason in enumerate(reasons)
    ]
    add_file(
        warehouse,
        "quarantine",
        f"{epoch}-a-0-0.parquet",
        epoch,
        pa.Table.from_pylist(rows, schema=schema),
    )


def verdict(complete: bool, missing: int = 0, doubled: int = 0) -> SessionEvent:
    """A `verified` event of DAY."""
    return SessionEvent(
        session=DAY,
        event="verified",
        expected=1_000,
        run_time=900,
        cleanup=100 - missing,
        missing=missing,
        doubled=doubled,
        complete=complete,
        seconds=1.5,
    )
