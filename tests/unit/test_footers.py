"""A footer of a Parquet file with one wrong bit: an error that names the file, never an abort.

Each look runs in a child: what it must not do is end the process.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.spill.spillfile import SpillDamaged, SpillFile, row_groups, write_spill
from spillway.engine.wire import footers
from spillway.engine.wire.footers import is_sound
from spillway.storage import folder
from spillway.stream import day_before
from spillway.tables import rowgroups

EVERY = 31
"""Not every bit: each needs a child. Other seeds of wrong bits: `tests/property/test_flips.py`."""
SIGNAL = 1 << 8
"""Beyond any exit code."""


def footer_bits(file: Path, every: int) -> Iterator[tuple[str, bytes]]:
    """The file with one bit of its footer wrong, each `every`th of them; and which it is."""
    data = file.read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    begin = len(data) - 8 - length
    for bit in range(0, length * 8, every):
        wrong = bytearray(data)
        wrong[begin + bit // 8] ^= 1 << bit % 8
        yield f"bit {bit} of the footer", bytes(wrong)


def outcome(look: Callable[[], object]) -> int:
    """How a child ends that looks: 0, 1 for an error, or a signal."""
    child = os.fork()
    if not child:
        code = 1
        try:
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            look()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return SIGNAL + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def asked_of_the_footer(data: bytes) -> None:
    """What must not be asked of a file that nobody has compared."""
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in range(group.num_columns):
            _ = group.column(column).statistics


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Two row groups of numbered rows, with times."""
    file = tmp_path / "numbered.parquet"
    rows = {"n": range(40), "entry": [f"e{n}" for n in range(40)]}
    at = pa.array(range(40), pa.timestamp("us", "UTC"))
    pq.write_table(pa.table(rows).append_column("written_at", at), file, row_group_size=20)
    return file


@pytest.mark.server
def test_a_footer_that_would_end_the_process_is_told_before(numbered: Path) -> None:
    """By the same look in a child. What is wrong is what pyarrow would abort at, or raise."""
    ended = 0
    for which, data in footer_bits(numbered, EVERY):
        try:
            metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
        except (OSError, pa.ArrowException, ValueError):
            continue
        found = outcome(lambda data=data: asked_of_the_footer(data))
        ended += found >= SIGNAL
        if found:
            assert not is_sound(metadata), which
    assert ended, "or this version of pyarrow needs no guard"
    assert is_sound(pq.ParquetFile(numbered).metadata)


class Waiting:
    """A footer at which a child does not come to an end: the first `times` of them."""

    num_row_groups = 1

    def __init__(self, begun: Path, times: int) -> None:
        self.begun, self.times = begun, times

    def row_group(self, _: int) -> Any:
        with self.begun.open("a") as file:
            file.write("x")
        if self.begun.stat().st_size <= self.times:
            threading.Event().wait()
        return SimpleNamespace(num_columns=0, column=int)


def test_a_child_that_is_stuck_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another thread held at the fork is never released in the child."""
    monkeypatch.setattr(footers, "ANSWER_S", 0.3)
    before = psutil.Process().children()
    assert is_sound(Waiting(tmp_path / "two", 2))  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match=r"took longer than 0\.3 s, 3 times"):
        is_sound(Waiting(tmp_path / "all", 99))  # type: ignore[arg-type]
    assert (tmp_path / "all").read_text() == "xxx"
    assert not {*psutil.Process().children()} - {*before}, "none is left, not even a dead one"


class Littered:
    """A footer at which so much is allocated that garbage is collected."""

    num_row_groups = 1

    def row_group(self, _: int) -> Any:
        _kept = [[n] for n in range(100_000)]
        return SimpleNamespace(num_columns=0, column=int)


def test_a_child_collects_none_of_its_parent_s_garbage(tmp_path: Path) -> None:
    """A connection that is closed there is closed here, too."""
    closed = tmp_path / "closed"

    class Connection:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with closed.open("a") as file:
                file.write(f"{os.getpid()}\n")

    gc.collect()
    Connection()
    assert is_sound(Littered())  # type: ignore[arg-type]
    gc.collect()
    assert set(closed.read_text().split()) == {str(os.getpid())}


def numbered_rows(data: bytes) -> None:
    for group in rowgroups.row_groups("x", pa.BufferReader(data)):
        group.read(pa.schema([("n", pa.int64()), ("entry", pa.string())]))


def times(data: bytes) -> None:
    opened = pq.ParquetFile(pa.BufferReader(data))
    for number in range(opened.num_row_groups):
        day_before._may_stand(opened, number, np.array([0], np.int64))


@pytest.mark.server
@pytest.mark.parametrize("look", [numbered_rows, times])
def test_numbers_and_times_are_read_and_not_asked_for(
    numbered: Path, look: Callable[[bytes], None]
) -> None:
    bad = [
        which
        for which, data in footer_bits(numbered, 3 * EVERY)
        if outcome(lambda data=data: look(data)) >= SIGNAL
    ]
    assert not bad


SPEC = one_join(
    JoinSpec(
        0,
        pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
        tuple(InputSpec(name, pa.schema([("price", pa.float64())])) for name in ("a", "b")),
    )
)


def written_spill(root: Path) -> SpillFile:
    hashes = np.arange(30, dtype=np.uint64)
    columns = [[f"k{h}" for h in hashes], hashes / 2, [0] * 30, range(30)]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SPEC.row_schema(0), strict=True)]
    rows = Rows(hashes, pa.Table.from_arrays(arrays, schema=SPEC.row_schema(0)))
    record = write_spill(folder(str(root)), "1.parquet", SPEC, "2026-01-05", 1, [[rows], []])
    assert record is not None
    return SpillFile(record.path, record.bytes)


def test_a_footer_is_looked_at_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of one file come back in several epochs, and each look forks."""
    file, looks = written_spill(tmp_path), [0]

    def counted(metadata: pq.FileMetaData) -> bool:
        looks[0] += 1
        return is_sound(metadata)

    monkeypatch.setattr("spillway.engine.spill.spillfile.is_sound", counted)
    found = [row_groups(folder(str(tmp_path)), file, position) for position in (0, 5, 0)]
    assert looks == [1]
    assert [each.file.tolist() for each in found] == [[0], [5], [0]]
    assert [each.rows.tolist() for each in found] == [[30]] * 3
    (tmp_path / file.path).write_bytes(b"short")
    with pytest.raises(SpillDamaged, match="it has 5 bytes"):
        row_groups(folder(str(tmp_path)), file, 0)


@pytest.mark.server
def test_a_spill_file_that_comes_back_is_looked_at_first(tmp_path: Path) -> None:
    """Its digest is not compared then: the group stays spilled, and the slot lives."""
    file = written_spill(tmp_path)
    path, refused = tmp_path / file.path, 0
    for which, data in footer_bits(path, EVERY):
        if outcome(lambda data=data: asked_of_the_footer(data)) < SIGNAL:
            continue
        path.write_bytes(data)

        def look() -> None:
            row_groups(folder(str(tmp_path)), file, 0)

        assert outcome(look) == 1, which
        refused += 1
        with pytest.raises(SpillDamaged, match=f"{path}: its footer contradicts itself"):
            look()
    assert refused
