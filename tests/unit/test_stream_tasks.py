"""The streaming job without Spark: plans to tasks, Arrow batches in, exact blocks and reports."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError

from spillway import calendar
from spillway.engine.groups import GroupMap
from spillway.engine.join.hashing import xxhash64
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import (
    Block,
    Moved,
    decode_moved,
    decode_rows,
    from_batch,
    to_batch,
)
from spillway.kafka.client import KafkaUnavailable
from spillway.policy.forecast import Profile
from spillway.policy.sampling import SlotFigures
from spillway.protocol.plan import Plan
from spillway.protocol.recovery import Restore
from spillway.protocol.state import replay
from spillway.stream import process
from spillway.stream.boundary import GRACE_MS, LATE_MS
from spillway.stream.boundary import left_ms as left_ms_of
from spillway.stream.decoding import DecodeTask
from spillway.stream.failures import beyond_mending
from spillway.stream.messages import MessageSource
from spillway.stream.pins import least_values
from spillway.stream.placement import Placement
from spillway.stream.process import rehearse_batches
from spillway.stream.progress import RunTally, epoch_line, start_line
from spillway.stream.source import kafka_options
from spillway.stream.tasks import (
    JobSettings,
    all_traced,
    decode_task,
    hosted,
    partitions,
    step_tasks,
)
from spillway.stream.worker import REPORT_SCHEMA, StepJob, extract_batches, step_batches
from spillway_schemas.journal import Cut, Prefix, SlotReport, SlotTotals, TracedGroup
from tests.property.reference import Row
from tests.property.slots import DAYS, KEY, WAREHOUSE, Slots, key_of, spec_of
from tests.protocol_entries import (
    DAY,
    NEXT,
    claim,
    count,
    cut,
    ends,
    epoch,
    genesis,
    report,
    seal,
    sealed,
)

CLOSE_MS = calendar.close_ms("XNYS", DAY)
SPEC = spec_of(3, composite=False)
SALTS = (11, 7)
"""Of slot 0 and slot 1: what the shuffle calls them."""
SETTINGS = JobSettings(
    spec=SPEC,
    streams=(),
    warehouse_id=WAREHOUSE,
    warehouse_root="/w",
    state_root="/s",
    state_key=KEY,
    executor_may_override_state_root=False,
    budget_bytes=1000,
    threshold=0.8,
    fraction=0.2,
    inactive_ms=5,
    victims="largest",
    reactivation="off",
    calendar="XNYS",
    kafka=MessageSource("", {}),
)
BEFORE = ((Prefix(1, 0), 0), (Prefix(1, 1), 0))
AFTER = ((Prefix(1, 0), 0), (Prefix(1, 1), 1))


def plan(**more: Any) -> Plan:
    facts: dict[str, Any] = {
        "epoch": 3,
        "term": 1,
        "n": 5,
        "session": DAY,
        "start": ends(1, 1, 1),
        "end": ends(2, 2, 2),
        "seal": None,
        "accepted": None,
        "sealing": False,
        "flush": (),
        "before": BEFORE,
        "groups": AFTER,
        "moved": (),
        "queue": (),
        "forced": (),
        "budgets": {},
        "manifests": ((0, "m-0"), (1, None)),
        "outcomes": (),
        "withdrawn": "",
        "restore": None,
    }
    return Plan(**(facts | more))


# --- from the plan to tasks


def test_steps_are_told_what_the_plan_says() -> None:
    given = plan(forced=((0, 9),), budgets={1: 77})
    groups = GroupMap(AFTER)
    figures = [SlotFigures(*range(i, i + len(SlotFigures.__annotations__))) for i in (0, 1)]
    common: dict[str, Any] = {
        "epoch": 3,
        "attempt": "",
        "warehouse_id": WAREHOUSE,
        "session": DAY,
        "groups": groups,
        "threshold": 0.8,
        "fraction": 0.2,
        "inactive_ms": 5,
        "victims": "largest",
        "key": KEY,
        "left_ms": {DAY: CLOSE_MS - 42.0},
        "now_ms": 42,
        "statistics": True,
        "seed": 3,
    }
    assert step_tasks(SETTINGS, given, groups, now_ms=42, statistics=True, recent=figures) == {
        0: StepTask(
            slot=0,
            manifest="m-0",
            leaving=(Prefix(1, 1),),
            arriving=(),
            forced_bytes=9,
            budget_bytes=1000,
            recent=figures[0],
            **common,
        ),
        1: StepTask(
            slot=1,
            manifest=None,
            leaving=(),
            arriving=(0,),
            forced_bytes=0,
            budget_bytes=77,
            recent=figures[1],
            **common,
        ),
    }


def test_the_step_is_told_how_long_its_sessions_go_on() -> None:
    given = plan(seal=seal(ends(2, 2, 2)))
    next_close_ms = calendar.close_ms("XNYS", NEXT)
    for now_ms, left_ms in (
        (CLOSE_MS - 99_000, {DAY: 99_000, NEXT: next_close_ms - CLOSE_MS + 99_000}),
        (CLOSE_MS - 1, {DAY: GRACE_MS, NEXT: next_close_ms - CLOSE_MS + 1}),
        (CLOSE_MS + LATE_MS - 1, {DAY: GRACE_MS, NEXT: next_close_ms - CLOSE_MS - LATE_MS + 1}),
        (CLOSE_MS + LATE_MS, {NEXT: next_close_ms - CLOSE_MS - LATE_MS}),
        (next_close_ms + LATE_MS, {}),
        (0, {}),
    ):
        tasks = step_tasks(SETTINGS, given, GroupMap(AFTER), now_ms=now_ms)
        assert [task.left_ms for task in tasks.values()] == [left_ms] * 2
    by_command = replace(SETTINGS, calendar="")
    for task in step_tasks(by_command, given, GroupMap(AFTER), now_ms=CLOSE_MS - 1).values():
        assert task.left_ms == {}
    # A Saturday, and a year that the calendar does not reach.
    assert left_ms_of("XNYS", ["2026-01-10", "2199-01-05"], 1) == {}


def test_the_step_is_told_what_the_day_before_says() -> None:
    """Of the open session, at the same time after it opened, as long as it is known to go on."""
    opens_ms = calendar.open_ms("XNYS", DAY)
    before = Profile(np.array([0, 3_600_000]), np.array([[0.0, 60.0], [0.0, 12.0]]))
    given, groups = plan(seal=seal(ends(2, 2, 2))), GroupMap(AFTER)
    now_ms = opens_ms + 600_000
    tasks = step_tasks(SETTINGS, given, groups, now_ms=now_ms, before=before)
    for task in tasks.values():
        assert task.forecasts.keys() == {DAY}
        assert task.forecasts[DAY] is tasks[0].forecasts[DAY]  # pickled once
        assert task.forecasts[DAY].usual == pytest.approx([1 / 60_000, 1 / 300_000])
        assert task.forecasts[DAY].to_come.tolist() == [50, 10]
        assert task.forecasts[DAY].left_ms == task.left_ms[DAY]
    late = step_tasks(SETTINGS, given, groups, now_ms=CLOSE_MS + LATE_MS, before=before)
    by_command = replace(SETTINGS, calendar="")
    unknown = step_tasks(by_command, given, groups, now_ms=now_ms, before=before)
    assert not any(task.forecasts for task in (*late.values(), *unknown.values()))


def test_the_step_is_told_to_flush_only_when_the_plan_seals() -> None:
    flush = (Prefix(1, 0), Prefix(4, 9))
    for sealing, expected in ((True, {DAY: flush}), (False, {})):
        given = plan(sealing=sealing, seal=seal(ends(2, 2, 2)), flush=flush)
        tasks = step_tasks(SETTINGS, given, GroupMap(AFTER), now_ms=0)
        assert [task.flush for task in tasks.values()] == [expected, expected]
        # Figures of groups are written when they are asked for only.
        assert [(task.statistics, task.recent) for task in tasks.values()] == [(False, None)] * 2


def test_decoders_are_told_where_the_session_ends() -> None:
    groups = GroupMap(AFTER)
    task = DecodeTask(SPEC, (), groups, SALTS, DAY, "", None)
    assert decode_task(SETTINGS, plan(), groups, SALTS) == task
    bounded = replace(task, next_session=NEXT, bound=ends(2, 9, 2))
    given = plan(seal=seal(ends(2, 9, 2)))
    assert decode_task(SETTINGS, given, groups, SALTS) == bounded
    restore = Restore(frozenset({1}), ends(0, 0, 0), ends(1, 1, 1), (), ())
    assert decode_task(SETTINGS, given, groups, SALTS, restore) == replace(bounded, restore=restore)


def test_a_partition_that_the_seal_does_not_know_belongs_to_the_next_session() -> None:
    wider = {"a": [2, 2, 4], "b": [2]}
    given = plan(seal=seal(ends(2, 9, 2)), end=wider)
    task = decode_task(SETTINGS, given, GroupMap(AFTER), SALTS)
    assert task.bound == {"a": [2, 9, 0], "b": [2]}


def test_a_job_has_two_partitions_at_least() -> None:
    assert [partitions(slots) for slots in (1, 2, 3)] == [2, 2, 3]


def test_a_report_gets_the_name_of_its_host() -> None:
    totals = SlotTotals(slot=1, budget_bytes=1, state_bytes=1, folder_bytes=1, rows=1)
    found = hosted(report(1, 0, totals=totals), {0: "a", 1: "b"}, 1_000, 2_000)
    assert found == report(1, 0, totals=totals.model_copy(update={"host": "b"}))
    assert hosted(report(1, 0), {1: "b"}, 1_000, 2_000) == report(1, 0)


@pytest.mark.parametrize(
    ("shown", "ahead"), [(999, -1), (1_000, 0), (2_000, 0), (2_500, 500), (0, -1_000)]
)
def test_a_report_says_how_far_its_hosts_clock_is_ahead(shown: int, ahead: int) -> None:
    totals = SlotTotals(slot=1, budget_bytes=1, state_bytes=1, folder_bytes=1, rows=1)
    found = hosted(report(1, 0, totals=totals, clock_ms=shown), {1: "b"}, 1_000, 2_000)
    assert found.totals is not None
    assert found.totals.clock_ahead_ms == ahead


def test_a_salt_is_the_least_value_of_its_partition() -> None:
    assert least_values(lambda value: -value * 5, 3) == (0, 1, 2)
    assert least_values(lambda value: value // 4, 3) == (0, 4, 8)


def test_kafka_is_read_so_that_lost_rows_are_an_error() -> None:
    client = {
        "security.protocol": "SSL",
        "fetch.max.wait.ms": 9,
        "isolation.level": "read_uncommitted",
    }
    assert kafka_options("h:1,h:2", ["b", "a", "b"], client) == {
        "kafka.bootstrap.servers": "h:1,h:2",
        "subscribe": "a,b",
        "kafka.fetch.max.wait.ms": "9",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "kafka.security.protocol": "SSL",
        "kafka.request.timeout.ms": "10000",
        "kafka.default.api.timeout.ms": "10000",
    }


@pytest.mark.parametrize(
    ("given", "request_ms", "whole_ms"),
    [
        ({}, "10000", "10000"),
        ({"request.timeout.ms": "30000"}, "30000", "30000"),
        ({"request.timeout.ms": 2000}, "2000", "10000"),
        ({"default.api.timeout.ms": "60000"}, "10000", "60000"),
        ({"default.api.timeout.ms": "5000"}, "5000", "5000"),
        ({"request.timeout.ms": "7000", "default.api.timeout.ms": "8000"}, "7000", "8000"),
    ],
)
def test_a_dead_leader_is_asked_for_seconds_and_not_for_a_minute(
    given: dict[str, str | int], request_ms: str, whole_ms: str
) -> None:
    """Unless somebody wants it so. Kafka refuses a request that may take longer than the whole."""
    found = kafka_options("h:1", ["a"], given)
    assert found["kafka.request.timeout.ms"] == request_ms
    assert found["kafka.default.api.timeout.ms"] == whole_ms


class Hosts(Placement):
    """Executors that a test names."""

    alive: tuple[str, ...] = ()

    def executors(self) -> list[str]:
        return list(self.alive)


def test_surviving_pins_stay_and_the_others_go_where_the_fewest_are() -> None:
    placement = Hosts(None, False, {0: "a", 1: "b", 2: "gone"})
    placement.alive = ("a", "b", "b", "c")
    assert placement.place(range(4)) == {0: "a", 1: "b", 2: "c", 3: "a"}
    assert placement.place(range(4), unpin=[1]) == {0: "a", 1: "b", 2: "c", 3: "a"}
    assert placement.place([0, 1]) == {0: "a", 1: "b"}
    placement.alive = ("c",)
    assert placement.place(range(2)) == {0: "c", 1: "c"}
    placement.alive = ()
    assert placement.place(range(2)) == {0: "", 1: ""}


def test_a_slot_that_was_lost_need_not_go_back_where_it_was() -> None:
    placement = Hosts(None, False, {0: "a", 1: "a", 2: "b"})
    placement.alive = ("a", "b", "c")
    assert placement.place(range(3), unpin=[0]) == {0: "c", 1: "a", 2: "b"}


GONE = "org.apache.kafka.clients.consumer.OffsetOutOfRangeException"
LATE = "org.apache.kafka.common.errors.TimeoutException"


class JavaClass(NamedTuple):
    name: str

    def getName(self) -> str:  # noqa: N802
        return self.name


class Thrown(NamedTuple):
    """An exception of Java and its causes, as py4j shows them."""

    names: tuple[str, ...]

    def getClass(self) -> JavaClass:  # noqa: N802
        return JavaClass(self.names[0])

    def getCause(self) -> Thrown | None:  # noqa: N802
        return Thrown(self.names[1:]) if self.names[1:] else None


class Failed(Py4JJavaError):
    """One that says nothing in its text."""

    def __init__(self, thrown: Thrown) -> None:
        self.java_exception = thrown

    def __str__(self) -> str:
        return "An error occurred"


def thrown(*names: str) -> Failed:
    return Failed(Thrown(names))


@pytest.mark.parametrize(
    ("failure", "away_s", "says"),
    [
        (RuntimeError(f"{GONE}: a\nstack"), 0.0, f"Kafka no longer gives .*: {GONE}: a$"),
        (RuntimeError("[KAFKA_DATA_LOSS.PARTITIONS_DELETED] x"), 0.0, "Kafka no longer gives the"),
        (RuntimeError("[KAFKA_DATA_LOSS] x"), 0.0, "Kafka no longer gives the rows"),
        (RuntimeError(f"{LATE}, {GONE}"), 0.0, "Kafka no longer gives the rows"),
        (
            RuntimeError("thrown\n Traceback\n spillway.kafka.reading.OffsetsGone: 'a' 3\n at x"),
            0.0,
            "Kafka no longer gives .*: thrown . spillway.kafka.reading.OffsetsGone: 'a' 3$",
        ),
        (RuntimeError("thrown\nspillway.kafka.client.KafkaUnavailable: no"), 0.0, None),
        (RuntimeError("[KAFKA_DATA_LOSSES] x"), 0.0, "the stream failed"),
        (RuntimeError("KeyError: 'Some data may have been lost'"), 0.0, "the stream failed"),
        (RuntimeError("KeyError: 'TimeoutException'"), 0.0, "the stream failed"),
        (RuntimeError("TimeoutError: a lock"), 0.0, "the stream failed"),
        (RuntimeError("division by zero"), 0.0, "the stream failed: division by zero$"),
        (None, 0.0, "the stream failed: Spark does not say why$"),
        (
            RuntimeError("No space left on device"),
            0.0,
            "the stream failed: No space left on device. Spark writes to .*TMPDIR.* and to /c$",
        ),
        (RuntimeError(f"Job aborted\nCaused by: {LATE}: no answer"), 599.0, None),
        (RuntimeError(f"{LATE}: no answer"), 601.0, f"Kafka has been away for 600 s: {LATE}"),
        (RuntimeError("java.net.ConnectException: Connection refused"), 0.0, None),
        (RuntimeError("No resolvable bootstrap urls given in bootstrap.servers"), 0.0, None),
        (thrown("org.apache.spark.SparkException"), 0.0, "the stream failed"),
        (thrown("org.apache.spark.SparkException", LATE), 0.0, None),
        (thrown("org.apache.spark.SparkException", GONE), 0.0, "Kafka no longer gives the rows"),
        (KafkaUnavailable("no broker"), 0.0, None),
        (KafkaUnavailable("no broker"), 601.0, "Kafka has been away for 600 s: no broker$"),
    ],
)
def test_what_ends_a_stream_whose_query_failed(
    failure: Exception | None, away_s: float, says: str | None
) -> None:
    found = beyond_mending(failure, away_s, Path("/c"), {})
    assert (found is None) == (says is None)
    assert says is None or re.match(says, str(found))


# --- one line an epoch


def totals(slot: int, **more: Any) -> SlotTotals:
    facts = {"budget_bytes": 4 << 20, "state_bytes": 3 << 19, "folder_bytes": 0, "rows": 0}
    return SlotTotals(slot=slot, **(facts | more))


def test_the_line_of_a_start() -> None:
    state = replay([genesis(), claim(1, 1), epoch(2, 0, ends(1, 1, 1)), claim(3, 2)])
    assert state is not None
    assert start_line(state) == f"term 2: session {DAY}, epoch 1 is next, 4 groups on 2 slots"


def test_the_line_of_an_epoch() -> None:
    rejected = count("a", 0, 1200).model_copy(update={"rejected": 3})
    entry = epoch(
        2,
        0,
        ends(1, 1, 1),
        read=[rejected, count("b", 0, 34)],
        results={DAY: 1000, NEXT: 1},
        slots=[totals(0, spilled_bytes=1 << 20), totals(1)],
        cuts=[cut(0, 0), cut(1, 0)],
        restored_slots=[1],
        deferred_slots=[0],
        sealed=sealed(ends(1, 1, 1), 0),
        seconds={"job": 1.234},
    )
    assert epoch_line(entry) == (
        "epoch 0: 1,234 rows, 1,001 results (3 quarantined) | state 3.00 MiB of 8.00 MiB "
        f"| spilled 1.00 MiB, 2 cuts | restored slots [1] "
        f"| slots [0] lost, left to cleanup | sealed {DAY} | 1.23 s"
    )
    tally = RunTally()
    for _ in range(2):
        tally.add(entry)
    assert tally.line() == (
        "everything that Kafka held when this began has been read: 2,468 rows (6 quarantined) "
        "and 2,002 results in 2 epochs"
    )
    assert tally.trouble() == ""
    assert epoch_line(epoch(2, 7, ends(1, 1, 1))) == (
        "epoch 7: 0 rows, 0 results | state 0 B of 0 B | 0.00 s"
    )
    assert epoch_line(epoch(2, 8, ends(1, 1, 1), withdrawn="s")) == (
        "epoch 8: 0 rows, 0 results | state 0 B of 0 B | seal withdrawn | 0.00 s"
    )


def test_a_run_names_the_topics_that_gave_nothing_but_broken_rows() -> None:
    tally = RunTally()
    broken, silent = count("b", 0, 40).model_copy(update={"rejected": 40}), count("c", 0, 0)
    tally.add(epoch(2, 0, ends(1, 1, 1), read=[count("a", 0, 40), broken, silent]))
    assert tally.line().endswith("80 rows (40 quarantined) and 0 results in 1 epoch")
    assert tally.trouble() == (
        "every row of b breaks its contract. For the reasons: spillway quarantine list"
    )
    tally.add(epoch(2, 1, ends(1, 2, 1), read=[count("b", 1, 1)]))
    assert tally.trouble() == ""


# --- workers


def rows(first: int, number: int) -> list[Row]:
    return [
        Row(DAYS[0], i % 3, key_of(i % 20, composite=False), 0, i)
        for i in range(first, first + number)
    ]


class Epochs:
    """Two slots' epochs as the workers run them, batches in and batches out."""

    def __init__(self, root: Path, groups: GroupMap) -> None:
        self.root = root
        self.groups = groups
        self.epoch = -1
        self.manifests: dict[int, str | None] = {0: None, 1: None}

    def job(self, groups: GroupMap | None = None, *, attempt: int = 1) -> StepJob:
        """The next epoch's job."""
        before, self.groups = self.groups, groups or self.groups
        self.epoch += 1
        given = plan(
            epoch=self.epoch,
            session=DAYS[0],
            before=tuple(before.assignment()),
            groups=tuple(self.groups.assignment()),
            manifests=tuple(self.manifests.items()),
        )
        settings = replace(SETTINGS, budget_bytes=10**8)
        return StepJob(
            spec=SPEC,
            tasks=step_tasks(settings, given, self.groups, now_ms=0),
            salts=SALTS,
            state_root=str(self.root / "state"),
            executor_may_override_state_root=True,
            warehouse_root=str(self.root / "warehouse"),
            term=3,
            attempt=attempt,
        )

    def blocks(self, new: list[Row]) -> list[Block]:
        """Blocks of new rows, under their slots' salts."""
        made = Slots(SPEC, str(self.root), self.groups, xxhash64, {}, 10**8).blocks(new, "new")
        return [replace(block, slot=SALTS[block.slot]) for block in made]

    def run(self, job: StepJob, blocks: list[Block]) -> dict[int, SlotReport]:
        """Each slot's step with its blocks, each block in a batch of its own."""
        found = {}
        for slot, salt in enumerate(SALTS):
            mine = [block for block in blocks if block.slot == salt]
            found[slot] = only(step_batches(job, map(batch, [Block(salt, "anchor"), *mine])))
        return found

    def first(self) -> StepJob:
        """An epoch with rows, and the job of the next one, in which slot 0 gives all it has."""
        reports = self.run(self.job(), self.blocks(rows(0, 60)))
        self.manifests = {slot: each.manifest for slot, each in reports.items()}
        return self.job(GroupMap([(p, 1) for p in self.groups.prefixes]))


