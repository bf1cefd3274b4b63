"""Two drivers on one warehouse, on real tables and without Spark: the newest goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pydantic import SecretStr

from spillway.engine.statistics import statistics_every_s
from spillway.protocol.driver import Applied
from spillway.protocol.plan import Plan
from spillway.protocol.recovery import InputChanged
from spillway.protocol.redo import Apply
from spillway.protocol.state import replay
from spillway.readmodel import cache
from spillway.readmodel.cache import ReadCache
from spillway.readmodel.disks import slow_disks
from spillway.storage import folder
from spillway.stream import service, troubles
from spillway.stream.driver import Ended, StreamDriver, dated
from spillway.stream.failures import cause_of, first_lines
from spillway.stream.run import SessionNotOpen, StreamFailed, Wanted, Watcher
from spillway.tables import OutcomeUnknown, Warehouse
from spillway.tables.snapshots import Snapshots
from spillway_schemas.journal import Claim, Epoch, Move, Prefix, SlotReport, SlotTotals
from spillway_schemas.query import load_query
from spillway_schemas.setting_fields import RecoveryMode, RecoverySettings
from spillway_schemas.settings import Settings, load_settings
from spillway_schemas.snapshot import JournalSnapshot
from spillway_schemas.windows import Progress
from tests.commands import command_of
from tests.disks import slow_disk
from tests.lanes import explored
from tests.new_warehouse import new_warehouse
from tests.protocol_entries import (
    DAY,
    NEXT,
    TOPICS,
    closing,
    count,
    ends,
    epoch,
    file,
    genesis,
    lost,
    report,
    seal,
)

RESULTS = pa.schema([pa.field("session_date", pa.string()), pa.field("epoch", pa.int64())])


class Job:
    """An epoch's job that finds one row of each partition; before it, `errors` are raised."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.attempts = 0
        self.placement = SimpleNamespace(wait=lambda _: None)
        stopped = SimpleNamespace(isStopped=lambda: False)
        context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: stopped))
        self.spark = SimpleNamespace(sparkContext=context)

    def run(self, plan: Plan, *_: object, **__: object) -> Sequence[SlotReport]:
        self.attempts += 1
        if self.errors:
            raise RuntimeError(self.errors.pop(0))
        read = [count("a", 0, 1), count("a", 1, 1), count("b", 0, 1)]
        return [report(0, plan.epoch, read=read), report(1, plan.epoch)]


@pytest.fixture
def root(tmp_path: Path) -> str:
    warehouse = new_warehouse(tmp_path / "warehouse", RESULTS)
    warehouse.journal.append(genesis(written_at="2026-01-05T14:00:00Z"))
    return str(tmp_path / "warehouse")


def opened(root: str) -> Warehouse:
    return Warehouse(root, RESULTS, fsync=False)


def driver(
    warehouse: Warehouse,
    job: Job | None = None,
    troubles: Any = None,
    *,
    idle: bool = False,
    most_moved_bytes: int = 1 << 20,
    on_epoch: Any = lambda _: None,
    secrets: Any = None,
    mode: RecoveryMode = "auto",
) -> StreamDriver:
    made = StreamDriver(
        warehouse,
        TOPICS,
        most_moved_bytes,
        2.0,
        on_epoch,
        (lambda _: None) if troubles is None else troubles.append,
        cores=2,
        max_results=0,
        recovery=RecoverySettings(mode=mode, wait_s=0.0, restore_within_s=1.0),
        secrets=secrets or {},
    )
    if not idle:
        made.use(job or Job())  # type: ignore[arg-type]
    return made


def run_epoch(one: StreamDriver) -> None:
    """An epoch of one more row of every partition."""
    at = one.state.epoch + 2
    one.epoch(ends(at, at, at), [], NEXT, limit_rows=10)


def epochs(root: str) -> list[tuple[int, int]]:
    """Term and number of every epoch in the journal."""
    found = opened(root).journal.read()
    return [(entry.term, entry.epoch) for entry in found if isinstance(entry, Epoch)]


