"""Whether lost state is worth reading again at once: how many rows a restore may have. Pure.

While a restore reads, the stream gives nothing, and rows wait in Kafka; they are joined afterwards.
What is deferred is joined with no row to come until the close. So a restore is the better choice
where it is short, and the question is how long the desk can wait.
"""

from __future__ import annotations

from typing import Literal

RESTORED_PER_CORE_S = 200_000
"""Rows that a core reads again and installs in a second, where no epoch has shown it. Of the
benchmark's messages of 80 bytes it was 250,000 (`python -m benchmarks.standstill`)."""


def most_restored_rows(
    mode: Literal["auto", "restore", "defer"], within_s: float, readers: int, shown_per_s: float
) -> int | None:
    """How many rows may be read again for lost slots; None: all that they had.

    `readers`: cores, or partitions of the topics where these are fewer, for each is read by one
    task. `shown_per_s`: rows a second of the fastest epoch of this term that read as many as it
    might; 0: none has. Such an epoch does more for each row than a restore, which gives no results.
    """
    if mode == "restore":
        return None
    if mode == "defer":
        return 0
    return round(within_s * (shown_per_s or RESTORED_PER_CORE_S * max(readers, 1)))
