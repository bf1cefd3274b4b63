"""What a Python worker of Spark does for itself, whatever its tasks are."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.worker_processes import keep_freed_memory

FREEZES = 3
"""Some modules are loaded by the first task that needs them, so once is not enough."""

_freezes = 0


def freeze() -> None:
    """Take what is loaded by now out of the cyclic collector's sight, in a worker's first tasks.

    A worker collects after every task, and went through all that was ever imported: 60 ms a task.
    """
    global _freezes
    if _freezes == 0:
        keep_freed_memory()
    if _freezes < FREEZES:
        _freezes += 1
        gc.freeze()


def rehearse_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Take batches and give none: a worker that ran this has loaded what an epoch needs."""
    import spillway.stream.decoding
    import spillway.stream.worker  # noqa: F401

    pa.array(np.zeros(1))  # pyarrow loads pandas with the first array of numpy's
    freeze()
    for _ in batches:
        pass
    yield from ()
