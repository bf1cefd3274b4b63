"""Spark's Kafka source, which says how far to read: its options, and where a batch ends.

Spark's checkpoint is disposable: every start of the query uses a new folder and starts at the
journal's end offsets. Where a batch ends is read from that folder's offset log, which Spark
writes before it runs the batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from spillway_schemas.journal import Offsets
from spillway_schemas.secret import Options, revealed

ANSWER_MS = 10_000
"""How long Spark's source waits for brokers when it asks where topics end.

Its client asks the leader that it knows. Where that has just died it asks nobody else before this
is over: by Kafka's own default of a minute, while another broker leads after nine seconds.
"""


class OffsetLogError(RuntimeError):
    """Spark's offset log is not what this version of Spark writes."""


def kafka_options(
    bootstrap: str, topics: Iterable[str], client: Options
) -> dict[str, str | SecretStr]:
    """Options of the source. `client`: Java client names and values."""
    given: dict[str, str | SecretStr] = {
        f"kafka.{name}": value if isinstance(value, SecretStr) else str(value)
        for name, value in client.items()
    }
    ours = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": ",".join(sorted(set(topics))),
        # Tasks read what is committed alone: an epoch that ended beyond it would have to wait.
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
    }
    return _answer_times(client) | given | ours


def _answer_times(client: Options) -> dict[str, str | SecretStr]:
    """`ANSWER_MS` for one request and for a question with its repetitions, as far as the client's
    options leave it open: Kafka wants the second to be no less than the first."""
    request, whole = "request.timeout.ms", "default.api.timeout.ms"
    known = revealed(client)
    given = {name: int(known[name]) for name in (request, whole) if name in known}
    return {
        f"kafka.{request}": str(min(ANSWER_MS, given.get(whole, ANSWER_MS))),
        f"kafka.{whole}": str(max(ANSWER_MS, given.get(request, ANSWER_MS))),
    }


def spark_offsets(offsets: Offsets) -> str:
    """Offsets in the JSON form of Spark's `startingOffsets`."""
    return json.dumps(
        {topic: {str(p): end for p, end in enumerate(ends)} for topic, ends in offsets.items()}
    )


def stream_rows(spark: Any, options: Options, start: Offsets) -> Any:
    """The streaming frame that says how far Kafka goes, from `start`. Nobody reads it: an epoch's
    tasks read Kafka themselves (`spillway.stream.messages`). So a batch may have any number of
    rows."""
    reader = spark.readStream.format("kafka").options(**revealed(options))
    return reader.option("startingOffsets", spark_offsets(start)).load()


def batch_end(checkpoint: Path, batch: int) -> Offsets:
    """Where a batch ends, from the checkpoint's offset log. Raises `OffsetLogError`."""
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise OffsetLogError(f"Spark's offset log {path} cannot be read: {error}") from error
    if len(lines) < 3 or not lines[0].startswith("v"):
        raise OffsetLogError(f"Spark's offset log {path} has an unknown form: {lines[:1]}")
    found: dict[str, dict[str, int]] = json.loads(lines[2])
    return {
        topic: [ends[str(p)] for p in range(len(ends))] for topic, ends in sorted(found.items())
    }
