"""What a proof says of its keys, before a person reads it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

FEW_KEYS = 10_000
"""Up to so many failing keys are named and joined by themselves; beyond it all are joined."""

TOTALS = pa.schema(
    [
        ("expected", pa.string()),  # it may be larger than 64 bits
        ("run_time", pa.int64()),
        ("cleanup", pa.int64()),
        ("keys", pa.int64()),
        ("failing", pa.int64()),
        ("rejected", pa.int64()),
        ("quarantined", pa.int64()),
        ("rejected_wrong", pa.int64()),
    ]
)


@dataclass(frozen=True)
class JudgedKeys:
    """What the test says of all keys."""

    totals: Mapping[str, int]
    """By the names of `TOTALS`."""
    failing: pa.Table
    """The failing keys, where they are at most `FEW_KEYS`."""


@dataclass(frozen=True)
class Difference:
    """How the results differ from what they should be."""

    missing: int
    doubled: int
    """Results that are too many: repeated, altered, or of no input row."""
    examples: list[dict[str, Any]]
