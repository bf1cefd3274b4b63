"""The benchmark of long histories: its warehouses are ones that the product reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import history
from spillway.protocol.snapshot import EVERY
from spillway.protocol.state import replay
from spillway.storage import folder
from spillway.tables import Warehouse, log
from spillway.tables.snapshots import Snapshots
from spillway_schemas.snapshot import JournalSnapshot

pytestmark = pytest.mark.server  # it starts fourteen processes


def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few epochs have commits of their own; what it changes is as before afterwards."""
    monkeypatch.setattr(log, "KEEP_ENTRIES", EVERY // 2 + 5)
    monkeypatch.setattr(log, "KEEP_S", log.KEEP_S)
    monkeypatch.setattr(log, "REMOVED_KNOWN_S", log.REMOVED_KNOWN_S)


@pytest.mark.soak
def test_what_it_makes_is_read_and_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "SESSION_EPOCHS", 100)
    short_logs(monkeypatch)
    code = history.main(["--epochs", "150", "300", "--rounds", "1", "--folder", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    missed = [line for line in lines if line.endswith("missed")]
    assert code == bool(missed)
    assert [line.split("  ")[0] for line in lines[-7:]] == list(history.WHATS)
    journal = Warehouse(str(tmp_path / "300"), fsync=False).journal
    state = journal.state()
    assert state is not None
    assert (state.epoch, len(state.sealed)) == (299, 3)
    assert state == replay(journal.read())
    snapshots = Snapshots(folder(str(tmp_path / "300" / "snapshots")), JournalSnapshot)
    assert next(snapshots.newest(999)).n == state.n - EVERY // 2
    assert log.KEEP_S == 0  # what it writes in minutes stands for months


def test_a_day_of_files_is_written_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "KEEP_S", log.KEEP_S)  # it changes that
    code = history.main(["--day", "60", "--folder", str(tmp_path)])
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("60 epochs: commit and refresh ")
    assert code == line.endswith("missed")


@pytest.mark.soak
def test_the_archive_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a run that archives nothing."""
    monkeypatch.setattr(history, "SESSION_EPOCHS", 100)
    short_logs(monkeypatch)
    assert history.main(["--archive", "300", "--folder", str(tmp_path)]) == 0
    before, moved, after = capsys.readouterr().out.splitlines()
    assert moved.startswith("202 entries into 2 in ")
    assert before.startswith("before: table ")
    assert "archive 0.00 MB" in before
    assert after.startswith("after: table ")
