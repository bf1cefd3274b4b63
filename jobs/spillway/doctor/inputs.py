"""Checks of what a session is made of: calendar, query, broker, topics."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spillway import calendar
from spillway.calendar import CalendarError
from spillway.closing import GraceTooLong, must_outlast_grace
from spillway.decode import compile_streams
from spillway.doctor.check import Check, days, failed
from spillway.kafka import broker
from spillway.kafka.client import (
    AnotherCluster,
    KafkaCluster,
    KafkaRefuses,
    KafkaUnavailable,
    TopicProblem,
    absent_remedy,
    silence,
)
from spillway.kafka.held import demand_cluster
from spillway.kafka.options import OptionError
from spillway.protocol.queries import QueryChanged
from spillway.protocol.state import JournalState
from spillway.report.words import bytes_text
from spillway.tables import Warehouse, WarehouseError
from spillway_schemas.journal import EventTime
from spillway_schemas.messages import MOST_MS
from spillway_schemas.query import Query, load_query
from spillway_schemas.settings import Settings

DAY_MS = 24 * 3600 * 1000
LOG_APPEND = "set the topic's message.timestamp.type to LogAppendTime"
"""What mends dates that producers set."""
SESSIONS_AHEAD = 10
CONNECT_S = 10.0


def sessions(settings: Settings, now_ms: int) -> tuple[list[int], Check]:
    """Milliseconds from each close to the next, for the sessions ahead."""
    name = settings.session.days
    try:
        date = calendar.open_or_next(name, now_ms)
        closes = [calendar.close_ms(name, date)]
        for _ in range(SESSIONS_AHEAD):
            date = calendar.session_after(name, date)
            closes.append(calendar.close_ms(name, date))
    except (CalendarError, ValueError) as error:
        return [], Check(
            "calendar",
            "fail",
            str(error),
            "set session.calendar to an exchange calendar's name, or to 24/7 and a zone; "
            "session.overrides holds its days that are different",
        )
    spans = [after - before for before, after in itertools.pairwise(closes)]
    return spans, Check("calendar", "ok", f"{name} knows its closes up to {calendar.horizon(name)}")


def judge_close_delay(settings: Settings, close_delay_s: float) -> Check:
    """Whether the scheduler waits for the grace before it closes a day."""
    try:
        must_outlast_grace(settings.session.grace_s, close_delay_s)
    except GraceTooLong as error:
        return Check("close delay", "fail", error.what, error.mend)
    grace = f"grace of {settings.session.grace_s:g} s"
    return Check("close delay", "ok", f"{close_delay_s:g} s after a close, {grace} included")


def query_file(settings: Settings, query: Query | None = None) -> tuple[Query | None, Check]:
    """The query, the settings' where none is given, when its file is right."""
    name = settings.query if query is None else f"{query.name} as the open session began"
    try:
        query = query or load_query(settings.query)
        compile_streams(query)  # expressions are tried by this
        topics = ", ".join(sorted(query.topics))
    except ValueError as error:
        return None, Check("query", "fail", str(error), "mend the query file, or set query")
    return query, Check("query", "ok", f"{name} over {topics}")


@dataclass(frozen=True)
class Begun:
    """What a stream goes on with."""

    warehouse: Warehouse
    state: JournalState


def kafka(
    settings: Settings, query: Query | None, spans: Sequence[int], begun: Begun | None
) -> list[Check]:
    """The broker, and the query's topics: that they exist, keep a session's rows, and are those
    that the journal's offsets belong to. `begun`: None: there is no journal, or nobody asks."""
    servers = settings.kafka.bootstrap_servers
    if why := silence(servers, CONNECT_S):
        return [_absent(settings, why)]
    try:
        view = KafkaCluster(servers, settings.kafka.options, timeout_s=CONNECT_S)
    except OptionError as error:
        return [Check("broker", "fail", str(error), "mend kafka.options")]
    except KafkaRefuses as error:
        return [Check("broker", "fail", error.what, error.remedy)]
    except KafkaUnavailable as error:
        return [_absent(settings, error.what)]
    try:
        checks = [Check("broker", "ok", f"{servers}, cluster {view.cluster_id()}")]
        if begun is not None:
            demand_cluster(view, begun.state.genesis.cluster_id, servers)
        if query is not None:
            names = sorted(query.topics)
            topics = view.topics(names)
            configs = view.topic_configs(names)
            grace_ms = int(settings.session.grace_s * 1000)
            times = query.event_time
            if settings.session.carry and times is not None and times.kept_us is not None:
                grace_ms += times.kept_us // 1000  # rows of before the session are read again
            for topic in topics:
                config = configs[topic.name]
                checks += judge_topic(topic.name, topic.partitions, config, spans, grace_ms)
                checks += judge_times(topic.name, config, settings.session.boundary, times)
            if begun is not None:
                checks.append(_same_topics(begun, query, view))
        return checks
    except AnotherCluster as error:
        return [*checks, Check("journal", "fail", error.what, error.remedy)]
    except TopicProblem as error:
        return [*checks, Check("topics", "fail", error.what, error.remedy)]
    except KafkaUnavailable as error:
        return [Check("broker", "fail", error.what, "see the broker's log and try again")]
    finally:
        view.close()


