"""The clock of a process: made once, at its entry point, and handed to whoever needs the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], int]
"""The time in ms since 1970."""


def system_clock() -> int:
    """The machine's clock."""
    return time.time_ns() // 1_000_000


def rfc3339(ms: int) -> str:
    """Milliseconds since 1970 as RFC 3339, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
