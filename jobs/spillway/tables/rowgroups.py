"""Row groups of numbered rows: which numbers each may have, and reading one at a time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq


class Ranged(Protocol):
    """What has numbered rows."""

    @property
    def least(self) -> float | None:
        """Least number of its rows; None when it is not known."""

    @property
    def greatest(self) -> float | None:
        """Greatest number of its rows; None when it is not known."""


R = TypeVar("R", bound=Ranged)


@dataclass(frozen=True)
class RowGroup:
    """One row group of a Parquet file with a column `n`."""

    path: str
    file: pq.ParquetFile
    at: int
    least: float | None
    greatest: float | None

    def read(self, schema: pa.Schema) -> pa.Table:
        """Its rows, with these columns. Raises `pa.ArrowException`, OSError."""
        rows = self.file.read_row_group(self.at, columns=schema.names, use_threads=False)
        return rows.cast(schema)


def row_groups(path: str, source: pa.NativeFile) -> list[RowGroup]:
    """All row groups of an open Parquet file. Raises `pa.ArrowException`, OSError."""
    file = pq.ParquetFile(source, page_checksum_verification=True)
    return [
        RowGroup(path, file, at, *_bounds(file.metadata.row_group(at)))
        for at in range(file.num_row_groups)
    ]


def apart(given: Iterable[R]) -> Iterator[list[R]]:
    """What has numbers, in the order of these; what overlaps comes together."""
    together: list[R] = []
    reach = -math.inf
    for each in sorted(given, key=lower):
        if together and lower(each) > reach:
            yield together
            together = []
        together.append(each)
        reach = max(reach, upper(each))
    if together:
        yield together


def upper(ranged: Ranged) -> float:
    """The greatest number that it may have."""
    return math.inf if ranged.greatest is None else ranged.greatest


def lower(ranged: Ranged) -> float:
    """The least number that it may have."""
    return -math.inf if ranged.least is None else ranged.least


def _bounds(group: pq.RowGroupMetaData) -> tuple[float | None, float | None]:
    """The least and the greatest number in a row group; None when it does not say."""
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == "n":
            known = column.statistics
            if known is not None and known.has_min_max:
                return known.min, known.max
    return None, None
