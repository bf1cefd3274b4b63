"""Tables in an object store that fails: each commit counts once, whoever's answer is lost."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.engine.wire.datafile import write_data_file
from spillway.storage import StorageError, folder
from spillway.storage.folders import UnsafeStore
from spillway.tables import (
    DamagedTable,
    JournalConflict,
    OutcomeUnknown,
    SessionEvent,
    TableConflict,
    Warehouse,
)
from spillway.tables.compaction import compact
from spillway.tables.damage import LOG, log_name
from spillway.tables.definitions import SESSION_DATE
from spillway_schemas.commands import Command
from spillway_schemas.filenames import cleanup_name, data_name
from spillway_schemas.journal import Claim, Epoch, FileRecord, Genesis
from tests.commands import command_of
from tests.lanes import on_every_store
from tests.new_warehouse import new_warehouse
from tests.protocol_entries import DAY, claim, ends, epoch, genesis
from tests.racers import race
from tests.store_server import StoreServer

server = pytest.mark.server
"""Of tests that race, or wait for long."""

RESULTS = pa.schema([pa.field("v", pa.int64(), nullable=False), SESSION_DATE])
FILE = pa.schema([RESULTS.field("v")])
TIME = "2026-01-05T10:00:00Z"
ENTRY = rf"/{LOG}/\d+\.json"
"""Path of a table's commit."""
HARMLESS = ("error", "failed", "reset", "lost", "slow", "stuck")
"""Faults that end before the client's patience does."""


def fresh(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:12]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local warehouse of which nothing was used: quicker to copy than to make."""
    here = tmp_path_factory.mktemp("empty") / "w"
    new_warehouse(here, RESULTS)
    return here


@pytest.fixture
def place(store: StoreServer, empty: Path) -> str:
    """The root of a fresh warehouse."""
    return planted(store, empty)


def planted(store: StoreServer, here: Path) -> str:
    """The root of a copy of a local warehouse."""
    store.fail()
    name = fresh("w")
    store.keep(here, name)
    return store.root(name)


def made(store: StoreServer, root: str, **options: str) -> Warehouse:
    return Warehouse(root, RESULTS, options=store.options | options)


def entry(n: int) -> Genesis | Claim | Epoch:
    return genesis(written_at=TIME) if n == 0 else claim(n, n, written_at=TIME)


def command(id_: str) -> Command:
    return command_of("seal", id_, session=DAY, offsets=ends(1, 1, 1))


def written(w: Warehouse, number: int, values: list[int], table: str = "results") -> FileRecord:
    rows = pa.table({"v": pa.array(values, pa.int64())}, schema=FILE)
    name = data_name(number, fresh(""), 0, 0)
    record = write_data_file(w.folder(table), table, name, FILE, [rows], {"session_date": DAY})
    assert record is not None
    return record


def rows(store: StoreServer, root: str) -> Counter[int]:
    """The results, read without any of our code."""
    table = deltalake.DeltaTable(
        f"{root}/results", storage_options=folder(root, store.options).library_options
    )
    return Counter(table.to_pyarrow_table(columns=["v"])["v"].to_pylist())


@on_every_store()
@server
def test_a_commit_whose_answer_is_lost_is_its_own(store: StoreServer, place: str) -> None:
    """Of the journal, of a table, of a compaction: each happens once and is known to."""
    w = made(store, place, timeout="1s")
    for n, kind in enumerate(HARMLESS):
        fault = {"kind": kind, "method": "PUT", "path": ENTRY, "seconds": 1.2}
        store.fail(fault)
        w.journal.append(entry(n))
        assert store.hits() == 1
        store.fail(fault | {"seconds": 0})
        w.apply("results", n, [written(w, n, [n, n])])
        assert store.hits() == 1
        store.fail(fault | {"seconds": 0})
        assert w.commands.append(command(kind)) == n
        assert store.hits() == 1
    store.fail({"kind": "lost", "method": "PUT", "path": ENTRY})
    assert compact(w.table("results"), fan_in=2) == len(HARMLESS)
    assert store.hits() == 1
    again = Warehouse(place, options=store.options)
    assert again.journal.read() == [entry(n) for n in range(len(HARMLESS))]
    assert [each.command.id for each in again.commands.read()] == list(HARMLESS)
    assert again.applied("results") == len(HARMLESS) - 1
    assert len(again.files("results")) == 1
    assert rows(store, place) == Counter([*range(len(HARMLESS))] * 2)


@on_every_store(others=pytest.mark.soak)
@server
@pytest.mark.parametrize("later_s", [0.05, 1.0])
def test_a_commit_that_arrives_late_counts_once(
    store: StoreServer, place: str, later_s: float
) -> None:
    """The connection breaks, and the log entry arrives before or after the second attempt."""
    w = made(store, place)
    store.fail({"kind": "late", "method": "PUT", "path": ENTRY, "seconds": later_s})
    w.journal.append(entry(0))
    w.journal.append(entry(1))
    time.sleep(later_s)
    assert [each.n for each in Warehouse(place, options=store.options).journal.read()] == [0, 1]


@on_every_store()
@server
@pytest.mark.parametrize("arrives", ["before the other's claim", "after it"])
def test_a_driver_whose_entry_is_on_its_way_is_fenced(
    store: StoreServer, place: str, arrives: str
) -> None:
    """It ends without knowing, and another claims. Only one of them has the number, and the
    first driver's next entry is refused."""
    first = made(store, place, retry_timeout="0s")
    first.journal.append(entry(0))
    store.fail({"kind": "held", "method": "PUT", "path": ENTRY})
    with pytest.raises(OutcomeUnknown):
        first.journal.append(claim(1, 1, driver="first", written_at=TIME))
    if arrives == "before the other's claim":
        store.arrive()
    second = Warehouse(place, options=store.options)
    n = second.journal.last_n() + 1
    assert n == (1 if arrives == "after it" else 2)
    second.journal.append(claim(n, 2, driver="second", written_at=TIME))
    store.arrive()
    with pytest.raises(JournalConflict):
        first.journal.append(claim(2, 1, driver="first", written_at=TIME))
    found = Warehouse(place, options=store.options).journal.read(1)
    assert [each.driver for each in found if isinstance(each, Claim)] == ["first", "second"][-n:]


