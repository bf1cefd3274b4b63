"""Record batches: kafka-python's own reader gives back what was put in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.record.util import encode_varint

from spillway.produce.records import batches, varint, varints
from spillway.produce.send import _builder

ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        st.integers(0, 2**42),
    ),
    max_size=60,
)


def read_back(partitions, keys, values, times, batch_bytes):
    found: dict[int, list] = {}
    for batch in batches(
        np.array(partitions, dtype=np.int32),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        np.array(times, dtype=np.int64),
        batch_bytes,
    ):
        records = _builder(batch, compression=0)
        records.close()
        reader = DefaultRecordBatch(bytes(records.buffer()))
        assert reader.validate_crc()
        got = list(reader)
        assert [r.offset for r in got] == list(range(batch.count))
        assert reader.max_timestamp == batch.max_ms == max(r.timestamp for r in got)
        found.setdefault(batch.partition, []).extend((r.key, r.value, r.timestamp) for r in got)
    return found


@given(ROWS, st.sampled_from([1, 64, 1000, 10**6]))
def test_rows_come_back_per_partition_in_order(rows, batch_bytes):
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    wanted: dict[int, list] = {}
    for partition, key, value, at in rows:
        wanted.setdefault(partition, []).append((key, value, at))
    assert read_back(*columns, batch_bytes) == wanted


def test_a_slice_of_a_larger_column_is_taken_as_it_is():
    values = pa.array([b"no", b"a", None, b"b", b"no"]).slice(1, 3)
    (batch,) = batches(
        np.zeros(3, np.int32), pa.array(["x", "y", "z"]), values, np.full(3, 5), 1000
    )
    records = _builder(batch, compression=0)
    records.close()
    got = [(r.key, r.value) for r in DefaultRecordBatch(bytes(records.buffer()))]
    assert got == [(b"x", b"a"), (b"y", None), (b"z", b"b")]


def test_the_bytes_are_those_of_kafka_pythons_own_builder():
    rows = [(b"k", b"v" * n, 1000 + n) for n in (0, 1, 63, 64, 200, 9000)]
    theirs = MemoryRecordsBuilder(2, 0, batch_size=10**6)
    for key, value, at in rows:
        theirs.append(at, key, value)
    theirs.close()
    (batch,) = batches(
        np.zeros(6, np.int32),
        pa.array([k for k, _, _ in rows]),
        pa.array([v for _, v, _ in rows]),
        np.array([t for _, _, t in rows]),
        10**6,
    )
    ours = _builder(batch, compression=0)
    ours.close()
    assert bytes(ours.buffer()) == bytes(theirs.buffer())


@given(st.lists(st.integers(-(2**40), 2**40) | st.integers(-5, 5000), min_size=1))
def test_varints_are_kafkas(numbers):
    def kafkas(number: int) -> bytes:
        out = bytearray()
        encode_varint(number, out.append)
        return bytes(out)

    wanted = [kafkas(n) for n in numbers]
    assert varints(np.array(numbers)).to_pylist() == wanted == [varint(n) for n in numbers]


def test_batches_are_about_as_large_as_asked():
    n = 1000
    made = list(
        batches(
            np.repeat(np.array([0, 1], np.int32), n // 2),
            pa.array(["k"] * n),
            pa.array([b"x" * 75] * n),
            np.zeros(n, np.int64),
            10_000,
        )
    )
    assert sum(b.count for b in made) == n
    assert max(b.count for b in made) == 100
    assert len(made) == 10
    assert {b.partition for b in made} == {0, 1}


def test_nothing_makes_no_batch():
    empty = np.zeros(0, np.int64)
    assert (
        list(
            batches(
                empty.astype(np.int32),
                pa.array([], pa.string()),
                pa.array([], pa.binary()),
                empty,
                100,
            )
        )
        == []
    )


def test_a_large_value_passes_whole():
    size = 5_000_000
    found = read_back([0, 0, 0], [b"a", b"b", b"c"], [b"1", b"x" * size, b"2"], [1, 2, 3], 1000)
    assert [len(v) for _, v, _ in found[0]] == [1, size, 1]
