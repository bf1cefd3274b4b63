"""What a failed query means: the broker is away and may come back, or the stream ends."""

from __future__ import annotations

from pathlib import Path

from spillway.kafka.client import KafkaUnavailable
from spillway.stream.driver import FULL, first_lines
from spillway.stream.run import StreamFailed
from spillway_schemas.secret import Options, hide

LOST_DATA = ("OffsetOutOfRange", "data may have been lost", "data loss", "was changed from")
AWAY = (
    "TimeoutException",
    "DisconnectException",
    "BrokerNotAvailable",
    "NetworkException",
    "No resolvable bootstrap",
    "Connection refused",
    "TimeoutError",
)
AWAY_S = 600.0
"""How long a broker may be away before the stream ends with an error."""


def beyond_mending(
    failure: BaseException | None, away_s: float, checkpoint: Path, secrets: Options
) -> StreamFailed | None:
    """What a failed query, `away_s` seconds after the first one, ends the stream with.

    None: the broker is away and may come back. `secrets` are not told.
    """
    said = str(failure)
    text = hide(said, secrets)
    if any(mark in said for mark in LOST_DATA):
        return StreamFailed(
            "Kafka no longer gives the rows that the journal's offsets name (retention too "
            "short, or a topic was made anew). Nothing wrong was written. Check with "
            f"`spillway doctor`. Spark says: {text.splitlines()[0]}"
        )
    if not isinstance(failure, KafkaUnavailable) and not any(mark in said for mark in AWAY):
        where = ""
        if any(mark in said for mark in FULL):
            where = f". Spark writes to its temporary folder (TMPDIR) and to {checkpoint}"
        told = first_lines(failure, secrets) if failure is not None else "Spark does not say why"
        return StreamFailed(f"the stream failed: {told}{where}")
    if away_s > AWAY_S:
        return StreamFailed(f"Kafka has been away for {AWAY_S:.0f} s: {text}")
    return None
