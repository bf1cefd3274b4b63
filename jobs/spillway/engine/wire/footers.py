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
import gc
import os
import resource
import signal
import time

import pyarrow.parquet as pq

ANSWER_S = 10.0
"""A child that says nothing for so long is stuck: at the fork another thread held a lock that it
needs, in the allocator, say. Children look for some milliseconds."""
TRIES = 3


def is_sound(metadata: pq.FileMetaData) -> bool:
    """Whether all that a footer says of its columns can be looked at without harm.

    Forks: some milliseconds. The child allocates, looks and ends; it touches no lock, no file and
    no thread of ours. Raises TimeoutError when `TRIES` children were stuck.
    """
    for _ in range(TRIES):
        child = os.fork()
        if not child:
            _look_and_exit(metadata)
        status = _status_of(child)
        if status is not None:
            return status == 0
    raise TimeoutError(
        f"looking at the footer of a file took longer than {ANSWER_S:g} s, {TRIES} times: "
        "see what keeps the machine busy, and try again"
    )


def _status_of(child: int) -> int | None:
    """How a child ended; None: it was stuck, and is killed."""
    until, pause = time.monotonic() + ANSWER_S, 0.0002
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(pause)
        pause = min(1.2 * pause, 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _look_and_exit(metadata: pq.FileMetaData) -> None:
    # What is collected here would close connections that are the parent's, too.
    gc.disable()
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
