"""What a failed job or query means: whether trying again helps, and what is told of it.

A job is an attempt at an epoch (`cause_of`; `spillway.protocol.failing` decides). When the query
has failed the broker is away and may come back, or the stream ends.

Told by the names that Spark and Kafka give failures: Spark's error conditions and the classes of
the exceptions. An exception of the driver's own has them; that of a task comes as its text alone,
in which they stand whole.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from spillway.kafka.client import TIMEOUT_S, KafkaUnavailable, TopicMissing, cluster
from spillway.kafka.reading import OffsetsGone, TopicDeleted
from spillway.protocol.state import changed_topics
from spillway.registry import RegistryUnavailable, SchemaTrouble
from spillway.storage.folders import remedy
from spillway.stream.run import StreamFailed
from spillway_schemas.journal import Topic
from spillway_schemas.secret import Options, hide
from spillway_schemas.setting_fields import KafkaSettings

# --- an attempt at an epoch ----------------------------------------------------------------

_TELLING = re.compile(r"(?:Error|Exception): |^spillway[a-z_.]*\.[A-Z]\w*: ")
_STORAGE = re.compile(r"StorageError: (cannot .*)")
FULL = (
    "StorageError: ",
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
)
"""How a folder that cannot be written shows in Spark's texts: from our workers, from its JVM."""
NO_FILES = re.compile("too many open files", re.IGNORECASE)
"""How a process that may open no more files shows there, whatever it was that it opened."""
_RAISE = remedy(errno.EMFILE)
LOST_DATA = frozenset(
    {
        "KAFKA_DATA_LOSS",
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        "org.apache.kafka.clients.consumer.OffsetOutOfRangeException",
        f"{OffsetsGone.__module__}.{OffsetsGone.__name__}",
    }
)
"""Spark's error conditions and the classes of exceptions where rows that the journal's offsets name
are gone."""
CANCELLED = "[SPARK_JOB_CANCELLED]"
"""How a job shows there that ended because somebody said so: `Placement.watched`, which has told
why, or a person in Spark's page."""
_AWAY = f"{KafkaUnavailable.__module__}.{KafkaUnavailable.__name__}: "
"""How brokers that do not answer a task show in Spark's texts."""
_DELETED = f"{TopicDeleted.__module__}.{TopicDeleted.__name__}: "
"""How a topic that is none any more, or another one, shows in Spark's texts."""
_WHAT_WAS_DELETED = re.compile(re.escape(_DELETED) + "(.*)")


def cause_of(text: str) -> Literal["lost", "raised", "storage", "gone", "deleted", "schemas"]:
    """What an error of Spark's is about: see `spillway.protocol.failing`."""
    if (trouble := SchemaTrouble.told_by(RuntimeError(text))) is not None:
        return "lost" if isinstance(trouble, RegistryUnavailable) else "schemas"
    if any(mark in text for mark in FULL) or NO_FILES.search(text):
        return "storage"
    if _DELETED in text:
        return "deleted"
    if any(mark in text for mark in LOST_DATA):
        return "gone"
    if _AWAY in text:
        return "lost"
    # A worker that dies leaves no traceback of Python's; one whose code raises always does.
    return "raised" if "Traceback (most recent call last)" in text else "lost"


def first_lines(error: BaseException, secrets: Options, most: int = 600) -> str:
    """The telling part of an error: Spark puts the Python worker's last line far down.

    Without `secrets`, and without parts of them: they are hidden before anything is cut.
    """
    text = hide(str(error), secrets)
    if told := _STORAGE.search(text):
        return told[1][:most]
    if trouble := SchemaTrouble.told_by(RuntimeError(text)):
        return str(trouble)[:most]
    if told := _WHAT_WAS_DELETED.search(text):
        return told[1][:most]
    if CANCELLED in text:
        return "its Spark job was cancelled"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    found = " | ".join(dict.fromkeys([*lines[:1], *telling[-2:]]))[:most]
    if NO_FILES.search(text) and _RAISE not in found:
        return f"{found} (too many open files: {_RAISE})"
    return found


# --- the query -----------------------------------------------------------------------------

