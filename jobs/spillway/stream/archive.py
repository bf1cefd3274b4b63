"""Make the JVM's archive of Spark's classes: a step of `spillway setup`.

Spark loads some 15,000 classes before its first job. From an archive that the JVM maps into memory
(class data sharing) that takes 4 s less of every start. The archive is what a JVM had loaded at
its end, so one is started, made to do a little of all that our jobs do, and ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark

from spillway.stream.session import class_archive, spark_session

END_S = 120.0
"""A slow machine takes a minute, five seconds of it for writing 170 MB of classes."""


class NotMade(Exception):
    """There is no archive, and why."""


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


def write(made: Path) -> None:
    """Write the archive to `made`, by a JVM that ends here. Beside it lies what it worked with."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} -Xlog:cds=off"
    spark = spark_session("local[2]", "spillway set-up", streaming=True, delta=True)
    gateway = spark.sparkContext._gateway
    _exercise(spark, made.parent)
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def run(command: Sequence[str], within_s: float) -> None:
    """Run a command that says nothing, in a group of its own. Whatever ends it ends all of it.

    Raises `NotMade` when it fails, with its last line, and when it takes too long.
    """
    with tempfile.TemporaryFile() as told:  # a pipe stays open as long as any of its children lives
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=told,
            start_new_session=True,
        )
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise NotMade(f"not ready after {within_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        told.seek(0)
        said = told.read().decode(errors="replace").split("\n")
    if code:
        last = next((line for line in reversed(said) if line.strip()), f"ended with code {code}")
        raise NotMade(last.strip())


def make(target: Path) -> None:
    """Make the archive. Raises `NotMade`, and OSError for a folder that cannot be written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        made = Path(name) / target.name
        run([sys.executable, "-m", "spillway.stream.archive", str(made)], END_S)
        if not made.exists():
            raise NotMade("the JVM ended without writing them")
        made.replace(target)


def _is_newer_than_spark(path: Path) -> bool:
    return path.exists() and path.stat().st_mtime > Path(pyspark.__file__).stat().st_mtime


def ensure() -> None:
    """Make the archive unless it is there; a failure is told but does not fail the set-up.

    Nor is it tried again: every `make` would wait for it.
    """
    target = class_archive()
    failed = target.with_suffix(".failed")
    if any(map(_is_newer_than_spark, (target, failed))):
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # tidies up
    print("setup: Spark's classes, for faster starts", flush=True)
    try:
        make(target)
    except (NotMade, OSError) as error:  # everything works without it
        print(f"setup: Spark's classes: {error}, left out; Spark starts some seconds slower")
        with contextlib.suppress(OSError):
            failed.touch()
            print(f"setup: to try again, remove {failed}")


if __name__ == "__main__":  # as `make` calls it: a JVM that ends writes the archive
    write(Path(sys.argv[1]))
