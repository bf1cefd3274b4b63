"""The programs in plain Spark, as a user of Spark would write them, tuned for this machine.

    python -m benchmarks.side_by_side.peer copy|join|batch PLAN.json

All read with `from_json` and write with Spark's Delta writer; all have the same session
settings, client options and rows an epoch as spillway. What is tuned is said beside the setting.

The copy reads all topics with one query, parses each value once with the union of the fields,
and adds topic, partition and offset. The join reads each topic with a query of its own (Spark
would read a common one three times), and carries no coordinates (ours does: Spark is spared them).
Where the query has a window, each stream has a watermark with the query's lateness and all pairs of
times a bound; otherwise there is no watermark (state only grows, like ours). The batch join is the
same over all that Kafka holds, once: what somebody would run after the close instead of a cleanup.

Known limitation: Spark takes an ill-typed field for null, where spillway puts the row into
quarantine; so the benchmark's rows are all well-formed.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.side_by_side.contests import CONTESTS

STOP_S = 0.5
"""How often an endless peer looks whether it is to stop."""


@dataclass(frozen=True)
class PeerPlan:
    """What a peer is asked to do."""

    contest: str
    bootstrap: str
    table: str
    """Folder of the Delta table."""
    scratch: str
    """Folder for the checkpoint."""
    local: str
    """Spark's local folder: shuffle files, and RocksDB's working files."""
    outcome: str
    """File that the peer writes what it knows into."""
    master: str
    max_rows: int
    """Rows an epoch, of all topics."""
    driver_memory: str
    endless: bool
    """Goes on until SIGTERM, an epoch after the other; else until it has read what Kafka holds."""
    options: dict[str, str]
    """Further Spark settings, to try a tuning."""

    def write(self, path: Path) -> None:
        """Write it down for the peer."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


_COMMON = {
    # Timestamps as INT96 are larger and slower than this.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    # Two cores: more partitions are more tasks and more, smaller, state stores and files.
    "spark.sql.shuffle.partitions": "2",
}
_STATE = "spark.sql.streaming.stateStore"
_JOIN = {
    f"{_STATE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.join.stateFormatVersion": "3",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting keys costs a read before every write.
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
    # The default of 8 MB a store is for many stores a host; here there are four.
    f"{_STATE}.rocksdb.blockCacheSizeMB": "256",
}


def run(kind: str, plan: PeerPlan) -> None:
    """Run one peer."""
    from spillway.stream.session import spark_session

    stop = threading.Event()
    if plan.endless:
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    options = {
        **_COMMON,
        **(_JOIN if kind == "join" else {}),
        "spark.driver.memory": plan.driver_memory,
        "spark.local.dir": plan.local,
        **plan.options,
    }
    spark = spark_session(plan.master, f"benchmark {kind}", delta=True, options=options)
    try:
        if kind == "batch":
            rows, begun_s = _joined(spark.read, plan), time.time()
            rows.write.format("delta").mode("append").save(plan.table)
            _say(plan, begun_s, [])
            return
        rows = (_copied if kind == "copy" else _joined)(spark.readStream, plan)
        begun_s = time.time()
        writer = (
            rows.writeStream.format("delta")
            .outputMode("append")
            .option("checkpointLocation", f"{plan.scratch}/checkpoint")
        )
        # Without a trigger the next epoch begins at once.
        query = (writer if plan.endless else writer.trigger(availableNow=True)).start(plan.table)
        while not query.awaitTermination(STOP_S):
            if stop.is_set():
                query.stop()
        _say(plan, begun_s, [json.loads(each.json) for each in query.recentProgress])
    finally:
        spark.stop()


def _say(plan: PeerPlan, begun_s: float, progress: list[Any]) -> None:
    outcome = {"begun_at_s": begun_s, "progress": progress}
    Path(plan.outcome).write_text(json.dumps(outcome, indent=1) + "\n")


READING = {
    # At a topic's end each partition would wait half a second for more.
    "kafka.fetch.max.wait.ms": "20",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    # After every poll Spark asks the broker twice where the partition begins and ends.
    "kafka.max.poll.records": "20000",
}
"""With these Spark's source reads faster than with its defaults."""


def _values(reader: Any, plan: PeerPlan, topics: str, max_rows: int) -> Any:
    from spillway.stream.source import kafka_options
    from spillway_schemas.secret import revealed

    return (
        reader.format("kafka")
        .options(**revealed(kafka_options(plan.bootstrap, topics.split(","), {})))
        .options(**READING)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(max_rows))
        .load()
    )


def _parsed(kafka: Any, fields: dict[str, str], extra: tuple[str, ...] = ()) -> Any:
    from pyspark.sql.functions import col, from_json

    ddl = ", ".join(f"{name} {kind}" for name, kind in fields.items())
    value = from_json(col("value").cast("string"), ddl).alias("row")
    return kafka.select(*extra, value).select(*extra, "row.*")


def _copied(reader: Any, plan: PeerPlan) -> Any:
    topics = CONTESTS[plan.contest].fields
    fields = {name: kind for each in topics.values() for name, kind in each.items()}
    kafka = _values(reader, plan, ",".join(topics), plan.max_rows)
    return _parsed(kafka, fields, ("topic", "partition", "offset"))


def _within(one: Any, other: Any, seconds: int) -> Any:
    """Whether two times are at most so far apart, as Spark finds bounds for its state in it."""
    from pyspark.sql.functions import expr

    length = expr(f"INTERVAL {seconds} SECONDS")
    return (other >= one - length) & (other <= one + length)


def _joined(reader: Any, plan: PeerPlan) -> Any:
    from pyspark.sql.functions import timestamp_micros, unix_micros

    contest = CONTESTS[plan.contest]
    joined: Any = None
    for topic, fields in contest.fields.items():
        kafka = _values(reader, plan, topic, plan.max_rows // len(contest.fields))
        rows = _parsed(kafka, fields)
        for name in fields:
            rows = rows.withColumnRenamed(name, f"{topic}_{name}")
        if contest.window_s is not None:
            rows = rows.withWatermark(f"{topic}_ts", f"{contest.lateness_s} seconds")
        if joined is None:
            joined = rows
        else:
            ours, theirs = contest.on[topic]
            fits = joined[ours] == rows[theirs]
            for before in [each for each in contest.fields if f"{each}_ts" in joined.columns]:
                if contest.window_s is not None:
                    fits &= _within(joined[f"{before}_ts"], rows[f"{topic}_ts"], contest.window_s)
            joined = joined.join(rows, fits).drop(theirs)
            if contest.window_s is not None:
                # Spark writes and joins streams with one event time each: the first stream's.
                plain = timestamp_micros(unix_micros(f"{topic}_ts"))
                joined = joined.withColumn(f"{topic}_ts", plain)
    for key, column in contest.keys.items():
        joined = joined.withColumnRenamed(column, key)
    return joined


def main(arguments: list[str]) -> int:
    """Run the peer that the arguments name."""
    kind, plan = arguments
    run(kind, PeerPlan(**json.loads(Path(plan).read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