@on_every_store(others=pytest.mark.soak)
@server
def test_an_attempt_that_arrives_before_the_next_one_is_found(
    store: StoreServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has given it up, and its entry is not in the log yet when that is searched."""
    w = made(store, place, timeout="1s")
    sleep = time.sleep
    monkeypatch.setattr("spillway.tables.log.time.sleep", lambda _: sleep(1.0))
    store.fail({"kind": "tardy", "method": "PUT", "path": ENTRY, "seconds": 1.5})
    w.journal.append(entry(0))
    w.journal.append(entry(1))
    assert Warehouse(place, options=store.options).journal.read() == [entry(0), entry(1)]


@on_every_store(others=pytest.mark.soak)
@server
def test_a_driver_that_tries_again_is_fenced(
    store: StoreServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request is not answered; before its second attempt another has claimed."""
    first = made(store, place, timeout="1s")
    first.journal.append(entry(0))
    second = Warehouse(place, options=store.options)
    claims = [claim(1, 2, driver="second", written_at=TIME)]
    monkeypatch.setattr(
        "spillway.tables.log.time.sleep", lambda _: claims and second.journal.append(claims.pop())
    )
    store.fail({"kind": "stuck", "method": "PUT", "path": ENTRY, "seconds": 1.3})
    with pytest.raises(JournalConflict):
        first.journal.append(claim(1, 1, driver="first", written_at=TIME))
    monkeypatch.undo()
    [found] = Warehouse(place, options=store.options).journal.read(1)
    assert isinstance(found, Claim)
    assert found.driver == "second"


@on_every_store(others=pytest.mark.soak)
@server
def test_a_store_that_is_away_ends_the_wait_and_changes_nothing(
    store: StoreServer, place: str
) -> None:
    w = made(store, place, retry_timeout="300ms")
    w.journal.append(entry(0))
    file = written(w, 0, [1])
    store.fail({"kind": "error", "status": 503, "code": "SlowDown", "times": 1000})
    began = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="SlowDown"):
        w.table("results").commit([file], "spillway", 0)
    assert time.monotonic() - began < 15
    with pytest.raises(StorageError, match="overloaded"):
        w.apply("results", 0, [file])
    with pytest.raises(StorageError, match="overloaded"):
        w.folder("results").read(file.path)
    with pytest.raises(StorageError, match="overloaded"):
        list(w.journal.heads())  # and no damage is told of
    store.fail()
    w.apply("results", 0, [file])
    w.apply("results", 0, [file])
    assert rows(store, place) == Counter([1])


