"""What an outer join is: the reference that all else is held against is SQL's own join."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.property.outer_reference import Rows, outer_joined


def by_sql(inputs: Sequence[Rows], optional: Sequence[int]) -> Counter[Any]:
    """Required inputs first, then a left join of each optional one; full joins where all are."""
    base = sqlite3.connect(":memory:")
    names = [f"t{i}" for i in range(len(inputs))]
    for name, rows in zip(names, inputs, strict=True):
        base.execute(f"create table {name} (k, {name}_row)")
        base.executemany(f"insert into {name} values (?, ?)", rows)
    ordered = sorted(range(len(inputs)), key=lambda i: i in optional)
    text = names[ordered[0]]
    for i in ordered[1:]:
        how = "join"
        if i in optional:
            how = "full join" if len(optional) == len(inputs) else "left join"
        text = f"{text} {how} {names[i]} using (k)"
    columns = ", ".join(f"{name}_row" for name in names)
    return Counter(base.execute(f"select k, {columns} from {text}").fetchall())


@given(st.data())
def test_the_reference_is_what_sql_says(data: st.DataObject) -> None:
    m = data.draw(st.integers(2, 4))
    optional = sorted(data.draw(st.sets(st.integers(0, m - 1))))
    keys = st.lists(st.integers(0, 3), max_size=5)
    inputs = [[(key, n) for n, key in enumerate(data.draw(keys))] for _ in range(m)]
    assert outer_joined(inputs, optional) == by_sql(inputs, optional)