@pytest.fixture
def epochs(tmp_path: Path) -> Epochs:
    return Epochs(tmp_path, GroupMap.initial(8, 2))


def batch(*blocks: Block) -> pa.RecordBatch:
    return to_batch(blocks)


def only(batches: Any) -> SlotReport:
    """The report in the one batch of one row."""
    (found,) = batches
    assert found.schema == REPORT_SCHEMA
    ((slot,), (data,)) = (column.to_pylist() for column in found.columns)
    parsed = SlotReport.model_validate_json(data)
    assert parsed.slot == slot
    return parsed


def test_a_step_gives_one_report(epochs: Epochs) -> None:
    job = epochs.job()
    reports = epochs.run(job, epochs.blocks(rows(0, 60)))
    assert [r.status for r in reports.values()] == ["done", "done"]
    assert sum(r.totals.rows for r in reports.values() if r.totals) == 60
    assert sum(sum(r.totals.rows_in.values()) for r in reports.values() if r.totals) == 60
    # 20 keys, each in one row of each input: one result a key.
    assert sum(sum(r.results.values()) for r in reports.values()) == 20
    for slot, each in reports.items():
        assert each.totals is not None
        assert each.totals.free_bytes is not None
        assert each.totals.free_bytes > 0
        names = [
            path.name for path in (epochs.root / "state" / WAREHOUSE / f"slot-{slot}").iterdir()
        ]
        assert each.manifest in names
        assert re.fullmatch("0000031[0-9a-f]{9}", each.attempt), "the driver's term, its job"
        for record in each.files:
            assert (epochs.root / "warehouse" / record.table / record.path).stat().st_size