def test_a_newcomer_takes_over_from_one_that_works(root: str) -> None:
    """The old one journals an epoch after the newcomer has opened the warehouse, and another one
    between the newcomer's look and its claim."""
    old = driver(opened(root))
    place = opened(root)
    run_epoch(old)
    run_epoch(old)
    looks, applied_all = [], place.applied_all

    def slow() -> dict[str, int]:
        if not looks:
            run_epoch(old)
        looks.append(1)
        return applied_all()

    place.applied_all = slow  # type: ignore[method-assign]
    new = driver(place)
    assert len(looks) == 2
    assert (new.state.term, new.state.epoch) == (2, 2)
    with pytest.raises(Ended, match=r"another stream has taken over this warehouse: .*, term 2"):
        run_epoch(old)
    run_epoch(new)
    assert epochs(root) == [(1, 0), (1, 1), (1, 2), (2, 3)]


def test_an_idle_driver_notices_that_another_one_has_claimed(root: str) -> None:
    old = driver(opened(root))
    place = opened(root)
    run_epoch(old)
    old.look()
    new = driver(place)
    assert new._driver.claims == 0, "what was read when it opened the tables is old"
    new.look()
    with pytest.raises(Ended, match="has taken over") as ended:
        old.look()
    assert ended.value.fenced
    run_epoch(new)
    assert epochs(root) == [(1, 0), (2, 1)]


def test_a_look_is_no_licence_to_append(root: str) -> None:
    """The handle sees the other one's claim now, and the number is still that after its own."""
    old, new = driver(opened(root)), driver(opened(root))
    assert list(new.looked().entries) == []
    (seen,) = old.looked().entries
    assert isinstance(seen, Claim)
    assert (seen.n, seen.term, seen.cores) == (2, 2, 2)
    with pytest.raises(Ended, match="has taken over"):
        run_epoch(old)
    assert epochs(root) == []


def test_no_attempt_is_repeated_after_a_takeover(root: str) -> None:
    job, troubles = Job(*["slot 0: a file is gone"] * 8), list[str]()
    old = driver(opened(root), job, troubles)
    driver(opened(root))
    with pytest.raises(Ended, match="has taken over"):
        run_epoch(old)
    assert job.attempts == 1


