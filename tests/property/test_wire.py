"""Kafka's record batches: whole columns against kafka-python's own reading, record by record."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from spillway.kafka import wire
from spillway.kafka.wire import BatchDamaged, committed, headers, read_records
from tests.lanes import explored

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
OURS = (NONE, GZIP, LZ4)
"""Codecs that kafka-python can write with the packages that are here."""

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset in its batch, timestamp, key, value, headers."""


def packed(
    base: int, rows: list[Row], codec: int = NONE, producer: int = -1, transactional: bool = False
) -> bytes:
    """A batch as kafka-python's producer writes it, at offset `base` as a broker sets it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=transactional,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        batch_size=1 << 30,
    )
    for offset, ms, key, value, headers_ in rows:
        assert builder.append(offset, ms, key, value, headers_) is not None
    return struct.pack(">q", base) + bytes(builder.build())[8:]


def sealed(batch: bytes) -> bytes:
    """A batch that was changed, with its checksum made anew."""
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def by_the_client(data: bytes) -> list[tuple[int, int, bytes | None]]:
    """Offset, timestamp and value of each record, as kafka-python reads them."""
    found = []
    for batch in MemoryRecords(data):
        found += [(r.offset, r.timestamp, r.value) for r in batch]
    return found


def by_columns(data: bytes) -> list[tuple[int, int, bytes | None]]:
    found = []
    for part in read_records(list(headers(data)), data):
        part.values.validate(full=True)
        rows = zip(
            part.offsets.tolist(), part.kafka_ms.tolist(), part.values.to_pylist(), strict=True
        )
        found += list(rows)
    return found


SIZES = st.one_of(st.integers(0, 14), st.integers(0, 300), st.sampled_from([8191, 8192, 40_000]))
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.builds(lambda size, byte: bytes([byte]) * size, SIZES, st.integers(0, 255)),
)
HEADERS = st.lists(
    st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=5))), max_size=2
)
KEYS = st.one_of(st.none(), st.binary(max_size=6))


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    base = draw(st.integers(0, 1 << 40))
    data = b""
    for _ in range(draw(st.integers(0, 4))):
        rows = draw(st.lists(st.tuples(VALUES, KEYS, HEADERS), min_size=1, max_size=6))
        repeats = draw(st.sampled_from([1, 1, 7, 60]))
        ms = draw(st.integers(0, 1 << 42))
        steps = draw(st.lists(st.integers(-5, 400), min_size=len(rows), max_size=len(rows)))
        listed: list[Row] = []
        for at in range(repeats):
            for (value, key, more), step in zip(rows, steps, strict=True):
                listed.append((len(listed), ms + at * step, key, value, more))
        data += packed(base, listed, draw(st.sampled_from(OURS)))
        base += len(listed)
    return data


@explored(
    10,
    40,
    soak=400,
    data=batches(),
    lane=st.sampled_from([64, 300, 16 << 10]),
    group=st.sampled_from([1, 64 << 20]),
)
def test_columns_are_what_the_client_reads(data: bytes, lane: int, group: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "lane_bytes", lambda _: lane)
        patch.setattr(wire, "GROUP_BYTES", group)
        assert by_columns(data) == by_the_client(data)


def rows_of(values: list[bytes | None]) -> list[Row]:
    return [(n, 1_000 + n, None, value, []) for n, value in enumerate(values)]


def test_values_that_look_like_records_mislead_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that holds whole records in a row: a guess falls into it and is found wrong."""
    inner = packed(0, rows_of([b"abcdefgh"] * 40))[61:]
    data = packed(7, rows_of([inner, b"x" * 90, inner * 3, None] * 5))
    monkeypatch.setattr(wire, "lane_bytes", lambda _: 128)
    cuts = wire._guesses(
        np.frombuffer(data, np.uint8), np.array([61]), np.array([len(data)])
    )[0].tolist()  # fmt: skip
    true = wire._walked(np.frombuffer(data, np.uint8), np.array([61]), np.array([len(data)]))[0]
    assert set(cuts) - set(true.tolist())  # so that this test says something
    assert by_columns(data) == by_the_client(data)


