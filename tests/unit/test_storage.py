"""Files: written once, whole, under fresh names; clear errors."""

from __future__ import annotations

import errno
import multiprocessing as mp
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.storage import Folder, LocalFolder, StorageError, folder


def names(place: Folder) -> set[str]:
    return {info.name for info in place.list()}


def test_written_once_and_read_in_every_way(tmp_path: Path) -> None:
    place = folder(str(tmp_path / "w"))
    place.write_new("session_date=2026-01-05/a.bin", b"abc" * 1000)
    place.write_new("b.bin", pa.py_buffer(b"xyz"))
    place.write_new("empty", b"")
    assert place.read("b.bin") == b"xyz"
    assert place.map("session_date=2026-01-05/a.bin").to_pybytes() == b"abc" * 1000
    assert place.map("empty").size == 0
    with place.open("b.bin") as file:
        file.seek(1)
        assert file.read() == b"yz"
    assert place.size("b.bin") == 3
    assert place.size("none") is None
    assert names(place) == {"session_date=2026-01-05/a.bin", "b.bin", "empty"}
    assert names(place.child("session_date=2026-01-05")) == {"a.bin"}


def test_a_taken_name_is_refused_and_kept(tmp_path: Path) -> None:
    place = folder(str(tmp_path))
    place.write_new("a", b"first")
    with pytest.raises(FileExistsError):
        place.write_new("a", b"second")
    with pytest.raises(FileExistsError), place.create("a") as sink:
        sink.write(b"third")
    assert place.read("a") == b"first"


def test_create_serves_pyarrow_writers(tmp_path: Path) -> None:
    place = folder(str(tmp_path))
    table = pa.table({"n": list(range(1000))})
    with place.create("t.parquet") as sink, pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
    with place.create("t.arrow") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert pq.read_table(place.open("t.parquet")).equals(table)
    assert pa.ipc.open_file(place.map("t.arrow")).read_all().equals(table)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    place = folder(str(tmp_path))

    def fail_halfway() -> None:
        with place.create("a") as sink:
            sink.write(b"half")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail_halfway()
    assert names(place) == set()
    with place.create("a") as sink:
        sink.write(b"whole")
    assert place.read("a") == b"whole"


def test_a_map_outlives_its_file(tmp_path: Path) -> None:
    place = folder(str(tmp_path))
    place.write_new("a", b"x" * 10_000)
    buffer = place.map("a")
    place.delete("a")
    place.delete("a")
    assert buffer.to_pybytes() == b"x" * 10_000
    with pytest.raises(FileNotFoundError):
        place.map("a")
    with pytest.raises(FileNotFoundError):
        place.read("a")


def test_an_absent_folder_lists_nothing(tmp_path: Path) -> None:
    assert names(folder(str(tmp_path / "none"))) == set()
    assert list(folder(str(tmp_path / "none")).names()) == []


def test_names_are_those_of_one_folder(tmp_path: Path) -> None:
    place = folder(str(tmp_path))
    for name in ("a", "b/c", "b/d/e"):
        place.write_new(name, b"1")
    assert sorted(place.names()) == ["a", "b"]
    assert sorted(place.child("b").names()) == ["c", "d"]
    with pytest.raises(StorageError, match="a file is where a folder is needed"):
        list(place.child("a").names())


@pytest.mark.parametrize("name", ["..", "../a", "a/../../b", "/etc/passwd", "a\0b"])
def test_names_stay_inside(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="inside a folder"):
        folder(str(tmp_path)).write_new(name, b"")


def test_a_place_has_one_path(tmp_path: Path) -> None:
    place = folder(str(tmp_path))
    for name in ("a/b", "./a/./b", "a//b/", "a/b/."):
        assert place.path(name) == str(tmp_path / "a" / "b")
    assert place.path(".") == place.path()


def test_uris(tmp_path: Path) -> None:
    odd = tmp_path / "a b%20c"
    place = folder(str(odd))
    place.write_new("x", b"1")
    assert folder(place.uri).read("x") == b"1"
    assert folder(place.uri) == place
    assert folder("file://localhost/tmp/x") == LocalFolder("/tmp/x")
    with pytest.raises(ValueError, match=r"'ftp' is not supported.*file:///path"):
        folder("ftp://bucket/x")
    with pytest.raises(ValueError, match="names no host"):
        folder("file://other/tmp")
    with pytest.raises(ValueError, match="empty"):
        folder("")


def test_pickles(tmp_path: Path) -> None:
    place = folder(str(tmp_path)).child("c")
    assert pickle.loads(pickle.dumps(place)) == place
    error = pickle.loads(pickle.dumps(StorageError(errno.ENOSPC, "full")))
    assert error.errno == errno.ENOSPC


def test_a_full_disk_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/dev/full` answers every write with "no space left"."""
    monkeypatch.setattr(
        "spillway.storage.local._open_new", lambda path: os.open("/dev/full", os.O_WRONLY)
    )
    monkeypatch.setattr("spillway.storage.local._remove", lambda path: None)
    place = LocalFolder("/dev")
    with pytest.raises(StorageError, match=r"cannot write /dev/full: no space is left") as caught:
        place.write_new("full", b"x")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(StorageError, match="no space is left"), place.create("full") as sink:
        sink.write(b"x" * 100)


def test_a_file_in_the_way_says_what_to_do(tmp_path: Path) -> None:
    place = folder(str(tmp_path))
    place.write_new("a", b"")
    with pytest.raises((StorageError, FileExistsError), match="a"):
        place.write_new("a/b", b"")
    with pytest.raises(StorageError, match="a file is where a folder is needed"):
        place.read("a/b")


def test_sync_reaches_every_folder_up_to_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder(str(tmp_path / "w")).child("results")
    place.write_new("d=1/a", b"1")
    place.write_new("d=1/b", b"1")
    synced: list[str] = []
    monkeypatch.setattr("spillway.storage.local._fsync", synced.append)
    place.sync(["d=1/a", "d=1/b"])
    relative = [os.path.relpath(path, tmp_path) for path in synced]
    assert relative == [
        "w/results/d=1/a",
        "w/results/d=1/b",
        "w/results/d=1",
        "w/results",
        "w",
        ".",
    ]


def test_sync_of_real_files(tmp_path: Path) -> None:
    place = folder(str(tmp_path / "w"))
    place.write_new("d=1/a", b"1")
    place.sync(["d=1/a"])
    with pytest.raises(FileNotFoundError):
        place.sync(["d=1/none"])


def _race(root: str, barrier: Any, won: Any, me: int) -> None:
    place = folder(root)
    for n in range(200):
        barrier.wait()
        try:
            place.write_new(f"d{n}/f", str(me).encode() * 50)
            won.put((n, me))
        except FileExistsError:
            pass


def test_exactly_one_of_two_racing_processes_gets_a_name(tmp_path: Path) -> None:
    context = mp.get_context("spawn")
    barrier, won = context.Barrier(2), context.SimpleQueue()
    racers = [
        context.Process(target=_race, args=(str(tmp_path), barrier, won, me)) for me in (1, 2)
    ]
    for racer in racers:
        racer.start()
    winners = dict(won.get() for _ in range(200))
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    assert won.empty()
    place = folder(str(tmp_path))
    assert sorted(winners) == list(range(200))
    for n, me in winners.items():
        assert place.read(f"d{n}/f") == str(me).encode() * 50