def test_results_are_dated_when_they_are_written(epochs: Epochs) -> None:
    began = datetime.now(UTC)
    reports = epochs.run(epochs.job(), epochs.blocks(rows(0, 60)))
    ended = datetime.now(UTC)
    paths = [
        epochs.root / "warehouse" / record.table / record.path
        for each in reports.values()
        for record in each.files
        if record.table == "results"
    ]
    assert paths
    for path in paths:
        for at in pq.ParquetFile(path).read(["committed_at"]).column(0).to_pylist():
            assert began <= at <= ended


def test_every_try_of_a_step_has_an_attempt_of_its_own(epochs: Epochs) -> None:
    job = epochs.job()
    blocks = epochs.blocks(rows(0, 6))
    attempts = [r.attempt for _ in range(2) for r in epochs.run(job, blocks).values()]
    assert len(set(attempts)) == 4


def test_a_partition_that_is_no_slots_gives_nothing(epochs: Epochs) -> None:
    job = epochs.job()
    without = replace(job, tasks={0: job.tasks[0]})
    assert list(step_batches(without, [])) == []
    assert list(step_batches(without, [batch()])) == []
    assert list(step_batches(without, [batch(Block(SALTS[1], "anchor"))])) == []


@pytest.mark.parametrize(
    ("anchors", "foreign", "says"),
    [
        ((0, 0), False, "A step met the anchors [0, 0] and blocks of slots [0]: "),
        ((0, 1), False, "A step met the anchors [0, 1] and blocks of slots [0]: "),
        ((), False, "A step met the anchors [] and blocks of slots [0]: "),
        ((1,), False, "A step met the anchors [1] and blocks of slots [0]: "),
        ((0,), True, "A step met the anchors [0] and blocks of slots [0, 1]: "),
    ],
)
def test_a_step_whose_partition_is_not_aligned_fails(
    epochs: Epochs, anchors: tuple[int, ...], foreign: bool, says: str
) -> None:
    job = epochs.job()
    blocks = [b for b in epochs.blocks(rows(0, 60)) if foreign or b.slot == SALTS[0]]
    given = [*(Block(SALTS[slot], "anchor") for slot in anchors), *blocks]
    with pytest.raises(RuntimeError) as refused:
        list(step_batches(job, [batch(*given)]))
    assert str(refused.value) == (
        f"{says}Spark's partitions are not aligned. Nothing was written. "
        "Check that spark.sql.unionOutputPartitioning is true."
    )
    assert not any(path.is_file() for path in epochs.root.rglob("*"))


