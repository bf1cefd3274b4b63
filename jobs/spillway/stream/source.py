"""The Kafka source: options for Spark, and where a batch ends.

Spark's checkpoint is disposable: every start of the query uses a new folder and starts at the
journal's end offsets. Where a batch ends is read from that folder's offset log, which Spark
writes before it runs the batch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from spillway.decode.chunks import COLUMNS
from spillway_schemas.journal import Offsets
from spillway_schemas.secret import Options, revealed


class OffsetLogError(RuntimeError):
    """Spark's offset log is not what this version of Spark writes."""


def kafka_options(
    bootstrap: str, topics: Iterable[str], client: Options
) -> dict[str, str | SecretStr]:
    """Options that stream and batch reading share. `client`: Java client names and values."""
    ours: dict[str, str | SecretStr] = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": ",".join(sorted(set(topics))),
        # At a topic's end each partition would wait half a second for more.
        "kafka.fetch.max.wait.ms": "20",
        "kafka.isolation.level": "read_committed",
        "kafka.max.partition.fetch.bytes": str(8 << 20),
        # After every poll Spark asks the broker twice where the partition begins and ends.
        "kafka.max.poll.records": "20000",
        "failOnDataLoss": "true",
    }
    for name, value in client.items():
        ours[f"kafka.{name}"] = value if isinstance(value, SecretStr) else str(value)
    return ours


def spark_offsets(offsets: Offsets, of: Mapping[str, Collection[int]] | None = None) -> str:
    """Offsets in the JSON form of Spark's `startingOffsets` and `endingOffsets`. `of`: these
    partitions alone."""
    return json.dumps(
        {
            topic: {
                str(p): end for p, end in enumerate(ends) if of is None or p in of.get(topic, ())
            }
            for topic, ends in offsets.items()
            if of is None or topic in of
        }
    )


def stream_rows(spark: Any, options: Options, start: Offsets, max_rows: int) -> Any:
    """The streaming frame of `COLUMNS`, from `start`, at most `max_rows` rows a batch."""
    reader = spark.readStream.format("kafka").options(**revealed(options))
    reader = reader.option("startingOffsets", spark_offsets(start))
    return reader.option("maxOffsetsPerTrigger", str(max_rows)).load().select(*COLUMNS)


def batch_rows(spark: Any, options: Options, start: Offsets, end: Offsets) -> Any:
    """The rows from `start` up to (not including) `end`, as a batch frame of `COLUMNS`.

    Of the partitions that the offsets name and that have such rows: with `subscribe` Spark refuses
    offsets that lack one which a topic has gained since, and a topic may be gone of which none are
    wanted.
    """
    every = {topic: list(range(len(ends))) for topic, ends in end.items()}
    named = {
        topic: wanted
        for topic, all_ in every.items()
        if (wanted := [p for p in all_ if start[topic][p] < end[topic][p]])
    } or every
    own = {name: value for name, value in options.items() if name != "subscribe"}
    reader = spark.read.format("kafka").options(**revealed(own)).option("assign", json.dumps(named))
    reader = reader.option("startingOffsets", spark_offsets(start, named))
    return reader.option("endingOffsets", spark_offsets(end, named)).load().select(*COLUMNS)


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
