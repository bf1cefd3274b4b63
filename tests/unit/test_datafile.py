"""Data files: what is written is what is described, and statistics never hide a row."""

import errno
import hashlib
import json
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.engine.wire import datafile
from spillway.engine.wire.datafile import (
    DataFileWriter,
    repeating_columns,
    string_above,
    write_data_file,
    write_data_files,
)
from spillway.storage import StorageError, folder

DAY = {"session_date": "2026-01-05"}


def stats_of(tmp_path, column, **options):
    table = pa.table({"x": column})
    record = write_data_file(
        folder(str(tmp_path)), "results", "a.parquet", table.schema, [table], **options
    )
    stats = json.loads(record.stats, parse_float=Decimal)
    return stats["minValues"].get("x"), stats["maxValues"].get("x"), stats["nullCount"]["x"]


def test_record_describes_the_file(tmp_path):
    table = pa.table({"k": ["a", "b", None], "v": [1, 2, 3]})
    record = write_data_file(
        folder(str(tmp_path)), "results", "a.parquet", table.schema, [table, table], DAY
    )
    data = (tmp_path / record.path).read_bytes()
    assert record.path == "session_date=2026-01-05/a.parquet"
    assert record.partition == DAY
    assert (record.table, record.rows, record.bytes) == ("results", 6, len(data))
    assert record.digest == "sha256:" + hashlib.sha256(data).hexdigest()
    read = pq.ParquetFile(tmp_path / record.path, page_checksum_verification=True).read()
    assert read.equals(pa.concat_tables([table, table]).combine_chunks())
    assert json.loads(record.stats)["numRecords"] == 6


def test_no_rows_no_file(tmp_path):
    schema = pa.schema([("x", pa.int64())])
    place = folder(str(tmp_path))
    assert write_data_file(place, "results", "a.parquet", schema, []) is None
    assert write_data_file(place, "results", "a.parquet", schema, [schema.empty_table()]) is None
    assert list(place.list()) == []


def test_a_taken_name_is_refused_and_left_alone(tmp_path):
    table = pa.table({"x": [1]})
    write_data_file(folder(str(tmp_path)), "t", "a.parquet", table.schema, [table])
    before = (tmp_path / "a.parquet").read_bytes()
    with pytest.raises(FileExistsError):
        write_data_file(folder(str(tmp_path)), "t", "a.parquet", table.schema, [table])
    assert (tmp_path / "a.parquet").read_bytes() == before


def test_a_failed_block_leaves_no_file(tmp_path):
    table = pa.table({"x": [1]})
    writer = DataFileWriter(
        folder(str(tmp_path)), "t", "a.parquet", table.schema, row_group_bytes=1
    )

    def fail():
        with writer:
            writer.write(table)
            assert (tmp_path / "a.parquet").exists()
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail()
    assert writer.record is None
    assert list(folder(str(tmp_path)).list()) == []


def test_rows_of_another_schema_are_refused(tmp_path):
    schema = pa.schema([("x", pa.int64())])
    with pytest.raises(ValueError, match="columns are not the file's"):
        write_data_file(folder(str(tmp_path)), "t", "a", schema, [pa.table({"x": ["1"]})])
    assert list(folder(str(tmp_path)).list()) == []


def test_row_groups_are_bounded_and_small_tables_are_gathered(tmp_path):
    small = [pa.table({"x": pa.array([i], pa.int64())}) for i in range(1000)]
    big = pa.table({"x": pa.array(range(100_000), pa.int64())})
    record = write_data_file(
        folder(str(tmp_path)),
        "t",
        "a.parquet",
        big.schema,
        [*small, big],
        row_group_bytes=80_000,
    )
    file = pq.ParquetFile(tmp_path / record.path)
    sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
    assert sum(sizes) == 101_000
    assert max(sizes) <= 20_000
    assert len(sizes) <= 12
    assert file.read()["x"].to_pylist() == [*range(1000), *range(100_000)]


def test_rolls_over_to_new_files(tmp_path):
    tables = [pa.table({"x": pa.array(range(k, k + 10_000), pa.int64())}) for k in range(50)]
    records = write_data_files(
        folder(str(tmp_path)),
        "t",
        "a-{}.parquet".format,
        tables[0].schema,
        iter(tables),
        row_group_bytes=10_000,
        file_bytes=300_000,
    )
    assert len(records) > 3
    assert [r.path for r in records] == [f"a-{k}.parquet" for k in range(len(records))]
    assert sum(r.rows for r in records) == 500_000
    assert max(r.bytes for r in records) < 500_000


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, None, -5], pa.int64()), (-5, 3, 1)),
        (pa.array([2**63 - 1, -(2**63)], pa.int64()), (-(2**63), 2**63 - 1, 0)),
        (pa.array([1.5, -0.25]), (Decimal("-0.25"), Decimal("1.5"), 0)),
        (pa.array([1.5, float("nan")]), (None, None, 0)),
        (pa.array([1.5, float("inf")]), (None, None, 0)),
        (pa.array([None, None], pa.int64()), (None, None, 2)),
        (pa.array(["b", "", None]), ("", "b", 1)),
        (pa.array(["é", "z"]), ("z", "é", 0)),
        (pa.array([True, False]), (None, None, 0)),
        (pa.array([b"a"]), (None, None, 0)),
        (
            pa.array([Decimal("12345678901234567890.123456789")], pa.decimal128(38, 9)),
            (Decimal("12345678901234567890.123456789"),) * 2 + (0,),
        ),
        (pa.array([date(2026, 1, 5)]), ("2026-01-05", "2026-01-05", 0)),
        (
            pa.array([datetime(2026, 1, 5, 14, 30, 0, 123456, UTC)], pa.timestamp("us", "UTC")),
            ("2026-01-05T14:30:00.123456Z",) * 2 + (0,),
        ),
        (
            pa.array([1_000], pa.timestamp("s", "UTC")),
            ("1970-01-01T00:16:40.000000Z",) * 2 + (0,),
        ),
        # A year that no reader can parse: no bounds.
        (pa.array([-(2**60)], pa.timestamp("us", "UTC")), (None, None, 0)),
        (pa.array([2**31 - 1], pa.date32()), (None, None, 0)),
        (pa.array([-(2**31)], pa.date32()), (None, None, 0)),
        (pa.array([[1]]), None),
    ],
    ids=str,
)
def test_statistics(tmp_path, column, expected):
    if expected is None:
        table = pa.table({"x": column})
        record = write_data_file(folder(str(tmp_path)), "t", "a", table.schema, [table])
        assert json.loads(record.stats) == {
            "numRecords": 1,
            "minValues": {},
            "maxValues": {},
            "nullCount": {},
        }
    else:
        assert stats_of(tmp_path, column) == expected


