"""Backup and restore, as docs/data-lifecycle.md says it: real tables, a real driver, no Spark.

A stream commits epochs that write files of results, quarantine and spill. Its warehouse is copied,
restored elsewhere, and goes on there. Kills: a redo that leaves out a table or gives it twice, a
start that trusts a table ahead of the journal, a `doctor` that passes a copy which cannot start.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from spillway.engine.wire.datafile import write_data_file
from spillway.protocol import driver as protocol
from spillway.protocol.plan import Plan
from spillway.protocol.state import JournalState, replay
from spillway.stream.driver import Ended, StreamDriver
from spillway.tables import FileMismatch, SessionEvent, Warehouse
from spillway.tables.definitions import NUMBERED_NAMES, SESSION_DATE
from spillway_schemas.filenames import data_name
from spillway_schemas.journal import FileRecord, SlotReport
from spillway_schemas.setting_fields import RecoverySettings
from tests.new_warehouse import new_warehouse
from tests.protocol_entries import (
    DAY,
    NEXT,
    TOPICS,
    closing,
    count,
    cut,
    ends,
    genesis,
    report,
)

RESULTS = pa.schema([pa.field("epoch", pa.int64(), nullable=False), SESSION_DATE])
WRITTEN = ("results", "quarantine", "spill")
"""Tables that each epoch writes a row of, with its number."""
LAST = 4
SEALS = 3
"""The epoch that seals the day."""
MOMENT = datetime(2026, 1, 5, 15, tzinfo=UTC)


def session_of(epoch: int) -> str:
    return DAY if epoch <= SEALS else NEXT


def value(field: pa.Field, number: int) -> Any:
    """Of a column, in the row of an epoch."""
    kinds = {pa.string(): "x", pa.binary(): b"x", pa.timestamp("us", tz="UTC"): MOMENT}
    return kinds.get(field.type, number if field.name == "epoch" else 0)


class Job:
    """An epoch's job without Spark: it writes files as the slots do, and reports them."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse
        self.placement = SimpleNamespace(wait=lambda _: None)

    def write(self, table: str, plan: Plan, attempt: str) -> FileRecord:
        schema = self.warehouse.table(table).definition.file_schema
        rows = pa.Table.from_pylist(
            [{field.name: value(field, plan.epoch) for field in schema}], schema=schema
        )
        place, name = self.warehouse.folder(table), data_name(plan.epoch, attempt, 0, 0)
        day = {SESSION_DATE.name: session_of(plan.epoch)}
        record = write_data_file(place, table, name, schema, [rows], day)
        assert record is not None
        return record

    def run(self, plan: Plan, *_: object, **__: object) -> Sequence[SlotReport]:
        attempt = f"{plan.term:04x}{plan.epoch:08x}"
        files = [self.write(table, plan, attempt) for table in WRITTEN]
        read = [count("a", 0, 1), count("a", 1, 1), count("b", 0, 1)]
        day = session_of(plan.epoch)
        cuts = [cut(value, plan.epoch) for value in (0, 1)] if plan.epoch < SEALS else []
        first = report(0, plan.epoch, read=read, files=files, cuts=cuts, results={day: 1})
        return [first, report(1, plan.epoch)]


class Stream(StreamDriver):
    """A driver that says when it is between two instructions."""

    between: Any = staticmethod(lambda: None)

    def _do(self, instruction: protocol.Instruction) -> protocol.Event | None:
        self.between()
        return super()._do(instruction)


def started(root: Path) -> Stream:
    warehouse = Warehouse(str(root), RESULTS, fsync=False)
    made = Stream(
        warehouse,
        TOPICS,
        1 << 20,
        2.0,
        lambda _: None,
        lambda _: None,
        cores=2,
        max_results=0,
        recovery=RecoverySettings(wait_s=0.0),
        secrets={},
    )
    made.use(Job(warehouse))  # type: ignore[arg-type]
    return made


def run_to(stream: Stream, last: int) -> None:
    """All epochs up to this one; one of them seals the day."""
    for number in range(stream.state.epoch + 1, last + 1):
        end = ends(number + 1, number + 1, number + 1)
        commands = [closing(end)] if number == SEALS else []
        stream.epoch(end, commands, NEXT, limit_rows=10)


def rows(root: Path) -> dict[str, Counter[int]]:
    """Per table, the epochs whose rows it has."""
    found = {}
    for name in WRITTEN:
        table = deltalake.DeltaTable(str(root / name)).to_pyarrow_table(columns=["epoch"])
        found[name] = Counter(table["epoch"].to_pylist())
    return found


def each_once(last: int) -> dict[str, Counter[int]]:
    return {name: Counter(range(last + 1)) for name in WRITTEN}


def problems(root: Path) -> list[str]:
    """What `spillway doctor` says of the tables."""
    return Warehouse(str(root)).check(thorough=True)


def folded(root: Path) -> JournalState | None:
    return Warehouse(str(root)).journal.state()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "original"
    new_warehouse(place, RESULTS).journal.append(genesis(written_at="2026-01-05T14:00:00Z"))
    return place


