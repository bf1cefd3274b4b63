"""Decoding without Spark: Arrow batches of Kafka's rows in, exact blocks out.

What is expected is worked out row by row, from the definitions; every boundary is tried at every
offset, so that one that is off by one is noticed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spillway.decode import compile_streams, partition_digest, tree_spec, value_digest
from spillway.engine.groups import GroupMap
from spillway.engine.join.hashing import xxhash64
from spillway.engine.wire.blocks import (
    Block,
    decode_counts,
    decode_rejected,
    decode_rows,
    from_batch,
)
from spillway.protocol.recovery import Restore, SessionRestore, Since
from spillway.sealed_input.decoding import decoded as verified
from spillway.stream.decoding import DecodeTask, decode_chunks, since_offsets
from spillway.worker_processes import keep_freed_memory
from spillway_schemas.journal import Offsets, PartitionCount, Prefix
from spillway_schemas.query import query_of
from spillway_schemas.tomlfile import parse_toml
from tests.chunked import COLUMNS, chunks
from tests.two_joins import TEXT, TWO_JOINS

QUERY = query_of(
    parse_toml(
        """
[streams.all]
topic = "t"
fields = { symbol = "string", n = "int" }
[streams.high]
filter = "n > 5"
fields = { symbol = "string", n = "int" }
[streams.other]
topic = "u"
fields = { symbol = "string", n = "int" }
[join]
inputs = ["all", "high", "other"]
on = ["symbol"]
""",
        Path("q.toml"),
    )
)
ALL, HIGH, OTHER = compile_streams(QUERY)
# Two readings of one topic, here of different filters.
STREAMS, SPEC = (ALL, replace(HIGH, topic="t"), OTHER), tree_spec(QUERY)
GROUPS = GroupMap([(Prefix(2, 0), 0), (Prefix(2, 1), 1), (Prefix(2, 2), 2), (Prefix(2, 3), 1)])
SALTS = (70, 71, 72)
HALVES = (Prefix(1, 0), Prefix(1, 1))
DAY, NEXT = "2026-01-05", "2026-01-06"

Row = tuple[str, int, int, bytes | None]
"""Topic, partition, offset, value."""
BAD: tuple[bytes | None, ...] = (b"oops", b'{"symbol":"A"}', None)


def rows_of(topic: str, partition: int, offsets: Sequence[int]) -> list[Row]:
    """Good values of several keys, every third one bad."""
    rows: list[Row] = []
    for i, offset in enumerate(offsets):
        good = b'{"symbol":"%c","n":%d}' % (65 + (i * 5 + partition) % 11, offset)
        rows.append((topic, partition, offset, BAD[i // 3 % 3] if i % 3 == 2 else good))
    return rows


def batches(rows: Sequence[Row], size: int) -> list[pa.RecordBatch]:
    made = []
    for begin in range(0, len(rows), size):
        topics, parts, offsets, values = zip(*rows[begin : begin + size], strict=True)
        columns = [
            pa.array(topics, pa.string()),
            pa.array(parts, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array(values, pa.binary()),
            pa.array([offset * 1_000 + 999 for offset in offsets], pa.timestamp("us", "UTC")),
        ]
        made += [pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))]
        made += [made[-1].slice(0, 0)]
    return made


def task(**more: Any) -> DecodeTask:
    facts: dict[str, Any] = {"session": DAY, "next_session": NEXT, "bound": None}
    return DecodeTask(SPEC, STREAMS, GROUPS, SALTS, **(facts | more))


def hash_of(symbol: str) -> int:
    return int(xxhash64([pa.array([symbol], pa.string())])[0])


def slot_of(symbol: str) -> int:
    return int(GROUPS.slots[hash_of(symbol) >> 62])


def found(given: DecodeTask, rows: Sequence[Row], size: int = 4) -> tuple[Counter[Any], list[Any]]:
    """(what blocks hold, one entry a row; counts in the order of their blocks)."""
    seen: Counter[Any] = Counter()
    counts: list[Any] = []
    for batch in decode_chunks(given, chunks(batches(rows, size))):
        for block in from_batch(batch):
            assert block.operator == 0
            slot = SALTS.index(block.slot)
            if block.kind == "count":
                counts.append((slot, block.input, decode_counts(block)))
            elif block.kind == "rejected":
                session, table = decode_rejected(block)
                assert _stream(block) == STREAMS[block.input].name
                seen.update(
                    ("rejected", slot, block.input, session, *row.values())
                    for row in table.to_pylist()
                )
            else:
                session, table = decode_rows(SPEC, block)
                assert _stream(block) == STREAMS[block.input].name
                keys = table.column("key_hash").to_pylist()
                assert keys == sorted(keys)
                assert keys == [hash_of(symbol) for symbol in table.column("symbol").to_pylist()]
                seen.update(
                    (block.kind, slot, block.input, session, *list(row.values())[1:])
                    for row in table.to_pylist()
                )
    return seen, counts


def _stream(block: Block) -> str:
    metadata = pa.ipc.open_stream(pa.py_buffer(block.data)).schema.metadata
    return str(metadata[b"stream"].decode())


def reason_of(value: bytes | None) -> str:
    if value is None:
        return "tombstone: the record has no value"
    return "n: missing" if value.startswith(b"{") else "not JSON: expected value at line 1 column 1"


def expected(rows: Sequence[Row], bound: Offsets | None) -> Counter[Any]:
    """New rows and rejected rows, by the definitions."""
    seen: Counter[Any] = Counter()
    for topic, partition, offset, value in rows:
        late = bound is not None and offset >= bound[topic][partition]
        session = NEXT if late else DAY
        for stream in STREAMS:
            if stream.topic != topic:
                continue
            if value in BAD:
                if stream.name == "high":  # the first reading of a stream has told it
                    continue
                slot = partition % 3
                place = (topic, partition, offset, reason_of(value), value, offset)
                seen["rejected", slot, stream.index, session, *place] += 1
                continue
            assert value is not None
            row = json.loads(value)
            if stream.name == "high" and row["n"] <= 5:
                continue
            slot = slot_of(row["symbol"])
            place = (row["symbol"], row["n"], partition, offset, offset)
            seen["new", slot, stream.index, session, *place] += 1
    return seen


def count_of(rows: Sequence[Row], topic: str, partition: int) -> PartitionCount:
    mine = [row for row in rows if row[:2] == (topic, partition)]
    values = pa.array([value for *_, value in mine], pa.binary())
    offsets = pa.array([offset for _, _, offset, _ in mine], pa.int64()).to_numpy()
    good = [row for row in mine if row[3] not in BAD]
    return PartitionCount(
        topic=topic,
        partition=partition,
        rows=len(mine),
        rejected=len(mine) - len(good),
        filtered=0,
        bytes=sum(len(value or b"") for *_, value in mine),
        digest=partition_digest(value_digest(values), offsets),
    )


OFFSETS = (3, 4, 5, 7, 8, 9, 10, 12, 15)
ROWS = [
    *rows_of("t", 0, OFFSETS),
    *rows_of("t", 1, OFFSETS[:4]),
    *rows_of("u", 1, OFFSETS[2:]),
    *rows_of("t", 5, OFFSETS[:2]),
]
SLOT_OF_PARTITION = {("t", 0): 0, ("t", 1): 1, ("u", 1): 1, ("t", 5): 2}


@pytest.mark.parametrize("size", [1, 4, 100])
def test_rows_go_to_the_slots_of_their_keys_with_their_coordinates(size: int) -> None:
    seen, counts = found(task(), ROWS, size)
    assert seen == expected(ROWS, None)
    assert {slot for kind, slot, *_ in seen if kind == "new"} == {0, 1, 2}
    assert counts == [
        (slot, 0, [count_of(ROWS, topic, part)])  # a topic that feeds two leaves is read once
        for (topic, part), slot in SLOT_OF_PARTITION.items()
    ]


def test_the_proof_keeps_freed_memory_as_the_stream_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the time of decoding is spent on pages that are given back and made anew."""
    asked: list[str] = []
    monkeypatch.setattr(
        "spillway.sealed_input.decoding.keep_freed_memory", lambda: asked.append("proof")
    )
    assert list(verified(ALL, pa.schema([]), None, [])) == []
    monkeypatch.setattr("spillway.stream.process.keep_freed_memory", lambda: asked.append("stream"))
    monkeypatch.setattr("spillway.stream.process._freezes", 0)
    for _ in range(2):
        assert list(decode_chunks(task(), [])) == []
    assert asked == ["proof", "stream"]


