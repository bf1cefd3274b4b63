"""The doctor's judgements: what is ok, what warns, what stops a start, and how to mend it."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spillway.decode import tree_spec
from spillway.doctor import blocking, check_all, machine, table
from spillway.doctor.check import days, failed
from spillway.doctor.inputs import judge_times, judge_topic, sessions
from spillway.doctor.machine import (
    budget,
    judge_jars,
    judge_memory,
    judge_packages,
    judge_python,
    programs,
)
from spillway.engine.join.results import result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.jars import JavaError, demand_java
from spillway.tables import Warehouse
from spillway_schemas.journal import EventTime, Offsets, Topic
from spillway_schemas.query import Query, load_query
from spillway_schemas.settings import Settings, load_settings
from tests.commands import command_of
from tests.new_warehouse import new_warehouse
from tests.protocol_entries import claim, epoch, genesis

HOUR = 3_600_000
GIB = 1 << 30
SPILL = command_of("spill", "d/s", slot=0, bytes=1)
SPANS = [24 * HOUR] * 4 + [72 * HOUR]


@pytest.fixture
def installed(monkeypatch):
    """Spillway was installed from a wheel: there is no Makefile."""
    monkeypatch.setattr(machine, "checkout", lambda: None)


def test_a_failure_has_the_remedy_of_its_error_and_no_other() -> None:
    told = failed("tables", "results: x should have 9 bytes and is gone. Restore it from a backup")
    assert (told.what, told.mend) == (
        "results: x should have 9 bytes and is gone",
        "Restore it from a backup",
    )
    assert failed("tables", "odd").mend == "see docs/runbook.md in spillway's source"


def test_python():
    assert judge_python((3, 11, 0)).status == "ok"
    assert judge_python((3, 10, 9)).status == "fail"
    assert judge_python((3, 10, 9)).mend == "install Python 3.11 or newer and run 'make setup'"


def test_where_there_is_no_makefile_pip_mends_it(installed):
    old = judge_python((3, 10, 9))
    assert old.mend == "install Python 3.11 or newer and install spillway with it"
    wanted = {"pyspark": "4.2.0", "delta-spark": "4.4.0", "deltalake": "1.6.6"}
    other = judge_packages(wanted, {"pyspark": "4.2.0", "deltalake": "1.6.5"})
    assert other.mend == "run 'pip install delta-spark==4.4.0 deltalake==1.6.6'"
    spoilt = judge_packages(wanted, wanted | {"pyspark-client": "4.2.0"})
    assert spoilt.mend == (
        "remove it, run 'pip install --force-reinstall --no-deps pyspark==4.2.0'"
    )


@pytest.mark.parametrize(
    ("output", "status", "what"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok", "17 ("),
        ('openjdk version "21" 2023-09-19', "ok", "21 ("),
        ('java version "1.8.0_392"', "fail", "is version 8; Spark and Kafka need 17 or 21"),
        ('openjdk version "11.0.2" 2019-01-15', "fail", "is version 11; Spark and Kafka need"),
        ("not java at all", "fail", "is version unknown; Spark and Kafka need 17 or 21"),
        (None, "fail", "no java in JAVA_HOME ("),
    ],
)
def test_java(output, status, what, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if output is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
        java.chmod(0o755)
    [check] = [each for each in programs() if each.name == "java"]
    assert (check.status, what in check.what) == (status, True)
    assert bool(check.mend) == (status == "fail")
    if status == "ok":
        demand_java()
    else:
        with pytest.raises(JavaError, match=": install a Java 17 runtime and set JAVA_HOME to it"):
            demand_java()


def test_jars(tmp_path):
    assert judge_jars([], 56, tmp_path).status == "ok"
    gone = judge_jars([("a.jar", "missing"), ("b.jar", "missing")], 56, tmp_path)
    assert gone.what == f"2 of 56 are not in {tmp_path}: a.jar, ..."
    assert gone.mend == "run 'spillway setup'"
    altered = judge_jars([("a.jar", "has SHA-256 1, the lock says 2")], 56, tmp_path)
    assert altered.what.endswith("missing or altered: a.jar has SHA-256 1, the lock says 2")
    assert altered.mend == f"remove {tmp_path / '.locked'} and run 'spillway setup'"


def test_packages():
    wanted = {"pyspark": "4.2.0", "deltalake": "1.6.6"}
    assert judge_packages(wanted, wanted | {"pyspark-client": None}).status == "ok"
    spoilt = judge_packages(wanted, wanted | {"pyspark-client": "4.2.0"})
    assert spoilt.status == "fail"
    assert "overwrites" in spoilt.what
    assert spoilt.mend == "remove it, remove .venv and run 'make setup'"
    other = judge_packages(wanted, {"pyspark": "4.3.0", "deltalake": None})
    assert other.what == "pyspark 4.3.0 (locked: 4.2.0), deltalake missing (locked: 1.6.6)"
    assert other.mend == "run 'make setup' and use its .venv"


@pytest.mark.parametrize(
    ("free", "in_memory", "available", "status"),
    [
        (8 * GIB, True, 8 * GIB, "ok"),
        (8 * GIB, True, 5 * GIB, "warn"),
        (8 * GIB, True, 3 * GIB, "fail"),
        (8 * GIB, False, 1 * GIB, "ok"),
        (3 * GIB, False, 64 * GIB, "fail"),
        (4 * GIB, False, 64 * GIB, "ok"),
    ],
)
def test_memory_is_judged_by_all_slots_together(free, in_memory, available, status):
    check = judge_memory(
        slots=4,
        budget_bytes=GIB,
        free_bytes=free,
        in_memory=in_memory,
        available_bytes=available,
    )
    assert check.status == status
    assert "4 slots x 1.00 GiB = 4.00 GiB" in check.what
    assert ("state.budget_bytes" in check.mend) == (status != "ok")


def test_no_budget_is_advised_where_there_is_no_room_at_all():
    check = judge_memory(
        slots=4, budget_bytes=GIB, free_bytes=0, in_memory=True, available_bytes=8 * GIB
    )
    assert (check.status, check.mend) == ("fail", "set state.root to a folder with more room")


@pytest.mark.parametrize(
    ("config", "statuses"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, ["ok"]),
        ({"cleanup.policy": "delete", "retention.ms": str(14 * 24 * HOUR)}, ["ok"]),
        ({"cleanup.policy": "delete", "retention.ms": str(80 * HOUR)}, ["warn"]),
        ({"cleanup.policy": "delete", "retention.ms": str(12 * HOUR)}, ["fail"]),
        ({"cleanup.policy": "compact", "retention.ms": "-1"}, ["fail"]),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1"}, ["fail"]),
        ({"retention.ms": "-1", "retention.bytes": "1000000"}, ["warn"]),
        ({"retention.ms": "3600000", "retention.bytes": "1000000"}, ["fail", "warn"]),
    ],
)
def test_a_topic_must_keep_a_session(config, statuses):
    checks = judge_topic("stock", 3, config, SPANS, 300_000)
    assert [check.status for check in checks] == statuses
    assert all(check.name == "topic stock" for check in checks)
    assert all(check.mend for check in checks if check.status != "ok")


def test_settings_that_are_not_shown_are_not_guessed() -> None:
    (found,) = judge_topic("stock", 3, {}, SPANS, 300_000)
    assert found.status == "warn"
    assert "is not known" in found.what
    assert "grant DescribeConfigs" in found.mend
    assert judge_times("stock", {}, "calendar", None) == []


@pytest.mark.parametrize(
    ("boundary", "kind", "ahead_ms", "says"),
    [
        ("command", "CreateTime", 24 * HOUR, []),
        ("command", "CreateTime", 24 * HOUR + 1, ["may date records 24"]),
        ("command", "CreateTime", 2**63 - 1, ["may date records any time ahead"]),
        ("calendar", "CreateTime", HOUR, ["moves where the calendar's day ends"]),
        ("calendar", "CreateTime", 48 * HOUR, ["the calendar's day", "may date records 2"]),
        ("calendar", "LogAppendTime", 2**63 - 1, []),
        ("command", "LogAppendTime", 2**63 - 1, []),
    ],
)
def test_whoever_dates_records_may_move_a_days_end(boundary, kind, ahead_ms, says):
    config = {"message.timestamp.type": kind, "message.timestamp.after.max.ms": str(ahead_ms)}
    checks = judge_times("stock", config, boundary, None)
    assert [check.status for check in checks] == ["warn"] * len(says)
    for check, text in zip(checks, says, strict=True):
        assert re.search(text, check.what)
        assert "message.timestamp." in check.mend
    assert judge_times("stock", {}, "calendar", None) == []


@pytest.mark.parametrize(
    ("topic", "kind", "idle_after_ms", "says"),
    [
        ("stock", "CreateTime", None, "date its records: 'ahead' does not notice .* is wrong$"),
        ("stock", "CreateTime", 300_000, "'ahead' does not notice .*, and 'idle_after' may pass"),
        ("stock", None, 300_000, "not shown whether producers date its records"),
        ("stock", "LogAppendTime", 300_000, None),
        ("names", "CreateTime", 300_000, None),  # below a join without a window
        ("names", None, 300_000, None),
    ],
)
def test_windows_need_records_that_the_broker_dates(topic, kind, idle_after_ms, says):
    times = EventTime(
        lateness_us=0, ahead_us=1, topics=["stock", "volume"], idle_after_ms=idle_after_ms
    )
    checks = judge_times(topic, {"message.timestamp.type": kind} if kind else {}, "command", times)
    assert len(checks) == (says is not None)
    for check in checks:
        assert (check.name, check.status) == ("times of topic stock", "warn")
        assert re.search(says, check.what)
        assert "LogAppendTime" in check.mend


def test_sessions_ahead_know_weekends_and_holidays():
    # Thursday before Christmas: an early close, a holiday and a weekend lie ahead.
    thursday = 1_766_061_000_000
    spans, check = sessions(Settings(), thursday)
    assert check.status == "ok"
    assert len(spans) == 10
    assert min(spans) == 21 * HOUR
    assert max(spans) == 72 * HOUR


def test_sessions_ahead_know_days_that_are_different_this_time():
    def looked(overrides):
        return sessions(Settings(session={"overrides": overrides}), 1_766_061_000_000)

    # The Monday is closed, and the Tuesday closes at noon.
    spans, check = looked("2025-12-22 closed; 2025-12-23 12:00")
    assert check.status == "ok"
    assert spans[:3] == [24 * HOUR, 92 * HOUR, 25 * HOUR]
    assert "2025-12-22 closed" in check.what
    spans, check = looked("2025-12-22 shut")
    assert (spans, check.status) == ([], "fail")
    assert "'2025-12-22 shut' is no day that is different" in check.what
    assert "session.overrides" in check.mend


@pytest.mark.parametrize(
    ("grace_s", "delay_s", "status"),
    [(300.0, 600.0, "ok"), (600.0, 600.0, "ok"), (600.5, 600.0, "fail"), (0.0, 0.0, "ok")],
)
def test_a_day_is_not_closed_before_its_grace_is_over(tmp_path, grace_s, delay_s, status):
    given = settings(tmp_path, **{"session.grace_s": grace_s})
    found = {check.name: check for check in check_all(given, close_delay_s=delay_s)}
    check = found["close delay"]
    assert check.status == status
    if status == "fail":
        for text in (check.what, check.mend):
            assert "session.grace_s" in text
            assert "close_delay_s" in text
        assert check in blocking(list(found.values()))
    assert "close delay" not in {check.name for check in check_all(given)}


def test_words():
    assert days(12 * HOUR) == "12.0 hours"
    assert days(72 * HOUR) == "3.0 days"


def settings(tmp_path: Path, **changes: object) -> Settings:
    flags = {
        "kafka.bootstrap_servers": "127.0.0.1:1",
        "kafka.data_dir": str(tmp_path / "kafka"),
        "warehouse.root": str(tmp_path / "warehouse"),
        "state.root": str(tmp_path / "state"),
        "state.slots": 1,
        "state.budget_bytes": "16MiB",
    }
    return load_settings(None, flags | changes, environ={})[0]


def test_every_failure_says_how_to_mend_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    wrong = settings(
        tmp_path,
        **{
            "session.calendar": "NOWHERE",
            "query": str(tmp_path / "absent.toml"),
            "warehouse.root": "s3://bucket/warehouse",
            "warehouse.options": {
                "aws_endpoint": "http://127.0.0.1:1",
                "allow_http": True,
                "aws_access_key_id": "a",
                "aws_secret_access_key": "b",
                "retry_timeout": "1s",
            },
            "state.root": "/proc/spillway",
        },
    )
    found = check_all(wrong)
    failed = {check.name for check in blocking(found)}
    assert failed >= {"java", "jars", "warehouse", "state folder", "calendar", "query", "broker"}
    assert all(check.mend for check in blocking(found))
    assert {check["name"] for check in (c.as_dict() for c in found)} >= failed
    assert table(found).row_count == len(found)


def test_a_look_makes_nothing(tmp_path):
    found = {check.name: check for check in check_all(settings(tmp_path))}
    assert found["warehouse"].status == found["state folder"].status == "ok"
    assert found["memory"].status == found["budget"].status == "ok"
    assert found["tables"].what.startswith("no warehouse yet")
    assert found["broker"].mend == (
        "start the embedded broker with 'spillway kafka start', or set kafka.bootstrap_servers to "
        "the address of yours"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_budget_that_holds_no_epoch_keeps_the_stream_from_starting(tmp_path):
    wrong = settings(tmp_path, **{"state.budget_bytes": "10KiB"})
    assert "budget" in {check.name for check in blocking(check_all(wrong))}


def test_a_port_that_is_no_broker_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("spillway.doctor.inputs.CONNECT_S", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = f"127.0.0.1:{listener.getsockname()[1]}"
        found = check_all(settings(tmp_path, **{"kafka.bootstrap_servers": server}))
    (check,) = [check for check in found if check.name == "broker"]
    assert "is taken by process" in check.what
    assert "kafka.bootstrap_servers" in check.mend


@dataclass
class Broker:
    """A cluster with the topics of the query `symbol`."""

    id: str = "c"
    topic_id: str = "then"
    first: int = 0

    def cluster_id(self) -> str:
        return self.id

    def topics(self, names: list[str]) -> list[Topic]:
        return [Topic(name=name, id=self.topic_id, partitions=1) for name in names]

    def topic_configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        return {name: {"cleanup.policy": "delete"} for name in names}

    def beginning_offsets(self, names: list[str]) -> Offsets:
        return {name: [self.first] for name in names}

    def close(self) -> None:
        pass


def begun(root: Path, query: Query) -> Warehouse:
    """A warehouse with an epoch that has read the query's topics up to 7."""
    spec, at = tree_spec(query), "2026-01-05T14:00:00Z"
    warehouse = new_warehouse(root, result_schema(spec), spill=spill_schema(spec))
    start = {name: [0] for name in query.topics}
    known = [Topic(name=name, id="then", partitions=1) for name in sorted(query.topics)]
    warehouse.journal.append(
        genesis(query=query.fingerprint, topics=known, start=start, inputs=3, written_at=at)
    )
    warehouse.journal.append(claim(1, 1, written_at=at))
    ends = {name: [7] for name in query.topics}
    warehouse.journal.append(epoch(2, 0, ends, started_at=at, written_at=at))
    return warehouse


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (Broker(), ""),
        (
            Broker(topic_id="anew"),
            "The topics no longer match the journal: topic review was deleted and created again "
            "(its id was then, now anew). Its offsets mean other rows now. Nothing was written. "
            "Name a new warehouse.root to begin again.",
        ),
        (Broker(id="d"), "127.0.0.1:1 is another Kafka cluster (d) than the one that the journal"),
        (Broker(first=8), "Kafka no longer holds review/0 from offset 7, where the journal ends"),
    ],
)
def test_topics_are_those_of_the_journal(now, says, tmp_path, monkeypatch):
    """What `stream` refuses at its claim fails before the market opens. A start leaves it to the
    claim, whose exit code is its own."""
    monkeypatch.setattr("spillway.doctor.inputs.silence", lambda *_: None)
    monkeypatch.setattr("spillway.doctor.inputs.KafkaCluster", lambda *_, **__: now)
    given, query = settings(tmp_path), load_query("symbol")
    assert "journal" not in {check.name for check in check_all(given)}, "nothing has begun"
    begun(tmp_path / "warehouse", query)
    found = {check.name: check for check in check_all(given)}
    check = found["journal"]
    assert check.status == ("fail" if says else "ok")
    assert f"{check.what}. {check.mend}".startswith(says)
    assert (check in blocking(list(found.values()))) == bool(says)
    assert "journal" not in {check.name for check in check_all(given, thorough=False)}


