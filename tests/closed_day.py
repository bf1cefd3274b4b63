"""A session that is closed and proved, made by hand: messages in memory, their results joined by
nested loops, and the journal of a stream that had read them. Corrections of it run without Spark.

What a correction's parts get is what Spark would bring them: the decoders' blocks and the driver's,
by slot. Everything else is real: decoders, blocks, join, tables, files, commits.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spillway.cleanup.deferred import TopicSource
from spillway.corrections import job
from spillway.corrections.job import Corrected, CorrectionRequest, run_correction
from spillway.corrections.kept import SessionRevisions
from spillway.corrections.rows import Correction, KeptRevision, check
from spillway.corrections.task import AdditionTask, PartAdded, add_parts
from spillway.decode import compile_query, decode
from spillway.decode.chunks import Chunk
from spillway.decode.digest import partition_digest, value_digest
from spillway.engine.join.results import file_schema, result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.engine.wire.blocks import Block, from_batch, to_batch
from spillway.engine.wire.datafile import write_data_file
from spillway.kafka.reading import TopicRange
from spillway.stream.decoding import DecodeTask, decode_chunks
from spillway.stream.messages import MessageSource, ranges_of
from spillway.tables import SessionEvent, Warehouse
from spillway.verify import proof, tasks
from spillway.verify.proof import VerifyReport
from spillway_schemas.filenames import data_name
from spillway_schemas.journal import (
    Claim,
    Epoch,
    Genesis,
    PartitionCount,
    Prefix,
    Sealed,
    SealRequest,
    Topic,
)
from spillway_schemas.query import Query, load_query
from tests.new_warehouse import new_warehouse

DAY, NEXT = "2026-01-05", "2026-01-06"
AT = datetime(2026, 1, 5, 21, tzinfo=UTC)
AT_MS = round(AT.timestamp() * 1000)
BEGIN = datetime(2026, 1, 5, 15, tzinfo=UTC)
STREAMS = ("stock", "volume", "review")
PAYLOAD = {
    "stock": ("ts", "price", "currency"),
    "volume": ("ts", "shares"),
    "review": ("ts", "reviewer", "rating", "text"),
}
PARTITIONS = 2
Place = tuple[int, int]
"""Partition and offset."""
Result = tuple[Any, ...]
"""Symbol, then the place of each stream's row."""


@dataclass(frozen=True)
class Late:
    """A row: its stream, its key, and its time in minutes after `BEGIN`."""

    stream: str
    key: int
    minutes: int = 0

    def value(self, number: int) -> bytes:
        """Its message. `number` makes it another one than all others."""
        ts = (BEGIN + timedelta(minutes=self.minutes)).isoformat()
        body: dict[str, Any] = {"symbol": f"K{self.key}", "ts": ts}
        body |= {
            "stock": {"price": number / 4},
            "volume": {"shares": number},
            "review": {"reviewer": f"r{number}", "rating": 1 + number % 5},
        }[self.stream]
        return json.dumps(body).encode()


def correction_of(rows: Sequence[Late], salt: int, query: Query) -> Correction:
    """These rows as those of a file."""
    found = Correction(
        topics=pa.array([query.topic(row.stream) for row in rows], pa.string()),
        values=pa.array([row.value(1000 * salt + n) for n, row in enumerate(rows)], pa.binary()),
        offsets=np.arange(1, len(rows) + 1),
        source=f"late-{salt}.jsonl",
    )
    check(found, compile_query(query).streams, found.source)
    return found


def joined(query: Query, rows: Mapping[str, Sequence[tuple[Place, bytes]]]) -> Counter[Result]:
    """The slow reference: every combination of rows of one symbol, within the window if any."""
    width = timedelta(hours=1) if query.spans[0] is not None else None
    by_key: dict[str, list[list[tuple[Place, datetime]]]] = {}
    for i, stream in enumerate(STREAMS):
        for place, value in rows[stream]:
            body = json.loads(value)
            own = by_key.setdefault(body["symbol"], [[] for _ in STREAMS])
            own[i].append((place, datetime.fromisoformat(body["ts"])))
    found: Counter[Result] = Counter()
    for symbol, sides in by_key.items():
        for combination in itertools.product(*sides):
            times = [at for _, at in combination]
            if width is None or max(times) - min(times) <= width:
                found[(symbol, *(place for place, _ in combination))] += 1
    return found