@on_every_store()
def test_a_store_that_replaces_what_is_there_is_refused(store: StoreServer) -> None:
    """Before anything is made. Once it does not, the tables are made."""
    place = store.root(fresh("w"))
    store.fail({"kind": "unconditional", "method": "PUT", "times": 1000})
    with pytest.raises(UnsafeStore, match="not safe for commits"):
        made(store, place)
    store.fail()
    assert not list(folder(place, store.options).list())
    w = made(store, place)
    assert w.journal.last_n() == -1


Plan = list[tuple[str, list[Mapping[str, Any]]]]
STEPS = st.sampled_from(["entry", "apply", "command", "session", "clean", "compact", "checkpoint"])
FAULTS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["error", "failed", "reset", "lost", "late"]),
        "method": st.sampled_from(["PUT", "GET"]),
        "path": st.sampled_from([ENTRY, r"\.parquet", ""]),
        "skip": st.integers(0, 6),
        "times": st.integers(1, 3),
        "seconds": st.sampled_from([0.01, 0.3]),
        "status": st.sampled_from([500, 503]),
    }
)


PLANS = st.lists(st.tuples(STEPS, st.lists(FAULTS, max_size=2)), min_size=4, max_size=12)


@on_every_store(others=pytest.mark.soak)
@server
@pytest.mark.parametrize("examples", [4, pytest.param(200, marks=pytest.mark.soak)])
def test_whatever_fails_each_step_takes_effect_once(
    store: StoreServer, empty: Path, examples: int
) -> None:
    """Steps with faults in them against a list of what was done."""

    @settings(max_examples=examples)
    @given(plan=PLANS)
    def holds(plan: Plan) -> None:
        place = planted(store, empty)
        check_plan(store, place, plan)

    holds()


def check_plan(store: StoreServer, place: str, plan: Plan) -> None:
    w = made(store, place)
    done: Counter[str] = Counter()
    values: Counter[int] = Counter()
    for step, faults in plan:
        store.fail(*faults)
        n, value = done[step], sum(done.values())
        done[step] += step not in ("compact", "checkpoint")
        match step:
            case "entry":
                w.journal.append(entry(n))
            case "apply":
                w.apply("results", n, [written(w, n, [value, value])])
                values[value] += 2
            case "command":
                assert w.commands.append(command(f"c{n}")) == n
            case "session":
                assert w.sessions.append(SessionEvent(session=DAY, event="sealed")) == n
            case "clean":
                rows_ = pa.table({"v": pa.array([value], pa.int64())}, schema=FILE)
                name, day = cleanup_name(DAY, n, fresh(""), 0), {"session_date": DAY}
                files = write_data_file(w.folder("results"), "results", name, FILE, [rows_], day)
                assert files is not None
                assert w.apply_cleanup(DAY, {n: [files]}) == n - 1
                values[value] += 1
            case "compact":
                compact(w.table("results"), fan_in=2)
            case "checkpoint":
                w.table("results").checkpoint(every=1)
    store.fail()
    time.sleep(0.3)  # what was late has come
    again = Warehouse(place, options=store.options)
    assert [each.n for each in again.journal.read()] == list(range(done["entry"]))
    assert [each.n for each in again.commands.read()] == list(range(done["command"]))
    assert len(again.sessions.read()) == done["session"]
    assert again.applied("results") == done["apply"] - 1
    assert again.cleanup_applied(DAY) == done["clean"] - 1
    assert rows(store, place) == values


