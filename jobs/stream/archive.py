"""Make the JVM's archive of Spark's classes: `python -m jobs.stream.archive`, a step of the set-up.

Spark loads some 15,000 classes before its first job. From an archive that the JVM maps into memory
(class data sharing) that takes 4 s less of every start. The archive is what a JVM had loaded at
its end, so one is started, made to do a little of all that our jobs do, and ended.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyspark

from jobs.stream.session import class_archive, spark_session

END_S = 120.0
"""Writing 170 MB of classes takes five seconds."""


def _same(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def _exercise(spark: Any, folder: Path) -> None:
    """A streaming query over a table, with a shuffle, Python and a union in its batch."""

    def each(rows: Any, _: int) -> None:
        numbers = rows.mapInArrow(_same, rows.schema)
        numbers.unionAll(numbers.repartition(2, "id")).mapInArrow(_same, rows.schema).collect()

    table, checkpoint = str(folder / "table"), str(folder / "checkpoint")
    spark.range(1000).write.parquet(table)
    writer = spark.readStream.schema("id long").parquet(table).writeStream.foreachBatch(each)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()


def make(target: Path) -> None:
    """Write the archive. Raises RuntimeError when the JVM gave none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        made = Path(name) / target.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} -Xlog:cds=off"
        spark = spark_session("local[2]", "spillway set-up", streaming=True, delta=True)
        gateway = spark.sparkContext._gateway
        _exercise(spark, Path(name))
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=END_S)
        if not made.exists():
            raise RuntimeError("the JVM ended without writing its classes")
        made.replace(target)


def main() -> int:
    """Make the archive unless it is there; a failure is told but does not fail the set-up."""
    target = class_archive()
    if target.exists() and target.stat().st_mtime > Path(pyspark.__file__).stat().st_mtime:
        return 0
    print("setup: Spark's classes, for faster starts", flush=True)
    try:
        make(target)
    except Exception as error:  # noqa: BLE001 -- everything works without it
        print(f"setup: not made ({error}); Spark will take some seconds longer to start")
    return 0


if __name__ == "__main__":
    sys.exit(main())