def test_lanes_are_found_where_records_are_like_messages() -> None:
    """What makes it fast: nearly every cut has its lane."""
    rng = np.random.default_rng(3)
    values = [b'{"symbol": "S%d", "price": %d}' % (n, rng.integers(1e6)) for n in range(30_000)]
    body = packed(0, rows_of(values))[61:]
    data = np.frombuffer(body, np.uint8)
    cuts, _ = wire._guesses(data, np.array([0]), np.array([len(body)]))
    assert len(cuts) >= 0.95 * (len(body) // wire.lane_bytes(len(body)) - 1)
    true = set(wire._walked(data, np.array([0]), np.array([len(body)]))[0].tolist())
    assert set(cuts.tolist()) <= true


def test_lanes_are_as_long_as_what_there_is_asks_for() -> None:
    """A small answer of an epoch takes short lanes: their number and their length both cost."""
    assert [wire.lane_bytes(size) for size in (0, 1 << 17, 300 << 10, 16 << 20)] == [
        2048, 2048, 3135, 23170,
    ]  # fmt: skip


def test_what_is_cut_off_is_left_for_the_next_time() -> None:
    first, second = packed(0, rows_of([b"a", b"b"])), packed(2, rows_of([b"c"]))
    whole = first + second
    for cut in range(len(first), len(whole)):
        assert [v for _, _, v in by_columns(whole[:cut])] == [b"a", b"b"]


def test_a_time_that_the_broker_set_is_of_the_whole_batch() -> None:
    batch = bytearray(packed(0, rows_of([b"a", b"b"])))
    batch[22] |= 0x08
    data = sealed(bytes(batch))
    assert [ms for _, ms, _ in by_columns(data)] == [1_001, 1_001]
    assert by_columns(data) == by_the_client(data)


def test_snappy_and_zstd_of_java() -> None:
    plain = packed(3, rows_of([b"value %d" % n for n in range(50)]))
    body = plain[61:]
    block = pa.Codec("snappy").compress(body[:100], asbytes=True)
    rest = pa.Codec("snappy").compress(body[100:], asbytes=True)
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    framed += b"".join(struct.pack(">i", len(each)) + each for each in (block, rest))
    for codec, packed_body in [
        (SNAPPY, pa.Codec("snappy").compress(body, asbytes=True)),
        (SNAPPY, framed),
        (ZSTD, pa.Codec("zstd").compress(body, asbytes=True)),
    ]:
        length = struct.pack(">i", len(plain) - 12 - len(body) + len(packed_body))
        batch = plain[:8] + length + plain[12:21] + struct.pack(">h", codec) + plain[23:61]
        assert by_columns(sealed(batch + packed_body)) == by_the_client(plain)


ABORT, COMMIT = 0, 1


def control(base: int, producer: int, kind: int) -> bytes:
    return control_of(base, producer, struct.pack(">hh", 0, kind))


def control_of(base: int, producer: int, key: bytes | None) -> bytes:
    batch = bytearray(packed(base, [(0, 5, key, b"\0" * 6, [])], NONE, producer, True))
    batch[22] |= 0x20
    return sealed(bytes(batch))


def test_messages_of_transactions_that_were_given_up_are_not_read() -> None:
    one, two = 11, 22
    data = (
        packed(0, rows_of([b"of one, given up"]), NONE, one, True)
        + packed(1, rows_of([b"of two, kept"]), NONE, two, True)
        + packed(2, rows_of([b"of nobody"]))
        + control(3, one, ABORT)
        + packed(4, rows_of([b"of one, kept"]), NONE, one, True)
        + control(5, two, COMMIT)
        + control(6, one, COMMIT)
        + packed(7, rows_of([b"of one, given up again"]), LZ4, one, True)
    )
    found = list(headers(data))
    kept = committed(found, data, [(one, 0), (one, 7)])
    values = [v for part in read_records(kept, data) for v in part.values.to_pylist()]
    assert values == [b"of two, kept", b"of nobody", b"of one, kept"]
    assert committed(found, data, [])[0].base_offset == 0


@pytest.mark.parametrize("kind", [-1, COMMIT, 2, 7])
def test_a_kind_of_control_batch_that_is_no_abort_gives_nothing_back(kind: int) -> None:
    """A kind of a later Kafka is passed over, as Kafka's own client does."""
    rows = [packed(at, rows_of([b"given up"]), NONE, 11, True) for at in (0, 2)]
    data = rows[0] + control(1, 11, kind) + rows[1] + control(3, 11, ABORT)
    assert not committed(list(headers(data)), data, [(11, 0)])


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_control_batch_without_a_kind_is_damaged(key: bytes | None) -> None:
    data = packed(0, rows_of([b"given up"]), NONE, 11, True) + control_of(1, 11, key)
    with pytest.raises(BatchDamaged, match="the control batch at offset 1 has no kind"):
        committed(list(headers(data)), data, [(11, 0)])


def test_the_end_of_a_transaction_may_have_lost_its_record() -> None:
    """As compaction leaves it, for the producer's sake: a header that tells of no record."""
    whole = control(1, 11, ABORT)
    head = whole[:8] + struct.pack(">i", 61 - 12) + whole[12:57] + struct.pack(">i", 0)
    data = packed(0, rows_of([b"a"])) + sealed(head) + packed(2, rows_of([b"b"]))
    kept = committed(list(headers(data)), data, [])
    values = [v for part in read_records(kept, data) for v in part.values.to_pylist()]
    assert values == [b"a", b"b"]


@pytest.mark.parametrize("codec", OURS)
def test_a_wrong_bit_anywhere_is_noticed(codec: int) -> None:
    data = packed(0, rows_of([b"value %d" % n for n in range(9)]), codec)
    for at in range(16, len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        with pytest.raises(BatchDamaged):
            by_columns(bytes(flipped))


def test_what_is_wrong_behind_a_right_checksum_is_an_error() -> None:
    """A writer's mistake. Never records that are none."""
    plain = packed(0, rows_of([b"value %d" % n for n in range(9)]))
    expected = by_the_client(plain)
    for at in range(61, len(plain)):
        for bit in range(8):
            wrong = bytearray(plain)
            wrong[at] ^= 1 << bit
            try:
                found = by_columns(sealed(bytes(wrong)))
            except BatchDamaged:
                continue
            assert len(found) == len(expected)
    header = next(headers(plain))
    with pytest.raises(BatchDamaged, match="more or fewer"):
        list(read_records([dataclasses.replace(header, records=8)], plain))


def test_each_batch_holds_as_many_records_as_it_tells() -> None:
    """Not both together: those of one would get the other's offsets."""
    data = packed(0, rows_of([b"a", b"b"])) + packed(2, rows_of([b"c", b"d"]))
    first, second = headers(data)
    told = [dataclasses.replace(first, records=1), dataclasses.replace(second, records=3)]
    with pytest.raises(BatchDamaged, match="more or fewer"):
        list(read_records(told, data))


def test_what_is_no_batch_is_said_in_words() -> None:
    plain = packed(0, rows_of([b"a"]))
    short = plain[:8] + struct.pack(">i", 20) + plain[12:32]
    with pytest.raises(BatchDamaged, match="shorter than its header"):
        list(headers(short))
    for codec in (5, 6, 7):
        unknown = plain[:21] + struct.pack(">h", codec) + plain[23:]
        with pytest.raises(BatchDamaged, match=f"unknown codec, {codec}"):
            by_columns(sealed(unknown))


@pytest.mark.parametrize("sizes", [(-1, -2), (-2, 2), (-(1 << 40), 2), (-1, -(1 << 63))])
def test_only_one_size_below_zero_means_anything(sizes: tuple[int, int]) -> None:
    """-1 is null, of a key and of a value."""
    with pytest.raises(BatchDamaged, match="longer than it says"):
        by_columns(with_record(*sizes))


@pytest.mark.parametrize("size", [4, 1 << 33, (1 << 62), (1 << 63) - 20, (1 << 63) - 1])
def test_no_size_of_a_value_points_outside_its_record(size: int) -> None:
    """Three bytes, and a size that is greater: sums with it may pass 2**63."""
    with pytest.raises(BatchDamaged, match="longer than it says"):
        by_columns(with_record(-1, size))


def with_record(key_size: int, size: int) -> bytes:
    """A batch of one record, which tells of these sizes and has three bytes."""
    from kafka.record.util import encode_varint

    record = bytearray(b"\0\0\0")  # attributes, both deltas
    encode_varint(key_size, record.append)
    encode_varint(size, record.append)
    record += b"ab\0"
    body = bytearray()
    encode_varint(len(record), body.append)
    head = packed(0, rows_of([b"x"]))[:61]
    length = struct.pack(">i", 61 - 12 + len(body) + len(record))
    return sealed(head[:8] + length + head[12:] + body + record)


def test_an_old_format_is_named() -> None:
    old = struct.pack(">qiIbb", 5, 30, 0, 1, 0) + b"\0" * 28
    with pytest.raises(BatchDamaged, match="older than Kafka"):
        list(headers(old))


def test_numbers_are_read_as_the_client_reads_them() -> None:
    from kafka.record.util import encode_varint

    numbers = [0, -1, 1, 63, -64, 64, 8191, 8192, 1 << 20, -(1 << 40), (1 << 63) - 1, -(1 << 63)]
    data = bytearray()
    places = []
    for number in numbers:
        places.append(len(data))
        encode_varint(number, data.append)
    found, behind = wire._varints(np.frombuffer(bytes(data), np.uint8), np.array(places))
    assert found.tolist() == numbers
    assert behind.tolist() == [*places[1:], len(data)]