def _append(root: str, options: dict[str, str], who: int) -> None:
    w = Warehouse(root, options=options)
    for k in range(5):
        w.commands.append(command(f"{who}-{k}"))


@on_every_store()
@server
def test_processes_that_race_take_each_number_once(store: StoreServer, place: str) -> None:
    made(store, place)
    faults = [{"kind": kind, "method": "PUT", "path": ENTRY} for kind in ("lost", "failed")]
    store.fail(*(fault | {"skip": n} for n in range(1, 9, 3) for fault in faults))
    race(*((_append, (place, store.options, who)) for who in (1, 2)))
    assert store.hits() > 3
    found = Warehouse(place, options=store.options).commands.read()
    assert [each.n for each in found] == list(range(10))
    ids = Counter(each.command.id for each in found)
    assert ids == Counter(f"{who}-{k}" for who in (1, 2) for k in range(5))


@on_every_store()
@server
def test_how_many_requests_a_commit_takes(store: StoreServer, place: str) -> None:
    """As `docs/deployment.md` says of an epoch; and no more when the history is longer."""
    w = made(store, place)
    found = []
    for n in range(8):
        store.requests()
        w.journal.append(entry(n))
        journal = len(store.requests())
        record = written(w, n, [n])
        store.requests()
        w.apply("results", n, [record])
        found.append((journal, len(store.requests())))
    assert found[1:] == [(9, 11)] * 7, "the first one of a process tries the store"


@on_every_store()
@server
def test_vacuum_and_checks_of_a_store(store: StoreServer, place: str) -> None:
    """What nothing names goes, in one request where the store has one for that; a file that is gone
    is told of."""
    w = made(store, place)
    for n in range(3):
        w.journal.append(entry(n))
    kept = written(w, 0, [1])
    w.journal.append(epoch(3, 0, ends(1, 1, 1), files=[kept], written_at=TIME))
    w.apply("results", 0, [kept])
    orphans = [written(w, 0, [7]).path for _ in range(3)]
    store.requests()
    found = w.vacuum(min_age_s=0, now_s=time.time() + 5)
    deletes = [each for each in store.requests() if each.startswith(("POST", "DELETE"))]
    assert sorted(info.name for info in found["results"].delete) == sorted(orphans)
    assert len(deletes) == (3 if store.scheme == "gs" else 1)
    assert rows(store, place) == Counter([1])
    assert w.check() == []
    w.folder("results").delete(kept.path)
    assert any(f"{kept.path} should have" in problem for problem in w.check())
    w.folder("journal").delete(log_name(2))
    with pytest.raises(DamagedTable, match="it is not there, but later ones are"):
        Warehouse(place, options=store.options)


@on_every_store(others=pytest.mark.soak)
def test_a_pruned_log_is_no_failure_of_the_store(
    store: StoreServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looked long ago must look again, and then sees all."""
    monkeypatch.setattr("spillway.tables.log.KEEP_ENTRIES", 0)
    monkeypatch.setattr("spillway.tables.log.KEEP_S", -60.0)
    old, w = Warehouse(place, options=store.options), made(store, place)
    assert old.table("results").version == 0
    for n in range(3):
        w.apply("results", n, [written(w, n, [n])])
    assert w.table("results").checkpoint(every=1)
    with pytest.raises(TableConflict, match="must look again"):
        old.table("results").transaction("spillway")
    assert old.applied("results") == 2


@on_every_store()
def test_the_state_key_is_one(store: StoreServer, place: str) -> None:
    """Of two who make it at once, and when the answer to the first put is lost."""
    w = made(store, place)
    store.fail({"kind": "lost", "method": "PUT", "path": "state-key"})
    key = w.state_key()
    assert len(key.get_secret_value()) == 32
    assert Warehouse(place, options=store.options).state_key() == key