def test_a_slow_disk_is_named_with_a_figure_once_a_minute(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what took longest on it; the stream goes on, and nothing is done twice."""
    times = iter(range(0, 10**6, 3))
    clock = SimpleNamespace(monotonic=lambda: float(next(times)))
    monkeypatch.setattr(troubles, "time", clock)
    monkeypatch.setattr(troubles, "EVERY_S", 1000.0)  # of this clock's
    told: list[str] = []
    one = driver(opened(root), SlowJob(), told)
    run_epoch(one)
    state, tables = sorted(told)
    assert state.startswith("epoch 0: the disk of the state (state.root) is slow: the manifest of ")
    assert "slot 1 took 5.1 s. Every epoch waits for it" in state
    assert tables.startswith("epoch 0: the disk of the tables (warehouse.root) is slow: a commit ")
    assert " took 3.0 s. Every epoch waits for it" in tables
    run_epoch(one)
    assert len(told) == 2, "it is known by now"
    monkeypatch.setattr(troubles, "EVERY_S", 0.0)
    run_epoch(one)
    assert len(told) == 4
    before, newest = opened(root).journal.read()[-2:]
    assert isinstance(before, Epoch)
    assert isinstance(newest, Epoch)
    assert newest.seconds["commits before"] >= 6.0, "of a journal and a table, 3 s each"
    assert newest.seconds["commits before"] == before.seconds["commits before"]
    model = cache.caught_up(opened(root), ReadCache())
    assert slow_disks(model.tally.write_s) == (
        f"slow: the tables' (warehouse.root) took {newest.seconds['commits before']:.1f} s for an "
        "epoch's commits, the state's (state.root) took 5.1 s for a manifest"
    )
    assert epochs(root) == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.server
def test_epochs_on_a_disk_that_is_slow_are_right_and_say_so(root: str, tmp_path: Path) -> None:
    """A real one: in a process for which each new file takes a fifth of a second."""
    code = """
import sys
from spillway.stream import troubles
from tests.unit.test_takeover import driver, opened, run_epoch
troubles.SLOW_S = 0.3
told = []
one = driver(opened(sys.argv[1]), troubles=told)
run_epoch(one)
run_epoch(one)
print(*told, sep="\\n")
"""
    slow = slow_disk(tmp_path, Path(root), 0.2)
    done = subprocess.run(
        [sys.executable, "-c", code, root],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **slow},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [told] = done.stdout.splitlines()
    assert told.startswith("epoch 0: the disk of the tables (warehouse.root) is slow: a commit to ")
    assert epochs(root) == [(1, 0), (1, 1)]
    newest = opened(root).journal.read()[-1]
    assert isinstance(newest, Epoch)
    assert newest.seconds["commits before"] >= 0.4, "a file and a log entry at the least"


def test_a_disk_that_is_not_slow_is_not_named(root: str) -> None:
    told: list[str] = []
    run_epoch(driver(opened(root), troubles=told))
    assert told == []
    assert slow_disks({"tables": 5.0, "state": 2.0}) == slow_disks({}) == ""


class SlowJob(Job):
    """Its second slot waits for the disk of its state."""

    def run(self, plan: Plan, *_: object, **__: object) -> Sequence[SlotReport]:
        first, second = super().run(plan)
        totals = SlotTotals(
            slot=1, budget_bytes=1, state_bytes=0, folder_bytes=0, rows=0, seconds={"manifest": 5.1}
        )
        return [first, second.model_copy(update={"totals": totals})]


def test_an_attempt_that_the_kernel_ended_says_so(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all attempts end so: what the stream ends with names the limit."""
    killed = iter(range(100))
    monkeypatch.setattr(troubles, "killed_for_memory", lambda: next(killed))
    monkeypatch.setattr(troubles, "most_memory", lambda: 3 << 30)
    told: list[str] = []
    dead = "Job aborted: Python worker exited unexpectedly (crashed)"
    one = driver(opened(root), Job(*[dead] * 8), told)
    with pytest.raises(Ended, match=r"epoch 0 failed 8 times: memory ran out: .* may have 3"):
        run_epoch(one)
    assert len(told) == 8
    assert all(each.endswith(f"({dead})") for each in told)
    assert epochs(root) == []


@pytest.mark.parametrize(
    ("error", "kills", "says"),
    [
        (ConnectionRefusedError("refused"), 1, "memory ran out: .*What is in the journal is whole"),
        (StreamFailed("the stream failed: gone"), 1, "memory ran out: .*the stream failed: gone"),
        (StreamFailed("the stream failed: gone"), 0, "^the stream failed: gone$"),
        (ConnectionRefusedError("refused"), 0, "^refused$"),
        (SessionNotOpen("another day"), 1, "^another day$"),
    ],
)
def test_a_stream_whose_jvm_the_kernel_killed_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, kills: int, says: str
) -> None:
    """Not of every error: one that has its own reason keeps it."""

    def start_spark(_: Settings) -> None:
        killed.append(kills)
        raise error

    killed: list[int] = []
    monkeypatch.setattr(troubles, "killed_for_memory", lambda: sum(killed))
    monkeypatch.setattr(service, "start_spark", start_spark)
    for name in ("open_journal", "check_session"):
        monkeypatch.setattr(service, name, lambda *_: None)
    given = {"warehouse.root": str(tmp_path / "w"), "state.root": str(tmp_path / "state")}
    settings = load_settings(None, given, environ={})[0]
    stream = service.Stream(settings, load_query("symbol"), Wanted(), Watcher(), lambda: 0)
    with pytest.raises(Exception, match=says):
        stream.run()


TRACEBACK = (
    "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
    '  File "worker.py", line 1\n'
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Job aborted: Python worker exited unexpectedly (crashed)", "lost"),
        ("ExecutorLostFailure (executor 1 exited)", "lost"),
        ("org.apache.kafka.common.errors.TimeoutException: no answer", "lost"),
        (TRACEBACK + "ValueError: odd", "raised"),
        (TRACEBACK + "spillway.storage.StorageError: cannot write /x: no space is left", "storage"),
        ("java.io.IOException: No space left on device", "storage"),
        (
            TRACEBACK + "spillway.kafka.client.KafkaUnavailable: Kafka at h:1 does not answer",
            "lost",
        ),
        (TRACEBACK + "spillway.kafka.reading.OffsetsGone: 'a' partition 0 does not hold", "gone"),
        (TRACEBACK + "spillway.kafka.reading.TopicDeleted: topic 'a' does not exist", "deleted"),
        ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost", "gone"),
    ],
)
def test_causes(text: str, cause: str) -> None:
    assert cause_of(text) == cause


