"""Footers of Parquet files that may be damaged.

pyarrow gives what a footer says of a column in a row group as an object
(`RowGroupMetaData.column`). Where one bit of it is wrong, the C++ library may raise an exception
that pyarrow's binding does not expect, and the process ends with SIGABRT (pyarrow 26; of the
bits of a footer about one in 600). Reading rows raises as usual.

So nobody asks the footer of a file whose digest was not compared. Where the column is small it is
read instead; where it is not, `is_sound` looks first, in a child.
"""

from __future__ import annotations

import faulthandler
import os
import resource

import pyarrow.parquet as pq


def is_sound(metadata: pq.FileMetaData) -> bool:
    """Whether all that a footer says of its columns can be looked at without harm.

    Forks: some milliseconds. The child allocates, looks and ends; it touches no lock, no file and
    no thread of ours.
    """
    child = os.fork()
    if not child:
        _look_and_exit(metadata)
    _, status = os.waitpid(child, 0)
    return status == 0


def _look_and_exit(metadata: pq.FileMetaData) -> None:
    code = 1
    try:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the library says as it dies
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                known = column.statistics
                if known is not None and known.has_min_max:
                    _ = known.min, known.max
        code = 0
    finally:
        os._exit(code)
