"""What releases have left is read or restored by the code of today, and what is newer is told."""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from spillway.cleanup.job import run_cleanup
from spillway.cli import main
from spillway.decode import tree_spec
from spillway.engine.join.tree import TreeSpec
from spillway.engine.state.loading import load
from spillway.engine.state.runs import Missing
from spillway.protocol import driver as protocol
from spillway.protocol.queries import QueryChanged, goes_on_by_another, session_query
from spillway.protocol.recovery import restore_of
from spillway.protocol.state import JournalState, replay
from spillway.storage import folder
from spillway.stream.genesis import state_of_query
from spillway.tables import Warehouse, WrongTable
from spillway.tables.errors import UnknownEntry
from spillway.tables.journal import Journal, journal_row
from spillway_schemas.filenames import snapshot_name
from spillway_schemas.journal import Claim
from spillway_schemas.query import Query, load_query
from tests import released
from tests.integration.day import VALUE, accepted
from tests.integration.spilled_day import Here
from tests.released import OPEN, SEALED, Released

Result = tuple[Any, ...]


@pytest.fixture(params=released.archives(), ids=lambda path: path.name.removesuffix(".tar.xz"))
def kept(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Released:
    """The warehouse of one release, in a folder of the test's own."""
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    return released.unpacked(request.param, tmp_path / "kept")


def opened(kept: Released) -> Warehouse:
    return Warehouse(kept.root, fsync=False)


def state_of(warehouse: Warehouse) -> JournalState:
    state = warehouse.journal.state()
    assert state is not None
    return state


def run(kept: Released, *words: str) -> int:
    options = {"warehouse.root": kept.root, "query": kept.query, "state.root": kept.state}
    flags = [f"--set={name}={value}" for name, value in options.items()]
    with pytest.raises(SystemExit) as it:
        main([*flags, "--set=kafka.bootstrap_servers=127.0.0.1:1", *words])
    assert isinstance(it.value.code, int)
    return it.value.code


def test_they_are_small_and_each_release_has_one() -> None:
    names = [each.name.removesuffix(".tar.xz") for each in released.archives()]
    changes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    of_changelog = re.findall(r"^## (\d+\.\d+\.\d+)", changes, re.MULTILINE)
    assert of_changelog
    assert {f"released-{each}" for each in of_changelog} <= set(names)
    assert all(each.stat().st_size <= released.MOST_BYTES for each in released.archives())


def test_status_tells_of_both_days(kept: Released, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(kept, "status", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["query_problem"] == ""
    stages = {each["session"]: each["stage"] for each in found["sessions"]}
    assert stages == {SEALED: "sealed", OPEN: "open"}
    rows = Counter[str]()
    for each in found["sessions"]:
        rows.update(each["rows_in"])
    assert rows == {topic: len(values) for topic, values in kept.messages().items()}
    assert run(kept, "status") == 0


def test_the_journal_and_the_tables_are_whole(kept: Released) -> None:
    warehouse = opened(kept)
    assert warehouse.check() == []
    # Whatever snapshots there are: the state is what all entries come to.
    assert state_of(warehouse) == replay(warehouse.journal.read())
    assert state_of_query(warehouse, load_query(kept.query)) == state_of(warehouse)


def joined(
    kept: Released, start: dict[str, list[int]], end: dict[str, list[int]]
) -> Counter[Result]:
    """All results of the messages between these offsets: key, and coordinates and value of each."""
    by_key: dict[str, dict[str, list[tuple[Any, ...]]]] = defaultdict(lambda: defaultdict(list))
    for stream, rows in kept.messages().items():
        for partition, offset, value in rows:
            body = accepted(stream, value)
            if body and start[stream][partition] <= offset < end[stream][partition]:
                by_key[body["symbol"]][stream].append((partition, offset, body[VALUE[stream]]))
    return Counter(
        (key, *combination)
        for key, sides in by_key.items()
        for combination in itertools.product(*(sides[stream] for stream in VALUE))
    )


def results(kept: Released, session: str) -> Counter[Result]:
    table = deltalake.DeltaTable(f"{kept.root}/results").to_pyarrow_table()
    return Counter(
        (
            row["symbol"],
            *((row[f"{s}_partition"], row[f"{s}_offset"], row[f"{s}_{VALUE[s]}"]) for s in VALUE),
        )
        for row in table.to_pylist()
        if row["session_date"] == session
    )


def test_a_sealed_day_becomes_complete(kept: Released) -> None:
    warehouse, query = opened(kept), load_query(kept.query)
    sealed = state_of(warehouse).sealed[SEALED]
    expected = joined(kept, sealed.start, sealed.end)
    assert results(kept, SEALED) < expected
    cleaned = run_cleanup(
        Here,
        warehouse,
        tree_spec(query),
        SEALED,
        fingerprint=query.fingerprint,
    )
    assert cleaned.cleanup > 0
    assert results(kept, SEALED) == expected
    assert warehouse.check() == []
    # What the open day has is right, as far as it goes.
    state = state_of(warehouse)
    assert results(kept, OPEN) <= joined(kept, state.session.start, state.end)


def held(kept: Released, spec: TreeSpec, state: JournalState) -> Iterator[tuple[str, int, int]]:
    """Stream, partition and offset of every row that the slots' state holds."""
    key = opened(kept).state_key()
    for slot, name in state.manifests.items():
        place = folder(f"{kept.state}/{state.genesis.warehouse_id}/slot-{slot}")
        found = load(spec, place, slot, state.epoch, name, key)
        for number, each in enumerate(spec.inputs):
            for part in found.session(OPEN).parts[number]:
                *_, partitions, offsets = part.rows.table.columns
                for partition, offset in zip(partitions, offsets, strict=True):
                    yield each.name, partition.as_py(), offset.as_py()


def test_state_is_taken_or_restored(kept: Released) -> None:
    """What lay in memory when the release ended: read where its format is today's, else named to
    be read again from Kafka."""
    state = state_of(opened(kept))
    start, end = state.session.start, state.end
    waits = Counter(
        (stream, partition, offset)
        for stream, rows in kept.messages().items()
        for partition, offset, value in rows
        if start[stream][partition] <= offset < end[stream][partition] and accepted(stream, value)
    )
    assert waits
    try:
        assert Counter(held(kept, tree_spec(load_query(kept.query)), state)) == waits
    except Missing as error:
        lacking = str(error)
    else:
        return
    assert re.search(r"a manifest of format \d+ instead of", lacking)
    restore = restore_of(state, state.slots)
    assert restore is not None
    (open_,) = [each for each in restore.sessions if each.session == OPEN]
    assert (open_.start, restore.read_to) == (start, end)
    assert all(restore.read_from[s][p] <= offset for s, p, offset in waits)


def claimed(kept: Released, query: Query) -> JournalState:
    """After today's driver has claimed the journal."""
    warehouse = opened(kept)
    state = state_of(warehouse)
    own = state.genesis.model_copy(update={"text": query.text})
    driver, [read] = protocol.start("host/1", "2026-01-06T15:00:00Z", query=own)
    entries, applied = warehouse.journal.read(), warehouse.applied_all()
    event = protocol.JournalRead(entries, applied, state.topics)
    driver, [append] = protocol.step(driver, event)
    assert isinstance(read, protocol.ReadJournal)
    assert isinstance(append, protocol.Append)
    warehouse.journal.append(append.entry)
    return state_of(warehouse)


def test_todays_driver_goes_on_and_keeps_the_query(kept: Released) -> None:
    query = load_query(kept.query)
    before = state_of(opened(kept))
    state = claimed(kept, query)
    assert (state.term, state.epoch, state.end) == (before.term + 1, before.epoch, before.end)
    for session in (SEALED, OPEN):
        assert session_query(state, session).fingerprint == query.fingerprint


def test_a_changed_query_is_refused_in_its_open_day(kept: Released) -> None:
    state = claimed(kept, load_query(kept.query))
    file = Path(kept.query)
    file.write_text(file.read_text() + '[results]\ncolumns = ["stock.price"]\n')
    with pytest.raises(QueryChanged, match=r"column review_text of the results: goes: carried"):
        goes_on_by_another(state, load_query(kept.query))


# --- what is newer -------------------------------------------------------------------------------


def test_an_entry_of_a_newer_release_is_told(
    kept: Released, capsys: pytest.CaptureFixture[str]
) -> None:
    warehouse = opened(kept)
    state = state_of(warehouse)
    claim = Claim(n=state.n + 1, term=state.term + 1, driver="d", written_at="2026-01-06T15:00:00Z")
    row = journal_row(claim)
    row["entry"] = json.dumps({**json.loads(row["entry"]), "novelty": 1})
    warehouse.journal._rows.append_as(claim.n, row)
    with pytest.raises(UnknownEntry, match="novelty"):
        opened(kept).journal.state()
    for words in (
        ["status"],
        ["cleanup", "--session", SEALED],
        ["stream"],
        ["verify", "--session", SEALED],
    ):
        assert run(kept, *words) == 2
        said = capsys.readouterr().err
        assert f"entry {claim.n} of the journal is none that this version knows" in said
        assert "Another version of spillway wrote it: use that one or a newer one" in said


def test_a_table_of_a_newer_release_is_told(
    kept: Released, capsys: pytest.CaptureFixture[str]
) -> None:
    table = opened(kept).table("journal")
    added = deltalake.Schema.from_arrow(pa.schema([pa.field("novelty", pa.int64())])).fields
    deltalake.DeltaTable(table.place.path()).alter.add_columns(added)
    with pytest.raises(WrongTable, match="another version of spillway made this: journal"):
        opened(kept)
    assert run(kept, "status") == 2
    assert "has novelty, which it should not" in capsys.readouterr().err


def test_caches_of_a_newer_release_are_passed_over(kept: Released) -> None:
    warehouse = opened(kept)
    state = state_of(warehouse)
    warehouse.journal.keep(state)
    at = Path(kept.root) / "snapshots"
    for path in at.iterdir():
        facts = json.loads(zlib.decompress(path.read_bytes()))
        data = zlib.compress(json.dumps({**facts, "format": facts["format"] + 100}).encode())
        path.unlink()
        (at / snapshot_name(facts["n"], sha256(data).hexdigest())).write_bytes(data)
    fresh = opened(kept)
    place = fresh.table("journal")
    assert fresh.journal.state() == Journal(place).state() == state


def test_state_of_a_newer_release_is_restored(
    kept: Released, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a release of another format, today's is what a newer one's is to today's."""
    state, spec = state_of(opened(kept)), tree_spec(load_query(kept.query))
    monkeypatch.setattr("spillway.engine.state.statefiles.FORMAT", -1)
    with pytest.raises(Missing, match=r"a manifest of format \d+ instead of -1"):
        list(held(kept, spec, state))
    restore = restore_of(state, state.slots)
    assert restore is not None
    assert restore.read_to == state.end