def test_an_error_of_the_code_is_tried_three_times(root: str) -> None:
    job, troubles = Job(*[TRACEBACK + "ValueError: odd"] * 8), list[str]()
    one = driver(opened(root), job, troubles)
    with pytest.raises(Ended, match=r"3 times in a row .*ValueError: odd\. It reads a/0 from 0 to"):
        run_epoch(one)
    assert job.attempts == 3
    assert epochs(root) == []


def test_a_folder_that_cannot_be_written_is_tried_once_and_named_plainly(root: str) -> None:
    """Of Spark's many lines only the one that a person can act on is shown."""
    says = "cannot write /w/x.parquet: no space is left: free some there"
    job, troubles = (
        Job(f"{TRACEBACK}spillway.storage.StorageError: {says}\n\tat x.Y(Z)"),
        list[str](),
    )
    with pytest.raises(Ended) as ended:
        run_epoch(driver(opened(root), job, troubles))
    assert str(ended.value).startswith(f"epoch 0 has failed: {says}. Nothing from it was committed")
    assert (job.attempts, troubles) == (1, [f"epoch 0, attempt 1: {says}"])


@pytest.mark.parametrize(
    ("newest_ms", "told_ms"),
    [(0, 0), (-1, 0), (1_000, 1_000), (10_000, 10_000), (10_001, 10_000), (2**62, 10_000)],
)
def test_one_record_of_a_far_day_does_not_stop_the_streams_clock(
    newest_ms: int, told_ms: int
) -> None:
    found = report(0, 0).model_copy(update={"recent_input_ms": newest_ms})
    assert dated(found, now_ms=10_000).recent_input_ms == told_ms


def test_the_journals_newest_input_is_bounded_by_this_hosts_clock(root: str) -> None:
    class Ahead(Job):
        def run(self, *arguments: Any, **named: Any) -> Sequence[SlotReport]:
            found = super().run(*arguments, **named)
            return [r.model_copy(update={"recent_input_ms": 4_102_444_800_000}) for r in found]

    one = driver(opened(root), Ahead())
    began_ms = time.time_ns() // 1_000_000
    run_epoch(one)
    ended_ms = time.time_ns() // 1_000_000
    assert began_ms <= one.state.recent_input_ms <= ended_ms


IDLE_AFTER_MS = 300_000
SPOKE = st.fixed_dictionaries({}, optional=dict.fromkeys("abc", st.integers(0, 20_000)))
"""Of one epoch, per partition that brings rows, how long its newest row was on its way."""


def heard_of(
    epochs: Sequence[tuple[int, dict[str, int], int]],
) -> Iterator[tuple[int, frozenset[str], dict[str, int]]]:
    """Per epoch the driver's time, the partitions that are idle, and by partition its newest row.

    `epochs`: how long after the one before, what partitions bring, and how far the record of a
    producer with a wrong clock is dated ahead, in ms; 0: there is none.
    """
    names = {name: (name, 0) for name in "abc"}
    progress, now_ms, clock_ms = Progress.begin(names.values()), 10**12, 0
    newest = dict[str, int]()
    for after_ms, spoke, ahead_ms in epochs:
        now_ms += after_ms
        newest |= {name: now_ms - way_ms for name, way_ms in spoke.items()}
        stamps = [now_ms - way_ms for way_ms in spoke.values()]
        stamps += [now_ms + ahead_ms] if ahead_ms else []
        found = report(0, 0).model_copy(update={"recent_input_ms": max(stamps, default=0)})
        clock_ms = max(clock_ms, dated(found, now_ms).recent_input_ms)
        came = {names[name]: 1000 * newest[name] for name in spoke}
        progress = progress.after(came, clock_ms, idle_after_ms=IDLE_AFTER_MS)
        idle = progress.idle(clock_ms, IDLE_AFTER_MS)
        yield now_ms, frozenset(name for name, _ in idle), dict(newest)


