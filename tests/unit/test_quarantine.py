"""`quarantine list`: the newest rows, whatever the records held and however many there were."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway import quarantine
from spillway.engine.wire.blocks import REJECTED_SCHEMA
from spillway.engine.wire.quarantine import quarantine_tables
from spillway.quarantine import list_rows
from spillway.tables import Warehouse
from tests.report_journal import BEGAN, DAY, add_file, open_warehouse

BEGAN_US = int(BEGAN.timestamp()) * 1_000_000


def add(warehouse: Warehouse, epoch: int, rows: list[dict[str, Any]]) -> None:
    """Quarantine rows, each of which says how it differs from a plain one."""
    plain = {"topic": "stock", "partition": 0, "offset": 0, "reason": "bad", "value": b"x"}
    times = {"kafka_timestamp": BEGAN_US, "epoch": epoch, "written_at": BEGAN_US}
    schema = warehouse.table("quarantine").definition.file_schema
    whole = [{**plain, **times, **row} for row in rows]
    table = pa.table({f.name: pa.array([row[f.name] for row in whole], f.type) for f in schema})
    add_file(warehouse, "quarantine", f"{epoch}-a-0-0.parquet", epoch, table.cast(schema))


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (BEGAN_US, "2026-01-05T14:30:00+00:00"),
        (BEGAN_US + 123_000, "2026-01-05T14:30:00.123000+00:00"),
        (-1_000, "1969-12-31T23:59:59.999000+00:00"),
        (253_402_300_800_000_000, "10000-01-01T00:00:00+00:00"),
        (9_223_372_036_854_775_000, "294247-01-10T04:00:54.775000+00:00"),
        (-9_223_372_036_854_775_000, "-290308-12-21T19:59:05.225000+00:00"),
    ],
)
def test_a_time_that_a_producer_made_up_is_shown(tmp_path: Path, micros: int, text: str) -> None:
    warehouse = open_warehouse(str(tmp_path / "w"))
    add(warehouse, 0, [{"kafka_timestamp": micros}])
    assert [row["kafka_timestamp"] for row in list_rows(warehouse, None, 20)] == [text]


def test_the_newest_rows_come_first_and_no_other_value_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = open_warehouse(str(tmp_path / "w"))
    rng = random.Random(1)
    made = []
    for epoch in range(4):
        rows = [
            {
                "offset": 100 * epoch + k,
                "kafka_timestamp": BEGAN_US + 1000 * rng.randrange(5),
                "value": rng.choice([b"\xff", None, f"{epoch}/{k}".encode()]),
            }
            for k in range(30)
        ]
        add(warehouse, epoch, rng.sample(rows, len(rows)))
        made += [(epoch, row["kafka_timestamp"], row["offset"], row["value"]) for row in rows]
    made.sort(key=lambda row: row[:3], reverse=True)
    monkeypatch.setattr(quarantine, "READ_ROWS", 7)
    for limit in (1, 20, 45, 10**6):
        found = list_rows(warehouse, DAY, limit)
        assert [(row["epoch"], row["offset"]) for row in found] == [
            (epoch, offset) for epoch, _, offset, _ in made[:limit]
        ]
        values = [b"\xff" if "value_base64" in row else row["value"] for row in found]
        assert [v.encode() if isinstance(v, str) else v for v in values] == [
            value for *_, value in made[:limit]
        ]
    assert list_rows(warehouse, "2026-01-06", 20) == []


def test_people_are_told_which_values_are_no_text(tmp_path: Path) -> None:
    warehouse = open_warehouse(str(tmp_path / "w"))
    add(warehouse, 1, [{"offset": 1, "value": b"\xff\xfe"}, {"offset": 0, "value": b"//4="}])
    shown = quarantine.table(list_rows(warehouse, DAY, 20))
    assert list(shown.columns[-1].cells) == ["base64: //4=", "//4="]


def test_only_files_that_may_have_a_newest_row_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = open_warehouse(str(tmp_path / "w"))
    for epoch in range(5):
        add(warehouse, epoch, [{"offset": k, "value": b"x" * 1000} for k in range(10)])
    read: list[int] = []

    class Counting(pq.ParquetFile):  # type: ignore[misc]
        def read(self, columns: list[str], **more: Any) -> pa.Table:
            assert "value" not in columns
            part = super().read(columns=columns, **more)
            read.append(part["epoch"][0].as_py())
            return part

    monkeypatch.setattr(quarantine.pq, "ParquetFile", Counting)
    assert [row["epoch"] for row in list_rows(warehouse, None, 15)] == [4] * 10 + [3] * 5
    assert read == [4, 3]


def test_a_record_of_any_time_is_kept() -> None:
    """Producers date records: in nanoseconds by mistake, say. No one of them ends the stream."""
    stamps = [1_767_623_400_123, 1_767_623_400_123_456_789, 2**63 - 1, -(2**63), -1]
    row = {"topic": "stock", "partition": 0, "offset": 0, "reason": "bad", "value": b"x"}
    rows = [{**row, "kafka_ms": each} for each in stamps]
    given = pa.Table.from_pylist(rows, REJECTED_SCHEMA)
    [table] = quarantine_tables([given], epoch=1, written_at_us=BEGAN_US)
    most = 9_223_372_036_854_775_000
    found = table["kafka_timestamp"].cast(pa.int64()).to_pylist()
    assert found == [1_767_623_400_123_000, most, most, -most, -1_000]
