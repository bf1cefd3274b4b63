"""Row codec: decode is the inverse of encode for tables of any shape."""

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given, settings

from spillway.engine.spill.rowcodec import decode_rows, encode_rows
from tests.lanes import explored, some

VALUES = {
    pa.bool_(): st.booleans(),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(20, 4): st.decimals(
        min_value=-(10**15), max_value=10**15, places=4, allow_nan=False
    ),
    pa.timestamp("us", "UTC"): st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.text(max_size=40),
    pa.binary(): st.binary(max_size=40),
    pa.binary(5): st.binary(min_size=5, max_size=5),
}


@st.composite
def tables(draw):
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=11))
    rows = draw(st.integers(0, 12))
    columns = [
        pa.array(draw(st.lists(st.none() | VALUES[k], min_size=rows, max_size=rows)), k)
        for k in kinds
    ]
    # Names may repeat: columns go by position.
    schema = pa.schema([pa.field(draw(st.sampled_from("ab")), k) for k in kinds])
    return pa.Table.from_arrays(columns, schema=schema)


@explored(100, 300, tables(), st.data())
def test_round_trip(table, data):
    encoded = encode_rows(table)
    assert len(encoded) == table.num_rows
    assert decode_rows(encoded, table.schema).equals(table)
    start = data.draw(st.integers(0, table.num_rows))
    part = table.slice(start)
    assert encode_rows(part).equals(encoded.slice(start))
    assert decode_rows(encoded.slice(start), table.schema).equals(part)


@settings(max_examples=some(100), deadline=None)
@given(tables())
def test_rows_are_equal_exactly_when_their_encodings_are(table):
    encoded = encode_rows(table).to_pylist()
    # Bits, not values: -0.0 and 0.0 are different rows here.
    bits = [repr(tuple(column[i].as_py() for column in _raw(table))) for i in range(len(encoded))]
    for i, left in enumerate(encoded):
        for j, right in enumerate(encoded):
            assert (left == right) == (bits[i] == bits[j])


def _raw(table):
    """Columns whose `as_py` works for every value: timestamps beyond year 9999 as integers."""
    return [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.itercolumns()]
