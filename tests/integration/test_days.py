"""Whole days on the real parts: each is verified complete and equal to a brute-force join."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from spillway.kafka.broker import free_port
from spillway.kafka.client import cluster
from tests.disks import mounted
from tests.integration import planted
from tests.integration.day import (
    Day,
    MakeDay,
    chained,
    delta_rows,
    fresh_days,
    messages,
    running,
    wait_for,
)
from tests.integration.failpoints import CLEANUP_POINTS, DRIVER_POINTS, WORKER_POINTS
from tests.s3_server import SECRET, S3Server
from tests.scrape import Samples, figure, scrape, total

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FIRST, SECOND = "2026-01-05", "2026-01-06"
ROWS = 5_000


@pytest.fixture
def make_day(
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
) -> Iterator[MakeDay]:
    """Days on fresh topics."""
    with fresh_days(tmp_path, broker, topics, spark_env) as make:
        yield make


def test_two_days_with_too_little_memory(make_day: MakeDay) -> None:
    """Groups spill, a day is sealed while the next one's rows arrive, both end exact.

    And a secret in the settings shows nowhere.
    """
    listen, ui_port = f"127.0.0.1:{free_port()}", free_port()
    extra = {"METRICS__LISTEN": listen, **planted.settings(ui_port)}
    day = make_day(budget_bytes=96 << 10, extra=extra)
    day.produce(messages(1, ROWS, keys=5_000))
    cleanup, seal = ("cleanup", "--session", FIRST), ("seal", "--session", FIRST)
    words = chained(("stream", "--session", FIRST, "--available-now"), cleanup)
    assert day.run(*words) == 3
    assert f"{FIRST} is not sealed" in day.tail(), day.tail()
    # A second seal does no harm; one of a session that is not open is refused.
    assert day.run(*chained(seal, seal, ("seal", "--session", SECOND))) == 3
    assert SECOND in day.tail(4), day.tail()
    # The seal is read late: these rows lie beyond it, in one batch with the seal.
    day.produce(messages(2, ROWS, keys=5_000))
    with running(day, "stream"):
        wait_for(lambda: is_sealed(day, FIRST), 120, "the seal")
        # Sealed and not told: to ask too early is refused and does no harm.
        wait_for(lambda: day.run(*cleanup) == 0, 60, "cleanup beside stream")
        phases = day.check(FIRST)
        assert phases["run-time"] > 0
        assert phases["cleanup"] > 0, "nothing was spilled: the test shows nothing"
        check_figures(day, listen)
        planted.check_running(ui_port, listen)
    words = chained(
        ("verify", "--session", FIRST),
        ("stream", "--until-sealed", FIRST),
        ("stream", "--session", FIRST),
    )
    assert day.run(*words) == 3
    assert f"{FIRST} is sealed" in day.tail(), day.tail()
    day.ok("seal", "--session", SECOND)
    day.produce(messages(3, ROWS // 2, keys=5_000))
    # Two feeds were down on the first day: a file has the rows of one, a topic those of the other.
    from_file = messages(4, 200, keys=500, malformed=0.0)
    from_topic = [("review", value) for stream, value in from_file if stream == "review"][:40]
    late_file, late_topic = day.write_late(from_file), send_late(day, from_topic)
    why = ("--reason", "a feed was down")
    commands = (
        ("stream", "--until-sealed", SECOND),
        ("cleanup", "--session", SECOND),
        ("verify", "--session", SECOND),
        ("cleanup", "--session", SECOND),  # does nothing
        # Both days are proved: their spilled rows are needed no more, and everything else stays.
        ("maintain", "--keep-spilled-days", "0", "--json"),
        cleanup,  # was done
        ("correct", "--session", FIRST, late_file, *why),
        ("correct", "--session", FIRST, "--topic", late_topic, "--stream", "review", *why),
        ("verify", "--session", FIRST),
        ("verify", "--session", SECOND),
        ("stream", "--available-now"),
        ("status", "--json"),
    )
    day.ok(*chained(*commands), timeout_s=300)
    log = (day.folder / "log.txt").read_text()
    maintained, status = (json.loads(line) for line in log.splitlines() if line.startswith("{"))
    [spill] = [each for each in maintained["tables"] if each["table"] == "spill"]
    assert spill["sessions"] == [FIRST, SECOND]
    assert {each["session"] for each in status["sessions"]} >= {FIRST, SECOND}
    assert day.check(FIRST, from_file, from_topic)["correction"] > 0
    assert day.check(SECOND)["cleanup"] > 0
    rejected = Counter(json.dumps(row["reason"]) for row in day.quarantined())
    assert rejected.total() > 0
    planted.check_left(day)


def send_late(day: Day, late: Sequence[tuple[str, bytes]]) -> str:
    """A topic of its own with late rows of one stream; its name."""
    topic = f"{day.topics[late[0][0]]}-late"
    with cluster(day.bootstrap) as view:
        view.create_topics({topic: 1})
    producer = KafkaProducer(bootstrap_servers=day.bootstrap)
    for _, value in late:
        producer.send(topic, value)
    producer.close()
    return topic


def is_sealed(day: Day, session: str) -> bool:
    """Whether the journal has ended a session."""
    sealed = [entry["sealed"] for entry in day.journal.epochs()]
    return any(each and each["session"] == session for each in sealed)


def _all_seen(found: Samples) -> bool:
    """Whether what is served has come to rest: small epochs take their time."""
    proved = figure(found, "spillway_unproved_sessions") == 1
    return proved and total(found, "spillway_lag_rows") == 0


def check_figures(day: Day, listen: str) -> None:
    """What the running stream serves is what its tables hold, the term before included."""
    wait_for(lambda: _all_seen(scrape(listen)), 120, "the day is proved, the rows are read")
    found = scrape(listen)
    assert figure(found, "spillway_up") == 1
    assert figure(found, "spillway_kafka_up") == 1
    assert total(found, "spillway_rows_total") == 2 * ROWS
    assert total(found, "spillway_lag_seconds") == 0
    assert total(found, "spillway_quarantined_rows_total") == len(day.quarantined())
    by_day = [day.results(date) for date in (FIRST, SECOND)]
    at_run_time = sum(row["phase"] == "run-time" for rows in by_day for row in rows)
    assert figure(found, "spillway_results_total") == at_run_time
    epochs = day.journal.epochs()
    assert figure(found, "spillway_epochs_total") == len(epochs)
    assert figure(found, "spillway_term") == 2
    spills = sum(s["spilled_bytes"] > 0 for e in epochs if not e["sealed"] for s in e["slots"])
    assert figure(found, "spillway_spills_total") == spills > 0
    for slot in epochs[-1]["slots"]:
        state = figure(found, "spillway_state_bytes", slot=str(slot["slot"]))
        assert state == slot["state_bytes"]
    sampled = figure(found, "spillway_production_delay_seconds_count")
    assert sampled == sum(sum(s["delay_ms"]) for e in epochs for s in e["slots"]) > 0


@pytest.mark.soak
# In `make test` it dies at these points in the days of `test_relocation_kills`, and at the claim's
# in `test_all_state_lost`.
def test_driver_killed_at_every_point(make_day: MakeDay) -> None:
    """A day in which the driver dies once at each named point of an epoch."""
    day = make_day(budget_bytes=96 << 10, max_rows=1_500)
    day.produce(messages(3, ROWS, keys=4_500))
    for point in DRIVER_POINTS:
        killed_at(day, point, "--session", FIRST)
    day.produce(messages(4, 2_000, keys=4_500))
    day.finish(FIRST)
    assert day.check(FIRST)["cleanup"] > 0
    terms = [e["term"] for e in day.entries() if e["kind"] == "claim"]
    assert len(terms) >= len(DRIVER_POINTS)


def killed_at(day: Day, point: str, *session: str) -> None:
    """Run the stream until its driver dies at a point."""
    code = day.run("stream", *session, "--available-now", FAILPOINT=f"{point}:1")
    assert code == -signal.SIGKILL, f"{point} was not reached (exit {code})\n{day.tail()}"


@pytest.mark.soak  # in `make test` Python workers die in `test_a_frozen_driver_is_fenced`
def test_workers_and_an_executor_killed(make_day: MakeDay) -> None:
    """Python workers and an executor of a cluster die in the middle of an epoch."""
    day = make_day(budget_bytes=128 << 10, max_rows=1_500, master="local-cluster[2,1,1024]")
    day.produce(messages(5, ROWS, keys=4_500))
    with_workers_killed(day, "--session", FIRST, executor=("in-step",))
    assert day.check(FIRST)["cleanup"] > 0


def with_workers_killed(day: Day, *session: str, executor: tuple[str, ...] = ()) -> None:
    """A day over what there is; a worker dies at each point, each in its epoch."""
    points = [
        f"{name}:{'next' if number else 0}{':executor' if name in executor else ''}"
        for number, name in enumerate(WORKER_POINTS)
    ]
    markers = {"WORKER_FAILPOINTS": ",".join(points), "FAILPOINT_MARKERS": str(day.folder)}
    stream = ["stream", *session, "--available-now"]
    day.finish(FIRST, first=[stream], timeout_s=400, **markers)
    for name in WORKER_POINTS:
        assert (day.folder / f"fired-{name}").exists(), f"{name} was not reached"


@pytest.mark.soak  # in `make test` a day is in S3 in `test_bring_your_own`
def test_nothing_left_but_kafka_and_an_object_store(make_day: MakeDay, s3: S3Server) -> None:
    """State folders and checkpoints vanish, as with the host: the state comes from Kafka. They
    vanish again before cleanup and before the proof, which need neither.

    The next two drivers die as they claim, the one before its claim and the other after it. The
    store fails all day: answers of commits and of files are lost, it is overloaded, it does what it
    says it could not do.
    """
    day = make_day(budget_bytes=128 << 10, max_rows=2_000, store=s3)
    log, data = r"/_delta_log/\d+\.json", r"\.parquet"
    s3.fail(
        *({"kind": "lost", "method": "PUT", "path": log, "skip": n} for n in (10, 14, 21, 30)),
        *({"kind": "failed", "method": "PUT", "path": log, "skip": n} for n in (12, 25)),
        *({"kind": "lost", "method": "PUT", "path": data, "skip": n} for n in (5, 16, 40)),
        {"kind": "error", "status": 503, "code": "SlowDown", "skip": 300, "times": 10},
        {"kind": "reset", "method": "GET", "skip": 500, "times": 5},
    )
    day.produce(messages(6, ROWS, keys=4_500))
    day.ok("stream", "--session", FIRST, "--available-now")
    lost_with_the_host(day)
    day.produce(messages(7, ROWS // 3, keys=4_500))
    for point in ("before-claim", "after-claim"):
        killed_at(day, point)
    day.ok("stream", "--available-now")
    assert [e["term"] for e in day.entries() if e["kind"] == "claim"] == [1, 2, 3]
    assert any(e.get("restored_slots") for e in day.entries())
    assert s3.hits() == 24
    cleanup = {"method": "PUT", "path": rf"/results{log}"}
    s3.fail(
        *({"kind": kind, **cleanup} for kind in ("lost", "failed")),
        {"kind": "late", "seconds": 1, **cleanup},
    )
    day.ok(*chained(("seal", "--session", FIRST), ("stream", "--until-sealed", FIRST)))
    lost_with_the_host(day)
    day.ok("cleanup", "--session", FIRST)
    lost_with_the_host(day)
    day.ok("verify", "--session", FIRST)
    assert day.check(FIRST)["cleanup"] > 0
    assert s3.hits() == 3
    checks_of_a_store(day)


def lost_with_the_host(day: Day) -> None:
    """All that is on this host of a day goes: state, checkpoints, and what commands remember."""
    for place in (day.state, day.folder / "var"):
        shutil.rmtree(place, ignore_errors=True)
        assert not place.exists()


def checks_of_a_store(day: Day) -> None:
    """The commands that need no Spark, and that no secret of the store is anywhere."""
    code, told = day.output("doctor")
    assert "conditional puts work" in told, (code, told)
    code, told = day.output("status", "--json")
    assert (code, FIRST in told) == (0, True)
    before = day.found(FIRST)
    day.ok("maintain", "--keep-spilled-days", "0", "--archive-journal-days", "0")
    assert not delta_rows(day.warehouse() / "spill", FIRST)
    assert day.found(FIRST) == before
    code, told = day.output("config", "show")
    assert (code, SECRET in told) == (0, False)
    for path in [each for root in (day.folder, day.state) for each in root.rglob("*")]:
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


@pytest.mark.soak  # in `make test` the protocol's model leaves what is lost to cleanup
def test_lost_state_is_left_to_cleanup(make_day: MakeDay) -> None:
    """With `recovery.mode = defer` a slot goes on empty: once one slot's state goes, once all of
    it, with spills before, between and after. Meanwhile a topic gains partitions, which what is
    read again has no offsets of. Cleanup is killed once it has read again."""
    day = make_day(budget_bytes=128 << 10, max_rows=2_000)
    day.extra |= {"RECOVERY__MODE": "defer"}
    day.produce(messages(16, ROWS, keys=4_500))
    day.ok("stream", "--session", FIRST, "--available-now")
    shutil.rmtree(next(day.state.rglob("slot-0")))
    day.produce(messages(17, ROWS // 2, keys=4_500))
    day.ok("stream", "--available-now")
    shutil.rmtree(day.state)
    with cluster(day.bootstrap) as admin:
        admin.add_partitions(day.topics["stock"], 3)
    day.produce(messages(18, ROWS // 2, keys=4_500))
    # Cleanup is killed before and after it has committed what it had read again.
    before, after = CLEANUP_POINTS
    commands = (
        ("seal", "--session", FIRST),
        ("stream", "--until-sealed", FIRST),
        ("cleanup", "--session", FIRST),
    )
    assert day.run(*chained(*commands), FAILPOINT=before) == -signal.SIGKILL, day.tail()
    assert is_sealed(day, FIRST)
    epochs = [e for e in day.entries() if e["kind"] == "epoch"]
    assert [e["deferred_slots"] for e in epochs if e["deferred_slots"]] == [[0], [0, 1]]
    assert not any(e["restored_slots"] for e in epochs)
    assert day.run("cleanup", "--session", FIRST, FAILPOINT=after) == -signal.SIGKILL
    day.finish(FIRST, sealed=True)
    assert day.check(FIRST)["cleanup"] > 0


@pytest.mark.soak  # in `make test` rows are gone, and accepted as lost, in the day below
def test_a_day_ends_without_rows_that_are_gone(make_day: MakeDay) -> None:
    """What a lost slot left to cleanup is gone from Kafka when that comes. Once somebody has
    accepted it, the day has every result but those of the rows that are gone, and is not
    complete."""
    # Enough for the first rows to be in memory still when the slot is lost.
    day = make_day(budget_bytes=512 << 10, max_rows=2_000)
    day.extra |= {"RECOVERY__MODE": "defer"}
    day.produce(messages(26, ROWS, keys=2_000))
    day.ok("stream", "--session", FIRST, "--available-now")
    shutil.rmtree(next(day.state.rglob("slot-0")))
    day.produce(messages(27, ROWS // 2, keys=2_000))
    accept = ("accept-loss", "--session", FIRST, "--reason", "a week of retention")
    stream = ("stream", "--until-sealed", FIRST)
    code = day.run(*chained(("seal", "--session", FIRST), stream, accept))
    assert (code, "nothing is lost" in day.tail()) == (3, True)
    read, at_run_time = day.read_topics(), day.found(FIRST)[0]
    gone = {(day.topics["stock"], 0): 500, (day.topics["review"], 1): 300}
    with KafkaAdminClient(bootstrap_servers=day.bootstrap) as admin:
        admin.delete_records({TopicPartition(*place): at for place, at in gone.items()})
    code, told = day.output("cleanup", "--session", FIRST)
    assert (code, "spillway accept-loss" in told) == (3, True)
    verify = ("verify", "--session", FIRST, "--json")
    code, told = day.output(*chained(accept, ("cleanup", "--session", FIRST), verify))
    assert "800 offsets are accepted as lost" in told, told
    verdict = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
    assert (code, verdict["complete"], verdict["missing"]) == (1, False, None)
    [(_, loss)] = told_of_losses(day, "accepted")
    assert loss["by"]
    assert {(each["topic"], each["partition"]): each["end"] for each in loss["ranges"]} == gone
    assert {each["begin"] for each in loss["ranges"]} == {0}
    got, phases = day.check_lossy(FIRST, read, gone)
    assert phases["cleanup"] > 0
    assert at_run_time < got
    assert "a week of retention" in verdict["details"]["problems"][0]
    assert told_of_losses(day, "verified") == [(False, loss)]


def told_of_losses(day: Day, event: str) -> list[tuple[bool | None, dict[str, Any]]]:
    """What the table `sessions` has in its events of a kind: whether the day is complete, and what
    it has lost."""
    rows = [row for row in delta_rows(day.warehouse() / "sessions", None) if row["event"] == event]
    assert {row["session_date"] for row in rows} <= {FIRST}
    return [(row["complete"], json.loads(row["details"])["loss"]) for row in rows]


def test_a_day_goes_on_behind_rows_that_are_gone(make_day: MakeDay) -> None:
    """A lost slot needs rows that Kafka does not hold any more, and others have gone before they
    were read. Once somebody has accepted that, the day goes on: it has every result that needs none
    of these rows, and is not complete. The next one is as any other."""
    day = make_day(budget_bytes=96 << 10, max_rows=2_000)
    day.produce(messages(36, 2_000, keys=800))
    read = day.read_topics()
    unread, again = (day.topics["stock"], 0), (day.topics["review"], 1)

    def delete(place: tuple[str, int], before: int) -> None:
        with KafkaAdminClient(bootstrap_servers=day.bootstrap) as admin:
            admin.delete_records({TopicPartition(*place): before})

    with running(day, "stream", "--session", FIRST) as stream:
        wait_for(lambda: rows_of(day) == 2_000, 120, "all rows are read")
        delete(again, 100)
        shutil.rmtree(next(day.state.rglob("slot-0")))
        day.produce(messages(37, 1_000, keys=800))
        assert stream.wait(120) == 3, day.tail()
    assert "rows any more that must be read again for it" in day.tail()
    assert f"spillway accept-loss --session {FIRST}" in day.tail()
    for name, rows in day.read_topics().items():
        read[name] = sorted({*read[name], *rows})
    gone = {unread: day.journal.epochs()[-1]["end"][unread[0]][0] + 50, again: 100}
    delete(unread, gone[unread])
    why = ("--reason", "a week of retention")
    day.ok(*chained(("accept-loss", "--session", FIRST, *why), ("seal", "--session", FIRST)))
    assert "50 of them before they were read" in day.tail()
    day.produce(messages(38, 500, keys=800))
    commands = (
        ("stream", "--until-sealed", FIRST),
        ("stream", "--available-now"),
        ("cleanup", "--session", FIRST),
        ("verify", "--session", FIRST, "--json"),
    )
    assert day.run(*chained(*commands)) == 1, day.tail()
    assert '"complete": false' in day.tail()
    assert "a week of retention" in day.tail()
    _, phases = day.check_lossy(FIRST, read, gone)
    assert phases["cleanup"] > 0
    [(complete, loss)] = told_of_losses(day, "verified")
    assert complete is False
    assert {(each["topic"], each["partition"]): each["end"] for each in loss["ranges"]} == gone
    [accepted] = [entry for entry in day.journal.epochs() if any(entry["lost_to"].values())]
    assert accepted["restored_slots"] == [0]
    assert day.sealed(FIRST)["lost_to"][unread[0]][0] == gone[unread]
    assert day.journal.epochs()[-1]["session"] == SECOND
    assert day.journal.epochs()[-1]["end"] != day.sealed(FIRST)["end"]


def test_a_frozen_driver_is_fenced(make_day: MakeDay) -> None:
    """A driver freezes in the middle of an epoch; another one takes over and ends the day; the
    first wakes up.

    The other one's Python workers die at each of their points.
    """
    day = make_day(budget_bytes=128 << 10, max_rows=1_000)
    day.produce(messages(8, ROWS, keys=4_500))
    with running(day, "stream", "--session", FIRST, FAILPOINT="after-job:3:stop") as frozen:
        wait_for(lambda: stopped(frozen.pid), 90, "the driver freezes")
        before = len(day.entries())
        with_workers_killed(day)
        assert len(day.entries()) > before + 1
        os.kill(frozen.pid, signal.SIGCONT)
        assert frozen.wait(60) == 3
    day.check(FIRST)


@pytest.mark.soak  # in `make test` one takes over in `test_a_frozen_driver_is_fenced`
def test_a_newcomer_takes_over(make_day: MakeDay) -> None:
    """A second stream is started beside one that works, a third beside one that rests: the newest
    goes on each time, and the other says so and ends, also when no row ever comes again."""
    day = make_day(budget_bytes=128 << 10, max_rows=500)
    enough = threading.Event()
    commands = (
        ("stream", "--until-sealed", FIRST),
        ("cleanup", "--session", FIRST),
        ("verify", "--session", FIRST),
    )

    def feed(send: Callable[..., None]) -> int:
        """Slower than any machine joins; the number of rows sent."""
        for number in itertools.count(1):
            send(messages(100 + number, 50, keys=2_000))
            if enough.wait(0.3):
                return 50 * number
        raise AssertionError

    with (
        ThreadPoolExecutor(1) as pool,
        day.producer() as send,
        running(day, "stream", "--session", FIRST) as first,
    ):
        feeding = pool.submit(feed, send)
        try:
            wait_for(lambda: epochs_of(day, 1) > 1, 90, "the first stream works")
            with running(day, "stream") as second:
                assert first.wait(120) == 3, day.tail()
                wait_for(lambda: epochs_of(day, 2) > 0, 60, "the second stream works")
                enough.set()
                sent = feeding.result()
                wait_for(lambda: rows_of(day) == sent, 120, "the second stream rests")
                with running(day, *chained(*commands)) as third:
                    assert second.wait(120) == 3, day.tail()
                    day.ok("seal", "--session", FIRST)
                    assert third.wait(180) == 0, day.tail()
        finally:
            enough.set()
    log = (day.folder / "log.txt").read_text()
    for term in (2, 3):
        assert re.search(rf"another stream has taken over this warehouse: .*, term {term}\.", log)
    assert "Traceback" not in log
    assert [e["term"] for e in day.entries() if e["kind"] == "claim"] == [1, 2, 3]
    day.check(FIRST)


def epochs_of(day: Day, term: int) -> int:
    """Epochs that the journal has of a term; 0 when there is no journal yet."""
    return sum(entry["term"] == term for entry in day.journal.epochs())


def rows_of(day: Day) -> int:
    """Rows that the journal's epochs have read."""
    return sum(sum(count["rows"]) for entry in day.journal.epochs() for count in entry["read"])