def test_a_record_dated_ahead_makes_no_partition_idle_and_hides_no_silence() -> None:
    minute, whole = 60_000, dict.fromkeys("abc", 0)
    ahead = [(minute, whole, 0), (minute, {"a": 0}, 10 * 366 * 86_400_000)]
    *_, (_, idle, _) = heard_of(ahead)
    assert idle == set()
    later = [(minute, {"a": 0, "b": 0}, 0)] * 4
    assert [sorted(idle) for _, idle, _ in heard_of([*ahead, *later])][1:] == [[]] * 5
    assert [sorted(idle) for _, idle, _ in heard_of([*ahead, *later, later[0]])][-1] == ["c"]


@explored(
    50,
    1000,
    st.lists(
        st.tuples(
            st.sampled_from([1_000, 60_000, 200_000]),
            SPOKE,
            st.sampled_from([0, 0, 1, 30_000, 3_600_000, 2**62]),
        ),
        max_size=20,
    ),
)
def test_partitions_are_idle_by_what_is_true_whatever_producers_say(
    epochs: list[tuple[int, dict[str, int], int]],
) -> None:
    """None before its silence is long enough by this host's clock, and each where others are
    heard of that much later."""
    spoke_at = dict[str, int]()
    begun_at = None
    for (now_ms, idle, newest), (_, spoke, _) in zip(heard_of(epochs), epochs, strict=True):
        if spoke and begun_at is None:
            begun_at = now_ms
        if begun_at is None:
            assert not idle
            continue
        spoke_at |= dict.fromkeys(spoke, now_ms)
        for name in "abc":
            silent_ms = now_ms - newest.get(name, begun_at - 20_000)
            assert name not in idle or silent_ms > IDLE_AFTER_MS
            if max(newest.values()) - spoke_at.get(name, begun_at) > IDLE_AFTER_MS:
                assert name in idle


def test_of_a_java_trace_the_first_and_the_telling_lines_are_shown() -> None:
    trace = (
        "Writing the offset log failed\n\tat org.apache.spark.X.y(X.scala:1)\n"
        "Caused by: java.io.IOException: No space left on device\n\tat java.base/sun.Z(Z.java:2)"
    )
    assert first_lines(RuntimeError(trace), {}) == (
        "Writing the offset log failed | Caused by: java.io.IOException: No space left on device"
    )


def test_no_more_than_two_telling_lines_and_600_characters_are_shown() -> None:
    lines = ["It failed", *(f"ValueError: {name}" for name in "abc")]
    assert first_lines(RuntimeError("\n".join(lines)), {}) == (
        "It failed | ValueError: b | ValueError: c"
    )
    cancelled = (
        "An error occurred while calling o1151.collectToPython.\n: org.apache.spark."
        "SparkException: [SPARK_JOB_CANCELLED] Job 19 cancelled as part of cancellation of all jobs"
    )
    assert first_lines(RuntimeError(cancelled), {}) == "its Spark job was cancelled"
    assert first_lines(RuntimeError("x" * 700), {}) == "x" * 600


class Noting(Job):
    """Notes how it is called; `reports` are what it finds, one list a call."""

    def __init__(self, *reports: Sequence[SlotReport] | None) -> None:
        super().__init__()
        self.reports = list(reports)
        self.given: list[tuple[tuple[object, ...], dict[str, Any]]] = []
        self.waits: list[float] = []
        self.placement = SimpleNamespace(wait=self.waits.append)

    def run(self, plan: Plan, *given: object, **named: Any) -> Sequence[SlotReport]:
        self.given.append((given, named))
        found = self.reports.pop(0) if self.reports else None
        return super().run(plan) if found is None else found


