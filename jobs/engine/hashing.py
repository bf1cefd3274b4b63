"""XXH64 exactly as Spark's `xxhash64` computes it, vectorised over Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from jobs.engine.groups import U64


def xxhash64(columns: Sequence[pa.Array]) -> U64:
    """uint64 (n,): equals Spark's `xxhash64(col1, col2, ...)` (seed 42; nulls change nothing)."""
    raise NotImplementedError
