"""Files that the embedded broker is started with: pure text from a few numbers.

One node that is broker and controller at once (KRaft), every listener on loopback, every
replication factor 1, and sizes for a laptop: what matters is that a session's input is kept until
its cleanup is done, and that a value of 5 MB passes.
"""

from __future__ import annotations

from pathlib import Path

HOST = "127.0.0.1"
"""Every listener binds here and nowhere else."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest record batch: DESIGN's largest value is 5 MB, and a batch carries more than one."""
FOREVER_MS = 2**63 - 1
AHEAD_MS = 24 * 3600 * 1000
"""How far ahead of the broker's clock a producer may date a record."""


def server_properties(data: Path, port: int, controller_port: int) -> str:
    """`server.properties` of a node that keeps its log under `data`."""
    lines = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"CLIENTS://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"CLIENTS://{HOST}:{port}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
        "log.dirs": data,
        # A misspelt topic is an error, not a new topic.
        "auto.create.topics.enable": "false",
        "num.partitions": 4,
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "replica.fetch.max.bytes": MAX_MESSAGE_BYTES,
        # Replays may carry the timestamps of a day long ago, and retention by time would take their
        # rows within minutes: rows go when their topic does. Of a day to come, records may be no
        # further ahead than clocks and time zones are wrong: one of the year 2100 would hold up
        # what looks for offsets by time.
        "log.retention.ms": -1,
        "log.message.timestamp.before.max.ms": FOREVER_MS,
        "log.message.timestamp.after.max.ms": AHEAD_MS,
        "log.segment.bytes": 256 * 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "num.recovery.threads.per.data.dir": 2,
        "background.threads": 2,
        "log.cleaner.threads": 1,
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        "controller.quorum.election.timeout.ms": 200,
        "controller.quorum.fetch.timeout.ms": 1000,
        "broker.heartbeat.interval.ms": 500,
        "broker.session.timeout.ms": 9000,
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


LOG4J = """Configuration:
  status: ERROR
  Appenders:
    Console:
      name: console
      PatternLayout:
        pattern: "%d{ISO8601} %p %m (%c{1})%n%throwable"
  Loggers:
    Root:
      level: WARN
      AppenderRef:
        - ref: console
    Logger:
      - name: kafka.server.KafkaRaftServer
        level: INFO
"""
"""Logging to the standard output, which is the log file; warnings only, so that it stays small."""


def java_options(folder: Path, heap_mb: int) -> list[str]:
    """Options of the JVM: a small heap with short pauses, IPv4, our logging."""
    return [
        f"-Xms{min(heap_mb, 128)}m",
        f"-Xmx{heap_mb}m",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        "-Djava.net.preferIPv4Stack=true",
        f"-Dlog4j2.configurationFile={(folder / 'log4j2.yaml').as_uri()}",
        f"-Dkafka.logs.dir={folder}",
    ]