@dataclass
class ClosedDay:
    """The day. `rows`: those that its stream has kept, by stream, and `end`: where it ends."""

    root: str
    query: Query
    rows: dict[str, list[tuple[Place, bytes]]]
    end: dict[str, list[int]]
    values: dict[str, list[list[bytes | None]]]
    """By topic and partition, those of the next session behind them."""
    ids: dict[str, str]
    """Of topics that are on a broker."""
    cluster_id: str = "c"
    """Of a broker that has them."""
    lost: str = ""
    """What Kafka does not hold any more, in words."""

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse as a reader opens it."""
        return Warehouse(self.root, fsync=False)

    def correct(
        self, correction: Correction | None, warehouse: Warehouse | None = None, **more: Any
    ) -> Corrected:
        """Run a correction without Spark."""
        wanted = None
        if correction is not None:
            wanted = CorrectionRequest(lambda _: correction, "they came late", "ada")
        with self.without_servers():
            return run_correction(
                lambda: None,
                warehouse or self.warehouse,
                compile_query(self.query).spec,
                DAY,
                TopicSource(compile_query(self.query).streams, MessageSource("b:1", {})),
                wanted,
                fingerprint=self.query.fingerprint,
                **more,
            )

    @contextmanager
    def without_servers(self) -> Iterator[None]:
        """Kafka's answers and Spark's shuffle from memory."""
        with (
            patch.object(TopicSource, "gone", lambda *_: self.lost),
            patch.object(job, "salts", lambda _, slots: tuple(range(100, 100 + slots))),
            patch.object(job, "parts_added", self._parts_added),
        ):
            yield

    def prove(self) -> VerifyReport:
        """What the proof says, of a query that it proves without Spark."""
        with (
            patch.object(proof, "demand_listener", lambda _: None),
            patch.object(proof, "cluster", lambda *_: nullcontext(None)),
            patch.object(proof, "demand_cluster", lambda *_: None),
            patch.object(proof, "input_losses", lambda *_: []),
            patch.object(tasks, "read_messages", self.chunks),
        ):
            return proof.verify(
                lambda: pytest.fail("a key fails"), self.warehouse, self.query, DAY, bootstrap="b:1"
            )

    def chunks(self, _: Any, wanted: Iterable[TopicRange]) -> Iterator[Chunk]:
        """In the place of Kafka's messages."""
        for each in wanted:
            offsets = np.arange(each.begin, each.end)
            values = self.values[each.topic][each.partition][each.begin : each.end]
            array = pa.array(values, pa.large_binary())
            yield Chunk(each.topic, each.partition, array, offsets, offsets * 0 + AT_MS)

    def _parts_added(
        self,
        _: Any,
        source: TopicSource,
        decode: DecodeTask,
        task: AdditionTask,
        own: Sequence[Any],
    ) -> list[PartAdded]:
        assert decode.restore is not None
        again = decode.restore
        read = decode_chunks(decode, self.chunks(None, ranges_of(again.read_from, again.read_to)))
        by_slot: dict[int, list[Block]] = {}
        for batch in itertools.chain(read, own):
            for block in from_batch(batch):
                by_slot.setdefault(block.slot, []).append(block)
        return [
            PartAdded.model_validate_json(text)
            for blocks in by_slot.values()
            for batch in add_parts(task, [to_batch(blocks)])
            for text in batch.column(0).to_pylist()
        ]

    def enlarged(self, corrections: Mapping[int, Correction]) -> Counter[Result]:
        """The join of the day's rows with those of corrections, by their revisions."""
        rows = {stream: list(some) for stream, some in self.rows.items()}
        stream_of = {self.query.topic(stream): stream for stream in STREAMS}
        for revision, each in corrections.items():
            told = (each.topics.to_pylist(), each.offsets.tolist(), each.values.to_pylist())
            for topic, offset, value in zip(*told, strict=True):
                rows[stream_of[topic]].append(((-revision, offset), value))
        return joined(self.query, rows)

    def results(self) -> Counter[tuple[str, Result]]:
        """What the table holds: phase, and the coordinates."""
        import deltalake

        path = self.warehouse.folder("results").path()
        found: Counter[tuple[str, Result]] = Counter()
        for row in deltalake.DeltaTable(path).to_pyarrow_table().to_pylist():
            places = [(row[f"{s}_partition"], row[f"{s}_offset"]) for s in STREAMS]
            found[row["phase"], (row["symbol"], *places)] += 1
        return found

    def revisions(self) -> list[KeptRevision]:
        """Those whose rows are kept."""
        return SessionRevisions(self.warehouse, DAY, 0).kept()


def make_closed_day(
    root: str,
    rows: Sequence[Late],
    *,
    query: str | Query = "symbol",
    proved: bool = True,
    ids: Mapping[str, str] | None = None,
    cluster_id: str = "c",
) -> ClosedDay:
    """The day of these rows, in two epochs, with a row that breaks its contract in each partition
    and rows of the next session behind the end. `ids`, `cluster_id`: of a broker that has its
    topics."""
    text = load_query(query) if isinstance(query, str) else query
    topics = {stream: text.topic(stream) for stream in STREAMS}
    values: dict[str, list[list[bytes | None]]] = {t: [[b"{"], [None]] for t in topics.values()}
    held: dict[str, list[tuple[Place, bytes]]] = {s: [] for s in STREAMS}
    for number, row in enumerate(rows):
        partition = number % PARTITIONS
        own = values[topics[row.stream]][partition]
        place = (partition, len(own))
        held[row.stream].append((place, row.value(number)))
        own.append(row.value(number))
    end = {topic: [len(some) for some in parts] for topic, parts in values.items()}
    for stream, topic in topics.items():
        values[topic][0].append(Late(stream, 1).value(9999))
    day = ClosedDay(root, text, held, end, values, dict(ids or {}), cluster_id)
    _write(day, proved)
    return day


