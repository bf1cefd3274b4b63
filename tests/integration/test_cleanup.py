"""Cleanup on a real Spark: exactly what is missing, whoever is killed, however many there are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spillway.cleanup.job import CleanupProgress, run_cleanup
from spillway.cleanup.plan import MOST_TASKS_PER_CORE, CleanupRefused
from spillway.engine.spill.spillfile import SpillDamaged
from spillway.protocol.state import AnotherQuery
from spillway.stream.session import spark_session
from spillway_schemas.filenames import origin
from tests.integration.spilled_day import (
    DAY,
    NEXT,
    SPEC,
    SpilledDay,
    brute_force,
    make_day,
    random_rows,
    results_of,
)

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def spark(spark_env):
    session = spark_session("local[2]", "test cleanup", delta=True)
    yield session
    session.stop()


def never():
    pytest.fail("Spark was started though there was nothing to compute")


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much of what is tested here happens between two of them."""
    monkeypatch.setattr("spillway.cleanup.plan.LEAST_TASKS_PER_CORE", MOST_TASKS_PER_CORE)


def a_day(tmp_path, *, rows: int = 1500, keys: int = 250, generations: int = 5, **options):
    return make_day(str(tmp_path / "warehouse"), random_rows(7, rows, keys, generations), **options)


def cleanup(spark, day: SpilledDay, **options):
    start = options.pop("start_spark", lambda: spark)
    options.setdefault("task_bytes", 1)
    return run_cleanup(start, day.warehouse(), SPEC, DAY, **options)


def events_of(day: SpilledDay):
    return [e for e in day.warehouse().sessions.read() if e.event == "cleaned"]


def test_a_day_becomes_complete(spark, tmp_path):
    day = a_day(tmp_path)
    expected = brute_force(day.rows)
    missing = sum(n for key, n in expected.items() if key[0] == "cleanup")
    assert missing > 1000
    before = results_of(day.warehouse())
    assert {key[0] for key in before} == {"run-time"}
    seen: list[CleanupProgress] = []
    cleaned = cleanup(spark, day, on_progress=seen.append)
    assert results_of(day.warehouse()) == expected
    assert (cleaned.already, cleaned.cleanup) == (False, missing)
    done = [p.ranges_done for p in seen]
    assert done == sorted(set(done))
    assert (done[0], done[-1]) == (0, len(day.sealed.ranges))
    assert len(done) > 8
    assert seen[-1].rows == missing
    written = [
        origin(f.path)
        for f in day.warehouse().files("results")
        if origin(f.path).writer == "cleanup"
    ]
    assert written
    assert {o.session for o in written} == {DAY}
    (event,) = events_of(day)
    assert (event.cleanup, event.run_time) == (missing, day.sealed.results)
    assert event.generations == day.sealed.generations
    assert event.details["spilled_rows"] == len(day.rows)

    # Spark reads what delta-rs committed, also when it skips files by our statistics.
    table = spark.read.format("delta").load(day.warehouse().folder("results").path())
    assert table.where("phase = 'cleanup'").count() == missing
    for condition, wanted in (
        ("symbol = 'k3'", lambda key: key[1] == "k3"),
        (
            "stock_offset < 100 and phase = 'cleanup'",
            lambda key: key[0] == "cleanup" and key[2] < 100,
        ),
        ("review_text >= 'é9'", lambda key: key[4] % 3 and f"é{key[4]}" >= "é9"),
        ("committed_at > timestamp'2020-01-01'", lambda key: key[0] == "cleanup"),
    ):
        assert table.where(condition).count() == sum(
            n for key, n in expected.items() if wanted(key)
        ), condition

    # A second start does nothing, and needs no Spark.
    version = day.warehouse().table("results").version
    again = cleanup(spark, day, start_spark=never)
    assert (again.already, again.cleanup) == (True, missing)
    assert day.warehouse().table("results").version == version
    assert len(events_of(day)) == 1


def test_tiny_pieces_and_one_hot_key(spark, tmp_path):
    rows = [(i % 3, "hot" if i % 4 else f"k{i % 40}", i % 3) for i in range(120)]
    day = make_day(str(tmp_path / "w"), rows)
    cleanup(spark, day, piece_bytes=1, batch_bytes=20_000)
    assert results_of(day.warehouse()) == brute_force(rows)


def test_goes_on_where_it_stopped(spark, tmp_path):
    """Fails after every few commits, and is started again until it is through."""
    day = a_day(tmp_path, rows=800)
    total = len(day.sealed.ranges)
    assert total == 16
    stops, runs, reached = [3, 4, 9, total], 0, []

    def stop_at(progress: CleanupProgress) -> None:
        if progress.ranges_done >= stops[0] and len(stops) > 1:
            stops.pop(0)
            raise KeyboardInterrupt

    while True:
        runs += 1
        assert runs < 10
        try:
            cleanup(spark, day, on_progress=stop_at)
            break
        except KeyboardInterrupt:
            reached.append(day.warehouse().cleanup_applied(DAY))
            assert not events_of(day)
    assert [n >= least for n, least in zip(reached, (2, 3, 8), strict=True)] == [True] * 3
    assert reached == sorted(set(reached))
    assert reached[-1] < total - 1
    assert results_of(day.warehouse()) == brute_force(day.rows)
    assert len(events_of(day)) == 1