def test_two_anchors_without_blocks_are_not_aligned(epochs: Epochs) -> None:
    anchors = [Block(salt, "anchor") for salt in SALTS]
    with pytest.raises(RuntimeError) as error:
        list(step_batches(epochs.job(), [batch(*anchors)]))
    assert str(error.value) == (
        "A step met the anchors [0, 1] and blocks of slots []: Spark's partitions are not aligned. "
        "Nothing was written. Check that spark.sql.unionOutputPartitioning is true."
    )


def extracted(job: StepJob) -> list[Block]:
    """What the anchors of both slots come to."""
    given = [batch(Block(salt, "anchor")) for salt in SALTS]
    return [block for found in extract_batches(job, given) for block in from_batch(found)]


def said(blocks: list[Block]) -> Moved:
    (only_one,) = [decode_moved(block) for block in blocks if block.kind == "moved"]
    return only_one


@pytest.mark.parametrize("attempt", [1, 2])
def test_groups_leave_under_the_salt_of_their_new_owner(epochs: Epochs, attempt: int) -> None:
    job = replace(epochs.first(), attempt=attempt)
    blocks = extracted(job)
    assert {block.slot for block in blocks} == {SALTS[1]}
    state = [decode_rows(SPEC, block)[1].num_rows for block in blocks if block.kind == "state"]
    files = [file.rows for file in said(blocks).files]
    assert (bool(files), bool(state)) == (attempt == 1, attempt != 1), "not in a repeated job"
    assert sum(files) + sum(state) == said(blocks).rows > 0
    reports = epochs.run(job, [*blocks, *epochs.blocks(rows(60, 6))])
    assert [r.status for r in reports.values()] == ["done", "done"]
    assert [r.totals.rows for r in reports.values() if r.totals] == [0, 66]


