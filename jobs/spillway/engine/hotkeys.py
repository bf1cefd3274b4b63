"""The key with the most rows in a group: what a split cannot divide."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.engine.groups import I64
from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import JoinSpec
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.spilling import rows_of
from spillway.engine.state.arrangement import Segments, SessionState

MOST_GROUPS = 8


def hot_keys(
    spec: TreeSpec, session: SessionState, segments: Segments, sizes: I64, most: int = MOST_GROUPS
) -> dict[int, tuple[str, int]]:
    """Of the `most` largest groups by bytes (g,), the key with the most rows, all inputs, and how
    many those are. A key is written as its only column, or as a JSON list of its columns."""
    largest = np.argsort(-sizes, kind="stable")[:most]
    found = {}
    for group in largest[sizes[largest] > 0].tolist():
        wanted = np.zeros(segments.buckets, dtype=np.bool_)
        wanted[group] = True
        by_input = rows_of(session, segments, wanted)
        pieces = [piece for pieces in by_input for piece in pieces]
        if pieces:
            # A group is of one join.
            join = spec.join_of_input(next(i for i, some in enumerate(by_input) if some))
            found[group] = hottest(join, pieces)
    return found


def hottest(join: JoinSpec, pieces: list[Rows]) -> tuple[str, int]:
    """Two keys of one hash are taken for one: with 64 bits that does not happen."""
    hashes, counts = zip(*(_runs(piece) for piece in pieces), strict=True)
    distinct, at = np.unique(np.concatenate(hashes), return_inverse=True)
    rows = np.bincount(at, weights=np.concatenate(counts))
    hottest = int(rows.argmax())
    for piece in pieces:
        first = int(np.searchsorted(piece.key_hash, distinct[hottest]))
        if first < len(piece.key_hash) and piece.key_hash[first] == distinct[hottest]:
            key = [_value(piece.table.column(i)[first]) for i in range(len(join.keys))]
            return key_text(key), int(rows[hottest])
    raise AssertionError("a hash that was counted is in no piece")


def _runs(piece: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The distinct hashes of sorted rows, and how many rows each has."""
    starts = np.flatnonzero(np.diff(piece.key_hash, prepend=~piece.key_hash[:1]))
    return piece.key_hash[starts], np.diff(starts, append=len(piece.key_hash))


def _value(scalar: Any) -> object:
    """A key's value; numpy's where Python's datetime does not have the year."""
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        unit: Any = "D" if pa.types.is_date32(scalar.type) else scalar.type.unit
        return np.datetime64(scalar.value, unit)


def key_text(key: Sequence[object]) -> str:
    """A key as it is shown: its only column where that is text, else a JSON list of its columns."""
    only = key[0] if len(key) == 1 else None
    return only if isinstance(only, str) else json.dumps(key, default=str, ensure_ascii=False)