def test_slots_are_those_of_the_warehouse(tmp_path):
    """Their memory is reckoned with, not that of the setting, which has no effect any more."""
    given = settings(tmp_path, **{"state.slots": "3", "state.budget_bytes": "1MiB"})
    found = {check.name: check for check in check_all(given)}
    assert found["memory"].what.startswith("3 slots x 1.00 MiB")
    assert "slots" not in found
    slots = len(begun(tmp_path / "warehouse", load_query("symbol")).journal.state().slots)
    found = {check.name: check for check in check_all(given)}
    assert slots != 3
    assert found["memory"].what.startswith(f"{slots} slots x 1.00 MiB")
    assert "state.slots = 3 is for a new one" in found["slots"].what
    assert "`spillway rebalance --slots 3`" in found["slots"].what
    same = settings(tmp_path, **{"state.slots": str(slots), "state.budget_bytes": "1MiB"})
    assert "slots" not in {check.name for check in check_all(same)}


def test_tables_that_another_user_has_made_are_found_before_a_start(tmp_path, monkeypatch):
    """Kills: only the root is tried, and the stream fails once Spark runs."""
    begun(tmp_path / "warehouse", load_query("symbol"))
    given, real = settings(tmp_path), os.access
    assert "warehouse" not in {check.name for check in blocking(check_all(given))}
    log = tmp_path / "warehouse" / "results" / "_delta_log"

    def access(path: Any, mode: int) -> bool:
        return Path(path) != log and real(path, mode)

    monkeypatch.setattr("spillway.doctor.disks.os.access", access)
    found = {check.name: check for check in blocking(check_all(given))}
    assert found["warehouse"].what == f"{log} cannot be written: permission denied"
    assert "run every command as one user" in found["warehouse"].mend


def test_commands_that_are_gone_are_told_with_all_else(tmp_path, monkeypatch):
    monkeypatch.setattr("spillway.doctor.inputs.silence", lambda *_: None)
    monkeypatch.setattr("spillway.doctor.inputs.KafkaCluster", lambda *_, **__: Broker())
    given, root = settings(tmp_path), tmp_path / "warehouse"
    begun(root, load_query("symbol")).commands.append(SPILL)
    [path] = (root / "commands").glob("*.parquet")
    path.unlink()
    found = {check.name: check for check in check_all(given)}
    for name in ("journal", "tables"):
        assert found[name].status == "fail"
        assert path.name in found[name].what


def test_a_tree_needs_room_for_the_files_of_all_its_joins() -> None:
    """Seven inputs and three times the groups, where a single join of five has five."""
    settings = load_settings(environ={})[0]
    small = settings.model_copy(
        update={"state": settings.state.model_copy(update={"budget_bytes": 150_000})}
    )
    slots = small.state.slots
    assert budget(small, load_query("symbol"), slots).status == "warn", "little, and enough"
    assert budget(small, load_query("five_way"), slots).status == "fail"
