"""Folders that are full, read-only or slow: what is said, and that nothing is half done."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spillway.cleanup import task as cleaning
from spillway.doctor import disks
from spillway.doctor.disks import NO_DISK, PATIENCE_S, SLOW_S, Trial, judge_folder, try_folder
from spillway.doctor.machine import judge_budget
from spillway.engine.least import least_budget
from spillway.engine.state.merging import DEFAULT_SHAPE
from spillway.engine.state.runs import FILE_OVERHEAD_BYTES
from spillway.engine.upkeep import room_of
from spillway.policy.intake import ASSUMED_ROW_BYTES, LEAST_ROWS
from spillway.report.words import bytes_text
from spillway.storage import StorageError, folder, storage_error
from spillway.tables import Warehouse
from spillway_schemas.query import load_query
from spillway_schemas.settings import catalogue, load_settings
from tests.disks import Disk, mounted
from tests.protocol_entries import claim, genesis

RESULTS = pa.schema([pa.field("session_date", pa.string()), pa.field("epoch", pa.int64())])
THEN = "2026-01-05T14:00:00Z"
FULL = "no space is left: free some there, or enlarge the disk"
READ_ONLY = "the file system is read-only: choose a place that can be written"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path / "disk", "800k") as made:
        yield made


def begun(disk: Disk) -> Warehouse:
    warehouse = Warehouse(str(disk.path / "w"), RESULTS)
    warehouse.journal.append(genesis(written_at=THEN))
    return warehouse


@pytest.mark.parametrize("leave", [0, 4096])
def test_a_commit_on_a_full_disk_says_so_and_did_not_happen(disk: Disk, leave: int) -> None:
    """With a page left the data file fits, and the log entry does not: delta-rs raises."""
    warehouse = begun(disk)
    disk.fill(leave=leave)
    with pytest.raises(StorageError) as raised:
        warehouse.journal.append(claim(1, 1, written_at=THEN))
    assert str(raised.value).endswith(FULL)
    assert str(raised.value).startswith(f"cannot write {disk.path / 'w' / 'journal'}")
    disk.free()
    again = Warehouse(str(disk.path / "w"), RESULTS)
    assert again.journal.last_n() == 0
    again.journal.append(claim(1, 1, written_at=THEN))
    assert again.check() == []


def test_a_warehouse_that_cannot_be_made_says_why(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(StorageError, match=FULL):
        Warehouse(str(disk.path / "w"), RESULTS)
    disk.remount("ro")
    with pytest.raises(StorageError, match=f"^cannot write .*: {READ_ONLY}$"):
        Warehouse(str(disk.path / "v"), RESULTS)


def test_a_read_only_warehouse_can_be_read_and_says_why_it_cannot_be_written(disk: Disk) -> None:
    warehouse = begun(disk)
    disk.remount("ro")
    with pytest.raises(StorageError, match=READ_ONLY):
        warehouse.journal.append(claim(1, 1, written_at=THEN))
    assert Warehouse(str(disk.path / "w"), fsync=False).check() == []


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "x"), FULL),
        # Both as delta-rs 1.6.6 gives them.
        (
            OSError("Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m No space (os error 28)\n"),
            FULL,
        ),
        (
            Exception('no local directory: /x\nError: Os { code: 30, kind: Read, message: "" }'),
            READ_ONLY,
        ),
        (ValueError("code: 28"), None),
        (OSError(errno.ENOENT, "x"), None),
    ],
)
def test_errors_of_libraries_are_explained(error: Exception, says: str | None) -> None:
    found = storage_error("write", "/w", error)
    assert (str(found) if found else None) == (says and f"cannot write /w: {says}")


def test_cleanup_gives_a_full_disk_back_as_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised, Spark would try again, leave more files, and bury it in a Java trace."""
    full = StorageError(errno.ENOSPC, "cannot write /w/x: no space is left")

    def raising(*_: object, **__: object) -> None:
        raise full

    monkeypatch.setattr(cleaning, "survey", raising)
    assert cleaning.run_survey(cleaning.SurveyTask(folder("/w"), None)) is full  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- doctor


def test_a_folder_is_tried_by_writing(disk: Disk) -> None:
    """An empty file can be made on a full disk: that proves nothing."""
    assert try_folder(disk.path / "not" / "yet").error is None
    assert os.listdir(disk.path) == []
    disk.fill()
    found = judge_folder("warehouse", "/w", "warehouse.root", try_folder(disk.path), "tmpfs")
    assert (found.status, found.what) == ("fail", "/w: no space is left")
    disk.remount("ro")
    found = judge_folder("warehouse", "/w", "warehouse.root", try_folder(disk.path), "tmpfs")
    assert (found.status, found.what) == ("fail", "/w cannot be written: Read-only file system")
    assert found.mend == "mount it for writing, or set warehouse.root to another folder"