def test_nothing_is_taken_out_of_slots_that_keep_their_groups(epochs: Epochs) -> None:
    epochs.first()
    epochs.groups = GroupMap.initial(8, 2)
    assert extracted(epochs.job()) == []


def test_a_slot_without_a_task_gives_nothing_and_has_no_state(epochs: Epochs) -> None:
    """A job has two partitions at least, and so an anchor more than slots."""
    job = epochs.first()
    assert job.neighbour(2) is None
    assert extracted(replace(job, tasks={1: job.tasks[1]})) == []


def test_every_try_of_a_move_writes_files_of_its_own(epochs: Epochs) -> None:
    job = epochs.first()
    names = [each.file for _ in range(2) for each in said(extracted(job)).files]
    assert len(set(names)) == len(names) >= 2


def test_a_giver_that_found_nothing_is_reported_by_the_new_owner(epochs: Epochs) -> None:
    job = epochs.first()
    for path in (epochs.root / "state" / WAREHOUSE / "slot-0").iterdir():
        path.unlink()
    blocks = extracted(job)
    assert [block.kind for block in blocks] == ["moved"]
    assert said(blocks) == Moved(found=False)
    reports = epochs.run(job, [*blocks, *epochs.blocks(rows(60, 6))])
    assert [r.status for r in reports.values()] == ["missing", "missing"]
    own, of_giver = (r.unfound for r in reports.values())
    assert (list(own), of_giver) == ([0], {0: "groups that come from there were not found"})
    assert "is not in" in own[0]
    assert [r.manifest for r in reports.values()] == [None, None]


