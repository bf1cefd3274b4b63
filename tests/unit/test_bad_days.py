"""A machine that fails in its own way: no more files may be opened, a clock is set back."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spillway.kafka.client import KafkaCluster, KafkaUnavailable, OutOfFiles, demand_listener
from spillway.kafka.reading import TopicReader
from spillway.report.status import status
from spillway.storage import StorageError
from spillway.stream.failures import cause_of, first_lines
from spillway.stream.service import Stream
from spillway.tables import Warehouse
from spillway_schemas.journal import Claim, Epoch, Genesis
from spillway_schemas.settings import Settings
from tests.protocol_entries import claim, genesis
from tests.report_journal import fill_journal, make_day, open_warehouse

RESULTS = pa.schema([pa.field("session_date", pa.string()), pa.field("epoch", pa.int64())])
THEN = "2026-01-05T14:00:00Z"


@contextlib.contextmanager
def few_files(left: int) -> Iterator[None]:
    """So many files may be opened, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + 40
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)


def test_without_a_file_to_open_a_commit_says_so_and_did_not_happen(tmp_path: Path) -> None:
    """With any number of them left it is there, or it is not."""
    root = str(tmp_path / "w")
    warehouse = Warehouse(root, RESULTS)
    warehouse.journal.append(genesis(written_at=THEN))
    last = 0
    for left in range(8):
        told = ""
        with few_files(left):
            try:
                warehouse.journal.append(claim(last + 1, last + 1, written_at=THEN))
            except StorageError as error:
                told = str(error)
        if told:
            assert told.startswith(f"cannot write {root}/journal")
            assert told.endswith("too many open files: raise the limit (`ulimit -n`)")
        else:
            last += 1
        warehouse = Warehouse(root, RESULTS)
        assert warehouse.journal.last_n() == last
        assert warehouse.check() == []
    assert 0 < last < 8, "some fail, and some do not"


@pytest.mark.parametrize("left", [0, 3, 9])
def test_without_a_file_to_open_no_broker_is_at_fault(left: int) -> None:
    """A client that cannot open its connection reports what it does when nobody answers. A broker
    that is really away is named as before."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        with few_files(left):
            with pytest.raises(OutOfFiles, match=r"too many open files: raise the limit") as raised:
                TopicReader(place, {}, silent_s=0.2)
            with pytest.raises(OutOfFiles):
                KafkaCluster(place, {}, timeout_s=0.2)
        with pytest.raises(
            KafkaUnavailable, match=r"does not answer .* though something listens there"
        ):
            TopicReader(place, {}, silent_s=0.2)
    with few_files(0), pytest.raises(OutOfFiles):
        demand_listener(place)
    with pytest.raises(KafkaUnavailable, match="nothing listens"):
        demand_listener(place)
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)
    assert again.exit_code == 3


@pytest.mark.parametrize(
    "raised",
    [
        "java.net.SocketException: Too many open files",
        "Traceback (most recent call last):\nOSError: [Errno 24] Too many open files: '/x'",
        "Traceback (most recent call last):\nspillway.kafka.client.OutOfFiles: no connection to "
        "Kafka can be opened: too many open files: raise the limit (`ulimit -n`)",
    ],
)
def test_an_attempt_without_a_file_to_open_is_the_last_and_says_what_to_do(raised: str) -> None:
    """Whatever of Spark's processes had none."""
    text = f"Job aborted due to stage failure: task 1.0 in stage 3.0\n{raised}\n\tat org.apache.x"
    assert cause_of(text) == "storage"
    told = first_lines(RuntimeError(text), {})
    assert told.count("raise the limit (`ulimit -n`)") == 1


def test_a_job_that_somebody_cancelled_is_told_as_that() -> None:
    """Who cancelled it has said why; Spark's own text is its plan and a stack."""
    text = "[SPARK_JOB_CANCELLED] Job 7 cancelled as part of cancellation of all jobs\n\tat x.y"
    assert first_lines(RuntimeError(text), {}) == "its Spark job was cancelled"


def test_checkpoints_that_cannot_be_removed_hide_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream removes them as it ends, whatever it ends with."""
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path))
    mine = tmp_path / "checkpoints" / "w" / "1"
    mine.mkdir(parents=True)
    genesis_of = SimpleNamespace(warehouse_id="w")
    stream: Any = object.__new__(Stream)
    stream.driver = SimpleNamespace(state=SimpleNamespace(term=1, genesis=genesis_of))
    with few_files(0):
        stream._remove_checkpoints()
    assert mine.exists()
    stream._remove_checkpoints()
    assert not mine.exists()


def test_a_clock_that_is_set_back_an_hour_changes_no_count(tmp_path: Path) -> None:
    """Entries say when they were written, and nothing but ages and rates goes by it."""
    entries = make_day(40, seal_after=30).entries
    back = timedelta(hours=1)

    def earlier(at: str) -> str:
        return (datetime.fromisoformat(at) - back).isoformat()

    set_back: list[Genesis | Claim | Epoch] = [
        *entries[:25],
        *(
            each.model_copy(
                update={
                    "written_at": earlier(each.written_at),
                    "started_at": earlier(each.started_at),
                }
            )
            for each in entries[25:]
            if isinstance(each, Epoch)
        ),
    ]
    assert len(set_back) == len(entries)
    now = datetime.fromisoformat(set_back[-1].written_at).astimezone(UTC) - timedelta(minutes=5)
    found = []
    for name, some in (("one", entries), ("other", set_back)):
        fill_journal(open_warehouse(str(tmp_path / name)), some)
        found.append(status(Warehouse(str(tmp_path / name)), Settings(), now, None))
    one, other = found
    assert other.last_epoch_age_s == 0.0, "its time is still to come"
    assert other.rows_per_s >= 0
    times = {"at", "warehouse_root", "last_epoch_at", "last_epoch_age_s", "last_claim_age_s"}
    times |= {"rows_per_s", "results_per_s", "slots", "sessions", "adaptations"}
    assert one.model_dump(exclude=times) == other.model_dump(exclude=times)
    same = {"began_at", "ended_at"}
    for before, after in zip(one.sessions, other.sessions, strict=True):
        assert before.model_dump(exclude=same) == after.model_dump(exclude=same)


def test_files_of_a_time_that_is_still_to_come_are_not_tidied_up(tmp_path: Path) -> None:
    """They were written before the clock was set back."""
    warehouse = open_warehouse(str(tmp_path / "w"))
    fill_journal(warehouse, make_day(5).entries)
    stray = tmp_path / "w" / "results" / "session_date=2026-01-05" / f"3-{'a' * 12}-0-0.parquet"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"x")
    now_s = stray.stat().st_mtime
    warehouse.vacuum(min_age_s=60, now_s=now_s - 3_600)
    warehouse.vacuum(min_age_s=60, now_s=now_s + 59)
    assert stray.exists()
    warehouse.vacuum(min_age_s=60, now_s=now_s + 60)
    assert not stray.exists()