@pytest.mark.parametrize(
    ("error", "mend"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "give this user access to it"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "mend that"),
    ],
)
def test_what_to_do_about_a_folder_follows_from_the_error(error: OSError, mend: str) -> None:
    found = judge_folder("warehouse", "/w", "warehouse.root", Trial(seconds=0, error=error), "ext4")
    assert found.mend == f"{mend}, or set warehouse.root to another folder"


def test_a_folder_that_hangs_does_not_hang_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hanging(_: Path) -> Trial:
        release.wait(60)
        return Trial()

    monkeypatch.setattr(disks, "_trial", hanging)
    monkeypatch.setattr(disks, "PATIENCE_S", 0.05)
    assert try_folder(Path("/w")) == Trial()
    release.set()


@pytest.mark.parametrize("name", ["warehouse", "state folder"])
@pytest.mark.parametrize(
    ("trial", "status", "says"),
    [
        (Trial(1 << 40, 0.1), "ok", ""),
        (Trial(1 << 40, SLOW_S + 0.1), "warn", "/w is slow: writing 256 KiB took 1.1 s"),
        (Trial(), "fail", f"/w does not answer: writing 256 KiB took over {PATIENCE_S:.0f} s"),
        (Trial(0, 0.1, OSError(errno.EDQUOT, "x")), "fail", "/w: no space is left"),
        (Trial(0, 0.1, OSError(errno.EACCES, "No!")), "fail", "/w cannot be written: No!"),
    ],
)
def test_folders_are_judged(name: str, trial: Trial, status: str, says: str) -> None:
    found = judge_folder(name, "/w", "warehouse.root", trial, "ext4")
    assert found.status == status
    assert found.what == (says or "/w (ext4, 1.00 TiB free)")
    assert bool(found.mend) == bool(says)


@pytest.mark.parametrize(
    ("free", "status"), [(NO_DISK - 1, "fail"), (NO_DISK, "warn"), (5 << 30, "ok")]
)
def test_a_warehouse_without_room_is_refused(free: int, status: str) -> None:
    found = judge_folder("warehouse", "/w", "warehouse.root", Trial(free, 0.1), "ext4")
    assert found.status == status


# ------------------------------------------------------------------------------- budget


@pytest.mark.parametrize("slots", [1, 2, 7])
@pytest.mark.parametrize("groups", [1, 32, 4096])
@pytest.mark.parametrize("inputs", [2, 5])
def test_with_the_least_budget_the_smallest_epoch_just_fits(
    inputs: int, groups: int, slots: int
) -> None:
    """As the step reckons it: rows that do not fit into what is left are spilled."""
    rows = -(-LEAST_ROWS // slots)
    wanted = rows * ASSUMED_ROW_BYTES + inputs * FILE_OVERHEAD_BYTES

    def left(budget: int) -> int:
        return room_of(DEFAULT_SHAPE, budget, 0, 2 * inputs, groups).left() - wanted

    least = least_budget(inputs, groups, slots, 600_000)
    assert left(least) >= 0
    # The room for a manifest ends at a quarter of the budget, so with many groups less would do.
    assert left(least - 32) < 0 or room_of(DEFAULT_SHAPE, least, 0, 0, 0).reserve_bytes < least // 4


def test_the_least_budget_is_as_the_settings_say() -> None:
    settings = load_settings(None, {}, environ={})[0]
    inputs = len(load_query(settings.query).streams)
    least = least_budget(inputs, settings.state.groups, 2, settings.stream.max_rows_per_epoch)
    [budget] = [each for each in catalogue() if each.name == "state.budget_bytes"]
    assert f"({bytes_text(least)} with the shipped query, 512 groups and 2 slots)" in budget.why
    assert settings.state.groups == 512


def test_a_budget_that_holds_no_epoch_is_refused_with_the_least() -> None:
    least = least_budget(3, 512, 2, 600_000)
    assert least == 104_466
    found = judge_budget(budget_bytes=10 << 10, least_bytes=least)
    assert found.status == "fail"
    assert found.what.startswith("state.budget_bytes = 10.0 KiB cannot hold an epoch")
    assert found.mend.startswith("set state.budget_bytes to 103KiB at the least")
    little = judge_budget(budget_bytes=103 << 10, least_bytes=least)
    assert little.status == "warn"
    assert "nearly every row will be spilled" in little.what
    assert judge_budget(budget_bytes=2 * least - 1, least_bytes=least).status == "warn"
    assert judge_budget(budget_bytes=2 * least, least_bytes=least).status == "ok"
    assert least_budget(3, 512, 2, 100) < least