def test_a_giver_that_says_nothing_is_reported_by_the_new_owner(epochs: Epochs) -> None:
    job = epochs.first()
    found = epochs.run(job, [])
    assert [(r.status, list(r.unfound)) for r in found.values()] == [("done", []), ("missing", [0])]


def test_a_giver_whose_blocks_got_lost_fails_the_step(epochs: Epochs) -> None:
    job = replace(epochs.first(), attempt=2)
    blocks = [block for block in extracted(job) if block.kind != "state"]
    with pytest.raises(ValueError, match=r"slot 1 was given \d+ rows .* that moved, 0 came"):
        epochs.run(job, blocks)


def test_a_host_may_keep_its_state_elsewhere(
    epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPILLWAY_STATE__ROOT", str(epochs.root / "own"))
    job = epochs.job()
    epochs.run(job, [])
    assert sorted(p.name for p in (epochs.root / "own" / WAREHOUSE).iterdir()) == [
        "slot-0",
        "slot-1",
    ]
    assert not (epochs.root / "state").exists()
    epochs.run(replace(job, executor_may_override_state_root=False), [])
    assert (epochs.root / "state" / WAREHOUSE).is_dir()


def test_a_worker_freezes_what_its_first_tasks_have_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(process, "_freezes", 0)
    monkeypatch.setattr(process, "keep_freed_memory", lambda: done.append("kept"))
    monkeypatch.setattr("gc.freeze", lambda: done.append("frozen"))
    for _ in range(process.FREEZES + 2):
        process.freeze()
    assert done == ["kept", *["frozen"] * process.FREEZES]


def test_a_rehearsal_takes_everything_and_gives_nothing() -> None:
    given = iter([batch(Block(0, "anchor")), batch()])
    assert list(rehearse_batches(given)) == []
    assert list(given) == []


def test_counts_of_what_was_spilled_in_the_same_epoch_are_not_told() -> None:
    """They are of a generation that is gone. Other sessions' and other groups' counts are told."""
    gone, stays = Prefix(2, 1), Prefix(2, 2)
    counts = [TracedGroup(*gone, 3.0), TracedGroup(*stays, 4.0)]
    plain = SlotReport(slot=0, epoch=1, attempt="a", traced={"today": counts, "tomorrow": counts})
    cut = Cut(session="today", operator=0, range=Prefix(1, 0), epoch=1)
    spiller = SlotReport(slot=1, epoch=1, attempt="a", cuts=[cut])
    found = all_traced(iter([plain, spiller]))
    assert found == {"today": counts[1:], "tomorrow": counts}
    assert all_traced([plain]) == plain.traced