AWAY = frozenset(
    {
        *(
            f"org.apache.kafka.common.errors.{name}Exception"
            for name in (
                "BrokerNotAvailable",
                "CoordinatorNotAvailable",
                "Disconnect",
                "LeaderNotAvailable",
                "Network",
                "NotLeaderOrFollower",
                "Timeout",
                "UnknownTopicOrPartition",
            )
        ),
        f"{KafkaUnavailable.__module__}.{KafkaUnavailable.__name__}",
        "java.net.ConnectException",
        "java.net.NoRouteToHostException",
    }
)
"""No broker answers, or none that leads the partition; one that has just started does not know all
topics yet."""
DELETES = frozenset({*LOST_DATA, "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"})
"""What a topic that was deleted looks like, among other things."""
OF_THE_JVM = (StreamFailed, Py4JError, ConnectionError, EOFError)
"""What the stream ends with when its JVM is gone, among other things."""
UNRESOLVED = "No resolvable bootstrap urls"
"""Kafka has no class of its own for addresses that no name server knows."""
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
    names = frozenset(_names(failure))
    if failure is not None and names & LOST_DATA:
        said = first_lines(failure, secrets)
        return StreamFailed(
            "Kafka no longer gives the rows that the journal's offsets name (retention too "
            "short, or a topic was made anew). Nothing wrong was written. Start it again: it says "
            f"which rows are gone, and what can be done. Spark says: {said}"
        )
    if not (isinstance(failure, KafkaUnavailable) or names & AWAY or UNRESOLVED in said):
        where = ""
        if any(mark in said for mark in FULL):
            where = f". Spark writes to its temporary folder (TMPDIR) and to {checkpoint}"
        told = first_lines(failure, secrets) if failure is not None else "Spark does not say why"
        return StreamFailed(f"the stream failed: {told}{where}")
    if away_s > AWAY_S:
        return StreamFailed(f"Kafka has been away for {AWAY_S:.0f} s: {text}")
    return None


def deleted(
    failure: BaseException | None, kafka: KafkaSettings, topics: Sequence[Topic]
) -> StreamFailed | None:
    """What a failed query ends the stream with when one of its topics was deleted, or another one
    has its name; None: the failure says nothing of this kind, or as `topic_gone` says."""
    if not DELETES.intersection(_names(failure)):
        return None
    return topic_gone(kafka, topics)


def topic_gone(
    kafka: KafkaSettings, topics: Sequence[Topic], timeout_s: float = TIMEOUT_S
) -> StreamFailed | None:
    """What the stream ends with where one of its topics was deleted by now, or another one has its
    name; None: all is as it was, or no broker answers in time. `topics`: as the journal knows them.

    A broker that has just started may not know a topic yet. Raises `TopicProblem` for one that this
    user may not see."""
    place, options = kafka.bootstrap_servers, kafka.options
    with suppress(KafkaUnavailable), cluster(place, options, timeout_s) as view:
        try:
            problem = changed_topics(topics, view.topics([topic.name for topic in topics]))
        except TopicMissing as error:
            problem = f"{error.what} any more"
        if problem:
            return StreamFailed(f"{TopicDeleted(problem)}. Results so far are right")
    return None


_CLASS = re.compile(r"(?<![\w.])(?:[a-z][a-z0-9_]*+\.)++[A-Z]\w*")
"""Possessive: a text of many dots is gone through once."""
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*)(?:\.[A-Z0-9_]+)?\]")


def _names(failure: BaseException | None) -> Iterator[str]:
    """The classes of a failure and its causes, and Spark's error conditions, without their parts.

    A KafkaUnavailable, too, may have been raised from one; the text says what no object does.
    """
    thrown = _java(failure)
    with suppress(Py4JError, OSError):  # the JVM is gone: what it said is left
        while thrown is not None:
            yield str(thrown.getClass().getName())
            thrown = thrown.getCause()
    text = str(failure)
    yield from _CLASS.findall(text)
    yield from _CONDITION.findall(text)


def _java(failure: BaseException | None) -> Any:
    """The exception of Java that stands behind one of Python; None: there is none."""
    if isinstance(failure, CapturedException):
        return failure._origin
    return failure.java_exception if isinstance(failure, Py4JJavaError) else None