def test_all_ranges_in_but_the_last_row_of_sessions(spark, tmp_path):
    """Killed between the last commit and the end: only the end is left to do."""
    day = a_day(tmp_path, rows=300)

    def stop_at_the_end(progress: CleanupProgress) -> None:
        if progress.ranges_done == progress.ranges_total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cleanup(spark, day, on_progress=stop_at_the_end)
    cleaned = cleanup(spark, day, start_spark=never)
    assert results_of(day.warehouse()) == brute_force(day.rows)
    assert events_of(day)[0].cleanup == cleaned.cleanup > 0


KILLED = """
import os, signal, sys
from spillway.cleanup.job import run_cleanup
from spillway.stream.session import spark_session
from tests.integration.spilled_day import DAY, SPEC
from spillway.tables import Warehouse

def die(progress):
    if progress.ranges_done >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

run_cleanup(
    lambda: spark_session("local[2]", "killed"), Warehouse(sys.argv[1], fsync=False), SPEC, DAY,
    on_progress=die, task_bytes=1,
)
"""


def test_killed_in_the_middle(spark, spark_env, tmp_path):
    day = a_day(tmp_path, rows=800)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, day.root, "5"],
        cwd=ROOT,
        env={**os.environ, **spark_env},
        check=False,
        timeout=300,
    )
    assert ended.returncode == -signal.SIGKILL
    assert 4 <= day.warehouse().cleanup_applied(DAY) < len(day.sealed.ranges) - 1
    cleanup(spark, day)
    assert results_of(day.warehouse()) == brute_force(day.rows)


def test_two_at_once(spark, tmp_path):
    day = a_day(tmp_path, rows=800)
    start = threading.Barrier(2)
    outcomes: list[object] = []

    def one() -> None:
        try:
            start.wait()
            outcomes.append(cleanup(spark, day))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcomes.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = brute_force(day.rows)
    assert results_of(day.warehouse()) == expected
    missing = sum(n for key, n in expected.items() if key[0] == "cleanup")
    assert [getattr(o, "cleanup", o) for o in outcomes] == [missing, missing]


def test_one_overtakes_the_other(spark, tmp_path):
    """The slow one finds every range done that it comes to, and ends quietly."""
    day = a_day(tmp_path, rows=600)
    overtaken = []

    def let_another_pass(progress: CleanupProgress) -> None:
        if progress.ranges_done >= 3 and not overtaken:
            overtaken.append(cleanup(spark, day))

    slow = cleanup(spark, day, on_progress=let_another_pass)
    assert overtaken[0].cleanup == slow.cleanup
    assert results_of(day.warehouse()) == brute_force(day.rows)
    assert len(events_of(day)) == 1


def test_refuses_what_is_not_ready(spark, tmp_path):
    day = a_day(tmp_path, rows=200, apply=False)
    with pytest.raises(CleanupRefused, match="not sealed"):
        run_cleanup(never, day.warehouse(), SPEC, NEXT)
    with pytest.raises(AnotherQuery, match="another query"):
        cleanup(spark, day, start_spark=never, fingerprint="x")
    with pytest.raises(CleanupRefused, match="behind the journal by"):
        cleanup(spark, day, start_spark=never, wait_s=0)

    def apply_later() -> None:
        time.sleep(0.5)
        writer = day.warehouse()
        for entry in writer.journal.read():
            for table in ("spill", "results"):
                files = [f for f in getattr(entry, "files", []) if f.table == table]
                if files:
                    writer.apply(table, entry.epoch, files)

    thread = threading.Thread(target=apply_later)
    thread.start()
    cleanup(spark, day, wait_s=30)
    thread.join()
    assert results_of(day.warehouse()) == brute_force(day.rows)


def test_a_day_without_spills_needs_nothing(tmp_path):
    day = make_day(str(tmp_path / "w"), [])
    assert day.sealed.ranges == []
    cleaned = run_cleanup(never, day.warehouse(), SPEC, DAY)
    assert (cleaned.cleanup, cleaned.ranges) == (0, 0)
    assert len(events_of(day)) == 1


def test_a_damaged_spill_file_is_named_and_nothing_is_committed(spark, tmp_path):
    day = a_day(tmp_path, rows=300)
    victim = min(f.path for f in day.warehouse().files("spill"))
    path = Path(day.warehouse().folder("spill").path(victim))
    data = path.read_bytes()
    path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    with pytest.raises(SpillDamaged, match="SHA-256") as error:
        cleanup(spark, day)
    assert victim in str(error.value)
    assert day.warehouse().cleanup_applied(DAY) == -1
    path.unlink()
    with pytest.raises(SpillDamaged, match="missing"):
        cleanup(spark, day)
    path.write_bytes(data)
    cleanup(spark, day)
    assert results_of(day.warehouse()) == brute_force(day.rows)


def test_a_spill_file_that_no_journal_names_is_refused(spark, tmp_path):
    day = a_day(tmp_path, rows=100)
    warehouse = day.warehouse()
    table = warehouse.table("spill")
    journaled = [f for e in warehouse.journal.read() for f in getattr(e, "files", [])]
    foreign = next(f for f in journaled if f.table == "spill")
    other = foreign.model_copy(update={"path": f"session_date={DAY}/other.parquet"})
    place = warehouse.folder("spill")
    place.write_new(other.path, place.read(foreign.path))
    table.commit([other], "somebody", 1)
    with pytest.raises(CleanupRefused, match=r"journal does not, .*other\.parquet"):
        cleanup(spark, day, start_spark=never)