def test_what_the_job_of_an_epoch_is_told(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns)
    monkeypatch.setattr("spillway.stream.driver.time", clock)

    def figures(works: Sequence[Any], *of: object) -> tuple[object, ...]:
        return (len(works), *of)

    monkeypatch.setattr("spillway.stream.driver.slot_figures", figures)
    job = Noting()
    one = driver(opened(root), job)
    span = statistics_every_s(len(one.state.groups))
    for after in (0.0, span - 0.125, 0.125, 0.125):
        now[0] += after
        at = one.state.epoch + 2
        one.epoch(ends(at, at, at), [], NEXT, limit_rows=10)
    told = [(named["attempt"], named["now_ms"], named["statistics"]) for _, named in job.given]
    # Statistics are due at once, and then after some time.
    assert told == [(1, 0, True), (1, 0, False), (1, 0, True), (1, 0, False)]
    assert {named["term"] for _, named in job.given} == {1}
    next_job = Noting()
    run_epoch(driver(opened(root), next_job))
    assert [named["term"] for _, named in next_job.given] == [2]
    # What the slots did since then, with two groups each.
    assert [named["recent"] for _, named in job.given] == [(n, [2, 2], 2.0) for n in (0, 1, 2, 1)]
    assert job.waits == []
    newest = opened(root).journal.read()[-1]
    assert isinstance(newest, Epoch)
    assert newest.limit_rows == 10
    assert newest.seconds["job"] == 0.0


def test_an_epoch_takes_the_time_of_its_job(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    class Slow(Noting):
        def run(self, *arguments: Any, **named: Any) -> Sequence[SlotReport]:
            now[0] += 1.234567
            return super().run(*arguments, **named)

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("spillway.stream.driver.time", clock)
    journaled: list[Epoch] = []
    run_epoch(driver(opened(root), Slow(), on_epoch=journaled.append))
    assert [each.seconds["job"] for each in journaled] == [1.2346]
    assert journaled == opened(root).journal.read()[-1:]


def test_an_epoch_is_planned_with_what_was_offered(root: str) -> None:
    """Its commands, the session after the one that they close, and what may move at once."""

    class Planned(Noting):
        def run(self, plan: Plan, *given: object, **named: Any) -> Sequence[SlotReport]:
            plans.append(plan)
            return super().run(plan, *given, **named)

    plans: list[Plan] = []
    one = driver(opened(root), Planned(), most_moved_bytes=7)
    moves = [Move(group=Prefix(2, g), to=to, bytes=5) for g, to in ((0, 1), (2, 0))]
    commands = [
        closing(ends(9, 9, 9)),
        *(command_of("move", f"d/{i}", move=move) for i, move in enumerate(moves)),
    ]
    one.epoch(ends(1, 1, 1), commands, NEXT, limit_rows=10)
    (plan,) = plans
    assert plan.accepted == seal(ends(9, 9, 9))
    assert [move.decision for move in plan.moved] == ["d"]
    assert [move.decision for move in plan.queue] == ["d"]


def test_files_are_made_durable_before_the_journal_names_them(root: str) -> None:
    done: list[Any] = []
    place = opened(root)
    append = place.journal.append

    def noted(entry: Any) -> None:
        done.append(entry.kind)
        append(entry)

    place.journal.append = noted  # type: ignore[method-assign]
    place.sync_files = done.append  # type: ignore[method-assign,assignment]
    place.maintain = lambda: done.append("maintained")  # type: ignore[method-assign,assignment,misc]
    place.apply = lambda *what: done.append(what)  # type: ignore[method-assign]
    named = (file("results", 0),)
    found = [report(0, 0, files=list(named)), report(1, 0)]
    one = driver(place, Noting(found))
    assert done == ["claim", "maintained"]
    del done[:]
    run_epoch(one)
    assert done == [named, "epoch", ("results", 0, list(named)), "maintained"]


def test_a_commit_that_nobody_answers_ends_the_driver(root: str) -> None:
    place = opened(root)
    one = driver(place)

    def append(_: object) -> None:
        raise OutcomeUnknown("the broker went away")

    place.journal.append = append  # type: ignore[method-assign,assignment]
    with pytest.raises(Ended) as ended:
        run_epoch(one)
    assert str(ended.value) == "the outcome of a journal commit is unknown: the broker went away"
    assert not ended.value.fenced


def test_no_secret_is_in_what_is_told_of_an_attempt(root: str) -> None:
    job, troubles = Job("bad password hunter2-Pa55phrase"), list[str]()
    secrets = {"sasl.password": SecretStr("hunter2-Pa55phrase")}
    run_epoch(driver(opened(root), job, troubles, secrets=secrets))
    assert len(troubles) == 1
    assert "hunter2" not in troubles[0]
    assert troubles[0].startswith("epoch 0, attempt 1: bad password ")


def test_what_was_read_last_is_the_jobs_clock(root: str) -> None:
    class Dated(Noting):
        def run(self, *arguments: Any, **named: Any) -> Sequence[SlotReport]:
            found = super().run(*arguments, **named)
            return [r.model_copy(update={"recent_input_ms": 77}) for r in found]

    job = Dated()
    one = driver(opened(root), job)
    run_epoch(one)
    run_epoch(one)
    assert [named["now_ms"] for _, named in job.given] == [0, 77]


def test_lost_state_is_told_and_the_attempt_repeated_after_a_wait(root: str) -> None:
    gone = [lost(0, 0), report(1, 0)]
    not_given = [report(0, 0), lost(1, 0, {0: "no groups came", 1: "a file is gone"})]
    job, troubles = Noting(gone, not_given), list[str]()
    one = driver(opened(root), job, troubles)
    run_epoch(one)
    assert troubles == [
        "epoch 0: slot 0 has lost its state (gone)",
        "epoch 0: slot 0 has lost its state (no groups came)",
        "epoch 0: slot 1 has lost its state (a file is gone)",
    ]
    assert [named["attempt"] for _, named in job.given] == [1, 2, 3]
    assert job.waits == [0.0, 0.0]


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("restore", "reading 3 rows again from Kafka for slots [0]"),
        (
            "defer",
            "slots [0] restart empty; cleanup will re-read their rows from Kafka (recovery.mode is "
            "defer)",
        ),
    ],
)
def test_what_is_done_about_lost_state_is_told(root: str, mode: RecoveryMode, told: str) -> None:
    read = [count("a", 0, 1), count("a", 1, 1), count("b", 0, 1)]
    run_epoch(driver(opened(root), Noting([report(0, 0, read=read), report(1, 0)])))
    troubles: list[str] = []
    one = driver(opened(root), Noting([lost(0, 1), report(1, 1)]), troubles, mode=mode)
    with contextlib.suppress(InputChanged):  # this job reads nothing again
        run_epoch(one)
    assert troubles == ["epoch 1: slot 0 has lost its state (gone)", f"epoch 1: {told}"]


