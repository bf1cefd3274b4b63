"""The clock of a process: made once, at its entry point, and handed to whoever needs the time."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""The time in ms since 1970."""


def system_clock() -> int:
    """The machine's clock."""
    return time.time_ns() // 1_000_000