def test_statistics_cover_all_row_groups(tmp_path):
    column = pa.array([*range(1000), *range(-1000, 0), *[None] * 1000], pa.int64())
    assert stats_of(tmp_path, column, row_group_bytes=1000) == (-1000, 999, 1000)


def test_nan_in_a_later_row_group_takes_the_bounds_away(tmp_path):
    column = pa.array([*[1.0] * 1000, float("nan")])
    assert stats_of(tmp_path, column, row_group_bytes=100) == (None, None, 0)


def test_values_too_long_for_parquet_statistics_have_no_bounds(tmp_path):
    # Parquet leaves out what is longer than 4 KiB, in one row group of several here.
    column = pa.array(["a"] * 100 + ["z" * 10_000])
    assert stats_of(tmp_path, column, row_group_bytes=400) == (None, None, 0)


def test_long_strings_are_cut_and_the_greatest_rounded_up(tmp_path):
    low, high, _ = stats_of(tmp_path, pa.array(["a" * 100, "b" * 100]))
    assert low == "a" * 32
    assert high == "b" * 31 + "c"


@pytest.mark.parametrize(
    ("text", "above"),
    [
        ("", ""),
        ("x" * 32, "x" * 32),
        ("x" * 33, "x" * 31 + "y"),
        ("\ud7ff" * 33, "\ud7ff" * 31 + "\ue000"),
        ("a" + "\U0010ffff" * 40, "b"),
        ("\U0010ffff" * 40, None),
    ],
)
def test_string_above(text, above):
    assert string_above(text) == above
    if above is not None:
        assert above >= text
        assert above.encode() >= text.encode()


def test_dictionaries_only_where_values_repeat():
    n = 10_000
    table = pa.table({"same": ["x"] * n, "few": [i // 100 for i in range(n)], "all": range(n)})
    assert repeating_columns(table) == ["same", "few"]
    assert repeating_columns(table.slice(0, 1)) == []


def test_compression_and_checksums_are_on(tmp_path):
    table = pa.table({"x": ["same"] * 100_000})
    record = write_data_file(folder(str(tmp_path)), "t", "a.parquet", table.schema, [table])
    column = pq.ParquetFile(tmp_path / record.path).metadata.row_group(0).column(0)
    assert column.compression.lower() == datafile.COMPRESSION["compression"]
    data = bytearray((tmp_path / record.path).read_bytes())
    data[column.dictionary_page_offset + 40] ^= 1
    (tmp_path / "bad.parquet").write_bytes(data)
    with pytest.raises(OSError, match=r"CRC|checksum|corrupt"):
        pq.ParquetFile(tmp_path / "bad.parquet", page_checksum_verification=True).read()


@pytest.mark.parametrize("allowed", [0, 1, 5, 12])
def test_a_full_disk_is_the_error_that_the_caller_sees(monkeypatch, allowed):
    monkeypatch.setattr(datafile, "BUFFER_BYTES", 64)

    class Full:
        def __init__(self):
            self.writes = 0
            self.gone = False

        @contextmanager
        def create(self, name):
            try:
                yield self
            except BaseException:
                self.gone = True
                raise

        def write(self, data):
            self.writes += 1
            if self.writes > allowed:
                raise StorageError(errno.ENOSPC, "no space is left")

        def flush(self):
            pass

    place = Full()
    table = pa.table({"x": range(100), "y": ["a"] * 100})
    with pytest.raises(StorageError, match="no space is left"):
        write_data_file(place, "t", "a", table.schema, [table] * 5, row_group_bytes=100)
    assert place.gone


def test_a_table_of_several_chunks_repeats_as_in_one():
    few, many = pa.array(["a"] * 5000), pa.array([f"b{n}" for n in range(5000)])
    for chunks in ([few, many, many], [many, few, few], [few, few, few], [many[:0], few]):
        table = pa.table({"text": pa.chunked_array(chunks)})
        assert repeating_columns(table) == repeating_columns(table.combine_chunks())