def test_what_is_freed_is_large_and_no_more_than_glibc_learns_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block that is freed raises what glibc keeps, unless it has 32 MiB or more."""
    empty, made = np.empty, []

    def noted(*arguments: Any) -> Any:
        made.append(empty(*arguments))
        return made[-1]

    monkeypatch.setattr(np, "empty", noted)
    keep_freed_memory()
    assert [each.nbytes for each in made] == [16 << 20]


def test_no_rows_give_no_blocks() -> None:
    assert list(decode_chunks(task(), [])) == []
    assert list(decode_chunks(task(), chunks([batches(ROWS, 4)[1]]))) == []


@pytest.mark.parametrize("bound", range(2, 17))
def test_rows_at_or_beyond_the_end_are_the_next_sessions(bound: int) -> None:
    ends = {"t": [bound, 5, 0, 0, 0, 4], "u": [99, bound]}
    for size in (2, 100):
        seen, counts = found(task(bound=ends), ROWS, size)
        assert seen == expected(ROWS, ends)
        assert [each for _, _, each in counts] == [each for _, _, each in found(task(), ROWS)[1]]


def test_tombstones_have_no_bytes() -> None:
    rows: list[Row] = [("u", 0, offset, None) for offset in OFFSETS]
    _, [(_, _, [count])] = found(task(), rows)
    assert (count.rows, count.rejected, count.bytes) == (len(OFFSETS), len(OFFSETS), 0)


def test_rejected_rows_alone_are_cut_at_the_end_too() -> None:
    rows: list[Row] = [("u", 0, offset, b"oops") for offset in OFFSETS]
    for bound in range(2, 17):
        ends = {"u": [bound]}
        assert found(task(bound=ends), rows)[0] == expected(rows, ends)


def restored(rows: Sequence[Row], restore: Restore) -> Counter[Any]:
    """What a restore brings back, by the definitions."""
    seen: Counter[Any] = Counter()
    for key, n in expected(rows, None).items():
        kind, slot, input_, _, symbol, number, partition, offset, *_ = key
        if kind != "new" or slot not in restore.slots:
            continue
        topic = STREAMS[input_].topic
        for session in restore.sessions:
            first = session.start[topic][partition]
            for cut in session.cuts:
                ends = cut.start.get(topic, [])
                if cut.range.lo <= hash_of(symbol) < cut.range.hi and partition < len(ends):
                    first = max(first, ends[partition])
            if first <= offset < session.end[topic][partition]:
                place = (symbol, number, partition, offset)
                seen["restore", slot, input_, session.session, *place] += n
    return seen


def offsets_at(t: int, u: int) -> Offsets:
    return {"t": [t, t, 0, 0, 0, t], "u": [0, u]}


@pytest.mark.parametrize("slots", [{0}, {1}, {2}, {0, 1, 2}])
def test_a_restore_brings_back_what_was_in_memory_of_the_lost_slots(slots: set[int]) -> None:
    for start in (3, 5, 8):
        for end in range(start, 17, 2):
            # The whole key space was cut at 8 in one session; a quarter of it, and then an eighth
            # of it, in the other.
            first = SessionRestore(DAY, offsets_at(start, start), offsets_at(end, end), ())
            cuts = (
                Since(Prefix(2, 1), offsets_at(end + 1, end)),
                Since(Prefix(3, 3), {"t": [end + 2]}),
            )
            second = SessionRestore(NEXT, offsets_at(end, end), offsets_at(16, 12), cuts)
            restore = Restore(frozenset(slots), {}, {}, (first, second), ())
            seen, counts = found(task(restore=restore, bound=offsets_at(9, 9)), ROWS)
            assert seen == restored(ROWS, restore)
            assert [(slot, again) for slot, again, _ in counts] == [
                (slot, 1) for slot in SLOT_OF_PARTITION.values()
            ]


def test_a_restore_reads_rejected_rows_but_does_not_report_them_again() -> None:
    ends = offsets_at(99, 99)
    everything = SessionRestore(DAY, offsets_at(0, 0), ends, ())
    restore = Restore(frozenset({0, 1, 2}), {}, {}, (everything,), ())
    seen, counts = found(task(restore=restore), ROWS)
    assert {kind for kind, *_ in seen} == {"restore"}
    assert [each for *_, each in counts] == [each for *_, each in found(task(), ROWS)[1]]


def test_an_edge_of_a_range_belongs_to_the_range_above_it() -> None:
    cut = Prefix(2, 1)
    session = SessionRestore(DAY, {"t": [3]}, {"t": [99]}, (Since(cut, {"t": [8]}),))
    edges = np.array([0, cut.lo - 1, cut.lo, cut.hi - 1, cut.hi, 2**64 - 1], dtype=np.uint64)
    assert since_offsets(session, "t", 0)(edges).tolist() == [3, 3, 8, 8, 3, 3]
    last = SessionRestore(DAY, {"t": [3]}, {"t": [99]}, (Since(Prefix(2, 3), {"t": [8]}),))
    assert since_offsets(last, "t", 0)(edges).tolist() == [3, 3, 3, 3, 3, 8]


def test_a_tree_s_rows_go_to_the_joins_that_read_them() -> None:
    """By the hash of that join's key, in its space; what is no row goes to the root's step."""
    query = query_of(parse_toml(TEXT, Path("q.toml")))
    spec, streams = TWO_JOINS, compile_streams(query)
    groups = GroupMap([(space.part(half), half.value) for space in spec.spaces for half in HALVES])
    given = DecodeTask(spec, streams, groups, SALTS, session=DAY, next_session=NEXT, bound=None)
    values = {
        "a": [b'{"k":%d,"v":"x"}' % n for n in range(20)],
        "b": [b'{"k":%d,"c":%d}' % (n, n % 7) for n in range(20)],
        "d": [b'{"c":%d,"w":"y"}' % n for n in range(20)],
    }
    rows = [(topic, 0, n, value) for topic, each in values.items() for n, value in enumerate(each)]
    rows += [("b", 0, 20, b"oops")]
    seen: Counter[str] = Counter()
    for batch in decode_chunks(given, chunks(batches(rows, 7))):
        for block in from_batch(batch):
            if block.kind != "new":
                assert block.operator == 1
                seen[block.kind] += block.kind == "rejected"
                continue
            (leaf,) = [each for each in streams if each.index == block.input]
            join = spec.operators[block.input]
            assert (block.operator, _stream(block)) == (join, leaf.name)
            _, table = decode_rows(spec, block)
            hashes = table.column("key_hash").to_numpy()
            keys = table.columns[1 : 1 + len(leaf.keys)]
            assert hashes.tolist() == spec.hashes(join, keys).tolist()
            assert all(spec.spaces[join].lo <= h < spec.spaces[join].hi for h in hashes.tolist())
            assert set(groups.slot_of(hashes).tolist()) == {SALTS.index(block.slot)}
            seen[leaf.name] += len(hashes)
    assert seen == {"a": 20, "b": 20, "d": 20, "rejected": 1, "count": 0}


# --------------------------------------------------------------------------------------- verify


def test_verify_decodes_as_the_stream_does() -> None:
    stream = STREAMS[2]
    rows = rows_of("u", 3, OFFSETS)
    fields = [*stream.keys, *stream.payload]
    schema = pa.schema([
        *(field.with_nullable(True) for field in fields),
        ("partition", pa.int32()), ("offset", pa.int64()), ("kept", pa.bool_()),
    ])  # fmt: skip
    made = pa.Table.from_batches(
        verified(stream, schema, None, chunks(batches(rows, 4))), schema
    ).to_pylist()
    seen: Counter[Any] = Counter()
    for symbol, n, partition, offset, kept in (tuple(row.values()) for row in made):
        assert kept == (symbol is not None)
        seen[
            ("new", symbol, n, partition, offset) if kept else ("rejected", partition, offset)
        ] += 1
    wanted: Counter[Any] = Counter()
    for kind, _, _, _, *place in expected(rows, None):
        wanted[(kind, *(place[:4] if kind == "new" else place[1:3]))] += 1
    assert seen == wanted
