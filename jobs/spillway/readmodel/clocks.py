"""Hosts whose clocks differ from the driver's.

A step says what its host's clock showed when it was done. That was while the driver waited for the
epoch's job: what lies outside that time is a difference, whatever the job took. So a slow epoch
raises no alarm, and it hides a difference shorter than itself: what is found is a lower bound, and
with the job's time added an upper one.

Results do not depend on workers' clocks, but their `committed_at` does, and the delay that is
counted from it; and what checks times of its own (an object store, TLS) refuses such a host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spillway_schemas.journal import SlotTotals

TOLERATED_MS = 5_000
"""Clocks that are set by NTP differ by less."""
REMEDY = "let NTP set the clock of every host"


def ahead_ms(shown_ms: int, began_ms: int, ended_ms: int) -> int:
    """How far a clock is ahead at least (negative: behind) that showed `shown_ms` some time between
    these two."""
    return max(shown_ms - ended_ms, 0) + min(shown_ms - began_ms, 0)


def wrong_clocks(slots: Iterable[SlotTotals]) -> dict[str, int]:
    """The hosts whose clocks differ by more than is tolerated, with how far they are ahead, ms.

    Slots without a host are where the driver is.
    """
    found: dict[str, int] = {}
    for each in slots:
        far = abs(each.clock_ahead_ms) > max(TOLERATED_MS, abs(found.get(each.host, 0)))
        if each.host and far:
            found[each.host] = each.clock_ahead_ms
    return dict(sorted(found.items()))


def clocks_text(wrong: Mapping[str, int]) -> str:
    """What people are told of them; empty when there are none."""
    if not wrong:
        return ""
    hosts = ", ".join(
        f"{host}'s is {_span(abs(ms))} {'ahead of' if ms > 0 else 'behind'} the driver's"
        for host, ms in wrong.items()
    )
    return (
        f"clocks differ: {hosts}. The join is exact all the same, but committed_at and the delays "
        f"of results are wrong by as much: {REMEDY}"
    )


def _span(ms: int) -> str:
    seconds = ms // 1000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    parts = [(hours, "h"), (minutes, "min"), (seconds % 60, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)
