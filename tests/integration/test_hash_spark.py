"""The engine's hash against a running Spark: random values of every key type, and the SQL form."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spillway.engine.groups import GroupMap
from spillway.engine.join.hashing import xxhash64
from spillway.stream.session import spark_session

pytestmark = pytest.mark.server
ROWS = 2_000


@pytest.fixture(scope="module")
def spark(spark_env: dict[str, str]) -> Iterator[Any]:
    # With the jars: the first session of a process decides for all that follow in it.
    options = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"}
    session = spark_session("local[1]", "test hash", options=options)
    yield session
    session.stop()


def text(draw: random.Random) -> str:
    alphabet = draw.choice(["abc", "ABCDEFGHIJ0123456789", "äöü€😀漢", "\x00\n\t"])
    length = draw.choice([*range(40), 63, 64, 65, 100, 1000])
    return "".join(draw.choice(alphabet) for _ in range(length))


def double(draw: random.Random) -> float:
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324, 1.5]
    return draw.choice([*special, draw.uniform(-1e9, 1e9)])


def decimal(draw: random.Random, digits: int, scale: int) -> Decimal:
    unscaled = draw.choice([0, 1, -1, 127, 128, -128, -129, 255, 256, 10**digits - 1])
    unscaled = draw.choice(
        [unscaled, draw.randint(-(10 ** draw.randint(1, digits)) + 1, 10**digits - 1)]
    )
    with localcontext() as context:
        context.prec = 50
        return Decimal(unscaled).scaleb(-scale)


def integers(bits: int) -> Any:
    edge = 2 ** (bits - 1)
    return lambda draw: draw.choice([0, 1, -1, edge - 1, -edge, draw.randrange(-edge, edge)])


TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "string": (pa.string(), text),
    "binary": (pa.binary(), lambda draw: draw.randbytes(draw.choice([*range(40), 64, 200]))),
    "boolean": (pa.bool_(), lambda draw: draw.random() < 0.5),
    "tinyint": (pa.int8(), integers(8)),
    "smallint": (pa.int16(), integers(16)),
    "int": (pa.int32(), integers(32)),
    "bigint": (pa.int64(), integers(64)),
    "float": (pa.float32(), lambda draw: float(np.float32(double(draw)))),
    "double": (pa.float64(), double),
    "decimal(10,2)": (pa.decimal128(10, 2), lambda draw: decimal(draw, 10, 2)),
    "decimal(18,0)": (pa.decimal128(18, 0), lambda draw: decimal(draw, 18, 0)),
    "decimal(19,3)": (pa.decimal128(19, 3), lambda draw: decimal(draw, 19, 3)),
    "decimal(38,10)": (pa.decimal128(38, 10), lambda draw: decimal(draw, 38, 10)),
    "date": (pa.date32(), lambda draw: draw.randrange(-700_000, 2_900_000)),
    "timestamp": (pa.timestamp("us", tz="UTC"), lambda draw: draw.randrange(-(10**16), 10**16)),
    "timestamp_ntz": (pa.timestamp("us"), lambda draw: draw.randrange(-(10**16), 10**16)),
}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    draw = random.Random(20260105)
    columns = {}
    for name, (type_, value) in TYPES.items():
        values = [None if draw.random() < 0.1 else value(draw) for _ in range(ROWS)]
        storage = {"date": pa.int32(), "timestamp": pa.int64(), "timestamp_ntz": pa.int64()}
        array = pa.array(values, storage.get(name, type_))
        columns[name] = array.view(type_) if name in storage else array
    return pa.table(columns)


def test_every_type_and_their_chains(spark: Any, table: pa.Table) -> None:
    names = table.column_names
    chains = [[name] for name in names]
    draw = random.Random(7)
    chains += [draw.sample(names, draw.randint(2, len(names))) for _ in range(20)]
    frame = spark.createDataFrame(table)
    hashes = [
        f"xxhash64({', '.join(f'`{name}`' for name in chain)}) AS h{i}"
        for i, chain in enumerate(chains)
    ]
    found = frame.selectExpr(*hashes).toArrow()
    for i, chain in enumerate(chains):
        expected = found[f"h{i}"].to_numpy().view(np.uint64)
        ours = xxhash64([table[name].combine_chunks() for name in chain])
        wrong = np.flatnonzero(ours != expected)
        assert not len(wrong), f"{chain}: row {wrong[0]} of {len(wrong)} wrong ones"


def test_a_group_is_a_shift_in_sql(spark: Any, table: pa.Table) -> None:
    groups = GroupMap.initial(512, 4)
    keys = table.select(["string", "bigint"])
    frame = spark.createDataFrame(keys)
    found = frame.selectExpr("shiftrightunsigned(xxhash64(string, bigint), 64 - 9) AS g").toArrow()
    ours = groups.group_of(xxhash64([column.combine_chunks() for column in keys.columns]))
    assert found["g"].to_pylist() == ours.tolist()
