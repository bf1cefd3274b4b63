"""Whether lost state is worth reading again at once: how many rows a restore may have. Pure.

While a restore reads, the stream gives nothing, and rows wait in Kafka; they are joined afterwards.
What is deferred is joined with no row to come until the close. So a restore is the better choice
where it is short, and the question is how long the desk can wait.
"""

from __future__ import annotations

from spillway.policy.sampling import was_cut_off
from spillway_schemas.setting_fields import RecoveryMode

RESTORED_PER_CORE_S = 200_000
"""Rows that a core reads again and installs in a second, where no epoch has shown it. Of the
benchmark's messages of 80 bytes it was 250,000 (`python -m benchmarks.standstill`)."""
TELLING_ROWS = 100_000
"""Of an epoch with fewer rows most of the time is not theirs."""


def rate_shown(limit_rows: int, rows: int, seconds: float) -> float:
    """Rows a second that an epoch shows to be possible; 0: it shows nothing, for it had few rows or
    read all that there were."""
    if seconds <= 0 or rows < TELLING_ROWS or not was_cut_off(limit_rows, rows):
        return 0.0
    return rows / seconds


def most_restored_rows(
    mode: RecoveryMode, within_s: float, readers: int, shown_per_s: float
) -> int | None:
    """How many rows may be read again for lost slots; None: all that they had.

    `readers`: cores, or partitions of the topics where these are fewer, for each is read by one
    task. `shown_per_s`: the greatest `rate_shown` of this term. Such an epoch does more for each
    row than a restore, which gives no results.
    """
    if mode == "restore":
        return None
    if mode == "defer":
        return 0
    return round(within_s * (shown_per_s or RESTORED_PER_CORE_S * max(readers, 1)))
