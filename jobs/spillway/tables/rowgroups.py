"""Row groups of numbered rows: which numbers each may have, and reading one at a time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
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
    """All row groups of an open Parquet file; of a single one it is not known which numbers it has.
    Raises `pa.ArrowException`, OSError, KeyError."""
    file = pq.ParquetFile(source, page_checksum_verification=True)
    if file.num_row_groups == 1:  # whoever wants rows of the file wants these
        return [RowGroup(path, file, 0, None, None)]
    return [RowGroup(path, file, at, *_bounds(file, at)) for at in range(file.num_row_groups)]


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


def _bounds(file: pq.ParquetFile, at: int) -> tuple[float | None, float | None]:
    """The least and the greatest number in a row group.

    From the numbers, which are few and small: to ask the footer ends the process where it is
    damaged (`spillway.engine.wire.footers`).
    """
    numbers = file.read_row_group(at, columns=["n"], use_threads=False)["n"]
    found = pc.min_max(numbers)
    return found["min"].as_py(), found["max"].as_py()