def _write(day: ClosedDay, proved: bool) -> None:
    compiled = compile_query(day.query)
    spec = compiled.spec
    w = new_warehouse(day.root, result_schema(spec), spill=spill_schema(spec))
    start = {topic: [0] * PARTITIONS for topic in day.end}
    mark = {topic: [end // 2 for end in ends] for topic, ends in day.end.items()}
    beyond = {topic: [len(some) for some in parts] for topic, parts in day.values.items()}
    at = AT.isoformat()
    w.journal.append(
        Genesis(
            warehouse_id="w",
            cluster_id=day.cluster_id,
            topics=[Topic(name=t, id=day.ids.get(t, t), partitions=PARTITIONS) for t in day.end],
            query=day.query.fingerprint,
            session=DAY,
            start=start,
            start_rule="earliest",
            inputs=3,
            groups=[(Prefix(0, 0), 0)],
            event_time=day.query.event_time,
            written_at=at,
        )
    )
    w.journal.append(Claim(n=1, term=1, driver="d", written_at=at))
    expected = joined(day.query, day.rows)
    record = write_data_file(
        w.folder("results"),
        "results",
        data_name(1, uuid.uuid4().hex[:12], 0, 0),
        file_schema(spec),
        [_result_rows(day, expected, file_schema(spec))],
        {"session_date": DAY},
    )
    schema = w.table("quarantine").definition.file_schema
    bad = [
        {
            "topic": topic,
            "partition": partition,
            "offset": 0,
            "reason": "bad",
            "value": parts[partition][0],
            "kafka_timestamp": AT,
            "epoch": 1,
            "written_at": AT,
        }
        for topic, parts in day.values.items()
        for partition in range(PARTITIONS)
    ]
    quarantined = write_data_file(
        w.folder("quarantine"),
        "quarantine",
        data_name(1, uuid.uuid4().hex[:12], 0, 1),
        schema,
        [pa.Table.from_pylist(bad, schema=schema)],
        {"session_date": DAY},
    )
    assert quarantined is not None
    sealed = Sealed(
        session=DAY,
        epoch=1,
        start=start,
        end=day.end,
        ranges=[],
        results=expected.total(),
        spilled_rows=0,
        generations=0,
    )
    for epoch, (first, last) in enumerate(((start, mark), (mark, beyond))):
        done = epoch == 1
        w.journal.append(
            Epoch(
                n=epoch + 2,
                term=1,
                epoch=epoch,
                session=NEXT if done else DAY,
                end=last,
                manifests={0: f"m{epoch}"},
                seal=SealRequest(session=DAY, end=day.end, next_session=NEXT, command="s")
                if done
                else None,
                files=[f for f in (record, quarantined) if f] if done else [],
                cuts=[],
                read=_counts(day, compiled.streams, first, last),
                sealed=sealed if done else None,
                results={DAY: expected.total()} if done else {},
                slots=[],
                started_at=at,
                written_at=at,
            )
        )
    if record:
        w.apply("results", 1, [record])
    w.apply("quarantine", 1, [quarantined])
    w.sessions.append(SessionEvent(session=DAY, event="cleaned", cleanup=0))
    if proved:
        w.sessions.append(SessionEvent(session=DAY, event="verified", complete=True))


def _counts(day: ClosedDay, plans: Any, first: Any, last: Any) -> list[PartitionCount]:
    """What an epoch has read."""
    found = []
    for plan in plans:
        for partition in range(PARTITIONS):
            begin, end = first[plan.topic][partition], last[plan.topic][partition]
            values = pa.array(day.values[plan.topic][partition][begin:end], pa.binary())
            found.append(
                PartitionCount(
                    topic=plan.topic,
                    partition=partition,
                    rows=end - begin,
                    rejected=len(decode(plan, values).rejected),
                    filtered=0,
                    digest=partition_digest(value_digest(values), np.arange(begin, end)),
                )
            )
    return found


def _result_rows(day: ClosedDay, expected: Counter[Result], schema: pa.Schema) -> pa.Table:
    bodies = {(s, place): json.loads(value) for s in STREAMS for place, value in day.rows[s]}
    rows = []
    for (symbol, *places), n in expected.items():
        row: dict[str, Any] = {"symbol": symbol}
        for stream, place in zip(STREAMS, places, strict=True):
            for name in PAYLOAD[stream]:
                value = bodies[stream, place].get(name)
                row[f"{stream}_{name}"] = datetime.fromisoformat(value) if name == "ts" else value
            row[f"{stream}_partition"], row[f"{stream}_offset"] = place
        rows += [row | {"epoch": 1, "phase": "run-time", "committed_at": AT}] * n
    return pa.Table.from_pylist(rows, schema=schema)
