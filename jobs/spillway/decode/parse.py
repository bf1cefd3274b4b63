"""JSON values to raw columns: those that look alike together, the others one by one.

Columns are *raw* here: of the JSON kinds that the contract's fields ask for, nulls where a
field is missing or null, not yet checked against the rules (`spillway.decode.rules`).

`parse_alike` reads what looks alike (`spillway.decode.templates`), in pieces that stay in the
processor's cache. `parse_each` takes the rest through the parser that pydantic itself uses, one
value at a time; kinds are then checked on whole columns. It costs about three times as much.
What fails here too is left to the contract. Both read a value as its own bytes say, whatever is
beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic_core import from_json

from spillway.decode.layout import Layout
from spillway.decode.templates import RAW_TYPES, read_alike
from spillway_schemas.messages import INT64_MAX, INT64_MIN, FieldRule, Kind

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PIECE_ROWS = 8_192
PIECE_BYTES = 768 << 10
"""What is read together, at most; a larger value is read by itself. Twice as much is slower: what
is made of it no longer fits what malloc keeps, and each piece pays for its pages again."""

_PYTHON_KINDS: dict[Kind, frozenset[type]] = {
    "string": frozenset({str}),
    "int": frozenset({int}),
    "double": frozenset({int, float}),
    "bool": frozenset({bool}),
    "timestamp": frozenset({str}),
}


@dataclass(frozen=True)
class Parsed:
    """Raw columns of the values at `rows` (positions in the batch)."""

    rows: Rows
    columns: Any  # pa.Table, one column per field of the contract

    def take(self, keep: Mask) -> Parsed:
        """Only the rows where `keep` is true."""
        return Parsed(self.rows[keep], self.columns.filter(pa.array(keep)))


def can_parse(rules: Sequence[FieldRule]) -> bool:
    """Whether every kind can be parsed here; a decimal or json needs the contract for every row."""
    return all(rule.kind in RAW_TYPES for rule in rules)


def parse_alike(rules: Sequence[FieldRule], values: Any) -> tuple[list[Parsed], Rows]:
    """Parse what looks alike. Returns what holds, and the positions left over, ascending.

    `values`: pyarrow binary or large_binary array, nulls included.
    """
    done: list[Parsed] = []
    left: list[Rows] = []
    for begin, end in pieces(values, PIECE_ROWS, PIECE_BYTES):
        piece = values.slice(begin, end - begin)
        found, rest = read_alike(rules, piece, PIECE_BYTES)
        done += [Parsed(rows + begin, columns) for rows, columns in found]
        left.append(rest + begin)
    return done, np.concatenate(left) if left else np.zeros(0, np.int64)


def parse_each(rules: Sequence[FieldRule], values: Any, rows: Rows) -> tuple[Parsed | None, Rows]:
    """Parse the values at `rows` one by one. Returns what holds, and the positions left over.

    Only the contract's fields are kept of a value: what else it holds is gone before the next.
    """
    names = [rule.name for rule in rules]
    items: list[list[Any]] = []
    held = np.ones(len(rows), np.bool_)
    for at, value in enumerate(values.take(pa.array(rows)).to_pylist()):
        try:
            item = from_json(value) if value else None
        except ValueError:
            item = None  # the contract says why
        if type(item) is dict:
            items.append([item.get(name) for name in names])
        else:
            held[at] = False
    bad = np.zeros(len(items), np.bool_)
    columns = [_column(rule, [item[i] for item in items], bad) for i, rule in enumerate(rules)]
    table = pa.table(columns, schema=pa.schema([(r.name, RAW_TYPES[r.kind]) for r in rules]))
    parsed = Parsed(rows[held], table)
    left = np.sort(np.concatenate([rows[~held], parsed.rows[bad]]))
    if bad.any():
        parsed = parsed.take(~bad)
    return (parsed if len(parsed.rows) else None), left


def _column(rule: FieldRule, items: list[Any], bad: Mask) -> Any:
    """One raw column; values of a wrong kind become null and mark their row in `bad`."""
    allowed = _PYTHON_KINDS[rule.kind]
    if not set(map(type, items)) <= allowed | {type(None)}:
        wrong = [item is not None and type(item) not in allowed for item in items]
        bad |= np.array(wrong, np.bool_)
        items = [None if no else item for item, no in zip(items, wrong, strict=True)]
    if rule.kind in ("int", "double") and int in set(map(type, items)):
        wide = [type(item) is int and not INT64_MIN <= item <= INT64_MAX for item in items]
        if any(wide):
            bad |= np.array(wide, np.bool_)
            items = [None if no else item for item, no in zip(items, wide, strict=True)]
        if rule.kind == "double":
            items = [None if item is None else float(item) for item in items]
    return pa.array(items, RAW_TYPES[rule.kind])


def pieces(values: Any, rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut values into [begin, end) of at most `rows` values and `size` bytes, but for one value
    that is larger."""
    layout = Layout.of(values)
    begin = 0
    while begin < layout.rows:
        start = int(layout.starts[begin])
        fit = int(np.searchsorted(layout.ends, start + size, side="right"))
        end = min(layout.rows, begin + rows, max(begin + 1, fit))
        yield begin, end
        begin = end
