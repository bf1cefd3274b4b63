"""A filter or a derived key has one value a row, whatever rows stand beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, assume
from hypothesis import strategies as st

from spillway.decode.expressions import EvaluationError, evaluate, type_of
from spillway.decode.rules import TIMESTAMP
from spillway_schemas.expressions import FUNCTIONS, PARTS, TYPES, ExpressionError, columns_of
from tests.lanes import explored

TEXTS = [
    *("", "A", "a b", "é😀", "2026-01-05", "05/01/2026", "2026-01-05 10:00:00"),
    *("2026-01-05T10:00:00Z", "12:30", "1", "1.5", "-7", "x%y", "_", "1e5\n", " 1", "true"),
    *("(", "[a", "\\", "20260105", "9223372036854775808", "NaN"),
]
YEARS = (1, 1905, 1970, 2026, 9999)
SCHEMA = pa.schema(
    [
        ("s", pa.string()),
        ("u", pa.string()),
        ("i", pa.int64()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("t", TIMESTAMP),
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "s": st.sampled_from(TEXTS),
    "u": st.sampled_from(TEXTS),
    "i": st.sampled_from([0, 1, -1, 7, 2**63 - 1, -(2**63), 10**12]),
    "d": st.sampled_from([0.0, 1.5, -2.5, 1e300, 2.0**63, -0.5]),
    "b": st.booleans(),
    "t": st.sampled_from([datetime(year, 1, 31, 23, 59, tzinfo=UTC) for year in YEARS]),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | some for name, some in VALUES.items()}),
    min_size=2,
    max_size=6,
)
LITERALS = st.sampled_from(["'A'", "'a'", "''", "'%a%'", "'%Y'", "1", "0", "2", "-1", "1.5", "'('"])
UNITS = st.sampled_from(["'day'", "'month'", "'1h'", "'hour'"])
THREE = ("replace", "substr", "substring", "concat", "concat_ws")
TWO = (
    *("mod", "div", "left", "right", "starts_with", "ends_with", "strpos", "nullif", "coalesce"),
    *("greatest", "least", "strftime", "round", "date_trunc", "date_part"),
)


def deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    some = inner | LITERALS
    first = some | UNITS
    arithmetic = st.sampled_from(["+", "-", "*", "/", "%", "||"])
    verdicts = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "and", "or", "like", "ilike"])
    return st.one_of(
        st.builds("{}({})".format, st.sampled_from(sorted(FUNCTIONS)), inner),
        st.builds("{}({}, {})".format, st.sampled_from(TWO), first, some),
        st.builds("{}({}, {}, {})".format, st.sampled_from(THREE), some, some, some),
        st.builds("({} {} {})".format, inner, arithmetic | verdicts, some),
        st.builds("try_cast({} as {})".format, inner, st.sampled_from(sorted(TYPES))),
        st.builds("extract({} from {})".format, st.sampled_from(sorted(PARTS)), inner),
        st.builds("case when {} then {} else {} end".format, inner, some, some),
        st.builds("({} + interval '{} days')".format, inner, st.sampled_from([1, 400, 10**6])),
        st.builds("({} is null)".format, inner),
        st.builds("({} in ({}, {}))".format, inner, LITERALS, LITERALS),
    )


EXPRESSIONS = st.recursive(st.sampled_from(SCHEMA.names), deeper, max_leaves=4)


@explored(20, 120, EXPRESSIONS, ROWS, suppressed=list(HealthCheck))
def test_a_value_follows_from_its_row_alone(expression: str, given_: list[dict[str, Any]]) -> None:
    try:
        columns_of(expression, frozenset(SCHEMA.names))
        type_ = type_of(expression, SCHEMA)
    except (ExpressionError, EvaluationError):
        assume(False)
    rows = pa.Table.from_pylist(given_, SCHEMA)
    whole, failed = evaluate(expression, rows, type_)
    for at in range(len(given_)):
        alone, wrong = evaluate(expression, rows.slice(at, 1), type_)
        assert whole.slice(at, 1).equals(alone) or (is_nan(whole[at]) and is_nan(alone[0]))
        assert failed.get(at) == wrong.get(0)


def is_nan(value: Any) -> bool:
    return pa.types.is_floating(value.type) and value.is_valid and value.as_py() != value.as_py()