def copy(root: Path, to: Path, names: Sequence[str] | None = None) -> Path:
    """Copy the warehouse, or some of its folders, as a program that knows nothing of it does."""
    for each in sorted(root.iterdir()) if names is None else [root / name for name in names]:
        if each.is_dir():
            shutil.copytree(each, to / each.name, dirs_exist_ok=True)
        else:
            to.mkdir(exist_ok=True)
            shutil.copy2(each, to / each.name)
    return to


def copies_between(root: Path, stream: Stream, last: int) -> Iterator[Path]:
    """Run to an epoch; what an atomic snapshot holds, taken before each of the instructions."""
    made: list[Path] = []
    stream.between = lambda: made.append(copy(root, root.parent / f"copy-{len(made)}"))
    run_to(stream, last)
    stream.between = lambda: None
    yield from made


@pytest.mark.server
def test_a_snapshot_of_any_moment_starts_and_goes_on(root: Path) -> None:
    """Also those behind a part of an epoch's commits, and the one in which the day is sealed."""
    stream = started(root)
    run_to(stream, SEALS - 1)
    copies = list(copies_between(root, stream, SEALS))
    run_to(stream, LAST)
    entries = Warehouse(str(root)).journal.read()
    assert rows(root) == each_once(LAST)
    lengths = set()
    for place in copies:
        before = folded(place)
        assert before is not None
        assert before == replay(entries[: before.n + 1])
        lengths.add((before.epoch, *(sum(each.values()) for each in rows(place).values())))
        assert problems(place) == []
        again = started(place)
        assert rows(place) == each_once(before.epoch)
        assert replace(again.state, n=before.n, term=before.term, cores=before.cores) == replace(
            before, policy_epoch=again.state.policy_epoch
        )
        run_to(again, LAST)
        assert rows(place) == each_once(LAST)
        assert again.state.sealed.keys() == stream.state.sealed.keys() == {DAY}
        assert problems(place) == []
    # Journaled and in no table yet; in one of three; in two; in all.
    assert {(SEALS, *each) for each in ((3, 3, 3), (3, 3, 4), (3, 4, 4), (4, 4, 4))} <= lengths


def test_stopped_the_order_of_folders_does_not_matter(root: Path) -> None:
    run_to(started(root), SEALS)
    names = sorted(each.name for each in root.iterdir())
    for number, order in enumerate((names, names[::-1])):
        place = copy(root, root.parent / f"copy-{number}", order)
        assert folded(place) == folded(root)
        run_to(started(place), LAST)
        assert rows(place) == each_once(LAST)


def test_the_journal_first_gives_a_copy_that_is_refused(root: Path) -> None:
    """The tables have an epoch that the copy's journal does not know: it cannot be mended."""
    stream = started(root)
    run_to(stream, 1)
    place = copy(root, root.parent / "copy", ["journal", "commands", "sessions", "snapshots"])
    run_to(stream, 2)
    copy(root, place, WRITTEN)
    copy(root, place, ["statistics"])
    told = problems(place)
    assert [each.split(",")[0] for each in told] == [
        f"{name} holds epoch 2" for name in ("spill", "results", "quarantine")
    ]
    assert all("but the journal ends at 1: journal entries were lost" in each for each in told)
    with pytest.raises(Ended, match="the journal ends at epoch 1, but quarantine has epoch 2"):
        started(place)


def test_the_journal_last_gives_a_copy_that_lacks_files(root: Path) -> None:
    """The journal names files that were written behind the copy; with them it is whole."""
    stream = started(root)
    run_to(stream, 1)
    place = copy(root, root.parent / "copy", [*WRITTEN, "statistics"])
    run_to(stream, 2)
    copy(root, place, [*NUMBERED_NAMES, "snapshots", "readmodels"])
    told = problems(place)
    assert [each.split(":")[0] for each in told] == ["spill", "quarantine", "results"]
    assert all(each.endswith("is gone. Restore it from a backup") for each in told)
    with pytest.raises(FileMismatch, match="is not there"):
        started(place)
    for name in WRITTEN:
        for path in (root / name).rglob("2-*.parquet"):
            shutil.copy2(path, place / path.relative_to(root))
    assert problems(place) == []
    run_to(started(place), LAST)
    assert rows(place) == each_once(LAST)


def test_a_copy_beside_a_cleanup_is_told_what_it_lacks(root: Path) -> None:
    """`sessions` is copied behind `results`, and says `cleaned`: no cleanup would mend that."""
    run_to(started(root), SEALS)
    state = folded(root)
    assert state is not None
    last = len(state.sealed[DAY].ranges) - 1
    names = [each.name for each in root.iterdir() if each.name != "sessions"]
    original = Warehouse(str(root), RESULTS, fsync=False)
    for n in range(last):
        original.apply_cleanup(DAY, {n: []})
    place = copy(root, root.parent / "copy", names)
    original.apply_cleanup(DAY, {last: []})
    original.sessions.append(SessionEvent(session=DAY, event="cleaned"))
    copy(root, place, ["sessions"])
    assert problems(root) == []
    [told] = problems(place)
    assert told.startswith(
        f"results has {last} of the {last + 1} ranges of {DAY}, which is cleaned"
    )
