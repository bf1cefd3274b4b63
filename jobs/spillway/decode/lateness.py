"""Rows that came too late, or from a clock that is wrong, by `spillway_schemas.windows`: rejected.

Apart from `decode`: what a value says follows from its bytes alone, and these verdicts follow from
its time, its coordinate, its Kafka time and the journal. So a row is judged alike when it is read
again, to restore state or to prove a session.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from spillway.decode import Decoded, Rows, RowTimes, StreamPlan
from spillway_schemas.windows import ahead, early_us, late


def judged(
    plan: StreamPlan, decoded: Decoded, kafka_ms: Rows, watermark_us: Rows, ahead_us: int
) -> Decoded:
    """The same with late rows, and rows that are ahead, rejected; those ahead are not heard.

    Args:
        plan: of a stream that has a time.
        kafka_ms: Kafka's time of each value, int64 (n,).
        watermark_us: of the epoch before each value's, int64 (n,).
        ahead_us: how much a time may be ahead of Kafka's.
    """
    assert decoded.times is not None, "its plan has a time"
    heard, heard_us = decoded.times.heard, decoded.times.heard_us
    believed = ~ahead(heard_us, kafka_ms[heard], ahead_us)
    heard, heard_us = heard[believed], heard_us[believed]
    rows, times = decoded.kept, decoded.times.kept_us
    wrong = ahead(times, kafka_ms[rows], ahead_us)
    too_late = late(times, watermark_us[rows]) & ~wrong
    out = wrong | too_late
    told = RowTimes(times[~out], heard, heard_us)
    if not out.any():
        return replace(decoded, times=told)
    early = early_us(times, kafka_ms[rows])
    late_us = watermark_us[rows] - times
    reasons = dict(zip(decoded.rejected.tolist(), decoded.reasons, strict=True))
    for at in np.flatnonzero(out).tolist():
        if wrong[at]:
            reason = f"{early[at] / 1e6:.3f} s ahead of Kafka, {ahead_us / 1e6:g} s allowed"
        else:
            reason = f"late by {late_us[at] / 1e6:.3f} s: the watermark has passed it"
        reasons[int(rows[at])] = f"{plan.time}: {reason}"
    rejected = np.array(sorted(reasons), np.int64)
    return replace(
        decoded,
        rows=decoded.rows.filter(pa.array(~out)),
        kept=rows[~out],
        times=told,
        rejected=rejected,
        reasons=[reasons[at] for at in rejected.tolist()],
    )
