"""How a session's rows were judged by their times: the journal knows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spillway.protocol.offsets import padded
from spillway.protocol.recovery import judging, watermarks_of
from spillway_schemas.journal import Claim, Epoch, Genesis, Sealed
from spillway_schemas.windows import Judging


@dataclass(frozen=True)
class Timing:
    """How the rows of a session were judged by their times. Those of corrections, of partitions
    below zero, are not: a closed session has no watermark."""

    ahead_us: int
    judgings: Mapping[tuple[str, int], Judging]
    """By topic and partition."""
    begins: Mapping[tuple[str, int], int]
    """The offset of the session's first row; those before it are carried."""


def timing_of(
    genesis: Genesis, sealed: Sealed, entries: Iterable[Genesis | Claim | Epoch]
) -> Timing | None:
    """How the session's rows were judged by their times; None: the query has no window."""
    event_time = genesis.event_time
    if event_time is None:
        return None
    # Of a changed query, no time of the query before.
    epochs = (e for e in entries if isinstance(e, Epoch) and e.epoch > genesis.after)
    marks = watermarks_of(None if genesis.carry else sealed.session, epochs)
    places = [(topic, p) for topic, ends in sealed.end.items() for p in range(len(ends))]
    begins = padded(sealed.start, sealed.end)
    return Timing(
        event_time.ahead_us,
        {(topic, p): judging(marks, topic, p) for topic, p in places},
        {(topic, p): begins[topic][p] for topic, p in places},
    )
