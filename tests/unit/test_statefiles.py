"""A slot's folder: what the named manifest needs, and what may be deleted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretBytes

from spillway.engine.state.arrangement import Drops
from spillway.engine.state.digests import keyed_digest
from spillway.engine.state.kept import KEPT_FIELDS
from spillway.engine.state.runs import Missing, RunFile, name_of
from spillway.engine.state.statefiles import (
    FIGURES_SCHEMA,
    Manifest,
    Merging,
    decode_manifest,
    delete_garbage,
    demand,
    encode_manifest,
    garbage,
    load_manifest,
    manifest_name,
    write_manifest,
)
from spillway.storage import folder
from spillway_schemas.filenames import turn, turn_of


def test_only_old_files_that_the_manifest_does_not_use_are_garbage() -> None:
    """An attempt of this very epoch may be the one that the journal will name."""
    old, used, last, now = (name_of("w", epoch, "a", "0") for epoch in (3, 4, 5, 6))
    manifest = name_of("w", 5, "a", "0", "manifest")
    foreign = [name_of("v", 1, "a", "0"), "readme.txt", "w-1-a-0.arrow.tmp"]
    names = [old, used, last, now, manifest, *foreign]
    assert list(garbage("w", names, 5, {manifest, used})) == [old, last]
    assert list(garbage("w", names, 4, {manifest, used})) == [old]
    assert list(garbage("w", names, 5, set())) == [old, used, last, manifest]


def test_what_an_earlier_job_wrote_in_this_epoch_is_garbage() -> None:
    """A later one of its driver, or another driver, which has claimed the journal since. What the
    same job wrote is not: another of its tasks may be the one that the journal will name."""
    turns = [turn(2, 8), turn(3, 1), turn(3, 2), turn(11, 1)]
    names = [name_of("w", 6, f"{each}abcdef012", "0") for each in turns]
    later = name_of("w", 7, f"{turn(1, 1)}abcdef012", "0")
    for at, each in enumerate(turns):
        assert list(garbage("w", [*names, later], 5, {names[0]}, each)) == names[1:at]
    assert [turn_of(f"{each}abcdef012") for each in turns] == turns
    assert turns == sorted(turns)
    assert turn(1 << 24, 16) == turn((1 << 24) - 1, 15) == "f" * 7, "names are of one length"


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


def run(name: str, size: int) -> RunFile:
    return RunFile(name, size, size - 1, "0", "d", 1, 3, 2, 5, 10, 20)


def test_a_manifest_that_this_process_wrote_is_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, key = folder(str(tmp_path)), SecretBytes(b"k" * 32)
    data = encode_manifest(Manifest(0, 1))
    name = manifest_name("w", 1, "a", data, key)
    write_manifest(place, name, data)
    monkeypatch.setattr(
        "spillway.engine.state.runs.is_genuine", lambda *_: pytest.fail("checked again")
    )
    assert load_manifest(place, name, {name: data.size}, key) == Manifest(0, 1)


def test_the_manifest_and_its_files_are_not_deleted(tmp_path: Path) -> None:
    place = folder(str(tmp_path))
    mine, used, old = (
        name_of("w", 1, "a", "0", "manifest"),
        *(name_of("w", 1, "a", p) for p in "12"),
    )
    sizes = {mine: 1, used: 2, old: 3}
    for name in sizes:
        (tmp_path / name).write_bytes(b"x")
    manifest = Manifest(0, 1, runs=(run(used, 2),))
    given = {"born_before": 1, "manifest_name": mine, "manifest": manifest}
    assert delete_garbage(place, "w", sizes, **given) == {mine: 1, used: 2}  # type: ignore[arg-type]
    assert {path.name for path in tmp_path.iterdir()} == {mine, used}
    # No state is named: all of it is garbage.
    given |= {"manifest_name": None, "manifest": None}
    assert delete_garbage(place, "w", {mine: 1, used: 2}, **given) == {}  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_is_loaded_with_the_files_that_it_names(tmp_path: Path) -> None:
    place, key = folder(str(tmp_path)), SecretBytes(b"k" * 32)
    manifest = Manifest(0, 1, runs=(run("one", 7), run("two", 8)))
    data = encode_manifest(manifest)
    name = manifest_name("w", 1, "a", data, key)
    write_manifest(place, name, data)
    sizes = {name: data.size, "one": 7, "two": 8}
    found = load_manifest(place, name, sizes, key)
    assert found is not None
    assert found.runs == manifest.runs
    said = f"^state file two has 9 bytes, but manifest {name} names 8$"
    with pytest.raises(Missing, match=said):
        load_manifest(place, name, sizes | {"two": 9}, key)


def test_all_that_the_manifest_names_must_be_there_and_no_larger() -> None:
    """A smaller file may have been trimmed: who maps it sees whether it was."""
    demand("m", {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3})
    demand("m", {"a": 1, "b": 2}, {"a": 1, "b": 1})
    with pytest.raises(Missing, match=r"^state file b is not there, but manifest m names 2$"):
        demand("m", {"a": 1, "b": 2}, {"a": 1})
    with pytest.raises(Missing, match=r"^state file b has 3 bytes, but manifest m names 2$"):
        demand("m", {"a": 1, "b": 2}, {"a": 1, "b": 3})


def test_a_manifest_is_as_small_as_can_be_and_read_as_it_was_written() -> None:
    number = 20_000
    names = FIGURES_SCHEMA.names
    columns = [pa.array([f"d{i % 2}" for i in range(number)])]
    for i in range(1, len(names)):
        kind = FIGURES_SCHEMA.field(i).type
        lists = pa.types.is_fixed_size_list(kind)
        value: object = [i] * kind.list_size if lists else i
        if names[i] == "kept":
            value = [dict.fromkeys(KEPT_FIELDS.names, i) | {"path": "p"}]
        columns.append(pa.array([value] * number, kind))
    figures = pa.table(columns, schema=FIGURES_SCHEMA)
    written = Manifest(
        slot=3,
        epoch=7,
        next_run=5,
        drops={"d": Drops([0, 1 << 63], [-1, 6])},
        merges=(Merging("d", 1, (2, 3), 4), Merging("e", 0, (1,), 9)),
        figures=figures,
        evidence={"d": [[1.5, 0.5]]},
    )
    data = encode_manifest(written)
    assert data.size < figures.nbytes / 15, "compressed"
    text = pa.ipc.open_file(data).schema.metadata[b"spillway"]
    assert text == (
        b'{"format":8,"slot":3,"epoch":7,"next_run":5,"runs":[],'
        b'"drops":{"d":[[0,-1],[9223372036854775808,6]]},'
        b'"merges":[["d",1,[2,3],4],["e",0,[1],9]],"evidence":{"d":[[1.5,0.5]]}}'
    )
    again = decode_manifest(data)
    assert (again.slot, again.epoch, again.next_run, again.runs) == (3, 7, 5, ())
    assert again.merges == written.merges
    assert again.evidence == written.evidence
    assert {name: each.to_json() for name, each in again.drops.items()} == {
        "d": [[0, -1], [1 << 63, 6]]
    }
    assert again.figures.equals(figures)
    assert again.figures.schema.metadata is None


def test_a_manifest_of_another_format_is_refused() -> None:
    written = encode_manifest(Manifest(0, 1))
    whole = pa.ipc.open_file(written).read_all()
    facts = whole.schema.metadata[b"spillway"].replace(b'"format":8', b'"format":7')
    sink = pa.BufferOutputStream()
    table = whole.replace_schema_metadata({b"spillway": facts})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match=r"^a manifest of format 7 instead of 8$"):
        decode_manifest(sink.getvalue())


def test_what_was_written_is_loaded_and_what_is_not_whole_is_missing(tmp_path: Path) -> None:
    place, key = folder(str(tmp_path)), SecretBytes(b"k" * 32)
    data = encode_manifest(Manifest(2, 4, next_run=8))
    name = manifest_name("w", 4, "a", data, key)
    assert name == name_of("w", 4, "a", keyed_digest(key, data), "manifest")
    write_manifest(place, name, data)
    found = load_manifest(place, name, {name: data.size}, key)
    assert found is not None
    assert (found.slot, found.epoch, found.next_run) == (2, 4, 8)
    assert load_manifest(place, None, {}, key) is None
    # Of a name that this process did not write the digest is looked at.
    other = manifest_name("w", 4, "c-d", data, key)
    place.write_new(other, data)
    assert load_manifest(place, other, {other: data.size}, key) is not None
    forged = name_of("w", 4, "e", keyed_digest(SecretBytes(b"x" * 32), data), "manifest")
    place.write_new(forged, data)
    with pytest.raises(Missing, match=rf"^state file {forged} is damaged, or was written under "):
        load_manifest(place, forged, {forged: data.size}, key)
    absent = rf"^manifest {name} is not in {place.uri}$"
    with pytest.raises(Missing, match=absent):
        load_manifest(place, name, {}, key)
    place.delete(name)
    with pytest.raises(Missing, match=absent):
        load_manifest(place, name, {name: data.size}, key)
    broken = manifest_name("w", 4, "b", pa.py_buffer(b"no"), key)
    write_manifest(place, broken, pa.py_buffer(b"no"))
    with pytest.raises(Missing, match=rf"^manifest {broken} cannot be read: \S"):
        load_manifest(place, broken, {broken: 2}, key)
