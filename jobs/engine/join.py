"""The join kernel: a sorted probe that costs O(new rows x log state) plus output.

(Signatures; the implementation follows within minutes.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from jobs.engine.groups import U64
from jobs.engine.spec import JoinSpec


@dataclass(frozen=True)
class Rows:
    """Rows of one input sorted by unsigned hash.

    `key_hash` uint64 (n,) ascending; `table` has the input's row schema (keys, payload,
    partition, offset), n rows, one chunk or more.
    """

    key_hash: U64
    table: pa.Table


def join(
    spec: JoinSpec,
    old: Sequence[Sequence[Rows]],
    new: Sequence[Sequence[Rows]],
    *,
    need_old: bool = False,
    batch_bytes: int = 16 << 20,
) -> Iterator[pa.Table]:
    """Yield all combinations, one row of each input with equal keys, with >= 1 new row.

    `old[i]` and `new[i]` are the sorted runs of input i (any number of runs, each `Rows`; the
    runs of one input may overlap). With `need_old` also >= 1 old row is asked for. Each yielded
    table has `spec.joined_schema`, and about `batch_bytes` bytes at most.
    """
    raise NotImplementedError