def _same_topics(begun: Begun, query: Query, view: KafkaCluster) -> Check:
    """Whether a stream could go on where the journal ends: what it asks when it claims that."""
    from spillway.stream.genesis import StartRefused
    from spillway.stream.start import topics_to_claim

    try:
        topics_to_claim(begun.warehouse, begun.state, query, view)
    except (QueryChanged, StartRefused, WarehouseError, OSError) as error:
        # Tables, too: what commands that wait accept as lost need not be there.
        return failed("journal", str(error))
    return Check("journal", "ok", "the topics are those that its offsets belong to")


def _absent(settings: Settings, problem: str) -> Check:
    """Nothing answers as a Kafka: whose fault is it?"""
    server = settings.kafka.bootstrap_servers.split(",")[0]
    host, _, port = server.rpartition(":")
    if host not in ("127.0.0.1", "localhost"):
        return Check("broker", "fail", problem, absent_remedy(settings.kafka.bootstrap_servers))
    taken = broker.listener_of(int(port))
    if taken and not broker.status(Path(settings.kafka.data_dir)).running:
        return Check(
            "broker",
            "fail",
            f"port {port} is taken{taken}, which does not answer as a Kafka broker",
            "end that program, or set kafka.bootstrap_servers to another port",
        )
    if taken:
        return Check(
            "broker", "fail", problem, "restart it: 'spillway kafka stop', 'spillway kafka start'"
        )
    remedy = absent_remedy(settings.kafka.bootstrap_servers)
    return Check("broker", "fail", f"nothing listens at {server}", remedy)


def judge_times(
    name: str, config: Mapping[str, str], boundary: str, event_time: EventTime | None
) -> list[Check]:
    """What the times of a topic's records may do: whoever produces sets them with `CreateTime`.

    Kafka answers for a time with the first record that bears that time or a later one. So a record
    that is dated ahead moves the end of a day that is sought by time. A query with windows
    (`event_time`) judges by them whether a row's own time can be right, and which partitions are
    silent. An empty `config` is one that Kafka does not show to this user.
    """
    title, checks = f"times of topic {name}", []
    windowed = event_time is not None and name in event_time.topics
    if windowed and not config:
        what = "this user is not shown whether producers date its records; windows go by the dates"
        mend = "grant DescribeConfigs, or see that its message.timestamp.type is LogAppendTime"
        return [Check(title, "warn", what, mend)]
    if config.get("message.timestamp.type") != "CreateTime":
        return []
    if event_time is not None and windowed:
        what = "producers date its records: 'ahead' does not notice one whose clock is wrong"
        if event_time.idle_after_ms is not None:
            what += ", and 'idle_after' may pass over partitions that the stream is catching up on"
        checks.append(Check(title, "warn", what, LOG_APPEND))
    if boundary == "calendar":
        what = "producers date its records: one dated ahead moves where the calendar's day ends"
        checks.append(Check(title, "warn", what, LOG_APPEND))
    ahead_ms = int(config.get("message.timestamp.after.max.ms", "0"))
    if ahead_ms > DAY_MS:
        some = "any time" if ahead_ms >= MOST_MS else days(ahead_ms)
        what = f"producers may date records {some} ahead of the broker"
        mend = f"set the topic's message.timestamp.after.max.ms to {DAY_MS} or less"
        checks.append(Check(title, "warn", what, mend))
    return checks


def judge_topic(
    name: str, partitions: int, config: Mapping[str, str], spans: Sequence[int], grace_ms: int
) -> list[Check]:
    """Whether a topic keeps a session's input until its cleanup is done.

    `spans`: milliseconds from close to close of the sessions ahead. Compaction is refused: it
    removes rows that a join must see. Retention must reach over the shortest session at least;
    below the longest one (a weekend and holidays) plus grace plus a day for cleanup it warns. An
    empty `config` is one that Kafka does not show to this user.
    """
    title = f"topic {name}"
    enough = max(spans, default=0) + grace_ms + DAY_MS
    if not config:
        return [
            Check(
                title,
                "warn",
                f"{partitions} partitions; this user is not shown its settings, so how long rows "
                "are kept is not known",
                "grant DescribeConfigs on the topic, or see that its cleanup.policy is delete and "
                f"its retention.ms {enough} ({days(enough)}) or more",
            )
        ]
    if "compact" in config.get("cleanup.policy", ""):
        return [
            Check(
                title,
                "fail",
                f"cleanup.policy = {config['cleanup.policy']}: compaction removes rows",
                "use a topic with cleanup.policy = delete",
            )
        ]
    kept_ms = int(config.get("retention.ms", "-1"))
    checks = []
    least = min(spans, default=0) + grace_ms
    remedy = f"set the topic's retention.ms to {enough} ({days(enough)}) or more"
    if 0 <= kept_ms < least:
        what = f"rows are kept for {days(kept_ms)}; a session takes {days(least)}"
        checks.append(Check(title, "fail", what, remedy))
    elif 0 <= kept_ms < enough:
        what = (
            f"rows are kept for {days(kept_ms)}; the longest session ahead with a day for its "
            f"cleanup takes {days(enough)}"
        )
        checks.append(Check(title, "warn", what, remedy))
    kept_bytes = int(config.get("retention.bytes", "-1"))
    if kept_bytes >= 0:
        checks.append(
            Check(
                title,
                "warn",
                f"at most {bytes_text(kept_bytes)} a partition are kept: a busy day may be cut off",
                "set the topic's retention.bytes to -1, or see that a day fits",
            )
        )
    if checks:
        return checks
    kept = "for ever" if kept_ms < 0 else f"for {days(kept_ms)}"
    return [Check(title, "ok", f"{partitions} partitions, rows are kept {kept}")]
