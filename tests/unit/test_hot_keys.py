"""The key with the most rows of a group, as a statistic shows it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spillway.engine.hotkeys import hottest
from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import InputSpec, JoinSpec

TIME = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([pa.array(["ACME"])], "ACME"),
        ([pa.array([7])], "[7]"),
        ([pa.array(["ACME"]), pa.array([True])], '["ACME", true]'),
        ([pa.array(["süd\n"]), pa.array([1])], '["süd\\n", 1]'),
        ([pa.array([Decimal("1.50")])], '["1.50"]'),
        ([pa.array([date(2026, 1, 5)])], '["2026-01-05"]'),
        ([pa.array([datetime(2026, 1, 5, tzinfo=UTC)], TIME)], '["2026-01-05 00:00:00+00:00"]'),
        ([pa.array([253_402_300_800_000_000], TIME)], '["10000-01-01T00:00:00.000000"]'),
        ([pa.array([2**63 - 1], TIME)], '["294247-01-10T04:00:54.775807"]'),
        ([pa.array([-(2**63) + 1], TIME)], '["-290308-12-21T19:59:05.224193"]'),
        ([pa.array([2**31 - 1], pa.date32())], '["5881580-07-11"]'),
        ([pa.array([-(2**31)], pa.date32())], '["-5877641-06-23"]'),
    ],
)
def test_every_key_has_a_text(columns: list[Any], text: str) -> None:
    names = [f"k{i}" for i in range(len(columns))]
    keys = pa.schema([(n, c.type) for n, c in zip(names, columns, strict=True)])
    spec = JoinSpec(0, keys, (InputSpec("a", pa.schema([])), InputSpec("b", pa.schema([]))))
    rows = Rows(np.array([7], np.uint64), pa.table(columns, names=names), born=0)
    assert hottest(spec, [rows]) == (text, 1)
