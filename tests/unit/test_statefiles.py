"""A slot's folder: what the named manifest needs, and what may be deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.engine.runs import Missing, name_of
from jobs.engine.statefiles import Manifest, delete_garbage, demand, garbage
from jobs.storage import folder


def test_only_old_files_that_the_manifest_does_not_use_are_garbage() -> None:
    """An attempt of this very epoch may be the one that the journal will name."""
    old, used, last, now = (name_of("w", epoch, "a", "0") for epoch in (3, 4, 5, 6))
    manifest = name_of("w", 5, "a", "0", "manifest")
    foreign = [name_of("v", 1, "a", "0"), "readme.txt", "w-1-a-0.arrow.tmp"]
    names = [old, used, last, now, manifest, *foreign]
    assert list(garbage("w", names, 5, {manifest, used})) == [old, last]
    assert list(garbage("w", names, 4, {manifest, used})) == [old]
    assert list(garbage("w", names, 5, set())) == [old, used, last, manifest]


def test_what_is_left_is_what_takes_room(tmp_path: Path) -> None:
    place = folder(str(tmp_path))
    sizes = {name_of("w", 1, "a", "0"): 3, name_of("w", 2, "a", "0"): 4, "readme.txt": 5}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    left = delete_garbage(
        place, "w", sizes, born_before=1, manifest_name=None, manifest=Manifest(0, 1)
    )
    assert left == {name_of("w", 2, "a", "0"): 4, "readme.txt": 5}
    assert {path.name for path in tmp_path.iterdir()} == left.keys()


def test_all_that_the_manifest_names_must_be_there_at_its_size() -> None:
    demand("m", {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3})
    with pytest.raises(Missing, match=r"^state file b is not there, but manifest m names 2$"):
        demand("m", {"a": 1, "b": 2}, {"a": 1})
    with pytest.raises(Missing, match=r"^state file b has 1 bytes, but manifest m names 2$"):
        demand("m", {"a": 1, "b": 2}, {"a": 1, "b": 1})