NO_SPACE = "no space is left: free some there, or enlarge the disk"


@pytest.mark.soak
def test_disks_that_are_full_or_read_only(make_day: MakeDay) -> None:
    """Each is named, once and without a trace, with exit code 3; what comes after is exact."""
    day = make_day(budget_bytes=128 << 10, max_rows=2_000)
    with (
        mounted(day.folder / "warehouse", "200m") as tables,
        mounted(day.state, "64m") as state,
    ):
        for term, disk in enumerate((tables, state), start=1):
            day.produce(messages(20 + term, ROWS // 6, keys=3_000))
            with running(day, "stream", "--session", FIRST) as stream:
                wait_for(partial(epochs_of, day, term), 90, "an epoch")
                disk.fill()
                day.produce(messages(30 + term, ROWS // 6, keys=3_000))
                assert stream.wait(60) == 3, day.tail()
            said = day.tail(8)
            assert re.search(rf"epoch \d+ has failed: cannot write {disk.path}.*{NO_SPACE}", said)
            assert "attempt 2" not in said
            refused(day, "no space is left", "doctor")
            refused(day, "no space is left", "stream")
            disk.free()
        stream = ("stream", "--until-sealed", FIRST)
        day.ok(*chained(("seal", "--session", FIRST), stream))
        tables.fill()
        refused(day, NO_SPACE, "cleanup", "--session", FIRST)
        tables.free()
        tables.remount("ro")
        refused(day, "the file system is read-only", "cleanup", "--session", FIRST)
        refused(day, "Read-only file system", "doctor")
        refused(day, "Read-only file system", "stream")
        tables.remount("rw")
        day.finish(FIRST, sealed=True)
        assert day.check(FIRST)["cleanup"] > 0


def refused(day: Day, text: str, *command: str) -> None:
    """A command that ends with 3 and says why in a few plain lines."""
    code, said = day.output(*command)
    assert code == 3, said
    assert text in " ".join(said.split()), said
    assert not [noise for noise in ("Traceback", "\x1b", "at org.", "(os error") if noise in said]


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