def test_what_is_accepted_as_lost_is_told_once(root: str) -> None:
    """Of partition a/0 five rows are gone before they were read; the rest is read."""
    troubles: list[str] = []
    gone = command_of("accept-loss", "g", session=DAY, lost_to=ends(5, 0, 0), reason="r", by="ada")
    read = [count("a", 1, 1), count("b", 0, 1)]
    one = driver(opened(root), Noting([report(0, 0, read=read), report(1, 0)]), troubles)
    one.epoch(ends(5, 1, 1), [gone], NEXT, limit_rows=10)
    assert troubles == ["epoch 0: continuing without a/0 from offset 0 to 5 (accepted as lost)"]


def test_a_job_must_be_there(root: str) -> None:
    one = driver(opened(root), idle=True)
    with pytest.raises(RuntimeError, match=r"^no job was given$"):
        run_epoch(one)


def test_a_driver_that_has_read_nothing_has_no_state(root: str) -> None:
    one = driver(opened(root))
    one._driver = replace(one._driver, state=None)
    with pytest.raises(RuntimeError, match=r"^the journal was not read$"):
        _ = one.state


def test_spark_that_has_stopped_ends_the_stream(root: str) -> None:
    job, troubles = Job("all is over"), list[str]()
    job.spark.sparkContext._jsc.sc = lambda: SimpleNamespace(isStopped=lambda: True)
    with pytest.raises(RuntimeError, match="all is over"):
        run_epoch(driver(opened(root), job, troubles))
    assert troubles == ["epoch 0, attempt 1: all is over"]


