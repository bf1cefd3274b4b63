"""The Spark sessions of the jobs: the settings that correctness rests on, in one place.

The streaming job's exactness rests on a slot's task running where its state lies, and on the
anchor frame meeting its blocks in one partition. The settings in `REQUIRED` make both so; the
job refuses to start when one of them has another value.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spillway.jars import demand_java, jar_paths
from spillway.places import var_folder
from spillway_schemas.exits import USAGE
from spillway_schemas.setting_fields import own_cores

REQUIRED = {
    "spark.locality.wait": "1h",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.sql.unionOutputPartitioning": "true",
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
}
"""At Spark's defaults a slow task moved slots, an uneven shuffle moved 20 of 80 steps, a union
ran a slot as two tasks; speculation and adaptive execution would do the same."""

SECRET_NAMES = "(?i)secret|password|token|credential|jaas|access[.]?key|[.]sasl[.]|[.]ssl[.]"
"""Names whose values Spark's UI and plans hide."""

_STREAMING = {
    **REQUIRED,
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Two fewer processes started a file than the default, which is for stores that we do not use.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    # Blocks have digests of their own, and two attempts of an epoch need not agree.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    # A lost executor costs one job; the protocol runs the epoch again with what it knows.
    "spark.task.maxFailures": "4",
}
_ALL = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Blocks are few and large; a batch of Arrow holds at most 2 GiB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    # Spark's own lists know of passwords and tokens, not of login modules.
    "spark.redaction.regex": SECRET_NAMES,
    "spark.sql.redaction.options.regex": SECRET_NAMES,
}
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}


LOCAL_HEAP = "2g"
"""The JVM's heap when all of Spark lives in it. `docker/` counts it against its memory limits."""

FEW_CORES = 2
"""Up to here the JVM's own threads take the cores from the join."""

_FEW_CORES_JVM = (
    # A concurrent collector's threads: a benchmark's epochs took 7 % less CPU without them.
    "-XX:+UseSerialGC",
)
_PATIENT_JVM = (
    # The optimising compiler waits four times as long as by default before it takes a method.
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=2400",
    "-XX:Tier4CompileThreshold=40000",
    "-XX:Tier4BackEdgeThreshold=160000",
)
"""Of jobs in which Spark itself works on rows."""
_STREAMING_JVM = (
    # No optimising compiler. Rows never reach the streaming job's JVM: it plans epochs and hands on
    # blocks. In 91 epochs that compiler took 8 of its 28 CPU seconds, in 600 epochs 17 of 86, and
    # an epoch did not become cheaper by it.
    "-XX:TieredStopAtLevel=1",
)


class SettingsRefused(Exception):
    """Spark runs with a setting under which the join would not be exact."""

    exit_code = USAGE


@contextlib.contextmanager
def spark_on_demand(
    master: str, name: str, on_stop: Callable[[], None] = lambda: None
) -> Iterator[Callable[[], Any]]:
    """Give a function that starts a session for a batch job, and stop what it has started.

    `on_stop`: called before that, for stopping takes seconds.
    """
    started: list[Any] = []

    def start() -> Any:
        started.append(spark_session(master, name))
        return started[-1]

    try:
        yield start
    finally:
        for spark in started:
            on_stop()
            spark.stop()


def spark_session(
    master: str,
    app: str,
    *,
    options: dict[str, str] | None = None,
    streaming: bool = False,
    delta: bool = False,
) -> Any:
    """Start (or get) the session of a job. `options`: the user's own, checked against `REQUIRED`.

    Raises `SettingsRefused` for an option under which the streaming job would not be exact,
    `JavaError` and `JarError` when Java or Spark's jars are not there.
    """
    demand_java()
    wanted = {**_ALL, **(_STREAMING if streaming else {}), **(_DELTA if delta else {})}
    java = f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')}"
    wanted["spark.executor.extraJavaOptions"] = java
    if master.startswith("local[") and own_cores() <= FEW_CORES:
        java = " ".join([java, *_FEW_CORES_JVM, *(_STREAMING_JVM if streaming else _PATIENT_JVM)])
    if class_archive().exists():
        # The JVM compares it with itself and its class path, and goes on without it otherwise.
        java += f" -XX:SharedArchiveFile={class_archive()} -Xlog:cds=off -Xlog:cds+dynamic=off"
    wanted["spark.driver.extraJavaOptions"] = java
    wanted["spark.jars"] = ",".join(str(jar) for jar in jar_paths("spark"))
    loopback = {}
    if master.startswith("local"):
        # Never reachable from outside: an embedded Spark listens on the loopback only.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if master.startswith("local["):
        loopback["spark.driver.memory"] = LOCAL_HEAP
        # The shuffle's files never leave the page cache of this machine.
        loopback["spark.shuffle.compress"] = "false"
    wanted = {"spark.ui.enabled": "false", **loopback, **wanted, **(options or {})}
    if streaming:
        refuse_wrong(wanted)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_HOME", _spark_home())

    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if streaming:
        refuse_wrong({name: spark.conf.get(name, "") for name in REQUIRED})
        _leave_sigterm_to_us(spark)
    return spark


def _leave_sigterm_to_us(spark: Any) -> None:
    """Have the driver's JVM ignore SIGTERM, as pyspark has it ignore SIGINT: who ends a process
    group means this process, which ends its epoch first, and then the JVM.

    A JVM with `-Xrs` leaves signals to the system, and cannot be asked. It ends at once, and its
    epoch is read again, as after any other kill.
    """
    from py4j.protocol import Py4JJavaError

    java = spark.sparkContext._jvm.sun.misc
    with contextlib.suppress(Py4JJavaError):
        java.Signal.handle(java.Signal("TERM"), java.SignalHandler.SIG_IGN)


def refuse_wrong(values: dict[str, str]) -> None:
    """Raise `SettingsRefused` when a required setting has another value."""
    wrong = {k: values.get(k) for k, v in REQUIRED.items() if values.get(k) != v}
    if wrong:
        lines = ", ".join(f"{k} = {v!r} (needs {REQUIRED[k]!r})" for k, v in wrong.items())
        raise SettingsRefused(
            f"Spark's settings would move state away from its slot: {lines}. "
            "Remove them from spark-defaults.conf or SPARK_CONF_DIR."
        )


def class_archive() -> Path:
    """Spark's classes as the JVM holds them in memory; `spillway.stream.archive` makes it."""
    return var_folder() / "jars" / "spark.jsa"


def _spark_home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)