def test_each_table_gets_its_files_of_the_epoch(root: str) -> None:
    one = driver(opened(root))
    asked: list[tuple[object, ...]] = []
    one._warehouse = SimpleNamespace(apply=lambda *what: asked.append(what))  # type: ignore[assignment]
    files = (file("results", 3), file("results", 3, 1))
    assert one.apply(Apply("results", 3, files)) == Applied("results", 3)
    assert asked == [("results", 3, list(files))]


# --- snapshots -------------------------------------------------------------------------------


def kept_n(root: str) -> int:
    """Entry of the newest snapshot."""
    return next(Snapshots(folder(root).child("snapshots"), JournalSnapshot).newest(999)).n


def test_a_driver_keeps_snapshots_for_the_next(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at its start, one after so many entries; the next driver reads what came after."""
    monkeypatch.setattr("spillway.protocol.snapshot.EVERY", 3)
    kept = []
    one = driver(opened(root))
    for _ in range(5):
        kept.append(kept_n(root))
        run_epoch(one)
    assert kept == [1, 1, 1, 4, 4]
    run_epoch(one)
    state, rest = opened(root).journal.read_on(opened(root).applied_all())
    assert (state and state.n, [entry.n for entry in rest]) == (7, [])
    run_epoch(one)
    place = opened(root)
    monkeypatch.setattr(place.journal, "read", lambda n=0: pytest.fail("all of it is read"))
    new = driver(place)
    assert (new.state.n, new.state.term, new.state.epoch) == (9, 2, 6)
    assert new.state == replay(opened(root).journal.read())


def test_a_seal_is_kept_at_once(root: str) -> None:
    one = driver(opened(root))
    run_epoch(one)
    assert kept_n(root) == 1
    at = ends(2, 2, 2)
    one.epoch(at, [closing(at)], NEXT, limit_rows=10)
    assert one.state.session.date == NEXT
    assert kept_n(root) == 3


def test_a_session_knows_the_epoch_before_its_first(root: str) -> None:
    one = driver(opened(root))
    run_epoch(one)
    at = ends(2, 2, 2)
    one.epoch(at, [closing(at)], NEXT, limit_rows=10)
    run_epoch(one)
    again = closing(ends(3, 3, 3), "again", session=NEXT)
    one.epoch(ends(3, 3, 3), [again], "2026-01-07", limit_rows=10)
    assert [(date, each.base) for date, each in one.state.sealed.items()] == [(DAY, -1), (NEXT, 0)]
    entries = opened(root).journal.read_session(one.state.sealed[NEXT])
    assert [each.epoch for each in entries if isinstance(each, Epoch)][-3:] == [1, 2, 3]


def test_what_a_snapshot_stands_for_is_settled(root: str) -> None:
    one = driver(opened(root))
    run_epoch(one)
    at = ends(2, 2, 2)
    one.epoch(at, [closing(at)], NEXT, limit_rows=10)
    assert opened(root).journal.read_on()[1] == [], "nothing but the snapshot is read"
    assert opened(root).settled().epoch == 1


def test_a_driver_redoes_what_a_snapshot_hides(root: str) -> None:
    """A power loss may take commits of tables that were there when the snapshot was written."""
    one = driver(opened(root))
    run_epoch(one)
    end = ends(2, 2, 2)
    place = opened(root)
    at = "2026-01-05T15:00:00Z"
    place.journal.append(epoch(3, 1, end, files=[file("results", 1)], written_at=at))
    state = place.journal.state()
    assert state is not None
    place.journal.keep(state)
    assert kept_n(root) == 3
    place, applied = opened(root), []
    place.apply = lambda *each: applied.append(each[:2])  # type: ignore[method-assign]
    driver(place)
    assert applied == [("results", 1)]


def test_a_snapshot_that_cannot_be_written_is_told_and_no_more(root: str) -> None:
    Path(root, "snapshots").write_text("a file is where the folder should be")
    troubles: list[str] = []
    one = driver(opened(root), troubles=troubles)
    run_epoch(one)
    assert [text[:40] for text in troubles] == ["the next start and look will read more o"]
    assert one.state.epoch == 0
    assert opened(root).journal.state() == one.state
